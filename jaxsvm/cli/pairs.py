"""Jobs of more than two classes: one machine per pair of classes, as LIBSVM has them, by the estimators' trainer.

The estimators `SVC` and `SVCPath` train the same machines in one call, which shows no progress and does not stop
between machines. So their trainer is called here, some machines at a time.
"""

from itertools import combinations
from typing import Any

import jax
import numpy as np

import jaxsvm
from jaxsvm.cli.job import Job
from jaxsvm.cli.report.progress import Bar, progress_bar
from jaxsvm.cli.report.solution import FoldScores, Solution
from jaxsvm.errors import InputError
from jaxsvm.estimators.training.box import Solved
from jaxsvm.estimators.training.kernel_values import KernelValues
from jaxsvm.estimators.training.machines import train
from jaxsvm.estimators.training.multiclass import class_slices, coefficients_of_pairs, decisions_of_pairs, pairs
from jaxsvm.estimators.training.samples import Samples, samples
from jaxsvm.loop.interruption import watching
from jaxsvm.model_selection.folds import fold_masks
from jaxsvm.models.description import scikit_learn_kernel
from jaxsvm.models.model import Model, votes
from jaxsvm.results.fit import Certificate
from jaxsvm.results.status import Status


def fit_one(job: Job, C: float) -> Solution:
    """Solve the job at one C.

    Raises:
        InputError: If the time is up before all machines are trained.
    """
    solutions = fit_path(job, [C], "fit")
    if not solutions:
        raise InputError("--max-seconds is too short: not all pairs of classes were trained; give it more time.")
    return solutions[0]


def fit_path(job: Job, Cs: list[float], title: str = "path") -> dict[int, Solution]:
    """Solve the job at each C; return the solutions by index, up to Ctrl-C or the time limit."""
    order = np.argsort(job.target, kind="stable")
    x, k = job.x[order], len(job.classes or ())
    data, classes = samples(_kernel_values(job), x, job.options.tol), class_slices(job.target[order], k)
    solutions: dict[int, Solution] = {}
    # While a driver watches, Ctrl-C is a flag: what was trained by then is kept.
    with watching(job.stop), progress_bar(title, len(Cs) * k * (k - 1) // 2) as bar:
        for place, C in enumerate(Cs):
            bar.update(note=f"C {C:.4g}")
            solved = _train(job, data, classes, C, bar)
            if solved is None:
                break
            solutions[place] = _solution(job, x, classes, C, solved)
    if not solutions and job.stop.came:
        raise KeyboardInterrupt
    return solutions


def folds_of(job: Job, Cs: list[float], folds: int) -> FoldScores:
    """Score each C on the samples that folds leave out; the kernel values of folds are parts of one matrix."""
    order = np.argsort(job.target, kind="stable")
    codes, values = job.target[order], _kernel_values(job)
    x, k = job.x[order], len(job.classes or ())
    whole = samples(values, x, job.options.tol)
    scores = np.full((folds, len(Cs)), np.nan)
    with watching(job.stop), progress_bar("folds", folds * len(Cs) * k * (k - 1) // 2) as bar:
        for fold, (training, held_out) in enumerate(fold_masks(codes, folds, None, job.options.seed)):
            rows, others = np.flatnonzero(training), np.flatnonzero(held_out)
            classes, sizes = class_slices(codes[rows], k), np.bincount(codes[rows], minlength=k)
            if sizes.min() == 0:
                raise InputError(f"--folds is {folds}: a fold leaves a class without samples; take fewer folds.")
            if whole.K is None:
                part, between = samples(values, x[rows], job.options.tol), values.between(x[others], x[rows])
            else:
                part = Samples(values, None, np.ascontiguousarray(whole.K[np.ix_(rows, rows)]), False)
                between = whole.K[np.ix_(others, rows)]
            for place, C in enumerate(Cs):
                bar.update(note=f"fold {fold + 1}, C {C:.4g}")
                solved = _train(job, part, classes, C, bar)
                if solved is None:
                    return FoldScores.of(Cs, scores)
                bias = np.array([machine.bias for machine in solved])
                decisions = decisions_of_pairs(between, coefficients_of_pairs(classes, solved), sizes, bias)
                scores[fold, place] = np.mean(votes(decisions, k) == codes[others])
    return FoldScores.of(Cs, scores)


def _kernel_values(job: Job) -> KernelValues:
    """Return the kernel as the estimators take it, which keeps sparse points sparse."""
    return KernelValues(*scikit_learn_kernel(job.kernel), job.kernel)


def _train(job: Job, data: Samples, classes: list[slice], C: float, bar: Bar) -> list[Solved] | None:
    """Train a machine per pair; return None if Ctrl-C or the time limit came first.

    The squared hinge counts `C / 2` of each square in the command, and its bias is regularised, as for two classes; the
    estimators count C, as scikit-learn does.
    """
    hinge, batch = job.options.loss == "hinge", 16  # machines between two checks for Ctrl-C; each takes some 0.01 s
    machines = pairs(classes, np.full(classes[-1].stop, C if hinge else C / 2))
    bias, solved = "free" if hinge else "regularized", []
    for start in range(0, len(machines), batch):
        if job.stop.seen:
            return None
        some = machines[start : start + batch]
        solved += train(data, some, loss=job.options.loss, bias=bias, tol=job.options.tol, max_iter=-1)
        bar.update(advance=len(some))
    return solved


def _solution(job: Job, x: Any, classes: list[slice], C: float, solved: list[Solved]) -> Solution:
    """Gather the machines into one solution; x is sorted by class."""
    coef = np.zeros((classes[-1].stop, len(solved)))
    for column, ((i, j), machine) in enumerate(zip(combinations(classes, 2), solved, strict=True)):
        coef[i, column], coef[j, column] = np.split(machine.dual_coef, [i.stop - i.start])
    kept = np.flatnonzero(coef.any(axis=1))
    parts: Any = (np.array([getattr(one.certificate, name) for one in solved]) for name in Certificate._fields)
    certificate = Certificate(*parts)

    def model() -> Model:
        rows = kept if len(kept) else np.arange(1)  # a basis has a point
        basis, _ = jaxsvm.gram(job.kernel, x[rows]).expansion(jax.numpy.zeros(len(rows)))
        bias, ones = np.array([machine.bias for machine in solved]), np.ones(len(solved))
        parts = jax.device_put((coef[rows], bias, ones, certificate))
        return Model(basis, *parts, scaling=job.scaling, classes=job.classes, layout=job.layout)

    statuses = tuple(Status(int(machine.status)) for machine in solved)
    steps = sum(machine.steps for machine in solved)
    return Solution(C, statuses, certificate, steps, None, len(kept), model)
