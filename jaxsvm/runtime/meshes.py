"""Handle arrays on a mesh with Explicit axes (what `jax.make_mesh` makes), whose sharding is part of their type.

The operations of this library leave sharding to XLA. Concrete arrays are therefore treated as if the axes of their mesh
were Auto, and traced ones are computed inside `jax.sharding.auto_axes`.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxsvm.errors import is_concrete


def with_automatic_axes(x: Any) -> Any:
    """Return a concrete array with the Explicit axes of its mesh turned into Auto ones; no data moves."""
    if not isinstance(x, jax.Array) or not is_concrete(x) or not _explicit_axes(x):
        return x
    sharding = cast(NamedSharding, x.sharding)
    mesh = cast(Mesh, sharding.mesh)
    automatic = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    return jax.device_put(x, NamedSharding(automatic, sharding.spec))


def in_automatic_axes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that the Explicit axes of its arguments' mesh are Auto inside; its results are replicated."""

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
