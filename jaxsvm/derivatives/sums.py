"""Tangents of coefficients in a narrow dtype, computed so that their sums keep their digits.

At large C, coefficients and their tangents are large, while decision values, which are sums of them, change little: the
rounding of each coefficient, or of its cotangent, exceeds the sum. If the kernel has d < n dense features X, only `X'v`
and the sum of v matter:

* Forward, small numbers at samples outside the support restore what rounding takes from these sums (as
  `jaxsvm.problems.certificates.corrections` does for the coefficients themselves), and what a change of X makes of the
  rounding of the returned coefficients.
* Backward, a cotangent that is a linear function of the features up to rounding is replaced by that function.

Other kernels have no such sums: if rounding the coefficients changes decision values by a quarter of a margin, the
coefficients' tangents are NaN (those of margins and bias are not).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.numerics.linear import factored
from jaxsvm.numerics.precision import rounded
from jaxsvm.problems.contract import Problem
from jaxsvm.problems.measured import MEASURED
from jaxsvm.runtime.arrays import promoting


def unsummable(problem: Problem, coefficients: Float[Array, " n"]) -> Bool[Array, ""]:
    """Return whether rounding to the problem's dtype makes derivatives of sums of the coefficients useless, `()`."""
    if jnp.finfo(problem.dtype).bits >= 64 or _has_few(problem.gram.feature_rows):
        return jnp.asarray(False)
    size = jnp.sqrt(jnp.maximum(lax.stop_gradient(problem.diagonal), 0))
    # The standard deviation of the rounding of decision values, against a quarter of a margin.
    return jnp.finfo(problem.dtype).eps / 4 * size.max() * jnp.linalg.norm(coefficients * size) > 0.25


def _has_few(X: Any) -> bool:
    return X is not None and X.shape[1] <= MEASURED.features_of_a_small_system and X.shape[1] + 1 < X.shape[0]


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def summable(
    coefficients: Float[Array, " n"], X: Float[Array, "n d"] | None, returned: Float[Array, " n"], dtype: Any
) -> Float[Array, " n"]:
    """Return the coefficients unchanged, in float64; tangents are numbers of `dtype` whose sums keep their digits.

    `returned` are the rounded coefficients that the caller gets.
    """
    del X, returned, dtype
    return coefficients


@summable.defjvp
@promoting()
def _(dtype: Any, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (coefficients, X, returned), (moved, dX, _) = primals, tangents
    out = summable(coefficients, X, returned, dtype)
    if not _has_few(X):
        return out, moved
    constant, spare, off = lax.stop_gradient((X, coefficients == 0, coefficients - returned))
    scale = jnp.maximum(jnp.abs(constant).max(axis=0), jnp.finfo(dtype).tiny)
    X = jnp.concatenate([constant / scale[None, :], jnp.ones_like(constant[:, :1])], axis=1)
    carriers = jnp.where(spare[:, None], X, 0)
    missed = jnp.append((dX.T @ off) / scale, 0)
    moved = moved + carriers @ _least_squares(carriers, missed)

    def forward(_: Any, v: Array) -> Array:
        kept = rounded(v, dtype)
        carried = kept + rounded(carriers @ _least_squares(carriers, X.T @ (v - kept)), dtype)
        better = jnp.linalg.norm(X.T @ (v - carried)) < jnp.linalg.norm(X.T @ (v - kept))
        return jnp.where(better, carried, kept)

    def backward(_: Any, g: Array) -> Array:
        near = X @ _least_squares(X, X.T @ g)
        return jnp.where(jnp.abs(g - near).max() <= 8 * jnp.finfo(dtype).eps * jnp.abs(g).max(), near, g)

    return out, lax.custom_linear_solve(lambda v: v, moved, forward, backward)


def _least_squares(X: Float[Array, "n d"], b: Float[Array, " d"]) -> Float[Array, " d"]:
    """Solve `X'X v = b` for v, refined once; features that depend linearly on others get the coefficient 0."""
    size = jnp.linalg.norm(X, axis=0)
    scale = jnp.where(size > 0, 1 / jnp.where(size > 0, size, 1), 0)
    squares = scale[:, None] * (X.T @ X) * scale
    factor = factored(squares, 1e-12)  # with a pivot below this share of its square a feature depends on others
    v = factor.solve(scale * b)
    return scale * (v + factor.solve(scale * b - squares @ v))
