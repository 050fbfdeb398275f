"""The solver that a path, a fold or a grid of C takes where none is named."""

from typing import Any

import jax.numpy as jnp

from jaxsvm.errors import InputError
from jaxsvm.solvers.barrier_systems import few_features
from jaxsvm.solvers.frank_wolfe import FrankWolfe
from jaxsvm.solvers.interior_point import InteriorPoint
from jaxsvm.solvers.newton import Newton
from jaxsvm.solvers.sequential_minimal_optimization import SMO
from jaxsvm.solvers.stochastic_batch_perceptron import StochasticBatchPerceptron


def exact_solver(problem: Any, tol: Any) -> Any:
    """The solver that certifies a problem of this kind to any gap.

    Raises:
        InputError: Where none is known.
    """
    if problem.kind == "squared hinge":
        return Newton(tol=tol) if problem.free_bias else FrankWolfe(variant="smo", tol=tol)
    if problem.kind == "box":  # in float32 systems lose what steps keep
        few = few_features(problem) is not None and problem.dtype == jnp.float64
        return InteriorPoint(tol=tol) if few else SMO(tol=tol)
    if problem.kind == "slack":
        return StochasticBatchPerceptron(steps=1_000_000, batch=None, tol=tol, average="linear")
    raise InputError(f"solver is None: a {type(problem).__name__} has no solver of its own; name one.")
