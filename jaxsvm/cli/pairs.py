"""More than two classes: a machine a pair of them, LIBSVM's way, trained side by side by the estimators' own code."""

from itertools import combinations
from typing import Any

import jax
import numpy as np

import jaxsvm
from jaxsvm.cli.job import Job
from jaxsvm.cli.report.answer import Answer, Folds
from jaxsvm.cli.report.progress import progress_bar
from jaxsvm.errors import InputError
from jaxsvm.estimators.training.box import Solved
from jaxsvm.estimators.training.kernel_values import KernelValues
from jaxsvm.estimators.training.machines import Samples, samples, train
from jaxsvm.estimators.training.multiclass import class_slices, coefficients_of_pairs, decisions_of_pairs, pairs
from jaxsvm.kernels import RBF, Kernel, Laplacian, Linear, Polynomial, Sigmoid
from jaxsvm.loop.interruption import Interruption
from jaxsvm.model_selection.folds import fold_masks
from jaxsvm.models.model import Model, votes
from jaxsvm.results.fit import Certificate, Status

BATCH = 16
"""Machines between two looks at Ctrl-C and the time: each takes some hundredths of a second."""


def fit_one(job: Job, C: float, tol: float, stop: Interruption) -> Answer:
    """One C.

    Raises:
        InputError: Where the time is up before all machines are trained.
    """
    answers = fit_path(job, [C], tol, stop, "fit")
    if not answers:
        raise InputError("--max-seconds is too short: not all pairs of classes were trained; give it more time.")
    return answers[0]


def fit_path(job: Job, Cs: list[float], tol: float, stop: Interruption, what: str = "path") -> dict[int, Answer]:
    """The values that were reached: all, but for Ctrl-C and --max-seconds."""
    order = np.argsort(job.target, kind="stable")
    x = job.x[order]
    data = samples(_values(job), x, tol)
    classes = class_slices(job.target[order], len(job.classes or ()))
    answers: dict[int, Answer] = {}
    with progress_bar() as bar:
        task = bar.add_task(what, total=len(Cs) * len(classes) * (len(classes) - 1) // 2, note="")
        for place, C in enumerate(Cs):
            bar.update(task, note=f"C {C:.4g}")
            solved = _trained(job, data, classes, C, tol, stop, lambda done: bar.update(task, advance=done))
            if solved is None:
                break
            answers[place] = _answer(job, x, classes, C, solved)
    if not answers and stop.came:
        raise KeyboardInterrupt
    return answers


def folds_of(job: Job, Cs: list[float], folds: int, tol: float, seed: int, stop: Interruption) -> Folds:
    """Scores of all values on samples left out; small problems whose kernel values are parts of one matrix."""
    k = len(job.classes or ())
    order = np.argsort(job.target, kind="stable")
    codes, values = job.target[order], _values(job)
    x = job.x[order]
    whole = samples(values, x, tol)
    scores = np.full((folds, len(Cs)), np.nan)
    with progress_bar() as bar:
        task = bar.add_task("folds", total=folds * len(Cs) * k * (k - 1) // 2, note="")
        for fold, (training, held_out) in enumerate(fold_masks(codes, folds, None, seed)):
            rows, others = np.flatnonzero(training), np.flatnonzero(held_out)
            classes, sizes = class_slices(codes[rows], k), np.bincount(codes[rows], minlength=k)
            if sizes.min() == 0:
                raise InputError(f"--folds is {folds}: a fold leaves a class without samples; take fewer folds.")
            if whole.K is None:
                part, between = samples(values, x[rows], tol), values.between(x[others], x[rows])
            else:
                part = Samples(values, None, np.ascontiguousarray(whole.K[np.ix_(rows, rows)]), False)
                between = whole.K[np.ix_(others, rows)]
            for place, C in enumerate(Cs):
                bar.update(task, note=f"fold {fold + 1}, C {C:.4g}")
                solved = _trained(job, part, classes, C, tol, stop, lambda done: bar.update(task, advance=done))
                if solved is None:
                    return Folds.of(scores)
                bias = np.array([one.bias for one in solved])
                decisions = decisions_of_pairs(between, coefficients_of_pairs(classes, solved), sizes, bias)
                scores[fold, place] = np.mean(votes(decisions, k) == codes[others])
    return Folds.of(scores)


def _values(job: Job) -> KernelValues:
    """The kernel as the estimators name it: sparse points stay sparse."""
    kernel: Any = job.kernel
    names: dict[type[Kernel], str] = {
        Linear: "linear", RBF: "rbf", Laplacian: "laplacian", Sigmoid: "sigmoid", Polynomial: "poly",
    }  # fmt: skip
    parameters = {name: float(getattr(kernel, name)) for name in ("gamma", "coef0") if hasattr(kernel, name)}
    if isinstance(kernel, Polynomial):
        parameters["degree"] = kernel.degree
    return KernelValues(names[type(kernel)], parameters, kernel)


def _trained(
    job: Job, data: Samples, classes: list[slice], C: float, tol: float, stop: Interruption, advance: Any
) -> list[Solved] | None:
    """A machine a pair; None where Ctrl-C or the time limit came first.

    The squared hinge counts `C / 2` of each square here and has a regularised bias, as two classes have; the estimators
    count C, as scikit-learn does.
    """
    hinge = job.loss == "hinge"
    machines = pairs(classes, np.full(classes[-1].stop, C if hinge else C / 2))
    bias, solved = "free" if hinge else "regularized", []
    for start in range(0, len(machines), BATCH):
        if stop.seen:
            return None
        some = machines[start : start + BATCH]
        solved += train(data, some, loss=job.loss, bias=bias, tol=tol, max_iter=-1)
        advance(len(some))
    return solved


def _answer(job: Job, x: Any, classes: list[slice], C: float, solved: list[Solved]) -> Answer:
    coef = np.zeros((classes[-1].stop, len(solved)))
    for column, ((i, j), one) in enumerate(zip(combinations(classes, 2), solved, strict=True)):
        middle = i.stop - i.start
        coef[i, column], coef[j, column] = one.dual_coef[:middle], one.dual_coef[middle:]
    kept = np.flatnonzero(coef.any(axis=1))
    parts: dict[str, Any] = {
        name: np.array([getattr(one.certificate, name) for one in solved]) for name in Certificate._fields
    }

    def model() -> Model:
        bias = np.array([one.bias for one in solved])
        rows = kept if len(kept) else np.arange(1)  # a basis has a point
        basis, _ = jaxsvm.gram(job.kernel, x[rows]).expansion(jax.numpy.zeros(len(rows)))
        ones = np.ones(len(solved))
        coefficients, bias, ones, certificate = jax.device_put((coef[rows], bias, ones, Certificate(**parts)))
        return Model(basis, coefficients, bias, ones, certificate, job.scaling, job.classes, job.layout)

    return Answer(
        C=C,
        statuses=tuple(Status(int(one.status)) for one in solved),
        primal=float(parts["primal"].sum()),
        dual=float(parts["dual"].sum()),
        relative_gap=float(parts["relative_gap"].max()),
        steps=sum(one.steps for one in solved),
        kernel_evaluations=None,
        support=len(kept),
        model=model,
    )
