"""The measured numbers of this room; see `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers chosen by measurement."""

    features_of_a_small_system: int = 512  # features up to which a system of them corrects rounded coefficients
    samples_factored: int = 8192  # samples up to which the test of definiteness factors the matrix: it misses nothing
    products_of_lanczos: int = 12  # products of Lanczos' method with a larger matrix
    roundings_of_a_squared_distance: int = 8  # error of it from a ball's centre, or of its radius, in `eps max_i K_ii`
    stretch: float = 3.0  # factor between candidates for a w that must grow
    longest_stretch: float = 0.01  # part that it grows by at most; the least is a rounding


MEASURED = Measured()
