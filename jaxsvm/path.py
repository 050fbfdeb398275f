"""A regularisation path: one problem at many values of C, each answer certified.

One Gram operator serves all values, since C stands only in the ridge `1 / C_i` of `Kt`. By default they are solved
coarse to fine (`jaxsvm.refinement`). With a solver of the user's choice, or under tracing, they are warm chains: each
value from the solution of the one before, where alpha stays feasible and `s` moves by `alpha (1/C' - 1/C)`, so that no
matrix-vector product is needed (spec 6.2).
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.errors import InputError, is_concrete, require_finite
from jaxsvm.loop import drive, fit_compiled
from jaxsvm.problem import SquaredHingeProblem, at_penalty, svm_problem
from jaxsvm.refinement import Ladder, solve_ladders
from jaxsvm.result import Certificate, Fit, Status, StatusCode
from jaxsvm.solvers.block_newton import BlockNewton
from jaxsvm.solvers.frank_wolfe import FrankWolfe
from jaxsvm.solvers.newton import Newton


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Path:
    """Fits at k values of C, in the order in which they were asked for. A pytree.

    Attributes:
        Cs: The values, `(k,)`.
        fits: A `Fit` whose every field has the k lanes first.
    """

    Cs: Float[Array, " k"]
    fits: Fit

    @property
    def alphas(self) -> Float[Array, "k n"]:
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

    def __getitem__(self, i: int) -> Fit:
        if not -len(self) <= i < len(self):
            raise IndexError(f"the path has {len(self)} values of C: there is no number {i}")
        return jax.tree.map(lambda leaf: leaf[i], self.fits)

    def __iter__(self) -> Iterator[Fit]:
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
    """Solve a problem at many values of C.

    Args:
        gram: The Gram operator of the n samples, from `jaxsvm.gram`.
        y: Labels in {-1, +1}, `(n,)`.
        Cs: Values of C, `(k,)`, in any order, repeated or not.
        problem: What makes the problem of one value: `problem(gram, y, C, sample_weight=...)`.
        solver: A solver's configuration, for warm chains; None: coarse to fine (warm chains of second-order pairs
            under tracing, or where `lanes` are given).
        tol: The relative duality gap that each answer is certified to; a solver that is given keeps its own.
        sample_weight: Weights, `(n,)`, or None.
        screen: Reserved for safe screening: None.
        lanes: How many warm chains run side by side in one compiled computation, each through its share of the values;
            None: one chain.
        key: A random key for solvers that draw.
        callback: Called after each value with its place in `Cs` and its fit (concrete arrays and one chain only).

    Returns:
        The path, in the order of `Cs`. A value that fails says so in its status and leaves the others untouched.

    Raises:
        InputError: On arguments that cannot be used.
    """
    if screen is not None:
        raise InputError(f"screen is {screen!r}: safe screening is not part of this version; leave it None.")
    checked_values(Cs)
    if lanes is not None and lanes < 1:
        raise InputError(f"lanes is {lanes}: at least 1 is needed.")
    chosen, key = solver, jax.random.key(0) if key is None else key
    solver = FrankWolfe(variant="smo", tol=tol) if solver is None else solver

    def build(C: Any) -> Any:
        return problem(gram, y, C, sample_weight=sample_weight)

    concrete = is_concrete(gram, y, Cs, solver, sample_weight, key)
    if concrete and chosen is None and lanes is None:
        (fits,) = solve_together([build], np.asarray(Cs), tol=tol, key=key, callback=callback)
        return Path(Cs=jnp.asarray(Cs, fits.alpha.dtype), fits=fits)
    if concrete and lanes in (None, 1):
        return _chain_on_host(build, solver, np.asarray(Cs), key, callback)
    if callback is not None:
        raise InputError("callback needs concrete arrays and one chain: leave lanes at None, outside jit and vmap.")
    if concrete:  # bad values raise here, not inside the compiled chains
        build(np.asarray(Cs)[0])
    return _chains_compiled(build, solver, jnp.asarray(Cs, build(Cs[0]).dtype), key, lanes or 1)


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
) -> list[Fit]:
    """Solve several problems on one Gram operator (folds, classes) at the same values of C, coarse to fine.

    Args:
        builders: What makes each problem of a value of C. What coarse to fine does not know (a free bias) runs as a
            warm chain of the solver that does.
        Cs: Values of C, `(k,)`, in any order, repeated or not.
        tol: The relative duality gap that each answer is certified to.
        key: A random key.
        callback: Called with place and fit of each value, as for `solve_path`.

    Returns:
        For each problem its fits, a leading axis of k, in the order of `Cs`.
    """
    if is_concrete(tol) and not float(tol) > 0:
        raise InputError(f"tol is {float(tol)}: a positive relative gap is needed.")
    key = jax.random.key(0) if key is None else key
    values, places = np.unique(Cs, return_inverse=True)
    lowest = [build(values[0]) for build in builders]
    if any(not isinstance(first, SquaredHingeProblem) or first.free_bias for first in lowest):
        free = any(getattr(first, "free_bias", False) for first in lowest)
        solver = Newton(tol=tol) if free else FrankWolfe(variant="smo", tol=tol)
        return [_chain_on_host(build, solver, Cs, key, callback).fits for build in builders]

    def done(_: int, place: int, fitted: Fit) -> None:
        if callback is not None:
            for index in np.flatnonzero(places == place).tolist():
                callback(index, fitted)

    ladders = [Ladder(_rungs(build, first, values), values) for build, first in zip(builders, lowest, strict=True)]
    solved = solve_ladders(ladders, BlockNewton(tol=tol), key, done)
    return [jax.tree.map(lambda leaf: leaf[places], fits) for fits in solved]


def _rungs(build: Callable[[Any], Any], first: SquaredHingeProblem, values: np.ndarray) -> list[SquaredHingeProblem]:
    """The problems of all values: scaled from the first where its maker scales with C, else made one by one."""
    last = build(values[-1])
    scaled = at_penalty(first, values[-1])
    if not np.allclose(scaled.ridge, last.ridge, rtol=1e-4, atol=0) or not np.allclose(scaled.diagonal, last.diagonal):
        return [build(C) for C in values]
    return [first, *(at_penalty(first, C) for C in values[1:-1]), last][: len(values)]


def _chain_on_host(build: Any, solver: Any, Cs: np.ndarray, key: Array, callback: Any) -> Path:
    """One warm chain under the host driver. After Ctrl-C the values left get one chunk each, so that all have a fit."""
    order = np.argsort(Cs, kind="stable")
    fits: dict[int, Fit] = {}
    warm, seconds = None, None
    for place in order.tolist():
        fitted = drive(build(Cs[place]), solver, key, warm, seconds)
        fits[place] = fitted
        seconds = 0.0 if fitted.status == Status.INTERRUPTED else None
        warm = (fitted.alpha, fitted.margins)
        if callback is not None:
            callback(place, fitted)
    ordered = [fits[place] for place in range(len(Cs))]
    lanes = jax.tree.map(lambda *leaves: jnp.stack(leaves), *ordered)
    return Path(Cs=jnp.asarray(Cs, lanes.alpha.dtype), fits=lanes)


def _chains_compiled(build: Any, solver: Any, Cs: Float[Array, " k"], key: Array, lanes: int) -> Path:
    """Warm chains as lanes of one computation; each runs through neighbouring values in increasing order."""
    k = Cs.shape[0]
    lanes = min(lanes, k)
    length = -(-k // lanes)
    order = jnp.argsort(Cs)
    # Every chain is `length` long: the last one repeats its last value, which costs one certification.
    places = jnp.minimum(jnp.arange(lanes * length), k - 1).reshape(lanes, length)

    def chain(values: Float[Array, " length"]) -> Fit:
        first = fit_compiled(build(values[0]), solver, key)

        def link(warm: Any, C: Any) -> Any:
            fitted = fit_compiled(build(C), solver, key, warm)
            return (fitted.alpha, fitted.margins), fitted

        _, rest = lax.scan(link, (first.alpha, first.margins), values[1:])
        return jax.tree.map(lambda head, tail: jnp.concatenate([head[None], tail]), first, rest)

    chained = jax.vmap(chain)(Cs[order][places])
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:k], chained)
    inverse = jnp.argsort(order)
    return Path(Cs=Cs, fits=jax.tree.map(lambda leaf: leaf[inverse], flat))
