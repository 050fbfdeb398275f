"""Reports as a table or JSON on stdout, errors as one line on stderr, and the exit code."""

import contextlib
import csv
import enum
import errno
import io
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import typer
from rich.console import Console
from rich.table import Column, Table

from jaxsvm.errors import InputError
from jaxsvm.results.status import Status, advice


class Exit(enum.IntEnum):
    """Exit codes of the command."""

    CERTIFIED = 0
    NOT_CERTIFIED = 1
    BAD_INPUT = 2
    INTERRUPTED = 130


ADVICE = {
    Status.STALLED: "The floor of the numbers is reached: use a larger --tol, scaled columns or a smaller C.",
    Status.MAX_STEPS: "Raise --max-steps or loosen --tol.",
    Status.INTERRUPTED: "Give it more time or loosen --tol.",
}
"""Advice for a status in terms of the command's options; `results/status.py` names the library's arguments."""

SCORES = {
    "relative_gap": "gap",
    "train_accuracy": "train accuracy",
    "train_r2": "train R2",
    "cv_accuracy": "cv accuracy",
    "cv_r2": "cv R2",
    "cv_standard_error": "+-",
    "test_accuracy": "test accuracy",
    "test_r2": "test R2",
    "epsilon": "epsilon",
}
"""Titles of the columns that only some reports have, and of those whose key is not their title."""

COLUMNS = {"C": ".4g", "status": "", "relative_gap": ".1e", "primal": ".5g", "steps": "", "support": ""}
"""The columns of a path's table on a terminal, and their formats."""


def show(as_json: bool, report: dict[str, Any]) -> None:
    """Print a report as JSON, or as text: the facts, the rows of a path, the note."""
    if as_json:
        print_json(report)
        return
    with reporting():
        _print_table(report)


def _print_table(report: dict[str, Any]) -> None:
    """Print a report as text."""
    console = _Console(soft_wrap=True, markup=False, width=None if sys.stdout.isatty() else 160)
    facts = Table(show_header=False, box=None)
    for name, value in report.items():
        if name not in ("path", "widths", "table", "note") and value is not None and value != []:
            size = f"{value / 2**30:.4g} GiB" if name.startswith("bytes_of") or name.endswith("_memory") else None
            facts.add_row(name.replace("bytes_of", "memory of").replace("_", " "), size or shown(value))
    console.print(facts)
    for rows in (report.get("widths"), report.get("path"), report.get("table")):
        if not rows:
            continue
        formats = {name: ".4g" if isinstance(value, float) else "" for name, value in rows[0].items()}
        titles, lines = path_table(rows, COLUMNS if "certified" in rows[0] else formats)
        table = Table(*(Column(title, justify="right", no_wrap=True) for title in titles), box=None)
        for row, cells in zip(rows, lines, strict=True):
            table.add_row(*cells, style=None if row.get("certified", True) else "red")
        console.print(table)
    if report.get("note"):
        console.print(printable(report["note"]))


def path_table(rows: list[dict[str, Any]], formats: dict[str, str]) -> tuple[list[str], list[list[str]]]:
    """Return the titles and the cells of a table: the columns of `formats`, then the scores that the rows have."""
    scores = [name for name in SCORES if name not in formats and any(row.get(name) is not None for row in rows)]
    formats = formats | {name: ".4g" if name == "epsilon" else ".4f" for name in scores}
    cells = [
        ["" if row[name] is None else printable(format(row[name], form)) for name, form in formats.items()]
        for row in rows
    ]
    return [printable(SCORES.get(name, name)) for name in formats], cells


def shown(value: Any) -> str:
    """Format a value for a table."""
    if isinstance(value, dict):
        return ", ".join(shown(part) if name == "kernel" else f"{name} {shown(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(shown, value[:20])) + (f", ... ({len(value)})" if len(value) > 20 else "")
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else printable(str(value)) or "(unnamed)"


def printable(text: str) -> str:
    """Return a text with control characters written as escapes: labels and names must not move a terminal's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_json(report: dict[str, Any]) -> None:
    """Print a report as one JSON object on stdout."""
    with reporting():
        json.dump(_strict(report), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")


def print_lines(lines: list[Any]) -> None:
    """Print values on stdout, one a line."""
    with reporting():
        to_terminal = sys.stdout.isatty()
        sys.stdout.write("".join(f"{printable(str(line)) if to_terminal else line}\n" for line in lines))


def predictions(labels: list[Any], values: list[Any], columns: list[str]) -> str:
    """Return `label,decision` as CSV, or a column per pair of classes; labels that hold a comma are quoted."""
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(("label", *columns))
    for label, value in zip(labels, values, strict=True):
        decisions = value if isinstance(value, list) else [value]
        writer.writerow((label, *map(repr, decisions[: len(columns)])))
    return page.getvalue()


def require_stdout() -> None:
    """Refuse a closed stdout, before the work."""
    if sys.stdout is None:
        raise InputError("the report cannot be written: stdout is closed.")


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Turn a failed write to stdout into an error; a reader that has read enough, such as `head`, is none.

    Raises:
        InputError: If stdout is closed or full, or its encoding lacks a character.
    """
    require_stdout()
    try:
        yield
        sys.stdout.flush()
    except UnicodeEncodeError as error:
        missing = error.object[error.start]
        raise InputError(
            f"the report cannot be written: stdout takes {error.encoding}, which has no {missing!a}; set "
            "PYTHONIOENCODING=utf-8."
        ) from None
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # else Python writes the rest when it leaves, and fails again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return
        raise InputError(f"the report cannot be written to stdout: {error.strerror or error}.") from None


class _Console(Console):
    """A console that raises an error if nothing reads its output."""

    def on_broken_pipe(self) -> None:
        """Raise the error that Rich would turn into a silent exit."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _strict(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
    if isinstance(value, dict):
        return {name: _strict(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def complain(message: str) -> None:
    """Print an error as one line on stderr."""
    typer.echo(f"jaxsvm: error: {printable(in_options(message))}", err=True)


def in_options(message: str) -> str:
    """Return an error in one line; where it names Python's argument and the option, the option is left."""
    return re.sub(r"\(\w+=[^(),]*, (--[^()]*\))", r"(\1", " ".join(message.split()))


def finish(
    statuses: Iterable[Any], interrupted: bool, complete: bool = True, dtype: str = "float64", nu: float | None = None
) -> None:
    """Name on stderr what is not certified, and end the command with its exit code."""
    failed = [Status(int(status)) for status in statuses if status != Status.CONVERGED]
    if failed:
        hint = f" {ADVICE.get(failed[0]) or advice(failed[0])}"
        if failed[0] == Status.STALLED and dtype == "float32":
            hint += " Or take --dtype float64."
        if failed[0] == Status.MAX_STEPS and nu is not None:
            hint = " Take a larger --nu, since a small one may leave no margin, or loosen --tol."
        typer.echo(f"jaxsvm: not certified: {', '.join(status.name for status in failed[:8])}.{hint}", err=True)
    if interrupted:
        raise typer.Exit(Exit.INTERRUPTED)
    raise typer.Exit(Exit.CERTIFIED if complete and not failed else Exit.NOT_CERTIFIED)
