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
    parts_before_hopeless: tuple[int, int] = (100, 5)  # the same, of the cap: for a gap of 1 or more, and for others
    samples_of_a_long_step: int = 128  # samples from which a step fills a CPU: lanes of `vmap` are solved one by one
    lanes_together: int = 64  # lanes of `vmap` that are solved side by side on a CPU, one group after another
    samples_of_a_traced_system: int = 256  # samples up to which interior points solve a traced hinge of many features
    crowded_share: float = 0.6  # share of a working set between its bounds from which the hinge takes larger sets
    # `(offered, share)`: after working sets of the squared hinge with `offered` n new samples, pair steps on stored
    # values are faster if more than that share of the samples lies inside the margin
    wide_supports: tuple[tuple[float, float], ...] = ((0.43, 0.45), (0.25, 0.75))
    curvature_of_features: float = 300.0  # kernel diagonal over the ridge from which a squared hinge takes features
    curvature_of_sets: float = 60.0  # the same, above which sets with wide supports go on
    chunks_before_features: int = 8  # chunks of steps before it does
    sets_before_a_width: int = 5  # working sets before which the share of samples inside the margin says little
    passes_before_storing: float = 3.0  # kernel evaluations, in n^2, after which working sets store all values
    sets_of_a_problem: int = 1000  # working sets after which pair steps take over
    sets_of_a_small_problem: int = 50  # the same, if n is at most four sets
    sets_of_interior_points: int = 20  # working sets of one new sample a feature, at least, that they cost as much as
    places_before_larger_sets: float = 2.5  # places offered, in n, after which a squared hinge's sets may be crowded
    excess_of_larger_sets: float = 1000.0  # gap, in `tol`, within which a hinge's sets end sooner than larger ones
    bytes_of_rows: int = 2**30  # bytes of kernel rows that larger sets keep at most
    samples_of_a_long_row: int = 8192  # samples from which bursts of working sets are compiled with all optimisations
    samples_of_a_long_product: int = 4096  # samples from which a product may take longer than a look at the clock
    samples_of_a_last_product: int = 16_384  # samples from which an interrupted fit is not certified by a product
    seconds_of_a_burst: float = 0.25  # seconds that compiled steps run before the host looks at the clock
    seconds_of_a_last_certificate: float = 0.4  # seconds of it, of the second that a stopped call may take to end
    credible_share: float = 0.9  # share of its threshold at which a running value is worth a certificate
    steps_before_doubt: int = 1000  # steps without a change of R, though others change, after which one is computed
    steps_of_a_refresh: int = 4000  # steps between two refreshes, if n is less: one costs thousands of steps
    far_from_tol: float = 100.0  # a gap of so many `tol` is far from it
    samples_at_once: int = 1024  # samples of one of many problems up to which its pair steps work on all of them
    steps_per_sample: int = 500  # pair steps per sample after which another method continues
    steps_of_a_piece: int = 2**17  # pair steps of a compiled solve between two looks at Ctrl-C: .2 s on 1,024 samples
    sets_of_a_piece: int = 16  # working sets of its first piece: later ones take as long as a burst of the driver
    features_always_few: int = 64  # features up to which interior points solve any number of samples
    samples_per_feature: int = 10  # samples a feature from which they solve a linear machine
    samples_per_feature_of_a_hinge: int = 150  # the same of a hinge problem, which working sets may solve
    acceptable_gap: float = 0.01  # relative gap at which they may end: pair steps did not reduce it in minutes
    # --- paths
    factor_between_anchors: float = 2.1  # largest ratio of C between two anchors: most values between them need no step
    margin_of_candidates: float = 0.1  # a sample whose margin exceeds 1 by more is left out of a smaller candidate set
    scaled_C_of_equal_weights: float = 0.3  # `C mean(K_ii)` up to which steps start with equal weights: half of them
    scaled_C_of_sets: float = 30.0  # the same, above which pair steps are many; the number of sets hardly grows with C
    share_of_a_smaller_set: float = 0.4  # size of a smaller candidate set, as a share of the one before
    samples_for_working_sets: int = 6000  # samples from which values with many pair steps are solved by working sets
    most_samples_stored_for_a_value: int = 8192  # samples that a rule leaves, stored for one value of C at most
    sets_of_a_value: int = 100  # working sets after which a value of a carried chain is solved as a fit of its own
    samples_times_sets_of_a_piece: int = 600_000  # working sets of a piece, times samples: it takes less than a second
    # values between two solved ones take no product if the last one's first gap was at most this share of `tol`
    sure_share_of_the_gap: float = 0.1
    far_gap: float = 20.0  # in `tol`: larger values of C end further off than such a gap, and take no steps
    first_jump: float = 4.0  # distance of the first two values of `epsilon_path`, in log C over `sqrt(epsilon)`
    # distance in log C at which it tries the next value, as a share of what the two before it would have reached
    longest_jump: float = 1.5  # largest ratio of it to the jump before
    share_of_a_jump: float = 0.9
    carried_roundings: float = 1000.0  # a `tol` above so many is certified by margins that steps carried along
    samples_of_whole_rows: int = 4096  # samples up to which they use whole stored rows if no rule leaves samples out


MEASURED = Measured()
