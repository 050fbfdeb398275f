"""Measured numbers of this room; `docs/measured_constants.md` records how."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Tuned numbers, with their units."""

    first_ramp: float = 4.0  # width of the first ramp, in units of the scores: all rows lie on it at w = 0
    narrowing: float = 0.1  # least factor by which a pass narrows a ramp
    slope_of_a_trial: float = 0.5  # share of the first slope up to which a trial of a step is accepted
    refused_trials: int = 4  # trials of a step that may be refused before the last one is accepted
    rows_near: float = 4.0  # rows on a ramp a coefficient, below which rows near the margin are fetched
    most_rows: int = 8192  # rows that are fetched at most
    rows_per_start_row: int = 8  # rows for each row of the part that a start is computed from
    tols_of_a_start: int = 10  # relative gap of that start, in units of the one asked for
    rough_gap: float = 0.1  # largest relative gap of that start: a worse point says nothing of a ramp's width
    start_passes: int = 30  # passes over that part
    share_of_a_ramp: float = 0.2  # share of the gap asked for that a ramp may lose, beside half of what a step gains
    short_step: float = 0.1  # part of a step below which the ramp was too narrow for it, and becomes wider
    idle_passes: int = 12  # passes without any progress after which a machine ends
    planes: int = 40  # planes of a lane, above which half of them are dropped
    bytes_per_chunk: int = 8 * 2**20  # features of files that are computed with at a time, in float64


MEASURED = Measured()
