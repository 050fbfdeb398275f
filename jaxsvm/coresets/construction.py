"""Make a coreset: few weighted points on which every `(w, b)` has nearly its objective on all points.

    |F_S(w, b) - F(w, b)| <= epsilon F(w, b)    for all (w, b),    F = 1/2 |w|^2 + C sum u_i max(0, 1 - y_i f(x_i))

Points are drawn by bounds on their sensitivities and weighted by the inverse of their probability. The samplers:

    "independent"  Algorithm 1 of the paper: independent draws, with probabilities proportional to the bounds gamma.
    "systematic"   draws along the cells, no point twice, also by shares at plausible queries and pulls on the pilot.
    "mixture"      the same draw, with weights calibrated to known totals of all the points: a small part of the error,
                   a bias of the order 1 / m. Of few points a feature it makes several draws, and keeps the best.

Source: Tukan, Baykal, Feldman and Rus 2020, Algorithm 1; all else: docs/mathematics.md, "Coresets".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from jaxsvm.coresets import sampling
from jaxsvm.coresets.bounds import BOUNDS, REGULARISERS, cluster_counts, sensitivity, smallest
from jaxsvm.coresets.measured import MEASURED
from jaxsvm.coresets.pilot import Pilot, solve
from jaxsvm.coresets.summary import Coreset, as_data, as_key, float_dtype, padded, require_costs, room_for
from jaxsvm.errors import InputError, require, warn
from jaxsvm.numerics import precision, selection
from jaxsvm.points.rows import PointsLike
from jaxsvm.runtime.arrays import require_one_of, require_positive, require_whole, transfers
from jaxsvm.runtime.programs import Program

DELTA, UNCHANGED = 0.05, 1e-12  # probability of an error above "epsilon"; a relative change of weights that is rounding
SAMPLERS = ("mixture", "systematic", "independent")


class Plan(NamedTuple):
    """The static arguments of a construction: one compiled program each."""

    m: int  # points of the coreset; in compiled code the slots for them (`room_for`)
    sampler: str = "mixture"  # one of `SAMPLERS`
    bound: str = "dir"  # one of `BOUNDS`
    scaled: bool = False  # whether a point's cost has its share of the regulariser
    counts: tuple[int, ...] = (16,)  # cells per class of each partition
    tol: float = 1e-6  # the relative gap of the pilot
    choose: bool = False  # whether to make several draws and keep the one with the best machine


class Drawn(NamedTuple):
    """The result of a construction inside compiled code."""

    rows: Int[Array, " m"]  # points drawn, `(m,)` int32; n in an empty slot
    weight: Float[Array, " m"]  # their weights, `(m,)`; 0 in an empty slot
    change: Float[Array, ""]  # the largest relative change of a weight by calibration, `()`
    uniform: Float[Array, ""]  # the share of the uniform distribution in the draw that was kept, `()`
    total: Float[Array, ""]  # the sum of the bounds, `()`
    cells: Int[Array, ""]  # cells of the (finest) partition, `()`
    pilot: Pilot  # without its dual variables


class Proposal(NamedTuple):
    """Probabilities and totals that serve draws of any size."""

    q: Float[Array, " n"]  # proportional to the probabilities, `(n,)`
    label: Int[Array, " n"]  # cells, along which systematic sampling walks, `(n,)`
    total: Float[Array, ""]  # the sum of the bounds, `()`
    cells: Int[Array, ""]  # how many cells there are, `()`
    pilot: Pilot  # A nearly optimal point of the data, about their own origin
    h: Float[Array, " n"]  # the loss of each point at the pilot, `(n,)`
    share: Float[Array, " n"]  # its dual variable as part of its box, `(n,)`
    totals: Float[Array, " p"]  # totals that weights are calibrated to, `(p,)`, of points about `origin`
    origin: Float[Array, " d"]  # the points' mean, `(d,)`


@transfers
def coreset(
    x: PointsLike, y: ArrayLike, C: float, m: int | None = None, key: Array | int = 0,
    sample_weight: ArrayLike | None = None, sampler: str = "mixture", bound: str = "dir", *,
    regulariser: str = "pinned", clusters: int | tuple[int, ...] | None = None, epsilon: float | None = None,
    delta: float = DELTA, share: float = 1.0,
) -> Coreset:  # fmt: skip
    """Make a coreset of m points for the linear hinge SVM with a free bias, at C and every smaller C.

    Args:
        x: Points, `(n, d)`: any array, SciPy sparse or CSR (made dense here). For a kernel machine its features, as
            `jaxsvm.gram(kernel, points, rank=rank).design`: train it on `points[small.info["index"]]`.
        y: Signs in {-1, +1}, `(n,)`.
        C: The factor of the loss, positive (the paper's lambda): a coreset for C is one for every smaller C.
        m: Number of points, at least 2; ten times d is a good size. With "independent": draws, of which some coincide.
            None: as many independent draws as `sample_size` asks for `epsilon`; all points if there are no more.
        key: A random key, or a seed.
        sample_weight: Weights, `(n,)`, not negative; 0: absent.
        sampler: "mixture", "systematic" (without calibration: unbiased), or "independent", which the theory is about.
        bound: "dir", "tight", "fixed", or the paper's "printed", which is no bound.
        regulariser: The treatment of `1/2 |w|^2`: "pinned" keeps it; "scaled" (the paper's) multiplies it by V / U, the
            weights' sums on coreset and data.
        clusters: Cells per class of the partition, or several for the least of several bounds; None: as `sensitivity`.
        epsilon: In place of m: the relative error, in (0, 1), at all `(w, b)`, with probability 1 - `delta`.
        delta: The probability of failure that `epsilon` allows.
        share: Of the regulariser, if the points are a part of the data: that of the weight, say; the coreset is one
            for C / share, and `join` makes one of the whole.

    Returns:
        The coreset. It holds both classes if both have weight, except with "independent", which may miss one.

    Warns:
        UserWarning: If the bounds add up to more than half of the points: few cannot stand for them at this C.
    """
    require_positive("C", C)
    require_positive("share", share)
    dtype, random, C = float_dtype(x), as_key(key), C / share
    x, y, u = as_data(x, y, sample_weight)
    if m is None or epsilon is not None:
        how = {"bound": bound, "regulariser": regulariser, "clusters": clusters}
        m, sampler = _enough(random, x, y, u, C, m, epsilon, delta, how)
    plan = plan_of(m, sampler, bound, regulariser, clusters, len(y))
    plan = plan._replace(choose=sampler == "mixture" and m < MEASURED.points_per_feature_for_one_draw * x.shape[1])
    with jax.enable_x64(True):
        drawn = constructed(random, x, y, u, float(C), plan)
    real = drawn.weight > 0
    index, place = np.unique(drawn.rows[real], return_inverse=True)  # each point once, with its weights added
    weight = np.bincount(place, drawn.weight[real], len(index))
    U, V, change = float(u.sum()), float(weight.sum()), float(drawn.change)
    info: dict[str, Any] = {"n": len(y), "C_data": float(C), "regulariser": regulariser, "sampler": sampler}
    info |= {"bound": bound, "C": C * U / V if regulariser == "scaled" else float(C), "change": change}
    info |= {"total": float(drawn.total), "cells": int(drawn.cells), "share": float(share), "U": U, "m": plan.m}
    info |= {"lower": float((at := drawn.pilot).dual), "gap": float(at.primal - at.dual), "index": index}
    small = Coreset(x[index].astype(dtype), y[index], weight, info)
    info["epsilon"] = _epsilon(small, plan, float(drawn.uniform), int((u > 0).sum()))
    info["notes"] = notes_on(small, int((u > 0).sum()), len(set(y[u > 0].tolist())))
    for note in info["notes"]:
        warn(note)
    return small


def _enough(
    key: Array, x: Any, y: Any, u: Any, C: float, m: Any, epsilon: Any, delta: float, how: Any
) -> tuple[int, str]:
    """Return how many points have the error epsilon, and their sampler: independent draws, or all of the points."""
    if m is not None or epsilon is None:
        raise InputError(f"m is {m} and epsilon is {epsilon}: one of the two is needed.")
    require(how["bound"] != "printed", "bound is 'printed', by which no number of draws has an error: take another.")
    partitions = jax.random.split(jax.random.split(key)[0])[0]  # those of the construction
    total = max(1.0, float(sensitivity(x, y, C, u, key=partitions, **how).sum()))
    draws, present = sampling.sample_size(total, epsilon, delta, features=x.shape[1]), int((u > 0).sum())
    return (draws, "independent") if draws < present else (max(present, 2), "systematic")


def notes_on(small: Coreset, present: int, classes: int) -> tuple[str, ...]:
    """Return the warnings about a coreset of data with so many present points and classes."""
    total, n, notes = small.info["total"], len(small), ()
    if n == present:
        return (f"all {n} points are in it: there are no more; take a smaller m, or train on them as they are.",)
    if len(set(small.y.tolist())) < classes:
        notes = (f"all {n} points drawn are of one class: take a larger m, or another sampler than 'independent'.",)
    if classes == 2 and total > present / 2:  # with one class all bounds are 1: the optimum is 0
        notes += (
            f"the bounds on sensitivities add up to {total:.0f} of {present} points: at C = {small.info['C_data']:g} "
            f"{n} points cannot stand for them; take a smaller C, or all of them.",
        )
    return notes


def _epsilon(small: Coreset, plan: Plan, uniform: float, present: int) -> float:
    """Return the error that a fixed query exceeds with probability DELTA at most; infinite if none below 1 is known."""
    change, total = small.info["change"], small.info["total"]
    if len(small) == present and plan.sampler != "independent" and change < UNCHANGED:
        return 0.0
    if plan.bound == "printed":
        return float("inf")
    if plan.sampler != "independent":
        # The bounds' share of the probabilities: of the draw that is kept, and if a rare class is drawn more often.
        total = total / (MEASURED.share_of_bounds * (1 - uniform) * (1 - 1 / plan.m))
    draws = len(MEASURED.uniform_shares) if plan.choose else 1  # whichever is kept: all of them must be good
    plain = sampling.query_error(max(total, 1.0), plan.m, DELTA / draws)
    error = plain + change * (1 + plain)
    return error if error < 1 else float("inf")


def plan_of(m: int, sampler: str, bound: str, regulariser: str, clusters: Any, n: int) -> Plan:
    """Check the choices of a construction and return its plan."""
    require_one_of("sampler", sampler, SAMPLERS)
    require_one_of("bound", bound, BOUNDS)
    require_one_of("regulariser", regulariser, REGULARISERS)
    require_whole("m", m, 2)
    return Plan(int(m), sampler, bound, regulariser == "scaled", cluster_counts(clusters, n))


def node_plan(C: float, m: int, sampler: str, bound: str, clusters: Any) -> Plan:
    """Check the choices of a node of a tree and return its plan."""
    require_positive("C", C)
    require_whole("size", m, 2)
    return plan_of(m, sampler, bound, "pinned", clusters, m)


def constructed(
    key: Array, x: np.ndarray, y: np.ndarray, u: np.ndarray, C: float, plan: Plan, floor: float = 0.0
) -> Drawn:
    """Run Algorithm 1 on the host, with absent points and empty slots: two programs serve all sizes of a class.

    A part with the share rho of the regulariser passes C / rho, and its `floor` is that of `gammas`.
    """
    require_costs(C, u)
    keys, data = jax.random.split(key), (*padded(x, y, u), float(C))
    proposal = _propose(keys[0], *data, plan._replace(m=0, choose=False), float(floor))  # for any number of points
    return jax.device_get(_drawn(keys[1], proposal, *data, plan.m, plan._replace(m=room_for(plan.m))))


def drawn(key: Array, proposal: Proposal, x: Array, y: Array, u: Array, C: Any, m: Any, plan: Plan) -> Drawn:
    """Draw m points by their proposal, in the plan's slots; pure."""
    if plan.choose:
        points = choose(key, proposal, x, y, u, C, m, plan)
    else:
        points = (*draw(key, proposal, x, y, u, m, plan), jnp.zeros((), u.dtype))
    return Drawn(*points, proposal.total, proposal.cells, proposal.pilot._replace(a=jnp.zeros(0)))


def propose(key: Array, x: Array, y: Array, u: Array, C: Any, plan: Plan, floor: Any = 0.0) -> Proposal:
    """Solve the pilot and compute the probabilities; pure."""
    tiny = jnp.finfo(u.dtype).tiny
    origin = precision.matmul(u, x) / jnp.maximum(u.sum(), tiny)
    x = x - origin[None, :]
    keys = jax.random.split(key)
    at = solve(x, y, C * u, tol=plan.tol)
    floor = jnp.where(at.dual < floor, floor, 0.0)  # a larger optimum of the data's own promises more
    gamma, cell = smallest(keys[0], x, y, u, C, at, plan.counts, plan.bound, plan.scaled, floor)
    total, q = gamma.sum(), gamma
    h = sampling.hinges(x, y, jnp.append(at.w, at.b)[None])[:, 0]
    share = jnp.where(u > 0, at.a / (C * jnp.where(u > 0, u, 1)), 0)
    if plan.sampler != "independent":
        s = sampling.scores(x, y, u, C, sampling.pool(keys[1], x, y, u, C, gamma, at), plan.scaled, floor)
        parts = jnp.stack([gamma, s, sampling.pulls(x, u, share)])
        eta, kappa = MEASURED.share_of_bounds, MEASURED.share_of_pulls
        shares = jnp.array([eta, 1 - eta - kappa, kappa]) / jnp.maximum(parts.sum(axis=1), tiny)
        q = precision.matmul(shares, parts)
    totals = precision.matmul(u, sampling.totals_of(x, y, h, share))
    pilot = at._replace(b=at.b - at.w @ origin)
    return Proposal(q, cell.label, total, cell.occupied, pilot, h, share, totals, origin)


def draw(
    key: Array, proposal: Proposal, x: Array, y: Array, u: Array, m: Any, plan: Plan
) -> tuple[Int[Array, " m"], Float[Array, " m"], Float[Array, ""]]:
    """Draw m points; return them, their weights, and the largest relative change of a weight by calibration."""
    if plan.sampler == "independent":
        index = sampling.independent(key, proposal.q, plan.m)
        weight = u[index] * proposal.q.sum() / (m * proposal.q[index])
        used = jnp.arange(plan.m) < m
        return jnp.where(used, index, u.shape[0]), jnp.where(used, weight, 0), jnp.zeros((), u.dtype)
    keys = jax.random.split(key)
    pi = sampling.inclusion(_both_classes(proposal.q, y, m), m)
    order = jnp.lexsort((jax.random.uniform(keys[0], u.shape, u.dtype), proposal.label))
    index = sampling.systematic(keys[1], pi, order, plan.m)
    plain = jnp.append(u / jnp.where(pi > 0, pi, 1), 0)[index]
    if plan.sampler == "systematic":
        return index, plain, jnp.zeros((), u.dtype)
    rows = jnp.minimum(index, u.shape[0] - 1)
    A = sampling.totals_of(x - proposal.origin[None, :], y, proposal.h, proposal.share)
    reach = precision.matmul(jnp.where(pi > 0, u * (1 - pi), 0), A**2)
    weight = sampling.calibrated(plain, 1 - pi[rows], A[rows], proposal.totals, reach)
    change = jnp.where(plain > 0, jnp.abs(weight / jnp.where(plain > 0, plain, 1) - 1), 0).max(initial=0)
    return index, weight, change


def _both_classes(q: Array, y: Array, m: Any) -> Array:
    """Raise the share of each class that has any q to 1 / m: a walk along the cells, class by class, then meets it."""
    share = jnp.where(y > 0, q, 0).sum() / jnp.maximum(q.sum(), jnp.finfo(q.dtype).tiny)
    wanted = jnp.clip(share, 1 / m, 1 - 1 / m)
    both = (share > 0) & (share < 1)
    factor = jnp.where(y > 0, wanted / jnp.where(both, share, 1), (1 - wanted) / jnp.where(both, 1 - share, 1))
    return jnp.where(both, q * factor, q)


def choose(
    key: Array, proposal: Proposal, x: Array, y: Array, u: Array, C: Any, m: Any, plan: Plan
) -> tuple[Int[Array, " m"], Float[Array, " m"], Float[Array, ""], Float[Array, ""]]:
    """Make several draws; return, as `draw` does, that of the best machine, and its share of uniform draws; pure."""
    spread = u / jnp.maximum(u.sum(), jnp.finfo(u.dtype).tiny)

    def trial(share: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        by = proposal._replace(q=(1 - share) * proposal.q / proposal.q.sum() + share * spread)
        index, weight, change = draw(key, by, x, y, u, m, plan)
        rows = jnp.minimum(index, u.shape[0] - 1)
        trained = jnp.where(plan.scaled, u.sum() / weight.sum(), 1) * C
        at = solve(x[rows] - proposal.origin[None, :], y[rows], trained * weight, tol=MEASURED.rough_gap)
        machine = jnp.append(at.w, at.b - at.w @ proposal.origin)[None]
        F = sampling.objectives(machine, sampling.hinges(x, y, machine), u, C)[0]
        return jnp.where(jnp.isfinite(F), F, jnp.inf), (index, weight, change)

    shares = jnp.array(MEASURED.uniform_shares, u.dtype)
    F, draws = lax.map(trial, shares)
    index, weight, change, share = (part[selection.lowest(F)] for part in (*draws, shares))
    return index, weight, change, share


_propose, _drawn = (Program(part, static=("plan",)) for part in (propose, drawn))
