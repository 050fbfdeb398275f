"""A primal-dual interior point method for box problems: what ends the ones on which pair steps crawl.

On a singular kernel with overlapping classes and a large C (a linear kernel at C = 1e6), SMO needs a number of steps
that no one has time for. Newton's method on the perturbed optimality conditions of `min 1/2 a'Qa - q'a`,
`0 <= a <= U`, `c'a = e`,

    Qa + b c - q - z + w = 0,     a_i z_i = mu,     (U_i - a_i) w_i = mu,

needs 15 to 40 systems with `Q + diag(z / a + w / (U - a))`, whatever the conditioning: by Cholesky where an n x n
matrix is affordable; in the space of the features, O(n d^2), where the kernel has d < n of them.

Sources: Mehrotra 1992 (predictor and corrector); Ferris and Munson 2002 (many samples by low rank).
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.numerics.masks import every, some
from jaxsvm.numerics.precision import in_double, like, remainder, rounded, whole, widened
from jaxsvm.problems.forms import BoxForm
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.loops import fori_loop, while_loop
from jaxsvm.solvers.box.barrier_systems import DIRECT_SIZE, MOST_FEATURES, affordable, barrier_system, few_features
from jaxsvm.solvers.contract import Solver

BACK_OFF = 0.995
"""Share of the way to the nearest bound."""
POLISH_ROUNDS = 60
CLEAR = 1e-6
"""A variable this much nearer to its bound than its multiplier is to 0, each in its own scale, is at the bound."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class InteriorPoint(Solver[BoxForm]):
    """Configuration of the interior point method.

    For hinge and box problems of at most 2,048 samples, or of any number where the kernel has few features: a linear
    kernel with d < n (at most 2,048), a low-rank Gram. It starts from the middle of the box, wherever `init` is: the
    neighbourhood of a bound is no place to start from.

    Attributes:
        tol: The relative duality gap that ends it, > 0.
        max_steps: The step cap, >= 0; 15 to 40 are usual.
    """

    bit = 5
    solves = ("box",)

    tol: Any = 1e-4
    max_steps: Any = 100

    check_every = 1
    refresh_every = 10  # a certificate costs less than a system: what the products do not tell is looked at in between
    unroll = 1
    takes_start = False

    def stores(self, problem: BoxForm) -> bool:
        """Where its systems are not solved in the space of few features."""
        return few_features(problem) is None

    def init(self, problem: BoxForm, key: Array | None = None, init: Any = None) -> "State":
        """The middle of the box."""
        del key, init
        if not affordable(problem):
            raise InputError(
                f"the problem has {problem.n} samples: InteriorPoint takes {DIRECT_SIZE} at most, or a kernel of at "
                f"most {MOST_FEATURES} features (Linear, a Gram with rank=): use `SMO`, or `Pegasos`."
            )
        x = first_iterate(problem)
        a = problem.feasible_point(_present(problem, x.a))
        unknown, nothing = jnp.asarray(jnp.inf, a.dtype), jnp.zeros((), a.dtype)
        rest = jax.tree.map(jnp.zeros_like, x)
        # The products of a, and its objective, are those of the first refresh: a certificate comes after it.
        return State(x, rest, a, jnp.zeros_like(a), nothing, unknown, jnp.asarray(False), Counters.zero())

    def step(self, problem: BoxForm, state: "State") -> "State":
        """One system: a predicted step, and the corrected one; in twice the precision, which is what systems lose."""
        x, rest, left = _advance_in_double(problem, state.x, state.rest)
        counters = state.counters
        counters = counters._replace(steps=counters.steps + 1, toward=counters.toward + 1)
        evaluations = problem.n**2 if few_features(problem) is None else 0
        return state._replace(x=x, rest=rest, left=left, counters=counters.evaluated(evaluations))

    def refresh(self, problem: BoxForm, state: "State") -> "State":
        """The feasible point beside the iterate, and its `s` and objective from scratch."""
        x = whole(state.x, state.rest, problem.dtype)
        a = rounded(problem.on_equality(at_bounds(problem, x)), state.a.dtype)
        a = jnp.where(_nothing_to_lose(problem), 0, a)
        s = problem.matvec(a)
        return state._replace(a=a, s=s, R=problem.objective(a, s))

    def dual_point(self, problem: BoxForm, state: "State") -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """The last refreshed point and its `s = Qa`."""
        del problem
        return state.a, state.s

    def carries_weights(self, problem: BoxForm) -> bool:
        """Where its systems are those of features."""
        return few_features(problem) is not None

    def feature_weights(self, problem: BoxForm, state: "State") -> Float[Array, " d"]:
        """`W'a` as the systems carry it, where they are those of features."""
        v = whole(state.x, state.rest, problem.dtype).v
        return v if problem.c is None else v[:-1]

    def running_excess(self, problem: BoxForm, state: "State") -> Float[Array, ""]:
        """What the products `a z` and `(U - a) w` say of the relative gap, over `tol`."""
        del problem
        return state.left / self.tol


class State(NamedTuple):
    """Where the interior point method stands.

    Attributes:
        x: The iterate.
        rest: What the data's dtype could not hold of it: it is known to twice its precision.
        a: The last feasible point, `(n,)`.
        s: Its `Qa`, `(n,)`.
        R: Its `-D(a)`, `()`.
        left: The sum of the products over the objective, `()`.
        indefinite: Never set: the diagonal hides a negative curvature.
        counters: Steps and kernel evaluations.
    """

    x: "Iterate"
    rest: "Iterate"
    a: Float[Array, " n"]
    s: Float[Array, " n"]
    R: Float[Array, ""]
    left: Float[Array, ""]
    indefinite: Bool[Array, ""]
    counters: Counters


class Iterate(NamedTuple):
    """A point strictly inside; absent samples are at 1 in all of it.

    Attributes:
        a: Dual variables, `(n,)`.
        t: `U - a`, `(n,)`, kept apart: its digits would drown in those of U.
        z: Multipliers of `a >= 0`, `(n,)`.
        w: Multipliers of `a <= U`, `(n,)`.
        v: What makes the margins besides a: the bias, or feature weights and the bias, `(p,)`.
    """

    a: Float[Array, " n"]
    t: Float[Array, " n"]
    z: Float[Array, " n"]
    w: Float[Array, " n"]
    v: Float[Array, " p"]


def polish_steps(problem: BoxForm) -> int | None:
    """How many pair steps cost as much as `solved`, about, its compilation counted; None where it is not affordable."""
    if not affordable(problem):
        return None
    features = few_features(problem)
    return max(50_000, problem.n**3 // 20_000) if features is None else max(20_000, 20 * features.shape[1])


class Going(NamedTuple):
    """Where `solved` stands: the iterate, the sum of its products over the objective, rounds, whether it goes on."""

    x: Iterate
    left: Float[Array, ""]
    rounds: Int[Array, ""]
    going: Bool[Array, ""]


def solved(problem: BoxForm, tol: Any) -> Float[Array, " n"]:
    """A feasible point near the solution of an `affordable` problem, from scratch, `(n,)`.

    The host driver takes it in pieces: `begin`, `further` for as long as it is going, `end`.
    """
    start = begin(problem, tol)
    return end(problem, while_loop(lambda at: at.going, lambda at: further(problem, at, tol), start))


def begin(problem: BoxForm, tol: Any) -> Going:
    """`solved` before its first piece."""
    del tol
    unknown = jnp.asarray(jnp.inf, problem.dtype)
    return Going(first_iterate(problem), unknown, jnp.zeros((), jnp.int32), jnp.asarray(True))


def further(problem: BoxForm, at: Going, tol: Any) -> Going:
    """One system further."""
    x, left = advance(problem, at.x)
    rounds, moved = at.rounds + 1, some(x.a != at.x.a)
    return Going(x, left, rounds, (rounds < POLISH_ROUNDS) & (left > tol) & moved)


def end(problem: BoxForm, at: Going) -> Float[Array, " n"]:
    """The feasible point beside the iterate."""
    return problem.on_equality(at_bounds(problem, at.x))


def first_iterate(problem: BoxForm) -> Iterate:
    """Return the middle of the box, with multipliers that leave no residual."""
    system, U, q = barrier_system(problem), _upper(problem), _present(problem, problem.q)
    middle = _present(problem, U / 2)
    v = system.start(middle)
    pull = system.margins(middle, v) - q
    reserve = 1 + jnp.abs(_present(problem, pull)).max()
    return Iterate(U / 2, U / 2, jnp.maximum(pull, 0) + reserve, jnp.maximum(-pull, 0) + reserve, v)


def advance(problem: BoxForm, x: Iterate) -> tuple[Iterate, Float[Array, ""]]:
    """One step, and the sum of the products `a z` and `t w` after it, over the objective.

    A step that rounding has spoilt is not taken, nor one where all that is left of the products is rounding: a
    variable that has lost its digits to the other ones of its system drives the iterate away again.
    """
    present, q, system = problem.present, _present(problem, problem.q), barrier_system(problem)
    count = 2 * present.sum(dtype=x.a.dtype)

    def mean_product(x: Iterate) -> Array:
        return _present(problem, x.a * x.z + x.t * x.w).sum() / count

    m = system.margins(_present(problem, x.a), x.v)
    residual = m - q - x.z + x.w
    solve = system.factored(jnp.where(present, x.z / x.a + x.w / x.t, 1), _present(problem, x.a), x.v)

    mu = mean_product(x)

    def direction(_: Any, carry: tuple[Iterate, Array, Array, Array]) -> tuple[Iterate, Array, Array, Array]:
        """Take Newton's step to products of `centre`, corrected by those of the step before it (Mehrotra 1992).

        Returns the step, how the margins change, the centre that it calls for, and how far it reaches.
        """
        d, _, centre, _ = carry
        to_z, to_w = centre - x.a * x.z - d.a * d.z, centre - x.t * x.w - d.t * d.w
        da, dv, dm = solve(_present(problem, to_z / x.a - to_w / x.t - residual))
        da = _present(problem, da)
        d = Iterate(da, -da, (to_z - x.z * da) / x.a, (to_w + x.w * da) / x.t, dv)
        reach = _reach(present, x, d)
        return d, dm, jnp.clip((mean_product(_moved(x, d, reach)) / mu) ** 3, 0, 1) * mu, reach

    nothing = jnp.zeros_like(mu)
    # The predicted step, and the corrected one.
    start = (jax.tree.map(jnp.zeros_like, x), jnp.zeros_like(m), nothing, nothing)
    d, dm, _, reach = fori_loop(0, 2, direction, start)
    step = jnp.minimum(1, BACK_OFF * reach)
    new = _moved(x, d, step)
    new = Iterate(*(jnp.where(present, part, 1) for part in new[:-1]), v=new.v)
    value = jnp.abs(_present(problem, x.a) @ (m / 2 - q))
    sound = every(jnp.isfinite(jnp.concatenate(new)))
    sound = sound & (count * mu > jnp.finfo(value.dtype).eps * value)
    x = jax.tree.map(lambda fresh, old: jnp.where(sound, fresh, old), new, x)
    value = jnp.abs(_present(problem, x.a) @ ((m + jnp.where(sound, step, 0) * dm) / 2 - q))
    return x, count * mean_product(x) / jnp.maximum(value, jnp.finfo(value.dtype).tiny)


@in_double
def _advance_in_double(problem: BoxForm, x: Iterate, rest: Iterate) -> tuple[Iterate, Iterate, Float[Array, ""]]:
    wide = widened(problem)
    there, left = advance(wide, whole(x, rest, wide.dtype))
    return like(there, x), like(remainder(there, x), rest), left.astype(problem.dtype)


def at_bounds(problem: BoxForm, x: Iterate) -> Float[Array, " n"]:
    """A point with what is clearly at a bound put there, and absent samples at 0."""
    size, pull = _present(problem, x.a).max(), jnp.abs(_present(problem, problem.q)).max()
    pull = jnp.where(pull > 0, pull, _present(problem, jnp.maximum(x.z, x.w)).max())  # q = 0: one-class machines
    a = jnp.where(x.a / size < CLEAR * x.z / pull, 0, x.a)
    a = jnp.where(x.t / size < CLEAR * x.w / pull, problem.upper, a)
    return _present(problem, jnp.clip(a, 0, problem.upper))


def _nothing_to_lose(problem: BoxForm) -> Array:
    """Whether a constant leaves no loss: 0 is the solution then, which an iterate inside the box never is."""
    nothing = jnp.zeros_like(problem.q)
    pull = problem.q - (0 if problem.c is None else problem.best_bias(nothing) * problem.c)
    return (problem.e == 0) & (_present(problem, pull).max() <= 0)


def _present(problem: BoxForm, v: Array) -> Array:
    return jnp.where(problem.present, v, 0)


def _upper(problem: BoxForm) -> Array:
    return jnp.where(problem.present, problem.upper, 2)


def _moved(x: Iterate, d: Iterate, step: Array) -> Iterate:
    return jax.tree.map(lambda value, change: value + step * change, x, d)


def _reach(present: Array, x: Iterate, d: Iterate) -> Array:
    """The longest step, at most 1, that keeps all of a, t, z and w from becoming negative."""
    values, changes = jnp.stack(x[:4]), jnp.stack(d[:4])
    falls = present[None, :] & (changes < 0)
    return jnp.minimum(1, jnp.where(falls, -values / jnp.where(falls, changes, -1), jnp.inf).min())
