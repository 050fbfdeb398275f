"""A regularisation path: one problem at many values of C, each result certified.

One Gram operator serves all values. Squared-hinge problems are solved coarse to fine by default
(`jaxsvm.path.coarse_to_fine`). Others, those with a solver of the user's choice, and all under tracing are solved in
warm chains: small hinges in one program (`jaxsvm.loop.small`), else a value at a time (`jaxsvm.path.chains`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError, is_concrete, require, require_finite
from jaxsvm.gram.build import at_width, at_widths, landmarks_among, require_width
from jaxsvm.gram.spread import of_whole
from jaxsvm.loop.choice import exact_solver
from jaxsvm.loop.driver import fit as solve
from jaxsvm.loop.interruption import Interruption, answering, watching
from jaxsvm.loop.round import ready_together
from jaxsvm.loop.small import small_chains, solve_many
from jaxsvm.path.anchors import CoarseToFine, Grid, combination
from jaxsvm.path.carried_chain import LARGEST_SPREAD, CarriedChain
from jaxsvm.path.chains import Neighbour, chain_on_host, chains_compiled, chains_traced, stacked, warn_of_unfinished
from jaxsvm.path.coarse_to_fine import solve_grids
from jaxsvm.problems.certificates.rounded_values import warn_of_rounded_values
from jaxsvm.problems.contract import BoxForm, Parametric, require_problem
from jaxsvm.problems.padding import trimmed
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Certificate, Fit, Status, StatusCode, outcomes
from jaxsvm.runtime.arrays import (
    given_key,
    has_values,
    in_a_line,
    on_device,
    owned,
    require_function,
    require_seconds,
    require_whole,
    transfers,
)
from jaxsvm.runtime.loops import host_drives, in_automatic_axes
from jaxsvm.screening.reference import require_screenable, screenable
from jaxsvm.screening.rules import Rule, ball_test_1
from jaxsvm.solvers.box.sequential_minimal_optimization import SMO
from jaxsvm.solvers.contract import Solver, require_usable


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Path:
    """Fits at k values of C, in the order of the request. A pytree.

    `path[i]` is the fit at value i, or, if several problems were solved, the path of problem i.

    Attributes:
        Cs: The values, `(k,)`.
        fits: A `Fit` whose every field has an axis of k first; several problems, or widths of a kernel, have an axis of
            their own before it.
        gammas: Those widths, `(g,)`; None without.
    """

    Cs: Float[Array, " k"]
    fits: Fit
    gammas: Float[Array, " g"] | None = None

    @property
    def alphas(self) -> Float[Array, "*problems k n"]:
        """Return the dual variables, one row for each C, `(k, n)`."""
        return self.fits.alpha

    @property
    def certificate(self) -> Certificate:
        """Return the certificates, `(k,)` in each field."""
        return self.fits.certificate

    @property
    def status(self) -> StatusCode:
        """Return how each value ended, `(k,)`; prints as counts. `.name`: names; `.code`: integers of `Status`."""
        return self.fits.status

    @property
    def steps(self) -> Array:
        """Return the number of steps taken, `(k,)`."""
        return self.fits.steps

    def at(self, C: ArrayLike, problem: Parametric, *, tol: ArrayLike = 1e-4) -> Fit:
        """Return the certified fit at any value of C, whether or not it is one of the path's.

        It starts between the two solved values around C, mostly within `tol`: it then costs one product. Beyond the
        ends it starts from the nearest one. Works inside `jit`, `vmap` and `grad`.

        Args:
            C: The value, positive, `()`.
            problem: The problem of the path.
            tol: The relative duality gap to certify.

        Raises:
            InputError: On a problem or value that cannot be used.
        """
        require_problem(problem)
        n, k = problem.n, self.fits.alpha.shape[0]
        if self.fits.alpha.ndim != 2 or n != self.fits.alpha.shape[-1] or problem.parameter is None:
            raise InputError(f"problem is a {type(problem).__name__} of {n} samples: that of the path is needed.")
        value: Any = C
        if np.ndim(value) or (is_concrete(value) and not 0 < float(value) < np.inf):
            raise InputError(f"C is {C}: a positive number is needed.")
        here: Any = problem.at(value)
        Cs, fits, order = self.Cs, self.fits, jnp.argsort(self.Cs)
        above = jnp.clip(jnp.searchsorted(Cs[order], value), 1, max(k - 1, 1))
        low, high = order[above - 1], order[jnp.minimum(above, k - 1)]
        width = Cs[high] - Cs[low]
        w = jnp.clip(jnp.where(width > 0, (value - Cs[low]) / jnp.where(width > 0, width, 1), 0), 0, 1)
        if isinstance(here, SquaredHingeProblem):
            ends = [(problem.y * fits.dual_coef[end], fits.margins[end]) for end in (low, high)]
            start, _ = combination.function(here.ridge, *ends, 1.0)
        else:  # dual variables of a hinge are linear in C while no sample changes sides
            start = (1 - w) * fits.alpha[low] + w * fits.alpha[high]
        return solve(here, init=start, tol=tol)  # weights are certified before any step is taken

    def __len__(self) -> int:
        return self.fits.alpha.shape[0]

    def __getitem__(self, i: int) -> Fit | Path:
        several = self.fits.alpha.ndim > 2
        if not -len(self) <= i < len(self):
            parts = "values of C" if not several else "problems" if self.gammas is None else "widths"
            raise IndexError(f"the path has {len(self)} {parts}: there is no number {i}")
        fits = jax.tree.map(lambda leaf: leaf[i], self.fits)
        return Path(Cs=self.Cs, fits=fits) if several else fits

    def __iter__(self) -> Iterator[Fit | Path]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        if not has_values(self):
            return in_a_line(self)
        Cs, problems = np.asarray(self.Cs), np.shape(self.fits.alpha)[:-2]
        kind = "problems" if self.gammas is None else "widths"
        each = f" for each of {problems[0]} {kind}" if problems else ""
        return f"Path({len(Cs)} values of C from {Cs.min():.4g} to {Cs.max():.4g}{each}: {outcomes(self.fits)})"

    def _repr_html_(self) -> str | None:
        """Return a table for notebooks, one row per value of C; None of several problems and of what has no values."""
        if not has_values(self) or np.ndim(self.fits.alpha) != 2:
            return None
        gaps, support = np.asarray(self.certificate.relative_gap), (np.asarray(self.alphas) > 0).sum(axis=1)
        columns = (np.asarray(self.Cs).tolist(), gaps.tolist(), self.status.name.tolist(), support.tolist())
        rows = [f"<tr><td>{C:.4g}<td>{gap:.1e}<td>{status}<td>{n}" for C, gap, status, n in zip(*columns, strict=True)]
        if len(rows) > 40:
            rows[20:-20] = [f"<tr><td>... {len(rows) - 40} more"]
        head = "<tr><th>C<th>relative gap<th>status<th>samples in the support"
        return f"<table>{head}{''.join(rows)}</table>"


@dataclasses.dataclass(frozen=True)
class PathOptions:
    """How to solve a path. `jaxsvm.solve_path` describes each option."""

    key: Array
    solver: Solver | None = None
    tol: Any = 1e-4
    screen: Rule | None = None
    lanes: int | None = None
    max_seconds: float | None = None
    callback: Callable[[int, Fit], object] | None = None

    def require(self, problems: Sequence[Any], Cs: Any) -> None:
        """Check the options, problems and values of a path."""
        require(len(problems) > 0, "problem is an empty list: at least one problem is needed.")
        for problem in problems:
            require_problem(problem)
            if problem.parameter is None:
                raise InputError(f"problem is a {type(problem).__name__}: it has no C that a path could go along.")
        if len({problem.n for problem in problems}) > 1:
            raise InputError("the problems have different numbers of samples: solve them one after another.")
        checked_values(Cs, problems[0].kind)
        require_usable(CoarseToFine(tol=self.tol) if self.solver is None else self.solver)
        require_seconds(self.max_seconds)
        if self.lanes is not None:
            require_whole("lanes", self.lanes, 1)
            need = "lanes are one compiled call, which cannot obey it; leave `lanes` None."
            for name in ("max_seconds", "callback", "screen"):
                require(getattr(self, name) is None, f"{name} is set and lanes is {self.lanes}: {need}")
        if self.screen is not None:
            arguments = ("problem", "reference fit", "its C")
            require_function("screen", self.screen, arguments, "a rule of `jaxsvm.screening` or None")
            for problem in problems:
                require_screenable(problem)


@transfers
def solve_path(
    problem: Parametric | Sequence[Parametric],
    Cs: ArrayLike,
    *,
    gammas: ArrayLike | None = None,
    solver: Solver | None = None,
    tol: ArrayLike = 1e-4,
    screen: Rule | None = None,
    lanes: int | None = None,
    key: Array | None = None,
    max_seconds: float | None = None,
    callback: Callable[[int, Fit], Any] | None = None,
    interrupt: str = "return",
) -> Path:
    """Solve a problem, or several, at many values of C.

    Examples:
        >>> path = jaxsvm.solve_path(problem, jaxsvm.C_grid(problem, 16))
        >>> path[3], path.at(2.5, problem)  # the fit at a value of the path, and at one between

    Args:
        problem: From `svm_problem`, `hinge_problem`, `box_problem`, or `slack_problem` with values of nu in place of C;
            its own value is not used. Or a list of problems of n samples each: those on one Gram operator (one class
            against the rest, `problem.weighted(...)` for folds) share its products.
        Cs: Values of C, `(k,)`, in any order, repeated or not.
        gammas: Widths of the kernel, `(g,)`, in place of the problem's own: a path for each, of one problem whose
            kernel has one number `gamma`. Distances are computed once where they fit beside the kernel values.
        solver: A solver's configuration, for warm chains. None solves the squared hinge coarse to fine; others (and all
            under tracing, or with `lanes`) in warm chains of the problem's exact solver.
        tol: The relative duality gap to which each result is certified; a named solver keeps its own.
        screen: A rule such as `jaxsvm.screening.intersection_test`, which proves dual variables before a problem is
            solved: chains leave these samples out. Every result is certified on all samples; under tracing none is left
            out. None: `ball_test_1` for a hinge whose kernel values are not stored (few features apart), else no rule.
        lanes: Solve all values in one compiled call, as so many warm chains side by side, each through a fixed share of
            neighbouring values. Ctrl-C waits for the end of that call. None: one chain.
        key: A random key for solvers that draw.
        max_seconds: Begin nothing more after about so many seconds, as after Ctrl-C.
        callback: Called after each value with its place in `Cs` and its fit (concrete arrays, one problem only).
        interrupt: What Ctrl-C does: "return" returns what is certified, "raise" raises KeyboardInterrupt
            (`jaxsvm.fit`).

    Returns:
        The path, in the order of `Cs`: fits with axes `(k,)`, or `(m, k)` for several problems or widths. A value that
        fails says so in its status and does not affect the others. After Ctrl-C the path holds what was certified so
        far and the running value at its last certified point; the rest are INTERRUPTED with an infinite gap, at the
        point of the nearest value, from which `init=` continues.

    Raises:
        InputError: On arguments that cannot be used.
    """
    several = isinstance(problem, list | tuple)
    problems: Any = list(cast(Any, problem)) if several else [problem]
    key = given_key(key)
    options = PathOptions(key, solver, tol, screen, lanes, max_seconds, callback)
    options.require(problems, Cs)
    if callback is not None and (several or gammas is not None or not callable(callback)):
        raise InputError("callback is a function of a place and a fit, of one problem alone.")
    if gammas is not None:
        require_widths(cast(Any, problem), gammas)
    concrete = is_concrete(problems, Cs, gammas, solver, key)
    if concrete and host_drives(*(each.gram for each in problems)):
        with answering(interrupt) as stop, stop.within(max_seconds):
            groups = [problems] if gammas is None else problems_at_widths(cast(Any, problem), gammas, options)
            fits = []
            for group in groups:  # an operator of a width lives only as long as its path
                solved = solve_together(group, np.asarray(Cs), options, stop)
                for each, fit in zip(group, solved, strict=True):
                    warn_of_rounded_values(each, fit, float(options.tol), Cs)
                fits += solved
        warn_of_unfinished(fits, Cs, (options.solver or options).tol)
        together = stacked(fits) if several or gammas is not None else fits[0]
    elif callback is not None or max_seconds is not None:
        where = "concrete arrays: call `solve_path` outside jit and vmap" if not concrete else "a mesh of one process"
        raise InputError(f"callback and max_seconds need {where}.")
    else:
        traced = in_automatic_axes(partial(_traced, options=options, several=several))
        together = (jax.jit(traced) if concrete else traced)(problems, Cs, gammas)
    widths = None if gammas is None else owned(gammas, together.alpha.dtype)
    return Path(owned(Cs, together.alpha.dtype), together, widths)


def _traced(problems: list[Parametric], Cs: Any, gammas: Any, *, options: PathOptions, several: bool) -> Fit:
    """Solve inside a user's program; an axis of several problems, or of the widths, comes first."""
    values = jnp.asarray(Cs, problems[0].dtype)

    def together(problems: Sequence[Parametric]) -> list[Fit]:
        solvers = [options.solver or exact_solver(problem, options.tol) for problem in problems]
        pairs = zip(ready_together(problems, solvers), solvers, strict=True)
        fits = [chains_traced(problem, solver, values, options.key, options.lanes or 1) for problem, solver in pairs]
        return [trimmed(fit, problems[0].n) for fit in fits]

    if gammas is None:
        return stacked(together(problems)) if several else together(problems)[0]
    (problem,) = problems
    return jax.vmap(lambda gamma: together([problem.on(at_width(problem.gram, gamma))])[0])(jnp.asarray(gammas))


def solve_together(
    problems: Sequence[Parametric], Cs: np.ndarray, options: PathOptions, stop: Interruption | None = None
) -> list[Fit]:
    """Solve paths of concrete problems: the fits of each, with an axis of k first, in the order of `Cs`.

    `stop` is the caller's interruption flag, if it solves several paths; None: the active one.
    """
    require_usable(CoarseToFine(tol=options.tol))
    n = problems[0].n
    if options.screen is not None:
        operators: dict[int, Any] = {}  # problems on one operator still share it afterwards
        problems = [
            dataclasses.replace(problem, gram=operators.setdefault(id(problem.gram), screenable(problem).gram))
            for problem in problems
        ]
    fits: dict[int, Fit] = {}
    with watching(stop) as stop, stop.within(options.max_seconds):
        solvers = [options.solver or exact_solver(problem, options.tol) for problem in problems]
        problems = ready_together(list(problems), solvers, until=lambda: stop.seen)
        for problem in problems:  # raise before anything is solved if the dtype cannot hold a value
            for C in (Cs.min(), Cs.max()):
                problem.at(C)
        callback = options.callback
        report = None if callback is None else lambda place, fit: callback(place, trimmed(fit, n))
        for group in _on_one_gram(problems):
            members = [problems[place] for place in group]
            grids = [one for one in members if isinstance(one, SquaredHingeProblem) and not one.free_bias]
            chained = any(option is not None for option in (options.solver, options.screen, options.lanes))
            if len(grids) == len(members) and not chained and members[0].gram.spread is None:
                solved = _coarse_to_fine(grids, Cs, options, report, stop)
            elif options.lanes is None:

                def chain(place: int) -> Fit:
                    problem, known = cast(Any, problems[place]), None
                    link = chain_link(problem, solvers[place], options, stop)
                    if isinstance(link, CarriedChain) and options.screen is None:
                        known = small_chains(problem, np.asarray(problem.weights)[None], Cs, options.tol, stop)
                    return chain_on_host(problem, Cs, link, report, stop, jax.tree.map(lambda leaf: leaf[0], known))

                solved = solve_many(chain, group) if report is None else [chain(place) for place in group]
            else:
                solved = [chains_compiled(problems[p], solvers[p], Cs, options.key, options.lanes, stop) for p in group]
            fits.update(zip(group, solved, strict=True))
    return [trimmed(fits[place], n) for place in range(len(problems))]


def solve_parts(
    problem: Parametric, weights: np.ndarray, Cs: np.ndarray, options: PathOptions, stop: Interruption, seed: int = 0
) -> list[Fit]:
    """Solve paths of a concrete problem with several factors of its samples' weights, `(m, n)`: 0 leaves one out.

    One operator serves all, unless it has landmarks: then `seed` draws those of each part among its samples.
    """
    if getattr(problem.gram, "landmarks", None) is not None:
        fits = []
        for weight, key in zip(weights, jax.random.split(jax.random.key(seed), len(weights)), strict=True):
            part = problem.weighted(weight)
            part = part.on(of_whole(partial(landmarks_among, allowed=part.present, key=key), problem.gram))
            fits += solve_together([part], Cs, options, stop)  # one operator at a time
        return fits
    require_usable(solver := options.solver or exact_solver(problem, options.tol))
    if options.callback is None and isinstance(chain_link(problem, solver, options, stop), CarriedChain):
        problem.at(Cs.min())
        (ready,) = ready_together([problem.at(Cs.max())], [solver])
        factors = np.pad(weights, ((0, 0), (0, ready.n - problem.n)))
        found = small_chains(cast(Any, ready), factors * np.asarray(ready.weights), Cs, options.tol, stop)

        def chain(m: int) -> Fit:
            fits = jax.tree.map(lambda leaf: leaf[m], found)
            if (fits.status.code != Status.CONVERGED).any():
                link = chain_link(part := ready.weighted(factors[m]), solver, options, stop)
                fits = chain_on_host(part, Cs, link, None, stop, fits)
            return trimmed(fits, problem.n)

        if found is not None:
            return solve_many(chain, range(len(weights)))
    return solve_together([problem.weighted(weight) for weight in weights], Cs, options, stop)


def chain_link(
    problem: Parametric, solver: Solver, options: PathOptions, stop: Interruption
) -> Neighbour | CarriedChain:
    """Return the function of a chain that solves the next problem from the previous fit.

    A solver of the user's choice solves every problem of the chain.
    """
    rule = options.screen
    if isinstance(solver, SMO) and options.solver is None:
        safe = problem.restricts and problem.equality is None and problem.gram.definite
        rule = ball_test_1 if rule is None and safe and not problem.gram.stored else rule
        # A scaled point stays on an equality only if that is 0. If bounds differ by decades, carried sums keep the
        # rounding of values that come and go and are decades larger than what remains.
        box = cast(BoxForm, problem)
        carries = (problem.equality is None or float(box.e) == 0) and _spread(box) <= LARGEST_SPREAD
        if carries and problem.gram.spread is None and (problem.gram.stored or rule is not None):
            return CarriedChain(solver, options.key, rule, stop)
    return Neighbour(solver, options.key, options.screen, stop)


def _spread(problem: BoxForm) -> float:
    present = (bounds := np.asarray(problem.upper, np.float64))[bounds > 0]
    return float(present.max() / present.min()) if present.size else 1.0


def _on_one_gram(problems: Sequence[Parametric]) -> list[list[int]]:
    """Group problems that hold the same Gram operator object and have equal static fields; return their indices."""
    groups: dict[Any, list[int]] = {}
    for place, problem in enumerate(problems):
        groups.setdefault((id(problem.gram), problem.kind, problem.offset, bool(problem.free_bias)), []).append(place)
    return list(groups.values())


def _coarse_to_fine(
    problems: list[SquaredHingeProblem], Cs: np.ndarray, options: PathOptions, callback: Any, stop: Interruption
) -> list[Fit]:
    """Solve squared-hinge problems on one Gram operator, each distinct value once."""
    values, places = np.unique(Cs, return_inverse=True)

    def report(_: int, place: int, fitted: Fit) -> None:
        assert callback is not None
        for index in np.flatnonzero(places == place).tolist():
            callback(index, fitted)

    grids = [Grid([problem.at(C) for C in values], values) for problem in problems]
    solver = CoarseToFine(tol=options.tol)
    solved = solve_grids(grids, solver, options.key, report if callback is not None else None, stop)
    if len(values) == len(Cs) and (places[1:] > places[:-1]).all():  # already in increasing order
        return solved
    return [on_device(jax.tree.map(lambda leaf: np.asarray(leaf)[places], fits)) for fits in solved]


# --- arguments


def checked_values(Cs: Any, kind: str = "") -> Any:
    """Check a list of positive values, or of nu of a "slack" problem, which may be 0; return it unchanged."""
    if np.ndim(Cs) != 1 or np.shape(Cs)[0] == 0:
        raise InputError(f"Cs has shape {np.shape(Cs)}: a list of values, shape (k,) with k >= 1, is needed.")
    if is_concrete(Cs) and np.asarray(Cs).dtype.kind not in "iuf":
        raise InputError(f"Cs has dtype {np.asarray(Cs).dtype}: real numbers are needed.")
    require_finite("Cs", Cs)
    least = np.asarray(Cs).min() if is_concrete(Cs) else 1
    if least < 0 or least == 0 and kind != "slack":
        meant = "values of nu must not be negative" if kind == "slack" else "every value must be positive"
        raise InputError(f"Cs holds {float(least)}: {meant}.")
    return Cs


def require_widths(problem: Any, gammas: Any) -> None:
    """Refuse widths that are no list of positive numbers, or a problem whose kernel has none."""
    require(not isinstance(problem, list | tuple), "gammas is for one problem: solve several one after another.")
    require_width(problem.gram)
    try:
        checked_values(gammas)
    except InputError as error:
        raise InputError(str(error).replace("Cs", "gammas")) from None


def problems_at_widths(problem: Parametric, gammas: Any, options: PathOptions) -> Iterator[list[Parametric]]:
    """Yield the problem at each width, as a list of one; an operator lives as long as its path is solved."""
    solver = options.solver or exact_solver(problem, options.tol)
    for gram in at_widths(problem.gram, np.asarray(gammas, float).tolist(), solver.stores(problem)):
        yield [problem.on(gram)]
