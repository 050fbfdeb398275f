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

from jaxsvm.coresets.construction.coreset import Plan, construct
from jaxsvm.coresets.summary import Coreset
from jaxsvm.runtime.arrays import zero_filled


class Node(NamedTuple):
    """A weighted part, on the host; float64."""

    x: np.ndarray  # points, `(k, d)`
    y: np.ndarray  # signs, `(k,)`; 0 in empty slots
    weight: np.ndarray  # weights, `(k,)`; 0 in empty slots
    share: Any  # of the regulariser, `()`
    opt: Any = np.float64(0)  # A lower bound of the optimum of all the data, from this part, `()`; 0 if there is none
    # A lower bound of what the part's original points contribute to the optimum of all the data, `()`: parts are
    # problems of their own, so its sum over parts is a lower bound of the whole, without the error of any coreset
    lower: Any = np.float64(0)


def joined(*parts: Node) -> Node:
    """Return the multiset union of parts, which adds no error."""
    x, y, weight = (np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y", "weight"))
    share, opt = np.float64(sum(part.share for part in parts)), np.float64(max(part.opt for part in parts))
    return Node(x, y, weight, share, opt, np.float64(sum(part.lower for part in parts)))


def reduced(
    part: Node, C: float, key: Array, plan: Plan, floor: float, room: int | None = None, leaf: bool = False
) -> Node:
    """Make a coreset of `plan.m` points; if there are fewer points, the rest of its slots are empty.

    C is the factor of the loss of the whole, `floor` a lower bound of its optimum, for parts of one class (0: none).
    The points are padded to `room` with absent ones, so that few programs serve all. `leaf`: they are original points.
    """
    room = len(part.y) if room is None else room
    x, y, u = (zero_filled(a, room) for a in part[:3])
    with jax.enable_x64(True):
        drawn = jax.device_get(_drawn(key, x, y, u, C / float(part.share), plan, float(floor)))
    index = np.minimum(drawn.rows, room - 1)
    weight = np.where(drawn.rows < room, drawn.weight, 0)
    opt = 0.5 * float(part.share) * float(drawn.dual)  # half of it, for the error of the coreset
    lower = part.share * drawn.dual if leaf else part.lower
    y = np.where(weight > 0, y[index], 0)
    return Node(x[index], y, weight, part.share, np.maximum(part.opt, opt), np.float64(lower))


_drawn = jax.jit(construct, static_argnames="plan")


def room_for(n: int) -> int:
    """Round a number of rows up to one of four sizes between two powers of two, to compile few programs."""
    step = max(1, 2 ** (n.bit_length() - 3))
    return -(-n // step) * step


def node_key(base: Array, level: int, number: int) -> Array:
    """Return the key of a node by its place alone: where and when it is computed does not matter."""
    return jax.random.fold_in(jax.random.fold_in(base, level), number)


def as_coreset(part: Node, C: float, dtype: Any, info: dict[str, Any]) -> Coreset:
    """Make a coreset of a node's occupied slots."""
    real = part.weight > 0
    info = {"C": C, "C_data": C, "regulariser": "pinned", "share": float(part.share), "opt": float(part.opt)} | info
    return Coreset(part.x[real].astype(dtype), part.y[real], part.weight[real], info)
