"""Tuned numbers of coresets; what was measured stands in docs/measured_constants.md, "Coresets"."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Tuned numbers, each with its unit in its name or comment."""

    share_of_bounds: float = 0.3  # of the probabilities: the part proportional to the sensitivity bounds
    share_of_pulls: float = 0.15  # the part proportional to the pulls on the pilot's dual vector
    points_per_feature_for_one_draw: int = 10  # below, several draws are made and one is kept
    uniform_shares: tuple[float, ...] = (0.0, 0.5, 0.9, 0.99)  # of the uniform distribution, in each of these draws
    largest_weight_change: float = 4.0  # calibration multiplies a weight by this factor at most, or divides it
    ridge_per_total: float = 0.01  # of calibration: times totals / points, relative to the totals' variances
    subsets_solved: int = 24  # queries that are solutions of small subsets
    points_per_subset: int = 256
    points_per_small_subset: tuple[int, ...] = (8, 16, 32, 64) * 6  # queries that miss what dominates a large subset
    dominant_share: float = 0.1  # of an objective: from here on the score at a small subset counts
    rough_gap: float = 1e-3  # relative gap of the machines of subsets and of trials
    centrality_corrections: int = 3  # in each interior-point step
    rows_held: int = 65536  # of a design, that are fetched; of more, so many are drawn
    bytes_held: int = 2**27  # of such rows, in float64
    rows_per_point: int = 8  # of a coreset, that are fetched at least
    rows_for_centres: int = 4096  # of a design, whose centres serve as those of all rows
    cells_of_rows: int = 64  # per class
    share_of_bounds_of_rows: float = 0.5  # of the probabilities of rows; the rest is uniform
    pilot_gap: float = 1e-2  # relative gap of the pilot of all rows
    pilot_passes: int = 16  # at most


MEASURED = Measured()
