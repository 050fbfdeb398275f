"""Progress on stderr, where that is a terminal."""

import contextlib
import math
from collections.abc import Callable, Iterator

import rich.progress
from rich.console import Console

from jaxsvm.results.fit import Fit


def progress_bar() -> rich.progress.Progress:
    """A bar on stderr, which is disabled where that is no terminal."""
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TextColumn("{task.fields[note]}"),
    )
    console = Console(stderr=True)
    return rich.progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextlib.contextmanager
def gap_bar(tol: float) -> Iterator[Callable[[Fit], None] | None]:
    """A callback that draws how far the gap has come, on a log scale; None without a terminal, which is faster."""
    with progress_bar() as bar:
        if bar.disable:
            yield None
            return
        task = bar.add_task("fit", total=None, note="")
        first: float | None = None

        def look(fitted: Fit) -> None:
            nonlocal first
            gap = float(fitted.certificate.relative_gap)
            if not (math.isfinite(gap) and gap > 0):
                return
            first = max(first or 0.0, gap, 2 * tol)
            done = math.log(first / gap) / math.log(first / tol)
            bar.update(
                task, total=1.0, completed=min(max(done, 0.0), 1.0), note=f"gap {gap:.2g}, step {int(fitted.steps)}"
            )

        yield look
