"""Jobs of two classes or of regression: one problem, at one C or at many, by the library's own drivers."""

from typing import Any

import jax
import numpy as np

import jaxsvm
from jaxsvm.cli.job import Job, r_squared
from jaxsvm.cli.report.progress import gap_bar, progress_bar, progress_note
from jaxsvm.cli.report.solution import Solution
from jaxsvm.model_selection.cross_validation import Scores
from jaxsvm.models.model import compact, is_right
from jaxsvm.problems.contract import Problem
from jaxsvm.results.fit import Fit
from jaxsvm.results.status import Status


def fit_one(job: Job, C: float) -> Solution:
    """Solve the job at one C."""
    problem, options = _problem(job, C), _options(job)
    solver = options.pop("solver")
    if solver is not None:
        del options["tol"]  # the solver has it
    with gap_bar(job.options.tol) as callback:
        fitted = jaxsvm.fit(problem, solver, callback=callback, **options)
    return _solution(job, problem, C, fitted)


def fit_path(job: Job, Cs: list[float]) -> dict[int, Solution]:
    """Solve the job at each C; return the solutions by index, but for those that Ctrl-C or the time limit left out."""
    problem = _problem(job)
    with progress_bar("path", len(Cs)) as bar:

        def draw(place: int, fitted: Fit) -> None:
            bar.update(advance=1, note=f"C {Cs[place]:.4g}, {progress_note(fitted)}")

        path = jaxsvm.solve_path(problem, Cs, callback=bar.callback(draw), **_options(job))
    fits = jax.tree.map(np.asarray, path.fits)  # slices of NumPy arrays are not compiled
    unreached = np.isinf(fits.certificate.relative_gap) & (fits.status.code == Status.INTERRUPTED)
    return {
        place: _solution(job, problem, Cs[place], jax.tree.map(lambda leaf, at=place: leaf[at], fits))
        for place in np.flatnonzero(~unreached).tolist()
    }


def folds_of(job: Job, Cs: list[float], folds: int) -> Scores:
    """Score each C on the samples that folds leave out."""
    problem, options, seed, y = _problem(job), _options(job), job.options.seed, job.target
    dealt: Any = folds
    if job.classes is None:  # both sides of the tube of a sample are held out together
        dealt = np.tile(np.random.default_rng(seed).permutation(len(y)) % folds, 2)
    with progress_bar("folds") as bar:
        bar.update(note=f"{folds} folds, {len(Cs)} values of C")
        solver, tol = options["solver"], options["tol"]
        scores = jaxsvm.cross_validate(problem, Cs, dealt, solver=solver, tol=tol, seed=seed)
    if job.classes is not None:
        return scores
    values = np.array(scores.fits.margins)[:, :, : len(y)]  # of the upper side, whose sign is +1
    values[np.isnan(scores.scores)] = np.nan  # not reached, or far off
    held = [scores.folds[: len(y)] == fold for fold in range(folds)]
    return Scores(scores.Cs, np.array([[r_squared(f[out], y[out]) for f in values[at]] for at, out in enumerate(held)]))


def _problem(job: Job, C: float = 1.0) -> Any:
    """Build the problem at a C."""
    gram = jaxsvm.gram(job.kernel, job.x)
    if job.classes is None:
        return jaxsvm.svr_problem(gram, job.target, C, epsilon=job.epsilon)
    parts = [job.weight, None if job.factors is None else job.factors[job.codes]]
    weights = [part.astype(job.target.dtype) for part in parts if part is not None]
    weight = np.prod(weights, axis=0) if weights else None
    if job.options.loss == "hinge":
        return jaxsvm.hinge_problem(gram, job.target, C, bias="free", sample_weight=weight)
    return jaxsvm.svm_problem(gram, job.target, C, sample_weight=weight)


def _score(job: Job, margins: np.ndarray) -> float:
    if job.classes is None:
        return r_squared(margins[: len(job.target)], job.target)  # of the upper side, whose sign is +1
    return float(np.average(is_right(margins, job.target), weights=job.weight))


def _options(job: Job) -> dict[str, Any]:
    """Return the options of `jaxsvm.fit` and `jaxsvm.solve_path`; the solver None leaves the choice to the library."""
    tol, seconds, steps = job.options.tol, job.options.max_seconds, job.options.max_steps
    solver, limits = None, {"tol": tol, "max_steps": 1_000_000 if steps is None else steps}
    if job.solver == "cvm":
        solver = jaxsvm.CoreVectorMachine(**limits)
    elif job.solver != "auto":
        solver = jaxsvm.FrankWolfe(variant=job.solver, **limits)
    return {"solver": solver, "tol": tol, "key": jax.random.key(job.options.seed), "max_seconds": seconds}


def _solution(job: Job, problem: Problem, C: float, fitted: Fit) -> Solution:
    """Gather what reports and models need of a fit."""
    return Solution(
        C=C,
        statuses=(Status(int(fitted.status)),),
        certificate=fitted.certificate,
        steps=int(fitted.steps),
        kernel_evaluations=int(fitted.kernel_evaluations),
        support=int(np.count_nonzero(fitted.dual_coef)),
        score=_score(job, np.asarray(fitted.margins)),
        model=lambda: compact(fitted, problem, scaling=job.scaling, classes=job.classes, layout=job.layout),  # pyright: ignore[reportArgumentType]
    )
