"""Compare screening rules on a problem: the share of samples each decides, its cost, and the time it saves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError, require
from jaxsvm.path.solve import checked_values, solve_path
from jaxsvm.problems.contract import Restrictable
from jaxsvm.runtime.arrays import require_function, transfers
from jaxsvm.screening.reference import screenable
from jaxsvm.screening.rules import Rule, ball_test_1, ball_test_2, intersection_test

PUBLISHED: Mapping[str, Rule] = {
    "ball test 1": ball_test_1,
    "ball test 2": ball_test_2,
    "intersection test": intersection_test,
}
"""The rules that are compared by default."""


class Report(NamedTuple):
    """Measurements of r screening rules at k values of C; the reference of a value is the fit at the value before.

    Attributes:
        Cs: Values of C, increasing, `(k,)`.
        names: The rules.
        inactive: Share of the samples present that each rule proves to be at 0, `(r, k)`; NaN at the first value, which
            has no reference.
        at_bound: Share that it proves to be at their bound, `(r, k)`.
        possible: Share that any rule could prove, `(k,)`: samples whose dual variable is at a bound (hinge), or whose
            margin is beyond its target (squared hinge); by the path's fits, or because a rule proved it.
        rule_seconds: Wall seconds that each rule took, compiled, `(r, k)`.
        path_seconds: Wall seconds of whole paths with each rule, without compilation, `(r,)`.
        plain_seconds: Wall seconds of the path without a rule, `()`.
    """

    Cs: np.ndarray
    names: tuple[str, ...]
    inactive: np.ndarray
    at_bound: np.ndarray
    possible: np.ndarray
    rule_seconds: np.ndarray
    path_seconds: np.ndarray
    plain_seconds: float

    def __str__(self) -> str:
        lines = [f"{'C':>10}  " + "  ".join(f"{name:>18}" for name in self.names) + "   (possible)"]
        shares = self.inactive + self.at_bound
        for place, C in enumerate(self.Cs):
            row = "  ".join(f"{share:18.3f}" for share in shares[:, place])
            lines.append(f"{C:10.4g}  {row}   {self.possible[place]:10.3f}")
        for name, spent, whole in zip(self.names, np.nansum(self.rule_seconds, axis=1), self.path_seconds, strict=True):
            lines.append(
                f"{name}: {spent:.3f} s in the rule; the path {whole:.3f} s, without it {self.plain_seconds:.3f} s"
            )
        return "\n".join(lines)


@transfers
def screening_report(
    problem: Restrictable, Cs: ArrayLike, rules: Mapping[str, Rule] | None = None, *, tol: float = 1e-4
) -> Report:
    """Solve a path, and apply each rule at every value to the fit of the value before.

    Args:
        problem: From `svm_problem` or `hinge_problem`, with a regularised bias or none.
        Cs: Values of C, `(k,)`, k >= 2; sorted first.
        rules: Rules by name; None takes both ball tests and the Intersection Test.
        tol: Relative gap of the path's fits: the smaller, the more samples rules decide.

    Returns:
        The report; `print` shows it.

    Raises:
        InputError: On arguments that cannot be used.
    """
    problem = screenable(problem)
    values = np.sort(np.asarray(checked_values(Cs), float))
    if len(values) < 2:
        raise InputError("Cs has one value: rules need a solution at another one before it.")
    rules = PUBLISHED if rules is None else rules
    require(isinstance(rules, Mapping), f"rules is a {type(rules).__name__}: a dictionary of rules by name is needed.")
    for name, rule in rules.items():
        require_function(
            f"rules[{name!r}]", rule, ("problem", "reference fit", "its C"), "a rule of `jaxsvm.screening`"
        )
    path = solve_path(problem, values, tol=tol, screen=None)
    fits: list[Any] = list(path)
    present = np.asarray(problem.present)
    off = np.stack([_off_the_margin(problem.at(C), fit) for C, fit in zip(values, fits, strict=True)])
    shape = (len(rules), len(values))
    inactive, at_bound, seconds = (np.full(shape, np.nan) for _ in range(3))
    for row, rule in enumerate(rules.values()):
        jax.block_until_ready(rule(problem.at(values[1]), fits[0], values[0]))
        for place in range(1, len(values)):
            following, before = problem.at(values[place]), time.perf_counter()
            known = jax.block_until_ready(rule(following, fits[place - 1], values[place - 1]))
            seconds[row, place] = time.perf_counter() - before
            inactive[row, place] = np.asarray(known.inactive)[present].mean()
            at_bound[row, place] = np.asarray(known.at_bound)[present].mean()
            off[place] |= np.asarray(known.screened)

    def whole(rule: Rule | None) -> float:
        solve_path(problem, values, tol=tol, screen=rule)
        before = time.perf_counter()
        jax.block_until_ready(solve_path(problem, values, tol=tol, screen=rule))
        return time.perf_counter() - before

    possible, paths = off[:, present].mean(axis=1), np.asarray([whole(rule) for rule in rules.values()])
    return Report(values, tuple(rules), inactive, at_bound, possible, seconds, paths, whole(None))


def _off_the_margin(problem: Restrictable, fit: Any) -> np.ndarray:
    """Return the samples that are off their margin at the solution, `(n,)`, as its fit has it."""
    if not problem.bounded:
        return np.asarray(fit.margins) > np.asarray(problem.targets)
    alpha, upper = np.asarray(fit.alpha), np.asarray(problem.upper)
    return (alpha <= 0) | (alpha >= upper * (1 - 1e-6))
