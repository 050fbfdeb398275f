"""The measured numbers of this room; see `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers chosen by measurement."""

    bytes_per_block: int = 32 * 2**20  # bytes of basis values, or of dense points, that are computed at a time
    bytes_to_store: int = 4 * 2**30  # default budget of a stored kernel matrix: n = 32,768 in float32
    # bytes that the kernel values of some samples may take, if those of all are not to be stored: 8,192 in float32
    bytes_of_a_part: int = 2**28
    rows_per_tile: int = 128  # rows of a kernel matrix that are computed at a time
    # features from which half of a stored matrix is computed, on a CPU, and the other half mirrored
    features_of_half_a_matrix: int = 256
    # rows of a stored matrix, or of features, that are made wide or dense at a time; blocks of half a matrix
    rows_per_wide_tile: int = 256


MEASURED = Measured()
