"""The measured numbers of this room; see `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers chosen by measurement."""

    features_of_a_small_system: int = 512
    """Up to so many features a system of the features corrects what rounding does to coefficients and tangents."""


MEASURED = Measured()
