"""Nodes of a merge tree: coresets of parts, each with its share of the regulariser.

    F = sum over parts Q of   rho_Q 1/2 |w|^2 + C sum_Q u h,        sum rho_Q <= 1,    rho_Q = U(Q) / W

A part with the share rho is a problem with `C / rho` and the whole regulariser; its coreset is made for that. With C
alone (as in the paper) J parts together may be off by J epsilon / 2 |w|^2. Shares add up when parts are joined, and a
coreset of a part has the part's share. Parts of error epsilon join to a whole of error epsilon; a coreset of error e2
of one of error e1 has at most (1 + e1) (1 + e2) - 1.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from jaxsvm.coresets.construction.coreset import Plan, constructed
from jaxsvm.coresets.measured import MEASURED
from jaxsvm.coresets.summary import Coreset, solved

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
