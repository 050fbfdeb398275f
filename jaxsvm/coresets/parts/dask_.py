"""Coresets over a Dask cluster.

"tree": each partition makes a coreset; these are joined and reduced in a tree. "global": the tree's coreset is a
summary by which each partition then draws its own points (`whole.py`): two more passes, no error of merging.

    small = jaxsvm.coresets.from_dask((x, y), C=1.0, m=1000, key=0)        # dask arrays
    small = jaxsvm.coresets.from_dask(frame, C=1.0, m=1000, label="class")   # a dask dataframe
    small = jaxsvm.coresets.from_dask([delayed(load)(i) for i in range(64)], C=1.0, m=1000)

The random key of a task depends on its partition's number (and its level in the tree) only: a task that is computed
again because its worker died gives the same bits. m points per partition are communicated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxsvm.coresets.construction.coreset import node_plan
from jaxsvm.coresets.parts.nodes import Node, as_coreset, joined, node_key, reduced
from jaxsvm.coresets.parts.whole import drawn_globally
from jaxsvm.coresets.summary import Coreset, as_data, as_key
from jaxsvm.designs.places.dask_ import DaskData, _checked, partitions
from jaxsvm.errors import InputError, require_package
from jaxsvm.runtime.arrays import transfers
from jaxsvm.runtime.checks import require_one_of, require_positive, require_whole


@transfers
def from_dask(
    data: DaskData, C: float, m: int, key: Array | int = 0, *, label: str | None = None, weight: str | None = None,
    size: int | None = None, sampler: str = "mixture", bound: str = "dir", clusters: int | tuple[int, ...] | None = 16,
    mode: str = "tree",
) -> Coreset:  # fmt: skip
    """Make a coreset of partitioned data with Dask's current scheduler (a `Client`, or threads).

    Args:
        data: A tuple of Dask arrays `(x, y)` or `(x, y, sample_weight)`; a Dask dataframe, with `label`; or a list of
            delayed partitions, each of which computes to `(x, y)` or `(x, y, sample_weight)`.
        C: The factor of the loss, positive.
        m: Points of the coreset.
        key: A random key, or a seed.
        label: The dataframe's column of signs.
        weight: Its column of weights, if there is one.
        size: Points of the coresets of partitions and nodes; None: m.
        sampler: "mixture", "systematic" or "independent", see `coreset`.
        bound: "dir", "tight", "fixed" or "printed", see `coreset`.
        clusters: Cells per class, or several for the least of several bounds.
        mode: "tree" (m points exactly), or "global" (m points expected, with the mixture and the `dir` bounds only).

    Raises:
        InputError: If an argument cannot be used.
        MissingPackageError: If Dask is not installed.
    """
    dask = require_package("dask", "from_dask")
    require_one_of("mode", mode, ("tree", "global"))
    if mode == "global" and (sampler != "mixture" or bound != "dir"):
        raise InputError("mode is 'global': it draws by the mixture and the bound 'dir' only.")
    require_positive("C", C)
    require_whole("size", m if size is None else size, 2)
    plan, last_plan = (node_plan(k, sampler, bound, clusters) for k in (size if size else m, m))
    base = np.asarray(jax.random.key_data(as_key(key)))
    parts = partitions(data, label, weight)
    if not parts:
        raise InputError("data has no partitions.")
    (totals,) = dask.compute([dask.delayed(_total)(part) for part in parts])
    widths = {d for _, n, d in totals if n}
    if len(widths) > 1:
        raise InputError(f"data has partitions of {sorted(widths)} columns: one number of columns is needed.")
    W = float(sum(u for u, *_ in totals))
    if not W > 0:
        raise InputError("data: all weights are 0.")
    level: list[Any] = [dask.delayed(_leaf)(part, C, W, base, number, plan) for number, part in enumerate(parts)]
    height, fan = 1, 8  # coresets are joined by eight before they are reduced: fewer levels make less error
    while len(level) > 1:
        groups = [level[i : i + fan] for i in range(0, len(level), fan)]
        by = plan if len(groups) > 1 else last_plan
        level = [dask.delayed(_merged)(group, C, base, height, i, by) for i, group in enumerate(groups)]
        height += 1
    (node,) = dask.compute(level[0])
    assert node is not None
    n = sum(n for _, n, _ in totals)
    info = {"n": n, "U": W, "sampler": sampler, "bound": bound, "partitions": len(parts)}
    if mode == "global":

        def over_parts(f: Callable[..., Any]) -> list[Any]:
            (results,) = dask.compute([dask.delayed(_applied)(part, f, number) for number, part in enumerate(parts)])
            return [result for result in results if result is not None]

        seed, clusters = (*base.tolist(), height), max(plan.counts)
        own = _key(base, height, 0)
        return drawn_globally(node, m, float(C), own, clusters, seed, over_parts, np.float64, info)
    if (node.weight > 0).sum() > m:  # a single partition, with a larger `size`
        node = _merged([node], C, base, height, 0, last_plan) or node
    return as_coreset(node, float(C), np.float64, info)


def _total(part: Any) -> tuple[float, int, int]:
    x, y, weight = _checked(part)
    return float(weight.sum()), len(y), x.shape[1]


@transfers
def _leaf(part: Any, C: float, W: float, base: np.ndarray, number: int, plan: Any) -> Node | None:
    """Make the coreset of a partition; None for an empty one."""
    if not len(part[1]) or (len(part) == 3 and not np.any(part[2])):
        return None
    x, y, u = as_data(*part)
    return _reduced(Node(x, y, u, float(u.sum()) / W), C, _key(base, 0, number), plan)


@transfers
def _merged(parts: list[Node | None], C: float, base: np.ndarray, height: int, number: int, plan: Any) -> Node | None:
    """Join some nodes; reduce them if they have more points than the plan's size."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    return _reduced(joined(*present), C, _key(base, height, number), plan)


def _reduced(node: Node, C: float, key: Array, plan: Any) -> Node:
    return node if len(node.y) <= plan.m else reduced(node, C, key, plan, node.opt)


@transfers
def _applied(part: Any, f: Callable[..., Any], number: int) -> Any:
    """Apply a function to a partition; None for one without weight."""
    return f(number, *as_data(*part)) if _total(part)[0] > 0 else None


def _key(base: np.ndarray, height: int, number: int) -> Array:
    return node_key(jax.random.wrap_key_data(jax.numpy.asarray(base)), height, number)
