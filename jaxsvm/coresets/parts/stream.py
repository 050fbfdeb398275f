"""Coresets of streams: merge and reduce in bounded memory.

Points gather in a buffer; a full one is reduced to a coreset, and two coresets of the same level are joined and reduced
to one of the next, as in a binary counter: after n points there are log2(n / chunk) coresets at most. The answer joins
what there is, with the points still in the buffer.

    stream = Stream(C=1.0, size=1000, total_weight=20e6)
    state = stream.init(key)
    for x, y in chunks:
        state = stream.update(state, x, y)
    small = stream.finalize(state)

Source: Tukan, Baykal, Feldman and Rus 2020, Algorithm 2, repaired: each node has its share of the regulariser
(`nodes.py`); what is left at the end is joined, whatever the number of chunks is.
"""

import dataclasses
import json
import math
import os
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxsvm.coresets.construction.coreset import Plan, as_key, plan_of
from jaxsvm.coresets.data import LARGEST, as_data
from jaxsvm.coresets.parts.nodes import Node, as_coreset, joined, raw, read_arrays, reduced, write_arrays
from jaxsvm.coresets.summary import Coreset
from jaxsvm.errors import DataError, InputError
from jaxsvm.runtime.checks import require_positive, require_whole

PILOT_TOL = 1e-3
"""The relative gap of a node's pilot: what it leaves open of w* costs little."""


@dataclasses.dataclass(frozen=True, eq=False)
class StreamState:
    """Where a stream stands; of bounded size. Arrays of the host; `update` makes a new one.

    Attributes:
        key: The base key's data.
        x: Points that wait, `(chunk, d)` float64, of which the first `filled` count; None before the first point.
        y: Their signs, `(chunk,)`.
        u: Their weights, `(chunk,)`.
        filled: How many wait.
        levels: A coreset or None of each level.
        chunks: Chunks reduced so far.
        rows: Points seen.
        weight: Their weight.
        opt: The best lower bound of the optimum so far.
        dtype: Of the points.
    """

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

    def save(self, path: str | os.PathLike[str], **more: Any) -> None:
        """Write it to an npz file (no pickle), whole or not at all; `more` is JSON that `restore` gives back."""
        counts = {name: getattr(self, name) for name in _SCALARS}
        arrays = {"key": self.key, "counts": np.asarray(json.dumps(counts)), "more": np.asarray(json.dumps(more))}
        if self.x is not None:
            assert self.y is not None and self.u is not None
            arrays |= {"x": self.x[: self.filled], "y": self.y[: self.filled], "u": self.u[: self.filled]}
            arrays["shape"] = np.asarray(self.x.shape)
        for j, node in enumerate(self.levels):
            if node is not None:
                arrays |= {f"level_{j}_{name}": np.asarray(part) for name, part in node._asdict().items()}
        write_arrays(path, arrays | {"depth": np.asarray(len(self.levels))})

    @staticmethod
    def restore(path: str | os.PathLike[str]) -> tuple["StreamState", dict[str, Any]]:
        """The state that `save` wrote, bit for bit, and what was saved with it.

        Raises:
            DataError: Where the file is none, is cut short, or holds what no stream can hold: NaN, negative weights,
                labels other than -1 and +1.
        """
        stored = read_arrays(path)
        try:
            counts, more = json.loads(str(stored["counts"])), json.loads(str(stored["more"]))
            waiting = {}
            if "shape" in stored:
                shape = tuple(stored["shape"].tolist())
                for name, size in (("x", shape), ("y", shape[:1]), ("u", shape[:1])):
                    waiting[name] = np.zeros(size)
                    waiting[name][: counts["filled"]] = stored[name]
            levels = tuple(
                Node(*(stored[f"level_{j}_{name}"] for name in Node._fields)) if f"level_{j}_x" in stored else None
                for j in range(int(stored["depth"]))
            )
            state = StreamState(stored["key"], levels=levels, **waiting, **counts)
            state._check()
            return state, more
        except (KeyError, ValueError, TypeError, OverflowError, AttributeError, IndexError) as error:
            raise DataError(f"{os.fspath(path)}: not a state of a stream ({error}).") from error

    def _check(self) -> None:
        """Refuse by a ValueError what no stream leaves behind."""
        jax.random.wrap_key_data(jax.numpy.asarray(self.key))
        numbers = (self.filled, self.chunks, self.rows, self.weight, self.opt)
        if not (np.isfinite(numbers).all() and min(numbers) >= 0 and np.dtype(self.dtype).kind in "biuf"):
            raise ValueError("its counts are no counts")
        if self.filled and (self.x is None or self.filled > len(self.x)):
            raise ValueError("more points wait than there are")
        parts: list[Any] = [("waiting points", self.x, self.y, self.u, self.filled)] if self.x is not None else []
        for j, node in enumerate(self.levels):
            if node is not None:
                parts.append((f"level {j}", node.x, node.y, node.weight, None))
                if not (np.isfinite([node.share, node.opt, node.lower]).all() and node.share > 0 and node.opt >= 0):
                    raise ValueError(f"level {j}: its share or bound is no such number")
        for where, x, y, u, real in parts:
            assert x is not None and y is not None and u is not None
            if x.ndim != 2 or y.shape != x.shape[:1] or u.shape != y.shape or x.shape[1] != parts[0][1].shape[1]:
                raise ValueError(f"{where}: shapes do not agree")
            taken = slice(0, real) if real is not None else u != 0
            if not (np.isfinite(x).all() and np.isfinite(u).all() and (u >= 0).all()):
                raise ValueError(f"{where}: points or weights that are not finite, or weights below 0")
            if not np.isin(y[taken], (-1, 1)).all():
                raise ValueError(f"{where}: labels other than -1 and +1")


_SCALARS = ("filled", "chunks", "rows", "weight", "opt", "dtype")


@dataclasses.dataclass(frozen=True)
class Stream:
    """Configuration of a stream.

    Attributes:
        C: What multiplies the loss, positive: the coreset serves every smaller C too.
        size: Points of each node's coreset, at least 2.
        chunk: Points that are gathered before they are reduced, at least `2 size`; None: `8 size`, in which half as
            much is lost as in `2 size`, at less time.
        total_weight: The weight of the whole stream, or an upper bound; None: not known. Then each chunk takes the next
            power of two of what was seen, the shares may add up to more than 1 (`info["share"]`: the number of times
            that the stream's length doubled, at most), and the guarantee is for `max(1, share) epsilon`.
        sampler: As for `coreset`.
        bound: As for `coreset`.
        clusters: As for `coreset`; 16 by default.
    """

    C: float
    size: int
    chunk: int | None = None
    total_weight: float | None = None
    sampler: str = "mixture"
    bound: str = "dir"
    clusters: Any = 16

    def init(self, key: Array | int = 0) -> StreamState:
        """The state before the first point.

        Raises:
            InputError: On a configuration that cannot be used.
        """
        self._plan()
        require_positive("C", self.C)
        if self.total_weight is not None:
            require_positive("total_weight", self.total_weight)
        if self.chunk is not None:
            require_whole("chunk", self.chunk, 2 * self.size)
        return StreamState(np.asarray(jax.random.key_data(as_key(key))))

    def update(self, state: StreamState, x: Any, y: Any, sample_weight: Any = None) -> StreamState:
        """Take in some points, any number of any class; how they are cut into calls does not matter.

        Args:
            state: From `init`, `update` or `StreamState.restore`; it stays as it is.
            x: Points, `(k, d)`.
            y: Signs, `(k,)`.
            sample_weight: Weights, `(k,)`.

        Raises:
            InputError: On points that cannot be used, of another d than the first ones, or of so many features that a
                chunk of them, which is dense, takes too much memory.
        """
        dtype = state.dtype if state.rows else str(getattr(x, "dtype", "float64"))
        if not len(y):
            return state
        x, y, u = as_data(x, y, sample_weight)
        capacity = self._capacity()
        if state.x is None:
            taken = capacity * x.shape[1] * 8
            if taken > LARGEST:
                raise InputError(
                    f"x has {x.shape[1]} features: a chunk of {capacity} such points takes {taken / 2**30:.1f} GiB, of "
                    f"{LARGEST >> 30} allowed; a smaller `chunk` or `size` is needed, or fewer features."
                )
            shapes = ((capacity, x.shape[1]), (capacity,), (capacity,))
            state = dataclasses.replace(state, **dict(zip("xyu", map(np.zeros, shapes), strict=True)), dtype=dtype)
        assert state.x is not None and state.y is not None and state.u is not None
        if x.shape[1] != state.x.shape[1]:
            raise InputError(f"x has {x.shape[1]} features, the stream {state.x.shape[1]}: they must agree.")
        state = dataclasses.replace(state, x=state.x.copy(), y=state.y.copy(), u=state.u.copy())
        done = 0
        while done < len(y):
            assert state.x is not None and state.y is not None and state.u is not None
            take = slice(done, done + capacity - state.filled)
            count = len(y[take])
            place = slice(state.filled, state.filled + count)
            state.x[place], state.y[place], state.u[place] = x[take], y[take], u[take]
            done += count
            more = {"filled": state.filled + count, "rows": state.rows + count}
            state = dataclasses.replace(state, **more, weight=state.weight + float(u[take].sum()))
            if state.filled == capacity:
                state = self._carry(state)
        return state

    def finalize(self, state: StreamState, m: int | None = None) -> Coreset:
        """The coreset of all points so far; the stream may go on from the state afterwards.

        Args:
            state: Where the stream stands.
            m: Reduce it to so many points; None: the union of the nodes, a few times `size`, which is more exact.

        Raises:
            InputError: Where there was no point.
        """
        whole = self.union(state)
        if m is not None and (whole.weight > 0).sum() > m:
            plan = plan_of(m, self.sampler, self.bound, "pinned", self.clusters, m)
            real = whole.weight > 0
            whole = whole._replace(x=whole.x[real], y=whole.y[real], weight=whole.weight[real])
            room = 2 ** math.ceil(math.log2(len(whole.y)))
            key = jax.random.fold_in(_base(state), 2**31 - 1)
            whole = reduced(whole, self.C, key, plan._replace(tol=PILOT_TOL), state.opt, room)
        info = {"n": state.rows, "U": state.weight, "sampler": self.sampler, "bound": self.bound}
        return as_coreset(whole, self.C, state.dtype, info | {"chunks": state.chunks})

    def union(self, state: StreamState) -> Node:
        """All nodes and the points that wait, with their weights.

        Raises:
            InputError: Where there was no point.
        """
        if state.x is None:
            raise InputError("state: the stream has seen no point yet.")
        assert state.y is not None and state.u is not None
        waiting = slice(0, state.filled)
        rest = raw(state.x[waiting], state.y[waiting], state.u[waiting], self._share(state, waiting))
        return joined(*(node for node in state.levels if node is not None), *([rest] if state.filled else []))

    def _plan(self) -> Plan:
        plan = plan_of(self.size, self.sampler, self.bound, "pinned", self.clusters, self.size)
        return plan._replace(tol=PILOT_TOL)

    def _capacity(self) -> int:
        return 8 * self.size if self.chunk is None else self.chunk

    def _share(self, state: StreamState, part: slice) -> float:
        """Of the points that wait: their part of the whole weight, or of the next power of two of what was seen."""
        assert state.u is not None
        own = float(state.u[part].sum())
        if self.total_weight is None:
            return own / 2.0 ** math.ceil(math.log2(max(state.weight, np.finfo(float).tiny)))
        return own / max(self.total_weight, state.weight)

    def _carry(self, state: StreamState) -> StreamState:
        """Reduce the full buffer, and join and reduce as long as its level is taken."""
        assert state.x is not None and state.y is not None and state.u is not None
        plan, base = self._plan(), _base(state)
        share, opt, levels, j = self._share(state, slice(None)), state.opt, list(state.levels), 0
        if share > 0:
            node = raw(state.x, state.y, state.u, share)
            node = reduced(node, self.C, _key(base, 0, state.chunks), plan, opt, leaf=True)
            opt = max(opt, float(node.opt))
            while j < len(levels) and levels[j] is not None:
                below = levels[j]
                assert below is not None
                levels[j], j = None, j + 1
                node = reduced(joined(below, node), self.C, _key(base, j, state.chunks), plan, opt)
                opt = max(opt, float(node.opt))
            levels = levels + [None] * (j + 1 - len(levels))
            levels[j] = node
        return dataclasses.replace(state, filled=0, levels=tuple(levels), chunks=state.chunks + 1, opt=opt)


def _base(state: StreamState) -> Array:
    return jax.random.wrap_key_data(jax.numpy.asarray(state.key))


def _key(base: Array, level: int, chunk: int) -> Array:
    """A node's own key: who computes it, and when, does not matter."""
    return jax.random.fold_in(jax.random.fold_in(base, level), chunk)
