"""Steps of single samples: stochastic dual coordinate ascent, and the Perceptron, a baseline in kernel form."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.numerics import selection
from jaxsvm.numerics.line_search import CURVATURE_FLOOR, bisected
from jaxsvm.numerics.precision import matmul, rounded
from jaxsvm.numerics.sampling import Present
from jaxsvm.problems.contract import BoxForm
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number, require_one_of
from jaxsvm.runtime.loops import cond, once
from jaxsvm.solvers.contract import NEVER, STEPS, Solver, Traits, is_negative
from jaxsvm.solvers.start import Resumed, StartLike, box_start, key_after, steps_of, weights_of

ORDERS = ("random", "permuted")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SDCA(Solver[BoxForm]):
    """Stochastic dual coordinate ascent: exact steps of single dual variables, in random order.

        a_i <- clip(a_i + (q_i - s_i) / Q_ii, 0, U_i),      s <- s + (its change) Q[:, i]

    Problems: hinge and box problems without an equality (a regularised bias, or none).
    Cost of a step: n kernel evaluations if the variable moves, none if it stays at a bound.
    Rate: `O~(n + 1 / (lambda eps))` steps to a gap of eps.
    Sources: Hsieh, Chang, Lin, Keerthi, Sundararajan 2008, Algorithm 1 (a permutation an epoch); Shalev-Shwartz, Zhang
    2013 (uniform draws, and the rate).

    Attributes:
        order: "permuted" (a fresh permutation an epoch) or "random" (uniform, with replacement); static.
        tol: Relative duality gap at which to stop, > 0.
        max_steps: Maximum number of steps, >= 0; as many as there are samples of positive weight are an epoch.
        check_every: Steps in a chunk, between tests of the running gap; static.
        refresh_every: Maximum number of steps between recomputations of `s`; None: 4,000, or n if larger. Static.

    Raises:
        InputError: On another order; when a problem with a free bias is solved.
    """

    bit = 6
    solves = ("box",)

    order: str = dataclasses.field(default="permuted", metadata={"static": True})
    tol: Number = 1e-3
    max_steps: Count = 10_000_000
    check_every: int = dataclasses.field(default=250, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    traits = Traits(resumes=True, knows_origin=True)
    patience = NEVER  # chunks gain unevenly: a gap may rest for a while and shrink again

    def __post_init__(self) -> None:
        require_one_of("order", self.order, ORDERS)

    def stores(self, problem: BoxForm) -> bool:
        """Return whether the Gram has no features; with features a row is a product."""
        return problem.gram.design is None

    def init(self, problem: BoxForm, key: Array | None = None, init: "StartLike | None" = None) -> "State":
        if problem.free_bias:
            raise InputError(
                "the problem has a free bias, an equality that single variables cannot keep: use `SMO`, or bias="
                '"regularized".'
            )
        a, s = box_start(problem, init)
        visits = Visits(key_after(key, init), Present.of(problem.mask, problem.n))
        return State(visits, a, s, problem.objective(a, s), jnp.asarray(False), Counters.zero())

    def step(self, problem: BoxForm, state: "State") -> "State":
        visits, i = state.visits.following(state.counters.steps, self.order)
        a_i, s_i, D_i = (selection.entry(v, i) for v in (state.a, state.s, problem.diagonal))
        rest = selection.entry(problem.q, i) - s_i
        target = jnp.clip(a_i + rest / jnp.maximum(D_i, CURVATURE_FLOOR), 0, selection.entry(problem.upper, i))
        delta = target - a_i
        moves = delta != 0
        return State(
            visits=visits,
            a=state.a.at[i].set(target),
            s=cond(moves, lambda: state.s + delta * problem.column(i), lambda: state.s),
            R=state.R - delta * (rest - D_i * delta / 2),
            indefinite=state.indefinite | is_negative(D_i, problem.diagonal.max()),
            counters=state.counters.stepped(jnp.where(moves, problem.n, 0), moves),
        )

    def refresh(self, problem: BoxForm, state: "State") -> "State":
        a = state.a.astype(problem.dtype)
        s = problem.matvec(a)
        return state._replace(a=a, s=s, R=problem.objective(a, s))


class Visits(NamedTuple):
    """Order in which samples are visited."""

    key: Array  # the random key
    present: Present  # the samples, in the order of this epoch

    def following(self, t: Int[Array, ""], order: str) -> tuple["Visits", Int[Array, ""]]:
        """Return the sample of step t (from 0), "random" or "permuted"."""
        if order == "random":
            key, draw_key = jax.random.split(self.key)
            return self._replace(key=key), self.present.drawn(draw_key, 1)[0]

        def shuffled(visits: Visits) -> Visits:
            key, draw_key = jax.random.split(visits.key)
            return Visits(key, visits.present.shuffled(draw_key))

        place = t % jnp.maximum(self.present.number, 1)
        visits = once(place == 0, shuffled, self)
        return visits, selection.entry(visits.present.order, place)


class State(NamedTuple):
    """State of dual coordinate ascent."""

    visits: Visits  # the order of the samples
    a: Float[Array, " n"]  # dual variables, within the box
    s: Float[Array, " n"]  # `Qa`, updated by each step
    R: Float[Array, ""]  # `-D(a)`, updated by each step
    indefinite: Bool[Array, ""]  # whether a negative curvature occurred
    counters: Counters  # steps (those that moved a variable are `toward`) and kernel evaluations


OUTPUTS = ("last", "average", "random")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Perceptron(Solver[BoxForm]):
    """The Perceptron in kernel form, online, and its margin version: a baseline, not an SVM solver.

    Samples come one by one; if `y_i <w, phi_i> <= margin`, `a_i <- a_i + 1`. The direction of w is the result; its
    length means nothing. The fit takes the multiple of w with the smallest hinge objective, so that it is calibrated
    and has a certificate.

    Problems: hinge and box problems without an equality (a regularised bias, or none).
    Cost of a step: n kernel evaluations at a mistake, since all responses are carried; else none.
    Rate: for every u, over the mistakes, `M <= L + r |u| sqrt(L) + r^2 |u|^2` with L the hinge losses of u.
    Sources: Rosenblatt 1958; Freund and Schapire 1999 (averages, kernels).

    Attributes:
        steps: Number of samples to visit, >= 0: as many as have a positive weight are a pass.
        margin: Largest response that is a mistake, >= 0.
        output: "last" (the current w), "average" (the mean of all), or "random" (one of all, uniformly drawn, as in the
            theory of its errors); static.
        order: "permuted" (a fresh permutation a pass) or "random" (uniform, with replacement); static.
        tol: Relative gap at which to stop earlier, > 0; it is tested after a chunk without a mistake.
        check_every: Steps in a chunk; static.

    Raises:
        InputError: On an unknown output or order; when a problem with a free bias is solved.
    """

    bit = 7
    solves = ("box",)
    traits = Traits(long_steps=False, resumes=True)
    rows = 2

    steps: Count
    margin: Number = 0.0
    output: str = dataclasses.field(default="last", metadata={"static": True})
    order: str = dataclasses.field(default="permuted", metadata={"static": True})
    tol: Number = 1e-3
    check_every: int = dataclasses.field(default=250, metadata={"static": True})

    max_steps = STEPS
    refresh_every = NEVER
    patience = NEVER

    def __post_init__(self) -> None:
        require_one_of("output", self.output, OUTPUTS)
        require_one_of("order", self.order, ORDERS)

    def init(self, problem: BoxForm, key: Array | None = None, init: "StartLike | None" = None) -> "Mistakes":
        """Return a state at w = 0, at the counts `init`, `(n,)`, or at the w of a fit, in the scale of its mistakes."""
        if problem.free_bias:
            raise InputError(
                'the problem has a free bias: the Perceptron learns a constant feature, bias="regularized".'
            )
        h = jnp.zeros((problem.n,), problem.dtype)
        s, before = h, jnp.zeros((), jnp.int32)
        if isinstance(init, Resumed):
            # Another solver's w counts as if each sample had been visited once, with a mistake.
            before = steps_of(init, jnp.where(jnp.isfinite(init.steps), init.steps, problem.n))
            size, mistakes = jnp.abs(init.w).sum(), jnp.where(jnp.isfinite(init.toward), init.toward, problem.n)
            h = init.w * (jnp.maximum(mistakes, 1) / jnp.where(size > 0, size, 1))
            s = problem.matvec(h)
        elif init is not None:
            h = jnp.maximum(weights_of(problem, init)[0], 0)
            s = problem.matvec(h)
        visits = Visits(key_after(key, init), Present.of(problem.mask, problem.n))
        return Mistakes(visits, h, s, h, s, before, jnp.zeros((), problem.dtype), jnp.asarray(False), Counters.zero())

    def step(self, problem: BoxForm, state: "Mistakes") -> "Mistakes":
        t = state.before + state.counters.steps + 1
        visits, i = state.visits.following(state.counters.steps, self.order)
        mistake = (selection.entry(state.s, i) <= self.margin) & (selection.entry(problem.upper, i) > 0)
        h = state.h.at[i].add(mistake.astype(state.h.dtype))
        s = cond(mistake, lambda: state.s + problem.column(i), lambda: state.s)
        rho = 1 / t.astype(s.dtype)
        if self.output == "last":
            rho = jnp.ones_like(rho)
        elif self.output == "random":  # a reservoir of a single w
            key, draw_key = jax.random.split(visits.key)
            visits = visits._replace(key=key)
            rho = (jax.random.uniform(draw_key, (), s.dtype) < rho).astype(s.dtype)
        kept_h, kept_s = state.kept_h + rho * (h - state.kept_h), state.kept_s + rho * (s - state.kept_s)
        counters = state.counters.stepped(jnp.where(mistake, problem.n, 0), mistake)
        R = state.R + mistake.astype(s.dtype)
        return Mistakes(visits, h, s, kept_h, kept_s, state.before, R, state.indefinite, counters)

    def refresh(self, problem: BoxForm, state: "Mistakes") -> "Mistakes":
        s, kept_s = problem.matvec(jnp.stack([state.h, state.kept_h]).astype(problem.dtype))
        return state._replace(s=s, kept_s=kept_s)

    def dual_point(self, problem: BoxForm, state: "Mistakes") -> tuple[Float[Array, "two n"], Float[Array, "two n"]]:
        """Return the best multiple of w, and the same coefficients within the box, with `Q` times both."""
        times = best_multiple(problem, state.kept_s, state.kept_h @ state.kept_s)
        w = rounded(times * state.kept_h, state.h.dtype)
        point = jnp.stack([w, jnp.clip(w, 0, problem.upper)])
        return point, problem.matvec(point)

    def running_excess(self, problem: BoxForm, state: "Mistakes") -> Float[Array, ""]:
        """Return infinity: the fit ends with its steps."""
        return jnp.full((), jnp.inf, state.s.dtype)


class Mistakes(NamedTuple):
    """State of the Perceptron."""

    visits: Visits  # the order of the samples
    h: Float[Array, " n"]  # mistakes on each sample: `w = sum_i h_i y_i phi_i`
    s: Float[Array, " n"]  # responses `Qh`, updated by each step
    kept_h: Float[Array, " n"]  # coefficients of the output
    kept_s: Float[Array, " n"]  # responses of the output
    before: Int[Array, ""]  # steps that led to the start
    R: Float[Array, ""]  # number of mistakes
    indefinite: Bool[Array, ""]  # never set
    counters: Counters  # steps (mistakes are `toward`) and kernel evaluations


def best_multiple(problem: BoxForm, s: Float[Array, " n"], squared_norm: Float[Array, ""]) -> Float[Array, ""]:
    """Minimise `P(t w)` over `t >= 0`, by 60 bisections of its slope `t |w|^2 - sum_i U_i s_i [t s_i < q_i]`."""

    def falls(t: Array) -> Array:
        return t * squared_norm < jnp.where(t * s < problem.q, problem.upper * s, 0).sum()

    # Beyond this t the slope is not negative.
    high = jnp.maximum(matmul(problem.upper, jnp.maximum(s, 0)), 0) / jnp.where(squared_norm > 0, squared_norm, 1)
    low, high = bisected(falls, jnp.zeros_like(high), high, 60)
    return jnp.where(squared_norm > 0, (low + high) / 2, 0)
