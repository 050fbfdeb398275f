"""Numbers of the driver that were measured: how, and on what, is in `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Sizes, shares and times from which a driver does something else."""

    samples_of_a_small_problem: int = 2048
    """Samples up to which pair steps on stored values solve a squared hinge, fresh starts are compiled without
    optimisations, and a callback sees a certificate of every chunk."""
    samples_of_one_working_set: int = 512
    """Samples up to which pair steps on stored values solve a hinge problem."""
    steps_before_hopeless: int = 10_000
    """Steps before a fit whose gap is 1 or more may be given up."""
    steps_a_sample_before_hopeless: int = 4
    """The same, for each sample."""
    samples_of_a_long_step: int = 128
    """Samples from which a step alone fills a CPU, so that lanes of `vmap` are solved one by one."""
    lanes_together: int = 64
    """Lanes of `vmap` that are solved side by side on a CPU, one group after another."""
    samples_of_a_traced_system: int = 256
    """Samples up to which a traced hinge with a linear kernel of many features is solved by interior points."""
    crowded_share: float = 0.6
    """Share of a working set between its bounds from which the hinge takes larger sets."""
    wide_supports: tuple[tuple[float, float], ...] = ((0.43, 0.45), (0.25, 0.75))
    """`(offered, share)`: after working sets of the squared hinge with `offered` n new samples, pair steps on stored
    values are faster if more than that share of the samples lies inside the margin."""
    curvature_of_features: float = 300.0
    """Kernel diagonal over the ridge from which a squared hinge looks for features that reproduce its kernel."""
    chunks_before_features: int = 8
    """Chunks of steps before it does."""
    sets_before_a_width: int = 5
    """Working sets before which the share of samples inside the margin says little."""
    passes_before_storing: float = 3.0
    """Kernel evaluations, in n^2, after which working sets continue with all values stored."""
    sets_of_a_small_problem: int = 50
    """Working sets after which pair steps take over if n is at most four sets."""
    samples_of_a_long_product: int = 4096
    """Samples from which a product over all of them may take longer than a look at the clock."""
    samples_of_a_last_product: int = 16_384
    """Samples from which an interrupted fit is not certified by a product."""
    seconds_of_a_burst: float = 0.25
    """Seconds that compiled steps run before the host looks at the clock."""
    credible_share: float = 0.9
    """Share of its threshold that a running value must reach before a certificate is computed for it."""
    samples_at_once: int = 1024
    """Samples of one of many problems with stored kernel values up to which its pair steps work on all of them."""
    samples_of_one_block: int = 3072
    """Samples up to which a chain over C works on one block: longer rows do not stay in the cache."""
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

    @property
    def samples_of_a_larger_set(self) -> int:
        """Return the size of the working set that replaces a crowded one."""
        return 2 * self.samples_of_one_working_set

    @property
    def new_samples_of_a_set(self) -> int:
        """Return how many samples join a hinge's working set in a step."""
        return self.samples_of_one_working_set // 4


MEASURED = Measured()
