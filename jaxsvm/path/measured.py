"""Numbers of regularisation paths that were measured: how, and on what, is in `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Sizes and shares from which a path does something else."""

    easy_scaled_C: float = 0.35
    """Largest `C mean(K_ii)` of a value that may be a lane of the block Newton method."""
    factor_between_anchors: float = 2.1
    """How far apart in C anchors are, at the most: the values between them mostly need no step."""
    margin_of_candidates: float = 0.1
    """A sample whose margin exceeds 1 by more is left out of a smaller candidate set."""
    share_of_a_smaller_set: float = 0.4
    """Samples of a smaller candidate set, in those of the one before."""
    samples_for_working_sets: int = 6000
    """Samples from which values with many pair steps are solved by working sets."""
    samples_of_short_rows: int = 1024
    """Samples up to which a value of a screened chain is solved by pair steps; more are solved by working sets."""
    samples_times_sets_of_a_piece: int = 600_000
    """Working sets of one compiled piece, times samples: a piece takes less than a second."""
    most_features: int = 512
    """Largest number of features that replace a kernel matrix."""
    samples_of_a_feature: int = 12
    """Samples for each of them at the least."""
    rest_of_features: float = 0.03
    """The largest C times the mean diagonal of what features leave of a kernel matrix: then no more are added."""
    largest_rest: float = 2.0
    """Such a product with which features are of use."""
    most_systems: int = 40
    """Systems of one problem in the space of features."""
    most_products: int = 12
    """Products with the kernel matrix of one value that is solved in the space of features."""
    gap_of_a_product: float = 0.9
    """Share of the gap that such a product leaves at the most; else other steps go on."""
    sure_share_of_the_gap: float = 0.1
    """Share of the gap asked for, up to which a value between two solved ones takes no such product."""
    first_jump: float = 4.0
    """How far apart in log C the first two values of `epsilon_path` are, in square roots of epsilon."""
    share_of_a_jump: float = 0.9
    """How far it tries each next value, in log C and what the two before it would have reached."""
    carried_roundings: float = 1000.0
    """Roundings above which a gap asked for needs no margins from scratch after the steps of an anchor."""

    @property
    def samples_of_whole_rows(self) -> int:
        """Return the number of samples up to which pair steps use whole stored rows if no rule leaves samples out."""
        return 4 * self.samples_of_short_rows


MEASURED = Measured()
