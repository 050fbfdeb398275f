"""Coresets of data that lie on the devices of a mesh.

"global": the construction of one host, compiled for sharded arrays: XLA sums over the devices for cells, gradients and
totals. The probabilities are those of one host up to rounding, and there is no error of merging.
"tree": each device makes a coreset of its part under `shard_map`, with its share of the regulariser, and one reduce
makes one of all: only sums and `size` points per device are communicated.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array
from numpy.typing import ArrayLike

from jaxsvm.coresets.construction.coreset import Plan, _construct, construct, plan_of
from jaxsvm.coresets.measured import MEASURED
from jaxsvm.coresets.parts.nodes import Node, as_coreset, reduced
from jaxsvm.coresets.summary import Coreset, as_data, as_key, float_dtype, packed, room_for
from jaxsvm.points.rows import PointsLike
from jaxsvm.runtime.arrays import transfers, zero_filled
from jaxsvm.runtime.checks import require_one_of, require_positive
from jaxsvm.runtime.meshes import Spread


@transfers
def on_mesh(
    x: PointsLike, y: ArrayLike, C: float, m: int, mesh: Mesh, key: Array | int = 0,
    sample_weight: ArrayLike | None = None, *, axis: str | None = None, mode: str = "global", size: int | None = None,
    sampler: str = "mixture", bound: str = "dir", clusters: int | tuple[int, ...] | None = 16,
) -> Coreset:  # fmt: skip
    """Make a coreset of m points of data that are sharded over one axis of a mesh.

    Args:
        x: Points, `(n, d)`.
        y: Signs in {-1, +1}, `(n,)`.
        C: The factor of the loss, positive.
        m: Points of the coreset.
        mesh: The devices.
        key: A random key, or a seed.
        sample_weight: Weights, `(n,)`.
        axis: The mesh axis of the rows; None: the first.
        mode: "global" or "tree", as above.
        size: Points of each device's coreset ("tree"); None: m.
        sampler: "mixture", "systematic" or "independent", see `coreset`.
        bound: "dir", "tight", "fixed" or "printed", see `coreset`.
        clusters: Cells per class, or several for the least of several bounds.

    Raises:
        InputError: If an argument cannot be used.
    """
    require_one_of("mode", mode, ("global", "tree"))
    require_positive("C", C)
    plan, dtype = plan_of(m, sampler, bound, "pinned", clusters, np.size(y)), float_dtype(x)
    x, y, u = as_data(x, y, sample_weight)
    spread = Spread.over(mesh, axis)
    mesh, axis, count = spread.mesh, spread.axis, spread.parts
    room = -(-room_for(len(y)) // count) * count
    filled = [zero_filled(a, room) for a in (x, y, u)]
    info = {"n": len(y), "C_data": float(C), "regulariser": "pinned", "sampler": sampler, "bound": bound}
    with jax.enable_x64(True):
        xs, ys, us = spread.placed(filled, room)
        if mode == "global":
            drawn = jax.device_get(_construct(as_key(key), xs, ys, us, float(C), plan.m, plan.with_room()))
            return packed(drawn, filled[0], filled[1], filled[2], dtype, info)
        plan = plan._replace(tol=MEASURED.rough_gap)
        local = plan._replace(m=m if size is None else size)
        parts = jax.device_get(_by_device(as_key(key), xs, ys, us, float(C), local, mesh, axis))
    whole = Node(*parts[:3], share=np.float64(1), original=np.bool_(False), lower=np.float64(parts[3].sum()))
    if (whole.weight > 0).sum() > m:
        whole = reduced(whole, C, jax.random.fold_in(as_key(key), count), plan, 0.0)
    more = {"n": len(y), "U": float(u.sum()), "sampler": sampler, "bound": bound}
    return as_coreset(whole, float(C), dtype, more)


@partial(jax.jit, static_argnames=("plan", "mesh", "axis"))
def _by_device(key: Array, x: Array, y: Array, u: Array, C: Any, plan: Plan, mesh: Mesh, axis: str) -> Any:
    rows, everywhere = PartitionSpec(axis), PartitionSpec()

    def of_part(key: Array, x: Array, y: Array, u: Array, C: Array) -> Any:
        share = u.sum() / jax.lax.psum(u.sum(), axis)
        rho = jnp.where(share > 0, share, 1)
        own = jax.random.fold_in(key, jax.lax.axis_index(axis))
        drawn = construct(own, x, y, u, C / rho, plan.m, plan)
        index = jnp.minimum(drawn.rows, len(y) - 1)
        real = (drawn.rows < len(y)) & (share > 0)
        lower = jnp.where(share > 0, share * drawn.dual, 0)
        return x[index], jnp.where(real, y[index], 0), jnp.where(real, drawn.weight, 0), lower[None]

    mapped = jax.shard_map(
        of_part, mesh=mesh, in_specs=(everywhere, rows, rows, rows, everywhere), out_specs=(rows,) * 4, check_vma=False
    )
    return mapped(key, x, y, u, jnp.asarray(C))
