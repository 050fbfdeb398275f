"""Public entries as users trace them in programs of their own, each with the lines of StableHLO that it may have.

`benchmarks/program_size.py` prints their sizes and seconds; `tests/test_program_size.py` holds them to the budget.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxsvm
from jaxsvm.kernels import RBF, Linear

N, D, LANES = 400, 10, 8
LAYER = (64, 50, 32)
"""A layer: so many linear problems of so many samples with so many features."""


class Entry(NamedTuple):
    """A function and its arguments; `budget`: lines of StableHLO in float32, at the most."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    budget: int


def samples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D))
    return x.astype(np.float32), np.where(x[:, 0] + rng.normal(size=N) > 0, 1, -1).astype(np.float32)


X, Y = samples()
C = np.float32(1.0)
CS = np.geomspace(0.1, 10, LANES).astype(np.float32)


def hinge(C: Any, bias: str = "free", x: Any = X) -> Any:
    return jaxsvm.hinge_problem(jaxsvm.gram(RBF(0.1), jnp.asarray(x)), Y, C, bias=bias)


def squared(C: Any, bias: str = "regularized", x: Any = X) -> Any:
    return jaxsvm.svm_problem(jaxsvm.gram(RBF(0.1), jnp.asarray(x)), Y, C, bias=bias)


def slack(nu: Any) -> Any:
    return jaxsvm.slack_problem(jaxsvm.gram(RBF(0.1), jnp.asarray(X)), Y, nu)


def ball(x: Any) -> Any:
    return jaxsvm.meb_problem(jaxsvm.gram(RBF(0.1), x))


def fitted(problem: Callable[..., Any], solver: Any = None, **options: Any) -> Callable[[Any], Any]:
    return lambda value: jaxsvm.fit(problem(value, **options), solver)


def bias_of(problem: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda value: jaxsvm.fit(problem(value)).bias


def layer(x: Any) -> Any:
    """The mean square of decision values of linear machines, one a leading index of x."""
    y = jnp.where(jnp.arange(LAYER[1]) % 2 == 0, 1.0, -1.0).astype(x.dtype)

    def margins(x: Any) -> Any:
        return jaxsvm.fit(jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x), y, 1.0, bias="regularized")).margins

    return jnp.mean(jax.vmap(margins)(x) ** 2)


POINTS = np.zeros(LAYER, np.float32)
ENTRIES = {
    "fit, hinge, free bias": Entry(fitted(hinge), (C,), 1_900),
    "fit, hinge, regularized bias": Entry(fitted(hinge, bias="regularized"), (C,), 1_700),
    "fit, hinge, no bias": Entry(fitted(hinge, bias="none"), (C,), 1_700),
    "fit, hinge, SMO": Entry(fitted(hinge, jaxsvm.SMO()), (C,), 1_900),
    "fit, hinge, InteriorPoint": Entry(fitted(hinge, jaxsvm.InteriorPoint()), (C,), 2_500),
    "fit, hinge, WorkingSet": Entry(fitted(hinge, jaxsvm.WorkingSet()), (C,), 3_600),
    "fit, hinge, SDCA": Entry(fitted(hinge, jaxsvm.SDCA(), bias="regularized"), (C,), 1_700),
    "fit, squared hinge": Entry(fitted(squared), (C,), 1_550),
    "fit, squared hinge, free bias": Entry(fitted(squared, bias="free"), (C,), 2_950),
    "fit, squared hinge, classic": Entry(fitted(squared, jaxsvm.FrankWolfe("classic")), (C,), 2_000),
    "fit, squared hinge, CoreVectorMachine": Entry(fitted(squared, jaxsvm.CoreVectorMachine()), (C,), 2_100),
    "fit, squared hinge, Newton": Entry(fitted(squared, jaxsvm.Newton()), (C,), 2_300),
    "fit, slack": Entry(fitted(slack), (np.float32(0.1),), 2_900),
    "fit, slack, SBP": Entry(fitted(slack, jaxsvm.StochasticBatchPerceptron(steps=100)), (np.float32(0.1),), 2_450),
    "fit, ball": Entry(fitted(ball), (X,), 1_750),
    "vmap over C, hinge": Entry(jax.vmap(fitted(hinge)), (CS,), 2_000),
    "vmap over C, squared hinge": Entry(jax.vmap(fitted(squared)), (CS,), 1_700),
    "grad of the bias, hinge": Entry(jax.grad(bias_of(hinge)), (C,), 3_950),
    "grad of the bias, squared hinge": Entry(jax.grad(bias_of(squared)), (C,), 2_850),
    "hessian of the bias, squared hinge": Entry(jax.hessian(bias_of(squared)), (C,), 3_850),
    "solve_path in jit, squared hinge": Entry(lambda Cs: jaxsvm.solve_path(squared(1.0), Cs).fits, (CS,), 2_050),
    "solve_path in jit, hinge": Entry(lambda Cs: jaxsvm.solve_path(hinge(1.0), Cs).fits, (CS,), 2_950),
    "layer, value": Entry(layer, (POINTS,), 3_050),
    "layer, gradient by features": Entry(jax.grad(layer), (POINTS,), 5_050),
}


def lowered(entry: Entry) -> Any:
    """The entry's program before XLA sees it."""
    return jax.jit(entry.function).lower(*entry.arguments)


def lines_of(program: Any) -> int:
    return program.as_text().count("\n")
