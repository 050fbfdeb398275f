"""Lay out arrays on a mesh of devices, and handle meshes with Explicit axes (what `jax.make_mesh` makes).

The operations of this library leave sharding to XLA: arrays are laid out, and compilers find the communication.
Concrete arrays are therefore treated as if the axes of their mesh were Auto, and traced ones are computed inside
`jax.sharding.auto_axes`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.runtime.arrays import automatic_context, checked, explicit_axes


@dataclasses.dataclass(frozen=True)
class Spread:
    """How samples are spread over the devices along one axis of a mesh. Static in pytrees; build it with `over`."""

    mesh: Mesh  # the devices; its axes are Auto
    axis: str  # the name of the axis

    @classmethod
    def over(cls, mesh: Any, axis: str | None) -> "Spread":
        """Return the layout over an axis of a mesh; None: the first one.

        Raises:
            InputError: On anything that is no mesh, or has no such axis.
        """
        if not isinstance(mesh, Mesh):
            raise InputError(f"mesh is a {type(mesh).__name__}: a `jax.sharding.Mesh` is needed (`jax.make_mesh`).")
        name: str = mesh.axis_names[0] if axis is None else axis
        if name not in mesh.axis_names:
            raise InputError(f"axis is {name!r}: the mesh has {', '.join(map(repr, mesh.axis_names))}.")
        return cls(_automatic(mesh), name)

    @property
    def parts(self) -> int:
        """Return the number of devices along the axis."""
        return self.mesh.shape[self.axis]

    def placed(self, tree: Any, n: int | None = None) -> Any:
        """Lay out arrays over the last axis that has n entries; those without one are on every device.

        Arrays may be traced. n None puts all on every device.
        """

        def place(leaf: Any) -> Any:
            axes = [axis for axis, size in enumerate(np.shape(leaf)) if size == n]
            return self.along(leaf, axes[-1] if axes else None) if hasattr(leaf, "dtype") else leaf

        return jax.tree.map(place, tree)

    def along(self, values: Any, axis: int | None) -> Any:
        """Lay out an array over one of its axes; None: on every device."""
        spec = PartitionSpec(*(self.axis if place == axis else None for place in range(np.ndim(values))))
        if is_concrete(values):
            sharding = NamedSharding(self.mesh, spec)
            here = isinstance(values, jax.Array) and not values.is_fully_addressable
            return jax.device_put(values if here else _on_host(values), sharding)
        return lax.with_sharding_constraint(values, NamedSharding(self._mesh_here, spec))

    def of_each_device(self, function: Callable[..., Any], *shares: Any) -> Any:
        """Apply a function to each device's share of vectors, and concatenate the results along the first axis."""
        over = PartitionSpec(self.axis)
        each = jax.shard_map(function, mesh=self._mesh_here, in_specs=over, out_specs=over, axis_names={self.axis})
        return each(*shares)

    @property
    def _mesh_here(self) -> Any:
        """Return the mesh, inside a `shard_map` over other axes as JAX sees it there."""
        around = jax.sharding.get_abstract_mesh()
        return around if around.manual_axes else self.mesh


def _on_host(values: Any) -> Any:
    """Convert a concrete array to NumPy, from which each device takes its part; keep a random key as it is."""
    return values if jnp.issubdtype(values.dtype, jax.dtypes.prng_key) else np.asarray(values)


def with_automatic_axes(x: Any) -> Any:
    """Return a concrete array with the Explicit axes of its mesh turned into Auto ones; no data moves."""
    if not isinstance(x, jax.Array) or not is_concrete(x) or not explicit_axes(x):
        return x
    sharding = cast(NamedSharding, x.sharding)
    return jax.device_put(x, NamedSharding(_automatic(cast(Mesh, sharding.mesh)), sharding.spec))


def in_automatic_axes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that the Explicit axes of its arguments' mesh are Auto inside; its results are replicated."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        meshes = [jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(arguments) if explicit_axes(leaf)]
        if not meshes:
            return function(*arguments)
        replicated = NamedSharding(meshes[0], PartitionSpec())
        return jax.sharding.auto_axes(function, axes=meshes[0].explicit_axes, out_sharding=replicated)(*arguments)

    return call


def host_drives(*operators: Any, concrete: bool = True) -> bool:
    """Return whether the host may drive computations with these Gram operators.

    It may not on a mesh of several processes, whose hosts could decide differently. Nor may it on any mesh if problems
    are traced for derivatives (not `concrete`): these are derivatives of one compiled fit.
    """
    spreads = [spread for gram in operators if (spread := getattr(gram, "spread", None)) is not None]
    return not any(spread.mesh.is_multi_process or not concrete for spread in spreads)


@checked
def shard_lanes(
    function: Callable[..., Any], mesh: Mesh, axis: str | None = None, in_axes: int | tuple[int | None, ...] = 0
) -> Callable[..., Any]:
    """Return `jax.jit(jax.vmap(function, in_axes))`, whose lanes are divided among the devices along an axis of a mesh.

    Devices do not communicate: values of C, widths, folds or pairs of classes are fitted side by side. Where samples
    lie along another axis of the mesh (`shard_rows`), they communicate along that one.

    Args:
        function: A function of arrays, such as `lambda C, problem: jaxsvm.fit(problem.at(C))`.
        mesh: The devices: a `jax.sharding.Mesh`.
        axis: The axis of the mesh that lanes are divided along; None: the first one.
        in_axes: As of `jax.vmap`: 0 for an argument that has lanes along its first axis, None for one without. Pass
            what is large, such as a problem, as an argument: what a function closes over becomes a part of the program.

    Returns:
        The function. Any number of lanes will do: copies of the last one fill up the devices' shares.

    Raises:
        InputError: On a mesh without such an axis.
    """
    spread = Spread.over(mesh, axis)

    def call(*arguments: Any) -> Any:
        has_lanes = (in_axes,) * len(arguments) if isinstance(in_axes, int) else in_axes
        pairs = list(zip(arguments, has_lanes, strict=True))
        count = len(jax.tree.leaves([argument for argument, lanes in pairs if lanes is not None])[0])
        places = np.minimum(np.arange(-(-count // spread.parts) * spread.parts), count - 1)
        full = [
            argument if lanes is None else jax.tree.map(lambda leaf: leaf[places], argument)
            for argument, lanes in pairs
        ]
        over = PartitionSpec(spread.axis)
        each = jax.shard_map(
            jax.vmap(function, in_axes=in_axes),
            mesh=spread.mesh,
            in_specs=tuple(PartitionSpec() if lanes is None else over for lanes in has_lanes),
            out_specs=over,
            axis_names={spread.axis},
        )
        return jax.tree.map(lambda leaf: leaf[:count], each(*full))

    compiled = jax.jit(call)

    @functools.wraps(function)
    def lanes(*arguments: Any) -> Any:
        with automatic_context(arguments):
            return compiled(*arguments)

    return lanes


def _automatic(mesh: Mesh) -> Mesh:
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
