"""Numbers of the driver that were measured: how, and on what, is in `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Sizes, shares and times from which a driver does something else."""

    # samples up to which pair steps on stored values solve a squared hinge, fresh starts are compiled without
    # optimisations, and a callback sees a certificate of every chunk
    samples_of_a_small_problem: int = 2048
    samples_of_one_working_set: int = 512  # samples up to which pair steps on stored values solve a hinge problem
    samples_of_a_larger_set: int = 1024  # size of the working set that replaces a crowded one
    new_samples_of_a_set: int = 128  # samples that join a hinge's working set in a step
    steps_before_hopeless: int = 10_000  # steps before a fit whose gap is 1 or more may be given up
    steps_a_sample_before_hopeless: int = 4  # the same, for each sample
    # samples from which a step alone fills a CPU, so that lanes of `vmap` are solved one by one
    samples_of_a_long_step: int = 128
    lanes_together: int = 64  # lanes of `vmap` that are solved side by side on a CPU, one group after another
    # samples up to which a traced hinge with a linear kernel of many features is solved by interior points
    samples_of_a_traced_system: int = 256
    crowded_share: float = 0.6  # share of a working set between its bounds from which the hinge takes larger sets
    # `(offered, share)`: after working sets of the squared hinge with `offered` n new samples, pair steps on stored
    # values are faster if more than that share of the samples lies inside the margin
    wide_supports: tuple[tuple[float, float], ...] = ((0.43, 0.45), (0.25, 0.75))
    # kernel diagonal over the ridge from which a squared hinge looks for features that reproduce its kernel
    curvature_of_features: float = 300.0
    chunks_before_features: int = 8  # chunks of steps before it does
    sets_before_a_width: int = 5  # working sets before which the share of samples inside the margin says little
    # kernel evaluations, in n^2, after which working sets continue with all values stored
    passes_before_storing: float = 3.0
    sets_of_a_small_problem: int = 50  # working sets after which pair steps take over if n is at most four sets
    # samples from which a product over all of them may take longer than a look at the clock
    samples_of_a_long_product: int = 4096
    samples_of_a_last_product: int = 16_384  # samples from which an interrupted fit is not certified by a product
    seconds_of_a_burst: float = 0.25  # seconds that compiled steps run before the host looks at the clock
    # share of its threshold that a running value must reach before a certificate is computed for it
    credible_share: float = 0.9
    # samples of one of many problems with stored kernel values up to which its pair steps work on all of them
    samples_at_once: int = 1024
    # samples up to which a chain over C works on one block: longer rows do not stay in the cache
    samples_of_one_block: int = 3072
    steps_per_sample: int = 500  # pair steps per sample after which another method continues
    # pair steps of a compiled solve between two looks at Ctrl-C: on all of 1,024 samples they take .2 s
    steps_of_a_piece: int = 2**17
    sets_of_a_piece: int = 16  # working sets of its first piece: later ones take as long as a burst of the driver
    # features up to which a linear machine is solved by interior points, for any number of samples
    features_always_few: int = 64
    samples_per_feature: int = 10  # samples a feature from which a linear machine is solved by interior points
    # relative gap at which interior points may end: pair steps did not reduce such a gap in minutes
    acceptable_gap: float = 0.01


MEASURED = Measured()
