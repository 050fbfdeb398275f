"""A regularisation path: one problem at many values of C, each answer certified.

One Gram operator serves all values. Squared-hinge problems are solved coarse to fine by default
(`jaxsvm.path.coarse_to_fine`); others, those with a solver of the user's choice, and all under tracing in warm chains
(`jaxsvm.path.chains`). Problems on one Gram operator (one class against the rest, folds) are solved together.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.errors import InputError, is_concrete, require_finite
from jaxsvm.loop.choice import exact_solver
from jaxsvm.loop.interruption import Interruption, answering, watching
from jaxsvm.loop.prepare import ready_together
from jaxsvm.path.chains import Neighbour, chain_on_host, chains_in_lanes, chains_traced
from jaxsvm.path.coarse_to_fine.block_newton import BlockNewton
from jaxsvm.path.coarse_to_fine.engine import solve_grids
from jaxsvm.path.coarse_to_fine.grid import Grid
from jaxsvm.path.placeholders import on_host_stacked
from jaxsvm.path.reduction import NearMargin, Reduction
from jaxsvm.path.screened import ScreenedChain
from jaxsvm.problems.contract import Parametric, require_problem
from jaxsvm.problems.forms import BoxForm
from jaxsvm.problems.padding import trimmed
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Certificate, Fit, StatusCode, has_values, outcomes
from jaxsvm.runtime.arrays import on_device
from jaxsvm.runtime.checks import require_function, require_seconds, require_whole
from jaxsvm.runtime.meshes import in_automatic_axes
from jaxsvm.runtime.transfers import transfers
from jaxsvm.screening.reduction import Safe
from jaxsvm.screening.reference import require_screenable, screenable
from jaxsvm.solvers.box.sequential_minimal_optimization import SMO
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.validation import require_usable


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Path:
    """Fits at k values of C, in the order in which they were asked for. A pytree.

    `path[i]` is the fit at value i, or, where several problems were solved, the path of problem i.

    Attributes:
        Cs: The values, `(k,)`.
        fits: A `Fit` whose every field has the k lanes first; before them an axis for problems, where several were
            given.
    """

    Cs: Float[Array, " k"]
    fits: Fit

    @property
    def alphas(self) -> Float[Array, "*problems k n"]:
        """Dual variables, a row a value of C."""
        return self.fits.alpha

    @property
    def certificate(self) -> Certificate:
        """Certificates, `(k,)` in each field."""
        return self.fits.certificate

    @property
    def status(self) -> StatusCode:
        """Status codes, `(k,)`."""
        return self.fits.status

    @property
    def steps(self) -> Array:
        """Steps taken, `(k,)`."""
        return self.fits.steps

    def __len__(self) -> int:
        return self.fits.alpha.shape[0]

    def __getitem__(self, i: int) -> "Fit | Path":
        several = self.fits.alpha.ndim > 2
        if not -len(self) <= i < len(self):
            parts = "problems" if several else "values of C"
            raise IndexError(f"the path has {len(self)} {parts}: there is no number {i}")
        fits = jax.tree.map(lambda leaf: leaf[i], self.fits)
        return Path(Cs=self.Cs, fits=fits) if several else fits

    def __iter__(self) -> "Iterator[Fit | Path]":
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        """In a line, as `Fit`."""
        if not has_values(self):
            return f"Path(Cs={self.Cs!r}, fits={self.fits!r})"
        Cs, problems = np.asarray(self.Cs), np.shape(self.fits.alpha)[:-2]
        each = f" for each of {problems[0]} problems" if problems else ""
        return f"Path({len(Cs)} values of C from {Cs.min():.4g} to {Cs.max():.4g}{each}: {outcomes(self.fits)})"


EVEN = 1e4
"""The largest spread of weights with which a chain carries its products."""


@transfers
def solve_path(
    problem: Any,
    Cs: Any,
    *,
    solver: Any = None,
    tol: Any = 1e-4,
    reduction: Reduction | None = None,
    screen: Any = "auto",
    lanes: int | None = None,
    key: Array | None = None,
    max_seconds: float | None = None,
    callback: Callable[[int, Fit], Any] | None = None,
    interrupt: str = "return",
) -> Path:
    """Solve a problem, or several, at many values of C.

    Args:
        problem: From `svm_problem`, `hinge_problem`, `box_problem`, or `slack_problem` with values of nu in place of C;
            its own value is not looked at. Or a list of problems of n samples each: those on one Gram operator (one
            class against the rest, `problem.weighted(...)` for folds) share its products.
        Cs: Values of C, `(k,)`, in any order, repeated or not.
        solver: A solver's configuration, for warm chains; None: coarse to fine for the squared hinge, else (and under
            tracing, or where `lanes` or a `reduction` are given) warm chains of the exact solver of the problem.
        tol: The relative duality gap that each answer is certified to; a solver that is given keeps its own.
        reduction: What leaves samples out of the next problem of a chain (`jaxsvm.path.reduction`); every answer is
            certified on the whole problem all the same. Under tracing shapes are fixed, and nothing is left out; nor is
            it for interior points, which take no start.
        screen: A rule that knows before a problem is solved where some of its samples are, and so leaves them out of it
            (`jaxsvm.screening`: `intersection_test`, ...); "auto": one where that is known to pay, so far
            nowhere; None: none. For chains; every answer is certified on all samples. Under tracing, and for interior
            points (the choice where a kernel has few features), nothing is left out.
        lanes: How many values are solved side by side in one compiled computation: lanes of warm chains, which load
            the next value when they end (under tracing they are fixed, each with its share); None: one chain.
        key: A random key for solvers that draw.
        max_seconds: Begin nothing more after about so many seconds, as if Ctrl-C had come.
        callback: Called after each value with its place in `Cs` and its fit (concrete arrays, one problem only).
        interrupt: As for `jaxsvm.fit`: what Ctrl-C does, "return" or "raise".

    Returns:
        The path, in the order of `Cs`: fits with axes `(k,)`, or `(m, k)` for several problems. A value that fails
        says so in its status and leaves the others untouched. Ctrl-C returns the path too: what was certified by then,
        the value that was running at its last certified point, and the rest INTERRUPTED with an infinite gap, at the
        point of the nearest value, from which `init=` goes on.

    Raises:
        InputError: On arguments that cannot be used.
    """
    problems = list(problem) if isinstance(problem, list | tuple) else [problem]
    several = isinstance(problem, list | tuple)
    _check(problems, Cs, solver, tol, reduction, screen, lanes, max_seconds)
    if callback is not None and (several or not callable(callback)):
        raise InputError("callback is a function of a place and a fit, of one problem alone.")
    key = jax.random.key(0) if key is None else key
    if is_concrete(problems, Cs, solver, key):
        with answering(interrupt) as stop:
            fits = solve_together(
                problems,
                np.asarray(Cs),
                solver=solver,
                tol=tol,
                reduction=reduction,
                screen=screen,
                lanes=lanes,
                key=key,
                max_seconds=max_seconds,
                callback=callback,
                stop=stop,
            )
    elif callback is not None or max_seconds is not None:
        raise InputError("callback and max_seconds need concrete arrays: call `solve_path` outside jit and vmap.")
    else:
        solvers = [exact_solver(problem, tol) if solver is None else solver for problem in problems]
        values = jnp.asarray(Cs, problems[0].dtype)
        fits = in_automatic_axes(partial(_traced_together, lanes=lanes or 1))(problems, solvers, values, key)
    together = _stacked(fits) if several else fits[0]
    return Path(Cs=jnp.asarray(Cs, together.alpha.dtype), fits=together)


def _traced_together(
    problems: Sequence[Parametric], solvers: list[Solver], Cs: Array, key: Array, lanes: int
) -> list[Fit]:
    """Solve paths of several problems inside a user's program."""
    pairs = zip(ready_together(problems, solvers), solvers, strict=True)
    return [trimmed(chains_traced(here, one, Cs, key, lanes), problems[0].n) for here, one in pairs]


def solve_together(
    problems: Sequence[Parametric],
    Cs: np.ndarray,
    *,
    solver: Solver | None = None,
    tol: Any = 1e-4,
    reduction: Reduction | None = None,
    screen: Any = "auto",
    lanes: int | None = None,
    key: Array,
    max_seconds: float | None = None,
    callback: Callable[[int, Fit], Any] | None = None,
    stop: Interruption | None = None,
) -> list[Fit]:
    """`solve_path` of concrete problems: the fits of each, a leading axis of k, in the order of `Cs`.

    Args:
        problems: The problems.
        Cs: As for `solve_path`.
        solver: As for `solve_path`.
        tol: As for `solve_path`.
        reduction: As for `solve_path`.
        screen: As for `solve_path`.
        lanes: As for `solve_path`.
        key: As for `solve_path`.
        max_seconds: As for `solve_path`.
        callback: As for `solve_path`.
        stop: What ends it, and whoever called for several paths; None: Ctrl-C alone.
    """
    require_usable(BlockNewton(tol=tol))
    n = problems[0].n
    rule = None if screen == "auto" else screen
    if rule is not None or isinstance(reduction, Safe):
        operators: dict[int, Any] = {}  # those on one operator share it still
        problems = [
            dataclasses.replace(one, gram=operators.setdefault(id(one.gram), screenable(one).gram)) for one in problems
        ]
    chained = any(option is not None for option in (solver, reduction, rule, lanes))
    fits: dict[int, Fit] = {}
    with watching(stop) as stop, stop.within(max_seconds):
        exact = [exact_solver(problem, tol) if solver is None else solver for problem in problems]
        problems = ready_together(list(problems), exact, reduction is None, lambda: stop.seen)
        for problem in problems:  # what the dtype cannot hold is said before anything is solved
            for C in (Cs.min(), Cs.max()):
                problem.at(C)
        told = None if callback is None else lambda place, fitted: callback(place, trimmed(fitted, n))
        for group in _on_one_gram(problems):
            first = problems[group[0]]
            if not chained and first.kind == "squared hinge" and not any(problems[one].free_bias for one in group):
                found = _coarse_to_fine(
                    [cast(SquaredHingeProblem, problems[one]) for one in group], Cs, tol, key, told, stop
                )
                fits.update(zip(group, found, strict=True))
                continue
            for one in group:
                if lanes in (None, 1):
                    link = chain_link(problems[one], exact[one], key, stop, reduction, screen, named=solver is not None)
                    fits[one] = chain_on_host(problems[one], Cs, link, told, stop)
                else:
                    fits[one] = chains_in_lanes(problems[one], exact[one], Cs, key, lanes, told, stop)
    return [trimmed(fits[one], n) for one in range(len(problems))]


def chain_link(
    problem: Parametric,
    solver: Solver,
    key: Array,
    stop: Interruption,
    reduction: Reduction | None,
    screen: Any,
    named: bool,
) -> Callable[[Any], Fit]:
    """What makes the next fit of a chain of the one before.

    Args:
        problem: The problem, at any value.
        solver: A solver's configuration.
        key: A random key.
        stop: What ends it.
        reduction: As for `solve_path`.
        screen: As for `solve_path`.
        named: Whether the user chose the solver, which then solves whatever is solved.
    """
    rule = None if screen == "auto" else screen
    carried = isinstance(solver, SMO) and not named and reduction is None
    # What is scaled stays on an equality of 0. Bounds of very different sizes let values come and go that are decades
    # larger than what is left: carried sums keep their rounding.
    carried = (
        carried
        and (problem.equality is None or float(cast(BoxForm, problem).e) == 0)
        and _spread(cast(BoxForm, problem)) <= EVEN
    )
    if carried and (problem.gram.stored or rule is not None):
        return ScreenedChain(solver, key, rule, stop)
    return Neighbour(solver, key, reduction if rule is None else Safe(rule), stop)


def _spread(problem: BoxForm) -> float:
    """The largest bound over the smallest one of the samples that are present."""
    bounds = np.asarray(problem.upper, np.float64)
    present = bounds[bounds > 0]
    return float(present.max() / present.min()) if present.size else 1.0


def _check(
    problems: Sequence[Any],
    Cs: Any,
    solver: Any,
    tol: Any,
    reduction: Any,
    screen: Any,
    lanes: Any,
    max_seconds: Any,
) -> None:
    if not problems:
        raise InputError("problem is an empty list: at least one problem is needed.")
    for problem in problems:
        require_problem(problem)
        if problem.parameter is None:
            raise InputError(f"problem is a {type(problem).__name__}: it has no C that a path could go along.")
    if len({problem.n for problem in problems}) > 1:
        raise InputError("the problems have different numbers of samples: solve them one after another.")
    checked_values(Cs)
    require_usable(BlockNewton(tol=tol) if solver is None else solver)
    require_seconds(max_seconds)
    if lanes is not None:
        require_whole("lanes", lanes, 1)
    if reduction is not None:
        told = ("old problem", "fit", "new problem")
        require_function("reduction", reduction, told, "a reduction, such as `NearMargin()`,")
    if reduction is not None and lanes not in (None, 1):
        raise InputError("reduction needs one chain: lanes have fixed shapes; leave `lanes` None.")
    if screen is not None and screen != "auto":
        told = ("problem", "reference fit", "its C")
        require_function("screen", screen, told, 'a rule of `jaxsvm.screening`, "auto" or None')
        if isinstance(screen, (NearMargin, Safe)):
            raise InputError(f"screen is {screen!r}: a reduction, which is for `reduction=`; a rule is needed.")
        if reduction is not None or lanes not in (None, 1):
            raise InputError("screen needs one chain, and no other reduction: leave `lanes` and `reduction` None.")
        for problem in problems:
            require_screenable(problem)
    if reduction is not None and not all(problem.restricts for problem in problems):
        raise InputError("reduction needs problems of `svm_problem`, `hinge_problem` or `box_problem`.")


def _on_one_gram(problems: Sequence[Parametric]) -> list[list[int]]:
    """Places of the problems that hold the very same Gram operator and differ in nothing that is static."""
    groups: dict[Any, list[int]] = {}
    for place, problem in enumerate(problems):
        groups.setdefault((id(problem.gram), problem.kind, problem.offset, bool(problem.free_bias)), []).append(place)
    return list(groups.values())


def _stacked(fits: list[Fit]) -> Fit:
    if is_concrete(fits):
        return on_host_stacked(fits)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *fits)


def checked_values(Cs: Any) -> Any:
    """A list of positive values, as it came.

    Raises:
        InputError: On anything else.
    """
    if np.ndim(Cs) != 1 or np.shape(Cs)[0] == 0:
        raise InputError(f"Cs has shape {np.shape(Cs)}: a list of values, shape (k,) with k >= 1, is needed.")
    if is_concrete(Cs) and np.asarray(Cs).dtype.kind not in "iuf":
        raise InputError(f"Cs has dtype {np.asarray(Cs).dtype}: real numbers are needed.")
    require_finite("Cs", Cs)
    if is_concrete(Cs) and not (np.asarray(Cs) > 0).all():
        raise InputError(f"Cs holds {float(np.asarray(Cs).min())}: every value must be positive.")
    return Cs


def _coarse_to_fine(
    problems: list[SquaredHingeProblem], Cs: np.ndarray, tol: Any, key: Array, callback: Any, stop: Interruption
) -> list[Fit]:
    """Squared-hinge problems on one Gram operator, each distinct value once."""
    values, places = np.unique(Cs, return_inverse=True)

    def found(_: int, place: int, fitted: Fit) -> None:
        assert callback is not None
        for index in np.flatnonzero(places == place).tolist():
            callback(index, fitted)

    grids = [Grid([problem.at(C) for C in values], values) for problem in problems]
    solved = solve_grids(grids, BlockNewton(tol=tol), key, found if callback is not None else None, stop)
    if len(values) == len(Cs) and (places[1:] > places[:-1]).all():  # asked for in increasing order: nothing moves
        return solved
    return [jax.tree.map(lambda leaf: on_device(np.asarray(leaf)[places]), fits) for fits in solved]
