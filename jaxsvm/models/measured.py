"""Tuned limits of this room; docs/measured_constants.md says how they were chosen."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Limits of model files and ONNX graphs."""

    bytes_per_byte_of_file: int = 100
    """Bytes of arrays that a larger file may unpack to, for each of its own."""
    largest_expanded_square: float = 1e5
    """Squared distances to the mean of the support, in the kernel's units, up to which ONNX graphs expand them."""


MEASURED = Measured()
