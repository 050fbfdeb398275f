"""Advance descents in long turns on the host: a turn is one pass over rows, or one product for many fits at once."""

from collections.abc import Callable
from typing import Any, Protocol

from jaxsvm.loop.interruption import Halt, Interruption


class Descent(Protocol):
    """One or many fits that advance together."""

    @property
    def going(self) -> Any:
        """Return whether another turn can change anything."""

    def advance(self) -> None:
        """Take one turn."""


def run_passes(
    descent: Descent, over: Callable[[], bool], stop: Interruption, after: Callable[[], Any] = lambda: None
) -> None:
    """Take turns until the descent has ended or `over()` holds.

    Args:
        descent: What advances.
        over: Whether the caller stops: its cap is reached, its time is up, or Ctrl-C came.
        stop: The flag of Ctrl-C, which a KeyboardInterrupt within a turn sets: it may come from within a reader, a
            cluster's client or a callback.
        after: Called after each turn.
    """
    while descent.going and not over():
        try:
            descent.advance()
            stop.begun = True
            after()
        except Halt:
            return
        except KeyboardInterrupt:
            stop.note()
