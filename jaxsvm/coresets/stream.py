"""Coresets of streams: merge and reduce in bounded memory.

Points gather in a buffer. A full buffer is reduced to a coreset, and two coresets of the same level are joined and
reduced to one of the next level, as in a binary counter: after n points there are log2(n / chunk) coresets at most. The
result joins all coresets with the points that are in the buffer.

    stream = Stream(C=1.0, size=1000, total_weight=20e6)
    state = stream.init(key)
    for x, y in chunks:
        state = stream.update(state, x, y)
    small = stream.finalize(state)

Each node of the tree has its share of the regulariser:

    F = sum over parts Q of   rho_Q 1/2 |w|^2 + C sum_Q u h,        sum rho_Q <= 1,    rho_Q = U(Q) / W

A part with the share rho is a problem with `C / rho` and the whole regulariser; its coreset is made for that. With C
alone (as in the paper) J parts together may be off by J epsilon / 2 |w|^2. Shares add up when parts are joined, and a
coreset of a part has the part's share. Parts of error epsilon join to a whole of error epsilon; a coreset of error e2
of one of error e1 has at most (1 + e1) (1 + e2) - 1.

Source: Tukan, Baykal, Feldman and Rus 2020, Algorithm 2, corrected: shares, and the coresets left at the end are
joined, whatever the number of chunks is.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from jaxsvm.coresets.construction import Plan, constructed, node_plan
from jaxsvm.coresets.measured import MEASURED
from jaxsvm.coresets.summary import Coreset, as_data, as_key, float_dtype, solved
from jaxsvm.errors import DataError, InputError, require_package
from jaxsvm.gram.measured import MEASURED as SIZES
from jaxsvm.points.rows import PointsLike
from jaxsvm.runtime.arrays import in_a_line, transfers
from jaxsvm.runtime.checks import checked, require_positive, require_whole
from jaxsvm.runtime.files import write_arrays, write_whole

MERGED = (
    "it is merged of coresets of parts, and no error below 1 is known for it. `opt` is a proven lower bound of the "
    "optimum: one pass over the data, for the objective of its machine, shows how good that machine is."
)


class Node(NamedTuple):
    """A weighted part, on the host; float64."""

    x: np.ndarray  # points, `(k, d)`
    y: np.ndarray  # signs, `(k,)`; 0 in empty slots
    weight: np.ndarray  # weights, `(k,)`; 0 in empty slots
    share: Any  # of the regulariser, `()`
    original: Any = np.bool_(True)  # whether the points are the data's own, `()`
    # A lower bound of the optimum of `share 1/2 |w|^2 + C sum u h` over the part's original points, `()`: dual values
    # of coresets prove nothing about the data
    lower: Any = np.float64(0)

    @property
    def opt(self) -> float:
        """Return a lower bound of the optimum of all the data: shares may add up to more than the one regulariser."""
        return float(self.lower / max(1.0, float(self.share)))


def joined(*parts: Node) -> Node:
    """Return the multiset union of parts, which adds no error."""
    x, y, weight = (np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y", "weight"))
    share, lower = (np.float64(sum(getattr(part, name) for part in parts)) for name in ("share", "lower"))
    return Node(x, y, weight, share, np.bool_(all(part.original for part in parts)), lower)


def reduced(part: Node, C: float, key: Array, plan: Plan, floor: float) -> Node:
    """Make a coreset of `plan.m` points; if there are fewer points, the rest of its slots are empty.

    C is the factor of the loss of the whole, `floor` a lower bound of its optimum, for parts of one class (0: none).
    """
    with jax.enable_x64(True):
        drawn = constructed(key, *part[:3], C / float(part.share), plan, floor)
    index = np.minimum(drawn.rows[: plan.m], len(part.y) - 1)
    weight = drawn.weight[: plan.m]
    lower = max(float(part.lower), float(part.share * drawn.dual) if part.original else 0.0)
    y = np.where(weight > 0, part.y[index], 0)
    return Node(part.x[index], y, weight, part.share, np.bool_(False), np.float64(lower))


def bounded(part: Node, C: float) -> Node:
    """Return a part of original points with its lower bound."""
    with jax.enable_x64(True):
        at = solved(*part[:3], C / float(part.share), MEASURED.rough_gap)
    return part._replace(lower=np.float64(part.share * at.dual))


def node_key(base: Array, level: int, number: int) -> Array:
    """Return the key of a node by its place alone: where and when it is computed does not matter."""
    return jax.random.fold_in(jax.random.fold_in(base, level), number)


def as_coreset(part: Node, C: float, dtype: Any, info: dict[str, Any]) -> Coreset:
    """Make a coreset of a node's occupied slots."""
    real = part.weight > 0
    known = {"epsilon": 0.0, "change": 0.0, "notes": ()} if part.original else {"epsilon": np.inf, "notes": (MERGED,)}
    info = {"C": C, "C_data": C, "regulariser": "pinned", "share": float(part.share), "opt": part.opt} | known | info
    return Coreset(part.x[real].astype(dtype), part.y[real], part.weight[real], info)


@checked
def save_coreset(path: str | os.PathLike[str], small: Coreset) -> None:
    """Write a coreset in the format that the file name ends in.

    `.npz`: keys X, y, weight. `.parquet`: columns x0, x1, ..., label, weight. `.svm`, `.svmlight`, `.libsvm`, `.txt`:
    svmlight lines, and the weights one a line in a second file with `.weight` appended to the name, as LIBSVM's and
    LIBLINEAR's `-W` take it; a kill in between leaves no second file. npz and Parquet also hold C and `info`.

    Raises:
        InputError: If the name has another end.
    """
    name = os.fspath(path)
    lower = name.lower()
    values = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in small.info.items() if k != "index"}
    info = json.dumps(values, default=repr)
    if lower.endswith(".npz"):
        arrays = {"X": small.x, "y": small.y.astype(np.int8), "weight": small.weight}
        write_arrays(name, arrays | {"C": np.float64(small.C), "info": np.asarray(info)})
    elif lower.endswith((".parquet", ".pq")):
        pa, parquet = (require_package(name, "reading Parquet files") for name in ("pyarrow", "pyarrow.parquet"))
        columns = {f"x{j}": small.x[:, j] for j in range(small.x.shape[1])}
        table = pa.table(columns | {"label": small.y.astype(np.int8), "weight": small.weight})
        table = table.replace_schema_metadata({"C": repr(small.C), "info": info})
        write_whole(lambda file: parquet.write_table(table, file), name)
    elif lower.endswith((".svm", ".svmlight", ".libsvm", ".txt")):

        def write(file: Any, weights: Any) -> None:
            for row, sign, weight in zip(small.x.tolist(), small.y.tolist(), small.weight.tolist(), strict=True):
                entries = " ".join(f"{j + 1}:{value!r}" for j, value in enumerate(row) if value)
                file.write(f"{int(sign):+d} {entries}\n".encode())
                weights.write(f"{weight!r}\n".encode())

        write_whole(write, name, f"{name}.weight")
    else:
        raise InputError(f"the name is {name!r}: .npz, .parquet, .svm, .svmlight, .libsvm or .txt are known.")


@checked
def load_coreset(path: str | os.PathLike[str]) -> Coreset:
    """Read a coreset that `save_coreset` wrote as npz.

    Raises:
        DataError: If the file is something else.
    """
    stored = read_arrays(path, "npz file of a coreset")
    if not {"X", "y", "weight", "info"} <= set(stored):
        raise DataError(f"{os.fspath(path)}: no coreset: its keys are {', '.join(stored)}.")
    return Coreset(stored["X"], stored["y"].astype(float), stored["weight"], json.loads(str(stored["info"])))


def read_arrays(path: str | os.PathLike[str], what: str) -> dict[str, np.ndarray]:
    """Read the arrays of an npz file, or say what it is not.

    Raises:
        DataError: If the file is damaged or something else.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except Exception as error:  # EOF, CRC, a bad header: damage shows in many ways
        raise DataError(f"{os.fspath(path)}: not a whole {what} ({error}).") from error


@dataclasses.dataclass(frozen=True, eq=False)
class StreamState:
    """The state of a stream, of bounded size: arrays of the host that `update` never changes.

    Attributes:
        key: The base key's data.
        x: The buffer, `(chunk, d)` float64, of which the first `filled` points count; None before the first point.
        y: Their signs, `(chunk,)`.
        u: Their weights, `(chunk,)`.
        filled: Points in the buffer.
        levels: A coreset or None of each level.
        chunks: Chunks reduced so far.
        rows: Points seen.
        weight: Their weight.
        opt: The best lower bound of the optimum so far: later points only raise it.
        dtype: Of the points.
    """

    __repr__ = in_a_line

    key: np.ndarray
    x: np.ndarray | None = None
    y: np.ndarray | None = None
    u: np.ndarray | None = None
    filled: int = 0
    levels: tuple[Node | None, ...] = ()
    chunks: int = 0
    rows: int = 0
    weight: float = 0.0
    opt: float = 0.0
    dtype: str = "float64"

    def save(self, path: str | os.PathLike[str], **more: object) -> None:
        """Write it to an npz file (no pickle), whole or not at all, with JSON values that `restore` returns."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        arrays = {"key": self.key, "counts": np.asarray(json.dumps(counts)), "more": np.asarray(json.dumps(more))}
        if self.x is not None:
            arrays |= dict(zip("xyu", (part[: self.filled] for part in self.buffer()), strict=True))
            arrays["shape"] = np.asarray(self.x.shape)
        for j, node in enumerate(self.levels):
            if node is not None:
                arrays |= {f"level_{j}_{name}": np.asarray(part) for name, part in node._asdict().items()}
        write_arrays(path, arrays | {"depth": np.asarray(len(self.levels))})

    @staticmethod
    def restore(path: str | os.PathLike[str]) -> tuple[StreamState, dict[str, Any]]:
        """Read the state that `save` wrote, bit for bit, and the values saved with it.

        Raises:
            DataError: If the file is something else, is cut short, or holds what no stream can hold: NaN, negative
                weights, labels other than -1 and +1.
        """
        stored = read_arrays(path, "state of a stream")
        try:
            counts, more = json.loads(str(stored["counts"])), json.loads(str(stored["more"]))
            buffer = {}
            if "shape" in stored:
                shape = tuple(stored["shape"].tolist())
                for name, size in (("x", shape), ("y", shape[:1]), ("u", shape[:1])):
                    buffer[name] = np.zeros(size)
                    buffer[name][: counts["filled"]] = stored[name]
            levels = tuple(
                Node(*(stored[f"level_{j}_{name}"] for name in Node._fields)) if f"level_{j}_x" in stored else None
                for j in range(int(stored["depth"]))
            )
            state = StreamState(stored["key"], levels=levels, **buffer, **counts)
            state._check()
            return state, more
        except (KeyError, ValueError, TypeError, OverflowError, AttributeError, IndexError) as error:
            raise DataError(f"{os.fspath(path)}: not a state of a stream ({error}).") from error

    def _check(self) -> None:
        """Raise a ValueError for a state that no stream can reach."""
        jax.random.wrap_key_data(jax.numpy.asarray(self.key))
        numbers = (self.filled, self.chunks, self.rows, self.weight, self.opt)
        if not (np.isfinite(numbers).all() and min(numbers) >= 0 and np.dtype(self.dtype).kind in "biuf"):
            raise ValueError("its counts are no counts")
        if self.filled and (self.x is None or self.filled > len(self.x)):
            raise ValueError("its buffer holds fewer points than it counts")
        parts = [("its buffer", Node(*self.buffer(), share=1.0))] if self.x is not None else []
        parts += [(f"level {j}", node) for j, node in enumerate(self.levels) if node is not None]
        for where, node in parts:
            x, y, u, *numbers = node
            if x.ndim != 2 or y.shape != x.shape[:1] or u.shape != y.shape or x.shape[1] != parts[0][1].x.shape[1]:
                raise ValueError(f"{where}: shapes do not agree")
            finite = all(np.isfinite(part).all() for part in (x, u, numbers))
            signed = (u >= 0).all() and np.isin(y[u != 0], (-1, 1)).all()
            if not (finite and signed and node.share > 0 and node.lower >= 0):
                raise ValueError(f"{where}: points, signs, weights, share or bound that no stream holds")

    def buffer(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return points, signs and weights of the buffer, after the first point."""
        assert self.x is not None and self.y is not None and self.u is not None
        return self.x, self.y, self.u

    def base_key(self) -> Array:
        """Return the base key."""
        return jax.random.wrap_key_data(jax.numpy.asarray(self.key))


_COUNTS = ("filled", "chunks", "rows", "weight", "opt", "dtype")


@dataclasses.dataclass(frozen=True)
class Stream:
    """The configuration of a stream.

    Attributes:
        C: The factor of the loss, positive: the coreset serves every smaller C too.
        size: Points of each node's coreset, at least 2.
        chunk: Points of the buffer, at least `2 size`; None: `8 size`, which loses half as much as `2 size`, in less
            time.
        total_weight: The weight of the whole stream, or an upper bound; None: not known. Then each chunk takes the next
            power of two of the weight so far, the shares may add up to more than 1 (`info["share"]`: the number of
            times that the stream's length doubled, at most), and the guarantee is for `max(1, share) epsilon`.
        sampler: "mixture", "systematic" or "independent", see `coreset`.
        bound: "dir", "tight", "fixed" or "printed", see `coreset`.
        clusters: Cells per class, or several for the least of several bounds.
    """

    C: float
    size: int
    chunk: int | None = None
    total_weight: float | None = None
    sampler: str = "mixture"
    bound: str = "dir"
    clusters: int | tuple[int, ...] | None = 16

    @transfers
    def init(self, key: Array | int = 0) -> StreamState:
        """Return the state before the first point.

        Raises:
            InputError: If the configuration cannot be used.
        """
        require_whole("size", self.size, 2)
        self._plan(self.size)
        require_positive("C", self.C)
        if self.total_weight is not None:
            require_positive("total_weight", self.total_weight)
        if self.chunk is not None:
            require_whole("chunk", self.chunk, 2 * self.size)
        return StreamState(np.asarray(jax.random.key_data(as_key(key))))

    @transfers
    def update(
        self, state: StreamState, x: PointsLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> StreamState:
        """Add any number of points of any class; the partition into calls does not change the result.

        Args:
            state: From `init`, `update` or `StreamState.restore`; it is not changed.
            x: Points, `(k, d)`.
            y: Signs, `(k,)`.
            sample_weight: Weights, `(k,)`.

        Raises:
            InputError: If points cannot be used, have another d than the first ones, or have so many features that the
                dense buffer takes too much memory.
        """
        rows: Any = x
        if not np.size(y) and np.shape(rows)[:1] == (0,):
            return state
        dtype = str(np.result_type(float_dtype(x), *([state.dtype] if state.rows else [])))  # that of all calls
        data = as_data(x, y, sample_weight)
        capacity, d = 8 * self.size if self.chunk is None else self.chunk, data[0].shape[1]
        if state.x is None:
            taken, allowed = capacity * d * 8, SIZES.bytes_to_store
            if taken > allowed:
                raise InputError(
                    f"x has {d} features: a chunk of {capacity} such points takes {taken / 2**30:.1f} GiB, of "
                    f"{allowed >> 30} allowed; a smaller `chunk` or `size` is needed, or fewer features."
                )
            buffer = (np.zeros((capacity, d)), np.zeros(capacity), np.zeros(capacity))
        else:
            buffer = tuple(part.copy() for part in state.buffer())
        if d != buffer[0].shape[1]:
            raise InputError(f"x has {d} features, the stream {buffer[0].shape[1]}: they must agree.")
        state = dataclasses.replace(state, **dict(zip("xyu", buffer, strict=True)), dtype=dtype)
        done = 0
        while done < len(data[1]):
            take = slice(done, done + capacity - state.filled)
            count = len(data[1][take])
            for part, new in zip(buffer, data, strict=True):
                part[state.filled : state.filled + count] = new[take]
            done += count
            more = {"filled": state.filled + count, "rows": state.rows + count}
            state = dataclasses.replace(state, **more, weight=state.weight + float(data[2][take].sum()))
            if state.filled == capacity:
                state = self._carry(state)
        return state

    @transfers
    def finalize(self, state: StreamState, m: int | None = None) -> Coreset:
        """Return the coreset of all points so far; the stream may go on from the state afterwards.

        Args:
            state: The state of the stream.
            m: Reduce it to so many points; None: the union of the nodes, a few times `size`, which is more exact.

        Raises:
            InputError: If there was no point.
        """
        whole = self.union(state)
        real = whole.weight > 0
        if m is not None and real.sum() > m:
            plan = self._plan(m)
            whole = whole._replace(x=whole.x[real], y=whole.y[real], weight=whole.weight[real])
            key = jax.random.fold_in(state.base_key(), 2**31 - 1)
            whole = reduced(whole, self.C, key, plan, state.opt)
        info = {"n": state.rows, "U": state.weight, "sampler": self.sampler, "bound": self.bound}
        info |= {"chunks": state.chunks, "opt": max(state.opt, whole.opt)}
        return as_coreset(whole, self.C, state.dtype, info)

    @transfers
    def union(self, state: StreamState) -> Node:
        """Return all nodes and the points of the buffer, with their weights.

        Raises:
            InputError: If there was no point.
        """
        if state.x is None:
            raise InputError("state: the stream has seen no point yet.")
        rest = [bounded(raw, self.C)] if state.filled and (raw := self._raw(state)).share > 0 else []
        return joined(*(node for node in state.levels if node is not None), *rest)

    def _plan(self, m: int) -> Plan:
        return node_plan(m, self.sampler, self.bound, self.clusters)

    def _raw(self, state: StreamState) -> Node:
        """Return the points of the buffer; without a total weight, their share is of the next power of two."""
        x, y, u = (part[: state.filled] for part in state.buffer())
        if self.total_weight is None:
            whole = 2.0 ** math.ceil(math.log2(max(state.weight, np.finfo(float).tiny)))
        else:
            whole = max(self.total_weight, state.weight)
        return Node(x, y, u, float(u.sum()) / whole)

    def _carry(self, state: StreamState) -> StreamState:
        """Reduce the full buffer; join and reduce as long as its level is taken."""
        plan, base, node = self._plan(self.size), state.base_key(), self._raw(state)
        opt, levels, j = state.opt, list(state.levels), 0
        if node.share > 0:
            node = reduced(node, self.C, node_key(base, 0, state.chunks), plan, opt)
            while j < len(levels) and (below := levels[j]) is not None:
                levels[j], j = None, j + 1
                node = reduced(joined(below, node), self.C, node_key(base, j, state.chunks), plan, opt)
            levels = levels + [None] * (j + 1 - len(levels))
            levels[j] = node
            opt = max(opt, joined(*(level for level in levels if level is not None)).opt)
        return dataclasses.replace(state, filled=0, levels=tuple(levels), chunks=state.chunks + 1, opt=opt)
