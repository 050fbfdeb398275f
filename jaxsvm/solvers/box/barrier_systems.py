"""Solve the linear systems of an interior point method: `(Q + diag(D)) da + c db = r`, `c'da = e - c'a`.

For moderate n factor an n x n matrix. If the kernel has d < n features, solve in their space: with `H = (W, c)`,
`Q = W W'`, and `v = (W'a, b)` carried (the digits of `W'a` would cancel for large U),

    (P + H' D^-1 H) dv = H'(D^-1 r + a) - P v - (0, e),     da = D^-1 (r - H dv),     P = diag(1, ..., 1, 0).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.numerics.linear.elimination import factored
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.numerics.products import diagonal, matmul, plus_diagonal
from jaxsvm.points.rows import product, transposed_product
from jaxsvm.problems.contract import BoxForm, Problem
from jaxsvm.runtime.loops import fori_loop
from jaxsvm.runtime.meshes import Spread
from jaxsvm.solvers.features import feature_matrix, tiles_of, weighted_squares

Solve = Callable[[Array], tuple[Array, Array, Array]]
"""From r to `da`, `dv`, and the change of the margins."""


def affordable(problem: Problem) -> bool:
    """Return whether systems with Q can be solved: for moderate n on one device, or if the kernel has few features."""
    one = problem.gram.spread is None  # no factorization of a matrix on several devices
    return (one and problem.n <= SIZES.largest_direct_system) or few_features(problem) is not None


def few_features(problem: Problem) -> Any:
    """Return `X (n, d)` with `K = X X'` if the systems are solved in its space; else None.

    For moderate n that takes fewer operations up to d = n / 2: n d^2 instead of n^3 / 3, and no factor of size n. For
    the smallest systems it is faster up to d = n, since nothing is refined there.
    """
    x, n = feature_matrix(problem), problem.n
    share = n if n <= 2 * SIZES.columns_per_panel else n // 2
    most = share if n <= SIZES.largest_direct_system else SIZES.largest_direct_system
    return None if x is None or x.shape[1] > most else x


def barrier_system(problem: BoxForm) -> "DenseSystem | FeatureSystem":
    """Form the systems of an `affordable` problem, without absent samples."""
    present, dtype, n = problem.present, problem.dtype, problem.n
    e = jnp.zeros((0,), dtype) if problem.c is None else problem.e[None]
    c = jnp.zeros((n, 0), dtype) if problem.c is None else jnp.where(present, problem.c, 0)[:, None]
    x = few_features(problem)
    if x is None:
        everything = jnp.arange(n)
        Q = jnp.where(present[:, None] & present[None, :], problem.block(everything, everything), 0)
        return DenseSystem(Q.astype(dtype), c, e)
    y = jnp.where(present, problem.y, 0)
    constant = jnp.ones((n, 1 if problem.offset else 0), dtype)
    penalty = jnp.ones((x.shape[1] + constant.shape[1] + len(e),), dtype)
    return FeatureSystem(
        x=x,
        y=y,
        more=jnp.concatenate([constant, y[:, None] * c], axis=1),
        penalty=penalty.at[len(penalty) - len(e) :].set(0),
        e=jnp.zeros_like(penalty).at[len(penalty) - len(e) :].set(e),
        spread=problem.gram.spread,
    )


@dataclasses.dataclass(frozen=True)
class DenseSystem:
    """Systems with `Q` as a matrix; v is the bias, or empty.

    Attributes:
        Q: The matrix, `(n, n)`.
        c: Coefficients of the equality, one column or none, `(n, p)`.
        e: Right-hand side of the equality, `(p,)`.
    """

    Q: Float[Array, "n n"]
    c: Float[Array, "n p"]
    e: Float[Array, " p"]

    def start(self, a: Float[Array, " n"]) -> Float[Array, " p"]:
        """Return v for the first iterate."""
        return jnp.zeros_like(self.e)

    def margins(self, a: Float[Array, " n"], v: Float[Array, " p"]) -> Float[Array, " n"]:
        """Return `Qa + b c`."""
        return matmul(self.Q, a) + self.c @ v

    def factored(self, D: Float[Array, " n"], a: Float[Array, " n"], v: Float[Array, " p"]) -> Solve:
        """Return the solver of systems with this diagonal, at this point."""
        off = self.c.T @ a - self.e
        scale = lax.rsqrt(diagonal(self.Q) + D)
        factor = factored(scale[:, None] * plus_diagonal(self.Q, D) * scale[None, :])
        scale, D = scale[:, None], D[:, None]

        def inverse(R: Array) -> Array:
            """Solve `(Q + D) X = R` for several right-hand sides; a second turn refines X."""

            def refine(_: Any, X: Array) -> Array:
                return X + scale * factor.solve(scale * (R - matmul(self.Q, X) - D * X))

            return fori_loop(0, 2, refine, jnp.zeros_like(R))

        def solve(r: Array) -> tuple[Array, Array, Array]:
            # Solve for r and the equality's column together: two solves would double the program.
            X = inverse(jnp.concatenate([r[:, None], self.c], axis=1))
            da, column = X[:, 0], X[:, 1:]
            dv = (self.c.T @ da + off) / (self.c * column).sum(axis=0)
            da = da - column @ dv
            return da, dv, matmul(self.Q, da) + self.c @ dv

        return solve


@dataclasses.dataclass(frozen=True)
class FeatureSystem:
    """Systems with `H = diag(y) (X, more)`; v is `W'a` and the bias.

    Attributes:
        x: The features, `(n, d)`, dense or CSR.
        y: Signs, `(n,)`; 0 for absent samples.
        more: Further columns: the constant of a regularised bias, `y c` of an equality, `(n, p)`.
        penalty: `P`, `(d + p,)`.
        e: Zeros, and the right-hand side of the equality, `(d + p,)`.
        spread: How the samples are spread over a mesh.
    """

    x: Any
    y: Float[Array, " n"]
    more: Float[Array, "n p"]
    penalty: Float[Array, " dp"]
    e: Float[Array, " dp"]
    spread: Spread | None = None

    def start(self, a: Float[Array, " n"]) -> Float[Array, " dp"]:
        """Return v for the first iterate."""
        return self.penalty * self._transposed(a)

    def margins(self, a: Float[Array, " n"], v: Float[Array, " dp"]) -> Float[Array, " n"]:
        """Return `H v`, which is `Qa + b c` if v is `W'a` and b."""
        d = self.x.shape[1]
        return self.y * (product(self.x, v[:d], self.spread) + self.more @ v[d:])

    def factored(self, D: Float[Array, " n"], a: Float[Array, " n"], v: Float[Array, " dp"]) -> Solve:
        """Return the solver of systems with this diagonal, at this point."""
        weight = jnp.where(self.y != 0, 1 / D, 0)  # signs cancel
        squares = weighted_squares(self.x, self.more, weight, tiles_of(len(self.y), self.spread), spread=self.spread)
        core = plus_diagonal(squares, self.penalty)
        scale = lax.rsqrt(diagonal(core))
        # Factor the mean with its transpose: at the end a rounded triangle alone has another smallest eigenvalue.
        factor = factored(scale[:, None] * (core + core.T) / 2 * scale[None, :])
        rest = self.penalty * v + self.e

        def solve(r: Array) -> tuple[Array, Array, Array]:
            right = self._transposed(r / D + a) - rest
            dv = scale * factor.solve(scale * right)
            dm = self.margins(a, dv)
            return (r - dm) / D, dv, dm

        return solve

    def _transposed(self, u: Array) -> Array:
        signed = self.y * u
        return jnp.concatenate([transposed_product(self.x, signed), self.more.T @ signed])
