"""Rows in memory: dense or sparse arrays on one device, or dense ones over the devices of a mesh."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array
from numpy.typing import ArrayLike

from jaxsvm.datasets.labels import several_classes, targets
from jaxsvm.designs.contract import Chunk, OfChunk, Total
from jaxsvm.errors import InputError
from jaxsvm.loop.interruption import Halt, unless, until_halt, watching
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.points.rows import PointsLike, Rows, as_points
from jaxsvm.problems.arguments import checked_weights
from jaxsvm.runtime.arrays import device_memory, in_a_line, require_memory, transfers, zero_filled
from jaxsvm.runtime.loops import Spread, fori_loop
from jaxsvm.runtime.programs import Program


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayDesign:
    """Rows in memory."""

    __repr__ = in_a_line

    rows: Chunk  # all rows, those of weight 0 included; on a mesh `first` has an entry for each device
    n: int  # number of rows
    classes: tuple[Any, ...] | None  # labels; None for regression
    mesh: Mesh | None = None  # the devices that the rows lie on; None: one
    axis: str | None = None  # the axis of the mesh that the rows are spread over

    features = ()

    @property
    def together(self) -> bool:
        """Return whether several processes compute each sum together."""
        return self.mesh is not None and jax.process_count() > 1

    @property
    def d(self) -> int:
        """Return the number of features."""
        return self.rows.x.shape[1]

    def total(self, function: OfChunk, *arguments: Any) -> Any:
        """Return the sum of `function(chunk, *arguments)` over all rows, as NumPy arrays of float64."""
        if self.mesh is None:
            return sum_of(function, self.rows, arguments)
        with jax.enable_x64(True):
            sums = _on_mesh(total_of, function, self.rows, arguments, self.mesh, self.axis)
            return jax.tree.map(np.asarray, sums)

    def chosen(self, function: OfChunk, *arguments: Any) -> Chunk:
        """Return the rows for which `function(chunk, *arguments)` is true, in order: NumPy arrays, x dense."""
        if self.mesh is None:
            return chosen_of(function, self.rows, arguments)
        with jax.enable_x64(True):
            flags = _on_mesh(_flags_of, function, self.rows, arguments, self.mesh, self.axis)
            return taken(self.rows, np.flatnonzero(np.asarray(flags)), self.mesh)


@transfers
def from_arrays(
    x: PointsLike, y: ArrayLike, sample_weight: ArrayLike | None = None, *, mesh: Mesh | None = None,
    axis: str | None = None, classes: tuple[Any, ...] | None = None, regression: bool = False,
) -> ArrayDesign:  # fmt: skip
    """Return arrays as a design.

    Args:
        x: Points, `(n, d)`: dense, or SciPy's or JAX's sparse ones (without a mesh). Of several processes
            (`jax.distributed`), each passes its own rows, as many as it has.
        y: Labels, or targets of regression, `(n,)`.
        sample_weight: Weights, >= 0, `(n,)`.
        mesh: Devices to spread the rows over; None: one device.
        axis: The axis of the mesh that rows are spread over; None: the first.
        classes: All labels, in sorted order; None: those of y, which each process must have.
        regression: Whether y are targets.
    """
    empty = np.size(y) == 0 and mesh is not None and jax.process_count() > 1
    with jax.enable_x64(True):  # float64 points keep their digits, as everywhere
        points: Any = np.zeros(np.shape(cast(Any, x)), np.float32) if empty else as_points(x, None, "x")
    n = points.shape[0]
    if tuple(np.shape(y)) != (n,):
        raise InputError(f"y has shape {np.shape(y)}: one for each of the {n} rows is needed, ({n},).")
    weight = np.ones(n) if sample_weight is None else np.asarray(checked_weights(sample_weight, n, np.float64)[0])
    codes, classes = codes_of(np.asarray(y), classes, regression)
    with jax.enable_x64(True):  # targets, codes and weights keep their digits
        if mesh is None:
            rows = Chunk(points, jnp.asarray(codes), jnp.asarray(weight), np.int64(0))
            return ArrayDesign(rows, n, classes)
        if not isinstance(points, jax.Array | np.ndarray):
            raise InputError("x is sparse: a mesh takes dense rows; leave the mesh out, or make them dense.")
        over = Spread.over(mesh, axis)
        mesh, axis = over.mesh, over.axis
        each = points.nbytes * jax.process_count() // mesh.shape[axis]  # bytes of a device; those of a CPU share memory
        each *= len(mesh.local_devices) if jax.default_backend() == "cpu" else 1
        require_memory(each, f"x has {n:,} rows, which", "take more devices, or `from_files`", device_memory())
        _require_alike(points.shape[1], classes)
        rows, total = _spread([np.asarray(points), codes, weight], mesh, axis)
    return ArrayDesign(rows, total, classes, mesh, axis)


def codes_of(
    y: np.ndarray, classes: tuple[Any, ...] | None, regression: bool
) -> tuple[np.ndarray, tuple[Any, ...] | None]:
    """Return targets, or the class numbers of labels, as float64 `(n,)`, and the classes."""
    if regression:
        return targets(y), None
    if classes is None:
        codes, present = several_classes(y)
        return codes.astype(np.float64), tuple(present.tolist())
    known, codes = np.unique(y, return_inverse=True)
    places = {label: k for k, label in enumerate(classes)}
    unknown = [label for label in known.tolist() if label not in places]
    if unknown:
        raise InputError(f"y has the label {unknown[0]!r}, which is none of the classes {classes[:6]}.")
    return np.asarray([places[label] for label in known.tolist()], float)[codes], tuple(classes)


def _require_alike(d: int, classes: tuple[Any, ...] | None) -> None:
    """Refuse rows of several processes that differ in their columns or classes."""
    if jax.process_count() > 1:
        own = np.asarray([d, zlib.crc32(repr(classes).encode())])
        if (multihost_utils.process_allgather(own) != own).any():
            raise InputError(
                f"x has {d} columns and y the classes {classes}, and another process has others: all need the same; "
                "name all classes (classes=)."
            )


def _spread(arrays: list[np.ndarray], mesh: Mesh, axis: str) -> tuple[Chunk, int]:
    """Lay this process's rows out over its devices, filled up with rows of weight 0; also return all rows' number."""
    sharding, process, n = NamedSharding(mesh, PartitionSpec(axis)), jax.process_index(), len(arrays[0])
    own = mesh.shape[axis] // jax.process_count()
    counts = np.asarray([n])
    if jax.process_count() > 1:
        counts = np.ravel(multihost_utils.process_allgather(counts))
    each = max(1, -(-int(counts.max()) // own))
    filled = [zero_filled(a, own * each) for a in arrays]
    firsts = counts[:process].sum() + each * np.arange(own)
    x, y, weight, first = (jax.make_array_from_process_local_data(sharding, a) for a in (*filled, firsts))
    return Chunk(x, y, weight, first), int(counts.sum())


def taken(rows: Chunk, index: np.ndarray, mesh: Mesh | None = None) -> Chunk:
    """Return some rows as NumPy arrays, x dense."""
    if mesh is not None and jax.process_count() > 1:
        everywhere = NamedSharding(mesh, PartitionSpec())
        gathered = jax.jit(lambda *parts, first: ([part[index] for part in parts], first), out_shardings=everywhere)
        (x, y, weight), first = gathered(*rows[:3], first=rows.first)
    else:
        x = rows.x.rows(jnp.asarray(index)) if isinstance(rows.x, Rows) else rows.x[index]
        y, weight, first = rows.y[index], rows.weight[index], rows.first
    each = len(rows.weight) // np.size(first)  # rows of a device
    numbers = np.ravel(first)[index // each] + index % each
    return Chunk(np.asarray(x), np.asarray(y), np.asarray(weight), numbers - np.arange(len(index)))


def unless_halted(program: Any, *arguments: Any) -> Any:
    """Call a compiled program and return its result; raise `Halt` as soon as Ctrl-C came."""
    with watching() as stop:
        found = unless(lambda: stop.seen, program, *arguments)
    if found is None:
        raise Halt
    return found


@transfers
def sum_of(function: OfChunk, rows: Chunk, arguments: tuple[Any, ...]) -> Any:
    """Return the sum of a function over rows on one device, as NumPy arrays of float64."""
    with jax.enable_x64(True):
        return jax.device_get(unless_halted(_total, function, rows, arguments))


@transfers
def chosen_of(function: OfChunk, rows: Chunk, arguments: tuple[Any, ...]) -> Chunk:
    """Return the rows on one device, of those with a weight, for which a function is true."""
    with jax.enable_x64(True):
        return taken(rows, np.flatnonzero(np.asarray(unless_halted(_chosen, function, rows, arguments))))


class OfChunks:
    """A design of one process whose rows come in chunks, one after another."""

    features = ()
    together = False

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows, in chunks of one size; the last one is filled up with rows of weight 0."""
        raise NotImplementedError

    def total(self, function: OfChunk, *arguments: object) -> Total:
        """Return the sum of `function(chunk, *arguments)` over all rows, as NumPy arrays of float64."""
        total: Any = None
        for chunk in until_halt(self.chunks()):
            part = sum_of(function, chunk, arguments)
            total = part if total is None else jax.tree.map(np.add, total, part)
        return total

    def chosen(self, function: OfChunk, *arguments: object) -> Chunk:
        """Return the rows for which `function(chunk, *arguments)` is true, in order: NumPy arrays, x dense."""
        return joined([chosen_of(function, chunk, arguments) for chunk in until_halt(self.chunks())])


def joined(parts: list[Chunk]) -> Chunk:
    """Return chosen rows of chunks one after another."""
    before = np.cumsum([0, *(len(part.weight) for part in parts)])
    parts = [part._replace(first=part.first - more) for part, more in zip(parts, before, strict=False)]
    return Chunk(*map(np.concatenate, zip(*parts, strict=True)))


def total_of(function: OfChunk, rows: Chunk, arguments: tuple[Any, ...]) -> Any:
    """Return the sum of a function over rows, from tiles if they are dense or it makes them so."""
    if not _in_tiles(function, rows):
        return function(rows, *arguments)

    def value(turn: Any) -> Any:
        tile, fresh, _ = _tile(rows, turn)
        return function(tile._replace(weight=jnp.where(fresh, tile.weight, 0)), *arguments)

    shapes = jax.eval_shape(value, 0)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    turns = -(-len(rows.weight) // SIZES.largest_direct_system)
    return fori_loop(0, turns, lambda turn, total: jax.tree.map(jnp.add, total, value(turn)), nothing)


def _flags_of(function: OfChunk, rows: Chunk, arguments: tuple[Any, ...]) -> Array:
    """Return for each row whether a function is true of it, `(k,)`, from tiles as in `total_of`."""
    if not _in_tiles(function, rows):
        return function(rows, *arguments) & (rows.weight > 0)

    def add(turn: Any, flags: Array) -> Array:
        tile, _, start = _tile(rows, turn)
        return lax.dynamic_update_slice_in_dim(flags, function(tile, *arguments) & (tile.weight > 0), start, 0)

    turns = -(-len(rows.weight) // SIZES.largest_direct_system)
    return fori_loop(0, turns, add, jnp.zeros(len(rows.weight), bool))


def _in_tiles(function: OfChunk, rows: Chunk) -> bool:
    return isinstance(rows.x, Array | np.ndarray) or getattr(function, "makes_dense", False)


def _tile(rows: Chunk, turn: Any) -> tuple[Chunk, Array, Array]:
    """Return a tile of dense rows, which of them are in no tile before, and the place of its first row.

    The last tile overlaps the one before it.
    """
    k = len(rows.weight)
    tile = min(SIZES.largest_direct_system, k)
    start, place = jnp.minimum(turn * tile, k - tile), jnp.arange(tile, dtype=jnp.int32)
    y, weight = (lax.dynamic_slice_in_dim(part, start, tile) for part in rows[1:3])
    dense = isinstance(rows.x, Array)
    x = lax.dynamic_slice_in_dim(rows.x, start, tile) if dense else rows.x.rows(start + place)
    return Chunk(x, y, weight, rows.first + start), start + place >= turn * tile, start


_total, _chosen = map(Program.full(static=("function",)), (total_of, _flags_of))


@partial(jax.jit, static_argnums=(0, 1, 4, 5))
def _on_mesh(
    of_rows: Any, function: OfChunk, rows: Chunk, arguments: tuple[Any, ...], mesh: Mesh, axis: str | None
) -> Any:
    """Return what `total_of` or `_flags_of` makes of all rows, on every device."""

    def of_part(rows: Chunk, arguments: tuple[Any, ...]) -> Any:
        own = of_rows(function, rows._replace(first=rows.first[0]), arguments)
        return lax.psum(own, axis) if of_rows is total_of else lax.all_gather(own, axis, tiled=True)

    specs = {"in_specs": (PartitionSpec(axis), PartitionSpec()), "out_specs": PartitionSpec()}
    return jax.shard_map(of_part, mesh=mesh, check_vma=False, **specs)(rows, arguments)
