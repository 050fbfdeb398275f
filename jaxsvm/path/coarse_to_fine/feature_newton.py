"""Newton in the space of features that reproduce the kernel matrix nearly exactly: few systems a value at any C.

Smooth and wide kernels, and radial ones of few features, have a numerical rank of some hundred. With `K = Z Z' + R`
and a small rest R, margins near a point x are `f(x) + Y Z (u - Z' Y x)`, if the rest acts as it does at x. In the r
variables u this is a problem of the linear squared hinge, which Newton (Mangasarian 2002) solves exactly in a few
systems: its Hessian `I + C Z_S' Z_S` changes by the samples that enter or leave the support S. One product with K
itself then shows the margins, the gap and the rest of the new point. A product reduces the gap by a factor of about
`(C |R|)^2`: whether R is small enough for a value of C is measured, and where it is not, other steps go on.
Where it is by far, values between two solved ones take no product: all are certified together in the end.

Systems are solved in float64: the Hessian's condition is n C.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.numerics.line_search import hinge_minimum
from jaxsvm.numerics.linear.elimination import factored
from jaxsvm.numerics.linear.nystroem import BLOCK, features_in_blocks
from jaxsvm.numerics.masks import count, every, places_first
from jaxsvm.numerics.precision import bits_of, double, in_double, of_bits, rounded, widened
from jaxsvm.numerics.products import matmul, plus_diagonal
from jaxsvm.path.coarse_to_fine.grid import Point
from jaxsvm.path.measured import MEASURED
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.runtime.loops import fori_loop, once, while_loop
from jaxsvm.runtime.programs import Program

ROWS = 256
"""Samples that enter or leave a support in one product."""


def features(problem: SquaredHingeProblem, largest_C: float, key: Array) -> Float[Array, "n r"] | None:
    """Return features of the kernel matrix and of the constant; None if too many would be needed.

    A grid may go on to values that no features serve: those below are still worth features.
    """
    most = min(MEASURED.most_features, problem.n // MEASURED.samples_of_a_feature) // BLOCK * BLOCK
    if not problem.gram.definite or not most:
        return None
    kernel = max(float(np.asarray(problem.squares).mean()) - problem.offset, 1e-30)
    served = min(largest_C, MEASURED.scaled_C_of_features / kernel)
    ends = problem.n * MEASURED.rest_of_features / largest_C, problem.n * MEASURED.largest_rest / served
    Z, taken, trace = _features(problem, most, ends, key)
    return Z[:, : 1 + int(taken)] if float(trace) <= ends[1] else None


def _features(problem: SquaredHingeProblem, most: int, ends: Any, key: Array) -> tuple[Array, Array, Array]:
    def wide(problem: SquaredHingeProblem, key: Array) -> tuple[Array, Array, Array]:
        gram, diagonal = problem.gram, widened(problem).gram.diag()
        floor = 16 * jnp.finfo(gram.dtype).eps * diagonal.max()
        Z, taken, trace = features_in_blocks(gram.rows, diagonal, most, ends, floor, key)
        constant = jnp.full((problem.n, 1), problem.offset**0.5, Z.dtype)
        return jnp.concatenate([constant, Z], axis=1).astype(gram.dtype), taken, trace.astype(gram.dtype)

    return in_double(wide)(problem, key)


_features = Program(_features, static_argnums=1)


class Known(NamedTuple):
    """What is known of a support: its samples, and the bits of `Z_S' diag(weights) Z_S`."""

    support: Array
    bits: Array


@dataclasses.dataclass
class FeatureNewton:
    """The method on the values of one grid.

    Attributes:
        Z: The features, `(n, r)`; None once a value was too slow: the rest is too large for C, and for larger ones.
        tol: The relative gap to reach.
        run: Calls a program; None after Ctrl-C.
        known: What is known of the last support.
        first_gap: The gap that the first product of the last value found.
    """

    Z: Float[Array, "n r"] | None
    tol: float
    run: Callable[..., Any]
    known: Known | None = None
    first_gap: float = np.inf

    def point(self, problem: SquaredHingeProblem, start: tuple[Any, Any] | None, between: bool = False) -> Point | None:
        """Solve a problem from a point of any signs and its margins, or from 0; clear `Z` if that does not reach `tol`.

        Args:
            problem: The problem.
            start: The point.
            between: Whether the start lies between two solved points. No product is then taken if the last value, which
                started further away, had a first gap far below `tol`: the final certificate shows the gap.

        Returns:
            The best dual point, with margins from scratch; None if there is none.
        """
        Z, best, least, steps = self.Z, None, np.inf, 0
        if Z is None:
            return None
        if self.known is None:
            self.known = _nothing_known(Z)
        zero = jnp.zeros_like(problem.y)
        x, f = (zero, zero) if start is None else start
        if between and self.first_gap <= MEASURED.sure_share_of_the_gap * self.tol:
            moved = self.run(_moved, problem, Z, self.known, x, f, True, False)
            if moved is None:
                return None
            x, f, _, systems, self.known = moved
            return Point(x, f, int(systems), 0)
        for products in range(1, MEASURED.most_products + 1):
            moved = self.run(_moved, problem, Z, self.known, x, f, best is None, True)
            if moved is None:
                return best
            x, f, gap, systems, self.known = moved
            gap, steps = float(gap), steps + int(systems)
            self.first_gap = gap if products == 1 else self.first_gap
            slow = not gap <= MEASURED.gap_of_a_product * least
            if gap < least:
                best, least = Point(x, f, steps, products * problem.n**2, 0), gap
            if least <= self.tol:
                return best
            if slow:
                break
        self.Z = None
        return best


@Program
def _nothing_known(Z: Array) -> Known:
    def wide(Z: Array) -> Known:
        n, r = Z.shape
        return Known(jnp.zeros((n,), bool), bits_of(jnp.zeros((r, r), double(Z.dtype))))

    return in_double(wide)(Z)


@Program
def _moved(problem: SquaredHingeProblem, Z: Array, known: Known, x: Array, f: Array, freely: Any, exactly: Any) -> Any:
    """Return a dual point with its margins and gap, the systems that it took, and what is known of its support.

    From a point that is not dual feasible (`freely`) the step has length 1; else the best length. Margins are computed
    with K if `exactly`, else from the features and the unchanged rest.
    """

    def wide(
        narrow: SquaredHingeProblem, Z: Array, known: Known, x: Array, f: Array, freely: Array, exactly: Array
    ) -> Any:
        problem = widened(narrow)
        C = jnp.where(problem.present, problem.C * problem.weights, 0)
        Z, x, f = (v.astype(C.dtype) for v in (Z, x, f))
        u = matmul(problem.y * x, Z)
        target, known, systems = _minimised(problem, C, Z, f - problem.y * matmul(Z, u), u, known)
        dx = rounded(C * jnp.maximum(1 - target, 0), narrow.dtype) - x
        df = once(exactly, lambda _: problem.signed.matvec(x + dx), target) - f
        t = hinge_minimum(1 - f, -df, C, x @ df, dx @ df, (0.0, 4.0), 1.0)
        t = jnp.where(freely, 1, t)
        x, f = x + t * dx, f + t * df
        total = x.sum()
        margins = (f + problem.ridge * x) / total
        gap = problem.certificate(x / total, margins).relative_gap
        dtype = narrow.dtype
        return x.astype(dtype), f.astype(dtype), gap.astype(dtype), systems, known

    return in_double(wide)(problem, Z, known, x, f, jnp.asarray(freely), jnp.asarray(exactly))


def _minimised(
    problem: SquaredHingeProblem, C: Array, Z: Array, rest: Array, u: Array, known: Known
) -> tuple[Array, Known, Array]:
    """Solve for margins `rest + y (Z u)` by Newton; return them, what is known of the support, and the systems."""
    y = problem.y

    def unsettled(carry: tuple[Any, ...]) -> Array:
        return ~carry[-1] & (carry[-2] < MEASURED.most_systems)

    def system(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        u, f, before, matrix, systems, _ = carry
        room = jnp.maximum(1 - f, 0)
        support = (room > 0) & (C > 0)
        matrix = _brought_up(matrix, before, support, problem.weights, Z)
        step = factored(plus_diagonal(problem.C * matrix, jnp.ones_like(u))).solve(matmul(y * C * room, Z) - u)
        df = y * matmul(Z, step)
        settled = every(support == ((f + df < 1) & (C > 0)))  # then it is the exact solution
        t = hinge_minimum(1 - f, -df, C, u @ step, step @ step, (0.0, 4.0), 1.0)
        t = jnp.where(settled, 1, t)
        return u + t * step, f + t * df, support, matrix, systems + 1, settled

    none = jnp.zeros((), jnp.int32)
    start = (u, rest + y * matmul(Z, u), known.support, of_bits(known.bits), none, none > 0)
    _, f, support, matrix, systems, _ = while_loop(unsettled, system, start)
    return f, Known(support, bits_of(matrix)), systems


def _brought_up(matrix: Array, before: Array, support: Array, weight: Array, Z: Array) -> Array:
    """Return `Z_S' diag(weight) Z_S` of a support, from that of another one or from 0, whichever is nearer."""
    afresh = 2 * count(before ^ support) > count(support)
    before = before & ~afresh
    changed = before ^ support
    order = places_first(changed)
    order = jnp.concatenate([order, jnp.zeros((ROWS,), order.dtype)])
    weight = jnp.where(changed, jnp.where(support, weight, -weight), 0)

    def added(k: Any, matrix: Array) -> Array:
        rows = jax.lax.dynamic_slice(order, (k * ROWS,), (ROWS,))
        kept = jnp.where(k * ROWS + jnp.arange(ROWS) < count(changed), weight[rows], 0)
        some = Z[rows]
        return matrix + matmul(some.T, kept[:, None] * some)

    return fori_loop(0, (count(changed) + ROWS - 1) // ROWS, added, jnp.where(afresh, 0, matrix))
