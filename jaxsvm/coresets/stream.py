"""Coresets of streams: merge and reduce in bounded memory.

A full buffer is reduced to a coreset, and two coresets of one level are joined and reduced to one of the next, as in a
binary counter: log2(n / chunk) coresets at most. The result joins all of them with the points that are in the buffer.

    stream = Stream(C=1.0, size=1000, total_weight=20e6)
    state = stream.init(key)
    for x, y in chunks:
        state = stream.update(state, x, y)
    small = stream.finalize(state)

Each node has its share `rho = U(Q) / W` of the regulariser, and is a problem with `C / rho` and the whole of it. Shares
add up when parts are joined, which adds no error; reduces multiply: (1 + e1) (1 + e2) - 1.

Source: Tukan, Baykal, Feldman and Rus 2020, Algorithm 2, corrected: docs/papers/coresets.md, "Errata".
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
from jaxsvm.coresets.sampling import sample_size
from jaxsvm.coresets.summary import OF_PARTS, Coreset, as_data, as_key, float_dtype, solved
from jaxsvm.designs.fit import read_arrays
from jaxsvm.errors import DataError, InputError, require
from jaxsvm.gram.measured import MEASURED as SIZES
from jaxsvm.points.rows import PointsLike
from jaxsvm.runtime.arrays import checked, in_a_line, require_memory, require_positive, require_whole, transfers
from jaxsvm.runtime.files import write_arrays


class Node(NamedTuple):
    """A weighted part, on the host; float64."""

    x: np.ndarray  # points, `(k, d)`
    y: np.ndarray  # signs, `(k,)`
    weight: np.ndarray  # weights, `(k,)`
    share: Any  # of the regulariser, `()`
    original: Any = np.bool_(True)  # whether the points are the data's own, `()`
    s: Any = np.float64(0)  # `sum a` of dual variables of the part's original points, `()`: 0 <= a <= C u, sum a y = 0
    pull: Any = np.float64(0)  # their `sum a y x`, `(d,)`, or 0

    def cut(self, first: int, last: int | None) -> Node:
        """Return some of its points, as a part without a share."""
        return Node(self.x[first:last], self.y[first:last], self.weight[first:last], 0.0)

    @property
    def lower(self) -> float:
        """Return a lower bound of the optimum of all data that include the part.

        As `C u h >= a (1 - y f)` for every point, `F >= s - <pull, w> + |w|^2 / 2 >= s - |pull|^2 / 2`: of a union of
        parts too, which adds their a, and for a times t <= 1. With a of optima at `C / share`, and shares that add up
        to 1, this is at least `sum s - |pull|^2 / 2 share`, the sum of the parts' optima (Cauchy and Schwarz).
        """
        s, size = float(self.s), float(np.sum(np.square(self.pull)))
        return s - size / 2 if size <= s else s * s / (2 * size)


def joined(*parts: Node) -> Node:
    """Return the multiset union of parts, which adds no error."""
    x, y, weight = (np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y", "weight"))
    share, s, pull = (sum(getattr(part, name) for part in parts) for name in ("share", "s", "pull"))
    return Node(x, y, weight, share, np.bool_(all(part.original for part in parts)), s, pull)


def reduced(part: Node, C: float, key: Array, plan: Plan, floor: float) -> Node:
    """Make a coreset of `plan.m` points at most; C and `floor`, a lower bound of the optimum or 0, are of the whole."""
    with jax.enable_x64(True):
        drawn = constructed(key, *part[:3], C / float(part.share), plan, floor)
    real = drawn.weight > 0
    index, weight = drawn.rows[real], drawn.weight[real]
    part = _proven(part, drawn.pilot) if part.original else part
    return part._replace(x=part.x[index], y=part.y[index], weight=weight, original=np.bool_(False))


def bounded(part: Node, C: float) -> Node:
    """Return a part of original points with its lower bound."""
    with jax.enable_x64(True):
        return _proven(part, solved(*part[:3], C / float(part.share)))


def _proven(part: Node, at: Any) -> Node:
    return part._replace(s=part.share * (at.dual + 0.5 * at.pull @ at.pull), pull=part.share * at.pull)


def as_coreset(part: Node, C: float, dtype: Any, info: dict[str, Any]) -> Coreset:
    """Make a coreset of a node's points that have weight."""
    real = part.weight > 0
    known = {"epsilon": 0.0, "change": 0.0, "notes": ()} if part.original else {"epsilon": np.inf, "notes": (OF_PARTS,)}
    info = {"C": C, "C_data": C, "regulariser": "pinned", "share": float(part.share)} | known | info
    return Coreset(part.x[real].astype(dtype), part.y[real], part.weight[real], info | {"lower": part.lower})


@transfers
def join(*parts: Coreset) -> Coreset:
    """Join coresets of parts of the data, made by `coreset(..., share=)`; the largest of their errors is the error.

    Raises:
        InputError: If they are not pinned ones by `coreset`, of the same C and d, or their shares add up to over 1.
    """
    made = [part.info["regulariser"] if "cells" in part.info else "of parts" for part in parts]
    Cs, ds = [part.info["C_data"] * part.info["share"] for part in parts], [part.x.shape[1] for part in parts]
    same = {*made} == {"pinned"} and len({*ds}) == 1 and np.allclose(Cs, Cs[:1], 1e-9, 0)
    require(same, f"parts are {made[:4]}, of C {Cs[:4]} and d {ds[:4]}: pinned ones of `coreset` and alike are needed.")
    shares = sum(part.info["share"] for part in parts)
    require(shares < 1 + 1e-6, f"parts have shares of {shares:.6g}: at most 1 in all; pass each share= to `coreset`.")
    nodes = [Node(np.asarray(of.x, float), of.y, of.weight, of.info["share"], np.bool_(False)) for of in parts]
    whole = joined(*nodes)._replace(s=sum(part.info["share"] * part.info["lower"] for part in parts))
    info = {name: sum(part.info[name] for part in parts) for name in ("n", "U")}
    info |= {"sampler": parts[0].info["sampler"], "bound": parts[0].info["bound"]}
    return as_coreset(whole, Cs[0], np.result_type(*(part.x.dtype for part in parts)), info)


@checked
def save_coreset(path: str | os.PathLike[str], small: Coreset) -> None:
    """Write a coreset to an npz file: keys X, y, weight, C and info (JSON), which `load_coreset` reads.

    Raises:
        InputError: If the name does not end in `.npz`.
    """
    name = os.fspath(path)
    require(name.lower().endswith(".npz"), f"the name is {name!r}: one that ends in .npz is needed.")
    values = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in small.info.items() if k != "index"}
    arrays = {"X": small.x, "y": small.y.astype(np.int8), "weight": small.weight, "C": np.float64(small.C)}
    write_arrays(name, arrays | {"info": np.asarray(json.dumps(values, default=repr))})


@checked
def load_coreset(path: str | os.PathLike[str]) -> Coreset:
    """Read a coreset that `save_coreset` wrote as npz.

    Raises:
        DataError: If the file is something else.
    """
    stored = read_arrays(path, "npz file of a coreset")
    if not {"X", "y", "weight", "info"} <= set(stored):
        raise DataError(f"{os.fspath(path)}: no coreset: its keys are {', '.join(stored)}.")
    info = json.loads(str(stored["info"]))
    if "lower" not in info:
        raise DataError(f"{os.fspath(path)}: a coreset by an older version, without a lower bound: make it again.")
    return Coreset(stored["X"], stored["y"].astype(float), stored["weight"], info)


@dataclasses.dataclass(frozen=True, eq=False)
class StreamState:
    """The state of a stream, of bounded size: arrays of the host that `update` never changes.

    Attributes:
        key: The base key's data.
        rest: The points of the buffer, less than a chunk, float64; None before the first point.
        levels: A coreset or None of each level.
        chunks: Chunks reduced so far.
        weight: The weight of their points.
        rows: Points seen.
        dtype: Of the points.
    """

    __repr__ = in_a_line

    key: np.ndarray
    rest: Node | None = None
    levels: tuple[Node | None, ...] = ()
    chunks: int = 0
    weight: float = 0.0
    rows: int = 0
    dtype: str = "float64"

    @property
    def filled(self) -> int:
        """Return how many points are in the buffer."""
        return 0 if self.rest is None else len(self.rest.y)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to an npz file (no pickle), whole or not at all."""
        nodes = (self.rest, *self.levels)
        counts = {k: v for k, v in vars(self).items() if k not in ("key", "rest", "levels")} | {"nodes": len(nodes)}
        arrays = {"key": self.key, "counts": np.asarray(json.dumps(counts))}
        for j, node in enumerate(nodes):
            if node is not None:
                arrays |= {f"{j}_{name}": np.asarray(part) for name, part in node._asdict().items()}
        write_arrays(path, arrays)

    @staticmethod
    def restore(path: str | os.PathLike[str]) -> StreamState:
        """Read the state that `save` wrote, bit for bit.

        Raises:
            DataError: If the file is something else, is cut short, or holds what no stream can hold.
        """
        stored = read_arrays(path, "state of a stream")
        try:
            counts = json.loads(str(stored["counts"]))
            nodes = [
                Node(*(stored[f"{j}_{name}"] for name in Node._fields)) if f"{j}_x" in stored else None
                for j in range(counts.pop("nodes"))
            ]
            state = StreamState(stored["key"], nodes[0], tuple(nodes[1:]), **counts)
            _ = state.base_key(), np.dtype(state.dtype)  # raises for what is neither
            widths, numbers = set(), [state.chunks, state.weight, state.rows]
            for node in filter(None, nodes):
                if any(map(np.size, node[:3])):
                    as_data(*node[:3])  # refuses what are no points, signs or weights
                widths |= {node.x.shape[1]} | {*np.shape(node.pull)}
                numbers += [float(number) for number in (*node[3:6], np.abs(node.pull).sum())]
            if len(widths) > 1 or not all(0 <= number < np.inf for number in numbers):
                raise ValueError("it holds widths, counts, shares or bounds that no stream holds")
            return state
        except (KeyError, ValueError, TypeError, OverflowError, AttributeError, IndexError) as error:
            raise DataError(f"{os.fspath(path)}: not a state of a stream ({error}).") from error

    def base_key(self) -> Array:
        """Return the base key."""
        return jax.random.wrap_key_data(jax.numpy.asarray(self.key))


@dataclasses.dataclass(frozen=True)
class Stream:
    """The configuration of a stream.

    Attributes:
        C: The factor of the loss, positive: the coreset serves every smaller C too.
        size: Points of each node's coreset, at least 2.
        chunk: Points of the buffer, at least `2 size`; None: `8 size`, which loses half as much in less time.
        total_weight: The weight of the whole stream, or an upper bound; None: not known. Then each chunk takes the next
            power of two of the weight so far, and the guarantee is for `max(1, share) epsilon` (`info["share"]`).
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
        """Return the state before the first point."""
        self._plan(self.size)
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
        """
        rows: Any = x
        if not np.size(y) and np.shape(rows)[:1] == (0,):
            return state
        dtype = str(np.result_type(float_dtype(x), *([state.dtype] if state.rows else [])))  # that of all calls
        held = Node(*as_data(x, y, sample_weight), 0.0)
        count, capacity, d = len(held.y), 8 * self.size if self.chunk is None else self.chunk, held.x.shape[1]
        what, instead = f"x has {d} features, of which a chunk's {capacity} points", "take a smaller `chunk` or `size`"
        require_memory(capacity * d * 8, what, f"{instead}, or fewer features", SIZES.bytes_to_store)
        if state.rest is not None:
            require(d == (own := state.rest.x.shape[1]), f"x has {d} features, the stream {own}: they must agree.")
            held = joined(state.rest, held)
        full = len(held.y) // capacity * capacity
        for first in range(0, full, capacity):
            state = self._carry(state, held.cut(first, first + capacity))
        rest = joined(held.cut(full, None))  # a copy
        return dataclasses.replace(state, rest=rest, rows=state.rows + count, dtype=dtype)

    @transfers
    def finalize(self, state: StreamState, m: int | None = None) -> Coreset:
        """Return the coreset of all points so far; the stream may go on from the state afterwards.

        Args:
            state: The state of the stream.
            m: Reduce it to so many points; None: the union of the nodes, a few times `size`, which is more exact.

        Raises:
            InputError: If there was no point.
        """
        if state.rest is None:
            raise InputError("state: the stream has seen no point yet.")
        rest, weight = self._shared(state, state.rest), state.weight + float(state.rest.weight.sum())
        whole = joined(*filter(None, state.levels), *([bounded(rest, self.C)] if rest.share > 0 else []))
        if m is not None and (whole.weight > 0).sum() > m:
            key = jax.random.fold_in(state.base_key(), 2**31 - 1)
            whole = reduced(whole, self.C, key, self._plan(m), whole.lower)
        info = {"n": state.rows, "U": weight, "sampler": self.sampler, "bound": self.bound, "chunks": state.chunks}
        return as_coreset(whole, self.C, state.dtype, info)

    def size_for(self, n: int, epsilon: float, delta: float, total: float, features: int) -> int:
        """Return the points of a node with which n points, in such chunks, have the error epsilon at all `(w, b)`.

        Each of h levels may be off by epsilon / 2h, and each node may fail with delta over their number. `total` is the
        sum of the bounds, which is for a chunk about what it is for all (`info["total"]` of its coreset).
        """
        require_whole("n", n, 1)
        chunks = math.ceil(n / (self.chunk or 8 * self.size))
        levels = math.ceil(math.log2(chunks)) + 1
        return sample_size(total, epsilon / (2 * levels), delta / (2 * chunks), features=features)

    def _plan(self, m: int) -> Plan:
        return node_plan(self.C, m, self.sampler, self.bound, self.clusters)

    def _shared(self, state: StreamState, part: Node) -> Node:
        """Return the next points with their share; without a total weight, it is that of the next power of two."""
        own = float(part.weight.sum())
        whole = state.weight + own
        if self.total_weight is None:
            whole = 2.0 ** math.ceil(math.log2(max(whole, np.finfo(float).tiny)))
        return part._replace(share=own / max(whole, self.total_weight or 0.0))

    def _carry(self, state: StreamState, chunk: Node) -> StreamState:
        """Reduce a chunk; join and reduce as long as its level is taken."""
        plan, node = self._plan(self.size), self._shared(state, chunk)
        levels, j = list(state.levels), 0
        floor = joined(*before).lower if (before := [*filter(None, levels)]) else 0.0

        def key(level: int) -> Array:
            """Return the key of a node by its place alone: where and when it is computed does not matter."""
            return jax.random.fold_in(jax.random.fold_in(state.base_key(), level), state.chunks)

        if node.share > 0:
            node = reduced(node, self.C, key(0), plan, floor)
            while j < len(levels) and (below := levels[j]) is not None:
                levels[j], j = None, j + 1
                node = reduced(joined(below, node), self.C, key(j), plan, floor)
            levels = levels + [None] * (j + 1 - len(levels))
            levels[j] = node
        more = {"weight": state.weight + float(chunk.weight.sum()), "chunks": state.chunks + 1}
        return dataclasses.replace(state, levels=tuple(levels), **more)
