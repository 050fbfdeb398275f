"""Numbers of the estimators that were measured: how, and on what, is in `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Sizes and limits from which another method is faster."""

    samples_at_once: int = 1024
    """Samples of a machine with stored kernel values up to which its pair steps work on all of them."""
    samples_of_one_block: int = 3072
    """Samples of a machine up to which a chain over C works on one block: longer rows do not stay in the cache."""
    steps_per_sample: int = 500
    """Pair steps per sample after which another method continues."""
    steps_of_a_piece: int = 2**17
    """Pair steps of a compiled solve between two looks at Ctrl-C: on all of 1,024 samples they take .2 s."""
    sets_of_a_piece: int = 16
    """Working sets of its first piece: later ones take as long as a burst of the driver."""
    features_always_few: int = 64
    """Features up to which a linear machine is solved by interior points, for any number of samples."""
    samples_per_feature: int = 10
    """Samples a feature from which a linear machine is solved by interior points."""
    acceptable_gap: float = 0.01
    """Relative gap at which interior points may end: pair steps did not reduce such a gap in minutes."""
    values_by_numpy: int = 2**20
    """Kernel values that NumPy computes in less time than a program is compiled in."""
    multiplications_of_one_thread: int = 2**18
    """Multiplications of a matrix product that OpenBLAS does in the calling thread."""


MEASURED = Measured()
