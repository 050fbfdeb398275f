"""The measured numbers of this room; see `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers chosen by measurement."""

    columns_per_panel: int = 32  # columns of a panel of an elimination
    lapack_size: int = 1024  # from this size on LAPACK factors a single matrix
    sorted_size: int = 2048  # up to so many entries, sorting finds places as fast as a running sum and a scatter
    # rows, features or entries that a fused loop takes in a turn: more do not stay in registers
    terms_per_turn: int = 16
    slices_per_fold: int = 12  # largest number of slices of a folded extreme
    slope_left: float = 1e-2  # share of the first derivative at which a line search on the way to another point may end
    smallest_system: int = 256  # smallest size class of a linear system; smaller ones cost what it takes to start them
    # up to this size a matrix is stored and factored; of more samples, so many rows are a tile
    largest_direct_system: int = 2048
    landmarks: int = 128  # Nystroem landmarks of a preconditioner of larger systems
    bytes_held: int = 2**27  # bytes of a matrix, or of points made dense, that are held whole without being asked for
    # `(n, sizes, multiple)`: up to n samples, so many sizes between powers of two, multiples of the last number
    padded_sizes: tuple[tuple[int, int, int], ...] = ((1024, 4, 64), (8192, 32, 32))


MEASURED = Measured()
