"""The measured numbers of this room; see `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers chosen by measurement, for squared distances between points in units of a kernel's width."""

    cancelled_share: float = 16.0
    """An expansion keeps its digits if `|x|^2 + |z|^2 <= cancelled_share (1 + distance)`: its error, about eps / 4 of
    the left side, is then a few units of rounding of a kernel value near 1, or of the exponent."""
    features_up_to_which_differences_are_fast: int = 4
    """With so few features, differences take no longer than a matrix product."""
    rows_up_to_which_each_is_reduced: int = 8
    """So few rows are one reduction each, without a transposed copy of the other points."""


MEASURED = Measured()
