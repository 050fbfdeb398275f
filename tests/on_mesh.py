"""What `test_mesh.py` runs in processes of their own, whose CPU counts as eight devices: `python on_mesh.py rows`."""

import dataclasses
import os
import re
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType

import jaxsvm
from jaxsvm.kernels import RBF, Linear, Precomputed
from jaxsvm.loop import round as rounds
from jaxsvm.loop.round import ready

N, DEVICES = 300, 8
"""Samples of devices that hold 64 each: four are full, one is not, three have none."""
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 4)).astype(np.float32)
Y = np.where(X[:, 0] + rng.normal(size=N) > 0, 1, -1).astype(np.float32)
WEIGHTS = rng.integers(0, 3, N).astype(np.float32)


def gram(kernel: Any = RBF(0.3), **options: Any) -> Any:  # noqa: B008 (frozen)
    return jaxsvm.gram(kernel, X, **options)


def hinge(bias: str = "free", *arguments: Any, **options: Any) -> Any:
    return jaxsvm.hinge_problem(gram(*arguments, **options), Y, 1.0, bias=bias)


def squared(*arguments: Any, **options: Any) -> Any:
    return jaxsvm.svm_problem(gram(*arguments, **options), Y, 1.0)


def weighted() -> Any:
    return jaxsvm.hinge_problem(gram(), Y, 1.0, sample_weight=WEIGHTS)


def given() -> Any:
    return jaxsvm.svm_problem(jaxsvm.gram(Precomputed(), np.asarray(RBF(0.3).matrix(X, X))), Y, 1.0)


def slack() -> Any:
    return jaxsvm.slack_problem(gram(), Y, 0.05)


SETS = jaxsvm.WorkingSet(size=32, fresh=16)
FEW = {"steps": 100, "batch": 8}
SOLVERS: dict[str, tuple[Any, Any]] = {
    "WorkingSet": (hinge, SETS),
    "SMO, weights, on demand": (weighted, jaxsvm.SMO()),
    "FrankWolfe, a given matrix": (given, jaxsvm.FrankWolfe()),
    "Newton": (squared, jaxsvm.Newton()),
    "InteriorPoint": (partial(hinge, "free", Linear()), jaxsvm.InteriorPoint()),
    "SBP": (slack, jaxsvm.StochasticBatchPerceptron(**FEW)),
}
OTHERS: dict[str, tuple[Any, Any]] = {
    "SMO": (hinge, jaxsvm.SMO()),
    "SDCA": (partial(hinge, "regularized"), jaxsvm.SDCA(tol=1e-2)),
    "ball": (lambda: jaxsvm.meb_problem(gram()), jaxsvm.FrankWolfe()),
    "Pegasos": (partial(hinge, "regularized", Linear()), jaxsvm.Pegasos(**FEW)),
}
MORE: dict[str, tuple[Any, Any]] = {
    "chosen, hinge": (hinge, None),
    "chosen, squared": (squared, None),
    "chosen, slack": (slack, None),
    "WorkingSet, squared": (squared, SETS),
    "FrankWolfe, away, on demand": (partial(squared, tile=64), jaxsvm.FrankWolfe("away", tol=1e-2)),
    "Newton, features": (partial(squared, rank=8), jaxsvm.Newton()),
    "WorkingSet, stored": (partial(hinge, store=True), dataclasses.replace(SETS, store=True)),
    "FrankWolfe, pairwise": (squared, jaxsvm.FrankWolfe("pairwise", tol=1e-2)),
    "FrankWolfe, classic": (squared, jaxsvm.FrankWolfe("classic", tol=1e-1)),
    "CoreVectorMachine": (squared, jaxsvm.CoreVectorMachine(tol=1e-1)),
    "InteriorPoint, features": (partial(hinge, rank=8), jaxsvm.InteriorPoint()),
    "SBP, exact": (slack, jaxsvm.StochasticBatchPerceptron(steps=50, batch=None)),
    "BallSGD": (partial(hinge, "regularized", Linear()), jaxsvm.BallSGD(radius=1.0, **FEW)),
    "Perceptron": (partial(hinge, "regularized"), jaxsvm.Perceptron(steps=100)),
    "sampled": (squared, jaxsvm.sampled(jaxsvm.FrankWolfe("away", tol=1e-2), capacity=100)),
    "polished": (squared, jaxsvm.polished(jaxsvm.FrankWolfe("away", tol=1e-6))),
    "EquivalentHinge": (slack, jaxsvm.EquivalentHinge(jaxsvm.SMO())),
}


def mesh(axes: tuple[int, ...] = (DEVICES,), names: tuple[str, ...] = ("rows",), kind: Any = AxisType.Explicit) -> Any:
    return jax.make_mesh(axes, names, axis_types=(kind,) * len(axes))


def agree(found: Any, alone: Any, name: str) -> None:
    assert found.alpha.shape == alone.alpha.shape, name
    assert found.status.name == alone.status.name, (name, found.status.name, alone.status.name)
    primals, duals = ([float(getattr(fit.certificate, side)) for fit in (found, alone)] for side in ("primal", "dual"))
    rounding = 1e-5 * abs(primals[1])
    assert max(duals) <= min(primals) + rounding, (name, primals, duals)


def rows(cases: dict[str, tuple[Any, Any]] = SOLVERS) -> None:
    for name, (make, solver) in cases.items():
        problem = make()
        alone = jaxsvm.fit(problem, solver)
        agree(jaxsvm.fit(jaxsvm.shard_rows(problem, mesh()), solver), alone, name)


def more_rows() -> None:
    rows(OTHERS | MORE)


def rows_in_jit() -> None:
    for name, (make, solver) in (SOLVERS | OTHERS | MORE).items():
        problem = make()
        fitted = jax.jit(partial(jaxsvm.fit, solver=solver))(jaxsvm.shard_rows(problem, mesh()))
        agree(fitted, jax.jit(partial(jaxsvm.fit, solver=solver))(problem), f"{name} in jit")


def entries() -> None:
    """What takes a problem takes one on a mesh, and what is made of its fit has the caller's n entries."""
    alone, over = hinge(), jaxsvm.shard_rows(hinge(), mesh())
    fitted, known = jaxsvm.fit(over), jaxsvm.fit(alone)
    agree(jax.jit(jaxsvm.fit)(over), known, "jit")
    with jax.set_mesh(mesh()):
        agree(jaxsvm.fit(over, SETS), known, "a mesh that is set")
    agree(jaxsvm.fit(over, SETS, init=jaxsvm.fit(over, dataclasses.replace(SETS, max_steps=3))), known, "init")
    np.testing.assert_allclose(jaxsvm.predict(fitted, over, X), jaxsvm.predict(known, alone, X))
    model = jaxsvm.compact(fitted, over)
    np.testing.assert_allclose(jaxsvm.decision_function(model, X), jaxsvm.decision_function(known, alone, X), atol=1e-2)
    for wrong, message in (
        (lambda: jaxsvm.fit(over, jaxsvm.InteriorPoint()), "InteriorPoint .* use `SMO` or `WorkingSet`"),
        (lambda: jaxsvm.shard_rows(over, mesh()), "on a mesh already"),
        (lambda: jaxsvm.shard_rows(alone, mesh(), "columns"), "axis is 'columns'"),
        (lambda: jaxsvm.shard_rows(alone, 8), "mesh is a int"),
    ):
        refused(wrong, message)


def values() -> None:
    """Paths, folds, derivatives and machines of several classes over samples on a mesh."""
    alone, over = hinge(), jaxsvm.shard_rows(hinge(), mesh())
    Cs = np.array([0.5, 2.0])
    paths = [jaxsvm.solve_path(problem, Cs) for problem in (over, alone)]
    np.testing.assert_allclose(*(path.certificate.primal for path in paths), rtol=2e-4)
    scores = [jaxsvm.cross_validate(problem, Cs, 3).scores for problem in (over, alone)]
    np.testing.assert_allclose(*scores, atol=0.02)

    def bias(C: Any, problem: Any) -> Any:
        return jaxsvm.fit(problem.at(C)).bias

    slopes = [jax.grad(bias)(2.0, problem) for problem in (over, alone)]
    np.testing.assert_allclose(*slopes, atol=2e-2)
    machines = jaxsvm.one_versus_rest(partial(jaxsvm.hinge_problem, gram(), C=1.0), np.arange(N) % 3)
    many = [jaxsvm.fit_many(problem).certificate.primal for problem in (jaxsvm.shard_rows(machines, mesh()), machines)]
    np.testing.assert_allclose(*many, rtol=2e-4)


def refused(call: Callable[[], Any], message: str) -> None:
    try:
        call()
    except jaxsvm.InputError as error:
        assert re.search(message, str(error)), error
    else:
        raise AssertionError(f"no error: {message}")


def moved(program: Any) -> int:
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    moves = re.findall(rf"= (.*?) (?:{kinds})(?:-start)?\(", program.as_text())
    arrays = [shape for move in moves for shape in re.findall(r"\w+\[([\d,]*)\]", move)]
    return max((int(np.prod([int(size) for size in shape.split(",") if size])) for shape in arrays), default=0)


def steps() -> None:
    """A step moves a few numbers and the chosen rows: nothing of n entries."""
    n, key = 4096, jax.random.key(0)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    y = np.where(x[:, 0] > 0, 1, -1).astype(np.float32)
    for solver, kernel, most in (
        (SETS, RBF(0.3), 32 * 32),
        (jaxsvm.SMO(), RBF(0.3), 128),
        (jaxsvm.InteriorPoint(), Linear(), 25),
        (jaxsvm.Pegasos(batch=8), Linear(), 32),
    ):
        bias = "regularized" if isinstance(solver, jaxsvm.Pegasos) else "free"
        problem = jaxsvm.hinge_problem(jaxsvm.gram(kernel, x, memory=0), y, 1.0, bias=bias)
        prepared = ready(jaxsvm.shard_rows(problem, mesh()), solver)
        state = jax.jit(rounds.begin)(prepared, solver, key).state
        step = jax.jit(lambda problem, state, solver=solver: solver.step(problem, state))
        found = moved(step.lower(prepared, state).compile())
        assert found <= most, (solver, found)
    stored = jaxsvm.hinge_problem(jaxsvm.gram(RBF(0.3), x), y, 1.0)
    prepared = ready(jaxsvm.shard_rows(stored, mesh()), jaxsvm.SMO())
    shapes = {shard.data.shape for shard in prepared.gram.K.addressable_shards}
    assert shapes == {(n, n // DEVICES)}, shapes


def lanes() -> None:
    """Values of C side by side, without a word between devices; and beside samples that are spread too."""
    Cs = np.geomspace(0.3, 3, DEVICES + 3).astype(np.float32)
    known = jaxsvm.solve_path(squared(), Cs).fits.certificate.primal

    def fitted(C: Any, problem: Any) -> Any:
        return jaxsvm.fit(problem.at(C)).certificate.primal

    over = jaxsvm.shard_lanes(fitted, mesh(), in_axes=(0, None))
    np.testing.assert_allclose(over(Cs, squared()), known, rtol=2e-4)
    assert moved(jax.jit(over).lower(Cs[:DEVICES], squared()).compile()) == 0
    both = mesh((2, 4), ("lanes", "rows"))
    spread = jaxsvm.shard_rows(squared(), both, "rows")
    mixed = jaxsvm.shard_lanes(fitted, both, "lanes", in_axes=(0, None))
    np.testing.assert_allclose(mixed(Cs[:4], spread), known[:4], rtol=2e-4)
    with jax.set_mesh(both):
        np.testing.assert_allclose(mixed(Cs[:4], spread), known[:4], rtol=2e-4)
    own = jax.shard_map(
        lambda Cs, problem: jax.vmap(lambda C: fitted(C, problem))(Cs),
        mesh=mesh((2, 4), ("lanes", "rows"), AxisType.Auto),
        in_specs=(jax.P("lanes"), jax.P()),
        out_specs=jax.P("lanes"),
        axis_names={"lanes"},
    )
    np.testing.assert_allclose(jax.jit(own)(Cs[:4], spread), known[:4], rtol=2e-4)


def process(number: str, port: str) -> None:
    """One of two processes with two devices each: the same answers; then the second one dies in a fit."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, int(number), heartbeat_timeout_seconds=5)
    over = mesh((4,))
    alone = hinge("free", Linear())
    spread = jaxsvm.shard_rows(alone, over)  # each process has all points
    agree(jaxsvm.fit(spread, jaxsvm.InteriorPoint()), jaxsvm.fit(alone, jaxsvm.InteriorPoint()), "points of each")

    def placed(x: np.ndarray) -> Any:
        return jax.make_array_from_callback(x.shape, jax.NamedSharding(over, jax.P("rows")), lambda part: x[part])

    def of_shares(x: Any) -> Any:
        return jaxsvm.svm_problem(jaxsvm.gram(RBF(0.3), x), Y, 1.0)

    shares = jaxsvm.shard_rows(of_shares(placed(X)), over)  # each has its own points
    solver = jaxsvm.FrankWolfe(tol=1e-2)
    fitted = jaxsvm.fit(shares, solver)
    agree(fitted, jaxsvm.fit(of_shares(X), solver), "points of all")
    assert np.asarray(jaxsvm.predict(fitted, shares, X)).shape == Y.shape
    for call, message in (
        (lambda: of_shares(placed(np.full_like(X, np.nan))), "x has 1200 value"),
        (lambda: jaxsvm.fit(shares, max_seconds=1), "a mesh of one process"),
        (lambda: jaxsvm.cross_validate(shares, [1.0]), "several processes"),
    ):
        refused(call, message)
    print("fine", flush=True)
    if number == "1":
        os._exit(9)
    while True:
        jax.block_until_ready(jaxsvm.fit(shares, solver))


if __name__ == "__main__":
    warnings.simplefilter("ignore", jaxsvm.ConvergenceWarning)
    globals()[sys.argv[1]](*sys.argv[2:])
    print("fine")
