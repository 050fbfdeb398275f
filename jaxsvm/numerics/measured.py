"""The measured numbers of this room; see `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers chosen by measurement."""

    columns_per_panel: int = 32
    """Columns of a panel of an elimination."""
    size_of_a_single_panel: int = 48
    """Up to this size a matrix is eliminated as one panel."""
    lapack_size: int = 1024
    """From this size on LAPACK factors a single matrix."""
    sorted_size: int = 2048
    """Up to so many entries, sorting finds places as fast as a running sum and a scatter."""
    rows_per_turn: int = 16
    """Rows that `weighted_rows` adds in a turn."""
    slices_per_fold: int = 12
    """Largest number of slices of a folded extreme."""
    entries_per_slice: int = 16
    """Smallest number of entries of such a slice."""
    slope_left: float = 1e-2
    """Share of the first derivative at which a line search on the way to another point may end."""
    smallest_system: int = 256
    """Smallest size class of a linear system; smaller ones cost what it takes to start them."""
    padded_sizes: tuple[tuple[int, int, int], ...] = ((1024, 4, 64), (8192, 32, 32))
    """Up to so many samples: sizes between two powers of two, and the multiple that each size is."""


MEASURED = Measured()
