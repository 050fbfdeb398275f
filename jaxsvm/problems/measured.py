"""The measured numbers of this room; see `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers chosen by measurement."""

    samples_up_to_which_a_matrix_is_factored: int = 2048
    """Up to here a factor decides whether a matrix is positive semidefinite; beyond, Lanczos' method."""
    products_of_lanczos: int = 12
    """Products of Lanczos' method with a larger matrix."""
    samples_up_to_which_sorting_is_fast: int = 2048
    """Up to here the water level of two classes is found by sorting; beyond, by bisection of the bias."""
    roundings_of_a_squared_distance: int = 8
    """Error of a squared distance from a ball's centre, or of its squared radius, in units of `eps max_i K_ii`."""


MEASURED = Measured()
