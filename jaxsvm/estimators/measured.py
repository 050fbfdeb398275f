"""Numbers of the estimators that were measured: how, and on what, is in `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Sizes and limits from which another method is faster."""

    values_by_numpy: int = 2**20
    """Kernel values that NumPy computes in less time than a program is compiled in."""
    values_by_blocks_of_numpy: int = 2**28
    """Kernel values that NumPy computes on a CPU as fast as a program does, some rows at a time."""
    values_of_a_block_of_numpy: int = 2**18
    """Kernel values of such a block: they stay in the cache."""
    multiplications_of_one_thread: int = 2**18
    """Multiplications of a matrix product that OpenBLAS does in the calling thread."""


MEASURED = Measured()
