"""The commands that train: `jaxsvm fit` and `jaxsvm path`."""

import dataclasses
import math
import time
from itertools import combinations
from typing import Annotated, Any

import jax
import numpy as np

from jaxsvm.cli import single
from jaxsvm.cli.app import command
from jaxsvm.cli.job import Job, prepare, with_gamma
from jaxsvm.cli.options import Grid, Training, option
from jaxsvm.cli.report.page import page_of
from jaxsvm.cli.report.solution import Solution
from jaxsvm.cli.report.text import complain, finish, show
from jaxsvm.cli.system import Interrupts, check_writable, save
from jaxsvm.errors import InputError, require
from jaxsvm.model_selection.cross_validation import CrossValidation, Scores, WidthValidation
from jaxsvm.model_selection.grid import end_of
from jaxsvm.models.model import Model, decision_function
from jaxsvm.plots.axes import figure_class

OPTIMISTIC = (
    "The test score at the chosen C is optimistic: C was chosen for it, on these same samples. "
    "Samples that took no part in the choice measure it honestly."
)


@command("fit")
def fit(C: Annotated[float, option("--C", "Penalty of a violated margin.")] = 1.0, *, options: Training) -> None:
    """Fit one SVM and certify it: two classes, more of them (one machine per pair), or numbers."""
    options.check()
    require(0 < C < math.inf, f"--C is {C}: a positive number is needed.")
    listed = f"--gamma is {options.gamma!r}: fit takes one value; path --folds 5 chooses among several."
    require(len(options.gammas) < 2, listed)
    check_writable(options.out, options.data)
    with jax.enable_x64(options.dtype == "float64"), Interrupts() as interrupts:
        job = prepare(options, interrupts)
        started = time.monotonic()
        with interrupts.within(options.max_seconds if job.by_estimator else None):
            solution = _trainer(job).fit_one(job, C)
        seconds = time.monotonic() - started
        interrupts.armed = False
        model = solution.model()
        out = _saved(job, C, model)
        row = solution.row(job.metric, job.score(model)) | {"seconds": seconds}
    show(options.as_json, {"command": "fit", **job.description(), **row, "out": out, "note": job.note})
    finish(solution.statuses, interrupts.seen, dtype=options.dtype, nu=options.nu)


@command("path")
def path(
    grid: Grid,
    report_file: Annotated[str | None, option("--report", "File to write an HTML report to.", "FILE")] = None,
    *,
    options: Training,
) -> None:
    """Fit one SVM for every C of a grid, each certified, from one kernel matrix; choose C by folds if asked to."""
    options.check()
    grid.check(options)
    Cs = grid.values()
    saved = grid.place_to_save(Cs, options)
    check_writable(options.out, options.data)
    check_writable(report_file, options.data, *filter(None, [options.out]), option="--report")
    if report_file is not None:
        figure_class()  # before the work
    double = options.dtype == "float64"
    with jax.enable_x64(double), Interrupts() as interrupts, interrupts.within(options.max_seconds):
        job = prepare(dataclasses.replace(options, gamma=(options.gammas or [None])[0]), interrupts)
        started = time.monotonic()
        trainer, validated, widths = _trainer(job), None, None
        if len(options.gammas) > 1:
            job, validated, widths = _of_best_width(job, trainer, Cs, options.gammas, grid.folds)
        solutions = trainer.fit_path(job, Cs)
        if grid.folds is not None and validated is None:
            validated = trainer.folds_of(job, Cs, grid.folds)
        seconds = time.monotonic() - started
        interrupts.armed = False
        if not solutions and interrupts.came:
            raise KeyboardInterrupt
        tested, out = job.test is not None, None
        models = {place: solution.model() for place, solution in solutions.items() if tested}
        rows = _rows(job, solutions, models, validated)
        by_test = saved is None and validated is None and tested
        chosen = saved
        if saved is None and (by_test or validated is not None):
            score = f"{'test' if by_test else 'cv'}_{job.metric}"
            chosen = _best(rows, score, grid.one_standard_error, stopped=interrupts.seen)
        if chosen is not None and chosen not in solutions:
            complain(f"C = {Cs[chosen]:g} was not reached{'' if options.out is None else ': no model is written'}.")
            chosen = None
        if chosen is not None:
            out = _saved(job, Cs[chosen], models.get(chosen) or solutions[chosen].model(), validated, chosen)
    by = None if chosen is None or (saved is None and np.isnan(validated.C if validated else 0)) else Cs[chosen]
    note = None if by is None or saved is not None else validated.note if validated else end_of("C", by, Cs)
    report = {
        "command": "path", **job.description(), "folds": grid.folds, "widths": _width_rows(job, widths),
        "path": list(rows.values()), "not_reached": [C for place, C in enumerate(Cs) if place not in solutions],
        "chosen_C": by, "chosen_gamma": widths and widths.gamma, "seconds": seconds,
        "out": out, "report": report_file, "note": _note(job, by_test and len(solutions) > 1, note, widths),
    }  # fmt: skip
    if report_file is not None:
        save(report_file, page_of(report, validated, widths), "--report")
    show(options.as_json, report)
    statuses = [solution.status for solution in solutions.values()]
    complete = len(statuses) == len(Cs) and (out is not None or options.out is None)
    complete &= validated is None or not np.isnan(validated.scores).any()
    finish(statuses, interrupts.came, complete=complete, dtype=options.dtype, nu=options.nu)


def _note(job: Job, optimistic: bool, of_C: str | None, widths: WidthValidation | None) -> str | None:  # noqa: N803
    ends = [of_C, widths and end_of("gamma", widths.gamma, widths.gammas)]
    return " ".join(filter(None, [job.note, OPTIMISTIC if optimistic else None, *ends])) or None


def _of_best_width(
    job: Job, trainer: Any, Cs: list[float], gammas: list[str], folds: int | None
) -> tuple[Job, Scores, WidthValidation]:
    """Cross-validate every width of the kernel; return the job of the best, its scores, and those of all."""
    jobs, results = [with_gamma(job, gamma) for gamma in gammas], []
    for candidate in jobs:
        results.append(trainer.folds_of(candidate, Cs, folds))
        if job.stop.came:
            raise KeyboardInterrupt
    found = WidthValidation(np.asarray([float(vars(candidate.kernel)["gamma"]) for candidate in jobs]), tuple(results))
    return jobs[found.gammas.tolist().index(found.gamma)], found.best, found


def _width_rows(job: Job, found: WidthValidation | None) -> list[dict[str, Any]]:
    """Return the best score of each width of the kernel."""
    if found is None:
        return []
    means = found.mean.max(axis=1, initial=-np.inf, where=np.isfinite(found.mean)).tolist()
    Cs = [scores.C for scores in found.results]
    named = zip(found.gammas.tolist(), Cs, means, strict=True)
    return [{"gamma": gamma, "best C": C, f"cv {job.metric}": mean} for gamma, C, mean in named]


def _trainer(job: Job) -> Any:
    """Return the module that trains this job: `pairs` by estimators, `single` by problems and solvers."""
    if not job.by_estimator:
        return single
    from jaxsvm.cli import pairs  # it imports scikit-learn, which takes a second

    return pairs


def _rows(
    job: Job, solutions: dict[int, Solution], models: dict[int, Model], validated: Scores | None
) -> dict[int, dict[str, Any]]:
    """Return the rows of the report, by index of C; there are models if samples are held out."""
    rows = {}
    for place, solution in solutions.items():
        rows[place] = solution.row(job.metric, job.score(models[place]) if models else None)
        if validated is not None:
            rows[place][f"cv_{job.metric}"] = float(validated.mean[place])
            rows[place]["cv_standard_error"] = float(validated.standard_error[place])
    return rows


def _best(rows: dict[int, dict[str, Any]], score: str, one_standard_error: bool, stopped: bool) -> int | None:
    """Return the index of the best score among the certified values of C, or among all if none is certified.

    Args:
        rows: Rows of the report, by index of C.
        score: The score's name in them.
        one_standard_error: Whether to take the smallest C whose score is within one standard error of the best.
        stopped: Whether Ctrl-C or the time limit came: without scores the C nearest to 1, that of `fit`, serves.

    Returns:
        The index; of equal scores that of the smallest C; None without scores.
    """
    scored = {place: row for place, row in rows.items() if row[score] is not None and math.isfinite(row[score])}
    candidates = {place: row for place, row in scored.items() if row["certified"]} or scored
    if not candidates and stopped and rows:
        known = {place: row for place, row in rows.items() if row["certified"]} or rows
        nearest = min(known, key=lambda place: abs(math.log(known[place]["C"])))
        complain(f"no score was reached: C is not chosen, and the model is that of C = {known[nearest]['C']:.6g}.")
        return nearest
    if not candidates:
        complain(
            "no value of C has a score (a relative gap below 1 in every fold): none is chosen, and no model is "
            "written; take smaller values of C, scale the columns, or allow more time."
        )
        return None
    best = min(candidates, key=lambda place: (-candidates[place][score], candidates[place]["C"]))
    if not one_standard_error:
        return best
    enough = candidates[best][score] - candidates[best]["cv_standard_error"]
    return min((place for place, row in candidates.items() if row[score] >= enough), key=lambda place: rows[place]["C"])


def _held_out(job: Job, validated: Scores | None, place: int) -> np.ndarray | None:
    """Return decision values at a C of all samples, `(n, 1)`, by the folds that left them out; None without such."""
    if not isinstance(validated, CrossValidation) or not np.isfinite(validated.mean[place]):
        return None
    margins = np.asarray(validated.fits.margins)[validated.folds, place, np.arange(len(job.target))]
    return (margins * job.target)[:, None]


def _calibrated(job: Job, C: float, values: np.ndarray | None) -> tuple[tuple[float, float], ...] | None:
    """Fit a sigmoid to each machine's decision values of samples that were left out; say why if there are none.

    Args:
        job: The job.
        C: The penalty.
        values: Such values, `(n, machines)`; None: five more fits make them.
    """
    from jaxsvm.estimators.probability import cross_fitted, sigmoids  # it imports scikit-learn

    order, stop, k = np.argsort(job.codes, kind="stable"), job.stop, len(job.classes or ())
    codes, places, trainer = job.codes[order], list(combinations(range(k), 2)), _trainer(job)

    def decide(rest: np.ndarray, test: np.ndarray) -> np.ndarray:
        weight, rows = job.weight, order[rest]
        weight = None if weight is None else weight[rows]
        part = dataclasses.replace(job, x=job.x[rows], target=job.target[rows], weight=weight, scaling=None)
        stop.check()
        model = trainer.fit_one(part, C).model()
        return np.asarray(decision_function(model, job.x[order[test]])).reshape(len(test), -1)

    stop.armed = values is None
    try:
        if np.bincount(codes).min() < 2:
            raise InputError("a class has a single sample, and some have to be left out")
        if values is None:
            values = cross_fitted(decide, codes, places, np.random.RandomState(job.options.seed))
            stop.check()
        else:
            values = values[order]
    except (InputError, KeyboardInterrupt) as error:
        why = str(error) or f"there was no time; `jaxsvm fit --probability --C {C:.6g}` makes one with them"
        complain(f"the model is written without probabilities: {why}.")
        return None
    finally:
        stop.armed = False
    weight = np.ones(len(codes)) if job.weight is None else job.weight[order]
    return tuple((found.slope, found.shift) for found in sigmoids(values, codes, weight, places))


def _saved(job: Job, C: float, model: Model, validated: Scores | None = None, place: int = 0) -> str | None:
    """Write the model and return the file's name; None if no file was asked for or the model is worthless."""
    out = job.options.out
    if out is None:
        return None
    if not all(np.isfinite(part).all() for part in (model.coef, model.bias, model.R)):
        complain("its numbers are not finite: no model is written.")
        return None
    if np.isinf(model.certificate.relative_gap).all() and not np.asarray(model.coef).any():
        complain("it ended before anything was certified: no model is written.")
        return None
    wanted = job.options.probability
    sigmoids = _calibrated(job, C, _held_out(job, validated, place)) if wanted else None
    save(out, job.complete(model, sigmoids).save)
    return out
