"""The coreset: weighted points, the problem on them and its solution, and how it compares with the data."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array
from numpy.typing import ArrayLike

from jaxsvm.coresets.measured import MEASURED
from jaxsvm.coresets.pilot import Pilot, solve
from jaxsvm.coresets.sampling import LEAST_POINTS, hinges, objectives
from jaxsvm.errors import InputError, is_concrete, require
from jaxsvm.gram.build import gram
from jaxsvm.gram.measured import MEASURED as SIZES
from jaxsvm.kernels import Linear
from jaxsvm.loop.driver import fit
from jaxsvm.points.rows import CSR, PointsLike, as_points, product, scipy_rows, transposed_product
from jaxsvm.problems.arguments import checked_signs, checked_weights
from jaxsvm.problems.box import BoxProblem, hinge_problem
from jaxsvm.results.fit import Fit
from jaxsvm.runtime.arrays import in_a_line, require_memory, require_positive, transfers, zero_filled
from jaxsvm.runtime.programs import Program
from jaxsvm.solvers.box.interior_point import InteriorPoint
from jaxsvm.solvers.contract import Solver

OF_PARTS = (
    "it is made of coresets of parts, or of rows drawn of all, and no error below 1 is known for it. `lower` is a "
    "proven lower bound of the optimum: one pass over the data (`coresets.certify`) shows how good its machine is."
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class CoresetFit(Fit):
    """A fit of the problem on a coreset's points: its certificate says nothing of the other samples."""

    def __repr__(self) -> str:
        return super().__repr__().replace("optimum in", "optimum on the coreset, not on the data, in")


@dataclasses.dataclass(frozen=True, eq=False)
class Coreset:
    """Weighted points that stand for many: fit them with `C` and `sample_weight=weight`, or by `coreset.fit()`.

    Attributes:
        x: Points, `(m, d)`, in the dtype that they came in.
        y: Signs, `(m,)`, float64.
        weight: Weights, `(m,)`, positive, float64.
        info: How it was made: `C` (to be used in a fit), `C_data` (of the objective that it stands for; also any
            smaller one), `total` (the sum of the sensitivity bounds), `lower` (of the optimum at `C_data`), `gap`,
            `cells`, `share` (of the regulariser: 1 but for parts), `regulariser`, `sampler`, `bound`, `n`, `U`
            (points and weight that it stands for), `m` (draws), `index` (rows, if its points came from one array),
            `change` (the largest relative change of a weight by calibration), `notes` (warnings) and `epsilon` (the
            relative error that one query, fixed before the draw, exceeds with probability 0.05 at most: Bernstein's
            inequality, proven for "independent" draws, plus the change by calibration; far above what `evaluate`
            measures, and infinite where no error below 1 is known). Of parts (streams, `DynamicCoreset`, `join`)
            `total`, `gap`, `cells` and `index` are missing.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    info: dict[str, Any]

    @property
    def C(self) -> float:
        """Return the C to give to a solver."""
        return self.info["C"]

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return in_a_line(self, C=self.C)

    @transfers
    def problem(self, C: float | None = None, bias: str = "free") -> BoxProblem:
        """Return the weighted hinge problem.

        Args:
            C: In the data's terms, at most `info["C_data"]` for the guarantee; None: that value.
            bias: As in `hinge_problem`; the error holds with any term added to F that is not negative, as b^2 / 2.

        Raises:
            InputError: If all points are of one class.
        """
        if len(set(self.y.tolist())) < 2:
            raise InputError(
                f"coreset: its {len(self)} points are all of the class {self.y[0]:+.0f}, and a machine needs both: if "
                "the data have both, take a larger m, or another sampler than 'independent', which draws either or not."
            )
        points = gram(Linear(), self.x)
        return hinge_problem(points, self.y, self._scaled(C), bias=bias, sample_weight=self.weight)

    @transfers
    def fit(self, solver: Solver | None = None, C: float | None = None, bias: str = "free") -> Fit:
        """Fit the coreset by a solver; None: by `InteriorPoint`. C and bias are those of `problem`.

        The certificate is that of the problem on these points. `coresets.certify` makes one of all the data.
        """
        problem = self.problem(C, bias)
        if solver is None:
            solver = InteriorPoint(tol=1e-8 if problem.gram.dtype == np.float64 else 1e-6)
        return CoresetFit(**vars(fit(problem, solver)))

    @transfers
    def solution(self, C: float | None = None) -> tuple[np.ndarray, float]:
        """Return `w (d,)` and b of the linear machine trained on the coreset, float64."""
        return solution(self.x, self.y, self._scaled(C), self.weight)

    def _scaled(self, C: float | None) -> float:
        return (1.0 if C is None else C / self.info["C_data"]) * self.C


@transfers
def solution(x: Any, y: Any, C: float, sample_weight: Any = None, tol: float = 1e-8) -> tuple[np.ndarray, float]:
    """Return `w (d,)` and b of the linear hinge SVM with a free bias, to a relative gap, float64."""
    with jax.enable_x64(True):
        w, b, *_ = solved(*as_data(x, y, sample_weight), C, tol)
    return w, float(b)


def solved(x: np.ndarray, y: np.ndarray, u: np.ndarray, C: float, tol: float = 1e-6) -> Any:
    """Return the `Pilot` of a problem, on the host, inside `jax.enable_x64`."""
    require_costs(C, u)
    return jax.device_get(_solution(*padded(x, y, u), float(C), tol))


@Program.full()
def _solution(x: Array, y: Array, u: Array, C: Any, tol: Any) -> Pilot:
    at = solve(centred(x, u), y, C * u, tol=tol)
    return at._replace(b=at.b - at.w @ transposed_product(x, u) / u.sum())


def as_data(x: Any, y: Any, sample_weight: Any = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return points `(n, d)`, signs and weights `(n,)`, float64 of NumPy; refuse what is traced, or no such data."""
    require(is_concrete(x, y, sample_weight), "x, y or sample_weight is being traced: coresets are made outside jit.")
    x, y = _dense(x), np.asarray(y)
    y = np.asarray(y.tolist()) if y.dtype.kind == "O" else y  # of data frames
    weight = np.ones(np.shape(y)) if sample_weight is None else _numbers("sample_weight", sample_weight)
    with jax.enable_x64(True):
        points = as_points(_numbers("x", x) if x.dtype.kind == "O" else x)
        signs = checked_signs(y, len(points), np.float64)
        parts = points, signs, checked_weights(weight, len(points), np.float64)[0]
    points, signs, weights = (np.asarray(part, np.float64) for part in parts)
    return points, signs, weights


def _numbers(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} holds what is no number ({error}): impute missing ones.") from error


def room_for(n: int) -> int:
    """Round a number of rows up to one of four sizes between two powers of two, at least 64: few programs serve all."""
    step = max(16, 2 ** (n.bit_length() - 3))
    return max(64, -(-n // step) * step)


def padded(*arrays: Any) -> list[np.ndarray]:
    """Append zeros, which are absent points."""
    return [zero_filled(np.asarray(a, float), room_for(len(a))) for a in arrays]


def float_dtype(x: Any) -> Any:
    """Return the dtype that a coreset of points x has: their own if it is floating, else float64."""
    dtype = np.dtype(getattr(x, "dtype", np.float64))
    return dtype if dtype.kind == "f" else np.float64


@transfers
def as_key(key: Any) -> Array:
    """Return a random key from a key or a seed; refuse a traced one, for which the number of points is not known."""
    require(is_concrete(key), "key is being traced: make coresets outside jit and vmap, one for each key in a loop.")
    if isinstance(key, int | np.integer):
        require(-(2**63) <= int(key) < 2**63, f"key is {key}: a seed of 64 bits is needed.")
        return jax.random.key(int(key))
    require(isinstance(key, jax.Array), f"key is {key!r}: a random key (jax.random.key) or a whole number is needed.")
    return jax.random.wrap_key_data(key) if key.dtype == np.uint32 else key


def require_costs(C: Any, u: np.ndarray) -> None:
    """Refuse costs `C u` whose products overflow."""
    require_positive("C", C)
    with np.errstate(over="ignore"):
        costs = float(C) * float(u.sum())
    require(costs < 1e150, f"C is {C:.3g}, with all weights {costs:.3g}: at most 1e150 is possible; scale them.")


def centred(x: Array, u: Array) -> Array:
    """Subtract the weighted mean from the points, which changes no result but its rounding."""
    return x - transposed_product(x, u) / jnp.maximum(u.sum(), jnp.finfo(u.dtype).tiny)


def _dense(x: Any) -> np.ndarray:
    if hasattr(x, "tocsr") or isinstance(x, CSR):
        what = f"x is sparse and {x.shape[0]} x {x.shape[1]}: the dense points that coresets work on"
        instead = "hand it over in parts (`Stream`), or with fewer features"
        require_memory(x.shape[0] * x.shape[1] * 8, what, instead, SIZES.bytes_to_store)
        return scipy_rows(x).toarray()
    return np.asarray(x)


class Evaluation(NamedTuple):
    """Measured errors of a coreset.

    Attributes:
        worst: The largest relative error of the objective over the queries: others may have a larger one.
        mean: Their mean.
        excess: `F(w_S) / F(w*) - 1` of the machine that is trained on the coreset; 0 if both are 0 (one class).
        optimum: `F(w*)` on the data.
        queries: `(w, b)` as rows, `(q, d + 1)`: the data's optimum first, the coreset's second.
        errors: `F_S / F - 1` at each, `(q,)`.
    """

    __repr__ = in_a_line

    worst: float
    mean: float
    excess: float
    optimum: float
    queries: np.ndarray
    errors: np.ndarray


@transfers
def evaluate(
    coreset: Coreset,
    data: tuple[PointsLike, ArrayLike] | tuple[PointsLike, ArrayLike, ArrayLike],
    C: float | None = None,
    key: Array | int = 0,
) -> Evaluation:
    """Measure a coreset against the data that it stands for, at queries chosen to be hard for it.

    They are multiples of the optimum, biases alone, machines of a few points or of another C, random directions, and
    the ends of some steps that climb the error itself.

    Args:
        coreset: From `jaxsvm.coresets`.
        data: `(x, y)` or `(x, y, sample_weight)`.
        C: Another C than the coreset's, positive, in the data's terms.
        key: A random key of the queries, or a seed.
    """
    require(isinstance(data, tuple | list) and len(data) in (2, 3), "data: (x, y) or (x, y, sample_weight) is needed.")
    x, y, u = as_data(*data)
    d, own = x.shape[1], coreset.x.shape[1]
    require(own == d, f"data has {d} features and the coreset {own}: they must agree.")
    cost: Any = coreset.info["C_data"] if C is None else C
    require_positive("C", cost)
    x_s, y_s, v = as_data(coreset.x, coreset.y, coreset.weight)
    share = v.sum() / u.sum() if coreset.info["regulariser"] == "scaled" else 1.0
    with jax.enable_x64(True):
        measured = _evaluate(as_key(key), *padded(x, y, u, x_s, y_s, v), len(y), float(cost), float(share))
        queries, errors, F = (np.asarray(part) for part in measured)
    size = np.abs(errors)
    # Both are 0 on data of one class.
    excess = float(F[1] / F[0] - 1) if F[0] > 0 else 0.0 if F[1] == 0 else np.inf
    return Evaluation(float(size.max()), float(size.mean()), excess, float(F[0]), queries, errors)


def _evaluated(
    key: Array, x: Array, y: Array, u: Array, x_s: Array, y_s: Array, v: Array, n: Any, C: Any, share: Any
) -> Any:
    """Return queries, the errors there, and F at the first two; the first n points are the data's."""
    keys = jax.random.split(key, 4)
    middle = transposed_product(x, u) / u.sum()
    x, x_s = x - middle, x_s - middle
    best, own = solve(x, y, C * u), solve(x_s, y_s, C * v / share)
    d, row = x.shape[1], lambda at: jnp.append(at.w, at.b)
    size = min(max(2 * d, LEAST_POINTS), len(y))
    count, climbers, climbs = 24, 8, 20  # queries of either kind; those of the largest errors; steps along gradients

    def of_subset(lane: tuple[Array, Array]) -> Array:
        index, factor = lane
        return row(solve(x[index], y[index], factor * C * u[index] * n / size, tol=MEASURED.rough_gap))

    index = jax.random.randint(keys[0], (count, size), 0, n)
    factors = jnp.asarray([0.1, 1.0, 10.0, 1000.0])[jnp.arange(count) % 4]
    subsets = lax.map(of_subset, (index, factors))
    norms = 10 ** jax.random.uniform(keys[1], (count, 1), x.dtype, -2, 1.5)
    gaussians = jax.random.normal(keys[2], (count, d + 1), x.dtype) * norms
    multiples = jnp.asarray([0.0, 0.25, 0.5, 0.8, 1.25, 2.0, 5.0, 20.0])[:, None] * row(best)
    biases = jnp.zeros((6, d + 1), x.dtype).at[:, -1].set(jnp.asarray([0.5, -0.5, 1.0, -1.0, 5.0, -5.0]))
    pool = jnp.concatenate([row(best)[None], row(own)[None], multiples, biases, subsets, gaussians])
    pool = jnp.where(jnp.isfinite(pool), pool, 0)

    def error(queries: Array) -> Array:
        whole = objectives(queries, hinges(x, y, queries), u, C)
        part = objectives(queries, hinges(x_s, y_s, queries), v, C, share)
        # Both are 0 on data of one class if that class is on its side.
        return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1) - 1, jnp.where(part > 0, jnp.inf, 0))

    def climb(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        at, step = carry
        gradient = jax.grad(lambda q: jnp.abs(error(q)).sum())(at)
        size = jnp.linalg.norm(gradient, axis=1, keepdims=True)
        new = at + step * gradient / jnp.where(size > 0, size, 1) * jnp.linalg.norm(at, axis=1, keepdims=True)
        better = (jnp.abs(error(new)) > jnp.abs(error(at)))[:, None]
        return jnp.where(better, new, at), jnp.where(better, step * 1.2, step / 2)  # longer while it climbs

    _, hardest = lax.top_k(jnp.abs(error(pool)), climbers)
    climbed, _ = lax.fori_loop(0, climbs, climb, (pool[hardest], jnp.full((climbers, 1), 0.1, x.dtype)))
    queries = jnp.concatenate([pool, climbed])
    F = objectives(queries[:2], hinges(x, y, queries[:2]), u, C)
    # Back to the data's own origin.
    return queries.at[:, -1].add(-product(queries[:, :-1], middle)), error(queries), F


_evaluate = Program(_evaluated)
