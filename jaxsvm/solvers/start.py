"""Starting points of solvers: on the simplex a random draw, two far points or the centre; or a warm start."""

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsvm.errors import InputError, is_concrete, require_finite
from jaxsvm.numerics import precision, selection
from jaxsvm.numerics.sampling import balanced_draw
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.contract import BoxForm, Problem, Restricted, SimplexForm
from jaxsvm.results.fit import Counters, Fit, bit_of
from jaxsvm.runtime.loops import fori_loop

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Start(NamedTuple):
    """A warm start: the solution of a related problem, which is known too."""

    point: Float[Array, " n"]  # dual point
    margins: Float[Array, " n"]  # `y_i f(x_i)` of `point / R`
    R: Float[Array, ""]  # scale of the point
    problem: Problem  # the problem that it solves

    @classmethod
    def of(cls, fit: Fit, problem: Problem) -> "Start":
        """Return the start at a fit of a problem."""
        return cls(fit.alpha, fit.margins, fit.R, problem)


class Resumed(NamedTuple):
    """A warm start for solvers whose steps depend on the number of steps so far, or whose w is not made of `alpha`."""

    w: Float[Array, " n"]  # coefficients of w, in primal scale
    point: Float[Array, " n"]  # dual point
    # steps of this solver that led to it, with those of the fits it continued; infinite if it comes from another solver
    steps: Float[Array, ""]
    toward: Float[Array, ""]  # steps among them that counted as `Counters.toward`

    @classmethod
    def of(cls, fit: Fit, y: Float[Array, " n"], solver: Any) -> "Resumed":
        """Return the start of a solver at a fit of a problem with the signs y."""
        xp: Any = np if is_concrete(fit) else jnp  # JAX would compile each single operation
        counters = jax.tree.map(xp.asarray, fit.counters)
        own = (counters.solvers & bit_of(solver)) > 0
        share = counters.toward / xp.maximum(counters.steps, 1)
        taken = [xp.where(own, steps, xp.inf) for steps in (counters.alone, share * counters.alone)]
        steps, toward = (jnp.asarray(count, y.dtype) for count in taken)
        return cls(y * jnp.asarray(fit.dual_coef, y.dtype), jnp.asarray(fit.alpha, y.dtype), steps, toward)


class Origin(NamedTuple):
    """The start a = 0 of a box problem, known to be feasible: no projection and no product to compile."""

    @classmethod
    def of(cls, problem: Problem) -> "Origin | None":
        """Return this start for a concrete box problem with `e = 0`; else None."""
        e = problem.e if isinstance(problem, BoxProblem) else None
        return cls() if e is not None and is_concrete(e) and float(e) == 0 else None


StartLike: TypeAlias = "ArrayLike | Start | Resumed | Origin"
"""Where a solver begins: weights `(n,)`, or what is known of a fit."""


def start(
    problem: SimplexForm, key: Array | None, kind: str, draw: int, init: "StartLike | None" = None
) -> tuple[Float[Array, " n"], Float[Array, " n"], Counters]:
    """Return a starting point on the simplex, its `s = Kt alpha`, and counters with the kernel evaluations spent.

    `kind` is "random" (a balanced random draw of `draw` samples), "two-point" or "uniform"; `init` takes its place:
    weights `(n,)`, or a `Start`, which saves a product.
    """
    if problem.free_bias:
        raise InputError("the problem has a free bias, which simplex steps cannot keep: use `Newton`.")
    counters = Counters.zero()
    if init is not None:
        point, margins = weights_of(problem, init)
        alpha = onto_simplex(problem, point)
        if margins is None:
            return alpha, problem.matvec(alpha), counters
        return alpha, problem.gradient(alpha, margins), counters
    key = jax.random.key(0) if key is None else key
    if kind == "uniform":
        alpha = onto_simplex(problem, jnp.zeros((problem.n,), problem.dtype))
        return alpha, problem.matvec(alpha), counters
    if kind == "two-point":
        return _two_point(problem, key, counters)
    if kind == "random":
        return _random_draw(problem, key, min(draw, problem.n), counters)
    raise InputError(f"start is {kind!r}: one of random, two-point, uniform is needed.")


def weights_of(problem: Problem, init: Any) -> tuple[Float[Array, " n"], Float[Array, " n"] | None]:
    """Return the weights of a start (the dual point of a fit), and their margins in its scale if known."""
    weights, margins = (init.point, init.R * init.margins) if isinstance(init, Start) else (init, None)
    weights = init.point if isinstance(init, Resumed) else weights
    if np.shape(weights) != (problem.n,):
        raise InputError(f"init has weights of shape {np.shape(weights)}: ({problem.n},) is needed.")
    return jnp.asarray(weights, problem.dtype), margins


def resumed(problem: Problem, init: Any) -> Resumed:
    """Return the start as a `Resumed`; weights `(n,)` serve as w and as dual point."""
    if isinstance(init, Resumed):
        return init
    weights, infinite = weights_of(problem, init)[0], jnp.asarray(jnp.inf, problem.dtype)
    return Resumed(weights, weights, infinite, infinite)


def steps_of(init: Resumed, worth: Any) -> Int[Array, ""]:
    """Return the number of steps a start counts for: those taken, at most 2^28, and as many as its gap is `worth`.

    A solver continues with the steps after these: the long first steps of a fresh run would move away from the start.
    """
    steps = jnp.minimum(init.steps, jnp.where(jnp.isnan(worth), 0, worth))
    return jnp.clip(steps, 1, 2**28).astype(jnp.int32)


def key_after(key: Array | None, init: Any) -> Array:
    """Return the key of a solver that draws, made different for each piece of a run with the same key."""
    key = jax.random.key(0) if key is None else key
    if not isinstance(init, Resumed):
        return key
    return jax.random.fold_in(key, jnp.where(jnp.isfinite(init.steps), init.steps, 0).astype(jnp.int32))


def given_start(init: Any, n: int) -> Any:
    """Check a user's start: None, a fit, a `Start`, or finite weights `(n,)`, which are returned as an array."""
    if init is None or isinstance(init, Fit | Start):
        return init
    weights = init if isinstance(init, jax.Array) else np.asarray(init)
    if weights.dtype.kind not in "biuf" and not jnp.issubdtype(weights.dtype, jnp.floating):
        raise InputError(
            f"init is a {type(init).__name__}: a Fit to go on from, or {n} weights, shape ({n},), are needed."
        )
    if np.shape(weights) != (n,):
        raise InputError(f"init has weights of shape {np.shape(weights)}: ({n},) is needed.")
    require_finite("init", weights)
    return weights


def starting_point(problem: BoxForm, init: Any) -> Float[Array, " n"]:
    """Return a feasible start: 0, or `init`; variables of a `Start` at their bound move to the new bound."""
    if isinstance(init, Origin):
        return jnp.zeros((problem.n,), problem.dtype)
    if init is None:
        return problem.feasible_point(jnp.zeros((problem.n,), problem.dtype))
    a, _ = weights_of(problem, init)
    if isinstance(init, Start):
        a = jnp.where(init.problem.present & (a >= cast(BoxForm, init.problem).upper), problem.upper, a)
    return problem.feasible_point(a)


def box_start(problem: BoxForm, init: Any) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Return the starting point and its `s = Qa`."""
    a = starting_point(problem, init)
    return a, jnp.zeros_like(a) if isinstance(init, Origin) else problem.matvec(a)


def onto_simplex(problem: SimplexForm, alpha: Float[Array, " n"]) -> Float[Array, " n"]:
    """Clip and normalise weights; return the centre of the simplex if none is positive."""
    alpha = jnp.where(problem.present, jnp.maximum(alpha, 0), 0)
    alpha = jnp.where(alpha.sum() > 0, alpha, problem.present.astype(alpha.dtype))
    return alpha / alpha.sum()


def _two_point(problem: SimplexForm, key: Array, counters: Counters) -> tuple[Array, Array, Counters]:
    """Put half on a random sample, half on the sample furthest from it."""
    indices, _ = balanced_draw(key, problem.y, problem.present, min(2, problem.n))
    a = indices[0]
    column_a, D = problem.column(a), problem.diagonal
    distance = D[a] + D - 2 * column_a
    _, b = selection.argmax(distance if problem.mask is None else jnp.where(problem.mask, distance, -jnp.inf))
    alpha = jnp.zeros_like(column_a).at[a].add(0.5).at[b].add(0.5)
    return alpha, (column_a + problem.column(b)) / 2, counters.evaluated(2 * problem.n)


def _random_draw(problem: SimplexForm, key: Array, draw: int, counters: Counters) -> tuple[Array, Array, Counters]:
    """Solve on a few samples drawn evenly from the classes, by 200 first-order pair steps.

    Each step multiplies by a stored matrix: that compiles in a third of the time of a solver's pair step.
    """
    indices, valid = balanced_draw(key, problem.y, problem.present, draw)
    few = Restricted(problem, indices, valid)
    weights = valid.astype(problem.dtype) / valid.sum(dtype=problem.dtype)
    places = jnp.arange(indices.shape[0])
    K = few.block(places, places)

    def step(_: Any, weights: Array) -> Array:
        s = precision.matmul(K, weights)
        to, away = jnp.where(valid, s, jnp.inf), jnp.where(weights > 0, s, -jnp.inf)
        pair = (places == jnp.argmin(to)).astype(s.dtype) - (places == jnp.argmax(away)).astype(s.dtype)
        curvature = pair @ precision.matmul(K, pair)
        longest = jnp.where(pair < 0, weights, 0).sum()
        descent = away.max() - to.min()
        moved = jnp.where(curvature > 0, jnp.minimum(descent / jnp.where(curvature > 0, curvature, 1), longest), 0)
        return jnp.maximum(weights + moved * pair, 0)

    weights = fori_loop(0, 200, step, weights)
    weights = weights / weights.sum()
    alpha = jnp.zeros((problem.n,), problem.dtype).at[indices].add(weights)
    return alpha, precision.matmul(weights, problem.columns(indices)), counters.evaluated(len(indices) * problem.n)
