"""Loops that work inside a user's `jax.shard_map`, and arrays on a mesh of devices.

A `shard_map` checks whether each carry varies from device to device. A carry that starts as a constant and becomes
something that varies changes its type there (`check_vma=True`, the default). Inside a `shard_map` these loops mark
every carry as varying along the mapped axes; elsewhere they are JAX's own loops.

The operations of this library leave sharding to XLA: arrays are laid out, and compilers find the communication.
Concrete arrays are therefore treated as if the axes of their mesh were Auto, also where they are Explicit (what
`jax.make_mesh` makes), and traced ones are computed inside `jax.sharding.auto_axes`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.runtime.arrays import automatic_context, checked, explicit_axes, promoting

_T = TypeVar("_T")


def while_loop(goes_on: Callable[[_T], Any], turn: Callable[[_T], _T], start: _T) -> _T:
    """Repeat `turn` while `goes_on(carry)` holds, as `lax.while_loop` does."""
    return lax.while_loop(goes_on, _with_varying_results(turn), varying(start))


def fori_loop(lower: Any, upper: Any, turn: Callable[[Any, _T], _T], start: _T, unroll: int | None = None) -> _T:
    """Apply `turn(i, carry)` for each integer from `lower` to `upper - 1`, as `lax.fori_loop` does."""
    return lax.fori_loop(lower, upper, _with_varying_results(turn), varying(start), unroll=unroll)


def scan(turn: Callable[[Any, Any], tuple[Any, Any]], start: Any, xs: Any) -> tuple[Any, Any]:
    """Apply `turn(carry, x)` to each row of `xs` and stack the outputs, as `lax.scan` does."""
    return lax.scan(_with_varying_results(turn), varying(start), xs)


def cond(condition: Bool[Array, ""], if_true: Callable[..., _T], if_false: Callable[..., _T], *operands: Any) -> _T:
    """Compute one of two branches, as `lax.cond` does."""
    return lax.cond(condition, _with_varying_results(if_true), _with_varying_results(if_false), *operands)


def _with_varying_results(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: varying(function(*arguments))


def in_groups(together: int, function: Callable[..., _T], *arguments: Any) -> _T:
    """Return `function(*arguments)`; lanes of `vmap` are computed in groups, one after another, as by `lax.map`.

    Side by side, every lane of a loop takes turns until the last one ends, and the memory of all lanes passes through
    the caches at each operation. An accelerator takes all lanes at once. The function must not be differentiated.
    `together` is the largest number of lanes side by side; 1: one by one.
    """
    if jax.default_backend() != "cpu":
        return function(*arguments)
    leaves, structure = jax.tree.flatten(arguments)
    flags = [not is_concrete(leaf) for leaf in leaves]

    def of_traced(*traced: Any) -> _T:
        own = iter(traced)
        pairs = zip(leaves, flags, strict=True)
        return function(*structure.unflatten([next(own) if flag else leaf for leaf, flag in pairs]))

    return _grouped(of_traced, together)(*[leaf for leaf, flag in zip(leaves, flags, strict=True) if flag])


def _grouped(function: Callable[..., _T], together: int) -> Callable[..., _T]:
    """Return a function of arrays that computes at most so many lanes side by side."""
    call = custom_vmap(function)

    @call.def_vmap
    @promoting()
    def _(axis_size: int, batched: list[bool], *traced: Any) -> tuple[_T, Any]:
        if axis_size == 1:  # a program without lanes is smaller
            lane = [leaf[0] if flag else leaf for leaf, flag in zip(traced, batched, strict=True)]
            results = jax.tree.map(lambda leaf: leaf[None], call(*lane))
            return results, jax.tree.map(lambda _: True, results)
        groups = -(-axis_size // together)
        size = -(-axis_size // groups)
        lanes = function if size == 1 else jax.vmap(function, in_axes=[0 if flag else None for flag in batched])
        of_group = _grouped(lanes, max(1, together // size))  # an outer vmap finds lanes of a whole group
        if groups == 1:
            results = of_group(*traced)
        else:
            places = jnp.minimum(jnp.arange(groups * size, dtype=jnp.int32), axis_size - 1)  # the last lane fills up
            cut = (groups,) if size == 1 else (groups, size)

            def split(leaf: Any) -> Any:
                leaf = leaf if len(places) == axis_size else leaf[places]
                return leaf.reshape(cut + leaf.shape[1:])

            def one(group: list[Any]) -> _T:
                own = iter(group)
                return of_group(*[next(own) if flag else leaf for leaf, flag in zip(traced, batched, strict=True)])

            results = lax.map(one, [split(leaf) for leaf, flag in zip(traced, batched, strict=True) if flag])
            merge = lambda leaf: leaf.reshape((-1, *leaf.shape[len(cut) :]))[:axis_size]  # noqa: E731
            results = jax.tree.map(merge, results)
        return results, jax.tree.map(lambda _: True, results)

    return call


def varying(tree: _T) -> _T:
    """Mark every array of a tree as varying along all axes that a surrounding `shard_map` maps over."""
    for axis in jax.sharding.get_abstract_mesh().manual_axes:
        tree = jax.tree.map(lambda leaf, axis=axis: _varying(leaf, axis), tree)
    return tree


def _varying(leaf: Any, axis: str) -> Any:
    try:
        return lax.pcast(leaf, axis, to="varying")
    except ValueError:  # it varies already
        return leaf


def once(condition: Bool[Array, ""], compute: Callable[[_T], _T], value: _T) -> _T:
    """Return `compute(value)` if the condition holds, else `value`.

    This is a loop of at most one turn. Under `vmap` a `lax.cond` computes both branches always; this loop computes only
    if the condition holds in at least one lane.
    """
    captured: list[Any] = []
    # In a `shard_map` the converted function would mark as varying what varies already.
    if not jax.sharding.get_abstract_mesh().manual_axes:
        compute, captured = jax.closure_convert(compute, value)

    def turn(carry: tuple[Bool[Array, ""], _T]) -> tuple[Bool[Array, ""], _T]:
        # What is captured is tied to the carry: XLA computes what a loop does not change before it, even if it takes no
        # turn, and in lanes that is most of a polish.
        value, tied = lax.optimization_barrier((carry[1], captured))
        return jnp.asarray(False), compute(value, *tied)

    return while_loop(lambda carry: carry[0], turn, (condition, value))[1]


@dataclasses.dataclass(frozen=True)
class Spread:
    """How samples are spread over the devices along one axis of a mesh. Static in pytrees; build it with `over`."""

    mesh: Mesh  # the devices; its axes are Auto
    axis: str  # the name of the axis

    @classmethod
    def over(cls, mesh: Any, axis: str | None) -> "Spread":
        """Return the layout over an axis of a mesh; None: the first one."""
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
        around = jax.sharding.get_abstract_mesh()
        return around if around.manual_axes else self.mesh


def _on_host(values: Any) -> Any:
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
        full = [part if lanes is None else jax.tree.map(lambda leaf: leaf[places], part) for part, lanes in pairs]
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


def in_rounds(round: Callable[..., Any], state: Any, limit: Array | int, excess: Array) -> tuple[Any, Array, Array]:
    """Run rounds until the excess is at most 1, or NaN, or `limit` steps are taken; traceable.

    `round` maps a state, and the steps that are left, to the next state, the steps that it took, and the excess: the
    value of the stop rule over its threshold, 0 if no further round can change anything. Return the last state, the
    number of steps and the excess; that of the start may be infinite.
    """

    def turn(solve: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        state, steps, excess = round(solve[0], limit - solve[1])
        return state, solve[1] + jnp.asarray(steps, jnp.int32), excess

    start = (state, jnp.zeros((), jnp.int32), excess)
    return while_loop(lambda solve: (solve[2] > 1) & (solve[1] < limit), turn, start)
