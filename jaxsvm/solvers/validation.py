"""Refuse configurations that no driver can run, and problems that a solver is not for.

All drivers call `require_usable`; traced values pass, since they are not known yet.
"""

from collections.abc import Callable
from typing import Any

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.problems.contract import PROBLEMS, Problem
from jaxsvm.runtime.checks import require_one_of, require_positive, require_whole
from jaxsvm.solvers.contract import STOP_RULES, Solver

_ABSENT = object()


def require_usable(solver: Any) -> None:
    """Refuse a configuration that no driver can run, by each field of the solver and of the solver inside it.

    Raises:
        InputError: The message names the field, its value and what is needed.
    """
    if isinstance(solver, type) or not hasattr(solver, "tol"):
        shown = solver.__name__ if isinstance(solver, type) else repr(solver)
        raise InputError(f"solver is {shown}: a solver's configuration is needed, such as `jaxsvm.SMO(tol=1e-4)`.")
    for name, require in RULES.items():
        value = getattr(solver, name, _ABSENT)
        if value is not _ABSENT and (isinstance(value, int | float | str) or is_concrete(value)):
            require(name, value)
    inner = getattr(solver, "solver", None)  # of a wrapper
    if inner is not None:
        require_usable(inner)


def require_solves(solver: Solver, problem: Problem) -> None:
    """Refuse a problem of a kind that the solver is not for.

    Raises:
        InputError: The message names both, and a solver for the problem.
    """
    if problem.kind in solver.solves:
        return
    meant = " and ".join(PROBLEMS.get(kind, f"{kind} problems") for kind in solver.solves)
    raise InputError(
        f"{type(solver).__name__} is for {meant}, not for a {type(problem).__name__}: use `{problem.solved_by}`."
    )


def _require_rule(name: str, value: Any) -> None:
    require_one_of(name, value, STOP_RULES)


def _from(least: int) -> Callable[[str, Any], None]:
    return lambda name, value: require_whole(name, value, least)


RULES: dict[str, Callable[[str, Any], None]] = {
    "stop": _require_rule,
    "tol": require_positive,
    "inner_tol": require_positive,
    "radius": require_positive,
    "offset": lambda name, value: None if value is None else require_positive(name, value, or_zero=True),
    "margin": lambda name, value: require_positive(name, value, or_zero=True),
    "steps": _from(0),
    "max_steps": _from(0),
    "burn_in": _from(0),
    "polish_products": _from(0),
    "check_every": _from(1),
    "refresh_every": lambda name, value: None if value is None else require_whole(name, value, 1),
    "draw": _from(2),
}
"""The check of each field, by name, for any solver."""
