"""Solve the linear system on a support, which gives the solution and its derivatives.

Conjugate gradients solve it with one of three preconditioners: a Cholesky factor of the support's matrix (stored Gram,
at most 4,096 samples; the iterations are then iterative refinement); Woodbury's formula for a low-rank Gram; otherwise
the same formula with Nystroem features and the rest of the diagonal, in O(n tile) memory. A system that cannot be
solved gives NaN, never a wrong derivative.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import is_concrete
from jaxsvm.numerics.linear import INSIDE, Apply, Factor, factored, identity, landmark_features, padded_factor, woodbury
from jaxsvm.numerics.measured import MEASURED
from jaxsvm.numerics.precision import count, diagonal, matmul, places_first, plus_diagonal, rounded
from jaxsvm.numerics.selection import entries
from jaxsvm.numerics.sizes import in_smallest, size_classes, sizes_of_factors
from jaxsvm.problems.contract import Differentiable, Problem
from jaxsvm.problems.measured import MEASURED as PROBLEMS
from jaxsvm.results.fit import Active, Point
from jaxsvm.runtime.arrays import promoting, tangent_of
from jaxsvm.runtime.loops import varying, while_loop

TURNS, FEW_TURNS, LEAST_PIVOT = 1000, 6, 1e-11  # at most, and of inverses up to rounding; less depends on other samples


def plan(problem: Differentiable, support: Any) -> tuple[tuple[int, ...], str]:
    """Choose how to solve the system: sizes of a factor, and "cholesky", "features" or "nystroem"."""
    # Without a ridge the matrix may be nearly singular, and conjugate gradients alone fail.
    if not problem.bounded:
        if problem.gram.rank is not None:
            return (), "features"
        if not problem.gram.may_store:  # a factor would break the promise of O(n tile) memory
            return (), "nystroem"
    sizes = factor_sizes(problem.n, support)
    return (sizes, "cholesky") if 8 * sizes[-1] ** 2 <= MEASURED.bytes_held else ((), "nystroem")


def factor_sizes(n: int, support: Any) -> tuple[int, ...]:
    """Return size classes up to n; only the one that holds the support if that is concrete."""
    if not is_concrete(support):
        return sizes_of_factors(n)
    count = int(support.sum())
    return (next(size for size in size_classes(n) if count <= size),)


class System(NamedTuple):
    """The equations of a support S, `[M c; c' 0] (a, b) = (r, s)` with `M = Q_SS + ridge`, and what solves them."""

    free: Bool[Array, " n"]  # S, `(n,)`: the free samples that do not depend linearly on others
    # `r -> (M + rho c c')^-1 r`, exactly or approximately, as a pytree of arrays; the term with rho makes the matrix
    # definite if M is not: d + 1 free samples of a linear kernel have rank d
    precondition: Apply
    rho: Float[Array, ""]  # the weight `()`; 0 without an equality
    along: Float[Array, " n"]  # `(M + rho c c')^-1 c`, `(n,)`; 0 without an equality
    most: Int[Array, ""]  # largest number of steps of conjugate gradients, int32 `()`


class Solved(NamedTuple):
    """The equations of active sets, and the point that solves them."""

    system: System
    point: Point


class Shift(NamedTuple):
    """What is added to the equations: a point to start at, a right-hand side, and a ridge, `(n,)` each."""

    a: Any
    r: Any
    ridge: Any


def solved(
    problem: Differentiable, active: Active, sizes: tuple[int, ...], method: str, shift: Shift | None = None
) -> Solved:
    """Form the equations of active sets and solve them; without derivatives, which `exact` attaches.

    `sizes` and `method` are those of `plan`.
    """
    problem = lax.stop_gradient(problem)
    shift = shift or Shift(jnp.zeros_like(problem.y), 0, problem.ridge)
    system = system_of(problem, active.free, sizes, method, shift.ridge)
    a = _kept(problem, active, system.free, shift.a)
    # Without bounds all values that are kept are 0.
    r = problem.targets - problem.signed.support_matvec(a) if problem.bounded else problem.targets
    c = problem.equality
    s = jnp.zeros((), a.dtype) if c is None else problem.e - matmul(c, a)
    da, b = _solve(problem, system, r + shift.r, s, shift.ridge)
    a = a + da
    products = problem.signed.support_matvec(a)
    if c is not None:
        b = _or_middle(problem, system, b, lambda: cast(Any, problem).best_bias(products))
        products = products + b * c
    return Solved(system, Point(a, b, products))


@jax.custom_jvp
def exact(problem: Differentiable, active: Active, system: System, point: Point) -> Point:
    """Return `point`, with its derivatives of every order by the problem (except by y and c)."""
    del problem, active, system
    return point


@partial(exact.defjvp, symbolic_zeros=True)
@promoting()
def _(primals: Any, tangents: Any) -> tuple[Point, Point]:
    """Solve the equations for the tangent: on the right is the derivative of their residual at a fixed (a, b)."""
    problem, active, system, _ = primals
    point = exact(*primals)  # at the next order it moves too
    c = None if problem.equality is None else lax.stop_gradient(problem.equality)

    def missed(problem: Differentiable) -> tuple[Array, Array, Array, Array]:
        a = _kept(problem, active, system.free, point.a)
        products = problem.signed.matvec(a) + (0 if c is None else point.b * c)
        s = jnp.zeros((), a.dtype) if c is None else problem.e - matmul(c, a)
        return a, products, problem.targets - products - problem.ridge * a, s

    fixed, products, r, s = tangent_of(missed, (problem,), tangents[:1])
    a, b = _solve(problem, system, r, s, problem.ridge)
    products = products + problem.signed.matvec(a)
    if c is not None:
        at, moves = (problem, point.products - point.b * c), (tangents[0], products)
        b = _or_middle(problem, system, b, lambda: tangent_of(cast(Any, type(problem)).best_bias, at, moves))
        products = products + b * c
    return point, varying(Point(fixed + a, b, products))


def _kept(problem: Differentiable, active: Active, free: Array, a: Array) -> Float[Array, " n"]:
    """Return a on S, and elsewhere the values that stay: bounds, and those of dependent free samples."""
    if not problem.bounded:
        return jnp.where(free, a, 0)
    present = active.present.astype(a.dtype)
    return jnp.where(free, a, jnp.where(active.bound, problem.upper, jnp.where(active.free, present, 0)))


def _or_middle(problem: Differentiable, system: System, b: Array, middle: Callable[[], Array]) -> Array:
    """Return b; without a free sample an interval of b is optimal, and its middle is returned, as by a fit."""
    return jnp.where(system.free.any(), b, middle()) if problem.bounded else b


def system_of(
    problem: Differentiable, free: Bool[Array, " n"], sizes: tuple[int, ...], method: str, ridge: Float[Array, " n"]
) -> System:
    """Factor the equations of the free samples; see `solved`."""
    c = jnp.zeros_like(problem.y) if problem.equality is None else problem.equality
    size, squares = (jnp.where(free, part, 0).sum() for part in (problem.diagonal, c * c))
    rho = size / jnp.where(squares > 0, squares, 1)
    rho = jnp.zeros_like(rho) if problem.equality is None else rho
    u = jnp.where(free, jnp.sqrt(rho) * c, 0)
    if method == "cholesky":
        free, precondition = _factor(problem, free, sizes, u, ridge)
    else:
        precondition = _woodbury(problem, free, method == "features", u, ridge)
    along = jnp.zeros_like(c) if problem.equality is None else precondition(jnp.where(free, c, 0))
    return System(free, precondition, rho, along, jnp.asarray(TURNS if method == "nystroem" else FEW_TURNS, jnp.int32))


def _solve(
    problem: Differentiable, system: System, r: Float[Array, " n"], s: Any, ridge: Float[Array, " n"]
) -> tuple[Array, Array]:
    """Solve `[M c; c' 0] (a, b) = (r, s)`; return a, `(n,)`, 0 off S, and b, `()`, 0 without an equality.

    Conjugate gradients with a preconditioner that solves the second equation exactly stay on it (Gould, Hribar and
    Nocedal 2001). Differentiable in r, s, the ridge and the problem.
    """
    free, n = system.free, problem.n
    constant, fixed_ridge = lax.stop_gradient((problem, ridge))
    c = None if problem.equality is None else jnp.where(free, lax.stop_gradient(problem.equality), 0)
    curvature = system.along @ (system.along if c is None else c)
    curvature = jnp.where(curvature > 0, curvature, 1)

    def bordered(inside: Callable[[Array], Array], v: Array) -> Array:
        a, b = v[:n], v[n:]
        if c is None:
            return jnp.where(free, inside(jnp.where(free, a, 0)), a)
        return jnp.append(jnp.where(free, inside(jnp.where(free, a, 0)) + b * c, a), matmul(c, a))

    def matvec(v: Array) -> Array:
        return bordered(lambda a: problem.signed.matvec(a) + ridge * a, v)

    def product(v: Array) -> Array:  # the same at the cost of the support; never differentiated
        return bordered(lambda a: constant.signed.support_matvec(a) + fixed_ridge * a, v)

    def precondition(v: Array) -> tuple[Array, Array]:
        """Return `P^-1 v`, and the energy of v with the definite part of P."""
        if c is None:
            solution = system.precondition(v)
            return solution, v @ solution
        full = v[:n] + system.rho * v[n] * c
        a = system.precondition(full)
        b = (matmul(c, a) - v[n]) / curvature
        return jnp.append(a - b * system.along, b), full @ a

    def solve(_: Any, v: Array) -> Array:
        return _conjugate_gradients(product, precondition, v, system.most)

    right = jnp.where(free, r, 0)
    right = right if c is None else jnp.append(right, jnp.where(free.any(), s, 0))
    solution = lax.custom_linear_solve(matvec, right, solve, symmetric=True)
    return jnp.where(free, solution[:n], 0), jnp.zeros((), r.dtype) if c is None else solution[n]


class _Solving(NamedTuple):
    """State of conjugate gradients: solution, residual, next direction, and `energy = r' P^-1 r`, now and at first.

    `checks`: whether the next turn recomputes the residual from scratch; `ended`: whether the last one did.
    """

    turns: Int[Array, ""]
    x: Float[Array, " m"]
    r: Float[Array, " m"]
    p: Float[Array, " m"]
    energy: Float[Array, ""]
    first: Float[Array, ""]
    checks: Bool[Array, ""]
    ended: Bool[Array, ""]


def _conjugate_gradients(
    product: Apply, precondition: Callable[[Array], tuple[Array, Array]], v: Float[Array, " m"], most: Array
) -> Float[Array, " m"]:
    """Solve by conjugate gradients to the precision of the dtype; return NaN if the result misses it by far.

    Turn 0 finds the direction `P^-1 v`, turn 1 takes it with length 1, and the last turn recomputes the residual of the
    solution. So the compiled program contains one product and one preconditioner only.
    """
    eps = jnp.finfo(v.dtype).eps

    def turn(at: _Solving) -> _Solving:
        Av = product(jnp.where(at.checks, at.x, at.p))
        curvature = at.p @ Av
        starts = at.turns <= 1
        moves = ~at.checks & ~(curvature <= 0)  # a NaN is to show
        t = jnp.where(starts, 1, jnp.where(moves, at.energy / jnp.where(moves, curvature, 1), 0))
        x, r = at.x + t * at.p, jnp.where(at.checks, v - Av, at.r - t * Av)
        q, energy_of_all = precondition(r)
        energy = r @ q
        p = q + jnp.where(starts, 0, energy / jnp.where(at.energy > 0, at.energy, 1)) * at.p
        first = jnp.where(at.turns == 0, energy_of_all, at.first)
        enough = (at.turns >= most) | ((at.turns > 0) & ~(energy > (16 * eps) ** 2 * first))
        return _Solving(at.turns + 1, x, r, p, energy, first, enough & ~at.checks, at.checks)

    zero, no = jnp.zeros((), v.dtype), jnp.asarray(False)
    nothing = jnp.zeros_like(v)
    start = _Solving(jnp.zeros((), jnp.int32), nothing, v, nothing, zero, zero, no, no)
    end = while_loop(lambda at: ~at.ended, turn, start)
    solved = end.energy <= eps**0.8 * end.first  # squared: 3e-7 of v in float64, 2e-3 in float32
    return jnp.where(solved | (end.first == 0), end.x, jnp.nan)


def _factor(
    problem: Differentiable, support: Bool[Array, " n"], sizes: tuple[int, ...], u: Array, ridge: Array
) -> tuple[Bool[Array, " n"], Apply]:
    """Return the linearly independent samples, and a function that solves by a Cholesky factor of `(Kt + u u')_SS`."""
    largest, number = sizes[-1], count(support)
    index = places_first(support)[:largest]
    valid = jnp.arange(largest, dtype=number.dtype) < number

    def factor(size: int, whole: Factor) -> Factor:
        at = index[:size]
        values = problem.gram.block(at, at).astype(problem.dtype) + problem.offset
        y, u_at, ridge_at = (entries(v, at) for v in (problem.y, u, ridge))
        values = plus_diagonal(jnp.outer(y, y) * values + jnp.outer(u_at, u_at), ridge_at)
        if problem.bounded and size < MEASURED.lapack_size:  # there is no ridge
            values = jnp.where(valid[:size, None] & valid[None, :size], values, 0)
            return factored(values, LEAST_PIVOT * diagonal(values)).within(whole)
        return padded_factor(values, valid[:size]).within(whole)

    whole = in_smallest(sizes, number, factor, identity(largest, problem.dtype))
    known = valid & ~(diagonal(whole.L)[:largest] == 0)  # NaN must propagate
    support = jnp.zeros_like(support).at[index].max(known, wrap_negative_indices=False)
    return support, jax.tree_util.Partial(_by_factor, whole, jnp.where(known, index, problem.n))


def _by_factor(factor: Factor, index: Int[Array, " q"], r: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return `A^-1 r` on the samples of an index, and r elsewhere. Unused places of the index hold n."""
    inside = entries(lax.pad(r, jnp.zeros((), r.dtype), ((0, 1, 0),)), index)
    return r.at[index].set(factor.solve(inside), mode="drop", wrap_negative_indices=False)


def _woodbury(problem: Differentiable, support: Bool[Array, " n"], exact: bool, u: Array, D: Array) -> Apply:
    """Return `(D + F F')^-1` on S, for features F of `Kt` and the rest D of its diagonal; the identity off S."""
    if exact:
        F, rest = problem.gram.design.astype(problem.dtype), 0
    else:
        F = landmark_features(lambda at: problem.gram.rows(at).astype(problem.dtype), support, MEASURED.landmarks)
        rest = jnp.maximum(problem.gram.diag() - (F * F).sum(axis=1), 0)  # the diagonal of `K - F F'`
    constant = jnp.full((problem.n, 1), problem.offset**0.5, F.dtype)
    F = jnp.where(support, problem.y, 0)[:, None] * jnp.concatenate([F, constant], axis=1)
    F = jnp.concatenate([F, u[:, None]], axis=1)
    return woodbury(F, jnp.where(support, D + rest, 1))


def kinks(problem: Differentiable, values: Any, tol: Any) -> Bool[Array, " n"]:
    """Return the samples at a kink of the loss that are not certainly free: a small change may free them.

    They are at a bound, or depend linearly on free samples. At a corner they are the samples that set an end of the
    interval of biases: a small change of the equality frees one of them, which one depends on its sign.
    """
    near = jnp.abs(values.margins - problem.targets) <= tol * jnp.maximum(jnp.abs(problem.targets), 1)
    present = problem.upper > 0
    if not problem.bounded:  # the coefficient is 0, and may become positive
        return lax.stop_gradient(present & near)
    free = problem.active_set(values).free
    independent = system_of(problem, free, *plan(problem, free), problem.ridge).free
    kinked = near & ~independent
    if problem.equality is not None:
        kinked = kinked | (~free.any() & _at_ends(problem, values, tol))
    return lax.stop_gradient(present & kinked)


def _at_ends(problem: Differentiable, values: Any, tol: Any) -> Bool[Array, " n"]:
    """Return the samples that set an end of the interval of biases, if none is free."""
    apart = (problem.targets - values.margins) / problem.equality
    ends = (jnp.where((problem.upper > 0) & (side >= 0), side, jnp.inf) for side in (apart, -apart))
    return jnp.any(jnp.stack([jnp.isfinite(end) & (end <= end.min() + tol) for end in ends]), axis=0)


class Inside(NamedTuple):
    """A point of interior points in a box, for active sets that circle: a turn solves one more `System`.

    With multipliers `z` of `a >= 0` and `w` of `t = U - a >= 0`, Newton's step to `a z = t w = mu` solves

        (Q + D) da + b c = q - Q a + mu / a - mu / t,     c'(a + da) = e,     D = z / a + w / t

    (Wright 1997, Primal-Dual Interior-Point Methods, chapter 1). These are the equations of a support that holds all
    samples, with a ridge: the compiled program of active sets solves them too.
    """

    x: Float[Array, "2 n"]  # `(a, t)`, `(2, n)`, positive; absent samples have any values
    multipliers: Float[Array, "2 n"]  # `(z, w)`, `(2, n)`, positive
    mu: Float[Array, ""]  # the value that the products of the next step aim at, `()`

    @staticmethod
    def first(problem: Differentiable) -> "Inside":
        """Return the middle of the box, with multipliers as large as its residuals may be."""
        U, size = problem.upper, jnp.sqrt(jnp.maximum(problem.diagonal, 0))
        most = jnp.abs(problem.targets).max() + size.max() * matmul(size, U)
        x = jnp.broadcast_to(jnp.where(problem.present, U / 2, 1), (2, *U.shape))
        return Inside(x, jnp.full_like(x, most), most * U.max() / 2)

    def equations(self, problem: Differentiable) -> tuple[Active, Shift]:
        """Return the active sets and the shift with which `solved` takes Newton's step."""
        pull = self.mu / self.x
        step = Shift(self.x[0], pull[0] - pull[1], (self.multipliers / self.x).sum(axis=0))
        return Active(problem.present, jnp.zeros_like(problem.present), self.x[0]), step

    def moved(self, problem: Differentiable, to: Point, goes: Bool[Array, ""]) -> tuple["Inside", Bool[Array, ""]]:
        """Step toward a solution of the equations if `goes`; return also whether to end: at a gap of 1e-10, or NaN."""
        present = problem.present[None, :]
        da = to.a - self.x[0]
        dx = jnp.stack([da, -da])
        values = jnp.concatenate([self.x, self.multipliers])
        changes = jnp.concatenate([dx, (self.mu - self.multipliers * dx) / self.x - self.multipliers])
        falls = present & (changes < 0)
        step = jnp.minimum(1, INSIDE * jnp.where(falls, -values / jnp.where(falls, changes, 1), jnp.inf).min())
        value = jnp.abs(to.a @ (problem.targets - to.products / 2))
        values = jnp.where(present & goes & jnp.isfinite(value), values + step * changes, values)
        gap = jnp.where(present, values[:2] * values[2:], 0).sum()
        share = jnp.where(step > 0.9, 0.1, jnp.where(step > 0.5, 0.3, 0.8))  # short steps need more centring
        return Inside(values[:2], values[2:], share * gap / (2 * present.sum(dtype=gap.dtype))), ~(gap > 1e-10 * value)

    def sets(self, problem: Differentiable) -> Active:
        """Return the active sets of a point near a solution."""
        inner = self.multipliers * problem.upper[None, :] <= self.x
        return Active(problem.present & inner[0] & inner[1], problem.present & ~inner[1], self.x[0])


def unsummable(problem: Problem, coefficients: Float[Array, " n"]) -> Bool[Array, ""]:
    """Return whether rounding to the problem's dtype makes derivatives of sums of the coefficients useless, `()`."""
    if jnp.finfo(problem.dtype).bits >= 64 or _has_few(problem.gram.feature_rows):
        return jnp.asarray(False)
    size = jnp.sqrt(jnp.maximum(lax.stop_gradient(problem.diagonal), 0))
    # The standard deviation of the rounding of decision values, against a quarter of a margin.
    return jnp.finfo(problem.dtype).eps / 4 * size.max() * jnp.linalg.norm(coefficients * size) > 0.25


def _has_few(X: Any) -> bool:
    return X is not None and X.shape[1] <= PROBLEMS.features_of_a_small_system and X.shape[1] + 1 < X.shape[0]


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def summable(
    coefficients: Float[Array, " n"], X: Float[Array, "n d"] | None, returned: Float[Array, " n"], dtype: Any
) -> Float[Array, " n"]:
    """Return the coefficients unchanged, in float64; tangents are numbers of `dtype` whose sums keep their digits.

    At large C, coefficients and their tangents are large, while decision values, which are sums of them, change little:
    the rounding of each coefficient, or of its cotangent, exceeds the sum. If the kernel has d < n dense features X,
    only `X'v` and the sum of v matter:

    * Forward, small numbers at samples outside the support restore what rounding takes from these sums (as
      `jaxsvm.problems.certificates.corrections` does for the coefficients themselves), and what a change of X makes of
      the rounding of the `returned` coefficients, which the caller gets.
    * Backward, a cotangent that is a linear function of the features up to rounding is replaced by that function.

    Other kernels have no such sums: if rounding the coefficients changes decision values by a quarter of a margin, the
    coefficients' tangents are NaN (those of margins and bias are not).
    """
    del X, returned, dtype
    return coefficients


@partial(summable.defjvp, symbolic_zeros=True)
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
    if not isinstance(dX, SymbolicZero):
        moved = moved + matmul(carriers, _least_squares(carriers, jnp.append(matmul(dX.T, off) / scale, 0)))

    def forward(_: Any, v: Array) -> Array:
        kept = rounded(v, dtype)
        carried = kept + rounded(matmul(carriers, _least_squares(carriers, matmul(X.T, v - kept))), dtype)
        better = jnp.linalg.norm(matmul(X.T, v - carried)) < jnp.linalg.norm(matmul(X.T, v - kept))
        return jnp.where(better, carried, kept)

    def backward(_: Any, g: Array) -> Array:
        near = matmul(X, _least_squares(X, matmul(X.T, g)))
        return jnp.where(jnp.abs(g - near).max() <= 8 * jnp.finfo(dtype).eps * jnp.abs(g).max(), near, g)

    return out, lax.custom_linear_solve(lambda v: v, moved, forward, backward)


def _least_squares(X: Float[Array, "n d"], b: Float[Array, " d"]) -> Float[Array, " d"]:
    """Solve `X'X v = b` for v, refined once; features that depend linearly on others get the coefficient 0."""
    size = jnp.linalg.norm(X, axis=0)
    scale = jnp.where(size > 0, 1 / jnp.where(size > 0, size, 1), 0)
    squares = scale[:, None] * matmul(X.T, X) * scale
    factor = factored(squares, 1e-12)  # with a pivot below this share of its square a feature depends on others
    v = factor.solve(scale * b)
    return scale * (v + factor.solve(scale * b - matmul(squares, v)))
