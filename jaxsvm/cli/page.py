"""The report of a path as one HTML page of tables and pictures, without scripts or links to other files."""

import base64
import datetime
import html
import io
from typing import Any

import numpy as np

import jaxsvm
from jaxsvm.cli.report import TITLES, cells, shown
from jaxsvm.model_selection.cross_validation import Scores, WidthValidation
from jaxsvm.plots.axes import BLUE, GREEN, ORANGE, PURPLE, RED, against_C, axes_of
from jaxsvm.plots.pictures import path_scores, width_scores

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Path over C: {name}</title><style>
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; }} td, th {{ padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }}
table.path td, table.path th {{ text-align: right; border-bottom: 1px solid #ddd; }}
tr.chosen {{ background: #e8f1fb; font-weight: 600; }} tr.failed {{ color: #b00020; }}
img {{ width: 29rem; max-width: 100%; }} footer {{ margin-top: 2rem; color: #666; font-size: .85rem; }}
</style></head><body>
<h1>Path over C: {name}</h1><p>{summary}</p><p>{note}</p>
<h2>Pictures</h2>{pictures}
{widths}{path}
<h2>What was asked</h2><table>{facts}</table>
<footer>jaxsvm {version}, {now}. A relative gap is primal / dual - 1, from values recomputed from scratch: the optimum
lies between the two.</footer></body></html>
"""
DRAWN = {
    "test_accuracy": ("test accuracy", PURPLE), "test_r2": ("test R2", PURPLE), "support": ("support vectors", GREEN),
    "relative_gap": ("relative gap", BLUE), "primal": ("primal value", ORANGE),
}  # fmt: skip
"""Titles and colours of the pictures of rows."""
LEFT_OUT = ("command", "path", "widths", "note", "not_reached", "report")


def page_of(report: dict[str, Any], folds: Scores | None, widths: WidthValidation | None = None) -> str:
    """Return the page.

    Args:
        report: The report, as `--json` prints it.
        folds: Scores of cross-validation, or None.
        widths: Scores at every width of the kernel, if there are several.
    """
    facts = {key: value for key, value in report.items() if key not in LEFT_OUT and value is not None and value != []}
    missed = report["not_reached"]
    note = f"{report['note'] or ''} {f'Not reached: C = {shown(missed)}.' if missed else ''}"
    return PAGE.format(
        name=html.escape(str(report["data"]).replace("\\", "/").rsplit("/", 1)[-1]),
        summary=html.escape(_summary(report)),
        note=html.escape(note),
        pictures="".join(_image(title, axes) for title, axes in _pictures(report, folds, widths)),
        widths=_table("gamma", report, report["widths"]),
        path=_table("C", report, report["path"]),
        facts="".join(
            f"<tr><th>{html.escape(key.replace('_', ' '))}</th><td>{html.escape(shown(value))}</td></tr>"
            for key, value in facts.items()
        ),
        version=jaxsvm.__version__,
        now=f"{datetime.datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
    )


def _summary(report: dict[str, Any]) -> str:
    """Return how many values are certified, and the chosen one with its scores."""
    rows, chosen = report["path"], report["chosen_C"]
    certified = sum(row["certified"] for row in rows)
    said = f"{certified} of {len(rows)} values of C are certified to a relative duality gap of {report['tol']:g}."
    row: dict[str, Any] = next((row for row in rows if row["C"] == chosen), {})
    scores = [f"{TITLES[key]} {row[key]:.4f}" for key in TITLES if key[:2] in ("cv", "te") and row.get(key) is not None]
    gamma = "" if report["chosen_gamma"] is None else f", gamma = {report['chosen_gamma']:.4g}"
    return f"{said} Chosen: {', '.join([f'C = {chosen:.4g}{gamma}', *scores])}." if row else said


def _table(key: str, report: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return rows of the report, one for each value of C or gamma, as an HTML table; nothing without rows."""
    if not rows:
        return ""
    titles, lines = cells(rows)
    head, body = "".join(f"<th>{html.escape(title)}</th>" for title in titles), ""
    for row, line in zip(rows, lines, strict=True):
        kind = "failed" if not row.get("certified", True) else "chosen" if row[key] == report[f"chosen_{key}"] else ""
        body += f'<tr class="{kind}">' + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>"
    return f'<h2>Every {"value of C" if key == "C" else key}</h2><table class="path"><tr>{head}</tr>{body}</table>'


def _pictures(report: dict[str, Any], folds: Scores | None, widths: WidthValidation | None) -> list[tuple[str, Any]]:
    """Return titles and axes of all pictures that the report has values for."""
    pictures, rows = [], sorted(report["path"], key=lambda row: row["C"])
    if widths is not None:
        pictures.append(("Cross-validated scores by gamma", width_scores(widths)))
    if folds is not None and np.isfinite(folds.mean).any():
        pictures.append((f"Cross-validated {'accuracy' if 'classes' in report else 'R2'}", path_scores(folds)))
    for key, (title, colour) in DRAWN.items():
        drawn = [row for row in rows if row.get(key) is not None and np.isfinite(row[key])]
        if drawn:
            ax = axes_of(None)
            ax.plot([row["C"] for row in drawn], [row[key] for row in drawn], "o-", color=colour, markersize=4)
            failed = [row for row in drawn if not row["certified"]]
            ax.plot([row["C"] for row in failed], [row[key] for row in failed], "x", color=RED, markersize=9)
            if key in ("relative_gap", "primal") and min(row[key] for row in drawn) > 0:
                ax.set_yscale("log")
            pictures.append((title.capitalize(), against_C(ax, title)))
    return pictures


def _image(title: str, ax: Any) -> str:
    ax.set_title(title, fontsize=10)
    content = io.BytesIO()
    ax.figure.savefig(content, format="png", dpi=110)
    data = base64.b64encode(content.getvalue()).decode("ascii")
    return f'<img alt="{html.escape(title)} against C" src="data:image/png;base64,{data}">'
