"""Make coresets for kernel machines: the bounds do not depend on the dimension and need inner products only.

`kernel_sensitivity` takes the kernel matrix: with the weights u of a cell C and `Z = y phi(x)`,

    D^2 = K_pp - 2 y_p / U_C sum_q u_q y_q K_pq + 1 / U_C^2 sum_q sum_r u_q u_r y_q y_r K_qr,
    <c - Z_p, w> = 1 / U_C sum_q u_q y_q g_q - y_p g_p,      g = K beta  for w = sum beta phi(x).

It holds n^2 numbers. `kernel_coreset` is for larger data: it applies the linear construction to features of a Nystroem
map. The result is a coreset for the machine on these features, which is the kernel's as far as the map is exact.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from jaxsvm.coresets.bounds import Cells, gammas, own_partition
from jaxsvm.coresets.construction import coreset
from jaxsvm.coresets.pilot import Pilot
from jaxsvm.coresets.summary import Coreset, as_data, as_key, float_dtype
from jaxsvm.gram.build import gram
from jaxsvm.kernels import Kernel, Linear
from jaxsvm.loop.driver import fit
from jaxsvm.numerics.linear import inverse_root
from jaxsvm.points.rows import PointsLike
from jaxsvm.problems.box import hinge_problem
from jaxsvm.results.fit import Fit
from jaxsvm.runtime.arrays import require_one_of, require_positive, require_whole, transfers
from jaxsvm.solvers.box.sequential_minimal_optimization import SMO


@transfers
def kernel_sensitivity(
    kernel: Kernel, x: PointsLike, y: ArrayLike, C: float, sample_weight: ArrayLike | None = None, *,
    bound: str = "dir", labels: ArrayLike | None = None, fitted: Fit | None = None,
) -> np.ndarray:  # fmt: skip
    """Bound the (pinned) sensitivities of a kernel SVM with a free bias from above, `(n,)` float64; O(n^2) memory.

    Args:
        kernel: The kernel.
        x: Points, `(n, d)`.
        y: Signs in {-1, +1}, `(n,)`.
        C: The factor of the loss, positive.
        sample_weight: Weights, `(n,)`, not negative.
        bound: "dir" or "tight".
        labels: A partition of each class, `(n,)` integers; None: the classes themselves.
        fitted: A fit of the problem (`hinge_problem(..., bias="free")`); None: `SMO(tol=1e-4)` makes one.

    Raises:
        InputError: If an argument cannot be used.
    """
    require_one_of("bound", bound, ("dir", "tight"))
    require_positive("C", C)
    x, y, u = as_data(x, y, sample_weight)
    label, most = own_partition(y > 0 if labels is None else labels, y)
    with jax.enable_x64(True):
        if fitted is None:
            problem = hinge_problem(gram(kernel, x), y, C, bias="free", sample_weight=u)
            fitted = fit(problem, SMO(tol=1e-4))
        beta, proof = np.asarray(fitted.dual_coef, float), fitted.certificate
        values = float(proof.primal), float(proof.dual)
        return np.asarray(_bounds(kernel, x, y, u, float(C), label, most, beta, values, bound))


@partial(jax.jit, static_argnames=("most", "bound"))
def _bounds(
    kernel: Kernel, x: Array, y: Array, u: Array, C: Any, label: Array, most: int, beta: Array, values: Any, bound: str
) -> Float[Array, " n"]:
    K = kernel.matrix(x, x)
    member = jnp.where(label[:, None] == jnp.arange(most), (u * y)[:, None], 0)
    U_C = jax.ops.segment_sum(u, label, most)
    safe = jnp.where(U_C > 0, U_C, 1)
    towards = K @ member / safe  # <phi_p, c_C>, (n, most)
    inner = (member * (K @ member)).sum(axis=0) / safe**2
    own = jnp.take_along_axis(towards, label[:, None], axis=1)[:, 0]
    D = jnp.sqrt(jnp.maximum(jnp.diagonal(K) - 2 * y * own + inner[label], 0))
    g = K @ beta
    mean = member.T @ g / safe
    norm = jnp.sqrt(jnp.maximum(beta @ g, 0))
    at = Pilot(norm[None], jnp.zeros(()), values[0], values[1], beta)  # of w only the length is used
    cell = Cells(label, U_C[label], D, mean[label] - y * g, (U_C > 0).sum())
    return gammas(cell, u, C, at, bound, False)


@transfers
def kernel_coreset(
    kernel: Kernel, x: PointsLike, y: ArrayLike, C: float, m: int, key: Array | int = 0,
    sample_weight: ArrayLike | None = None, *, rank: int = 128, sampler: str = "mixture", bound: str = "dir",
    regulariser: str = "pinned", clusters: int | tuple[int, ...] | None = None,
) -> Coreset:  # fmt: skip
    """Make a coreset of m points for a kernel machine, by Nystroem features and the linear construction.

    Args:
        kernel: The kernel.
        x: Points, `(n, d)`.
        y: Signs in {-1, +1}, `(n,)`.
        C: The factor of the loss, positive.
        m: Number of points.
        key: A random key, or a seed: of the landmarks and of the draw.
        sample_weight: Weights, `(n,)`, not negative.
        rank: Landmarks, drawn uniformly.
        sampler: As that of `coreset`.
        bound: As that of `coreset`.
        regulariser: As that of `coreset`.
        clusters: As those of `coreset`.

    Returns:
        A coreset of the original points, whose `fit()` and `problem()` use the kernel.

    Raises:
        InputError: If an argument cannot be used.
    """
    require_whole("rank", rank, 1)
    points, y, u = as_data(x, y, sample_weight)
    with jax.enable_x64(True):
        key = as_key(key)
        rank = min(rank, len(y))
        landmarks = points[np.asarray(jax.random.choice(jax.random.fold_in(key, 1), len(y), (rank,), replace=False))]
        features = np.asarray(_features(kernel, points, landmarks))
    small = coreset(features, y, C, m, key, u, sampler, bound, regulariser=regulariser, clusters=clusters)
    kept = points[small.info["index"]]
    more = small.info | {"rank": rank} | ({} if isinstance(kernel, Linear) else {"kernel": kernel})
    return Coreset(kept.astype(float_dtype(x)), small.y, small.weight, more)


@jax.jit
def _features(kernel: Kernel, x: Array, landmarks: Array) -> Float[Array, "n r"]:
    # Eigenvalues below 1e-10 of the largest are rounding.
    return kernel.matrix(x, landmarks) @ inverse_root(kernel.matrix(landmarks, landmarks), 1e-10)
