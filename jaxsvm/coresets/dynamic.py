"""A coreset of changing data: points come and go, at O(log n) reduces each.

A balanced binary tree: each leaf holds up to `2 size` points as they are, each node a coreset of its two children (or
their points, if they are no more than `size`). A change affects one leaf and the nodes above it.

Shares of the regulariser refer to a bound W on the total weight, twice the weight at the last rebuild. If the weight
exceeds W or falls below a quarter of it, all nodes are made again.
"""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from jaxsvm.coresets.construction import node_plan
from jaxsvm.coresets.stream import Node, as_coreset, bounded, joined, reduced
from jaxsvm.coresets.summary import Coreset, as_data, as_key
from jaxsvm.errors import InputError, require
from jaxsvm.points.rows import PointsLike
from jaxsvm.runtime.arrays import transfers


class DynamicCoreset:
    """A coreset that follows its data.

    Changes are recorded at once and computed by `coreset()`, each node once. The same changes, followed by `coreset()`
    at the same times with the same key, give the same coreset.

    Attributes:
        reduces: Reduces computed so far.
    """

    @transfers
    def __init__(
        self, C: float, size: int, key: Array | int = 0, *, sampler: str = "mixture", bound: str = "dir",
        clusters: int | tuple[int, ...] | None = 16,
    ):  # fmt: skip
        """Make an empty coreset; the arguments are those of `Stream`, beside a random key or a seed."""
        self._plan = node_plan(C, size, sampler, bound, clusters)
        self.C, self.size, self.reduces = float(C), int(size), 0
        self._key, self._room = as_key(key), 2 * self.size
        self._x = np.zeros((0, 0))  # of all slots, leaf after leaf; an empty one has weight 0
        self._y = self._u = np.zeros(0)
        self._place: dict[int, int] = {}
        self._free: list[int] = []
        self._next, self._bound = 0, 0.0
        self._nodes: dict[tuple[int, int], Node] = {}

    def __len__(self) -> int:
        return len(self._place)

    @transfers
    def insert(self, x: PointsLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> np.ndarray:
        """Add points; return their identities, `(k,)` int64, by which they are removed later."""
        x, y, u = as_data(x, y, sample_weight)
        if not self._next:
            self._x = np.zeros((0, x.shape[1]))
        require(x.shape[1] == (d := self._x.shape[1]), f"x has {x.shape[1]} features, not {d}, as the data so far.")
        while len(self._free) < len(y):
            self._grow()
        slots = np.asarray([self._free.pop() for _ in range(len(y))])
        identities = self._next + np.arange(len(y))
        self._next += len(y)
        self._x[slots], self._y[slots], self._u[slots] = x, y, u
        self._place.update(zip(identities.tolist(), slots.tolist(), strict=True))
        self._mark(slots)
        return identities

    @transfers
    def delete(self, identities: ArrayLike) -> None:
        """Remove points, all or, if one is unknown, none; insert them again for another label or weight."""
        array = np.atleast_1d(identities)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise InputError(f"identities is {identities!r}: the whole numbers that `insert` returned are needed.")
        wanted = array.tolist()
        unknown = [identity for identity in wanted if identity not in self._place]
        if unknown or len(set(wanted)) < len(wanted):
            fault = f"{unknown[0]} is not there" if unknown else "one comes twice"
            raise InputError(f"identities: {fault}; `insert` returns them, and each is removed once.")
        slots = np.asarray([self._place.pop(identity) for identity in wanted], int)
        self._u[slots] = 0
        self._free.extend(slots.tolist())
        self._mark(slots)

    @transfers
    def coreset(self) -> Coreset:
        """Return the coreset of the present points.

        Raises:
            InputError: If there are none.
        """
        U = float(self._u.sum())
        require(U > 0, "there are no points with weight: insert some first.")
        if not self._bound / 4 <= U <= self._bound:  # all nodes anew, at twice the sum
            self._bound = 2 * U
            self._nodes.clear()
        root = self._node((len(self._u) // self._room).bit_length() - 1, 0)
        info = {"n": len(self), "U": U, "sampler": self._plan.sampler, "bound": self._plan.bound}
        return as_coreset(root, self.C, np.float64, info | {"reduces": self.reduces})

    def _node(self, level: int, place: int) -> Node:
        """Return a node, made again if a point below it has changed."""
        if (level, place) not in self._nodes:
            below = (self._node(level - 1, child) for child in (2 * place, 2 * place + 1))
            part = joined(*below) if level else self._leaf(place)
            if len(part.y) > self.size:
                self.reduces += 1
                part = reduced(part, self.C, jax.random.fold_in(self._key, self.reduces), self._plan, 0.0)
            elif part.original and part.share > 0:
                part = bounded(part, self.C)
            self._nodes[level, place] = part
        return self._nodes[level, place]

    def _leaf(self, leaf: int) -> Node:
        part = np.arange(leaf * self._room, (leaf + 1) * self._room)
        part = part[self._u[part] > 0]
        return Node(self._x[part], self._y[part], self._u[part], float(self._u[part].sum()) / self._bound)

    def _grow(self) -> None:
        """Double the number of leaves; the old ones become the left half."""
        old = len(self._u)
        new = max(2 * old, self._room)
        self._x, self._y, self._u = (
            np.concatenate([part, np.zeros((new - old, *part.shape[1:]))]) for part in (self._x, self._y, self._u)
        )
        self._free = list(range(new - 1, old - 1, -1)) + self._free

    def _mark(self, slots: np.ndarray) -> None:
        leaves = np.unique(slots // self._room)
        self._nodes = {place: node for place, node in self._nodes.items() if place[1] not in leaves >> place[0]}
