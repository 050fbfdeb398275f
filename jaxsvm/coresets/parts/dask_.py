"""Coresets over a Dask cluster.

"tree": each partition makes one, and they are joined and reduced in a tree. "global": that is the summary by which all
partitions then draw their own points, each by its part in the whole (`whole.py`): two more looks, no error of merging.

    small = jaxsvm.coresets.from_dask((x, y), C=1.0, m=1000, key=0)        # dask arrays
    small = jaxsvm.coresets.from_dask(frame, C=1.0, m=1000, label="class")   # a dask dataframe
    small = jaxsvm.coresets.from_dask([delayed(load)(i) for i in range(64)], C=1.0, m=1000)

A task's randomness comes from its partition's number (and its level in the tree), never from who computes it or when: a
task that a dying worker takes with it is computed again to the same bits. What travels is m points a partition.
"""

import importlib
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxsvm.coresets.construction.coreset import as_key, plan_of
from jaxsvm.coresets.construction.sensitivity import require_choice
from jaxsvm.coresets.data import as_data
from jaxsvm.coresets.parts.nodes import Node, as_coreset, joined, raw, reduced, room_for
from jaxsvm.coresets.parts.stream import PILOT_TOL
from jaxsvm.coresets.parts.whole import Sums, drawn, finished, frame, scale, sums
from jaxsvm.coresets.summary import Coreset
from jaxsvm.errors import InputError
from jaxsvm.runtime.checks import require_positive, require_whole

FAN = 8
"""Coresets that are joined before they are reduced: the fewer levels, the less error."""


def from_dask(
    data: Any, C: float, m: int, key: Array | int = 0, *, label: str | None = None, weight: str | None = None,
    size: int | None = None, sampler: str = "mixture", bound: str = "dir", clusters: Any = 16, mode: str = "tree",
) -> Coreset:  # fmt: skip
    """A coreset of partitioned data; the scheduler is the one that Dask has at hand (a `Client`, or threads).

    Args:
        data: A tuple of Dask arrays `(x, y)` or `(x, y, sample_weight)`; a Dask dataframe, with `label`; or a list of
            delayed partitions, each of which computes to `(x, y)` or `(x, y, sample_weight)`.
        C: What multiplies the loss, positive.
        m: Points of the coreset.
        key: A random key, or a seed.
        label: The dataframe's column of signs.
        weight: Its column of weights, if there is one.
        size: Points of the coresets of partitions and nodes; None: m.
        sampler: As for `coreset`.
        bound: As for `coreset`.
        clusters: As for `coreset`.
        mode: "tree" (m points exactly), or "global" (m points expected, with the mixture and the `dir` bounds only).

    Raises:
        InputError: On arguments that cannot be used, or where Dask is not installed.
    """
    try:
        dask: Any = importlib.import_module("dask")
    except ImportError as error:
        raise InputError("from_dask needs dask, which is not installed: pip install 'jaxsvm[cluster]'") from error
    require_choice("mode", mode, ("tree", "global"))
    if mode == "global" and (sampler != "mixture" or bound != "dir"):
        raise InputError("mode is 'global': it draws by the mixture and the bound 'dir' only.")
    require_positive("C", C)
    require_whole("size", m if size is None else size, 2)
    plans = [
        plan_of(k, sampler, bound, "pinned", clusters, k)._replace(tol=PILOT_TOL) for k in (size if size else m, m)
    ]
    base = np.asarray(jax.random.key_data(as_key(key)))
    parts = _partitions(data, label, weight)
    if not parts:
        raise InputError("data has no partitions.")
    (totals,) = dask.compute([dask.delayed(_total)(part) for part in parts])
    W = float(sum(u for u, _ in totals))
    if not W > 0:
        raise InputError("data: all weights are 0.")
    # The tasks' names are what Dask tells equal work by, and what retries and lost results are computed again by.
    level: list[Any] = [dask.delayed(_leaf)(part, C, W, base, number, plans[0]) for number, part in enumerate(parts)]
    height = 1
    while len(level) > 1:
        groups = [level[i : i + FAN] for i in range(0, len(level), FAN)]
        plan = plans[0] if len(groups) > 1 else plans[1]
        level = [dask.delayed(_merged)(group, C, base, height, i, plan) for i, group in enumerate(groups)]
        height += 1
    (node,) = dask.compute(level[0])
    assert node is not None
    info = {"n": int(sum(n for _, n in totals)), "U": W, "sampler": sampler, "bound": bound, "partitions": len(parts)}
    if mode == "global":
        made = frame(node, float(C), _key(base, height, 0), max(plans[0].counts), PILOT_TOL)
        (seen,) = dask.compute([dask.delayed(_sums)(part, made) for part in parts])
        known = Sums(*(sum(column) for column in zip(*(part for part in seen if part is not None), strict=True)))
        by = scale(node, m, made, known)
        seeds = [(*base.tolist(), height, number) for number in range(len(parts))]
        draws = [dask.delayed(_draws)(part, seed, made, known, by) for part, seed in zip(parts, seeds, strict=True)]
        (draws,) = dask.compute(draws)
        return finished([part for part in draws if part is not None], made, known, np.float64, info)
    if (node.weight > 0).sum() > m:  # a single partition, with a larger `size`
        node = _merged([node], C, base, height, 0, plans[1]) or node
    return as_coreset(node, float(C), np.float64, info)


def _partitions(data: Any, label: str | None, weight: str | None) -> list[Any]:
    """Delayed partitions, in their order."""
    dask: Any = importlib.import_module("dask")

    if isinstance(data, list):
        return data
    if isinstance(data, tuple):
        if len(data) not in (2, 3) or not all(hasattr(part, "to_delayed") for part in data):
            raise InputError("data is a tuple: Dask arrays (x, y) or (x, y, sample_weight) are needed.")
        x, *rest = data
        x = x.rechunk({1: -1})
        rest = [part.rechunk({0: x.chunks[0]}) for part in rest]
        columns = [x.to_delayed().ravel(), *(part.to_delayed().ravel() for part in rest)]
        return [dask.delayed(tuple)(list(blocks)) for blocks in zip(*columns, strict=True)]
    if hasattr(data, "to_delayed"):
        if label is None or label not in data.columns:
            raise InputError(
                f"label is {label!r}: the dataframe's column of signs is needed, one of {list(data.columns)}."
            )
        return [dask.delayed(_of_frame)(part, label, weight) for part in data.to_delayed()]
    raise InputError(f"data is a {type(data).__name__}: Dask arrays, a dataframe or a list of delayed are needed.")


def _of_frame(frame: Any, label: str, weight: str | None) -> tuple[Any, ...]:
    y, u = frame[label].to_numpy(), None if weight is None else frame[weight].to_numpy(float)
    x = frame.drop(columns=[label] if weight is None else [label, weight]).to_numpy()  # `as_data` makes floats of it
    return (x, y) if u is None else (x, y, u)


def _total(part: Any) -> tuple[float, int]:
    return float(len(part[1]) if len(part) == 2 else np.sum(part[2])), len(part[1])


def _leaf(part: Any, C: float, W: float, base: np.ndarray, number: int, plan: Any) -> Node | None:
    """The coreset of a partition; of an empty one none."""
    if not len(part[1]) or (len(part) == 3 and not np.any(part[2])):
        return None
    x, y, u = as_data(*part)
    node = raw(x, y, u, float(u.sum()) / W)
    if len(y) <= plan.m:
        return node
    return reduced(node, C, _key(base, 0, number), plan, 0.0, room_for(len(y)), leaf=True)


def _sums(part: Any, made: Any) -> Sums | None:
    return sums(*as_data(*part), made) if _total(part)[0] > 0 else None


def _draws(part: Any, seed: tuple[int, ...], made: Any, known: Any, by: Any) -> Any:
    return drawn(*as_data(*part), seed, made, known, by) if _total(part)[0] > 0 else None


def _merged(parts: list[Node | None], C: float, base: np.ndarray, height: int, number: int, plan: Any) -> Node | None:
    """What some nodes hold together, reduced if it is more than the plan's size."""
    there = [part for part in parts if part is not None]
    if not there:
        return None
    node, opt = joined(*there), max(float(part.opt) for part in there)
    if len(node.y) <= plan.m:
        return node
    return reduced(node, C, _key(base, height, number), plan, opt, room_for(len(node.y)))


def _key(base: np.ndarray, height: int, number: int) -> Array:
    return jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(jax.numpy.asarray(base)), height), number)
