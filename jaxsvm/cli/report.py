"""What the command says, on stdout as tables or JSON and on stderr; its exit codes, its files, and Ctrl-C."""

import contextlib
import enum
import errno
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import rich.progress
import typer
from rich.console import Console
from rich.table import Column, Table

from jaxsvm.errors import require
from jaxsvm.kernels import Kernel
from jaxsvm.loop.interruption import Interruption, watching
from jaxsvm.results.fit import Certificate, Status, advice
from jaxsvm.runtime.files import require_writable, write_whole
from jaxsvm.runtime.startup import leave


class Exit(enum.IntEnum):
    """Exit codes of the command."""

    CERTIFIED = 0
    NOT_CERTIFIED = 1
    BAD_INPUT = 2
    INTERRUPTED = 130


UNFINISHED = "Take a larger --tol, scaled columns, a smaller C, or more time or --max-steps (of relational)."
"""Advice in terms of the command's options on STALLED, MAX_STEPS and INTERRUPTED; `results/fit.py` names arguments."""


def show(as_json: bool, report: dict[str, Any]) -> None:
    """Print a report as JSON, or as text."""
    if as_json:
        strict = json.loads(json.dumps(report), parse_constant=lambda _: None)  # JSON has no NaN
        return write(json.dumps(strict, indent=2) + "\n")
    console = Console(soft_wrap=True, markup=False, width=None if sys.stdout.isatty() else 160)
    with console.capture() as captured:
        console.print(*parts_of(report), sep="\n")
    return write(captured.get())


def parts_of(report: dict[str, Any]) -> Iterator[Table | str]:
    """Yield the parts of a report as text: its facts, its path, in which the chosen row is bold, and its note."""
    facts = Table(show_header=False, box=None)
    for name, value in report.items():
        if name not in ("path", "note") and value is not None and value != []:
            size = f"{value / 2**30:.4g} GiB" if name.endswith("_memory") else None
            facts.add_row(name.replace("_", " "), size or shown(value))
    yield facts
    if rows := report.get("path"):
        names = [name for name in rows[0] if any(not isinstance(row[name], bool | None) for row in rows)]
        titles = (printable(name).replace("_", " ") for name in names)
        table = Table(*(Column(each, justify="right", overflow="fold") for each in titles), box=None, pad_edge=False)
        for row in rows:
            style = "red" if not row.get("certified", True) else "bold" if row["C"] == report.get("chosen_C") else ""
            table.add_row(*(shown(row[name]) for name in names), style=style)
        yield table
    if report.get("note"):
        yield printable(report["note"])


def shown(value: Any) -> str:
    """Format a value for a table."""
    if isinstance(value, dict):
        return ", ".join(shown(part) if name == "kernel" else f"{name} {shown(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value[:20])) + (f", ... ({len(value)})" if len(value) > 20 else "")
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else printable(str(value)) or "(unnamed)"


def kernel_to_dict(kernel: Kernel) -> dict[str, Any]:
    """Describe a kernel by JSON's types, for reports."""
    fields: dict[str, Any] = {}
    for name, value in vars(kernel).items():
        fields[name] = kernel_to_dict(value) if isinstance(value, Kernel) else np.asarray(value).tolist()
    return {"kernel": type(kernel).__name__, **fields}


def printable(text: str) -> str:
    """Return a text with control characters written as escapes: labels and names must not move a terminal's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def write(text: str) -> None:
    """Write a text to stdout; a reader that has read enough, such as `head`, is no failure."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # else Python writes the rest when it leaves, and fails again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:
            raise


def complain(message: str) -> None:
    """Print an error as one line on stderr; where it names Python's argument and the option, the option is left."""
    said = re.sub(r"\(\w+=[^(),]*, (--[^()]*\))", r"(\1", " ".join(message.split()))
    typer.echo(f"jaxsvm: error: {printable(said)}", err=True)


def finish(statuses: Iterable[str], interrupted: bool, complete: bool = True, dtype: str = "float64") -> None:
    """Name on stderr what is not certified, and end the command with its exit code."""
    failed = [Status[name] for name in statuses if name != Status.CONVERGED.name]
    if failed:
        some = (Status.STALLED, Status.MAX_STEPS, Status.INTERRUPTED)
        hint = UNFINISHED if failed[0] in some else advice(failed[0])
        hint += " Or take --dtype float64." if failed[0] == Status.STALLED and dtype == "float32" else ""
        typer.echo(f"jaxsvm: not certified: {', '.join(status.name for status in failed[:8])}. {hint}", err=True)
    if interrupted:
        raise typer.Exit(Exit.INTERRUPTED)
    raise typer.Exit(Exit.CERTIFIED if complete and not failed else Exit.NOT_CERTIFIED)


def totals(certificate: Certificate) -> dict[str, float]:
    """Sum the primal and dual values of all decision functions, and take the largest gap."""
    parts = zip(Certificate._fields, (np.sum, np.sum, np.max), certificate, strict=True)
    return {name: float(of(part)) for name, of, part in parts}


@contextlib.contextmanager
def progress_bar(title: str, total: float | None = None) -> Iterator[Callable[..., Any] | None]:
    """Draw a bar on stderr while the context runs: yield a function that changes it (`advance=`, `total=`, `note=`).

    It yields None if stderr is no terminal: a fit without a callback is faster.
    """
    console = Console(stderr=True)
    shown = ("{task.description}", rich.progress.BarColumn(), rich.progress.TimeElapsedColumn(), "{task.fields[note]}")
    with rich.progress.Progress(*shown, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total, note="")
        yield (lambda **changes: progress.update(task, **changes)) if console.is_terminal else None


def check_writable(out: str | None, *inputs: str, option: str = "--out") -> None:
    """Refuse, before any work, a path that could not be written, or that would overwrite an input."""
    if out is None:
        return
    require(out != "-", f"{option} is '-': name a file; /dev/stdout is standard output.")
    lost = any(os.path.exists(name) and os.path.exists(out) and os.path.samefile(out, name) for name in inputs)
    require(not lost, f"{option} is {out!r}: this is an input file, which would be lost; choose another name.")
    require_writable(option, out)


def save(out: str, text: str) -> None:
    """Write a text to a file, whole or not at all."""
    write_whole(lambda file: file.write(text.encode()), out)


@contextlib.contextmanager
def interruptible(seconds: float | None = None) -> Iterator[Interruption]:
    """Turn Ctrl-C into a flag while a command computes and writes, which is also set after so many seconds.

    Until something was computed, Ctrl-C ends the process (`runtime/startup.py`), as does a second one.
    """
    leaves = signal.getsignal(signal.SIGINT) is leave
    if leaves:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which the flag takes the place of
    try:
        with watching() as stop, stop.within(seconds):
            yield stop
    finally:
        if leaves:  # the command has its result, or none
            signal.signal(signal.SIGINT, signal.SIG_IGN)
