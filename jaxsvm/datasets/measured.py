"""Tuned numbers of the readers; what was measured stands in docs/measured_constants.md, "Data sets"."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Tuned numbers, each with its unit in its name."""

    bytes_per_text_piece: int = 1 << 22


MEASURED = Measured()
