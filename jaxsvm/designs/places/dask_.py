"""Rows of a Dask cluster: each pass is one task per partition and a tree of sums; what comes back is small.

    rows = jaxsvm.designs.from_dask((x, y))                     # dask arrays
    rows = jaxsvm.designs.from_dask(frame, label="class")       # a dask dataframe
    rows = jaxsvm.designs.from_dask([delayed(load)(i) for i in range(64)])

Partitions are persisted. A task that is computed again because its worker died gives the same bits, and sums are taken
in the order of the partitions: a fit does not depend on who computed it.
"""

from __future__ import annotations

import dataclasses
import pickle
import re
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from jaxsvm.datasets.labels import SAMPLES_PER_CLASS, Layout, is_nothing
from jaxsvm.datasets.reading import load
from jaxsvm.designs.contract import Chunk, OfChunk
from jaxsvm.designs.places.arrays import chosen_of, codes_of, joined, sum_of
from jaxsvm.errors import DataError, InputError, require, require_finite, require_package
from jaxsvm.numerics.sizes import size_class
from jaxsvm.runtime.arrays import in_a_line, transfers, zero_filled


class Delayable(Protocol):
    """A Dask array or dataframe."""

    def to_delayed(self) -> Any:
        """Return its partitions, delayed."""
        ...


DaskData = tuple[Delayable, ...] | Delayable | list[Any]
"""Dask arrays `(x, y)` or `(x, y, sample_weight)`, a dataframe, or partitions of such tuples, delayed."""


@dataclasses.dataclass(frozen=True, eq=False)
class DaskDesign:
    """Rows of a Dask cluster."""

    __repr__ = in_a_line

    parts: list[Any] = dataclasses.field(repr=False)  # persisted chunks, delayed
    n: int  # number of rows
    d: int  # number of features
    classes: tuple[Any, ...] | None  # labels; None for regression
    layout: Layout | None = None  # the columns of a dataframe

    features = ()
    together = False

    def total(self, function: OfChunk, *arguments: Any) -> Any:
        """Return the sum of `function(chunk, *arguments)` over all rows, as NumPy arrays of float64."""
        added, level = require_package("dask", "from_dask").delayed(_added), self._tasks(sum_of, function, arguments)
        while len(level) > 1:
            level = [added(level[i : i + FAN]) for i in range(0, len(level), FAN)]
        return _computed(level[0])

    def chosen(self, function: OfChunk, *arguments: Any) -> Chunk:
        """Return the rows for which `function(chunk, *arguments)` is true, in order: NumPy arrays, x dense."""
        return joined(_computed(self._tasks(chosen_of, function, arguments)))

    def _tasks(self, of_rows: Callable[..., Any], function: OfChunk, arguments: tuple[Any, ...]) -> list[Any]:
        """Return a task a chunk; arguments travel as NumPy arrays: JAX's would lose digits where x64 is off."""
        task = pickle.dumps((of_rows, function, jax.tree.map(np.asarray, arguments)))
        return [require_package("dask", "from_dask").delayed(_done)(part, task) for part in self.parts]


def _computed(tasks: Any) -> Any:
    """Return what tasks on persisted chunks compute to; say what to do if their client is gone."""
    try:
        return require_package("dask", "from_dask").compute(tasks)[0]
    except Exception as error:  # of Dask, without a class of its own
        if not any(word in f"{type(error).__name__} {error}" for word in LOST):
            raise
        raise InputError(
            "design has rows in a Dask client that is closed: make it again by `from_dask`, and keep the client open."
        ) from error


LOST = ("Missing dependency", "CancelledError", "another client")  # words of Dask's errors: a client is closed
FAN = 8  # partial sums that one task adds


@transfers
def from_dask(
    data: DaskData, *, label: str | None = None, weight: str | None = None, classes: tuple[Any, ...] | None = None,
    regression: bool = False,
) -> DaskDesign:  # fmt: skip
    """Return partitioned data as a design, with Dask's current scheduler (a `Client`, or threads).

    Args:
        data: A tuple of Dask arrays `(x, y)` or `(x, y, sample_weight)`; a Dask dataframe, with `label`; or a list of
            delayed partitions, each of which computes to `(x, y)` or `(x, y, sample_weight)`.
        label: The dataframe's column of labels or targets.
        weight: Its column of weights, if there is one.
        classes: All labels, in sorted order; None: those that occur.
        regression: Whether y are targets.

    Raises:
        MissingPackageError: If Dask is not installed.
    """
    dask = require_package("dask", "from_dask")
    parts = dask.persist(*[dask.delayed(_checked)(part) for part in _partitions(data, label, weight)])
    (found,) = dask.compute([dask.delayed(_described)(part, regression) for part in parts])
    widths = {d for n, d, _ in found if n}
    if len(widths) != 1:
        raise InputError(f"data has partitions of {sorted(widths) or 'no'} columns: one number of columns is needed.")
    firsts = np.cumsum([0] + [n for n, _, _ in found])
    if classes is None and not regression:
        classes = _classes({label for _, _, own in found for label in own}, int(firsts[-1]))
    places = zip(parts, firsts, found, strict=False)
    chunks = [dask.delayed(_chunk)(part, int(first), classes, regression) for part, first, (n, *_) in places if n]
    names = [name for name in getattr(data, "columns", ()) if name not in (label, weight)]
    layout = Layout(tuple(names), label) if names and all(isinstance(name, str) for name in names) else None
    return DaskDesign(list(dask.persist(*chunks)), int(firsts[-1]), widths.pop(), classes, layout)


def _partitions(data: Any, label: str | None, weight: str | None) -> list[Any]:
    """Return delayed partitions `(x, y)` or `(x, y, sample_weight)`, in their order; refuse data of another form."""
    dask = require_package("dask", "from_dask")
    if isinstance(data, list):
        return data
    if isinstance(data, tuple):
        if len(data) not in (2, 3) or not all(hasattr(part, "to_delayed") for part in data):
            raise InputError("data is a tuple: Dask arrays (x, y) or (x, y, sample_weight) are needed.")
        x, *rest = data
        x = x.rechunk({1: -1})
        columns = [x, *(part.rechunk({0: x.chunks[0]}) for part in rest)]
        blocks = zip(*(column.to_delayed().ravel() for column in columns), strict=True)
        return [dask.delayed(tuple)(list(block)) for block in blocks]
    if hasattr(data, "to_delayed"):
        if label is None or label not in data.columns:
            raise InputError(f"label is {label!r}: the column of labels is needed, one of {list(data.columns)}.")
        if weight is not None and weight not in data.columns:
            raise InputError(f"weight is {weight!r}: a column is needed, one of {list(data.columns)}.")
        return [dask.delayed(_of_frame)(part, label, weight) for part in data.to_delayed()]
    raise InputError(f"data is a {type(data).__name__}: Dask arrays, a dataframe or a list of delayed are needed.")


def _classes(labels: set[Any], n: int) -> tuple[Any, ...]:
    if len({isinstance(label, str) for label in labels}) > 1:
        raise InputError("data has labels that are text in some partitions and numbers in others: write all alike.")
    if not 2 <= len(labels) <= max(2, n / SAMPLES_PER_CLASS):
        raise InputError(f"data has {len(labels)} labels in {n} rows: classes are needed, or `regression=True`.")
    return tuple(sorted(labels))


def _of_frame(frame: Any, label: str, weight: str | None) -> tuple[Any, ...]:
    """Return a partition's features and labels, by the rules of files, and its weights."""
    if not len(frame):
        return np.zeros((0, 1)), np.zeros(0)
    try:
        found = load(frame.drop(columns=[] if weight is None else [weight]), label=label)
    except DataError as error:  # its advice names options of `load`
        advice = "Dask's `fillna`, `dropna`, `drop` and `get_dummies` do that before."
        raise DataError(f"{re.sub(OPTIONS, '', str(error))} {advice}") from None
    return (found.x, found.y) if weight is None else (found.x, found.y, frame[weight].to_numpy(float))


OPTIONS = r" \([^()]*--[^()]*\)"
"""Options of `load` and of the command, in a message."""


def _checked(part: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a partition as arrays of numbers, weights included."""
    if not isinstance(part, tuple | list) or len(part) not in (2, 3):
        raise InputError(
            f"data has a partition that computes to {type(part).__name__}: (x, y) or (x, y, sample_weight) is needed."
        )
    x, y, *weight = part
    x, y = np.asarray(x.toarray() if hasattr(x, "toarray") else x), np.asarray(y)
    x = x if x.dtype in (np.float32, np.float64) else x.astype(np.float64)
    weights = np.asarray(weight[0], float) if weight else np.ones(len(x))
    for numbers in (x, weights):
        require_finite("data", numbers)
    if (weights < 0).any():
        raise InputError(f"data has a negative weight, {weights.min():.3g}: weights are >= 0.")
    if x.ndim != 2 or y.shape != x.shape[:1] or weights.shape != x.shape[:1]:
        raise InputError(
            f"data has a partition with x {x.shape}, labels {y.shape} and weights {weights.shape}: (k, d), (k,) and "
            "(k,) are needed."
        )
    return x, y, weights


def _described(part: tuple[np.ndarray, ...], regression: bool) -> tuple[int, int, list[Any]]:
    x, y, _ = part
    labels = [] if regression else list(set(y.tolist()))
    require(not any(map(is_nothing, labels)), "data has labels that are missing or not finite: remove those rows.")
    return len(x), x.shape[1], labels


def _chunk(part: tuple[np.ndarray, ...], first: int, classes: tuple[Any, ...] | None, regression: bool) -> Chunk:
    x, y, weight = part
    codes, _ = codes_of(y, classes, regression)
    size = size_class(len(x))
    x, codes, weight = (zero_filled(a, size) for a in (x, codes, weight))
    return Chunk(x, codes, weight, np.int64(first))


def _done(chunk: Chunk, task: bytes) -> Any:
    of_rows, function, arguments = pickle.loads(task)
    return of_rows(function, Chunk(*chunk), arguments)


def _added(parts: list[Any]) -> Any:
    return jax.tree.map(lambda *sums: sum(sums), *parts)
