"""The commands that train, `jaxsvm fit` and `jaxsvm path`, and the report of a path as an HTML page.

The page has the report and pictures, without scripts or links to other files.
"""

import base64
import dataclasses
import html
import io
import math
import os
import time
from collections.abc import Iterator
from typing import Annotated, Any

import jax
import numpy as np
from rich.console import Console

import jaxsvm
from jaxsvm.cli.app import command
from jaxsvm.cli.job import Job, Solution, by_estimator, prepare, scores_of_folds, solved
from jaxsvm.cli.options import Text, Training, of_model, of_output
from jaxsvm.cli.report import Interrupts, check_writable, complain, finish, parts_of, save, show
from jaxsvm.errors import InputError, require
from jaxsvm.model_selection.cross_validation import Scores, end_of
from jaxsvm.plots.pictures import BLUE, GREEN, ORANGE, PURPLE, RED, against_C, axes_of, path_scores

DRAWN = {"support": GREEN, "relative gap": BLUE, "primal": ORANGE, "test accuracy": PURPLE, "test r2": PURPLE}
"""What of a path is drawn, and its colour."""
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Path over C: {name}</title><style>
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }}
pre {{ font-size: .8rem; overflow-x: auto; }} img {{ width: 29rem; max-width: 100%; }}
footer {{ color: #666; font-size: .85rem; }}
</style></head><body>
<h1>Path over C: {name}</h1><p>{summary}</p>
{pictures}
{report}
<footer>jaxsvm {version}. A relative gap is primal / dual - 1, from values recomputed from scratch: the optimum lies
between the two.</footer></body></html>
"""


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
        with interrupts.within(options.max_seconds if job.takes_estimator else None):
            solution = solved(job, [C]).get(0)
        if solution is None:
            short = InputError("--max-seconds is too short: not all machines were trained; give it more time.")
            raise KeyboardInterrupt if interrupts.came else short
        seconds = time.monotonic() - started
        out = _saved(job, C, solution, interrupts)
    row = {**solution.row, "seconds": seconds, "out": out, "note": job.note}
    show(options.as_json, {"command": "fit", **job.description(), **row})
    finish([row["status"]], interrupts.seen, dtype=options.dtype)


def _saved(job: Job, C: float, solution: Solution, interrupts: Interrupts) -> str | None:
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
        interrupts.armed = True
        again = by_estimator(job, [C], None, probability=True, random_state=job.options.seed)
        interrupts.armed = False
        if not again:
            remedy = f"`jaxsvm fit --probability --C {C:.6g}` makes one with them"
            complain(f"the model is written without probabilities: there was no time; {remedy}.")
        model = dataclasses.replace(model, sigmoids=again[0].model.sigmoids if again else None)
    save(out, model.save)
    return out


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
    report_file: Annotated[Text, of_output("--report", help="File to write an HTML report to.", metavar="FILE")] = None,
    *,
    options: Training,
) -> None:
    """Fit one SVM for every C of a grid, each certified, from one kernel matrix; choose C by folds if asked to."""
    Cs = _values(C, C_min, C_max, n_c)
    _require_choice(Cs, folds, one_standard_error, options)
    check_writable(options.out, options.data)
    check_writable(report_file, options.data, *filter(None, [options.out]), option="--report")
    if report_file is not None:
        axes_of(None)  # matplotlib is there, before the work
    with jax.enable_x64(options.dtype == "float64"), Interrupts() as interrupts, interrupts.within(options.max_seconds):
        job = prepare(dataclasses.replace(options, gamma=(options.gammas or [None])[0]))
        started, folded, widths = time.monotonic(), None, []
        if folds is not None and len(options.gammas) > 1:
            job, folded, widths = _of_best_width(job, options.gammas, Cs, folds, interrupts)
        solutions = solved(job, Cs)
        if folds is not None and folded is None:
            folded = scores_of_folds(job, Cs, folds)
        seconds = time.monotonic() - started
        interrupts.armed = False
        if not solutions and interrupts.came:
            raise KeyboardInterrupt
        rows = {at: solution.row for at, solution in solutions.items()}
        chosen, note = (0 if len(Cs) == 1 and rows else None), None
        if folded is not None:
            for at, row in rows.items():
                row[f"cv_{job.metric}"] = float(folded.mean[at])
                row["cv_standard_error"] = float(folded.standard_error[at])
            if len(Cs) > 1:
                chosen, note = _chosen(Cs, rows, folded, one_standard_error)
        saved = _without_scores(Cs, rows, interrupts) if chosen is None and folded is not None else chosen
        out = None if saved is None else _saved(job, Cs[saved], solutions[saved], interrupts)
    gamma = float(vars(job.kernel)["gamma"]) if widths else None
    notes = [job.note, note, end_of("gamma", gamma, [row["gamma"] for row in widths] or [0.0])]
    report = {
        "command": "path", **job.description(), "folds": folds, "widths": widths, "path": list(rows.values()),
        "not_reached": [C for at, C in enumerate(Cs) if at not in rows],
        "chosen_C": None if chosen is None else Cs[chosen], "chosen_gamma": gamma, "seconds": seconds, "out": out,
        "report": report_file, "note": " ".join(filter(None, notes)) or None,
    }  # fmt: skip
    if report_file is not None:
        save(report_file, page_of(report, folded), "--report")
    show(options.as_json, report)
    complete = len(rows) == len(Cs) and (out is not None or options.out is None)
    complete &= folded is None or not np.isnan(folded.scores).any()
    finish([row["status"] for row in rows.values()], interrupts.came, complete, options.dtype)


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


def _require_choice(Cs: list[float], folds: int | None, one_standard_error: bool, options: Training) -> None:  # noqa: N803
    """Refuse options that need a choice without the folds that make it."""
    loss, nu = options.loss, options.nu
    of_C = loss == "epsilon_insensitive" or (nu is None and loss != "one_class")
    require(of_C, f"--loss is {loss} with --nu {nu or 0.5}: nu is in place of C, and a path is one of C; take fit.")
    chooses, by_folds = "cross-validation chooses: add --folds 5, say.", folds is not None
    require(by_folds or not one_standard_error, f"--one-standard-error: {chooses}")
    require(by_folds or len(options.gammas) < 2, f"--gamma is {options.gamma!r}, several values, of which {chooses}")
    one = "--out writes one model, and there are several values of C, of which"
    require(by_folds or len(Cs) == 1 or options.out is None, f"{one} {chooses} Or fit with the C that you know.")


def _of_best_width(
    job: Job, gammas: list[str], Cs: list[float], folds: int, interrupts: Interrupts
) -> tuple[Job, Scores, list[dict[str, Any]]]:
    """Cross-validate every width of the kernel; return the job and the scores of the best, and a row for each."""
    jobs = [job.with_gamma(gamma) for gamma in gammas]
    scored = [scores_of_folds(each, Cs, folds) for each in jobs]
    if interrupts.came:
        raise KeyboardInterrupt
    best = [float(np.nanmax(scores.mean, initial=-np.inf)) for scores in scored]
    widths = [float(vars(each.kernel)["gamma"]) for each in jobs]
    place = max(range(len(jobs)), key=lambda at: (best[at], -widths[at]))
    rows = zip(widths, [scores.C for scores in scored], best, strict=True)
    names = ("gamma", "best C", f"cv {job.metric}")
    return jobs[place], scored[place], [dict(zip(names, row, strict=True)) for row in rows]


def _certified(rows: dict[int, Any]) -> list[int]:
    """Return the places of the certified values of C; of all that were reached if there are none."""
    return [at for at, row in rows.items() if row["certified"]] or list(rows)


def _chosen(
    Cs: list[float], rows: dict[int, Any], folded: Scores, one_standard_error: bool
) -> tuple[int | None, str | None]:
    """Return the place of the C of the best score among the certified values, None without scores; and a note."""
    others = np.isin(np.arange(len(Cs)), _certified(rows), invert=True)
    known = Scores(folded.Cs, np.where(others, np.nan, folded.scores))
    C = known.C_one_standard_error if one_standard_error else known.C
    return (None, None) if np.isnan(C) else (Cs.index(C), folded.note)


def _without_scores(Cs: list[float], rows: dict[int, Any], stop: Interrupts) -> int | None:
    """Return the place of the C nearest to 1, that of `fit`, if Ctrl-C or the time limit came before the scores."""
    if stop.seen and rows:
        nearest = min(_certified(rows), key=lambda at: abs(math.log(Cs[at])))
        complain(f"no score was reached: C is not chosen, and the model is that of C = {Cs[nearest]:.6g}.")
        return nearest
    complain(
        "no value of C has a score (a relative gap below 1 in every fold): none is chosen, and no model is written; "
        "take smaller values of C, scale the columns, or allow more time."
    )
    return None


def page_of(report: dict[str, Any], folds: Scores | None) -> str:
    """Return the page of a report: what `show` prints, with pictures, and the scores of folds if there are any."""
    console = Console(record=True, file=io.StringIO(), width=160, markup=False, highlight=False)
    for part in parts_of(report):
        console.print(part)
    rows = report["path"]
    certified = f"{sum(row['certified'] for row in rows)} of {len(rows)} values of C are certified"
    return PAGE.format(
        name=html.escape(os.path.basename(report["data"])),
        summary=f"{certified} to a relative duality gap of {report['tol']:g}.",
        pictures="".join(_image(title, axes) for title, axes in _pictures(rows, folds)),
        report=console.export_html(code_format="<pre>{code}</pre>", inline_styles=True),
        version=jaxsvm.__version__,
    )


def _pictures(rows: list[Any], folds: Scores | None) -> Iterator[tuple[str, Any]]:
    """Yield titles and axes of all pictures that the report has values for; what is not certified is crossed out."""
    if folds is not None and np.isfinite(folds.mean).any():
        yield f"Cross-validated {'R2' if 'cv_r2' in rows[0] else 'accuracy'}", path_scores(folds)
    for title, colour in DRAWN.items():
        known = [(row["C"], row.get(title.replace(" ", "_")), row["certified"]) for row in rows]
        drawn = np.array(sorted(one for one in known if one[1] is not None and np.isfinite(one[1])))
        if len(drawn):
            ax, failed = axes_of(None), drawn[drawn[:, 2] == 0]
            ax.plot(drawn[:, 0], drawn[:, 1], "o-", color=colour, markersize=4)
            ax.plot(failed[:, 0], failed[:, 1], "x", color=RED, markersize=9)
            if title in ("relative gap", "primal") and drawn[:, 1].min() > 0:
                ax.set_yscale("log")
            yield title.capitalize(), against_C(ax, title)


def _image(title: str, ax: Any) -> str:
    ax.set_title(title, fontsize=10)
    content = io.BytesIO()
    ax.figure.savefig(content, format="png", dpi=110)
    data = base64.b64encode(content.getvalue()).decode("ascii")
    return f'<img alt="{html.escape(title)} against C" src="data:image/png;base64,{data}">'
