"""Arrays on a mesh whose axes are Explicit (what `jax.make_mesh` makes): their sharding is part of their type.

Operations of this library leave the sharding of what they compute to XLA. So arrays that hold values are taken as if
the axes of their mesh were Auto, and what is traced of others is computed inside `jax.sharding.auto_axes`.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxsvm.errors import is_concrete


def with_automatic_axes(x: Any) -> Any:
    """Return an array that holds values on a mesh of Auto axes, where its own are Explicit; nothing is moved."""
    if not isinstance(x, jax.Array) or not is_concrete(x) or not _explicit_axes(x):
        return x
    sharding = cast(NamedSharding, x.sharding)
    mesh = cast(Mesh, sharding.mesh)
    automatic = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    return jax.device_put(x, NamedSharding(automatic, sharding.spec))


def in_automatic_axes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute a traced function with the axes of its arguments' mesh as Auto ones; its results are replicated."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        meshes = [jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(arguments) if _explicit_axes(leaf)]
        if not meshes:
            return function(*arguments)
        replicated = NamedSharding(meshes[0], PartitionSpec())
        return jax.sharding.auto_axes(function, axes=meshes[0].explicit_axes, out_sharding=replicated)(*arguments)

    return call


def _explicit_axes(leaf: Any) -> tuple[str, ...]:
    if not isinstance(leaf, jax.Array):
        return ()
    sharding = getattr(jax.typeof(leaf), "sharding", None)
    return () if sharding is None else sharding.mesh.explicit_axes
