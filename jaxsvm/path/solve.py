"""A regularisation path: one problem at many values of C, each answer certified.

One Gram operator serves all values, since C stands only in the ridge `1 / C_i` of `Kt`. By default they are solved
coarse to fine (`jaxsvm.path.coarse_to_fine`). With a solver of the user's choice, or under tracing, they are warm
chains (`jaxsvm.path.chains`). The same Gram operator serves several labellings (one-versus-rest) and weightings
(folds), too.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.errors import InputError, is_concrete, require_finite
from jaxsvm.interruption import Interruption, on_host_stacked, watching
from jaxsvm.path.block_newton import BlockNewton
from jaxsvm.path.chains import chain_on_host, chains_in_lanes, chains_traced
from jaxsvm.path.coarse_to_fine import solve_grids
from jaxsvm.path.grid import Grid
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.slack import SlackProblem
from jaxsvm.problems.squared_hinge import SquaredHingeProblem, at_penalty, svm_problem
from jaxsvm.result import Certificate, Fit, StatusCode
from jaxsvm.solvers.barrier_systems import few_features
from jaxsvm.solvers.frank_wolfe import FrankWolfe
from jaxsvm.solvers.interior_point import InteriorPoint
from jaxsvm.solvers.newton import Newton
from jaxsvm.solvers.sequential_minimal_optimization import SMO
from jaxsvm.solvers.stochastic_batch_perceptron import StochasticBatchPerceptron
from jaxsvm.validation import require_usable, require_whole


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Path:
    """Fits at k values of C, in the order in which they were asked for. A pytree.

    `path[i]` is the fit at value i, or, where several problems were solved, the path of problem i.

    Attributes:
        Cs: The values, `(k,)`.
        fits: A `Fit` whose every field has the k lanes first; before them an axis for Grams and one for problems,
            where several of these were given.
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


def solve_path(
    gram: Any,
    y: Any,
    Cs: Any,
    *,
    problem: Callable[..., Any] = svm_problem,
    solver: Any = None,
    tol: Any = 1e-4,
    sample_weight: Any = None,
    screen: Any = None,
    lanes: int | None = None,
    key: Array | None = None,
    callback: Callable[[int, Fit], Any] | None = None,
) -> Path:
    """Solve a problem, or several on one Gram operator, at many values of C.

    Args:
        gram: The Gram operator of the n samples, from `jaxsvm.gram`; or a list of g of them (kernel parameters, say).
        y: Labels in {-1, +1}, `(n,)`; or `(m, n)`, a row a problem (one class against the rest, say).
        Cs: Values of C, `(k,)`, in any order, repeated or not.
        problem: What makes the problem of one value: `problem(gram, y, C, sample_weight=...)`: `svm_problem`,
            `hinge_problem`, or `slack_problem` with values of nu in place of C.
        solver: A solver's configuration, for warm chains; None: coarse to fine for the squared hinge, else (and under
            tracing, or where `lanes` are given) warm chains of the exact solver of the problem.
        tol: The relative duality gap that each answer is certified to; a solver that is given keeps its own.
        sample_weight: Weights, `(n,)`, or `(m, n)`, a row a problem (folds: 0 for what is held out), or None.
        screen: Reserved for safe screening: None.
        lanes: How many values are solved side by side in one compiled computation: lanes of warm chains, which load
            the next value when they end (under tracing they are fixed, each with its share); None: one chain.
        key: A random key for solvers that draw.
        callback: Called after each value with its place in `Cs` and its fit (concrete arrays, one problem only).

    Returns:
        The path, in the order of `Cs`: fits with axes `(k,)`, `(m, k)` for several problems, with g before them for
        several Grams. A value that fails says so in its status and leaves the others untouched. Ctrl-C returns the path
        too: what was certified by then, the value that was running at its last certified point, and the rest
        INTERRUPTED with an infinite gap, at the point of the nearest value, from which `init=` goes on.

    Raises:
        InputError: On arguments that cannot be used.
    """
    options = {"problem": problem, "solver": solver, "tol": tol, "sample_weight": sample_weight, "screen": screen}
    return _path(gram, y, Cs, lanes=lanes, key=key, callback=callback, **options)


def _path(
    gram: Any,
    y: Any,
    Cs: Any,
    *,
    problem: Callable[..., Any],
    solver: Any,
    tol: Any,
    sample_weight: Any,
    lanes: int | None,
    key: Array | None,
    screen: Any = None,
    callback: Callable[[int, Fit], Any] | None = None,
    stop: Interruption | None = None,
) -> Path:
    """`solve_path`, which ends when whoever called for several paths does."""
    if screen is not None:
        raise InputError(f"screen is {screen!r}: safe screening is not part of this version; leave it None.")
    checked_values(Cs)
    require_usable(BlockNewton(tol=tol) if solver is None else solver)
    if lanes is not None:
        require_whole("lanes", lanes, 1)
    signs, weights, several = _problems(y, sample_weight)
    if callback is not None and (several or isinstance(gram, list | tuple)):
        raise InputError("callback needs one problem on one Gram: solve them one after another.")
    if isinstance(gram, list | tuple):
        options = {"problem": problem, "solver": solver, "tol": tol, "lanes": lanes, "key": key}
        if not gram:
            raise InputError("gram is an empty list: at least one Gram operator is needed.")
        with watching(stop) as stop:
            paths = [_path(one, y, Cs, sample_weight=sample_weight, stop=stop, **options) for one in gram]
        return Path(Cs=paths[0].Cs, fits=_stacked([path.fits for path in paths]))
    key = jax.random.key(0) if key is None else key

    def builder(y: Any, weight: Any) -> Callable[[Any], Any]:
        return lambda C: problem(gram, y, C, sample_weight=weight)

    builders = [builder(*pair) for pair in zip(signs, weights, strict=True)]
    if not is_concrete(gram, y, Cs, solver, sample_weight, key):
        if callback is not None:
            raise InputError("callback needs concrete arrays: call `solve_path` outside jit and vmap.")
        first = builders[0](Cs[0])
        solver = exact_solver(first, tol) if solver is None else solver
        values = jnp.asarray(Cs, first.dtype)
        fits = [chains_traced(build, solver, values, key, lanes or 1) for build in builders]
    elif solver is None and lanes is None:
        fits = solve_together(builders, np.asarray(Cs), tol=tol, key=key, callback=callback, stop=stop)
    else:
        solver = exact_solver(builders[0](np.asarray(Cs)[0]), tol) if solver is None else solver
        chains = chain_on_host if lanes in (None, 1) else partial(chains_in_lanes, lanes=lanes)
        with watching(stop) as stop:
            fits = [chains(build, solver, np.asarray(Cs), key, found=callback, stop=stop) for build in builders]
    together = _stacked(fits) if several else fits[0]
    return Path(Cs=jnp.asarray(Cs, together.alpha.dtype), fits=together)


def exact_solver(problem: Any, tol: Any) -> Any:
    """The solver that certifies a problem of this kind to any gap: what a path takes where none is named."""
    if isinstance(problem, BoxProblem):  # in float32 systems lose what steps keep
        few = few_features(problem) is not None and problem.dtype == jnp.float64
        return InteriorPoint(tol=tol) if few else SMO(tol=tol)
    if isinstance(problem, SlackProblem):
        return StochasticBatchPerceptron(steps=1_000_000, batch=None, tol=tol, average="linear")
    return Newton(tol=tol) if problem.free_bias else FrankWolfe(variant="smo", tol=tol)


def _stacked(fits: list[Fit]) -> Fit:
    if is_concrete(fits):
        return on_host_stacked(fits)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *fits)


def _problems(y: Any, sample_weight: Any) -> tuple[list[Any], list[Any], bool]:
    """Labels and weights of each problem, and whether there are several."""
    counts = {
        name: np.shape(rows)[0] for name, rows in (("y", y), ("sample_weight", sample_weight)) if np.ndim(rows) == 2
    }
    if not counts:
        return [y], [sample_weight], False
    if len(set(counts.values())) > 1 or 0 in counts.values():
        found = " and ".join(f"{name} has {count}" for name, count in counts.items())
        raise InputError(f"{found} rows: as many rows as there are problems are needed, at least one.")
    m = next(iter(counts.values()))
    return (
        (list(y) if "y" in counts else [y] * m),
        (list(sample_weight) if "sample_weight" in counts else [sample_weight] * m),
        True,
    )


def checked_values(Cs: Any) -> Any:
    """A list of positive values, as it came.

    Raises:
        InputError: On anything else.
    """
    if np.ndim(Cs) != 1 or np.shape(Cs)[0] == 0:
        raise InputError(f"Cs has shape {np.shape(Cs)}: a list of values, shape (k,) with k >= 1, is needed.")
    require_finite("Cs", Cs)
    if is_concrete(Cs) and not (np.asarray(Cs) > 0).all():
        raise InputError(f"Cs holds {float(np.asarray(Cs).min())}: every value must be positive.")
    return Cs


def solve_together(
    builders: list[Callable[[Any], Any]],
    Cs: np.ndarray,
    *,
    tol: Any = 1e-4,
    key: Array | None = None,
    callback: Callable[[int, Fit], Any] | None = None,
    stop: Interruption | None = None,
) -> list[Fit]:
    """Solve several problems on one Gram operator (folds, classes) at the same values of C, coarse to fine.

    Args:
        builders: What makes each problem of a value of C. What coarse to fine does not know (a free bias) runs as a
            warm chain of the solver that does.
        Cs: Values of C, `(k,)`, in any order, repeated or not.
        tol: The relative duality gap that each answer is certified to.
        key: A random key.
        callback: Called with place and fit of each value, as for `solve_path`.
        stop: What ends it, and whoever called for it; None: Ctrl-C alone.

    Returns:
        For each problem its fits, a leading axis of k, in the order of `Cs`.
    """
    require_usable(BlockNewton(tol=tol))
    key = jax.random.key(0) if key is None else key
    values, places = np.unique(Cs, return_inverse=True)
    lowest = [build(values[0]) for build in builders]
    if any(not isinstance(first, SquaredHingeProblem) or first.free_bias for first in lowest):
        chains = zip(builders, lowest, strict=True)
        with watching(stop) as stop:
            return [chain_on_host(build, exact_solver(first, tol), Cs, key, callback, stop) for build, first in chains]

    def found(_: int, place: int, fitted: Fit) -> None:
        assert callback is not None
        for index in np.flatnonzero(places == place).tolist():
            callback(index, fitted)

    grids = [Grid(_values(build, first, values), values) for build, first in zip(builders, lowest, strict=True)]
    solved = solve_grids(grids, BlockNewton(tol=tol), key, found if callback is not None else None, stop)
    if len(values) == len(Cs) and (places[1:] > places[:-1]).all():  # asked for in increasing order: nothing moves
        return solved
    return [jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[places]), fits) for fits in solved]


def _values(build: Callable[[Any], Any], first: SquaredHingeProblem, values: np.ndarray) -> list[SquaredHingeProblem]:
    """The problems of all values: scaled from the first where its maker scales with C, else made one by one."""
    last = build(values[-1])
    scaled = at_penalty(first, values[-1])
    if not np.allclose(scaled.ridge, last.ridge, rtol=1e-4, atol=0) or not np.allclose(scaled.diagonal, last.diagonal):
        return [build(C) for C in values]
    return [first, *(at_penalty(first, C) for C in values[1:-1]), last][: len(values)]
