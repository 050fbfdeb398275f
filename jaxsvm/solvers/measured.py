"""The measured numbers of this room; see `docs/measured_constants.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers chosen by measurement."""

    largest_direct_system: int = 2048
    """Up to this size a matrix is stored and factored: of samples, or of features."""
    rows_per_tile: int = 2048
    """Rows of a tile of a Hessian in the space of the features."""
    curvature_floor: float = 1e-12
    """Smallest curvature that a step of dual variables divides by: LIBSVM's."""
    curvature_roundings: int = 32
    """Units of rounding below which a negative curvature shows that a kernel is not positive semidefinite."""
    features_with_dense_hessian: int = 2000
    """Largest number of features for which Newton forms a Hessian by itself."""
    rows_per_start_row: int = 16
    """Newton's start in feature space is solved on every so many-th row."""
    secant_pairs: int = 10
    """Pairs that L-BFGS keeps."""
    conjugate_gradient_steps: int = 500
    """Cap of conjugate gradients on a system of Newton's."""
    samples_at_once: int = 1024
    """Up to so many samples Newton's first step takes all, above it half as many."""
    landmarks: int = 128
    """Samples of the support of which the preconditioner is made."""
    columns_per_product: int = 128
    """A conjugate gradient step costs about as much as so many columns of a Cholesky factor."""
    entries_per_chunk: int = 128
    """Entries of a long sparse row at a time; shorter rows are padded to the longest."""
    passes_per_certificate: int = 5
    """Passes of stochastic subgradients over the data between two certificates."""
    steps_per_turn: int = 8
    """Steps on a block between two tests of its violation."""
    violation_left: float = 0.1
    """Share of its violation at which a block with upper bounds ends."""
    gradient_left: float = 0.05
    """Share of its largest gradient at which a block without upper bounds ends."""
    steps_per_member: int = 16
    """Cap of the steps on a block, for each of its samples."""
    rows_per_fetch: tuple[int, int] = (128, 32)
    """Kernel rows computed at a time, and for a short remainder."""
    at_bound: float = 1e-6
    """A variable so much nearer to its bound than its multiplier is to 0, each in its own scale, is at the bound."""
    places_per_evaluation: int = 256
    """Places of a buffer of active samples that a drawn sample is evaluated against at a time."""
    buffer_places: int = 4096
    """Places that such a buffer begins with."""
    worthwhile_share: float = 0.5
    """Largest share of the samples for which a screened problem is solved as a smaller one."""


MEASURED = Measured()
