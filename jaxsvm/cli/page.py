"""The report of a path as one HTML page of tables and pictures, without scripts or links to other files."""

import base64
import html
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

import jaxsvm
from jaxsvm.cli.report import cells, shown
from jaxsvm.model_selection.cross_validation import Scores, WidthValidation
from jaxsvm.plots.axes import BLUE, GREEN, ORANGE, PURPLE, RED, against_C, axes_of
from jaxsvm.plots.pictures import path_scores, width_scores

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Path over C: {name}</title><style>
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; }} td {{ padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }}
table.path td {{ text-align: right; border-bottom: 1px solid #ddd; }}
table.path tr:first-child td {{ font-weight: 600; }}
tr.chosen {{ background: #e8f1fb; font-weight: 600; }} tr.failed {{ color: #b00020; }}
img {{ width: 29rem; max-width: 100%; }} footer {{ margin-top: 2rem; color: #666; font-size: .85rem; }}
</style></head><body>
<h1>Path over C: {name}</h1><p>{summary}</p><p>{note}</p>
<h2>Pictures</h2>{pictures}
{widths}{path}
<h2>What was asked</h2><table>{facts}</table>
<footer>jaxsvm {version}. A relative gap is primal / dual - 1, from values recomputed from scratch: the optimum lies
between the two.</footer></body></html>
"""
LEFT_OUT = ("command", "path", "widths", "note", "not_reached", "report")
DRAWN = {"support": GREEN, "relative gap": BLUE, "primal": ORANGE, "test accuracy": PURPLE, "test r2": PURPLE}
"""What of the rows is drawn, and its colour."""


def page_of(report: dict[str, Any], folds: Scores | None, widths: WidthValidation | None = None) -> str:
    """Return the page of a report, as `--json` prints it, with the scores of folds, and at every gamma, if any."""
    rows, chosen, missed = report["path"], report["chosen_C"], report["not_reached"]
    certified = f"{sum(row['certified'] for row in rows)} of {len(rows)} values of C are certified"
    gamma = "" if report["chosen_gamma"] is None else f", gamma = {report['chosen_gamma']:.4g}"
    best = "" if chosen is None else f" Chosen: C = {chosen:.4g}{gamma}."
    texts = {
        "name": str(report["data"]).replace("\\", "/").rsplit("/", 1)[-1],
        "summary": f"{certified} to a relative duality gap of {report['tol']:g}.{best}",
        "note": f"{report['note'] or ''} {f'Not reached: C = {shown(missed)}.' if missed else ''}",
        "version": jaxsvm.__version__,
    }
    facts = {key: value for key, value in report.items() if key not in LEFT_OUT and value is not None and value != []}
    return PAGE.format(
        **{key: html.escape(text) for key, text in texts.items()},
        pictures="".join(_image(title, axes) for title, axes in _pictures(rows, folds, widths)),
        widths=_table("gamma", report, report["widths"]),
        path=_table("C", report, rows),
        facts="".join(_row([key.replace("_", " "), shown(value)]) for key, value in facts.items()),
    )


def _table(key: str, report: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return rows of the report, one for each value of C or gamma, as an HTML table; nothing without rows."""
    if not rows:
        return ""
    titles, lines = cells(rows)
    chosen = ["chosen" if row[key] == report[f"chosen_{key}"] else "" for row in rows]
    kinds = [kind if row.get("certified", True) else "failed" for kind, row in zip(chosen, rows, strict=True)]
    body = _row(titles) + "".join(map(_row, lines, kinds))
    return f'<h2>Every {"value of C" if key == "C" else key}</h2><table class="path">{body}</table>'


def _row(texts: list[str], kind: str = "") -> str:
    return f'<tr class="{kind}">{"".join(f"<td>{html.escape(text)}</td>" for text in texts)}</tr>'


def _pictures(rows: list[Any], folds: Scores | None, widths: WidthValidation | None) -> Iterator[tuple[str, Any]]:
    """Yield titles and axes of all pictures that the report has values for; what is not certified is crossed out."""
    if widths is not None:
        yield "Cross-validated scores by gamma", width_scores(widths)
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
