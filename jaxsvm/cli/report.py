"""Reports: a table or JSON on stdout, one line for what went wrong on stderr, and the exit code."""

import json
import math
import sys
from typing import Any

import typer
from rich.console import Console
from rich.table import Column, Table

from jaxsvm.result import Fit, Status, advice

CERTIFIED, NOT_CERTIFIED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
ADVICE = {
    Status.STALLED: "The floor of the numbers is reached: use --dtype float64, a larger --tol or a smaller C.",
    Status.MAX_STEPS: "Raise --max-steps or loosen --tol.",
    Status.INTERRUPTED: "Give it more time or loosen --tol.",
}
"""What the command's options can do about a status; `jaxsvm.result.advice` speaks of the library's arguments."""


def row_of(C: float, fitted: Fit, accuracy: float | None, seconds: float) -> dict[str, Any]:
    """One fit, for the report."""
    return {
        "C": C,
        "status": fitted.status.name,
        "certified": bool(fitted.status == Status.CONVERGED),
        "primal": float(fitted.certificate.primal),
        "dual": float(fitted.certificate.dual),
        "relative_gap": float(fitted.certificate.relative_gap),
        "steps": int(fitted.steps),
        "kernel_evaluations": fitted.kernel_evaluations,
        "support": len(fitted.support),
        "test_accuracy": accuracy,
        "seconds": seconds,
    }


def show(as_json: bool, report: dict[str, Any]) -> None:
    """Print a report: facts, then the rows of a path, then what is to be noted; or all of it as JSON."""
    if as_json:
        print_json(report)
        return
    console = Console(soft_wrap=True)
    facts = Table(show_header=False, box=None)
    for name, value in report.items():
        if name not in ("path", "note") and value is not None and value != []:
            facts.add_row(name.replace("_", " "), _shown(value))
    console.print(facts)
    if "path" in report:
        formats = {"C": ".4g", "status": "", "relative_gap": ".1e", "primal": ".5g", "steps": "", "support": ""}
        formats |= {"test_accuracy": ".4f", "seconds": ".2g"}
        short = {"relative_gap": "gap", "test_accuracy": "accuracy"}
        table = Table(*(Column(short.get(name, name), justify="right", no_wrap=True) for name in formats), box=None)
        for row in report["path"]:
            cells = ("" if row[name] is None else format(row[name], style) for name, style in formats.items())
            table.add_row(*cells, style=None if row["certified"] else "red")
        console.print(table)
    if report.get("note"):
        console.print(report["note"])


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(_shown(part) if name == "kernel" else f"{name} {_shown(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)


def print_json(report: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    json.dump(_strict(report), sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def _strict(value: Any) -> Any:
    """The same with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {name: _strict(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def complain(message: str) -> None:
    """One line on stderr."""
    typer.echo(f"jaxsvm: error: {' '.join(message.split())}", err=True)


def finish(fits: list[Fit], interrupted: bool, complete: bool = True) -> None:
    """Say on stderr what is not certified, and leave with the exit code."""
    failed = [Status(int(fitted.status)) for fitted in fits if fitted.status != Status.CONVERGED]
    if failed:
        hint = f" {ADVICE.get(failed[0]) or advice(failed[0])}"
        typer.echo(f"jaxsvm: not certified: {', '.join(status.name for status in failed[:8])}.{hint}", err=True)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(CERTIFIED if complete and not failed else NOT_CERTIFIED)
