"""The measured number of this room; see `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers chosen by measurement."""

    programs_kept: int = 250
    """Compiled programs of this library beyond which all are cleared; each holds about 80 memory maps."""


MEASURED = Measured()
