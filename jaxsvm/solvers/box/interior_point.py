"""A primal-dual interior point method for box problems, for those on which pair steps are too slow.

It solves `min 1/2 a'Qa - q'a`, `0 <= a <= U`, `c'a = e` by Newton's method on the perturbed optimality conditions

    Qa + b c - q - z + w = 0,     a_i z_i = mu,     (U_i - a_i) w_i = mu,

which takes systems `(Q + diag(D)) da + c db = r`, `c'da = e - c'a`. For moderate n an n x n matrix is factored. If the
kernel has d < n features, they are solved in its space: with `H = (W, c)`, `Q = W W'`, and `v = (W'a, b)` carried (the
digits of `W'a` would cancel for large U),

    (P + H' D^-1 H) dv = H'(D^-1 r + a) - P v - (0, e),     da = D^-1 (r - H dv),     P = diag(1, ..., 1, 0).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.errors import InputError
from jaxsvm.numerics.linear import INSIDE, factored
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.numerics.precision import diagonal, in_double, matmul, plus_diagonal, rounded, split, whole, widened
from jaxsvm.points.rows import product, transposed_product
from jaxsvm.problems.contract import BoxForm, Problem
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number
from jaxsvm.runtime.loops import Spread, fori_loop
from jaxsvm.solvers.contract import Solver, Traits
from jaxsvm.solvers.features import feature_matrix, weighted_squares
from jaxsvm.solvers.start import StartLike

WORTH, WORTH_OF_FEATURES = 50_000, 20_000  # pair steps that cost as much as a small solve, of samples and by features
LONGER, LEAST, LARGEST = 0.3, 0.1, 10  # part that a correction lengthens a step by; its range of products, in centres
Solve = Callable[[Array], tuple[Array, Array, Array]]  # from r to `da`, `dv`, and the change of the margins


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class InteriorPoint(Solver[BoxForm]):
    """A primal-dual interior point method, whose steps do not depend on the conditioning of the problem.

    On a singular kernel with overlapping classes and a large C (a linear kernel at C = 1e6) pair steps take too long.
    It starts from the middle of the box and ignores `init`: a start near a bound is a bad one.

    Problems: hinge and box problems of at most 2,048 samples, or of any number if the kernel has few features: a linear
    kernel with d < n (at most 2,048), a low-rank Gram.
    Cost of a step: a system with `Q + diag(z / a + w / (U - a))`: n^3 / 3 operations by Cholesky of an n x n matrix, or
    O(n d^2) in the space of d < n features.
    Rate: 15 to 40 steps, whatever the conditioning.
    Sources: Mehrotra 1992 (predictor and corrector); Ferris and Munson 2002 (many samples by low rank).

    Attributes:
        tol: Relative duality gap at which to stop, > 0.
        max_steps: Maximum number of steps, >= 0; 15 to 40 are usual.

    Raises:
        InputError: When a larger problem without few features is solved.
    """

    bit = 5
    solves = ("box",)

    tol: Number = 1e-4
    max_steps: Count = 100

    check_every = 1
    refresh_every = 10  # a certificate costs less than a system, and is more exact than the products
    unroll = 1
    traits = Traits(takes_start=False)

    def stores(self, problem: BoxForm) -> bool:
        return few_features(problem) is None

    def init(self, problem: BoxForm, key: Array | None = None, init: "StartLike | None" = None) -> "State":
        if not affordable(problem):
            most = SIZES.largest_direct_system
            raise InputError(
                f"the problem has {problem.n} samples{'' if problem.gram.spread is None else ' on a mesh'}: "
                f"InteriorPoint takes {most} at most, all on one device, or a kernel of at most {most} features "
                "(Linear, a Gram with rank=): use `SMO` or `WorkingSet`."
            )
        x = first_iterate(problem)
        a = jnp.zeros_like(x.a)
        unknown, nothing = jnp.asarray(jnp.inf, a.dtype), jnp.zeros((), a.dtype)
        rest = jax.tree.map(jnp.zeros_like, x)
        # The first refresh computes a feasible point, its products and its objective; certificates come after it.
        return State(x, rest, a, jnp.zeros_like(a), nothing, unknown, jnp.asarray(False), Counters.zero())

    def step(self, problem: BoxForm, state: "State") -> "State":
        """Take a predicted step and the corrected step of a system, in twice the precision: systems lose digits."""
        x, rest, left = _advance_in_double(problem, state.x, state.rest)
        evaluations = problem.n**2 if few_features(problem) is None else 0
        return state._replace(x=x, rest=rest, left=left, counters=state.counters.stepped(evaluations))

    def refresh(self, problem: BoxForm, state: "State") -> "State":
        x = whole(state.x, state.rest, problem.dtype)

        # Variables go to a bound where that costs no more than the products: moves d change the objective by
        # `z'd + d'Qd / 2`, and `d'Qd <= moving sum_i Q_ii d_i^2` if so many variables move.
        def point(moving: Array) -> tuple[Array, Array, Array]:
            stiffness = moving * jnp.abs(problem.diagonal)
            a = jnp.where(stiffness * x.t <= x.w, problem.upper, jnp.where(stiffness * x.a <= x.z, 0, x.a))
            a = rounded(problem.on_equality(_present(problem, jnp.clip(a, 0, problem.upper))), state.a.dtype)
            a = jnp.where(_nothing_to_lose(problem), 0, a)
            s = problem.matvec(a)
            return a, s, problem.objective(a, s)

        # As if each moved alone, which puts more of them there, unless that costs more than what all of them may.
        a, s, R = lax.map(point, jnp.asarray([1, problem.n], problem.dtype))
        best = jnp.argmin(R)
        return state._replace(a=a[best], s=s[best], R=R[best])

    def carries_weights(self, problem: BoxForm) -> bool:
        return few_features(problem) is not None

    def feature_weights(self, problem: BoxForm, state: "State") -> Float[Array, " d"]:
        v = whole(state.x, state.rest, problem.dtype).v
        return v if problem.c is None else v[:-1]

    def running_excess(self, problem: BoxForm, state: "State") -> Float[Array, ""]:
        """Return the relative gap by the products `a z` and `(U - a) w`, over `tol`."""
        return state.left / self.tol


class State(NamedTuple):
    """State of the interior point method."""

    x: "Iterate"  # the iterate
    rest: "Iterate"  # rounding error of the iterate in the data's dtype: together they have twice its precision
    a: Float[Array, " n"]  # the last feasible point
    s: Float[Array, " n"]  # `Qa`
    R: Float[Array, ""]  # `-D(a)`
    left: Float[Array, ""]  # the sum of the products over the objective
    indefinite: Bool[Array, ""]  # never set: the diagonal hides a negative curvature
    counters: Counters  # steps and kernel evaluations


class Iterate(NamedTuple):
    """A point strictly inside the bounds; absent samples are at 1 in every field."""

    a: Float[Array, " n"]  # dual variables
    t: Float[Array, " n"]  # `U - a`, kept separately: it may be far smaller than the rounding of U
    z: Float[Array, " n"]  # multipliers of `a >= 0`
    w: Float[Array, " n"]  # multipliers of `a <= U`
    v: Float[Array, " p"]  # the bias, or feature weights and the bias


def steps_worth(problem: BoxForm) -> int | None:
    """Estimate how many pair steps cost as much as a solve with its compilation; None if it is not affordable."""
    if not affordable(problem):
        return None
    features = few_features(problem)
    return max(WORTH, problem.n**3 // 20_000) if features is None else max(WORTH_OF_FEATURES, 20 * features.shape[1])


def first_iterate(problem: BoxForm) -> Iterate:
    """Return the middle of the box, with multipliers that leave no residual."""
    system, U, q = barrier_system(problem), jnp.where(problem.present, problem.upper, 2), _present(problem, problem.q)
    middle = _present(problem, U / 2)
    v = system.start(middle)
    pull = system.margins(middle, v) - q
    reserve = 1 + jnp.abs(_present(problem, pull)).max()
    return Iterate(U / 2, U / 2, jnp.maximum(pull, 0) + reserve, jnp.maximum(-pull, 0) + reserve, v)


def advance(problem: BoxForm, x: Iterate) -> tuple[Iterate, Float[Array, ""]]:
    """Take a step; also return the sum of the products `a z` and `t w` after it, over the objective.

    A step is rejected if it is not finite, or if the products before it are mere rounding: a variable that has lost its
    digits in the system would drive the iterate away again.
    """
    present, q, system = problem.present, _present(problem, problem.q), barrier_system(problem)
    count = 2 * present.sum(dtype=x.a.dtype)
    m = system.margins(_present(problem, x.a), x.v)
    solve = system.factored(jnp.where(present, x.z / x.a + x.w / x.t, 1), _present(problem, x.a), x.v)
    mu = mean_product(present, x)
    new, step, dm = stepped(present, x, m - q - x.z + x.w, solve)
    value = jnp.abs(_present(problem, x.a) @ (m / 2 - q))
    sound = jnp.isfinite(jnp.stack(new[:4])).all() & jnp.isfinite(new.v).all()
    sound = sound & (count * mu > jnp.finfo(value.dtype).eps * value)
    x = jax.tree.map(lambda fresh, old: jnp.where(sound, fresh, old), new, x)
    value = jnp.abs(_present(problem, x.a) @ ((m + jnp.where(sound, step, 0) * dm) / 2 - q))
    return x, count * mean_product(present, x) / jnp.maximum(value, jnp.finfo(value.dtype).tiny)


def stepped(
    present: Bool[Array, " n"], x: Iterate, residual: Float[Array, " n"], solve: Solve, corrections: int = 0
) -> tuple[Iterate, Float[Array, ""], Float[Array, " n"]]:
    """Take Newton's step, predicted and corrected (Mehrotra 1992), most of the way to the nearest bound.

    `residual` is that of the optimality condition of a, and `solve` solves the systems at x; each of the further
    `corrections` of the products (Gondzio 1996) costs a solve with the same factor.

    Return the next iterate, which may not be finite; the length of the step; and the change of the margins at length 1.
    """
    mu = mean_product(present, x)

    def to(to_z: Array, to_w: Array) -> tuple[Iterate, Array, Array]:
        """Return the direction to these changes of the products, the change of the margins, and its reach."""
        da, dv, dm = solve(jnp.where(present, to_z / x.a - to_w / x.t - residual, 0))
        da = jnp.where(present, da, 0)
        d = Iterate(da, -da, (to_z - x.z * da) / x.a, (to_w + x.w * da) / x.t, dv)
        return d, dm, _reach(present, x, d)

    def direction(_: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the step to products of `centre`, corrected by the step before it, and the next centre."""
        (d, _, _), _, _, centre = carry
        to_z, to_w = centre - x.a * x.z - d.a * d.z, centre - x.t * x.w - d.t * d.w
        new = to(to_z, to_w)
        next_centre = jnp.clip((mean_product(present, _moved(x, new[0], new[2])) / mu) ** 3, 0, 1) * mu
        return new, (to_z, to_w), centre, next_centre

    def correct(_: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        """Correct the products for a step longer by `LONGER`; keep the correction if it lengthens the step."""
        (d, _, reach), (to_z, to_w), centre, _ = carry
        trial = _moved(x, d, jnp.minimum(1, reach + LONGER))
        more = to_z + _towards(trial.a * trial.z, centre), to_w + _towards(trial.t * trial.w, centre)
        bent = to(*more)
        best = jax.tree.map(lambda new, old: jnp.where(bent[2] > reach, new, old), (bent, more), carry[:2])
        return *best, centre, centre

    nothing, zero = jnp.zeros_like(mu), jnp.zeros_like(residual)
    start = ((jax.tree.map(jnp.zeros_like, x), zero, nothing), (zero, zero), nothing, nothing)
    carry = fori_loop(0, 2, direction, start)
    if corrections:
        carry = fori_loop(0, corrections, correct, carry)
    d, dm, reach = carry[0]
    step = jnp.minimum(1, INSIDE * reach)
    new = _moved(x, d, step)
    return Iterate(*(jnp.where(present, part, 1) for part in new[:-1]), v=new.v), step, dm


def mean_product(present: Bool[Array, " n"], x: Iterate) -> Float[Array, ""]:
    """Return the mean of the products `a z` and `t w`."""
    return jnp.where(present, x.a * x.z + x.t * x.w, 0).sum() / jnp.maximum(2 * present.sum(dtype=x.a.dtype), 1)


@in_double
def _advance_in_double(problem: BoxForm, x: Iterate, rest: Iterate) -> tuple[Iterate, Iterate, Float[Array, ""]]:
    wide = widened(problem)
    moved, left = advance(wide, whole(x, rest, wide.dtype))
    return *split(moved, x), left.astype(problem.dtype)


def _nothing_to_lose(problem: BoxForm) -> Array:
    """Return whether w = 0 has no loss at some bias: the solution is then a = 0, which no inner point reaches."""
    q = jnp.where(problem.present, problem.q, -jnp.inf)
    if problem.c is None:
        return q.max() <= 0
    rises = problem.c > 0  # a bias b serves all if q <= b c
    apart = q / problem.c
    least, most = jnp.where(rises, apart, -jnp.inf).max(), jnp.where(rises, jnp.inf, apart).min()
    return (problem.e == 0) & (least <= most)


def _present(problem: BoxForm, v: Array) -> Array:
    return jnp.where(problem.present, v, 0)


def _towards(product: Array, centre: Array) -> Array:
    return jnp.maximum(jnp.clip(product, LEAST * centre, LARGEST * centre) - product, -LARGEST * centre)


def _moved(x: Iterate, d: Iterate, step: Array) -> Iterate:
    return jax.tree.map(lambda value, change: value + step * change, x, d)


def _reach(present: Array, x: Iterate, d: Iterate) -> Array:
    values, changes = jnp.stack(x[:4]), jnp.stack(d[:4])
    falls = present[None, :] & (changes < 0)
    return jnp.minimum(1, jnp.where(falls, -values / jnp.where(falls, changes, -1), jnp.inf).min())


# --- the linear systems


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
    ones, zeros = (jnp.full((x.shape[1] + constant.shape[1],), value, dtype) for value in (1, 0))
    return FeatureSystem(
        x=x,
        y=y,
        more=jnp.concatenate([constant, y[:, None] * c], axis=1),
        penalty=jnp.concatenate([ones, jnp.zeros_like(e)]),
        e=jnp.concatenate([zeros, e]),
        spread=problem.gram.spread,
    )


@dataclasses.dataclass(frozen=True)
class DenseSystem:
    """Systems with `Q` as a matrix; v is the bias, or empty."""

    Q: Float[Array, "n n"]  # the matrix
    c: Float[Array, "n p"]  # coefficients of the equality, one column or none
    e: Float[Array, " p"]  # right-hand side of the equality

    def start(self, a: Float[Array, " n"]) -> Float[Array, " p"]:
        """Return v for the first iterate."""
        return jnp.zeros_like(self.e)

    def margins(self, a: Float[Array, " n"], v: Float[Array, " p"]) -> Float[Array, " n"]:
        """Return `Qa + b c`."""
        return matmul(self.Q, a) + matmul(self.c, v)

    def factored(self, D: Float[Array, " n"], a: Float[Array, " n"], v: Float[Array, " p"]) -> Solve:
        """Return the solver of systems with this diagonal, at this point."""
        off = matmul(self.c.T, a) - self.e
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
            dv = (matmul(self.c.T, da) + off) / (self.c * column).sum(axis=0)
            da = da - matmul(column, dv)
            return da, dv, matmul(self.Q, da) + matmul(self.c, dv)

        return solve


@dataclasses.dataclass(frozen=True)
class FeatureSystem:
    """Systems with `H = diag(y) (X, more)`; v is `W'a` and the bias."""

    x: Any  # the features, `(n, d)`, dense or CSR
    y: Float[Array, " n"]  # signs; 0 for absent samples
    more: Float[Array, "n p"]  # further columns: the constant of a regularised bias, `y c` of an equality
    penalty: Float[Array, " dp"]  # `P`
    e: Float[Array, " dp"]  # zeros, and the right-hand side of the equality
    spread: Spread | None = None  # how the samples are spread over a mesh

    def start(self, a: Float[Array, " n"]) -> Float[Array, " dp"]:
        """Return v for the first iterate."""
        return self.penalty * self.transposed(a)

    def margins(self, a: Float[Array, " n"], v: Float[Array, " dp"]) -> Float[Array, " n"]:
        """Return `H v`, which is `Qa + b c` if v is `W'a` and b."""
        d = self.x.shape[1]
        return self.y * (product(self.x, v[:d], self.spread) + matmul(self.more, v[d:]))

    def factored(self, D: Float[Array, " n"], a: Float[Array, " n"], v: Float[Array, " dp"]) -> Solve:
        """Return the solver of systems with this diagonal, at this point."""
        weight = jnp.where(self.y != 0, 1 / D, 0)  # signs cancel
        squares = weighted_squares(self.x, self.more, weight, self.spread)
        core = plus_diagonal(squares, self.penalty)
        scale = lax.rsqrt(diagonal(core))
        # Factor the mean with its transpose: at the end a rounded triangle alone has another smallest eigenvalue.
        factor = factored(scale[:, None] * (core + core.T) / 2 * scale[None, :])
        rest = self.penalty * v + self.e

        def solve(r: Array) -> tuple[Array, Array, Array]:
            dv = scale * factor.solve(scale * (self.transposed(r / D + a) - rest))
            dm = self.margins(a, dv)
            return (r - dm) / D, dv, dm

        return solve

    def transposed(self, u: Array) -> Array:
        """Return `W'u`."""
        signed = self.y * u
        return jnp.concatenate([transposed_product(self.x, signed), matmul(self.more.T, signed)])
