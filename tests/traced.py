"""Public entries as users trace them in programs of their own, each with the lines of StableHLO that it may have.

`benchmarks/program_size.py` prints their sizes and seconds; `tests/test_program_size.py` holds them to the budget, and
lowers them and all other public functions for GPUs and TPUs.
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
    y = jnp.where(jnp.arange(LAYER[1]) % 2 == 0, 1.0, -1.0).astype(x.dtype)

    def margins(x: Any) -> Any:
        return jaxsvm.fit(jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x), y, 1.0, bias="regularized")).margins

    return jnp.mean(jax.vmap(margins)(x) ** 2)


POINTS = np.zeros(LAYER, np.float32)
ENTRIES = {
    "fit, hinge, free bias": Entry(fitted(hinge), (C,), 1_700),
    "fit, hinge, regularized bias": Entry(fitted(hinge, bias="regularized"), (C,), 1_550),
    "fit, hinge, no bias": Entry(fitted(hinge, bias="none"), (C,), 1_550),
    "fit, hinge, SMO": Entry(fitted(hinge, jaxsvm.SMO()), (C,), 1_700),
    "fit, hinge, InteriorPoint": Entry(fitted(hinge, jaxsvm.InteriorPoint()), (C,), 2_350),
    "fit, hinge, WorkingSet": Entry(fitted(hinge, jaxsvm.WorkingSet()), (C,), 3_300),
    "fit, hinge, SDCA": Entry(fitted(hinge, jaxsvm.SDCA(), bias="regularized"), (C,), 1_550),
    "fit, squared hinge": Entry(fitted(squared), (C,), 1_450),
    "fit, squared hinge, free bias": Entry(fitted(squared, bias="free"), (C,), 2_750),
    "fit, squared hinge, classic": Entry(fitted(squared, jaxsvm.FrankWolfe("classic")), (C,), 1_850),
    "fit, squared hinge, CoreVectorMachine": Entry(fitted(squared, jaxsvm.CoreVectorMachine()), (C,), 1_950),
    "fit, squared hinge, Newton": Entry(fitted(squared, jaxsvm.Newton()), (C,), 2_100),
    "fit, slack": Entry(fitted(slack), (np.float32(0.1),), 2_850),
    "fit, slack, SBP": Entry(fitted(slack, jaxsvm.StochasticBatchPerceptron(steps=100)), (np.float32(0.1),), 2_500),
    "fit, ball": Entry(fitted(ball), (X,), 1_700),
    "vmap over C, hinge": Entry(jax.vmap(fitted(hinge)), (CS,), 1_800),
    "vmap over C, squared hinge": Entry(jax.vmap(fitted(squared)), (CS,), 1_550),
    "grad of the bias, hinge": Entry(jax.grad(bias_of(hinge)), (C,), 3_600),
    "grad of the bias, squared hinge": Entry(jax.grad(bias_of(squared)), (C,), 2_600),
    "hessian of the bias, squared hinge": Entry(jax.hessian(bias_of(squared)), (C,), 3_550),
    "solve_path in jit, squared hinge": Entry(lambda Cs: jaxsvm.solve_path(squared(1.0), Cs).fits, (CS,), 1_850),
    "solve_path in jit, hinge": Entry(lambda Cs: jaxsvm.solve_path(hinge(1.0), Cs).fits, (CS,), 2_800),
    "layer, value": Entry(layer, (POINTS,), 2_750),
    "layer, gradient by features": Entry(jax.grad(layer), (POINTS,), 4_550),
}


def fits(C: Any) -> Any:
    problem = squared(C)
    return jaxsvm.fit(problem), problem


def machines(make: Callable[..., Any]) -> Callable[[Any], Any]:
    codes = np.arange(N) % 3
    return lambda C: jaxsvm.fit_many(make(lambda signs: jaxsvm.svm_problem(jaxsvm.gram(RBF(0.1), X), signs, C), codes))


def streamed(x: Any) -> Any:
    solver = jaxsvm.Pegasos()
    return solver.update(solver.start(d=D, lam=1e-3), x, Y)


def on_a_mesh(C: Any, *, sharded: bool = True) -> Any:
    mesh = jax.make_mesh((1,), ("devices",))
    if sharded:
        return jaxsvm.fit(jaxsvm.shard_rows(squared(C), mesh))
    return jaxsvm.shard_lanes(lambda C: jaxsvm.fit(squared(C)).bias, mesh)(C[None])


OTHERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "ball": (lambda x: jaxsvm.ball(jaxsvm.fit(ball(x)), ball(x)), (X,)),
    "decision_function": (lambda C, x: jaxsvm.decision_function(*fits(C), x), (C, X)),
    "predict": (lambda C, x: jaxsvm.predict(*fits(C), x), (C, X)),
    "one_versus_one": (machines(jaxsvm.one_versus_one), (C,)),
    "one_versus_rest": (machines(jaxsvm.one_versus_rest), (C,)),
    "implicit": (lambda C: jaxsvm.implicit.solution(squared(C)), (C,)),
    "solve_path": (lambda Cs, C: jaxsvm.solve_path(squared(1.0), Cs).at(C, squared(1.0)), (CS, C)),
    "slack": (lambda C: jaxsvm.slack.equivalent_nu(hinge(C), jaxsvm.fit(hinge(C))), (C,)),
    "water_level": (lambda c: jaxsvm.water_level(c, 1.0), (Y,)),
    "water_level_with_bias": (lambda c: jaxsvm.water_level_with_bias(c, Y, 1.0), (Y,)),
    "Pegasos": (streamed, (X,)),
    "box_problem": (lambda q: jaxsvm.fit(jaxsvm.box_problem(jaxsvm.gram(Linear(), X), q, 1.0)), (Y,)),
    "svr_problem": (lambda t: jaxsvm.fit(jaxsvm.svr_problem(jaxsvm.gram(Linear(), X), t, 1.0)), (Y,)),
    "one_class_problem": (lambda nu: jaxsvm.fit(jaxsvm.one_class_problem(jaxsvm.gram(RBF(0.1), X), nu)), (C,)),
    "nu_problem": (lambda nu: jaxsvm.fit(jaxsvm.nu_problem(jaxsvm.gram(RBF(0.1), X), Y, nu)), (C,)),
    "gram": (lambda x: jaxsvm.gram(RBF(0.1), x, rank=8).diag(), (X,)),
    "shard_rows": (on_a_mesh, (C,)),
    "shard_lanes": (lambda C: on_a_mesh(C, sharded=False), (C,)),
}
"""Public functions that are not among `ENTRIES`, by their public names; solvers are in `test_contract.py`."""
FITTED = {"fit", "fit_many", "hinge_problem", "meb_problem", "slack_problem", "svm_problem"}
"""Public functions that the entries call."""
ON_HOST = {
    *("C_grid", "check", "compact", "cross_validate", "is_coreset", "keep_programs", "load_model", "tune"),
    *(
        "coresets",
        "datasets",
        "designs",
        "interchange",
        "kernels",
        "relational",
        "screening",
    ),  # with tests of their own
}
"""Public functions of concrete arrays, and rooms."""


def lowered(entry: Entry) -> Any:
    return traced(entry).lower()


def traced(entry: Entry) -> Any:
    return jax.jit(entry.function).trace(*entry.arguments)


def lines_of(program: Any) -> int:
    return program.as_text().count("\n")
