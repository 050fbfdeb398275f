"""Warm chains: each value of C is solved from the solution of another.

A chain knows the problem that is solved and the next one: a `Start` holds both, and a screening rule decides which
samples of the next problem to leave out at first. `chain_on_host` solves one value after another; `chains_traced`
solves several chains side by side, under tracing or, by `chains_compiled`, in one compiled call.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.errors import ConvergenceWarning, warn
from jaxsvm.loop.driver import QUIET, drive, fit_compiled
from jaxsvm.loop.interruption import Interruption, watching
from jaxsvm.loop.measured import MEASURED
from jaxsvm.loop.round import ready_together
from jaxsvm.numerics.precision import double, in_double, matmul, rounded, widened
from jaxsvm.numerics.sizes import class_of, filled
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.contract import Parametric, Problem, Restrictable
from jaxsvm.results.fit import Answer, Certificate, Counters, Fit, Status, StatusCode, Values, advice, values_of
from jaxsvm.results.judge import concluded, in_dtype
from jaxsvm.runtime.arrays import TINY, computed, on_device
from jaxsvm.runtime.loops import scan
from jaxsvm.runtime.programs import Program
from jaxsvm.screening.reference import reference_fit
from jaxsvm.screening.rules import Rule
from jaxsvm.solvers.contract import Solver, stop_excess
from jaxsvm.solvers.start import Start


def nothing(problem: Problem, nearest: Fit | None = None) -> Fit:
    """Return a placeholder for a value that was not reached, without a certificate: the nearest fit's point, or 0."""
    zero: Any = np.zeros((), problem.dtype)
    zeros: Any = np.zeros((problem.n,), problem.dtype)
    values = Values(zeros, zeros, zero, np.ones_like(zero), zeros) if nearest is None else values_of(nearest)
    infinite: Any = np.full_like(zero, np.inf)
    certificate = Certificate(infinite, -infinite, infinite)
    parts: Any = jax.tree.map(np.asarray, (*values, certificate, interrupted(), Counters.zero()))
    return Fit(*parts)


def interrupted() -> StatusCode:
    """Return the status INTERRUPTED, on the host."""
    return StatusCode(cast(Any, np.asarray(np.int32(Status.INTERRUPTED))))


def stacked(fits: list[Fit]) -> Fit:
    """Stack fits along a new first axis."""
    return jax.tree.map(lambda *leaves: computed(lambda xp, *parts: xp.stack(parts), *leaves), *fits)


def in_order(fits: dict[int, Fit], Cs: np.ndarray, problem: Problem) -> Fit:  # noqa: N803
    """Stack the fits by place in the order of all values; those that were not reached get the nearest one's point."""
    known, logs = dict(fits), np.log(np.maximum(Cs, np.finfo(float).tiny))  # nu may be 0
    for place in range(len(logs)):
        if place not in fits:
            nearest = min(fits, key=lambda other: abs(logs[place] - logs[other]), default=-1)
            known[place] = nothing(problem, fits.get(nearest))
    return stacked([known[place] for place in range(len(logs))])


def warn_of_unfinished(fits: list[Fit], Cs: Any, tol: Any) -> None:
    """Say how many fits ended how, from which value on, the largest gap, and what helps; nothing if all converged.

    The fits have a last axis of k.
    """
    codes = np.stack([np.asarray(fit.status.code) for fit in fits])
    failed = codes != Status.CONVERGED
    if not failed.any():
        return
    gaps = np.stack([np.asarray(fit.certificate.relative_gap, float) for fit in fits])
    first = np.broadcast_to(np.asarray(Cs, float), codes.shape)[failed].min()
    reached = gaps[failed & np.isfinite(gaps)]
    largest = f", with relative gaps of up to {reached.max():.2g}" if reached.size else ""
    most = Status(np.bincount(codes[failed]).argmax())
    ended = f"{StatusCode(cast(Any, codes[failed])).tally()}, the first at {first:.4g}{largest}"
    many = f"{int(failed.sum())} of {codes.size} fits are not certified to tol {float(tol):.2g}"
    warn(f"{many}: {ended}. {advice(most, fits[0])}", ConvergenceWarning)


class Link(Protocol):
    """Solve the next problem of a chain; `before` holds the last problem and its fit, at which it begins."""

    before: Any

    def __call__(self, problem: Any, /) -> Fit: ...


def chain_on_host(
    problem: Parametric,
    Cs: np.ndarray,
    link: Link,
    report: Callable[[int, Fit], Any] | None = None,
    stop: Interruption | None = None,
    known: Fit | None = None,
) -> Fit:
    """Solve all values in increasing order of C, each from the one before; the fits are in the order of `Cs`.

    `link`, a `Neighbour` or a `CarriedChain`, solves those that are not certified in `known`, whatever the fit before
    says. Only Ctrl-C and the time limit end the chain early: the running value keeps its last certified point;
    the rest are INTERRUPTED, without a certificate, at the nearest one. `report` gets place and fit of each value.
    """
    solved = np.zeros(len(Cs), bool) if known is None else np.asarray(known.status.code) == Status.CONVERGED
    if known is not None and solved.all() and report is None:
        return known
    fits = {place: jax.tree.map(lambda leaf, k=place: leaf[k], known) for place in np.flatnonzero(solved).tolist()}
    order = np.argsort(Cs, kind="stable").tolist()
    with watching(stop) as stop:
        for before, place in zip([order[0], *order[:-1]], order, strict=True):
            if stop.seen and not solved[place]:
                break
            try:
                if not solved[place]:
                    if solved[before]:
                        link.before = problem.at(Cs[before]), fits[before]
                    fits[place], stop.begun = link(problem.at(Cs[place])), True
                if report is not None:
                    report(place, fits[place])
            except KeyboardInterrupt:  # raised by a callback, or by a handler of the user's own
                stop.note()
        return in_order(fits, Cs, problem)


class Neighbour:
    """Solve problems of increasing C, each from the fit before; the samples that no rule knows come first.

    Their solution, with the others at their values, is certified on the whole problem: it is the result, or its start.
    """

    def __init__(self, solver: Solver, key: Array, rule: Rule | None, stop: Interruption | None) -> None:
        self.solver, self.key, self.rule, self.stop = solver, key, rule, stop
        self.before: tuple[Restrictable, Fit] | None = None

    def __call__(self, problem: Restrictable) -> Fit:
        """Return the fit of the next problem; its counters are those of all that was solved for it."""
        fitted = None if self.before is None or self.rule is None else self._reduced(problem)
        if fitted is None or int(fitted.status) != Status.CONVERGED:
            begin = self.before if fitted is None else (problem, fitted)
            warm = None if begin is None else Start.of(begin[1], begin[0])
            solved = drive(problem, self.solver, self.key, warm, stop=self.stop, options=QUIET)
            counters = solved.counters if fitted is None else fitted.counters.plus(solved.counters)
            fitted = dataclasses.replace(solved, counters=counters)
        self.before = (problem, fitted)
        return fitted

    def _reduced(self, new: Restrictable) -> Fit | None:
        """Solve for the samples that the rule does not know; None if these are nearly all.

        The status is CONVERGED if the point is certified on the whole problem. A matrix that no kernel guarantees to
        be semidefinite is never certified here: its certificate alone proves nothing.
        """
        assert self.before is not None and self.rule is not None
        old, fit = self.before
        known, present = self.rule(new, fit, old.C), np.asarray(new.present)
        kept = present & ~np.asarray(known.screened)
        size = class_of(kept.sum(), new.n)
        if size == new.n or int(fit.status) != Status.CONVERGED:
            return None
        samples, fixed = filled(kept, present, size), jnp.where(known.at_bound, new.upper, 0)
        part = new.restrict(samples, fixed=fixed)
        # In twice the precision: in the data's own, float32 ends at gaps of 1e-5 that it never detects.
        inside = drive(part, self.solver, self.key, np.asarray(fit.alpha)[samples], stop=self.stop, options=QUIET)
        w, a = np.asarray(new.y)[samples] * np.asarray(inside.dual_coef), np.asarray(inside.alpha)
        own = new.bounded and not np.array_equal(w, a)  # of a w of its own
        points = np.stack([w, a]) if own else w
        fitted = _extended(new, self.solver, fixed, samples, points, inside.counters)
        if int(fitted.status) != Status.CONVERGED and not self.solver.traits.takes_start:
            self.rule = None  # rounding grows with C, and the attempt is lost
        return fitted


@Program
def _extended(
    problem: Restrictable, solver: Solver, fixed: Array, samples: Array, inside: Float[Array, "*two m"], counters: Any
) -> Fit:
    """Embed a reduced point in the whole problem and certify it; RUNNING unless the stop rule holds too."""
    point = jnp.broadcast_to(fixed, (*inside.shape[:-1], problem.n)).at[..., samples].set(inside)
    answer, excess = assessed(problem, solver, point, products_of.function(problem, point))
    tol = jnp.where(excess <= 1, solver.tol, -1.0)  # no gap is below it
    return concluded(answer, tol, counters, definite=problem.gram.definite, otherwise=Status.RUNNING)


def chains_traced(problem: Parametric, solver: Solver, Cs: Float[Array, " k"], key: Array, lanes: int) -> Fit:
    """Solve all values under tracing, in fixed lanes: chains through neighbouring values in increasing order.

    The fits have an axis of k first, in the order of `Cs`.
    """
    (problem,) = ready_together([problem], [solver], pad=False)
    lowest = lax.stop_gradient(problem.at(Cs.min()))
    point = lowest.feasible_point(jnp.zeros((problem.n,), problem.dtype))
    margins = lowest.margins(point, lowest.matvec(point))  # a start like all others: each is traced once
    k, lanes = len(Cs), min(lanes, len(Cs))
    length = -(-k // lanes)
    order = jnp.argsort(Cs)
    # Every chain is `length` long: the last one repeats its last value, which costs one certificate.
    places = jnp.minimum(jnp.arange(lanes * length), k - 1).reshape(lanes, length)

    def link(before: Any, C: Any) -> Any:  # the problem itself would carry the kernel matrix along
        point, margins, R, old = before
        fitted = fit_compiled(problem.at(C), solver, key, Start(point, margins, R, problem.at(old)))
        return (fitted.alpha, fitted.margins, fitted.R, C), fitted

    def chain(values: Float[Array, " length"]) -> Fit:
        return scan(link, (point, margins, jnp.ones((), problem.dtype), values[0]), values)[1]

    chained = jax.vmap(chain)(Cs[order][places])
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:k], chained)
    inverse = jnp.argsort(order)
    return jax.tree.map(lambda leaf: leaf[inverse], flat)


def chains_compiled(
    problem: Parametric, solver: Solver, Cs: np.ndarray, key: Array, lanes: int, stop: Interruption
) -> Fit:
    """Solve all values of a concrete problem by one call of `chains_traced`; nothing once `stop` is seen."""
    if stop.seen:
        return in_order({}, Cs, problem)
    return jax.block_until_ready(_chains(problem, solver, jnp.asarray(Cs, problem.dtype), key, lanes=lanes))


_chains = Program(chains_traced, static=("lanes",))


class CarriedPoint(NamedTuple):
    """A solution of a hinge problem with its products, and what it proves of other values of C."""

    # w's coefficients and the dual point, as they are returned, `(2, n)`; w is scaled up where no sample has a loss
    points: Float[Array, "2 n"]
    products: Float[Array, "2 n"]  # Q times both, float64
    C: Float[Array, ""]  # C of its problem
    # bound on the sizes of all terms that were added up in `products`: the rounding of `products` is proportional to it
    drift: Float[Array, ""]
    valid_up_to: Float[Array, ""]  # largest C at which this point still meets `tol`
    scaled_gap: Float[Array, ""]  # gap / tol of w scaled up until no sample has a loss; independent of C


def lengths(problem: BoxProblem) -> Float[Array, " n"]:
    """Return `|phi_i|`."""
    return jnp.sqrt(jnp.maximum(problem.diagonal, 0))


@Program
def products_of(problem: Restrictable, a: Array) -> Float[Array, " n"]:
    """Compute `Qa` from scratch, in float64."""
    return in_double(lambda problem, a: widened(problem).matvec(a.astype(double(a.dtype))))(problem, a)


def first_point(problem: BoxProblem, solver: Solver) -> CarriedPoint:
    """Return the point at which a chain begins: `at_bounds`, or with an equality 0."""
    if problem.c is None:
        return at_bounds(problem, solver)
    none, zero = np.zeros((2, problem.n)), np.zeros((), problem.dtype)
    parts: Any = none.astype(zero.dtype), none, np.asarray(problem.C), zero, zero, zero + np.inf
    return on_device(CarriedPoint(*parts))


@Program
def at_bounds(problem: BoxProblem, solver: Solver) -> CarriedPoint:
    """Return the point with all samples at their bounds, or 0.

    For bounds `C w` with C below `1 / max_i (Q w)_i` it is the solution. Above, 0 is taken.
    """

    @in_double
    def start(problem: BoxProblem) -> tuple[Array, Array]:
        wide = widened(problem)
        upper = rounded(wide.upper, problem.dtype)  # products of what is returned: their error grows with C
        s = wide.matvec(upper)
        inside = ((s <= wide.targets) | ~wide.present).all()
        return jnp.where(inside, upper, 0).astype(problem.dtype), jnp.where(inside, s, 0)

    return point_of.function(problem, solver, *start(problem))


@Program
def point_of(problem: BoxProblem, solver: Solver, a: Array, products: Array) -> CarriedPoint:
    """Return the point of a solution and its products."""
    both = in_double(lambda products: jnp.stack([products, products]))(products)
    valid = in_double(validity)(problem, solver, a, products)
    return CarriedPoint(jnp.stack([a, a]), both, problem.C, matmul(a, lengths(problem)), *valid)


def point_at(solver: Solver, problem: Restrictable, fit: Fit) -> CarriedPoint:
    """Return the point of a certified fit; its products are computed from scratch."""
    return point_of(cast(BoxProblem, problem), solver, fit.alpha, products_of(problem, fit.alpha))


def validity(problem: BoxProblem, solver: Solver, a: Array, p: Array) -> tuple[Array, Array]:
    """Return the largest C at which a solution is still certified, and its gap / tol once no sample has a loss.

    At C' > C the gap is `gap + (C' - C) loss`: `valid_up_to` is where that reaches `tol * dual`.
    """
    wide = widened(problem)
    a = a.astype(wide.dtype)
    margins = wide.margins(a, p)
    loss = jnp.where(wide.present, jnp.maximum(wide.targets - margins, 0), 0)
    dual = a @ (wide.targets - p / 2)
    gap = (wide.upper - a) @ loss + a @ jnp.maximum(margins - wide.targets, 0)
    cost = matmul(wide.upper, loss) / wide.C
    room = MEASURED.credible_share * solver.tol * dual - gap
    valid_up_to = jnp.where(room > 0, wide.C + room / jnp.maximum(cost, TINY), 0)
    scale = wide.scale_without_loss(margins)
    scaled_gap = (scale**2 * (a @ p) / 2 - dual) / dual / solver.tol
    return valid_up_to.astype(problem.dtype), scaled_gap.astype(problem.dtype)


@Program
def scaled_up(problem: BoxProblem, point: CarriedPoint) -> CarriedPoint:
    """Return a point whose w is scaled up until no sample has a loss: rounded, and with its products."""

    @in_double
    def lengthen(problem: BoxProblem, point: CarriedPoint) -> tuple[Array, Array]:
        wide, a, p = widened(problem), point.points[1].astype(point.products.dtype), point.products[1]
        spare = 64 * jnp.finfo(problem.dtype).eps  # products of the result are rounded again
        w = rounded(wide.scale_without_loss(wide.margins(a, p)) * (1 + spare) * a, problem.dtype)
        return jnp.stack([w, a]).astype(problem.dtype), jnp.stack([wide.matvec(w), p])

    points, products = lengthen(problem, point)
    return point._replace(points=points, products=products, valid_up_to=jnp.asarray(jnp.inf, problem.dtype))


@Program
def as_reference(problem: BoxProblem, point: CarriedPoint) -> Fit:
    """Convert the point to the fit that screening rules expect: with its own w, also if it was scaled up."""
    return reference_fit(problem, point.points[1], narrow(point.products[1], problem.dtype))


@in_double
def assessed(problem: Restrictable, solver: Solver, point: Array, s: Array) -> tuple[Answer, Array]:
    """Certify a point by its products, float64; return also the stop rule's excess."""
    wide = widened(problem)
    point = point.astype(wide.dtype)
    answer = wide.certified(point, s, problem.dtype)
    excess = stop_excess(wide, solver, point, s, answer.certificate)
    return in_dtype(answer, problem.dtype), excess.astype(problem.dtype)


@Program
def certified(problem: BoxProblem, solver: Solver, point: Array, products: Array, work: Int[Array, " 4"]) -> Fit:
    """Certify a point by its products; return its fit, RUNNING if its gap is above the solver's `tol`.

    The problem's matrix is known to be positive semidefinite: else no chain has a point. Points are w and the dual
    point, `(2, n)`. `work` is of `counters_of`: an array for each counter took a third of a path of n = 569.
    """
    answer, _ = assessed(problem, solver, point, products)
    return concluded(answer, solver.tol, counters_of(work), definite=True, otherwise=Status.RUNNING)


def counters_of(work: Any) -> Counters:
    """Return counters of steps, kernel evaluations in two limbs, and the bit of the solver, `(4,)`."""
    return Counters.zero()._replace(steps=work[0], evaluations=work[1:3], solvers=work[3])


def narrow(values: Array, dtype: Any) -> Array:
    """Round float64 numbers of a program whose caller may have x64 off."""
    return in_double(lambda values: values.astype(dtype))(values)
