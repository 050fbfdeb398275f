"""Coresets of the rows of a design: in files, on a Dask cluster, on a mesh, in memory, of a join.

    small = jaxsvm.coresets.of_rows(jaxsvm.designs.from_files("part-*.parquet", label="class"), C=1.0, m=1000)

Rows that fit are fetched, and `coreset` makes the coreset of them. Of more rows, far more than the m points are drawn
first, each by its number and the key alone, wherever it lies: docs/mathematics.md, "Coresets", rows anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from jaxsvm.coresets.bounds import Cells, centres, gammas, nearest
from jaxsvm.coresets.construction import coreset, plan_of
from jaxsvm.coresets.measured import MEASURED
from jaxsvm.coresets.pilot import Pilot
from jaxsvm.coresets.sampling import calibrated, hinges, totals_of
from jaxsvm.coresets.summary import OF_PARTS, Coreset, as_key, centred, padded
from jaxsvm.datasets.labels import index_of
from jaxsvm.datasets.scaling import Scaling
from jaxsvm.designs.contract import Chunk, Design, require_design
from jaxsvm.designs.descent import Lane, Machine, Run
from jaxsvm.designs.features import Mapped
from jaxsvm.designs.fit import BIASES, run_to_end, saved
from jaxsvm.designs.losses import Describe, Evaluate, Lanes, Spread
from jaxsvm.designs.places.arrays import from_arrays
from jaxsvm.errors import InputError, require
from jaxsvm.results.fit import Certificate
from jaxsvm.runtime.arrays import require_finite_number, require_one_of, require_positive, transfers
from jaxsvm.runtime.files import require_writable
from jaxsvm.runtime.programs import Program


@transfers
def of_rows(
    design: Design, C: float, m: int, key: Array | int = 0, *, positive: object = None, sampler: str = "mixture",
    bound: str = "dir", clusters: int | tuple[int, ...] | None = None,
    checkpoint: str | os.PathLike[str] | None = None, callback: Callable[[int, np.ndarray], object] | None = None,
) -> Coreset:  # fmt: skip
    """Make a coreset of m points of a design's rows, fetched where memory holds them all, else drawn in a few passes.

    Args:
        design: Rows of two classes, or of several with `positive`: `designs.from_files`, `from_dask`, `from_arrays`,
            `relational.design`, or any `Design`.
        C: The factor of the loss, positive; the coreset serves every smaller C.
        m: Number of points.
        key: A random key, or a seed.
        positive: The label that is +1, against all others; None: the second of two.
        sampler: "mixture", "systematic" or "independent", see `coreset`.
        bound: "dir", "tight", "fixed" or "printed", see `coreset`.
        clusters: Cells per class, or several for the least of several bounds.
        checkpoint: A file for the state after each pass of the pilot, as that of `designs.fit`; removed at the end.
        callback: Called after each pass of the pilot with the number of passes and its relative gap, `(1,)`.

    Returns:
        The coreset. `info["classes"]` are the labels of -1 and +1, `info["index"]` numbers of rows, `info["mean"]` and
        `info["scale"]` those of the columns of `designs.standardised`.

    Raises:
        InputError: If no row has a weight.
    """
    require_design(design)
    require_positive("C", C)
    plan_of(m, sampler, bound, "pinned", clusters, design.n)
    require_writable("checkpoint", checkpoint)
    number, classes = _classes(design, positive)
    with jax.enable_x64(True):
        key = as_key(key)
        if design.n <= _rows_held(design.d, m):
            rows = design.chosen(Spread(design.n, design.n))
            weight, known = rows.weight, {}
        else:
            rows, weight, known = _drawn(design, C, m, jax.random.fold_in(key, 1), number, checkpoint, callback)
    require(len(weight) > 0, "design: no row has a positive weight.")
    y = np.where(rows.y == number, 1.0, -1.0)
    small = coreset(rows.x, y, C, m, key, weight, sampler, bound, clusters=clusters)
    small.info.update(known, n=design.n, classes=classes, index=(rows.first + np.arange(len(y)))[small.info["index"]])
    if len(design.features) == 1 and isinstance(scaling := design.features[0], Scaling):
        small.info.update(mean=np.asarray(scaling.offset), scale=1 / np.asarray(scaling.factor))
    if known and checkpoint is not None and os.path.exists(checkpoint):
        os.unlink(checkpoint)
    return small


@transfers
def certify(
    machine: Coreset | tuple[ArrayLike, float], rows: Design | tuple[Any, ...], lower: float | None = None, *,
    C: float | None = None, positive: object = None, bias: str = "free",
) -> Certificate:  # fmt: skip
    """Certify a linear machine on all rows: one pass gives its value, beside a lower bound that is known already.

    Args:
        machine: A coreset, for its own machine, or `w (d,)` and b (of a kernel machine those of `designs.nystroem`).
        rows: All that the coreset stands for: `(x, y)` or `(x, y, sample_weight)` with signs, or a `Design`.
        lower: A lower bound of the optimum; None: `info["lower"]`, times `C / C_data` at a smaller C.
        C: The factor of the loss; None: that of the coreset.
        positive: The label that is +1; None: the coreset's, or the second of two.
        bias: "free", "regularized" or "none": the two have no smaller optima than "free".

    Returns:
        The value, the lower bound, and the excess at most as their relative gap; with the coreset's own C and bias it
        is `info["excess"]` too.
    """
    known = machine.info if isinstance(machine, Coreset) else {}
    design: Any = from_arrays(*rows, classes=(-1, 1)) if isinstance(rows, tuple | list) else rows
    require_design(design)
    require_one_of("bias", bias, BIASES)
    cost: Any = known.get("C_data") if C is None else C
    require_positive("C", cost)
    bound: Any = known["lower"] * min(1.0, cost / known["C_data"]) if known and lower is None else lower
    require_finite_number("lower", bound)
    w, b = machine.solution(cost) if isinstance(machine, Coreset) else machine
    lane = Lane.at(np.append(np.asarray(w, float), b), bias, False)
    require(len(lane.w) == design.d + 1, f"rows have {design.d} features, the machine {len(lane.w) - 1}.")
    label = known.get("classes", (None, None))[1] if design is rows and positive is None else positive
    one, number = np.ones(1), np.array([_classes(design, label)[0]], np.int32)
    loss, sizes = design.total(_valued, Lanes(lane.w[None], one * cost, number, -one, one, one, 0 * one))
    lane.P, lane.D = 0.5 * float(lane.penalty @ lane.w**2) + float(loss[0]), float(bound)
    certificate = lane.certificate(design.n, cost, np.sqrt(sizes))
    if (cost, bias) == (known.get("C_data"), "free"):
        known["excess"] = float(certificate.relative_gap)
    return certificate


def _valued(chunk: Chunk, lanes: Lanes) -> tuple[Array, Array]:
    """Return the loss of a chunk, and sums of squares of features, 1 and 1: scores and losses round in such units."""
    weight, *_, squares = Describe(1, 0)(chunk)
    return Evaluate("hinge")(chunk, lanes).loss, jnp.append(squares, jnp.append(weight, weight))


def _rows_held(d: int, m: int) -> int:
    """Return how many rows are fetched at most: enough to add little to the error of m points."""
    return max(min(MEASURED.rows_held, MEASURED.bytes_held // (8 * d)), MEASURED.rows_per_point * m)


def _classes(design: Design, positive: Any) -> tuple[int, tuple[Any, Any]]:
    """Return the number of the class of +1, and the labels of -1 and +1."""
    present = list(design.classes or ())
    require(bool(present), "design has targets of regression: coresets are of two classes.")
    index = 1 if positive is None and len(present) == 2 else None if positive is None else index_of(positive, present)
    if index is None:
        fault = f"has {len(present)} labels: two are needed, or positive= for +1"
        raise InputError(f"{fault if positive is None else f'positive is {positive!r}'}; the rows have {present[:6]}.")
    rest = present[:index] + present[index + 1 :]
    return index, (rest[0] if len(rest) == 1 else "rest", present[index])


class Shared(NamedTuple):
    """What all rows are judged by. A pytree of NumPy arrays; points are about the origin of a sample."""

    positive: Any  # the number of the class that is +1
    C: Any  # the factor of the loss
    pilot: Pilot  # without dual variables
    centres: Any  # of the cells, `(2, k, d)`


class Sums(NamedTuple):
    """Sums over all rows. A pytree."""

    weight: Any  # of each cell, `(2k,)`
    means: Any  # `sum u y x` of each cell, `(2k, d)`


def _drawn(
    design: Design, C: float, m: int, key: Array, positive: int, checkpoint: Any, callback: Any
) -> tuple[Chunk, np.ndarray, dict[str, Any]]:
    """Return rows drawn of all, their calibrated weights, and what is known of all rows."""
    run = Run(design, Evaluate("hinge"), [Machine(float(C), positive)], "free", 0.0, MEASURED.pilot_gap)
    run_to_end(run, None, MEASURED.pilot_passes, None, checkpoint, callback, "raise")
    saved(run, checkpoint)
    proof, w = run.certificate(0), run.best(0)
    sample = design.chosen(Spread(design.n, MEASURED.rows_for_centres))
    y = np.where(sample.y == positive, 1.0, -1.0)
    keys = jax.random.split(key)
    origin, at = jax.device_get(_centres(keys[0], *padded(sample.x, y, sample.weight)))
    about = Scaling(origin, np.ones_like(origin))
    parts: Any = w[:-1], w[-1] + w[:-1] @ origin, *map(np.float64, proof[:2]), np.zeros(0), np.zeros(0)
    shared = Shared(np.int64(positive), np.float64(C), Pilot(*parts), at)
    sums = Sums(*design.total(Mapped(_of_cells), about, shared))
    total, totals = design.total(Mapped(_of_bounds), about, shared, sums)
    size = _rows_held(design.d, m) / np.asarray([total, sums.weight.sum()])
    rows = design.chosen(Mapped(_taken), about, shared, sums, size, jax.random.key_data(keys[1]))
    filled = Chunk(*padded(rows.x, rows.y, rows.weight), first=rows.first[:1])
    weight = jax.device_get(_weights(filled, about, shared, sums, size, totals))[: len(rows.y)]
    known = {"lower": float(proof.dual), "gap": float(proof.primal - proof.dual), "total": float(total)}
    known |= {"U": float(sums.weight.sum()), "epsilon": np.inf, "notes": (OF_PARTS,)}
    return rows, weight, known


@Program.full()
def _centres(key: Array, x: Array, y: Array, u: Array) -> tuple[Array, Array]:
    middle = centred(x, u)
    return x[0] - middle[0], centres(key, middle, y, u, MEASURED.cells_of_rows)


def _seen(chunk: Chunk, shared: Shared) -> tuple[Array, Array, Array, Array]:
    y = jnp.where(chunk.y == shared.positive, 1.0, -1.0)
    return chunk.x, y, chunk.weight, nearest(chunk.x, (y > 0).astype(jnp.int32), shared.centres)


def _of_cells(chunk: Chunk, shared: Shared) -> Sums:
    x, y, u, label = _seen(chunk, shared)
    many = shared.centres.shape[0] * shared.centres.shape[1]
    means = jax.ops.segment_sum((u * y)[:, None] * x, label, many)
    return Sums(jax.ops.segment_sum(u, label, many), means)


def _of_bounds(chunk: Chunk, shared: Shared, sums: Sums) -> tuple[Array, Array]:
    return _bounds(chunk, shared, sums).sum(), (chunk.weight[:, None] * _variables(chunk, shared)).sum(axis=0)


def _variables(chunk: Chunk, shared: Shared) -> Float[Array, "k p"]:
    """Return the calibrated variables; the pilot pulls with all points that have a loss."""
    x, y, _, _ = _seen(chunk, shared)
    h = hinges(x, y, jnp.append(shared.pilot.w, shared.pilot.b)[None])[:, 0]
    return totals_of(x, y, h, (h > 0).astype(x.dtype))


def _bounds(chunk: Chunk, shared: Shared, sums: Sums) -> Float[Array, " k"]:
    x, y, u, label = _seen(chunk, shared)
    mean = sums.means / jnp.where(sums.weight > 0, sums.weight, 1)[:, None]
    offset = mean[label] - y[:, None] * x
    D, along = jnp.linalg.norm(offset, axis=1), (offset * shared.pilot.w[None, :]).sum(axis=1)
    cell = Cells(label, sums.weight[label], D, along, (sums.weight > 0).sum())
    return gammas(cell, u, shared.C, shared.pilot, "dir", False)


def _probability(chunk: Chunk, shared: Shared, sums: Sums, size: Float[Array, "2"]) -> Float[Array, " k"]:
    share = MEASURED.share_of_bounds_of_rows
    bounds = share * size[0] * _bounds(chunk, shared, sums)
    return jnp.minimum(1, bounds + (1 - share) * size[1] * chunk.weight)


def _taken(chunk: Chunk, shared: Shared, sums: Sums, size: Array, random: Array) -> Bool[Array, " k"]:
    key = jax.random.wrap_key_data(random)
    number = chunk.first + jnp.arange(len(chunk.weight))
    drawn = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i), (), chunk.weight.dtype))(number)
    return drawn < _probability(chunk, shared, sums, size)


@Program.full()
def _weights(rows: Chunk, about: Scaling, shared: Shared, sums: Sums, size: Array, totals: Array) -> Float[Array, " k"]:
    """Return the weights of drawn rows, which are so many that the scales of the totals are estimated of them."""
    rows = rows._replace(x=about(rows.x))
    pi = _probability(rows, shared, sums, size)
    v, A = jnp.where(rows.weight > 0, rows.weight / jnp.where(pi > 0, pi, 1), 0), _variables(rows, shared)
    s = jnp.where(v > 0, 1 - pi, 0)
    return calibrated(v, s, A, totals, ((v * s)[:, None] * A**2).sum(axis=0))
