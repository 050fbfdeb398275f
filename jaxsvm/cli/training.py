"""The commands that train, `jaxsvm fit` and `jaxsvm path`, and the report of a path as an HTML page.

The page has the report and pictures, without scripts or links to other files.
"""

import base64
import html
import io
import math
import os
import time
from typing import Annotated, Any

import jax
import numpy as np
from rich.console import Console

import jaxsvm
from jaxsvm.cli.app import Text, Training, command, of_model, of_output
from jaxsvm.cli.job import prepare, scores_of_folds, solved
from jaxsvm.cli.report import check_writable, complain, finish, interruptible, parts_of, save, show
from jaxsvm.errors import require, require_package
from jaxsvm.model_selection.cross_validation import Scores
from jaxsvm.models.model import Model
from jaxsvm.plots.pictures import drawn, path_scores
from jaxsvm.results.fit import Status

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Path over C: {name}</title><style>
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }}
pre {{ font-size: .8rem; overflow-x: auto; }} img {{ width: 36rem; max-width: 100%; vertical-align: top; }}
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
    require(0 < C < math.inf, f"--C is {C}: a positive number is needed.")
    _train("fit", options, [C])


def _saved(out: str | None, model: Model) -> str | None:
    """Write the model and return the file's name; None if no file was asked for or the model is worthless."""
    if out is None:
        return None
    finite = all(np.isfinite(part).all() for part in (model.coef, model.bias, model.R))
    if finite and (np.asarray(model.coef).any() or np.isfinite(model.certificate.relative_gap).any()):
        model.save(out)
        return out
    said = "it ended before anything was certified" if finite else "its numbers are not finite"
    complain(f"{said}: no model is written.")
    return None


@command("path")
def path(
    C: Annotated[Text, of_model("--C", help="Penalties, instead of a grid.", metavar="C1,C2,...")] = None,
    C_min: Annotated[float, of_model("--C-min", help="Smallest C of the logarithmic grid.")] = 1e-2,
    C_max: Annotated[float, of_model("--C-max", help="Largest C of the grid.")] = 1e3,
    n_c: Annotated[int, of_model(help="Number of values in the grid.", min=1)] = 16,
    folds: Annotated[int | None, of_model(help="Choose C by cross-validation with this many folds.", min=2)] = None,
    report_file: Annotated[Text, of_output("--report", help="File to write an HTML report to.", metavar="FILE")] = None,
    *,
    options: Training,
) -> None:
    """Fit one SVM for every C of a grid, each certified, from one kernel matrix; choose C by folds if asked to."""
    Cs = _values(C, C_min, C_max, n_c)
    one = "--out writes one model, and there are several values of C: cross-validation chooses, add --folds 5, say."
    require(folds is not None or len(Cs) == 1 or options.out is None, f"{one} Or fit with the C that you know.")
    check_writable(report_file, options.data, *filter(None, [options.out]), option="--report")
    if report_file is not None:
        require_package("matplotlib.figure", "drawing")  # before the work
    _train("path", options, Cs, folds, report_file)


def _train(
    name: str, options: Training, Cs: list[float], folds: int | None = None, report_file: str | None = None
) -> None:
    """Solve the job of a command at each C, choose one by folds, and write the model, the page and the report."""
    check_writable(options.out, options.data)
    with jax.enable_x64(options.dtype == "float64"), interruptible(options.max_seconds) as stop:
        job = prepare(options)
        started = time.monotonic()
        solutions = solved(job, Cs)
        scores = None if folds is None else scores_of_folds(job, Cs, folds)
        seconds = time.monotonic() - started
        if not solutions and stop.came:
            raise KeyboardInterrupt
        require(bool(solutions), "--max-seconds is too short: nothing was trained in time; give it more.")
        rows = {at: row for at, (row, _) in solutions.items()}
        written, chosen = (0, True) if len(Cs) == 1 else (None, False)
        if scores is not None:
            if len(Cs) > 1:
                written, chosen = _choice(Cs, rows, scores, stop.seen)
            for at, row in rows.items():
                row[f"cv_{job.metric}"] = float(scores.mean[at])
                row["cv_standard_error"] = float(scores.standard_error[at])
        out = None if written is None else _saved(options.out, solutions[written][1])
        notes = [job.note, None if scores is None else scores.note]
        found = rows[0] if name == "fit" else {
            "folds": folds, "path": list(rows.values()),
            "not_reached": [C for at, C in enumerate(Cs) if at not in rows],
            "chosen_C": Cs[written] if written is not None and chosen else None, "report": report_file,
        }  # fmt: skip
        report = {"command": name, **job.description(), **found, "seconds": seconds, "out": out}
        report["note"] = " ".join(filter(None, notes)) or None
        if report_file is not None:
            save(report_file, _page(report, scores))
        show(options.as_json, report)
        complete = len(rows) == len(Cs) and (out is not None or options.out is None)
        complete &= scores is None or not np.isnan(scores.scores).any()
        finish([row["status"] for row in rows.values()], stop.came, complete, options.dtype)


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


def _choice(Cs: list[float], rows: dict[int, Any], scores: Scores, stopped: bool) -> tuple[int | None, bool]:
    """Return the place of the model to write among the certified values of C, and whether folds have chosen it.

    They choose that of the best score; if Ctrl-C or the time limit came before any, it is that nearest to 1.
    """
    certified = [at for at, row in rows.items() if row["certified"]] or list(rows)
    of_certified = np.where(np.isin(np.arange(len(Cs)), certified), scores.scores, np.nan)
    if not np.isnan(best := Scores(scores.Cs, of_certified).C):
        return Cs.index(best), True
    nearest = min(certified, key=lambda at: abs(math.log(Cs[at])), default=None) if stopped else None
    complain(
        "no value of C has a score (a relative gap below 1 in every fold): none is chosen, and no model is written; "
        "take smaller values of C, scale the columns, or allow more time."
        if nearest is None
        else f"no score was reached: C is not chosen, and the model is that of C = {Cs[nearest]:.6g}."
    )
    return nearest, False


def _page(report: dict[str, Any], scores: Scores | None) -> str:
    """Return the page of a report: what `show` prints, with pictures of the path and of the folds' scores."""
    console = Console(record=True, file=io.StringIO(), width=160, markup=False, highlight=False)
    for part in parts_of(report):
        console.print(part)
    rows = report["path"]
    Cs, codes = np.array([row["C"] for row in rows]), np.array([Status[row["status"]] for row in rows])
    names = ("relative_gap", "primal", "support")
    pictures: list[Any] = [drawn(Cs, codes, {name.replace("_", " "): [row[name] for row in rows] for name in names})]
    if scores is not None and np.isfinite(scores.mean).any():
        pictures.append(path_scores(scores))
    images = (base64.b64encode(picture._repr_png_()).decode("ascii") for picture in pictures)
    certified = f"{sum(row['certified'] for row in rows)} of {len(rows)} values of C are certified"
    return PAGE.format(
        name=html.escape(os.path.basename(report["data"])),
        summary=f"{certified} to a relative duality gap of {report['tol']:g}.",
        pictures="".join(f'<img alt="drawn against C" src="data:image/png;base64,{image}">' for image in images),
        report=console.export_html(code_format="<pre>{code}</pre>", inline_styles=True),
        version=jaxsvm.__version__,
    )
