"""Compute the paper's pseudo-gradient from counts of far rows: the exact hinge gradient of slightly perturbed data.

Abo-Khamis, Im, Moseley, Pruhs, Samadian, "A Relational Gradient Descent Algorithm For Support Vector Machine Training"
(arXiv 2005.05325), for `F(beta) = mean max(0, 1 - y beta.x) + lam |beta|^2`. With `c`, the far rows through each row of
a table, `G = sum_l -l X_i' c_i^l / N + 2 lam beta` (printed with lam beta: wrong for this F).
With a guard eps only a row that stays far under every perturbation of its features by 1 +- eps counts as far. Without
one, the default, the error is of second order near the optimum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError, require_finite, require_part
from jaxsvm.relational.gradient.sketch import SketchEngine
from jaxsvm.relational.measured import MEASURED
from jaxsvm.relational.schema.join import Join
from jaxsvm.relational.schema.tree import Counts, Engine, Far, Tree, keyed, masked, running
from jaxsvm.runtime.arrays import require_finite_number, require_one_of, transfers

STEPS = (-0.75, -0.25, 0.25, 0.75)  # of a ramp, in half-widths: of 2, 4 and 8, 4 certify most joins of hard weights


class MergeEngine(Engine):
    """Sorted merges over a tree of at most three nodes; of one node each row is looked at. Exact."""

    name = "merge"

    def __init__(self, tree: Tree) -> None:
        """Contract the tree to at most three nodes, none with more than twice `auto_rows` rows."""
        small = tree.within(3, 2 * MEASURED.auto_rows)
        assert small is not None
        self.tree = small
        self.hub = int(np.argmax([len(small.neighbours(i)) for i in range(small.m)]))
        # The first neighbour makes fewer pairs with the hub; the other one is searched.
        self.near = sorted(small.neighbours(self.hub), key=lambda k: small.pairs(self.hub, k))
        self.pairs = small.pairs(self.hub, self.near[0]) if len(self.near) == 2 else len(small.weight[self.hub])

    def count(self, sign: int, s: list[np.ndarray], tau: float, mode: str, ramp: float) -> Counts:
        tree, hub = self.tree, self.hub
        weight = masked(tree, sign)
        if tree.m == 1:
            slack = tau - s[0]
            far = np.clip(slack / (2 * ramp) + 0.5, 0, 1) if ramp else slack >= 0
            return [weight[0] * far], float(weight[0] @ np.maximum(slack, 0))
        out = [np.zeros(len(w)) for w in weight]
        first, last = self.near[0], self.near[-1]
        # The last neighbour's rows of this label by key and score; complex numbers sort and search by both.
        live = np.flatnonzero(weight[last] > 0)
        order = live[np.lexsort((s[last][live], tree.kid[last, hub][live]))]
        kid = tree.kid[last, hub][order]
        known = keyed(kid, s[last][order])
        start = np.searchsorted(kid, np.arange(tree.count[last, hub] + 1))
        masses = weight[last][order] * np.stack([np.ones(len(order)), s[last][order]])
        mass, moment = np.insert(running(masses, start), 0, 0.0, axis=1)
        changes, slack = np.zeros(len(order) + len(start) - 1), 0.0  # of each key one beyond its rows

        def reached(w: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """Count pairs of weight w up to the scores t; return their number and sum of slacks."""
            end = np.searchsorted(known, keyed(key, t), side="right")  # noqa: B023 (called in this turn)
            opened, closed = (np.bincount(at + key, w, minlength=len(changes)) for at in (begin, end))  # noqa: B023
            np.add(changes, opened - closed, out=changes)
            end *= end > begin  # noqa: B023
            many = mass[end]
            return many, t * many - moment[end]

        for r, a in self._chunks(s, weight):
            w = weight[hub][r] * (1.0 if a is None else weight[first][a])
            t = tau - s[hub][r] - (0.0 if a is None else s[first][a])
            key = tree.kid[hub, last][r]
            begin = start[key]
            far, room = reached(0 * w if ramp else w, t)
            slack += float(w @ room)
            if ramp:  # the mean of steps: a slope would be a difference of sums of scores, and lose their digits
                far = sum(reached(w / len(STEPS), t + ramp * at)[0] for at in STEPS) / len(STEPS)
            out[hub] += np.bincount(r, w * far, minlength=len(out[hub]))
            if a is not None:
                out[first] += np.bincount(a, w * far, minlength=len(out[first]))
        out[last][order] = weight[last][order] * running(changes[None, np.arange(len(order)) + kid], start)[0]
        return out, slack

    def _chunks(self, s: list[np.ndarray], weight: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield pairs of a row of the hub and one of its first neighbour, 2^20 at a time, about 64 bytes each."""
        tree, hub, first = self.tree, self.hub, self.near[0]
        rows = np.flatnonzero(weight[hub] > 0)
        rows = rows[np.lexsort((-s[hub][rows], tree.kid[hub, self.near[-1]][rows]))]  # searches are near each other
        if len(self.near) == 1:
            yield rows, None
            return
        total = np.cumsum(np.diff(tree.groups[first, hub][1])[tree.kid[hub, first][rows]])
        for part in np.split(rows, np.searchsorted(total, np.arange(1 << 20, total.max(initial=0), 1 << 20))):
            mine, theirs = tree.partners(hub, first, part)
            yield part[mine], theirs


class PseudoGradient(NamedTuple):
    """The pseudo-gradient at a point, and the estimate of F there."""

    gradient: np.ndarray  # of F, `(d,)`
    plus: np.ndarray  # the sum of its nonnegative contributions over N, `(d,)`
    minus: np.ndarray  # the sum of its negative contributions over N, `(d,)`
    far: float  # the share of rows that are far
    objective: float  # the estimate of F(beta); with a guard, of F at the perturbation that makes it least
    counts: Far


def engine_for(join: Any, engine: str | Engine = "auto", eps: float = 0.1) -> tuple[Any, str]:
    """Return an engine for a join, and the reason: "auto" takes merge, which is exact, if it is cheap, else sketch."""
    require_part("join", join, "aggregate", "a `relational.Join` is needed")
    if len(join.classes) > 2:
        raise InputError("join has several labels: counts are of two; take `join.against(label)`, or `fit.machines`.")
    if isinstance(engine, Engine):
        return engine, engine.name
    require_one_of("engine", engine, ("auto", "merge", "sketch"))
    size, merge = join.tree.rows, None if engine == "sketch" else merged(join.tree, engine == "merge")
    if merge is not None:
        return merge, f"merge: sorted merges of {merge.pairs:,} pairs for {size:.3g} rows, exact"
    if engine == "merge":
        raise InputError(f"engine is 'merge': no three tables of up to {2 * MEASURED.auto_rows:.0g} rows; take 'grid'.")
    return SketchEngine(join.tree.simplified, eps), f"sketch: counts within a factor {1 + eps:g} for {size:.3g} rows"


def merged(tree: Tree, wanted: bool) -> MergeEngine | None:
    """Return sorted merges over a tree, if they are cheap, or wanted and possible."""
    few = wanted or tree.rows <= MEASURED.auto_rows
    most = MEASURED.auto_rows * (1 + wanted) if few else MEASURED.auto_pairs
    small = tree.simplified.within(3, most)
    merge = None if small is None else MergeEngine(small)
    return merge if merge is not None and (wanted or merge.pairs <= most) else None


def scores(join: Any, beta: np.ndarray, guard: float = 0.0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return for both labels the score of each row of each table: `l X_i beta_i + guard |X_i| |beta_i|`."""
    parts, plain = join.split(beta), join.linear(beta)
    if not guard:
        return plain, [-s for s in plain]
    sizes = [guard * (abs(b.matrix) @ np.abs(part)) for b, part in zip(join.blocks, parts, strict=True)]
    return tuple([sign * s + g for s, g in zip(plain, sizes, strict=True)] for sign in (1, -1))  # pyright: ignore


@transfers
def far_counts(
    join: Join, beta: ArrayLike, eps: float = 0.1, *, guard: float = 0.0, mode: str = "mid",
    engine: str | Engine = "auto", tau: float = 1.0, ramp: float = 0.0,
) -> Far:  # fmt: skip
    """Count the far rows (`y beta.x + guard |beta|.|x| <= tau`) of the join through each row of a table, by label.

    Of two classes; beta, `(d,)`, is in the order of `join.feature_names`. The sketch counts within `[c / (1 + eps), c]`
    if mode is "lower", `[c, (1 + eps) c]` if "upper". "merge" is exact, and may have a ramp from far to close, of this
    half-width (with two tables and more, of four steps); "auto" takes it if it is cheap. `guard`, >= 0, perturbs rows.
    """
    counter, beta = engine_for(join, engine, eps)[0], np.asarray(beta, float)
    if beta.shape != (join.d,):
        raise InputError(f"beta has shape {beta.shape}: ({join.d},) is needed, one for each of join.feature_names.")
    require_finite("beta", beta)
    require_one_of("mode", mode, ("lower", "upper", "mid"))
    require_finite_number("guard", guard)
    require_finite_number("ramp", ramp)
    require_finite_number("tau", tau, -np.inf)
    return counter(scores(join, beta, guard), tau, mode, ramp)


@transfers
def pseudo_gradient(
    join: Join, beta: ArrayLike, lam: float, eps: float = 0.1, guard: float | bool = False, mode: str = "mid", *,
    engine: str | Engine = "sketch",
) -> PseudoGradient:  # fmt: skip
    """Compute the pseudo-gradient of `mean hinge + lam |beta|^2`, lam >= 0, at beta, `(d,)`.

    Other arguments are those of `far_counts`, but `guard=True` is eps: with mode "lower", and "sketch", the paper's.
    """
    require_finite_number("lam", lam)
    guard = eps * guard if isinstance(guard, bool) else guard
    far = far_counts(join, beta, eps, guard=guard, mode=mode, engine=engine)
    return from_counts(join, np.asarray(beta, float), lam, far)


def from_counts(join: Any, beta: np.ndarray, lam: float, far: Far) -> PseudoGradient:
    """Compute the pseudo-gradient from counts."""
    N = float(join.size)
    # Sums over the features' positive and negative values, `(X + |X|) / 2` and `(X - |X|) / 2`.
    whole, size = ([join.transposed(part, of) / (2 * N) for part in far.counts] for of in (lambda X: X, abs))
    plus, minus = whole[1] + size[1] - (whole[0] - size[0]), whole[1] - size[1] - (whole[0] + size[0])
    share = float(sum(counts[join.tree.label].sum() for counts in far.counts)) / N
    objective = max(sum(far.slack), 0.0) / N + lam * float(beta @ beta)
    return PseudoGradient(plus + minus + 2 * lam * beta, plus, minus, share, objective, far)


def gradient_interval(lower: PseudoGradient, upper: PseudoGradient) -> tuple[np.ndarray, np.ndarray]:
    """Bound each coordinate of the gradient of the mean hinge, from counts in the modes "lower" and "upper".

    If the ends differ in sign, the sign is unknown: to know it decides counting knapsack (the paper).
    """
    return lower.plus + upper.minus, upper.plus + lower.minus
