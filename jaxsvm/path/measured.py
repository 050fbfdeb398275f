"""Numbers of regularisation paths that were measured: how, and on what, is in `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Sizes and shares from which a path does something else."""

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
