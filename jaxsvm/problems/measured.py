"""The measured numbers of this room; see `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers chosen by measurement."""

    features_of_a_small_system: int = 512
    """Up to so many features a system of the features corrects what rounding does to coefficients and tangents."""
    samples_factored: int = 8192
    """Samples up to which the test of definiteness factors the whole matrix: no negative eigenvalue is missed."""
    products_of_lanczos: int = 12
    """Products of Lanczos' method with a larger matrix."""
    roundings_of_a_squared_distance: int = 8
    """Error of a squared distance from a ball's centre, or of its squared radius, in units of `eps max_i K_ii`."""


MEASURED = Measured()
