"""What every driver asks of a solver's numbers and of a time limit before it begins: one place, the same for all.

Fits, chains, lanes and what calls them go through `require_usable`; traced values pass, since they have none yet.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.numerics.masks import every
from jaxsvm.stopping import STOP_RULES

LARGEST = 2**31 - 1
"""Steps are counted in int32."""

PROBLEMS = {
    "squared hinge": "squared-hinge problems (`svm_problem`)",
    "ball": "enclosing balls (`meb_problem`)",
    "box": "hinge problems (`hinge_problem`, `box_problem`)",
    "slack": "slack problems (`slack_problem`)",
}
"""Kinds of problems, in words that name what builds them; a kind that is not here is its own word."""

_ABSENT = object()


def require_usable(solver: Any) -> None:
    """Refuse a configuration that no driver can run: each field that the solver has, and those of a solver inside it.

    Raises:
        InputError: Naming the field, what was found and what is needed.
    """
    if isinstance(solver, type) or not (dataclasses.is_dataclass(solver) or hasattr(solver, "step")):
        shown = solver.__name__ if isinstance(solver, type) else repr(solver)
        raise InputError(f"solver is {shown}: a solver's configuration is needed, such as `jaxsvm.SMO(tol=1e-4)`.")
    for name, require in RULES.items():
        value = getattr(solver, name, _ABSENT)
        if value is not _ABSENT and (isinstance(value, int | float | str) or is_concrete(value)):
            require(name, value)
    inner = getattr(solver, "solver", None)  # of a transformation
    if inner is not None:
        require_usable(inner)


def require_problem(problem: Any) -> None:
    """Refuse what is no problem.

    Raises:
        InputError: With what makes one.
    """
    if not hasattr(problem, "kind"):
        raise InputError(
            f"problem is a {type(problem).__name__}: one of `svm_problem`, `hinge_problem`, `box_problem`, "
            "`slack_problem` or `meb_problem` is needed."
        )


def require_solves(solver: Any, problem: Any) -> None:
    """Refuse a problem of a kind that the solver is not for.

    Raises:
        InputError: Naming both, and who solves it.
    """
    if problem.kind in solver.solves:
        return
    meant = " and ".join(PROBLEMS.get(kind, f"{kind} problems") for kind in solver.solves)
    raise InputError(
        f"{type(solver).__name__} is for {meant}, not for a {type(problem).__name__}: use `{problem.solved_by}`."
    )


def require_differentiable(problem: Any) -> None:
    """Refuse a problem that contributes nothing to derivatives (`jaxsvm.problems.contract.Differentiable`).

    Raises:
        InputError: Naming it, and what has derivatives.
    """
    if not hasattr(problem, "solution_on"):
        raise InputError(
            f"problem is a {type(problem).__name__}: derivatives of a solution exist for squared-hinge and hinge "
            "problems (svm_problem, hinge_problem, box_problem). Put `jax.lax.stop_gradient` around the fit if none "
            "are meant."
        )


def require_positive(name: str, value: Any) -> None:
    """Refuse anything but one positive finite number.

    Raises:
        InputError: Naming it.
    """
    if not (_is_number(value) and 0 < float(value) < math.inf):
        raise InputError(f"{name} is {_shown(value)}: one positive finite number is needed.")


def require_whole(name: str, value: Any, least: int) -> None:
    """Refuse anything but one integer from `least` to what int32 holds.

    Raises:
        InputError: Naming it.
    """
    whole = type(value) is int or np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iu"
    if not (whole and least <= int(value) <= LARGEST):
        raise InputError(f"{name} is {_shown(value)}: an integer from {least} to {LARGEST} is needed.")


def require_function(name: str, value: Any, arguments: tuple[str, ...], what: str) -> None:
    """Refuse what cannot be called with these arguments, a class included.

    Args:
        name: The argument that holds it.
        value: It.
        arguments: What it will be called with, in words.
        what: What is needed, in words.

    Raises:
        InputError: Naming it.
    """
    takes = callable(value) and not isinstance(value, type)
    if takes:
        try:
            inspect.signature(value).bind(*arguments)
        except TypeError:
            takes = False
        except ValueError:  # no signature to look at
            pass
    if not takes:
        raise InputError(f"{name} is {value!r}: {what} is needed, called with ({', '.join(arguments)}).")


def require_seconds(max_seconds: Any) -> None:
    """Refuse a time limit that is neither None nor a number of seconds, at least 0.

    Raises:
        InputError: Naming it.
    """
    if max_seconds is not None and not (_is_number(max_seconds) and float(max_seconds) >= 0):
        raise InputError(f"max_seconds is {_shown(max_seconds)}: at least 0 seconds are needed, or None for no limit.")


def require_costs(C: Any, weight: Any, dtype: Any) -> None:
    """Refuse costs `C w_i` that the dtype holds neither as they are nor as `1 / (C w_i)`; traced ones pass.

    An infinite cost would have the ridge 0, which marks an absent sample, and so would a weight that turns into 0.

    Raises:
        InputError: Naming the first sample, its cost and the range.
    """
    if not is_concrete(C, weight):
        return
    least = float(np.finfo(dtype).tiny)
    weights = np.asarray(1.0 if weight is None else weight, np.float64)
    with np.errstate(over="ignore"):
        costs = np.where(weights > 0, float(C) * weights, 1.0)
    wrong = (weights > 0) & ~((costs >= least) & (costs <= 1 / least) & (weights >= least))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        where = "C is" if weight is None else f"C times sample_weight[{at}] (weight {float(weights.flat[at]):.3g}) is"
        raise InputError(
            f"{where} {float(costs.flat[at]):.3g}: {np.dtype(dtype).name} holds costs and weights from {least:.3g} to "
            f"{1 / least:.3g}; weights of 0 leave samples out."
        )


def costs_hold(costs: Any, present: Any) -> Any:
    """`require_costs` under tracing: whether the costs of all samples that are present can be held, `()`."""
    least = jnp.finfo(costs.dtype).tiny
    return every(jnp.where(present, (costs >= least) & (costs <= 1 / least), True))


def _require_rule(name: str, value: Any) -> None:
    if value not in STOP_RULES:
        raise InputError(f"{name} is {value!r}: one of {', '.join(STOP_RULES)} is needed.")


def _require_interval(name: str, value: Any) -> None:
    if value is not None:
        require_whole(name, value, 1)


def _from(least: int) -> Callable[[str, Any], None]:
    return lambda name, value: require_whole(name, value, least)


RULES: dict[str, Callable[[str, Any], None]] = {
    "stop": _require_rule,
    "tol": require_positive,
    "inner_tol": require_positive,
    "radius": require_positive,
    "steps": _from(0),
    "max_steps": _from(0),
    "burn_in": _from(0),
    "polish_products": _from(0),
    "check_every": _from(1),
    "refresh_every": _require_interval,
    "draw": _from(2),
}
"""What a field of that name must be, in any solver."""


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) or np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iuf"


def _shown(value: Any) -> str:
    return (
        f"an array of shape {np.shape(value)}"
        if np.ndim(value)
        else repr(value)
        if isinstance(value, str)
        else f"{value}"
    )
