"""Warm chains side by side on the host, as lanes of one compiled computation."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsvm.loop.bursts import begin_program, polish_in_pieces
from jaxsvm.loop.driver import warn_unless_converged
from jaxsvm.loop.interruption import Interruption, watching
from jaxsvm.loop.round import Certifying, advance, certificate_due, certify, finish, polish_due
from jaxsvm.path.chains import Report, in_order
from jaxsvm.path.options import Options
from jaxsvm.problems.contract import Parametric
from jaxsvm.results.fit import Fit
from jaxsvm.results.status import Status
from jaxsvm.runtime.programs import Program
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import Start
from jaxsvm.solvers.validation import require_usable


def chains_in_lanes(
    problem: Parametric,
    solver: Solver,
    Cs: np.ndarray,
    options: Options,
    report: Report = None,
    stop: Interruption | None = None,
) -> Fit:
    """Solve as many values at a time as there are lanes, each from the nearest solved value.

    A lane that ends loads its next value (of its own share of the grid first, then of another's). If none is left,
    lanes that still run move together into the next power of two, so that nothing is computed for the others.

    Args:
        problem: The problem, at any value; arrays common to all values (the Gram operator) are not copied.
        solver: A solver's configuration.
        Cs: The values, `(k,)`, in any order.
        options: Options of the path: `key`, and `lanes` >= 1.
        report: Called with the place and the fit of each value.
        stop: The caller's interruption flag; None: the active one.

    Returns:
        The fits, an axis of k first, in the order of `Cs`; after Ctrl-C as `jaxsvm.path.chains.chain_on_host`.
    """
    require_usable(solver)
    with watching(stop) as stop:
        return in_order({} if stop.seen else _Lanes(problem, solver, Cs, options, report).run(stop), Cs, problem)


class _Lanes:
    """The values that run, a lane each, and those that wait.

    Lane i solves `places[i]`, with the arrays `own` beside those that all problems `shared`; `shares[i]` wait for it.
    """

    def __init__(self, problem: Parametric, solver: Solver, Cs: np.ndarray, options: Options, report: Report) -> None:
        self.problem, self.solver, self.Cs, self.key, self.report = problem, solver, Cs, options.key, report
        self.fits: dict[int, Fit] = {}
        lanes = min(options.lanes or 1, len(Cs))
        self.shares = [part.tolist() for part in np.array_split(np.argsort(Cs, kind="stable"), lanes)]
        self.places = [share.pop(0) for share in self.shares]
        self.running = set(range(lanes))
        problems = [problem.at(Cs[place]) for place in self.places]
        self.shape = _Shape.of(problems[0], problem.at(Cs[self.places[0]]))
        self.own = _stack([self.shape.own(each) for each in problems])
        self.shared = self.shape.shared(problems[0])
        self.progress = _stack([begin_program(each, solver, self.key, None) for each in problems])

    def run(self, stop: Interruption) -> dict[int, Fit]:
        """Return the fits by place; after Ctrl-C those of running values at their last certified points."""
        while self.running and not stop.seen:
            try:
                self._advance(stop)
                codes = np.asarray(self.progress.status)
                for lane in [lane for lane in sorted(self.running) if codes[lane] != Status.RUNNING]:
                    self._settle(lane, stop)
                    self._load_next(lane)
                self._narrow()
            except KeyboardInterrupt:  # raised by a callback, or by a handler of the user's own
                stop.note()
        codes = np.asarray(self.progress.status)
        codes = np.where(codes == Status.RUNNING, np.int32(Status.INTERRUPTED), codes)
        if self.running:
            self.progress = self.progress._replace(status=jnp.asarray(codes, jnp.int32))
        for lane in sorted(self.running):
            if self.places[lane] not in self.fits:
                self._settle(lane, stop)
        return self.fits

    def _advance(self, stop: Interruption) -> None:
        """Take a few chunks of steps in each lane, then polish and certify the lanes for which that is due."""
        self.progress, due, polishes = _advance(self.shared, self.own, self.solver, self.progress, self.shape)
        for lane in np.flatnonzero(np.asarray(due) & np.asarray(polishes)).tolist():
            problem = self.problem.at(self.Cs[self.places[lane]])
            one = _lane(self.progress, np.int32(lane))
            polished = polish_in_pieces(problem, self.solver, one, lambda: stop.seen)
            self.progress = self.progress if polished is None else _load(self.progress, polished, np.int32(lane))
        if np.asarray(due).any() and not stop.seen:
            self.progress = _certify(self.shared, self.own, self.solver, self.progress, self.shape)

    def _settle(self, lane: int, stop: Interruption) -> None:
        """Store and report the fit of a lane."""
        self.fits[self.places[lane]] = fitted = finish(self.solver, _lane(self.progress, np.int32(lane)))
        warn_unless_converged(fitted, self.solver)
        if self.report is not None and not stop.seen:
            self.report(self.places[lane], fitted)

    def _load_next(self, lane: int) -> None:
        """Load the next value into a lane, started from the nearest solved one; stop the lane if none is left."""
        share = self.shares[lane] or max(self.shares, key=len)
        if not share:
            self.running.remove(lane)
            return
        place, Cs = share.pop(0 if share is self.shares[lane] else -1), self.Cs
        nearest = min(self.fits, key=lambda other: abs(np.log(Cs[place] / Cs[other])))
        problem, start = self.problem.at(Cs[place]), Start.of(self.fits[nearest], self.problem.at(Cs[nearest]))
        fresh = begin_program(problem, self.solver, self.key, start)
        self.own, self.progress = _load(self.own, self.shape.own(problem), lane), _load(self.progress, fresh, lane)
        self.places[lane] = place  # last: after an interruption no value has another one's progress

    def _narrow(self) -> None:
        """Move the running lanes together if half of the lanes, in a power of two, suffice."""
        width = 1 << max(len(self.running) - 1, 0).bit_length()
        if not self.running or width > len(self.places) // 2:
            return
        kept = (sorted(self.running) + [lane for lane in range(len(self.places)) if lane not in self.running])[:width]
        self.places = [self.places[lane] for lane in kept]
        self.own, self.progress = _gather(self.own, np.asarray(kept)), _gather(self.progress, np.asarray(kept))
        self.shares, self.running = [[] for _ in kept], set(range(len(self.running)))


class _Shape(tuple):
    """The tree of a problem, and for each leaf whether all problems of a path share the array: hashable, so static."""

    @classmethod
    def of(cls, problem: Parametric, other: Parametric) -> "_Shape":
        """Compare two problems of one path."""
        leaves, tree = jax.tree.flatten(problem)
        return cls((tree, tuple(a is b for a, b in zip(leaves, jax.tree.leaves(other), strict=True))))

    def shared(self, problem: Parametric) -> list[Array]:
        """Return the arrays that all problems share."""
        return [leaf for leaf, common in zip(jax.tree.leaves(problem), self[1], strict=True) if common]

    def own(self, problem: Parametric) -> list[Array]:
        """Return the arrays of this problem alone."""
        return [leaf for leaf, common in zip(jax.tree.leaves(problem), self[1], strict=True) if not common]

    def join(self, shared: list[Array], own: list[Array]) -> Any:
        """Return the problem of these arrays."""
        pools = {True: iter(shared), False: iter(own)}
        return jax.tree.unflatten(self[0], [next(pools[common]) for common in self[1]])


@partial(Program, static_argnames="shape")
def _advance(shared: Any, own: Any, solver: Solver, progress: Any, shape: _Shape) -> tuple[Any, Array, Array]:
    """Take 4 chunks of steps in each lane; return also which lanes need a certificate, and which have a polish due.

    A lane that ends early waits for the others for these chunks.
    """

    def one(own: Any, progress: Any) -> tuple[Any, Array, Array]:
        progress = advance(shape.join(shared, own), solver, progress, 4)
        due = (progress.status == Status.RUNNING) & certificate_due(solver, progress)
        return progress, due, polish_due(shape.join(shared, own), solver, progress)

    return jax.vmap(one)(own, progress)


@partial(Program, static_argnames="shape")
def _certify(shared: Any, own: Any, solver: Solver, progress: Any, shape: _Shape) -> Any:
    """Certify the lanes that need it; the products of all lanes are one."""

    def one(own: Any, progress: Any) -> Any:
        due = (progress.status == Status.RUNNING) & certificate_due(solver, progress)
        certified = certify(shape.join(shared, own), solver, progress, Certifying(may_polish=False))
        return jax.tree.map(lambda new, old: jnp.where(due, new, old), certified, progress)

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
