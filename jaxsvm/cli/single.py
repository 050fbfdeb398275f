"""Two classes, or regression: one problem at one C or at many, by the library's own drivers."""

from typing import Any

import jax
import numpy as np
import scipy.sparse as sp

import jaxsvm
from jaxsvm.cli.job import Job, r_squared
from jaxsvm.cli.report.answer import Answer, Folds
from jaxsvm.cli.report.progress import gap_bar, progress_bar
from jaxsvm.models.model import compact
from jaxsvm.results.fit import Fit, Status


def problem_of(job: Job, C: float = 1.0) -> Any:
    """The problem at a C.

    Regression is a box problem of 2 n variables, one for each side of the tube: `a_i` pulls f up to `y_i - epsilon`,
    `a_(n + i)` down to `y_i + epsilon`.
    """
    if job.classes is not None:
        gram = jaxsvm.gram(job.kernel, job.x)
        if job.loss == "hinge":
            return jaxsvm.hinge_problem(gram, job.target, C, bias="free")
        return jaxsvm.svm_problem(gram, job.target, C)
    gram = jaxsvm.gram(job.kernel, (sp.vstack if sp.issparse(job.x) else np.concatenate)([job.x, job.x]))
    side = np.repeat([1.0, -1.0], len(job.target)).astype(job.target.dtype)
    q = side * np.tile(job.target, 2) - job.epsilon
    return jaxsvm.box_problem(gram, q, 1.0, y=side, c=side).at(C)  # C in units of the bounds


def solver_of(name: str, tol: float, max_steps: int) -> Any:
    """The solver of that name; None where the library chooses."""
    if name == "auto":
        return None
    if name == "cvm":
        return jaxsvm.CoreVectorMachine(tol=tol, max_steps=max_steps)
    return jaxsvm.FrankWolfe(variant=name, tol=tol, max_steps=max_steps)


def fit_one(job: Job, C: float, solver: Any, tol: float, seed: int, max_seconds: float | None) -> Answer:
    """One C."""
    problem = problem_of(job, C)
    named: dict[str, Any] = {"tol": tol} if solver is None else {}
    with gap_bar(tol) as callback:
        fitted = jaxsvm.fit(
            problem, solver, key=jax.random.key(seed), max_seconds=max_seconds, callback=callback, **named
        )
    return _answer(job, problem, C, fitted)


def fit_path(
    job: Job, Cs: list[float], solver: Any, tol: float, seed: int, max_seconds: float | None
) -> dict[int, Answer]:
    """The values that were reached: all, but for Ctrl-C and --max-seconds."""
    problem = problem_of(job)
    with progress_bar() as bar:
        task = bar.add_task("path", total=len(Cs), note="")

        def took(place: int, fitted: Fit) -> None:
            bar.update(task, advance=1, note=f"C {Cs[place]:.4g}, gap {float(fitted.certificate.relative_gap):.2g}")

        options = {"solver": solver, "tol": tol, "key": jax.random.key(seed), "max_seconds": max_seconds}
        path = jaxsvm.solve_path(problem, Cs, callback=None if bar.disable else took, **options)
    fits = jax.tree.map(np.asarray, path.fits)  # parts of NumPy arrays are not compiled
    unreached = np.isinf(fits.certificate.relative_gap) & (fits.status.code == Status.INTERRUPTED)
    reached = np.flatnonzero(~unreached).tolist()
    return {
        place: _answer(job, problem, Cs[place], jax.tree.map(lambda leaf, at=place: leaf[at], fits))
        for place in reached
    }


def folds_of(job: Job, Cs: list[float], solver: Any, folds: int, tol: float, seed: int) -> Folds:
    """Scores of all values on samples left out."""
    problem = problem_of(job)
    with progress_bar() as bar:
        if job.classes is not None:
            bar.add_task("folds", total=None, note=f"{folds} folds, {len(Cs)} values of C")
            found = jaxsvm.cross_validate(problem, Cs, folds, solver=solver, tol=tol, seed=seed)
            return Folds(found.mean, found.standard_error)
        return Folds.of(_regression_scores(job, problem, Cs, folds, tol, seed, bar))


def _regression_scores(
    job: Job, problem: Any, Cs: list[float], folds: int, tol: float, seed: int, bar: Any
) -> np.ndarray:
    """R^2 of each fold at each C, `(folds, k)`: absent samples have margins too."""
    task = bar.add_task("folds", total=folds * len(Cs), note="")
    y, n = job.target, len(job.target)
    dealt = np.random.default_rng(seed).permutation(n) % folds
    scores = np.full((folds, len(Cs)), np.nan)
    for fold in range(folds):
        part = problem.weighted(np.tile(dealt != fold, 2).astype(y.dtype))
        path = jaxsvm.solve_path(
            part, Cs, tol=tol, callback=None if bar.disable else lambda *_: bar.update(task, advance=1)
        )
        reached = np.isfinite(np.asarray(path.certificate.relative_gap))
        values = np.asarray(path.fits.margins)[:, :n]  # of the upper side, whose sign is +1
        for place in np.flatnonzero(reached):
            scores[fold, place] = r_squared(values[place][dealt == fold], y[dealt == fold])
    return scores


def _answer(job: Job, problem: Any, C: float, fitted: Fit) -> Answer:
    primal, dual, gap = (float(part) for part in fitted.certificate)
    return Answer(
        C=C,
        statuses=(Status(int(fitted.status)),),
        primal=primal,
        dual=dual,
        relative_gap=gap,
        steps=int(fitted.steps),
        kernel_evaluations=fitted.kernel_evaluations,
        support=int(np.count_nonzero(fitted.dual_coef)),
        model=lambda: compact(fitted, problem, scaling=job.scaling, classes=job.classes, layout=job.layout),  # pyright: ignore[reportArgumentType]
    )
