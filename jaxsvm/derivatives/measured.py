"""The measured numbers of this room; see `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers chosen by measurement."""

    features_of_a_small_system: int = 512
    """Up to so many features a system of the features corrects what rounding does to coefficients and tangents."""
    samples_of_a_factored_support: int = 4096
    """The largest support whose matrix is factored: 128 MiB in float64."""
    landmarks: int = 128
    """Nystroem landmarks of the preconditioner for larger supports."""


MEASURED = Measured()
