"""Warm chains: each value of C from the solution of another.

A chain knows the problem that is solved and the one that comes next: a `Start` says what both are, and a `Reduction`
what of the next one can be left out.

Chains go one value after another on the host; as lanes on the host, which loads them and leaves out those that have
nothing left to do; as fixed lanes under tracing, where nobody can look.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.loop.bursts import begin_program, polish_in_pieces
from jaxsvm.loop.driver import QUIET, drive, fit_compiled, warn_unless_converged
from jaxsvm.loop.interruption import Interruption, watching
from jaxsvm.loop.round import Certifying, advance, certificate_due, certify, finish, polish_due
from jaxsvm.numerics.precision import in_double, widened
from jaxsvm.path.placeholders import nothing, on_host_stacked, unreached
from jaxsvm.path.reduction import Kept, Reduction, samples_of
from jaxsvm.problems.contract import Parametric, Restrictable
from jaxsvm.results.fit import Answer, Fit, Status
from jaxsvm.runtime.loops import scan
from jaxsvm.runtime.programs import Program
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import Start
from jaxsvm.solvers.stopping import stop_excess
from jaxsvm.solvers.validation import require_usable

CHUNKS = 4
"""Chunks of steps between two looks at the lanes: a lane that is done waits for the others as long as that."""

Found = Callable[[int, Fit], Any] | None


def chain_on_host(
    problem: Parametric,
    Cs: np.ndarray,
    link: Callable[[Any], Fit],
    found: Found = None,
    stop: Interruption | None = None,
) -> Fit:
    """One warm chain in increasing order of C.

    Args:
        problem: The problem, at any value.
        Cs: The values, `(k,)`, in any order.
        link: What makes a problem's fit of the one before: a `Neighbour`, or `jaxsvm.path.screened.ScreenedChain`.
        found: Called with place and fit of each value.
        stop: What ends it, and whoever called for it; None: Ctrl-C alone.

    Returns:
        The fits, a leading axis of k, in the order of `Cs`. After Ctrl-C the value that was running keeps its last
        certified point, and those left are INTERRUPTED, with no certificate, at the point of the nearest one.
    """
    fits: dict[int, Fit] = {}
    with watching(stop) as stop:
        for place in np.argsort(Cs, kind="stable").tolist():
            if stop.seen:
                break
            try:
                fits[place] = fitted = link(problem.at(Cs[place]))
                if found is not None:
                    found(place, fitted)
            except KeyboardInterrupt:  # of a callback, or a handler of the user's own
                stop.note()
        return _in_order(fits, Cs, problem)


class Neighbour:
    """Fits of increasing C, each from the one before; what a reduction keeps is solved first.

    Its solution with the others at their values is certified on the whole problem: that answers it, or is a start.
    """

    def __init__(self, solver: Solver, key: Array, reduction: Reduction | None, stop: Interruption | None) -> None:
        self.solver, self.key, self.stop = solver, key, stop
        self.reduction = reduction if solver.takes_start else None
        self.before: tuple[Restrictable, Fit] | None = None

    def __call__(self, here: Restrictable) -> Fit:
        """Return the fit of the next problem; its counters are those of all that was solved for it."""
        warm, reduced = None, None
        if self.before is not None:
            old, fit = self.before
            warm = Start.of(fit, old)
            if self.reduction is not None:
                reduced = _reduced(self.reduction, old, fit, here, self.solver, self.key, self.stop)
        if reduced is not None and int(reduced.status) == Status.CONVERGED:
            fitted = reduced
        else:
            warm = warm if reduced is None else Start.of(reduced, here)
            fitted = drive(here, self.solver, self.key, warm, stop=self.stop)
            if reduced is not None:
                fitted = dataclasses.replace(fitted, counters=reduced.counters.plus(fitted.counters))
        self.before = (here, fitted)
        return fitted


def _reduced(
    reduction: Reduction,
    old: Restrictable,
    fit: Fit,
    new: Restrictable,
    solver: Solver,
    key: Array,
    stop: Interruption | None,
) -> Fit | None:
    """The solution of what a reduction keeps as a fit of the whole problem; None where that is nearly everything.

    Its status is CONVERGED where it is certified, else RUNNING: it is a point to go on from. On a matrix that no kernel
    vouches for a certificate alone proves nothing, and it is always that.
    """
    kept = Kept(*reduction(old, fit, new))
    samples = samples_of(kept, new.n, new.present)
    if samples is None or int(fit.status) != Status.CONVERGED:
        return None
    part = new.restrict(samples, fixed=kept.fixed)
    # Certificates in twice the precision here too: in the data's own, float32 ends at gaps of 1e-5 and never sees it.
    inside = drive(part, solver, key, np.asarray(fit.alpha)[samples], stop=stop, options=QUIET)
    answer, excess = _extended(new, solver, kept.fixed, samples, inside)
    proven = float(excess) <= 1 and float(answer.certificate.relative_gap) <= float(solver.tol)
    certified = proven and new.gram.definite
    return answer.fit(np.int32(Status.CONVERGED if certified else Status.RUNNING), inside.counters)


@Program
def _extended(problem: Restrictable, solver: Solver, fixed: Array, samples: Array, inside: Fit) -> tuple[Answer, Array]:
    """The point of the whole problem that a restricted one's is, certified, and the stop rule's excess."""
    values = inside.alpha if problem.bounded else problem.y[samples] * inside.dual_coef
    point = fixed.at[samples].set(values)

    @in_double
    def certify(problem: Restrictable, solver: Solver, point: Array) -> tuple[Answer, Array]:
        wide = widened(problem)
        a = point.astype(wide.dtype)
        s = wide.matvec(a)
        answer = wide.certified(a, s, problem.dtype)
        excess = stop_excess(wide, solver, a, s, answer.certificate)
        return jax.tree.map(lambda leaf: leaf.astype(problem.dtype), (answer, excess))

    return certify(problem, solver, point)


def chains_in_lanes(
    problem: Parametric,
    solver: Solver,
    Cs: np.ndarray,
    key: Array,
    lanes: int,
    found: Found = None,
    stop: Interruption | None = None,
) -> Fit:
    """As many values at a time as there are lanes, each lane from the nearest value that is solved.

    A lane that ends loads its next value (its own share of the grid first, then another's); when none is left, lanes
    that still run move together into the next power of two, so that nothing is computed for those that ended.

    Args:
        problem: As for `chain_on_host`; what all values have in common (the Gram operator) is not copied.
        solver: A solver's configuration.
        Cs: As for `chain_on_host`.
        key: A random key.
        lanes: How many, >= 1.
        found: As for `chain_on_host`.
        stop: As for `chain_on_host`.

    Returns:
        As `chain_on_host`.
    """
    require_usable(solver)
    fits: dict[int, Fit] = {}
    with watching(stop) as stop:
        if not stop.seen:
            _run_lanes(problem, solver, Cs, key, lanes, found, stop, fits)
        return _in_order(fits, Cs, problem)


def _run_lanes(
    problem: Parametric,
    solver: Solver,
    Cs: np.ndarray,
    key: Array,
    lanes: int,
    found: Found,
    stop: Interruption,
    fits: Any,
) -> None:
    """Fill `fits`; after Ctrl-C with what was begun, at its last certified point."""
    lanes = min(lanes, len(Cs))
    shares = [part.tolist() for part in np.array_split(np.argsort(Cs, kind="stable"), lanes)]
    places = [share.pop(0) for share in shares]
    problems = [problem.at(Cs[place]) for place in places]
    shape = _Shape.of(problems[0], problem.at(Cs[places[0]]))
    own = _stack([shape.own(here) for here in problems])
    shared = shape.shared(problems[0])
    progress = _stack([begin_program(here, solver, key, None) for here in problems])

    def settle(lane: int) -> None:
        fits[places[lane]] = fitted = finish(solver, _lane(progress, np.int32(lane)))
        warn_unless_converged(fitted, solver)
        if found is not None and not stop.seen:
            found(places[lane], fitted)

    def start(place: int) -> tuple[Any, Any]:
        nearest = min(fits, key=lambda other: abs(np.log(Cs[place] / Cs[other])))
        here = problem.at(Cs[place])
        return here, begin_program(here, solver, key, Start.of(fits[nearest], problem.at(Cs[nearest])))

    running = set(range(lanes))
    while running and not stop.seen:
        try:
            progress, wanted, earned = _advance(shared, own, solver, progress, shape)
            polishes = np.asarray(wanted) & np.asarray(earned)
            for lane in np.flatnonzero(polishes).tolist():
                one = _lane(progress, np.int32(lane))
                one = polish_in_pieces(problem.at(Cs[places[lane]]), solver, one, lambda: stop.seen)
                progress = progress if one is None else _load(progress, one, np.int32(lane))
            if np.asarray(wanted).any() and not stop.seen:
                progress = _certify(shared, own, solver, progress, shape)
            codes = np.asarray(progress.status)
            for lane in [lane for lane in sorted(running) if codes[lane] != Status.RUNNING]:
                settle(lane)
                share = shares[lane] or max(shares, key=len)
                if not share:
                    running.remove(lane)
                    continue
                place = share.pop(0 if share is shares[lane] else -1)
                here, fresh = start(place)
                own, progress = _load(own, shape.own(here), lane), _load(progress, fresh, lane)
                places[lane] = place  # last: an interruption never meets a value with another one's progress
            width = 1 << max(len(running) - 1, 0).bit_length()
            if running and width <= len(places) // 2:
                kept = (sorted(running) + [lane for lane in range(len(places)) if lane not in running])[:width]
                places = [places[lane] for lane in kept]
                own, progress = _gather(own, np.asarray(kept)), _gather(progress, np.asarray(kept))
                shares, running = [[] for _ in kept], set(range(len(running)))
        except KeyboardInterrupt:  # of a callback, or a handler of the user's own
            stop.note()
    if running:
        codes = np.asarray(progress.status)
        codes = np.where(codes == Status.RUNNING, np.int32(Status.INTERRUPTED), codes)
        progress = progress._replace(status=jnp.asarray(codes, jnp.int32))
        for lane in sorted(running):
            if places[lane] not in fits:
                settle(lane)


def chains_traced(problem: Parametric, solver: Solver, Cs: Float[Array, " k"], key: Array, lanes: int) -> Fit:
    """Fixed lanes of one computation; each is a chain through neighbouring values in increasing order.

    Args:
        problem: As for `chain_on_host`.
        solver: A solver's configuration.
        Cs: As for `chain_on_host`.
        key: A random key.
        lanes: How many, >= 1.

    Returns:
        As `chain_on_host`.
    """
    k = Cs.shape[0]
    lanes = min(lanes, k)
    length = -(-k // lanes)
    order = jnp.argsort(Cs)
    # Every chain is `length` long: the last one repeats its last value, which costs one certification.
    places = jnp.minimum(jnp.arange(lanes * length), k - 1).reshape(lanes, length)

    def chain(values: Float[Array, " length"]) -> Fit:
        first = fit_compiled(problem.at(values[0]), solver, key)

        def link(before: Any, C: Any) -> Any:  # the problem itself would carry the kernel matrix along
            point, margins, R, old = before
            fitted = fit_compiled(problem.at(C), solver, key, Start(point, margins, R, problem.at(old)))
            return (fitted.alpha, fitted.margins, fitted.R, C), fitted

        _, rest = scan(link, (first.alpha, first.margins, first.R, values[0]), values[1:])
        return jax.tree.map(lambda head, tail: jnp.concatenate([head[None], tail]), first, rest)

    chained = jax.vmap(chain)(Cs[order][places])
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:k], chained)
    inverse = jnp.argsort(order)
    return jax.tree.map(lambda leaf: leaf[inverse], flat)


class _Shape(tuple):
    """How a problem falls apart into what all lanes share and what each has of its own: hashable, so static.

    The tree of a problem, and for each leaf whether two problems of one path hold the very same array.
    """

    @classmethod
    def of(cls, problem: Parametric, other: Parametric) -> "_Shape":
        leaves, tree = jax.tree.flatten(problem)
        return cls((tree, tuple(a is b for a, b in zip(leaves, jax.tree.leaves(other), strict=True))))

    def shared(self, problem: Parametric) -> list[Array]:
        return [leaf for leaf, common in zip(jax.tree.leaves(problem), self[1], strict=True) if common]

    def own(self, problem: Parametric) -> list[Array]:
        return [leaf for leaf, common in zip(jax.tree.leaves(problem), self[1], strict=True) if not common]

    def join(self, shared: list[Array], own: list[Array]) -> Any:
        pools = {True: iter(shared), False: iter(own)}
        return jax.tree.unflatten(self[0], [next(pools[common]) for common in self[1]])


@partial(Program, static_argnames="shape")
def _advance(shared: Any, own: Any, solver: Solver, progress: Any, shape: _Shape) -> tuple[Any, Array, Array]:
    """Some chunks in each lane, and which lanes wait for a certification, or have earned a polish."""

    def one(own: Any, progress: Any) -> tuple[Any, Array, Array]:
        progress = advance(shape.join(shared, own), solver, progress, CHUNKS)
        wanted = (progress.status == Status.RUNNING) & certificate_due(solver, progress)
        return progress, wanted, polish_due(shape.join(shared, own), solver, progress)

    return jax.vmap(one)(own, progress)


@partial(Program, static_argnames="shape")
def _certify(shared: Any, own: Any, solver: Solver, progress: Any, shape: _Shape) -> Any:
    """Certificates for the lanes that wait for one; the products of all lanes are one."""

    def one(own: Any, progress: Any) -> Any:
        wanted = (progress.status == Status.RUNNING) & certificate_due(solver, progress)
        certified = certify(shape.join(shared, own), solver, progress, Certifying(may_polish=False))
        return jax.tree.map(lambda new, old: jnp.where(wanted, new, old), certified, progress)

    return jax.vmap(one)(own, progress)


@Program
def _load(lanes: Any, item: Any, lane: Any) -> Any:
    return jax.tree.map(lambda leaf, new: leaf.at[lane].set(new), lanes, item)


@Program
def _gather(lanes: Any, kept: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[kept], lanes)


@Program
def _lane(lanes: Any, lane: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[lane], lanes)


@Program
def _stack(items: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *items)


def _in_order(fits: dict[int, Fit], Cs: np.ndarray, problem: Parametric) -> Fit:
    """Fits of all values in the order of `Cs`: those that were not reached stand at the nearest that was.

    Stacked by NumPy: nothing is compiled for it.
    """
    logs, known = np.log(np.asarray(Cs, float)), dict(fits)
    for place in range(len(Cs)):
        if place not in fits:
            nearest = min(fits, key=lambda other: abs(logs[place] - logs[other]), default=None)
            known[place] = nothing(problem) if nearest is None else unreached(fits[nearest])
    return on_host_stacked([known[place] for place in range(len(Cs))])
