"""The report of a path as one HTML page of tables and pictures, without scripts or links to other files."""

import base64
import datetime
import html
import io
from typing import Any

import numpy as np

import jaxsvm
from jaxsvm.cli.report.text import SCORES, path_table, shown
from jaxsvm.model_selection.cross_validation import Scores, WidthValidation
from jaxsvm.plots.axes import BLUE, GREEN, ORANGE, PURPLE, RED, against_C, axes_of
from jaxsvm.plots.path import path_scores, width_scores

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1c1c1c; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
table.path td, table.path th { text-align: right; font-variant-numeric: tabular-nums; border-bottom: 1px solid #ddd; }
tr.chosen { background: #e8f1fb; font-weight: 600; } tr.failed { color: #b00020; }
.pictures { display: flex; flex-wrap: wrap; gap: .5rem; } img { width: 29rem; max-width: 100%; }
footer { margin-top: 2rem; color: #666; font-size: .85rem; }
"""
LEFT_OUT = ("command", "path", "widths", "note", "not_reached", "report")
COLUMNS = {"C": ".4g", "status": "", "relative_gap": ".1e", "primal": ".5g", "dual": ".5g", "steps": "", "support": ""}


def page_of(report: dict[str, Any], folds: Scores | None, widths: WidthValidation | None = None) -> str:
    """Return the page.

    Args:
        report: The report, as `--json` prints it.
        folds: Scores of cross-validation, or None.
        widths: Scores at every width of the kernel, if there are several.
    """
    name = html.escape(str(report["data"]).replace("\\", "/").rsplit("/", 1)[-1])
    facts = "".join(
        f"<tr><th>{html.escape(key.replace('_', ' '))}</th><td>{html.escape(shown(value))}</td></tr>"
        for key, value in report.items()
        if key not in LEFT_OUT and value is not None and value != []
    )
    unreached = report["not_reached"]
    notes = [report.get("note"), f"Not reached: C = {shown(unreached)}." if unreached else None]
    pictures = "".join(_image(title, axes) for title, axes in _pictures(report, folds, widths))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Path over C: {name}</title><style>{STYLE}</style></head><body>
<h1>Path over C: {name}</h1>
<p>{html.escape(_summary(report))}</p>
{"".join(f"<p>{html.escape(note)}</p>" for note in notes if note)}
<h2>Pictures</h2><div class="pictures">{pictures}</div>
{_table("Every gamma", "gamma", report, report["widths"])}
{_table("Every value of C", "C", report, report["path"])}
<h2>What was asked</h2><table>{facts}</table>
<footer>jaxsvm {jaxsvm.__version__}, {datetime.datetime.now().astimezone():%Y-%m-%d %H:%M %Z}. A relative gap is
primal / dual - 1, from values recomputed from scratch: the optimum lies between the two.</footer>
</body></html>
"""


def _summary(report: dict[str, Any]) -> str:
    """Return how many values are certified, and the chosen one with its scores."""
    rows, chosen = report["path"], report["chosen_C"]
    certified = sum(row["certified"] for row in rows)
    said = f"{certified} of {len(rows)} values of C are certified to a relative duality gap of {report['tol']:g}."
    row = next((row for row in rows if row["C"] == chosen), None)
    if row is None:
        return said
    scores = [f"{SCORES[key]} {row[key]:.4f}" for key in SCORES if key[:2] in ("cv", "te") and row.get(key) is not None
              and key != "cv_standard_error"]  # fmt: skip
    gamma = "" if report["chosen_gamma"] is None else f", gamma = {report['chosen_gamma']:.4g}"
    return f"{said} Chosen: C = {chosen:.4g}{gamma}" + (f" ({', '.join(scores)})." if scores else ".")


def _table(title: str, key: str, report: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return rows of the report, one for each value of C or gamma, as an HTML table; nothing without rows."""
    if not rows:
        return ""
    titles, lines = path_table(rows, COLUMNS if key == "C" else dict.fromkeys(rows[0], ".4g"))
    head, body = "".join(f"<th>{html.escape(title)}</th>" for title in titles), ""
    for row, cells in zip(rows, lines, strict=True):
        kind = "failed" if not row.get("certified", True) else "chosen" if row[key] == report[f"chosen_{key}"] else ""
        body += f'<tr class="{kind}">' + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
    return f'<h2>{title}</h2><table class="path"><tr>{head}</tr>{body}</table>'


def _pictures(report: dict[str, Any], folds: Scores | None, widths: WidthValidation | None) -> list[tuple[str, Any]]:
    """Return titles and axes of all pictures that the report has values for."""
    rows = report["path"]
    if not rows:
        return []
    metric = "accuracy" if "classes" in report else "r2"
    pictures = []
    if widths is not None and (widths.gammas > 0).all():
        pictures.append(("Cross-validated scores by gamma", width_scores(widths)))
    if folds is not None and np.isfinite(folds.mean).any():
        pictures.append((f"Cross-validated {SCORES[f'cv_{metric}'].split()[-1]}", path_scores(folds)))
    if any(row.get(f"test_{metric}") is not None for row in rows):
        pictures.append(("On samples held out", _line(rows, f"test_{metric}", SCORES[f"test_{metric}"], PURPLE)))
    pictures.append(("Support", _line(rows, "support", "support vectors", GREEN)))
    pictures.append(("Proof of quality", _line(rows, "relative_gap", "relative gap", BLUE, report["tol"])))
    pictures.append(("Objective", _line(rows, "primal", "primal value", ORANGE, None)))
    return pictures


def _line(rows: list[dict[str, Any]], key: str, title: str, colour: str, tol: float | None = None) -> Any:
    """Draw values against C; cross out those that are not certified, and mark the tolerance by a line."""
    ax = axes_of(None)
    rows = sorted((row for row in rows if row.get(key) is not None and np.isfinite(row[key])), key=lambda row: row["C"])
    ax.plot([row["C"] for row in rows], [row[key] for row in rows], "o-", color=colour, markersize=4)
    failed = [row for row in rows if not row["certified"]]
    ax.plot([row["C"] for row in failed], [row[key] for row in failed], "x", color=RED, markersize=9)
    values = [row[key] for row in rows]
    if key in ("relative_gap", "primal") and min(values, default=0) > 0 and max(values) > 10 * min(values):
        ax.set_yscale("log")
    if tol is not None:
        ax.axhline(tol, color="0.45", linestyle=":", linewidth=1, label=f"tol = {tol:g}")
    return against_C(ax, title)


def _image(title: str, ax: Any) -> str:
    ax.set_title(title, fontsize=10)
    content = io.BytesIO()
    ax.figure.savefig(content, format="png", dpi=110)
    data = base64.b64encode(content.getvalue()).decode("ascii")
    return f'<img alt="{html.escape(title)} against C" src="data:image/png;base64,{data}">'
