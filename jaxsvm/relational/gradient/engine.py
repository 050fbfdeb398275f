"""The pseudo-gradient of the paper, from counts of far rows: the exact hinge gradient of slightly perturbed data.

Abo-Khamis, Im, Moseley, Pruhs, Samadian, "A Relational Gradient Descent Algorithm For Support Vector Machine Training"
(arXiv 2005.05325), for `F(beta) = mean max(0, 1 - y beta.x) + lam |beta|^2`. With the far rows through each row of a
table, `c`, the sums over values of features that the paper takes one count each for are products `X_i' c`, and

    G = sum_l -l X_i' c_i^l / N + 2 lam beta        (printed with lam beta: wrong for this F)

A guard eps calls far only what stays so under every perturbation of a row by a factor 1 +- eps in each feature, as the
paper's theorem needs it. Without one the error is of second order near the optimum, and none is the default.
"""

from typing import Any, NamedTuple

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.gradient.far import Far, RowsEngine
from jaxsvm.relational.gradient.merge import MergeEngine
from jaxsvm.relational.gradient.score_grid import GridEngine
from jaxsvm.relational.gradient.sketch import SketchEngine

ROWS = 1 << 23
"""Rows of a join up to which all of them are looked at."""
PAIRS = 1 << 21
"""Pairs up to which sorted merges are the fastest."""
NODE_ROWS = 2e7
ENGINES = ("auto", "rows", "merge", "grid", "sketch")


class PseudoGradient(NamedTuple):
    """Attributes.

    gradient: Of F, `(d,)`.
    plus: The contributions that are not negative, over N, `(d,)`; with `minus` the error bar of counts within 1 + eps:
        `|error| <= eps (plus + |minus|)`.
    minus: The others.
    far: The share of rows that are far.
    objective: The estimate of F(beta) (with a guard: of F at the perturbation that makes it least).
    counts: The counts themselves, a `Far`.
    """

    gradient: np.ndarray
    plus: np.ndarray
    minus: np.ndarray
    far: float
    objective: float
    counts: Far


def engine_for(join: Any, engine: str = "auto", eps: float = 0.1) -> tuple[Any, str]:
    """An engine for a join, and why it was chosen.

    Args:
        join: The join.
        engine: "rows" (exact, all rows), "merge" (exact, pairs), "grid", "sketch", or "auto": the first of these three
            whose cost is small.
        eps: The accuracy of the sketch's counts.

    Raises:
        InputError: On another name, or a join that is too large for an exact engine.
    """
    if engine not in ENGINES:
        raise InputError(f"engine is {engine!r}: one of {', '.join(ENGINES)} is needed.")
    tree, size = join.tree.simplified, float(join.size)
    # Merged rows of the join are fewer than its size where tables repeat.
    if engine == "rows" or (engine == "auto" and size <= ROWS):
        if size > 64 * ROWS:
            raise InputError(f"engine is 'rows': the join has {size:.3g} rows, more than {64 * ROWS}; take 'auto'.")
        return RowsEngine(tree), f"rows: the join has {size:,.0f} rows, each looked at, exact"
    if engine in ("auto", "merge"):
        small = tree.within(3, NODE_ROWS if engine == "merge" else PAIRS)
        merge = None if small is None else MergeEngine(small)
        if merge is not None and (engine == "merge" or merge.pairs <= PAIRS):
            return merge, f"merge: sorted merges of {merge.pairs:,} pairs for {size:.3g} rows, exact"
        if engine == "merge":
            raise InputError(f"engine is 'merge': no three tables of at most {NODE_ROWS:.0g} rows; take 'grid'.")
    if engine == "sketch":
        return SketchEngine(tree, eps), f"sketch: counts within a factor {1 + eps:g} for {size:.3g} rows"
    grid = GridEngine(tree)
    return grid, f"grid: {grid.bins} bins of scores for {size:.3g} rows, certified bounds"


def scores(join: Any, beta: np.ndarray, guard: float = 0.0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For both labels the score of each row of each table: `l X_i beta_i + guard |X_i| |beta_i|`."""
    parts = join.split(beta)
    plain = [block.product(part) for block, part in zip(join.blocks, parts, strict=True)]
    sizes = [0.0] * len(plain)
    if guard:
        sizes = [guard * b.absolute().product(np.abs(part)) for b, part in zip(join.blocks, parts, strict=True)]
    both = [(s + g, -s + g) for s, g in zip(plain, sizes, strict=True)]
    return [one for one, _ in both], [two for _, two in both]


def far_counts(
    join: Any,
    beta: Any,
    eps: float = 0.1,
    *,
    guard: float = 0.0,
    mode: str = "mid",
    engine: Any = "auto",
    tau: float = 1.0,
    squared: bool = False,
) -> Far:
    """How many rows of the join are far (`y beta.x + guard |beta|.|x| <= tau`) a row of each table, by label.

    Args:
        join: The join.
        beta: Coefficients, `(d,)`, in the order of `join.feature_names`.
        eps: The relative accuracy of counts, in (0, 1], of the sketch.
        guard: By which factor features may be perturbed, >= 0.
        mode: Of the sketch: "lower" (counts in `[c / (1 + eps), c]`), "upper" (`[c, (1 + eps) c]`) or "mid".
        engine: See `engine_for`; or an engine.
        tau: The threshold.
        squared: Whether sums of slacks and of their squares are wanted.

    Raises:
        InputError: On coefficients that do not fit.
    """
    beta = checked(join, beta)
    engine = engine_for(join, engine, eps)[0] if isinstance(engine, str) else engine
    return engine(scores(join, beta, guard), mode, tau, squared)


def pseudo_gradient(
    join: Any, beta: Any, lam: float, eps: float = 0.1, guard: Any = False, mode: str = "mid", *, engine: Any = "sketch"
) -> PseudoGradient:
    """The pseudo-gradient at beta.

    Args:
        join: The join.
        beta: Coefficients, `(d,)`.
        lam: The strength of the regulariser in `mean hinge + lam |beta|^2`, >= 0.
        eps: The accuracy of counts, in (0, 1].
        guard: False; True: eps (with mode "lower" the paper's algorithm); or a number.
        mode: "lower", "upper" or "mid".
        engine: The sketch, as in the paper; or see `engine_for`.

    Raises:
        InputError: On coefficients, accuracies or engines that do not fit.
    """
    beta = checked(join, beta)
    guard = eps if guard is True else float(guard)
    far = far_counts(join, beta, eps, guard=guard, mode=mode, engine=engine)
    return from_counts(join, beta, lam, far)


def from_counts(join: Any, beta: np.ndarray, lam: float, far: Far, squared: bool = False) -> PseudoGradient:
    """The pseudo-gradient of counts that are known.

    With `squared` that of the mean squared hinge, from sums of slacks; `far` is then the constant of the plane that
    touches it: `mean max(0, s)^2 >= mean(a s - a^2 / 4)` with `a = 2 max(0, s)` of here, so `mean(2 s - s^2)`.
    """
    N, plus, minus = float(join.size), [], []
    if squared and (far.slacks is None or far.squares is None):
        raise InputError("far has no slack sums: take the counts with squared=True.")
    parts = [[2 * part for part in slacks] for slacks in far.slacks] if squared else far.counts
    for block, ours, theirs in zip(join.blocks, *parts, strict=True):
        (up_of_one, down_of_one), (up_of_two, down_of_two) = (_by_sign(block, count) for count in (ours, theirs))
        plus.append((up_of_two - down_of_one) / N)
        minus.append((down_of_two - up_of_one) / N)
    plus, minus = np.concatenate(plus), np.concatenate(minus)
    share = float(sum(counts[join.tree.label].sum() for counts in far.counts)) / N
    objective = max(sum(far.slack), 0.0) / N + lam * float(beta @ beta)
    if squared and far.squares is not None:
        loss = max(sum(far.squares), 0.0) / N
        share, objective = 2 * sum(far.slack) / N - loss, loss + lam * float(beta @ beta)
    return PseudoGradient(plus + minus + 2 * lam * beta, plus, minus, share, objective, far)


def gradient_interval(lower: PseudoGradient, upper: PseudoGradient) -> tuple[np.ndarray, np.ndarray]:
    """What holds each coordinate of the gradient of the mean hinge, from counts in the modes "lower" and "upper".

    Where its ends differ in sign, the sign is not known: to know it decides counting knapsack (the paper's section on
    hardness), whatever the accuracy of counts.
    """
    return lower.plus + upper.minus, upper.plus + lower.minus


def squared_hinge(join: Any, beta: Any, lam: float, far: Far) -> np.ndarray:
    """The gradient of `mean max(0, 1 - y beta.x)^2 + lam |beta|^2`, from the slack sums of counts without a guard."""
    return from_counts(join, checked(join, beta), lam, far, True).gradient


def _by_sign(block: Any, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`max(X, 0)' c` and `min(X, 0)' c`; levels of categories are positive."""
    whole, up = block.transposed(count), block._replace(X=np.maximum(block.X, 0)).transposed(count)
    return up, whole - up


def checked(join: Any, beta: Any) -> np.ndarray:
    """Coefficients as float64 `(d,)`.

    Raises:
        InputError: On another shape, or values that are not finite.
    """
    beta = np.asarray(beta, float)
    if beta.shape != (join.d,):
        raise InputError(f"beta has shape {beta.shape}: ({join.d},) is needed, one for each of join.feature_names.")
    if not np.isfinite(beta).all():
        raise InputError("beta has values that are NaN or infinite.")
    return beta
