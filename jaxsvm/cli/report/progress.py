"""Progress bars on stderr, drawn only if that is a terminal."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import rich.progress
from rich.console import Console

from jaxsvm.results.fit import Fit


@dataclasses.dataclass(frozen=True)
class Bar:
    """A progress bar with one task."""

    progress: rich.progress.Progress
    task: rich.progress.TaskID

    def update(self, **changes: Any) -> None:
        """Change the task: `advance=`, `completed=`, `total=`, `note=`."""
        self.progress.update(self.task, **changes)

    def callback(self, function: Callable[..., None]) -> Callable[..., None] | None:
        """Return the function; None if the bar is not drawn, since a fit without a callback is faster."""
        return None if self.progress.disable else function


@contextlib.contextmanager
def progress_bar(title: str, total: float | None = None) -> Iterator[Bar]:
    """Draw a bar of that many parts while the context runs; None: the number is unknown."""
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TextColumn("left"),
        rich.progress.TimeRemainingColumn(),
        rich.progress.TextColumn("{task.fields[note]}"),
    )
    console = Console(stderr=True)
    with rich.progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Bar(progress, progress.add_task(title, total=total, note=""))


def progress_note(fitted: Fit) -> str:
    """Return the gap and the steps of a fit."""
    return f"gap {float(fitted.certificate.relative_gap):.2g}, {int(fitted.steps)} steps"


@contextlib.contextmanager
def gap_bar(tol: float) -> Iterator[Callable[..., None] | None]:
    """Yield a callback of `jaxsvm.fit` that draws the gap's way down to `tol` on a log scale; None without a bar."""
    with progress_bar("fit") as bar:
        first = 0.0
        bar.update(note="kernel values and compilation")

        def draw(fitted: Fit) -> None:
            nonlocal first
            gap = float(fitted.certificate.relative_gap)
            if not (math.isfinite(gap) and gap > 0):
                bar.update(note=f"no gap yet, {int(fitted.steps)} steps")
                return
            first = max(first, gap, 2 * tol)
            done = math.log(first / gap) / math.log(first / tol)
            bar.update(total=1.0, completed=min(max(done, 0.0), 1.0), note=progress_note(fitted))

        yield bar.callback(draw)
