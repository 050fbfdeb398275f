"""The commands that train: `jaxsvm fit` and `jaxsvm path`."""

import dataclasses
import math
import time
from typing import Annotated, Any

import jax
import numpy as np

from jaxsvm.cli.app import command
from jaxsvm.cli.job import Job, Solution, errors_of, estimator, prepare, scores_of_folds, solved
from jaxsvm.cli.options import Number, Text, Training, of_model, of_output
from jaxsvm.cli.page import page_of
from jaxsvm.cli.report import Interrupts, check_writable, complain, finish, save, show
from jaxsvm.errors import InputError, require
from jaxsvm.model_selection.cross_validation import CrossValidation, Scores, WidthValidation, end_of
from jaxsvm.models.libsvm import model_of
from jaxsvm.plots.axes import figure_class

OPTIMISTIC = (
    "The test score at the chosen C is optimistic: C was chosen for it, on these same samples. "
    "Samples that took no part in the choice measure it honestly."
)


@command("fit")
def fit(
    C: Annotated[float, of_model("--C", help="Penalty of a violated margin.")] = 1.0,
    *,
    options: Training,
) -> None:
    """Fit one SVM and certify it: two classes, more of them (one machine per pair), or numbers."""
    several = f"--gamma is {options.gamma!r}: fit takes one value; path --folds 5 chooses among several."
    require(len(options.gammas) < 2, several)
    check_writable(options.out, options.data)
    with jax.enable_x64(options.dtype == "float64"), Interrupts() as interrupts:
        job = prepare(options)
        started = time.monotonic()
        with interrupts.within(options.max_seconds if job.by_estimator else None):
            solution = solved(job, [C]).get(0)
        if solution is None:
            short = InputError("--max-seconds is too short: not all machines were trained; give it more time.")
            raise KeyboardInterrupt if interrupts.came else short
        seconds = time.monotonic() - started
        out = _saved(job, C, solution, interrupts)
        row = solution.row(job) | {"seconds": seconds}
    show(options.as_json, {"command": "fit", **job.description(), **row, "out": out, "note": job.note})
    finish(solution.statuses, interrupts.seen, dtype=options.dtype)


def _saved(
    job: Job, C: float, solution: Solution, interrupts: Interrupts, held_out: np.ndarray | None = None
) -> str | None:
    """Write the model and return the file's name; None if no file was asked for or the model is worthless."""
    interrupts.armed = False
    out, model = job.options.out, solution.model
    if out is None:
        return None
    if not all(np.isfinite(part).all() for part in (model.coef, model.bias, model.R)):
        complain("its numbers are not finite: no model is written.")
        return None
    if np.isinf(model.certificate.relative_gap).all() and not np.asarray(model.coef).any():
        complain("it ended before anything was certified: no model is written.")
        return None
    if job.options.probability:
        model = dataclasses.replace(model, sigmoids=_sigmoids(job, C, held_out, interrupts))
    save(out, model.save)
    return out


def _sigmoids(
    job: Job, C: float, held_out: np.ndarray | None, interrupts: Interrupts
) -> tuple[tuple[float, float], ...] | None:
    """Return slope and shift of each machine's map to probabilities; say so if there was no time.

    `held_out` are decision values of samples that were left out of training, `(n,)`; None: an estimator makes them.
    """
    if held_out is not None:
        from jaxsvm.estimators.probability import sigmoids  # it imports scikit-learn

        weight = np.ones(len(job.y)) if job.weight is None else job.weight
        return tuple((slope, shift) for slope, shift in sigmoids(held_out[:, None], job.codes, weight, [(0, 1)]))
    interrupts.armed = True
    try:
        interrupts.check()
        machines = estimator(job, C, probability=True, random_state=job.options.seed)
        with errors_of("--probability"):
            machines.fit(job.x, job.codes, sample_weight=job.weight)
        return model_of(machines).sigmoids
    except KeyboardInterrupt:
        again = f"`jaxsvm fit --probability --C {C:.6g}` makes one with them"
        complain(f"the model is written without probabilities: there was no time; {again}.")
        return None
    finally:
        interrupts.armed = False


@command("path")
def path(
    C: Annotated[Text, of_model("--C", help="Penalties, instead of a grid.", metavar="C1,C2,...")] = None,
    C_min: Annotated[float, of_model("--C-min", help="Smallest C of the logarithmic grid.")] = 1e-2,
    C_max: Annotated[float, of_model("--C-max", help="Largest C of the grid.")] = 1e3,
    n_c: Annotated[int, of_model(help="Number of values in the grid.", min=1)] = 16,
    folds: Annotated[int | None, of_model(help="Choose C by cross-validation with this many folds.", min=2)] = None,
    one_standard_error: Annotated[
        bool, of_model("--one-standard-error", help="With --folds: the smallest C within one error of the best.")
    ] = False,
    save_C: Annotated[Number, of_output("--save-C", help="C of the model for --out (default: the best).")] = None,
    report_file: Annotated[Text, of_output("--report", help="File to write an HTML report to.", metavar="FILE")] = None,
    *,
    options: Training,
) -> None:
    """Fit one SVM for every C of a grid, each certified, from one kernel matrix; choose C by folds if asked to."""
    Cs = _values(C, C_min, C_max, n_c)
    saved = _place_to_save(Cs, save_C, folds, options)
    require(folds is not None or not one_standard_error, "--one-standard-error is for --folds: add --folds 5, say.")
    check_writable(options.out, options.data)
    check_writable(report_file, options.data, *filter(None, [options.out]), option="--report")
    if report_file is not None:
        figure_class()  # before the work
    with jax.enable_x64(options.dtype == "float64"), Interrupts() as interrupts, interrupts.within(options.max_seconds):
        job = prepare(dataclasses.replace(options, gamma=(options.gammas or [None])[0]))
        started, widths = time.monotonic(), None
        if len(options.gammas) > 1:
            job, widths = _of_best_width(job, Cs, options.gammas, folds or 0, interrupts)
        solutions = solved(job, Cs)
        folded = None if folds is None else widths.best if widths else scores_of_folds(job, Cs, folds)
        seconds = time.monotonic() - started
        interrupts.armed = False
        if not solutions and interrupts.came:
            raise KeyboardInterrupt
        rows = {at: solution.row(job) for at, solution in solutions.items()}
        for at, row in rows.items():
            if folded is not None:
                row |= {
                    f"cv_{job.metric}": float(folded.mean[at]),
                    "cv_standard_error": float(folded.standard_error[at]),
                }
        best, chosen, note, out = saved, saved is not None, None, None
        if saved is None and (folded or job.test):
            tested = [rows[at][f"test_{job.metric}"] if at in rows else np.nan for at in range(len(Cs))]
            scores = folded or Scores(np.asarray(Cs), np.asarray([tested], float))
            best, chosen = _best(rows, scores, one_standard_error, interrupts.seen)
            note = f"{'' if folded or len(rows) < 2 else OPTIMISTIC} {scores.note or ''}" if chosen else None
        if best is not None and best not in solutions:
            complain(f"C = {Cs[best]:g} was not reached{'' if options.out is None else ': no model is written'}.")
            best = None
        if best is not None:
            out = _saved(job, Cs[best], solutions[best], interrupts, _held_out(job, folded, best))
    notes = [job.note, note and note.strip(), widths and end_of("gamma", widths.gamma, widths.gammas)]
    report = {
        "command": "path", **job.description(), "folds": folds, "widths": _width_rows(job, widths),
        "path": list(rows.values()), "not_reached": [C for at, C in enumerate(Cs) if at not in rows],
        "chosen_C": Cs[best] if chosen and best is not None else None, "chosen_gamma": widths and widths.gamma,
        "seconds": seconds, "out": out, "report": report_file, "note": " ".join(filter(None, notes)) or None,
    }  # fmt: skip
    if report_file is not None:
        save(report_file, page_of(report, folded, widths), "--report")
    show(options.as_json, report)
    complete = len(rows) == len(Cs) and (out is not None or options.out is None)
    complete &= folded is None or not np.isnan(folded.scores).any()
    finish([solution.status for solution in solutions.values()], interrupts.came, complete, options.dtype)


def _values(listed: str | None, low: float, high: float, count: int) -> list[float]:
    """Return the values of C: those listed, else a logarithmic grid."""
    if listed is None:
        need = f"--C-min is {low} and --C-max {high}: positive numbers, the first no larger, are needed."
        require(0 < low <= high < math.inf, need)
        return np.geomspace(low, high, count).tolist()
    try:
        Cs = [float(text) for text in listed.split(",")]
    except ValueError:
        Cs = [math.nan]
    require(all(0 < C < math.inf for C in Cs), f"--C is {listed!r}: positive numbers such as 0.1,1,10 are needed.")
    return Cs


def _place_to_save(Cs: list[float], save_C: float | None, folds: int | None, options: Training) -> int | None:  # noqa: N803
    """Return the index of the value of C whose model is written, None if scores will choose it; check all options."""
    loss, nu = options.loss, options.nu
    of_C = loss == "epsilon_insensitive" or (nu is None and loss != "one_class")
    require(of_C, f"--loss is {loss} with --nu {nu or 0.5}: nu is in place of C, and a path is one of C; take fit.")
    need = f"--gamma is {options.gamma!r}: cross-validation chooses among several; add --folds 5, say."
    require(len(options.gammas) < 2 or folds is not None, need)
    if save_C is not None:
        near = [place for place, C in enumerate(Cs) if math.isclose(C, save_C, rel_tol=1e-3)]
        require(bool(near), f"--save-C is {save_C}: it is none of the values, {', '.join(f'{C:.6g}' for C in Cs)}.")
        return near[0]
    need = "--out writes one model: say which with --save-C, or let scores choose with --folds 5 (or --test-fraction)."
    require(len(Cs) == 1 or options.out is None or options.test_fraction > 0 or folds is not None, need)
    return 0 if len(Cs) == 1 else None


def _of_best_width(
    job: Job, Cs: list[float], gammas: list[str], folds: int, interrupts: Interrupts
) -> tuple[Job, WidthValidation]:
    """Cross-validate every width of the kernel; return the job of the best, and the scores of all."""
    jobs, results = [job.with_gamma(gamma) for gamma in gammas], []
    for candidate in jobs:
        results.append(scores_of_folds(candidate, Cs, folds))
        if interrupts.came:
            raise KeyboardInterrupt
    widths = np.asarray([float(vars(candidate.kernel)["gamma"]) for candidate in jobs])
    found = WidthValidation(widths, tuple(results))
    return jobs[widths.tolist().index(found.gamma)], found


def _width_rows(job: Job, found: WidthValidation | None) -> list[dict[str, Any]]:
    """Return the best score of each width of the kernel."""
    if found is None:
        return []
    means = found.mean.max(axis=1, initial=-np.inf, where=np.isfinite(found.mean)).tolist()
    named = zip(found.gammas.tolist(), (scores.C for scores in found.results), means, strict=True)
    return [{"gamma": gamma, "best C": C, f"cv {job.metric}": mean} for gamma, C, mean in named]


def _best(
    rows: dict[int, dict[str, Any]], scores: Scores, one_standard_error: bool, stopped: bool
) -> tuple[int | None, bool]:
    """Choose a value of C among the certified ones, or among all if none is certified.

    Args:
        rows: Rows of the report, by index of C.
        scores: Their scores.
        one_standard_error: Whether to take the smallest C whose score is within one standard error of the best.
        stopped: Whether Ctrl-C or the time limit came: without scores the C nearest to 1, that of `fit`, serves.

    Returns:
        Its index, None without scores; and whether scores have chosen it.
    """
    certified = [at for at, row in rows.items() if row["certified"]] or list(rows)
    left_out = np.isin(np.arange(len(scores.Cs)), certified, invert=True)
    known = Scores(scores.Cs, np.where(left_out, np.nan, scores.scores))
    C = known.C_one_standard_error if one_standard_error else known.C
    if not np.isnan(C):
        return scores.Cs.tolist().index(C), True
    if stopped and rows:
        nearest = min(certified, key=lambda at: abs(math.log(rows[at]["C"])))
        complain(f"no score was reached: C is not chosen, and the model is that of C = {rows[nearest]['C']:.6g}.")
        return nearest, False
    complain(
        "no value of C has a score (a relative gap below 1 in every fold): none is chosen, and no model is written; "
        "take smaller values of C, scale the columns, or allow more time."
    )
    return None, False


def _held_out(job: Job, scores: Scores | None, place: int) -> np.ndarray | None:
    """Return decision values at a C of all samples, `(n,)`, by the folds that left them out; None without such."""
    if not isinstance(scores, CrossValidation) or not np.isfinite(scores.mean[place]):
        return None
    return np.asarray(scores.fits.margins)[scores.folds, place, np.arange(len(job.y))] * job.y
