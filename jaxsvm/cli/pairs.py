"""Jobs that estimators train: a machine for each pair of more than two classes, as LIBSVM has them; nu; one class."""

import contextlib
import dataclasses
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from jaxsvm.cli.job import Job
from jaxsvm.cli.report.progress import Bar, progress_bar
from jaxsvm.cli.report.solution import Solution
from jaxsvm.errors import InputError
from jaxsvm.estimators.classifier import SVC
from jaxsvm.estimators.nu import NuSVC, NuSVR
from jaxsvm.estimators.regression import OneClassSVM
from jaxsvm.loop.interruption import until_halt, watching
from jaxsvm.model_selection.cross_validation import Scores
from jaxsvm.model_selection.folds import fold_masks
from jaxsvm.models.description import scikit_learn_kernel
from jaxsvm.models.libsvm import model_of
from jaxsvm.models.model import Model


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
    solutions: dict[int, Solution] = {}
    with watching(job.stop), _bar(title, job, len(Cs)) as bar, contextlib.suppress(KeyboardInterrupt):
        for place, C in until_halt(enumerate(Cs)):
            bar.update(note=f"C {C:.4g}")
            solutions[place] = solution = _solution(job, C, _trained(job, job.x, _values(job), C, bar))
            bar.update(
                note=f"C {C:.4g}, gap {float(np.max(solution.certificate.relative_gap)):.2g}, {solution.steps} steps"
            )
    if not solutions and job.stop.came:
        raise KeyboardInterrupt
    return solutions


def folds_of(job: Job, Cs: list[float], folds: int) -> Scores:
    """Score each C on the samples that folds leave out."""
    x, codes, scores = job.x, job.target, np.full((folds, len(Cs)), np.nan)
    dealt: Any = folds if job.classes else np.random.default_rng(job.options.seed).permutation(len(codes)) % folds
    with watching(job.stop), _bar("folds", job, folds * len(Cs)) as bar, contextlib.suppress(KeyboardInterrupt):
        for fold, (train, test) in enumerate(fold_masks(codes, dealt, None, job.options.seed)):
            if len(np.unique(codes[train])) < len(job.classes or ()):
                raise InputError(f"--folds is {folds}: a fold leaves a class without samples; take fewer folds.")
            for place, C in enumerate(Cs):
                bar.update(note=f"fold {fold + 1}, C {C:.4g}")
                machines = _trained(job, x[train], codes[train], C, bar)
                job.stop.check()  # an interrupted fit scores nothing
                scores[fold, place] = machines.score(x[test], codes[test])
    return Scores(np.asarray(Cs), scores)


def _bar(title: str, job: Job, fits: int) -> contextlib.AbstractContextManager[Bar]:
    k = len(job.classes or ())
    return progress_bar(title, fits * max(1, k * (k - 1) // 2))


def _values(job: Job) -> np.ndarray:
    """Return what an estimator learns: codes of classes, or numbers."""
    return job.target if job.classes is None else job.codes


def _trained(job: Job, x: Any, y: np.ndarray, C: float, bar: Bar) -> Any:
    """Train an estimator.

    Raises:
        InputError: If nu is not possible.
    """
    nu, (kernel, parameters) = 0.5 if job.options.nu is None else job.options.nu, scikit_learn_kernel(job.kernel)
    shared: dict[str, Any] = {"nu": nu, "kernel": kernel, **parameters, "tol": job.options.tol}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the report gives the status
        if job.options.loss == "one_class":
            return OneClassSVM(**shared).fit(x)
        if job.options.nu is None:
            return _machines(job, x, y, C, bar)
        try:
            if job.classes is None:
                return NuSVR(C=C, **shared).fit(x, y)
            return NuSVC(class_weight=_weights(job), **shared).fit(x, y)
        except ValueError as error:
            raise InputError(f"--nu is {nu}: {error}") from error


def _weights(job: Job) -> dict[int, float] | None:
    """Return factors of C by the code of a class; None without any."""
    return None if job.factors is None else dict(enumerate(job.factors.tolist()))


def _machines(job: Job, x: Any, codes: np.ndarray, C: float, bar: Bar) -> SVC:
    """Train a machine per pair.

    The squared hinge counts `C / 2` of each square in the command, and its bias is regularised, as for two classes; the
    estimators count C, as scikit-learn does.
    """
    loss, (kernel, parameters) = job.options.loss, scikit_learn_kernel(job.kernel)
    C, bias = (C, "free") if loss == "hinge" else (C / 2, "regularized")
    tol, weights = job.options.tol, _weights(job)
    machines = SVC(C=C, kernel=kernel, **parameters, loss=loss, bias=bias, tol=tol, class_weight=weights)
    machines._done = lambda solved: bar.update(
        advance=1, note=f"gap {float(solved.certificate.relative_gap):.2g}, {solved.steps} steps"
    )
    return machines.fit(x, codes)


def _solution(job: Job, C: float, machines: Any) -> Solution:
    """Gather what reports and models need of the machines."""

    def model() -> Model:
        classes = (-1, 1) if job.metric == "inside" else job.classes
        return dataclasses.replace(model_of(machines), scaling=job.scaling, classes=classes, layout=job.layout)

    steps, support = int(np.sum(machines.n_iter_)), len(machines.support_)
    if job.metric == "inside":
        score = float(np.mean(machines.predict(job.x) > 0))
    else:
        score = float(machines.score(job.x, _values(job)))
    penalty = None if job.metric == "inside" or (job.options.nu is not None and job.classes is not None) else C
    epsilon = float(machines.epsilon_) if hasattr(machines, "epsilon_") else None
    return Solution(penalty, machines._statuses, machines.certificate_, steps, None, support, score, model, epsilon)
