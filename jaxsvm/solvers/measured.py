"""The measured numbers of this room; see `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers chosen by measurement."""

    longest_step: float = 4.0  # line searches go so many Newton steps at most, but in the span of the samples
    conjugate_gradient_steps: int = 500  # cap of conjugate gradients on a system of Newton's
    samples_at_once: int = 1024  # up to so many samples Newton's first step takes all, above it half as many
    pairs_per_step_of_a_polish: int = 32  # a polish by Newton of n samples takes as long as `n^2 / 32` pair steps
    columns_per_product: int = 128  # columns of a Cholesky factor that cost as much as a conjugate gradient step
    passes_of_long_steps: int = 10  # passes of stochastic subgradients after which `gentle` steps fall faster
    passes_per_certificate: int = 5  # passes of stochastic subgradients over the data between two certificates
    steps_per_turn: int = 8  # steps on a block between two tests of its violation
    violation_left: float = 0.1  # share of its violation at which a block with upper bounds ends
    gradient_left: float = 0.05  # share of its largest gradient at which a block without upper bounds ends
    steps_per_member: int = 16  # cap of the steps on a block, for each of its samples
    most_features: int = 512  # largest number of features that replace a kernel matrix
    samples_of_a_feature: int = 12  # smallest number of samples per feature
    # largest C times the mean diagonal of `K - Z Z'` at which no more features are added
    rest_of_features: float = 0.03
    largest_rest: float = 2.0  # the same, from which features are not used at all
    # larger `C mean(K_ii)` do not decide on it: the values below gain, and the first one that features fail ends them
    scaled_C_of_features: float = 4000.0
    most_systems: int = 40  # largest number of systems of one problem in the space of features
    # largest number of products with the kernel matrix for one value that is solved in the space of features
    most_products: int = 12
    gap_of_a_product: float = 0.9  # other steps take over if such a product leaves more than this share of the gap


MEASURED = Measured()
