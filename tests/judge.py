"""The judge of adversarial fits: NumPy's long double, and not a line of jaxsvm.

What a fit says is held against the numbers that it returns (`alpha`, `dual_coef`, `bias`) and the numbers that its
problem stores: labels, penalties, and kernel values. The latter stand on *grounds*:

* `stored`: the matrix K as it is stored;
* `points`: the kernel of the stored points, every entry in long double; features of low rank and linear kernels are
  products of stored numbers, too.

A library may certify on either, so a gap counts by the ground that is kinder to it. Where kernel entries are computed
(all but precomputed ones and products of features), they must be worth something as well: the gap on the kernel of the
points may exceed the tolerance only by what rounding of the *entries* can do (`Ground.error`, `Value.worth`).

What entries are worth is a bound, and depends on who rounded them. Entries that are *stored* are the problem's own
numbers: a certificate of a returned point can be as exact as one likes, and what is granted is how far the optimum
itself would move if each entry were rounded otherwise (`a' |dQ| a`). Entries that are computed *on the way* (tiles, or
the true kernel beside a stored one) move the loss of the returned point, too, most where samples sit at the kink.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

LONG = np.longdouble
OWN = 64 * np.finfo(LONG).eps
"""The judge's own rounding, in units of the terms that it adds."""
TINY = 1e-12
"""A gap of this size is no gap: what float64 may add up to where it certifies float64 data."""
MARGIN = 1.1
"""A certificate may be this much off."""
CLEARLY = 1e3
"""An eigenvalue below `-CLEARLY eps n max |K|` is no rounding."""


# Kernels: ("linear",), ("rbf", gamma), ("laplacian", gamma), ("poly", degree, gamma, coef0), ("sigmoid", gamma, coef0),
# ("sum", a, b), ("product", a, b), ("scaled", factor, a)


class Entries(NamedTuple):
    """Kernel values, and a bound of what computing them in a dtype may change, both `(n, n)`."""

    K: np.ndarray
    error: np.ndarray


def kernel_entries(spec: tuple, x: np.ndarray, dtype: Any) -> Entries:
    """All kernel values of points, in long double, and what they are worth in `dtype`.

    A careful computation knows an inner product to `(d + 4) u sum_k |x_k z_k|`, and a *distance* to `(d + 16) u` of
    itself, however far the points are from the origin (u is half of eps). Parameters are those of the points' dtype.

    Args:
        spec: The kernel.
        x: The points, `(n, d)`, numbers of their own dtype.
        dtype: Of the kernel values.
    """
    u, d, points = unit(dtype), x.shape[1], x.astype(LONG)

    def parameter(value: float) -> np.longdouble:
        return LONG(np.asarray(value, x.dtype))

    name = spec[0]
    if name in ("sum", "product"):
        (A, a), (B, b) = kernel_entries(spec[1], x, dtype), kernel_entries(spec[2], x, dtype)
        if name == "sum":
            return Entries(A + B, a + b + u * abs(A + B))
        return Entries(A * B, abs(A) * b + abs(B) * a + a * b + u * abs(A * B))
    if name == "scaled":
        A, a = kernel_entries(spec[2], x, dtype)
        factor = parameter(spec[1])
        return Entries(factor * A, factor * a + u * abs(factor * A))
    if name in ("rbf", "laplacian"):
        t = parameter(spec[1]) * distances(points, squared=name == "rbf")
        K = np.exp(-t)
        return Entries(K, K * ((d + 16) * u * t + 4 * u) + np.finfo(dtype).tiny)
    inner, error = points @ points.T, (d + 4) * u * (abs(points) @ abs(points.T))
    if name == "linear":
        return Entries(inner, error)
    gamma, coef0 = (parameter(value) for value in spec[-2:])
    t, error = gamma * inner + coef0, gamma * error + 2 * u * (abs(gamma * inner) + abs(coef0))
    if name == "sigmoid":
        return Entries(np.tanh(t), error + 4 * u)
    degree = spec[1]
    return Entries(t**degree, (abs(t) + error) ** degree - abs(t) ** degree + 2 * degree * u * abs(t) ** degree)


def distances(x: np.ndarray, *, squared: bool) -> np.ndarray:
    """`sum_k (x_k - z_k)^2`, or of absolute values, by differences."""
    total = np.zeros((len(x), len(x)), x.dtype)
    for column in x.T:
        difference = column[:, None] - column
        total += difference**2 if squared else abs(difference)
    return total


def unit(dtype: Any) -> float:
    """Half of eps: the rounding of one number."""
    return float(np.finfo(dtype).eps) / 2


# --- Grounds ---


@dataclasses.dataclass(frozen=True)
class Ground:
    """Kernel values that a fit may be judged on: a matrix, or features F with `K = F F'`."""

    name: str  # "stored" or "points"
    K: np.ndarray | None = None  # values, `(n, n)` long double; None with features
    features: np.ndarray | None = None  # `(n, r)`; None with a matrix
    error: np.ndarray | None = None  # what an entry may be off, `(n, n)`; None: nothing
    # whether that error is one of the numbers that a fit was computed with, so that even a fixed point's loss moves
    # with it; else entries are exact as they are stored, and only their optimum is not known better
    moves: bool = False

    def times(self, v: np.ndarray) -> np.ndarray:
        """`K v`."""
        if self.features is None:
            return self.K @ v
        # Sums of columns, pairwise: a product of long doubles is added up one by one.
        inner = np.array([(column * v).sum() for column in self.features.T])
        return sum(column * weight for column, weight in zip(self.features.T, inner, strict=True))

    def size_times(self, v: np.ndarray) -> np.ndarray:
        """`|K| |v|`, or a bound of it: what the judge's own rounding is a part of."""
        if self.features is None:
            return abs(self.K) @ abs(v)
        return Ground("", features=abs(self.features)).times(abs(v))

    def error_times(self, v: np.ndarray) -> np.ndarray:
        """`error |v|`: what the entries' errors do to `K v`."""
        return np.zeros(len(v), LONG) if self.error is None else self.error @ abs(v)

    def diagonal(self) -> np.ndarray:
        """`K_ii`."""
        return np.diagonal(self.K) if self.features is None else (self.features**2).sum(axis=1)

    def matrix(self) -> np.ndarray:
        """K in float64."""
        return np.asarray(self.K if self.features is None else self.features @ self.features.T, np.float64)


def stored_ground(K: np.ndarray) -> Ground:
    """A matrix as it is stored: each entry may have been rounded once."""
    return Ground("stored", K=K.astype(LONG), error=unit(K.dtype) * abs(K).astype(LONG))


def feature_ground(features: np.ndarray) -> Ground:
    """Products of stored numbers."""
    return Ground("points", features=features.astype(LONG))


def points_ground(spec: tuple, x: np.ndarray, dtype: Any) -> Ground:
    """The kernel of stored points; entries are computed in `dtype`."""
    entries = kernel_entries(spec, x, dtype)
    return Ground("points", K=entries.K, error=entries.error, moves=True)


# --- What is judged ---


@dataclasses.dataclass(frozen=True)
class Facts:
    """A problem as it is stored."""

    kind: str  # "squared" (hinge), "box" (the hinge, too), "slack" or "ball"
    accept: list[Ground]  # grounds one of which must bear the fit out
    require: list[Ground]  # grounds one of which must, too; empty: nothing more is asked for
    dtype: Any  # of the solver's vectors
    y: np.ndarray  # signs, `(n,)`
    costs: np.ndarray  # `C_i`, `U_i`, or the weights of a slack problem, `(n,)`; 0 is absence
    offset: float = 0.0  # 1 with a regularised bias, else 0
    # coefficients of the equality constraint, `(n,)`: y with a free bias; None: there is none
    c: np.ndarray | None = None
    q: np.ndarray | None = None  # linear term of a box problem, `(n,)`
    e: float = 0.0  # right-hand side of the equality
    nu: float = 0.0  # of a slack problem

    @property
    def present(self) -> np.ndarray:
        """Samples that take part, `(n,)`."""
        return self.costs > 0


class Statement(NamedTuple):
    """What a fit says, in NumPy."""

    status: str
    tol: float
    gap: float  # certificate.relative_gap
    primal: float
    dual: float
    alpha: np.ndarray
    dual_coef: np.ndarray
    bias: float
    radius: float | None = None  # a ball's
    lower_radius: float | None = None


class Value(NamedTuple):
    """A fit on one ground.

    `upper` and `lower` enclose the optimum; `gap` is relative to the one that the library divides by, `worth` what the
    errors of the entries can do to it.
    """

    upper: float
    lower: float
    gap: float
    worth: float


class Verdict(NamedTuple):
    """What is true: `lie` and `understated` say what is wrong, and are empty where nothing is."""

    lie: str
    understated: str
    gap: float
    worth: float


HONEST_FAILURES = ("INFEASIBLE", "NOT_FINITE", "NOT_PSD")


def judge(facts: Facts, said: Statement) -> Verdict:
    """Whether a fit lies (CONVERGED, and it is not), and whether its gap says less than is true.

    Args:
        facts: The problem.
        said: The fit.
    """
    with np.errstate(all="ignore"):
        return _judge(facts, said)


def _judge(facts: Facts, said: Statement) -> Verdict:
    if said.status in HONEST_FAILURES:
        return Verdict("", "", np.nan, np.nan)
    numbers = (said.alpha, said.dual_coef, said.bias)
    if not all(np.isfinite(value).all() for value in numbers):
        return Verdict("numbers that are not finite" if said.status == "CONVERGED" else "", "", np.nan, np.nan)
    accepted, lie, understated = kindest(facts, said, facts.accept), "", ""
    demands = [(accepted, "")]
    if facts.require:
        demands.append((kindest(facts, said, facts.require), " on the kernel of the points"))
    for value, where in demands:
        said_and_true = f"judged gap {value.gap:.3g}{where}, said {said.gap:.3g}, entries worth {value.worth:.1g}"
        if said.status == "CONVERGED" and _excess(value.gap) > MARGIN * said.tol + value.worth + TINY:
            lie = lie or f"{said_and_true}, tol {said.tol:.3g}"
        if _excess(value.gap) > MARGIN * said.gap + value.worth + TINY:
            understated = understated or said_and_true
        understated = understated or unbracketed(facts, said, value, where)
        lie = lie or contradicted(facts, said)
    if said.status == "CONVERGED":
        lie = lie or indefinite(facts) or uncovered(facts, said)
    return Verdict(lie, understated, float(accepted.gap), float(accepted.worth))


def _excess(gap: float) -> float:
    return np.inf if np.isnan(gap) else float(gap)


def contradicted(facts: Facts, said: Statement) -> str:
    """Says that the values of a certificate are farther apart than its gap; empty where they are not."""
    apart = said.primal / said.dual - 1 if said.dual > 0 else 0.0
    if said.gap < np.inf and apart > said.gap * (1 + 1e-3) + 32 * unit(facts.dtype):
        return f"primal / dual - 1 is {apart:.3g}, and the gap {said.gap:.3g}"
    return ""


def unbracketed(facts: Facts, said: Statement, value: Value, where: str) -> str:
    """Says which value of a certificate is on the wrong side of the optimum; empty where none is."""
    slack = abs(value.lower) * (value.worth + 0.1 * said.tol + 32 * unit(facts.dtype)) + TINY * abs(value.lower)
    if said.dual > value.upper + slack:
        return f"certificate.dual is {said.dual:.8g}, and the optimum at most {value.upper:.8g}{where}"
    if said.primal < value.lower - slack:
        return f"certificate.primal is {said.primal:.8g}, and the optimum at least {value.lower:.8g}{where}"
    return ""


def kindest(facts: Facts, said: Statement, grounds: list[Ground]) -> Value:
    """A fit on that one of some grounds that bears it out best."""
    return min((value_of(facts, said, ground) for ground in grounds), key=lambda v: _excess(v.gap - v.worth))


def value_of(facts: Facts, said: Statement, ground: Ground) -> Value:
    """Primal and dual value of a fit on one ground."""
    of = {"squared": _squared, "box": _box, "slack": _slack, "ball": _ball}[facts.kind]
    return of(facts, said, ground)


class Primal(NamedTuple):
    """A returned w: its coefficients, the margins of all samples, and `|w|^2` (with a bias that is regularised).

    `error` is what the entries' errors can do to a margin, `own` what the judge's rounding can.
    """

    coef: np.ndarray
    margins: np.ndarray
    norm: np.longdouble
    error: np.ndarray
    own: np.ndarray


def primal_of(facts: Facts, said: Statement, ground: Ground) -> Primal:
    """The w and b that were returned."""
    coef, bias = said.dual_coef.astype(LONG), LONG(said.bias)
    of_coef = ground.times(coef)
    margins = facts.y * of_coef + (facts.y if facts.c is None else facts.c) * bias
    own = OWN * (ground.size_times(coef) + abs(bias))
    return Primal(coef, margins, coef @ of_coef + facts.offset * bias**2, ground.error_times(coef), own)


def worth_of_loss(
    primal: Primal, ground: Ground, slack: np.ndarray, costs: np.ndarray, multipliers: np.ndarray, power: int
) -> np.longdouble:
    """How much `sum_i costs_i max(0, slack_i)^power / power + |w|^2 / 2` may rise by the errors of entries.

    Where stored entries are exact as they are, the loss of a fixed point does not move at all; what is granted is how
    far the optimum would move if they were rounded otherwise, which is what its multipliers say.
    """

    def rise(off: np.ndarray) -> np.longdouble:
        return costs @ (np.maximum(0, slack + off) ** power - np.maximum(0, slack) ** power) / power

    moved = rise(primal.own + primal.error) if ground.moves else rise(primal.own) + multipliers @ primal.error
    return moved + abs(primal.coef) @ (primal.error + primal.own) / 2


def _squared(facts: Facts, said: Statement, ground: Ground) -> Value:
    """`1/2 |w|^2 + 1/2 sum_i C_i max(0, 1 - margin_i)^2`, and `1 / (2 R)` of alpha on the simplex."""
    y, C, here = facts.y, facts.costs, facts.present
    point = primal_of(facts, said, ground)
    slack = 1 - point.margins
    loss = C @ np.maximum(0, slack) ** 2 / 2
    primal = point.norm / 2 + loss
    alpha = on_simplex(facts, said.alpha)
    if alpha is None:
        return Value(primal, -np.inf, np.inf, 0.0)
    signed = y * alpha
    R = signed @ ground.times(signed) + facts.offset * signed.sum() ** 2 + (alpha[here] ** 2 / C[here]).sum()
    if not R > 0:
        return Value(primal, np.inf, np.inf, 0.0)
    dual = 1 / (2 * R)
    moved_R = abs(signed) @ ground.error_times(signed) + OWN * (abs(signed) @ ground.size_times(signed))
    moved = worth_of_loss(point, ground, slack, C, alpha / R, 2)
    return Value(primal, dual, primal / dual - 1, _relative(moved, dual) + moved_R / R + _penalties(facts, loss, dual))


def on_simplex(facts: Facts, alpha: np.ndarray) -> np.ndarray | None:
    """Weights scaled onto the simplex, half of them in each class with a free bias; None where nothing is left."""
    weights = np.where(facts.present, np.maximum(alpha.astype(LONG), 0), 0)
    parts = [facts.present] if facts.c is None else [facts.y > 0, facts.y < 0]
    totals = [weights[part].sum() for part in parts]
    if not all(total > 0 for total in totals):
        return None
    for part, total in zip(parts, totals, strict=True):
        weights[part] /= total * len(parts)
    return weights


def _box(facts: Facts, said: Statement, ground: Ground) -> Value:
    """`1/2 |w|^2 + b e + sum_i U_i max(0, q_i - margin_i)`, and `q'a - a'Qa / 2`.

    a is clipped into the box. What is left of `c'a - e` costs as much as its multiplier says, or is made up for by
    what has room: of two bounds the better one.
    """
    y, U, q = facts.y, facts.costs, facts.q
    point = primal_of(facts, said, ground)
    slack = q - point.margins
    loss = U @ np.maximum(0, slack)
    primal = point.norm / 2 + loss + LONG(said.bias) * LONG(facts.e)
    a = np.clip(said.alpha.astype(LONG), 0, U)

    def value(a: np.ndarray) -> np.longdouble:
        signed = y * a
        return q @ a - a @ (y * ground.times(signed) + facts.offset * y * signed.sum()) / 2

    signed, dual = y * a, value(a)
    if facts.c is not None:
        dual -= abs(LONG(said.bias)) * abs(facts.c @ a - LONG(facts.e))
        if (balanced := on_equality(facts, a)) is not None:
            dual = max(dual, value(balanced))
    moved = worth_of_loss(point, ground, slack, U, a, 1)
    moved += abs(signed) @ ground.error_times(signed) / 2 + OWN * (abs(signed) @ ground.size_times(signed))
    gap = (primal - dual) / abs(dual) if dual != 0 else LONG(0 if primal == dual else np.inf)
    return Value(primal, dual, gap, _relative(moved, dual) + _penalties(facts, loss, dual))


def on_equality(facts: Facts, a: np.ndarray) -> np.ndarray | None:
    """A point of the box that is put on `c'a = e`, those with the most room first; None where it is out of reach."""
    c, U, a = facts.c.astype(LONG), facts.costs, a.copy()
    room = np.where(c == 0, 0, np.minimum(a, U - a))
    for i in [*np.argsort(-room, kind="stable"), *np.argsort(-np.maximum(a, U - a), kind="stable")]:
        if c[i] != 0:
            a[i] = np.clip(a[i] - (c @ a - LONG(facts.e)) / c[i], 0, U[i])
        if abs(c @ a - LONG(facts.e)) <= OWN * (abs(c) @ a):
            return a
    return None


def _relative(change: Any, scale: Any) -> float:
    return float(change / abs(scale)) if scale != 0 else 0.0


def _penalties(facts: Facts, loss: Any, dual: Any) -> float:
    """`C_i = C w_i` is rounded twice."""
    return 4 * unit(facts.dtype) * (1 + _relative(loss, dual))


def _slack(facts: Facts, said: Statement, ground: Ground) -> Value:
    """The level of the unit vector along w, and `sqrt(p'Qp) + V max_i p_i / weight_i`.

    With the bias that was returned, and the length of w (at most 1) that is best for it.
    """
    y, here = facts.y, facts.present
    volume = LONG(facts.nu) * facts.costs.sum()
    point = primal_of(facts, said, ground)
    p = on_simplex(facts, said.alpha)
    if p is None:
        return Value(np.inf, -np.inf, np.inf, 0.0)
    # w = 0 has a level as well: the mean slack, or with a bias that is free whatever that makes of it.
    reach = abs(point.margins).max()
    most = np.sqrt(ground.diagonal().max()) + volume / facts.costs[here].min()  # no level is higher
    longest = 2 * most / reach if facts.c is not None and reach > 0 else LONG(0)
    longest = 1 / np.sqrt(point.norm) if point.norm > 0 else longest
    lower = highest_level(point.margins[here], facts.costs[here], volume, longest)
    signed = y * p
    square = signed @ ground.times(signed) + facts.offset * signed.sum() ** 2
    off = abs(signed) @ ground.error_times(signed) + OWN * (abs(signed) @ ground.size_times(signed))
    root = np.sqrt(max(square, 0))
    cap = volume * (p[here] / facts.costs[here]).max()
    upper = root + cap
    if not lower > 0:
        return Value(upper, lower, np.inf, 0.0)
    error = point.error + point.own
    moved = (np.sqrt(max(square, 0) + off) - root) + longest * error[here].max() + 8 * unit(facts.dtype) * cap
    moved += longest**2 * lower * (abs(point.coef) @ error) / 2
    return Value(upper, lower, upper / lower - 1, _relative(moved, lower))


def highest_level(margins: np.ndarray, weight: np.ndarray, volume: Any, longest: Any) -> np.longdouble:
    """The highest water level over `t margins` for `0 <= t <= longest`: concave in t."""
    order = np.argsort(margins)
    area, heights = np.cumsum(weight[order]), np.cumsum((weight * margins)[order])

    def level(t: Any) -> np.longdouble:
        return ((t * heights + volume) / area).min()

    low, high = LONG(0), longest
    for _ in range(100):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        low, high = (first, high) if level(first) < level(second) else (low, second)
    return max(level(longest), level((low + high) / 2))


def _ball(facts: Facts, said: Statement, ground: Ground) -> Value:
    """The largest squared distance of a point from the centre, and the mean one: no ball is smaller than that."""
    here, weights = facts.present, on_simplex(facts, said.alpha)
    if weights is None:
        return Value(np.inf, -np.inf, np.inf, 0.0)
    squared, rounding = squared_distances(ground, weights)
    upper, lower = squared[here].max(), weights @ squared
    worth = 2 * rounding[here].max()
    if ground.error is not None:
        of_weights, of_points = ground.error_times(weights), np.diagonal(ground.error)
        each = of_points + 2 * of_weights + weights @ of_weights
        worth += 2 * each[here].max() if ground.moves else weights @ of_points + weights @ of_weights
    if upper <= rounding[here].max():  # all points are one
        return Value(LONG(0), LONG(0), 0.0, 0.0)
    gap = upper / lower - 1 if lower > 0 else LONG(np.inf)
    return Value(upper, lower, gap, _relative(worth, lower))


def squared_distances(ground: Ground, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of all points from their weighted mean, and the judge's own rounding of them."""
    if ground.features is not None:
        near = ground.features - ground.features[0]  # a ball moves with its points: digits are not spent on an offset
        centre = np.array([weights @ column for column in near.T])
        return ((near - centre) ** 2).sum(axis=1), OWN * ((abs(near) + abs(centre)) ** 2).sum(axis=1)
    of_weights, size = ground.times(weights), ground.size_times(weights)
    squared = ground.diagonal() - 2 * of_weights + weights @ of_weights
    return squared, OWN * (abs(ground.diagonal()) + 2 * size + weights @ size)


# --- What else makes a lie of CONVERGED ---


def indefinite(facts: Facts) -> str:
    """Says that the dual is not concave; empty where it is up to rounding."""
    ground = facts.accept[0]
    if any(accepted.features is not None for accepted in facts.accept):  # a linear kernel is taken from its points
        return ""
    here, offset = facts.present, 0.0 if facts.kind == "ball" else facts.offset
    K = ground.matrix()[np.ix_(here, here)] + offset
    y = facts.y[here].astype(np.float64)
    Q, normals = K * np.outer(y, y), None if facts.c is None else facts.c[here].astype(np.float64)
    if facts.kind == "ball":
        Q, normals = K, np.ones(len(y))
    entries = 0.0 if ground.error is None else float(ground.error.max())  # stored values may be of a narrower dtype
    rounding = CLEARLY * len(y) * max(float(np.finfo(facts.dtype).eps) * abs(K).max(), 2 * entries)
    if facts.kind == "squared":
        ridge = (1 / facts.costs[here]).astype(np.float64)
        Q = Q + np.diag(ridge)
        rounding += CLEARLY * np.finfo(np.float64).eps * len(y) * ridge.max()
    lowest = np.linalg.eigvalsh(_along(Q, normals)).min() if len(y) > 1 or normals is None else 0.0
    if not lowest < -rounding:
        return ""
    return f"an indefinite kernel (eigenvalue {lowest:.3g}, rounding {rounding:.1g})"


def _along(Q: np.ndarray, normal: np.ndarray | None) -> np.ndarray:
    """Q on the null space of an equality."""
    if normal is None:
        return Q
    basis = np.linalg.svd(normal[None], full_matrices=True)[2][1:]
    return basis @ Q @ basis.T


def uncovered(facts: Facts, said: Statement) -> str:
    """Says which radius of a ball is wrong; empty where none is."""
    if facts.kind != "ball" or said.radius is None:
        return ""
    values = [value_of(facts, said, ground) for ground in facts.accept]
    value = min(values, key=lambda v: abs(float(v.upper) - said.primal))
    slack = 1 + 32 * unit(facts.dtype) + value.worth + 0.1 * said.tol
    for name, claimed in (("radius", said.radius**2), ("certificate.primal", said.primal)):
        if claimed * slack < value.upper:
            return f"{name}: squared radius {claimed:.6g} covers nothing beyond it, {float(value.upper):.6g} is needed"
    for name, claimed in (("lower_radius", said.lower_radius**2), ("certificate.dual", said.dual)):
        if claimed > slack * value.upper:
            return f"{name}: squared radius {claimed:.6g} is said to be the least, {float(value.upper):.6g} is enough"
    return ""
