"""The tuned numbers of this room; `docs/measured_constants.md` says how each was measured or why it was chosen."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Limits at which a cheaper or a more exact way of computing takes over."""

    auto_rows: int = 1 << 23  # rows of a join up to which "auto" evaluates every row
    formed_rows: int = 1 << 17  # rows of a join that is formed whatever its tables
    formed_ratio: int = 10  # rows of a join that is formed, for each row of its tables
    auto_pairs: int = 1 << 21  # pairs of rows up to which "auto" merges sorted scores
    points_per_sort: int = 1 << 18  # points (score and weight) that the sketch sorts at a time on a CPU
    keys_per_search: int = 32  # keys whose sketches are searched as one array
    hessian_rows: tuple[int, int] = (1 << 15, 1 << 17)  # rows drawn for Hessians, least and largest number
    hessian_rows_per_coefficient: int = 64  # rows of a Hessian for each coefficient
    rows_of_a_ramp: int = 8  # drawn rows with curvature for each coefficient


MEASURED = Measured()
