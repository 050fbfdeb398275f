"""Numbers of the driver and of paths that were measured: how, and on what, is in `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Sizes, shares and times from which a driver or a path does something else."""

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
    # --- paths
    factor_between_anchors: float = 2.1  # largest ratio of C between two anchors: most values between them need no step
    margin_of_candidates: float = 0.1  # a sample whose margin exceeds 1 by more is left out of a smaller candidate set
    share_of_a_smaller_set: float = 0.4  # size of a smaller candidate set, as a share of the one before
    samples_for_working_sets: int = 6000  # samples from which values with many pair steps are solved by working sets
    # samples up to which a value of a carried chain is solved by pair steps; more are solved by working sets
    samples_of_short_rows: int = 1024
    # samples that a rule leaves, up to which their kernel values are gathered for one value of C
    most_samples_stored_for_a_value: int = 8192
    sets_of_a_value: int = 100  # working sets after which a value of a carried chain is solved as a fit of its own
    # working sets of one compiled piece, times samples: a piece takes less than a second
    samples_times_sets_of_a_piece: int = 600_000
    # values between two solved ones take no product if the last one's first gap was at most this share of `tol`
    sure_share_of_the_gap: float = 0.1
    # a gap of more than so many `tol` is far: larger values of C end further off, and take no steps
    far_gap: float = 20.0
    # how far apart in log C the first two values of `epsilon_path` are, in square roots of epsilon
    first_jump: float = 4.0
    # distance in log C at which it tries the next value, as a share of what the two before it would have reached
    share_of_a_jump: float = 0.9
    # a `tol` above so many roundings is certified by the margins that an anchor's steps carried along
    carried_roundings: float = 1000.0
    samples_of_whole_rows: int = 4096  # samples up to which they use whole stored rows if no rule leaves samples out


MEASURED = Measured()
