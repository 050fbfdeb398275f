"""The Perceptron in kernel form, online, and its margin version: a baseline, not an SVM solver."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.numerics import selection
from jaxsvm.numerics.line_search import bisected
from jaxsvm.numerics.precision import rounded
from jaxsvm.numerics.sampling import Present
from jaxsvm.problems.contract import BoxForm
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number
from jaxsvm.runtime.checks import require_one_of
from jaxsvm.runtime.loops import cond
from jaxsvm.solvers.box.dual_coordinate_ascent import ORDERS, Visits
from jaxsvm.solvers.contract import NEVER, Solver, Traits
from jaxsvm.solvers.start import Resumed, StartLike, key_after, steps_of, weights_of

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

    refresh_every = NEVER
    patience = NEVER

    def __post_init__(self) -> None:
        require_one_of("output", self.output, OUTPUTS)
        require_one_of("order", self.order, ORDERS)

    @property
    def max_steps(self) -> Count:
        """Return the largest number of steps."""
        return self.steps

    def init(self, problem: BoxForm, key: Array | None = None, init: "StartLike | None" = None) -> "State":
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
        return State(visits, h, s, h, s, before, jnp.zeros((), problem.dtype), jnp.asarray(False), Counters.zero())

    def step(self, problem: BoxForm, state: "State") -> "State":
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
        return State(visits, h, s, kept_h, kept_s, state.before, R, state.indefinite, counters)

    def refresh(self, problem: BoxForm, state: "State") -> "State":
        s, kept_s = problem.matvec(jnp.stack([state.h, state.kept_h]).astype(problem.dtype))
        return state._replace(s=s, kept_s=kept_s)

    def dual_point(self, problem: BoxForm, state: "State") -> tuple[Float[Array, "two n"], Float[Array, "two n"]]:
        """Return the best multiple of w, and the same coefficients within the box, with `Q` times both."""
        times = best_multiple(problem, state.kept_s, state.kept_h @ state.kept_s)
        w = rounded(times * state.kept_h, state.h.dtype)
        point = jnp.stack([w, jnp.clip(w, 0, problem.upper)])
        return point, problem.matvec(point)

    def running_excess(self, problem: BoxForm, state: "State") -> Float[Array, ""]:
        """Return infinity: the fit ends with its steps."""
        return jnp.full((), jnp.inf, state.s.dtype)


class State(NamedTuple):
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
    high = jnp.maximum(problem.upper @ jnp.maximum(s, 0), 0) / jnp.where(squared_norm > 0, squared_norm, 1)
    low, high = bisected(falls, jnp.zeros_like(high), high, 60)
    return jnp.where(squared_norm > 0, (low + high) / 2, 0)
