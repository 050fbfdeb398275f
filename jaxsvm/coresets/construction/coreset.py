"""A coreset: few weighted points on which every `(w, b)` has nearly the objective that it has on all of them.

    |F_S(w, b) - F(w, b)| <= epsilon F(w, b)    for all (w, b),    F = 1/2 |w|^2 + C sum u_i max(0, 1 - y_i f(x_i))

Points are drawn by bounds on their sensitivities and weighted by the inverse of their probability. The samplers:

    "independent"  Algorithm 1 of the paper: m independent draws with q = gamma / sum gamma.
    "systematic"   q = eta gamma / sum gamma + (1 - eta - kappa) s / sum s + kappa r / sum r with s the largest share
                   of the objective that a point has at some tens of queries, and r its part in the dual vector of
                   the pilot (`queries.py`); systematic sampling along the cells of the partition: unbiased, no
                   point twice.
                   Any q >= eta gamma / t keeps the guarantee with t / eta in the place of t.
    "mixture"      the same draw, and weights that are calibrated to what is known of all the points
                   (`calibration.py`): a small part of the error, a bias of the order 1 / m.
    "recombination"  no draw, and no coreset in the sense above: points that have the totals of all exactly
                   (`recombination.py`). Their machine is the pilot's; of any other query no epsilon is known.

So few points that they are separable say little about what was not drawn, and a machine that is trained on hard ones
fails on easy ones. With fewer than `FEW` points a feature "mixture" draws by q and by mixtures of q with the uniform
distribution (`SPREADS`), trains on each and keeps the draw whose machine has the least F on all the data.

Source: Tukan, Baykal, Feldman and Rus 2020, Algorithm 1; what is corrected: docs/mathematics.md, "Coresets".
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.coresets.construction.calibration import calibrated, largest_change, reach_of, totals_of
from jaxsvm.coresets.construction.queries import LOOSE, hinges, objectives, pool, pulls, scores
from jaxsvm.coresets.construction.recombination import recombine
from jaxsvm.coresets.construction.sampling import inclusion, independent, query_error, systematic
from jaxsvm.coresets.construction.sensitivity import BOUNDS, REGULARISERS, cluster_counts, require_choice, smallest
from jaxsvm.coresets.data import as_data
from jaxsvm.coresets.pilot import Pilot, solve
from jaxsvm.coresets.summary import Coreset, notes_on, packed
from jaxsvm.errors import InputError, is_concrete, warn
from jaxsvm.runtime.checks import require_positive, require_whole
from jaxsvm.runtime.transfers import transfers

SAMPLERS = ("mixture", "systematic", "independent")
RECOMBINATION = "recombination"
"""What `coreset` takes beside them: of all points at once, so not in streams and trees."""
ETA = 0.3
"""The share of the bounds in the mixture."""
PULL = 0.15
"""The share of the pilot's support in it."""
FEW = 10
"""Points a feature below which several draws are made, of which one is kept."""
DELTA = 0.05
"""The probability with which a query may exceed `info["epsilon"]`."""
TOTALS = 5
"""Totals that weights are calibrated to, beside one a feature, and a point that is always taken."""
SPREADS = (0.0, 0.5, 0.9, 0.99)
"""The share of the uniform distribution in each of these draws."""


class Plan(NamedTuple):
    """What is static of a construction: one compiled program each.

    Attributes:
        m: Points of the coreset.
        sampler: One of `SAMPLERS`.
        bound: As for `sensitivity`.
        scaled: Whether a point's cost has its share of the regulariser.
        counts: Cells a class of each partition.
        tol: The relative gap of the pilot.
        choose: Whether one of several draws is chosen by its machine.
    """

    m: int
    sampler: str = "mixture"
    bound: str = "dir"
    scaled: bool = False
    counts: tuple[int, ...] = (16,)
    tol: float = 1e-6
    choose: bool = False


class Drawn(NamedTuple):
    """What a construction yields inside compiled code.

    Attributes:
        rows: Points drawn, `(m,)` int32; n where the slot is empty.
        weight: Their weights, `(m,)`; 0 where the slot is empty.
        change: The largest relative change of a weight by calibration, `()`.
        total: The sum of the bounds, `()`.
        cells: Cells of the (finest) partition, `()`.
        primal: The objective of the pilot, `()`.
        dual: A lower bound of the optimum, `()`.
    """

    rows: Int[Array, " m"]
    weight: Float[Array, " m"]
    change: Float[Array, ""]
    total: Float[Array, ""]
    cells: Int[Array, ""]
    primal: Float[Array, ""]
    dual: Float[Array, ""]


@transfers
def coreset(
    x: Any, y: Any, C: float, m: int, key: Array | int = 0, sample_weight: Any = None, sampler: str = "mixture",
    bound: str = "dir", *, regulariser: str = "pinned", clusters: int | tuple[int, ...] | None = None,
) -> Coreset:  # fmt: skip
    """A coreset of m points for the linear hinge SVM with a free bias, at C and every smaller C.

    Args:
        x: Points, `(n, d)`: any array, SciPy sparse or CSR (made dense here).
        y: Signs in {-1, +1}, `(n,)`.
        C: What multiplies the loss, positive (the paper's lambda): a coreset for C is one for every smaller C.
        m: How many points, at least 2; ten times d is a good size. With "independent", draws, of which some coincide.
        key: A random key, or a seed.
        sample_weight: Weights, `(n,)`, not negative; 0: absent.
        sampler: "mixture" (the default), "systematic" (the same without calibration: unbiased), "independent": the
            paper's, which the theory speaks of; or "recombination": at least d + 5 points on which the solution at C
            is that of all the data, and of which no error at any other query or C is known.
        bound: "dir", "tight", "fixed", or the paper's "printed", which is no bound.
        regulariser: What becomes of `1/2 |w|^2`: "pinned" keeps it; "scaled" (the paper's) multiplies it by V / U, the
            weights' sums on coreset and data; "normalised" makes V = U.
        clusters: Cells a class of the partition, or several for the least of several bounds.

    Returns:
        The coreset; fewer points than m where the data have fewer. Both classes are in it where both have weight, but
        for "independent", which draws either or not.

    Raises:
        InputError: On arguments that cannot be used, or under tracing.

    Warns:
        UserWarning: Where the bounds add up to more than half of the points: few cannot stand for them at this C.
    """
    plan = plan_of(m, sampler, bound, regulariser, clusters, len(y), (*SAMPLERS, RECOMBINATION))
    require_positive("C", C)
    points = x if hasattr(x, "dtype") and np.dtype(x.dtype).kind == "f" else np.float64
    x, y, u = as_data(x, y, sample_weight)
    few = sampler == "mixture" and m < FEW * x.shape[1]
    with jax.enable_x64(True):
        key = as_key(key)
        if sampler == RECOMBINATION:
            if m < x.shape[1] + TOTALS:
                raise InputError(f"m is {m}: to recombine points of {x.shape[1]} features takes d + {TOTALS} at least.")
            drawn = _recombined(key, x, y, u, float(C), plan)
        else:
            drawn = jax.device_get(_construct(key, x, y, u, float(C), plan._replace(choose=few)))
    info = {"n": len(y), "C_data": float(C), "regulariser": regulariser, "sampler": sampler, "bound": bound}
    dtype = points if points is np.float64 else points.dtype
    small = packed(drawn, x, y, u, dtype, info)
    small.info["epsilon"] = _epsilon(small, plan._replace(choose=few), int((u > 0).sum()))
    small.info["notes"] = notes_on(small, int((u > 0).sum()), len(set(y[u > 0].tolist())))
    for note in small.info["notes"]:
        warn(note)
    return small


def _epsilon(small: Coreset, plan: Plan, present: int) -> float:
    """What one query is off by with probability `DELTA`, as far as it is known."""
    change, total = small.info["change"], small.info["total"]
    if len(small) == present and plan.sampler != "independent" and change < 1e-12:
        return 0.0
    if plan.sampler == RECOMBINATION or plan.bound == "printed":
        return float("inf")
    if plan.sampler != "independent":
        # The bounds' share of the probabilities: of the draw that is kept, and where a rare class is drawn more often.
        total = total / (ETA * (1 - max(SPREADS) if plan.choose else 1) * (1 - 1 / plan.m))
    plain = query_error(max(total, 1.0), plan.m, DELTA)
    return plain + change * (1 + plain)


def plan_of(
    m: int, sampler: str, bound: str, regulariser: str, clusters: Any, n: int, samplers: tuple[str, ...] = SAMPLERS
) -> Plan:
    """The plan of a construction.

    Raises:
        InputError: On choices that there are not.
    """
    require_choice("sampler", sampler, samplers)
    require_choice("bound", bound, BOUNDS)
    require_choice("regulariser", regulariser, REGULARISERS)
    require_whole("m", m, 2)
    return Plan(int(m), sampler, bound, regulariser == "scaled", cluster_counts(clusters, n))


def as_key(key: Any) -> Array:
    """A random key from a key or a seed.

    Raises:
        InputError: On anything else, and under tracing: how many points a coreset has is not known then.
    """
    if not is_concrete(key):
        raise InputError(
            "key is being traced: coresets are made outside jit and vmap; make one for each key in a loop."
        )
    if isinstance(key, int | np.integer):
        return jax.random.key(int(key))
    if not isinstance(key, jax.Array):
        raise InputError(f"key is {key!r}: a random key (jax.random.key) or a whole number is needed.")
    return jax.random.wrap_key_data(key) if key.dtype == np.uint32 else key


def construct(key: Array, x: Array, y: Array, u: Array, C: Any, plan: Plan, floor: Any = 0.0) -> Drawn:
    """Algorithm 1, with points of weight 0 absent; pure.

    Args:
        key: A random key.
        x: Points, `(n, d)`.
        y: Signs, `(n,)`.
        u: Weights, `(n,)`.
        C: What multiplies the loss: of a part with the share rho of the regulariser, C / rho.
        plan: The rest; static.
        floor: As for `gammas`.
    """
    keys = jax.random.split(key, 2)
    found = propose(keys[0], x, y, u, C, plan, floor)
    if plan.choose:
        index, weight, change = choose(keys[1], found, x, y, u, C, plan)
    else:
        index, weight, change = draw(keys[1], found, x, y, u, plan)
    return Drawn(index, weight, change, found.total, found.cells, found.pilot.primal, found.pilot.dual)


class Proposal(NamedTuple):
    """What points are drawn by, for any size.

    Attributes:
        q: Proportional to the probabilities, `(n,)`.
        label: Cells, along which systematic sampling walks, `(n,)`.
        total: The sum of the bounds, `()`.
        cells: How many cells there are, `()`.
        pilot: A nearly optimal point of the data, about the origin that they came with.
        h: The loss of each point at the pilot, `(n,)`.
        share: Its dual variable's part of its box, `(n,)`.
        totals: What weights are calibrated to, `(p,)`, of points about `origin`.
        origin: The points' mean, `(d,)`.
    """

    q: Float[Array, " n"]
    label: Int[Array, " n"]
    total: Float[Array, ""]
    cells: Int[Array, ""]
    pilot: Pilot
    h: Float[Array, " n"]
    share: Float[Array, " n"]
    totals: Float[Array, " p"]
    origin: Float[Array, " d"]


def propose(key: Array, x: Array, y: Array, u: Array, C: Any, plan: Plan, floor: Any = 0.0) -> Proposal:
    """Probabilities; arguments as for `construct`."""
    tiny = jnp.finfo(u.dtype).tiny
    origin = (u @ x) / jnp.maximum(u.sum(), tiny)
    x = x - origin[None, :]
    keys = jax.random.split(key)
    at = solve(x, y, C * u, tol=plan.tol)
    floor = jnp.where(at.dual < floor, floor, 0.0)  # else the data's own optimum serves, and promises more
    gamma, cell = smallest(keys[0], x, y, u, C, at, plan.counts, plan.bound, plan.scaled, floor)
    total, q = gamma.sum(), gamma
    h = hinges(x, y, jnp.append(at.w, at.b)[None])[:, 0]
    share = jnp.where(u > 0, at.a / (C * jnp.where(u > 0, u, 1)), 0)
    if plan.sampler != "independent":
        s = scores(x, y, u, C, pool(keys[1], x, y, u, C, gamma, at), plan.scaled, floor)
        parts = jnp.stack([gamma, s, pulls(x, u, share)])
        shares = jnp.array([ETA, 1 - ETA - PULL, PULL]) / jnp.maximum(parts.sum(axis=1), tiny)
        q = shares @ parts
    known = u @ totals_of(x, y, h, share)
    pilot = at._replace(b=at.b - at.w @ origin)
    return Proposal(q, cell.label, total, cell.occupied, pilot, h, share, known, origin)


def draw(
    key: Array, found: Proposal, x: Array, y: Array, u: Array, plan: Plan
) -> tuple[Int[Array, " m"], Float[Array, " m"], Float[Array, ""]]:
    """`plan.m` points, their weights, and the largest relative change of a weight by calibration."""
    if plan.sampler == "independent":
        index = independent(key, found.q, plan.m)
        return index, u[index] * found.q.sum() / (plan.m * found.q[index]), jnp.zeros((), u.dtype)
    keys = jax.random.split(key)
    pi = inclusion(_both_classes(found.q, y, plan.m), plan.m)
    order = jnp.lexsort((jax.random.uniform(keys[0], u.shape, u.dtype), found.label))
    index = systematic(keys[1], pi, order, plan.m)
    plain = jnp.append(u / jnp.where(pi > 0, pi, 1), 0)[index]
    if plan.sampler == "systematic":
        return index, plain, jnp.zeros((), u.dtype)
    rows = jnp.minimum(index, u.shape[0] - 1)
    A = totals_of(x - found.origin[None, :], y, found.h, found.share)
    weight = calibrated(plain, 1 - pi[rows], A[rows], found.totals, reach_of(u, pi, A))
    return index, weight, largest_change(plain, weight)


def _both_classes(q: Array, y: Array, m: int) -> Array:
    """Q with the share 1 / m for each class that has any, at least: along the cells, class after class, one is met."""
    share = jnp.where(y > 0, q, 0).sum() / jnp.maximum(q.sum(), jnp.finfo(q.dtype).tiny)
    wanted = jnp.clip(share, 1 / m, 1 - 1 / m)
    both = (share > 0) & (share < 1)
    factor = jnp.where(y > 0, wanted / jnp.where(both, share, 1), (1 - wanted) / jnp.where(both, 1 - share, 1))
    return jnp.where(both, q * factor, q)


def choose(
    key: Array, found: Proposal, x: Array, y: Array, u: Array, C: Any, plan: Plan
) -> tuple[Int[Array, " m"], Float[Array, " m"], Float[Array, ""]]:
    """As `draw`: of several draws the one whose machine is best on all the points; pure.

    With the share s of the uniform distribution the probabilities are at least 1 - s of the proposal's: each draw has
    the guarantee with t / (eta (1 - s)) in the place of t, and whichever is kept has the weakest of them.
    """
    spread = u / jnp.maximum(u.sum(), jnp.finfo(u.dtype).tiny)

    def one(share: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        by = found._replace(q=(1 - share) * found.q / found.q.sum() + share * spread)
        index, weight, change = draw(key, by, x, y, u, plan)
        rows = jnp.minimum(index, u.shape[0] - 1)
        trained = jnp.where(plan.scaled, u.sum() / weight.sum(), 1) * C
        at = solve(x[rows] - found.origin[None, :], y[rows], trained * weight, tol=LOOSE)
        machine = jnp.append(at.w, at.b - at.w @ found.origin)[None]
        F = objectives(machine, hinges(x, y, machine), u, C)[0]
        return jnp.where(jnp.isfinite(F), F, jnp.inf), (index, weight, change)

    F, draws = lax.map(one, jnp.array(SPREADS, u.dtype))
    index, weight, change = (part[jnp.argmin(F)] for part in draws)
    return index, weight, change


def _recombined(key: Array, x: np.ndarray, y: np.ndarray, u: np.ndarray, C: float, plan: Plan) -> Drawn:
    """A coreset of points that were not drawn."""
    keys = jax.random.split(key, 2)
    found = _propose(keys[0], x, y, u, C, plan)
    rows, weight = recombine(keys[1], found, jnp.asarray(x), jnp.asarray(y), jnp.asarray(u), plan.m)
    change: Any = 0.0 if len(rows) == (u > 0).sum() else np.inf
    drawn: tuple[Any, Any, Any] = rows, weight, change
    found = jax.device_get(found)
    return Drawn(*drawn, found.total, found.cells, found.pilot.primal, found.pilot.dual)


_construct = jax.jit(construct, static_argnames="plan")
_propose = jax.jit(propose, static_argnames="plan")
