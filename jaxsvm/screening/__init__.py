"""Screen samples safely: prove dual variables before a problem is solved, or while it is solved."""

import importlib
from collections.abc import Callable
from typing import Any

from jaxsvm.screening.rules import (
    Screening,
    ball_test_1,
    ball_test_2,
    dvi,
    gap_safe,
    intersection_test,
    two_sided_test,
)

EpsilonPath: Any
"""`jaxsvm.path.epsilon.EpsilonPath`, imported on first use, since paths import this room."""
epsilon_path: Callable[..., Any]
"""`jaxsvm.path.epsilon.epsilon_path`."""


def __getattr__(name: str) -> Any:
    if name in ("EpsilonPath", "epsilon_path"):
        return getattr(importlib.import_module("jaxsvm.path.epsilon"), name)
    raise AttributeError(f"module 'jaxsvm.screening' has no attribute {name!r}")


__all__ = [
    "EpsilonPath",
    "Screening",
    "ball_test_1",
    "ball_test_2",
    "dvi",
    "epsilon_path",
    "gap_safe",
    "intersection_test",
    "two_sided_test",
]
