"""Whether any screening rule ever says of a sample what is not so: random problems, each against its exact solution.

Problem `number` of a seed depends on these two alone. What decides which programs are compiled (loss, Gram operator,
bias, dtype) is its form; all else (data, labels, weights, C, the reference's C and its gap) is drawn for each number.
References are exact solutions, disturbed until their gap is as wide as wanted; every second one of the hinge has a w of
its own beside its dual point. A linear kernel's matrix is that of its points, whether rounded values are stored or not.

    python tests/random_screening.py --count 5000 --seed 0 --log FILE     a table, and every wrong one in words
    python tests/random_screening.py --only 17                            one problem, in words
    python tests/random_screening.py --no-x64 ...                         float32 alone, with JAX's default
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from adversarial import drop_programs, prepare  # noqa: E402
from oracle_hinge import box_solution  # noqa: E402
from references import disturbed, fit_of  # noqa: E402

N, D = 32, 3
GRAMS = ("linear", "linear, stored", "stored", "tiled")
FAMILIES = (
    "gaussians", "duplicates", "kinks", "zero rows", "scaled", "offset", "near duplicates", "separable",
)  # fmt: skip
RATIOS = (1.0, 1.01, 1.03, 1.1, 1.5, 3.0, 10.0, 100.0, 1000.0, 0.99, 0.9, 0.5, 0.1, 0.01)
GAPS = (0.0, 1e-10, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
ACCURACY = 1e-9
"""Relative gap of the truth, at the most; what it leaves open enters every comparison."""


class Form(NamedTuple):
    """What decides the program."""

    loss: str
    gram: str
    offset: bool
    dtype: str


FORMS = [
    Form(loss, gram, offset, dtype)
    for loss in ("hinge", "squared")
    for gram in GRAMS
    for offset in (False, True)
    for dtype in ("float32", "float64")
]


class Trial(NamedTuple):
    """A problem and a reference, by NumPy."""

    form: Form
    family: str
    x: np.ndarray
    y: np.ndarray
    gamma: float
    weight: np.ndarray | None
    C: float
    C_ref: float
    gap: float  # that is asked of the reference
    noise: np.ndarray
    other_noise: np.ndarray | None  # of a w of its own


class Truth(NamedTuple):
    """An exact solution: its dual point, its margins, and how far its w may be from the true one."""

    a: np.ndarray
    p: np.ndarray
    off: float


class Outcome(NamedTuple):
    """What came of one rule on one problem."""

    number: int
    form: str
    family: str
    rule: str
    wrong: int
    broken: int
    screened: int
    possible: int
    words: str


# ----------------------------------------------------------------------------------------------------------------------
# Problems
# ----------------------------------------------------------------------------------------------------------------------


def points_of(family: str, rng: Any) -> tuple[np.ndarray, np.ndarray]:
    """Points and labels of a family."""
    y = np.where(rng.random(N) < 0.5, 1.0, -1.0)
    y[:2] = 1, -1
    x = rng.normal(size=(N, D)) + rng.choice([0.2, 0.7, 2.0]) * y[:, None]
    if family == "duplicates":
        x[N // 2 :] = x[: N // 2]
        y[N // 2 :] = np.where(rng.random(N // 2) < 0.5, -y[: N // 2], y[: N // 2])
    elif family == "kinks":  # points of a lattice: many margins are alike
        x = np.round(x)
    elif family == "zero rows":
        x[rng.random(N) < 0.3] = 0
    elif family == "scaled":
        x = x * 10 ** rng.uniform(-6, 6)
    elif family == "offset":
        x = x + 10 ** rng.uniform(0, 4)
    elif family == "near duplicates":
        x[N // 2 :] = x[: N // 2] + 10 ** rng.uniform(-9, -2) * rng.normal(size=(N // 2, D))
        y[N // 2 :] = np.where(rng.random(N // 2) < 0.3, -y[: N // 2], y[: N // 2])
    elif family == "separable":
        y = np.where(x[:, 0] > 0, 1.0, -1.0)
        x[:, 0] += rng.choice([0.0, 0.5]) * y
        y[:2] = np.where(x[:2, 0] > 0, 1.0, -1.0)
    return x, y


def trial_of(number: int, seed: int, dtype: str = "") -> Trial:
    """The problem of a number."""
    forms = [form for form in FORMS if dtype in ("", form.dtype)]
    form, rng = forms[number % len(forms)], np.random.default_rng([seed, number])
    family = FAMILIES[rng.integers(len(FAMILIES))]
    x, y = points_of(family, rng)
    x = x.astype(form.dtype).astype(float)
    spread = float(np.median(((x[:, None] - x) ** 2).sum(-1))) or 1.0
    gamma = float(np.float32(rng.choice([0.1, 1.0, 10.0]) / spread))
    weight = None
    if rng.random() < 0.3:
        weight = np.exp(rng.normal(size=N)) * (rng.random(N) < 0.8)
        weight[[np.argmax(y), np.argmin(y)]] = 1
    rows = Trial(form, family, x, y, gamma, weight, 1.0, 1.0, 0.0, rng.normal(size=N) * (rng.random(N) < 0.5), None)
    Q = signed_of(rows, None)
    least = 1 / max((Q @ np.ones(N)).max(), 1e-12 * np.abs(Q).max(), 1e-300)
    C_ref = least * 10 ** rng.choice([-1.0, 0.0, 1.0, 2.0, 3.0, 5.0]) * rng.uniform(0.5, 2)
    ratio = RATIOS[rng.integers(len(RATIOS))]
    C, C_ref = float(np.float32(C_ref * ratio)), float(np.float32(C_ref))
    gap = GAPS[rng.integers(len(GAPS))]
    own = form.loss == "hinge" and rng.random() < 0.5
    noise = rng.normal(size=N) * 10 ** rng.uniform(-12, 0) if own else None
    return rows._replace(C=C, C_ref=C_ref, gap=gap, other_noise=noise)


def signed_of(trial: Trial, gram: Any) -> np.ndarray:
    """`Q` in float64, by NumPy; of a stored matrix, the stored values."""
    x = trial.x
    if trial.form.gram.startswith("linear"):
        K = x @ x.T
    elif gram is not None and gram.stored:
        K = np.asarray(gram.K, float)
        K = (K + K.T) / 2
    else:
        K = np.exp(-trial.gamma * ((x[:, None] - x) ** 2).sum(-1))
    return np.outer(trial.y, trial.y) * (K + trial.form.offset)


def own_w(a: np.ndarray, trial: Trial) -> np.ndarray:
    """Coefficients of a w near that of a dual point, in numbers of the dtype; negative ones too."""
    assert trial.other_noise is not None
    return (a + a.max() * trial.other_noise).astype(trial.form.dtype).astype(float)


def solved(trial: Trial, Q: np.ndarray, costs: np.ndarray) -> Truth:
    """The exact solution at costs `C_i`."""
    if trial.form.loss == "hinge":
        upper, H = costs, Q
    else:
        present = costs > 0
        upper, H = np.sqrt(costs * costs.sum()) * 1.01, Q + np.diag(np.where(present, 1 / np.maximum(costs, 1e-300), 0))
    found = box_solution(H, np.ones(N), upper, accuracy=ACCURACY)
    return Truth(found.a, Q @ found.a, float(np.sqrt(2 * max(found.primal - found.dual, 0))))


# ----------------------------------------------------------------------------------------------------------------------
# Rules
# ----------------------------------------------------------------------------------------------------------------------


def judged(problem: Any, reference: Any, near: Any, above: Any, C_ref: Any, C_above: Any) -> dict[str, Any]:
    """All rules; compiled as one."""
    import jaxsvm.screening as screening

    return {
        "ball 1": screening.ball_test_1(problem, reference, C_ref),
        "ball 2": screening.ball_test_2(problem, reference, C_ref),
        "intersection": screening.intersection_test(problem, reference, C_ref),
        "ball 1, C unnamed": screening.ball_test_1(problem, reference),
        "intersection, C unnamed": screening.intersection_test(problem, reference),
        "gap safe": screening.gap_safe(problem, reference),
        "gap safe, near": screening.gap_safe(problem, near),
        "two sided": screening.two_sided_test(problem, reference, above, C_ref, C_above),
    }


_COMPILED: dict[str, Any] = {}


def run(number: int, seed: int, dtype: str = "") -> list[Outcome]:
    """What every rule says of a problem."""
    import jax

    import jaxsvm
    from jaxsvm.kernels import RBF, Linear

    trial = trial_of(number, seed, dtype)
    form = trial.form
    kernel = Linear() if form.gram.startswith("linear") else RBF(trial.gamma)
    gram = jaxsvm.gram(kernel, trial.x.astype(form.dtype), store=form.gram.endswith("stored"))
    make = jaxsvm.hinge_problem if form.loss == "hinge" else jaxsvm.svm_problem
    bias = "regularized" if form.offset else "none"
    problem = make(gram, trial.y, trial.C, bias=bias, sample_weight=trial.weight)
    Q = signed_of(trial, gram)
    costs = np.asarray(problem.upper if problem.bounded else problem.costs, float)  # as they were rounded
    first, last = trial.C_ref / trial.C, max(1.3, 1.3 * trial.C_ref / trial.C)
    try:
        exact, before = solved(trial, Q, costs), solved(trial, Q, costs * first)
        after = solved(trial, Q, costs * last)
    except (AssertionError, np.linalg.LinAlgError, ValueError) as error:
        return [Outcome(number, str(tuple(form)), trial.family, "no truth", 0, 0, 0, 0, str(error)[:80])]
    how = {"dtype": form.dtype, "hinge": form.loss == "hinge"}
    points = [
        disturbed(Q, at.a, costs * factor, trial.gap, trial.noise, **how)
        for at, factor in ((before, first), (exact, 1.0), (after, last))
    ]
    own = [None if trial.other_noise is None else own_w(point, trial) for point in points]
    fits = [fit_of(trial.y, point, Q, offset=form.offset, w=w, **how) for point, w in zip(points, own, strict=True)]
    if "judge" not in _COMPILED:
        _COMPILED["judge"] = jax.jit(judged)
    found = jax.device_get(_COMPILED["judge"](problem, *fits, trial.C_ref, trial.C * last))
    size = np.sqrt(np.maximum(Q.diagonal(), 0))
    return [_outcome(number, trial, rule, screening, exact, costs, size) for rule, screening in found.items()]


def _outcome(
    number: int, trial: Trial, rule: str, found: Any, exact: Truth, costs: np.ndarray, size: np.ndarray
) -> Outcome:
    """A rule's answer against the truth, and what the truth itself leaves open."""
    hinge = trial.form.loss == "hinge"
    # What rounding may change in the oracle's own margins, and how far its w may be from the solution.
    off = size * (exact.off + 1e-15 * size @ np.abs(exact.a)) + 1e-14
    present = costs > 0
    bound = costs if hinge else np.full(N, max(float(exact.a.max()), 1e-300))
    inactive, at_bound = np.asarray(found.inactive), np.asarray(found.at_bound)
    wrong = inactive & (~present | (exact.p < 1 - off) | (exact.a > 1e-6 * bound))
    wrong |= at_bound & (~present | (exact.p > 1 + off) | (exact.a < bound * (1 - 1e-6)))
    lower, upper = np.asarray(found.lower, float), np.asarray(found.upper, float)
    broken = (lower > exact.p + off) | (upper < exact.p - off)
    possible = present & ((np.abs(exact.p - 1) if hinge else exact.p - 1) > 1e-9)
    words = ""
    if wrong.any() or broken.any():
        one = int(np.argmax(np.where(wrong | broken, 1, 0)))
        words = (
            f"number {number} {tuple(trial.form)} {trial.family}: C_ref={trial.C_ref:.6g} C={trial.C:.6g} "
            f"gap={trial.gap:g}, {rule}: sample {one} has margin {exact.p[one]:.17g} +- {off[one]:.2g}, "
            f"a/C={exact.a[one] / bound[one]:.3g}, bounds [{lower[one]:.17g}, {upper[one]:.17g}], "
            f"inactive={inactive[one]}, at bound={at_bound[one]}, present={present[one]}"
        )
    return Outcome(
        number, str(tuple(trial.form)), trial.family, rule, int(wrong.sum()), int(broken.sum()),
        int((inactive | at_bound).sum()), int(possible.sum()), words,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------------
# What is printed
# ----------------------------------------------------------------------------------------------------------------------


def table(outcomes: list[Outcome]) -> str:
    """Counts by rule, by form and by family."""
    frame, tables = pd.DataFrame(outcomes), []
    for part in ("rule", "form", "family"):
        groups = frame.groupby(part)
        counts = groups.agg(problems=("number", "nunique"), wrong=("wrong", "sum"), broken=("broken", "sum"))
        rate = groups.screened.sum() / groups.possible.sum().clip(lower=1)
        tables.append(counts.assign(rate=rate).to_string(float_format="{:.3f}".format))
    return "\n\n".join(tables)


def main() -> int:
    """The command line; returns how many wrong decisions and broken bounds there were, 255 at the most."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of single problems")
    parser.add_argument("--no-x64", action="store_true", help="float32 problems with JAX's 64 bits off")
    parser.add_argument("--seconds", type=float, default=np.inf, help="begin no problem after so many")
    parser.add_argument("--log", type=Path, help="a file of outcomes, one line a rule: a run goes on where it ended")
    options = parser.parse_args()
    prepare(not options.no_x64)
    warnings.simplefilter("ignore")
    dtype, started = ("float32" if options.no_x64 else ""), time.monotonic()
    outcomes = []
    if options.log and options.log.exists():
        outcomes = [Outcome(*json.loads(line)) for line in options.log.read_text().splitlines()]
    done = {outcome.number for outcome in outcomes}
    for number in options.only or range(options.count):
        if number in done:
            continue
        if time.monotonic() - started > options.seconds:
            break
        here = run(number, options.seed, dtype)
        outcomes += here
        drop_programs()
        for outcome in here:
            if outcome.words and (outcome.rule != "no truth" or options.only):
                print(outcome.words, flush=True)
        if options.log:
            with options.log.open("a") as log:
                log.writelines(json.dumps(outcome) + "\n" for outcome in here)
    print(table(outcomes))
    bad = sum(outcome.wrong + outcome.broken for outcome in outcomes)
    print(f"{len({outcome.number for outcome in outcomes})} problems in {time.monotonic() - started:.0f} s, {bad} bad")
    return min(bad, 255)


if __name__ == "__main__":
    sys.exit(main())
