"""Nodes of a merge tree: coresets of parts, which know their share of the regulariser.

    F = sum over parts Q of   rho_Q 1/2 |w|^2 + C sum_Q u h,        sum rho_Q <= 1,    rho_Q = U(Q) / W

A part with the share rho is one with `C / rho` and the whole regulariser, and that is what its coreset is made for:
with C alone (as the paper has it) J parts together may be off by J epsilon / 2 |w|^2. Shares add up when parts are
joined, and a coreset of a part has the part's share. Parts of error epsilon join to a whole of error epsilon; a coreset
of error e2 of one of error e1 has at most (1 + e1) (1 + e2) - 1.
"""

import io
import os
import tempfile
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from jaxsvm.coresets.construction.coreset import Plan, construct
from jaxsvm.coresets.summary import Coreset
from jaxsvm.errors import DataError


class Node(NamedTuple):
    """A weighted part, on the host; float64.

    Attributes:
        x: Points, `(k, d)`.
        y: Signs, `(k,)`; 0 in empty slots.
        weight: Weights, `(k,)`; 0 in empty slots.
        share: Of the regulariser, `()`.
        opt: A lower bound of the optimum of all the data, from this part, `()`: 0 where it tells nothing.
        lower: What the part's points as they were contribute to the optimum of all the data at least, `()`: parts are
            problems of their own, so the sum over parts is a lower bound of the whole that no coreset is in between of.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    share: Any
    opt: Any
    lower: Any = np.float64(0)


def raw(x: np.ndarray, y: np.ndarray, u: np.ndarray, share: float) -> Node:
    """Points as they are."""
    return Node(x, y, u, np.float64(share), np.float64(0))


def joined(*parts: Node) -> Node:
    """The multiset union: no error is added."""
    x, y, weight = (np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y", "weight"))
    share, opt = np.float64(sum(part.share for part in parts)), np.float64(max(part.opt for part in parts))
    return Node(x, y, weight, share, opt, np.float64(sum(part.lower for part in parts)))


def reduced(
    part: Node, C: float, key: Array, plan: Plan, floor: float, room: int | None = None, leaf: bool = False
) -> Node:
    """A coreset of `plan.m` points; slots that there are no points for are empty.

    Args:
        part: What to reduce.
        C: What multiplies the loss of the whole.
        key: A random key.
        plan: The construction.
        floor: A lower bound of the optimum of all data, for parts of one class; 0: none.
        room: The number of points to fill up to, with absent ones, so that few programs serve all; None: as it is.
        leaf: Whether the points are the data's own.
    """
    room = len(part.y) if room is None else room
    fill = room - len(part.y)
    x, y, u = (np.pad(a, [(0, fill)] + [(0, 0)] * (a.ndim - 1)) for a in part[:3])
    with jax.enable_x64(True):
        drawn = jax.device_get(_drawn(key, x, y, u, C / float(part.share), plan, float(floor)))
    index = np.minimum(drawn.rows, room - 1)
    weight = np.where(drawn.rows < room, drawn.weight, 0)
    opt = 0.5 * float(part.share) * float(drawn.dual)  # one half for what a coreset may be off by
    lower = part.share * drawn.dual if leaf else part.lower
    y = np.where(weight > 0, y[index], 0)
    return Node(x[index], y, weight, part.share, np.maximum(part.opt, opt), np.float64(lower))


def room_for(n: int) -> int:
    """A few sizes serve all partitions: programs are compiled for each."""
    step = max(1, 2 ** (n.bit_length() - 3))
    return -(-n // step) * step


_drawn = jax.jit(construct, static_argnames="plan")


def as_coreset(part: Node, C: float, dtype: Any, info: dict[str, Any]) -> Coreset:
    """What users get: the slots that hold a point."""
    real = part.weight > 0
    info = {"C": C, "C_data": C, "regulariser": "pinned", "share": float(part.share), "opt": float(part.opt)} | info
    return Coreset(part.x[real].astype(dtype), part.y[real], part.weight[real], info)


def write_arrays(path: str | os.PathLike[str], arrays: dict[str, np.ndarray]) -> None:
    """An npz file without pickled objects, written whole or not at all."""
    target = os.path.realpath(os.fspath(path))
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    handle, neighbour = tempfile.mkstemp(dir=os.path.dirname(target), prefix=f".{os.path.basename(target)}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(neighbour, target)
    except BaseException:
        os.unlink(neighbour)
        raise


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of such a file.

    Raises:
        DataError: Where the file is none.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except Exception as error:  # EOF, CRC, a bad header: damage shows itself in many ways
        raise DataError(f"{os.fspath(path)}: not a whole state of a stream ({error}).") from error
