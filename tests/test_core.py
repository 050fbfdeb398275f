"""Every public operation once, as users meet it: in 32 bits and in 64, under the flags that careful users turn on.

What passes here is right by an independent reference; each program is small. `make test-core` runs this file with what
else shows that a version of JAX works, in an environment of its own.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import oracle_hinge
import pytest
from samples import N, data, kernel_matrix

import jaxsvm
import jaxsvm.coresets
import jaxsvm.estimators
import jaxsvm.relational
import jaxsvm.screening
from jaxsvm.kernels import RBF, Linear

pytestmark = pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")


@contextlib.contextmanager
def narrow() -> Iterator[None]:
    """32 bits, as most users have it; no promotion of ranks or dtypes, no transfer that nobody asked for."""
    with (
        jax.enable_x64(False),
        jax.numpy_rank_promotion("raise"),
        jax.numpy_dtype_promotion("strict"),
        jax.transfer_guard("disallow"),
    ):
        yield


def wide() -> Any:
    return jax.enable_x64(True)


class Data(NamedTuple):
    """Arrays on the device: points, signs, values of C, and the middle one by itself."""

    x: Any
    y: Any
    Cs: Any
    C: Any
    key: Any


CS = (0.5, 2.0, 8.0)


def on_device() -> Data:
    """The shared samples in the float that JAX has by default where this is called."""
    x, y = data()
    dtype = jax.dtypes.canonicalize_dtype(float)
    given = (np.asarray(x, dtype), np.asarray(y, dtype), np.asarray(CS, dtype), np.asarray(CS[1], dtype))
    with jax.transfer_guard("allow"):
        return Data(*jax.device_put(given), jax.random.key(0))


def squared(d: Data, C: Any = None, kernel: Any = None, **options: Any) -> Any:
    return jaxsvm.svm_problem(jaxsvm.gram(kernel or RBF(0.5), d.x, **options), d.y, d.C if C is None else C)


def hinge(d: Data, C: Any = None, kernel: Any = None, bias: str = "free", **options: Any) -> Any:
    given = jaxsvm.gram(kernel or RBF(0.5), d.x, **options)
    return jaxsvm.hinge_problem(given, d.y, d.C if C is None else C, bias=bias)


def codes(d: Data) -> np.ndarray:
    """The signs as class codes: 0 for +1."""
    with jax.transfer_guard("allow"):
        return (np.asarray(d.y) < 0).astype(np.int32)


def machines(d: Data, build: Callable[..., Any], C: Any = None) -> Any:
    given = jaxsvm.gram(RBF(0.5), d.x)
    return build(lambda signs: jaxsvm.hinge_problem(given, signs, d.C if C is None else C, bias="free"), codes(d))


def by_oracle(C: float) -> float:
    """The squared hinge's optimal primal value in the certificate's scale."""
    return oracle.solve_svm(kernel_matrix(), data()[1], C, np.ones(N)).optimum


def by_hinge_oracle(C: float, bias: str = "free", kernel: str = "rbf") -> float:
    K = kernel_matrix() if kernel == "rbf" else data()[0] @ data()[0].T
    return oracle_hinge.hinge_solution(K, data()[1], C, bias, np.ones(N)).primal


def slope(value: Callable[[float], float], C: float) -> float:
    """The derivative of an optimal value, by central differences."""
    h = 1e-3 * C
    return (value(C + h) - value(C - h)) / (2 * h)


def primal(fit: Any) -> Any:
    return fit.certificate.primal


def primals(of: Callable[[float], float]) -> Callable[[], np.ndarray]:
    return lambda: np.array([of(C) for C in CS])


class Operation(NamedTuple):
    """What a user calls, what it has to give, and how closely."""

    run: Callable[[Data], Any]
    expected: Callable[[], Any]
    rtol: float = 2e-3


OPERATIONS = {
    "fit": Operation(lambda d: primal(jaxsvm.fit(squared(d))), lambda: by_oracle(2.0)),
    "fit, linear": Operation(
        lambda d: primal(jaxsvm.fit(hinge(d, kernel=Linear()))), lambda: by_hinge_oracle(2.0, kernel="linear")
    ),
    "fit, hinge": Operation(lambda d: primal(jaxsvm.fit(hinge(d))), lambda: by_hinge_oracle(2.0)),
    "fit, rows on demand": Operation(lambda d: primal(jaxsvm.fit(hinge(d, store=False))), lambda: by_hinge_oracle(2.0)),
    "fit, features": Operation(
        lambda d: primal(jaxsvm.fit(hinge(d, rank=N, bias="none"))), lambda: by_hinge_oracle(2.0, "none")
    ),
    "Newton": Operation(lambda d: primal(jaxsvm.fit(squared(d), jaxsvm.Newton())), lambda: by_oracle(2.0)),
    "working sets": Operation(
        lambda d: primal(jaxsvm.fit(squared(d), jaxsvm.WorkingSet(size=16, fresh=8))), lambda: by_oracle(2.0)
    ),
    "interior points": Operation(
        lambda d: primal(jaxsvm.fit(hinge(d), jaxsvm.InteriorPoint())), lambda: by_hinge_oracle(2.0)
    ),
    "jit": Operation(lambda d: jax.jit(lambda C: primal(jaxsvm.fit(squared(d, C))))(d.C), lambda: by_oracle(2.0)),
    "jit, hinge": Operation(
        lambda d: jax.jit(lambda C: primal(jaxsvm.fit(hinge(d, C))))(d.C), lambda: by_hinge_oracle(2.0)
    ),
    "vmap": Operation(lambda d: jax.vmap(lambda C: primal(jaxsvm.fit(squared(d, C))))(d.Cs), primals(by_oracle)),
    "classes": Operation(
        lambda d: primal(jaxsvm.fit_many(machines(d, jaxsvm.one_versus_rest))), lambda: [by_hinge_oracle(2.0)] * 2
    ),
    "jit, classes": Operation(
        lambda d: jax.jit(lambda C: primal(jaxsvm.fit_many(machines(d, jaxsvm.one_versus_one, C))))(d.C),
        lambda: [by_hinge_oracle(2.0)],
    ),
    "predict classes": Operation(
        lambda d: (
            jaxsvm.predict(jaxsvm.fit_many(machines(d, jaxsvm.one_versus_one)), machines(d, jaxsvm.one_versus_one), d.x)
            == codes(d)
        ).mean(),
        lambda: 1.0,
        0.2,  # of the samples may be on the other side
    ),
    "grad": Operation(
        lambda d: jax.jit(jax.grad(lambda C: primal(jaxsvm.fit(squared(d, C)))))(d.C),
        lambda: slope(by_oracle, 2.0),
        2e-2,
    ),
    "grad, hinge": Operation(
        lambda d: jax.jit(jax.grad(lambda C: primal(jaxsvm.fit(hinge(d, C)))))(d.C),
        lambda: slope(by_hinge_oracle, 2.0),
        2e-2,
    ),
    "path": Operation(lambda d: primal(jaxsvm.solve_path(squared(d), d.Cs)), primals(by_oracle)),
    "path, hinge": Operation(lambda d: primal(jaxsvm.solve_path(hinge(d), d.Cs)), primals(by_hinge_oracle)),
    "screened path": Operation(
        lambda d: primal(jaxsvm.solve_path(hinge(d, bias="none"), d.Cs, screen=jaxsvm.screening.ball_test_1)),
        primals(lambda C: by_hinge_oracle(C, "none")),
    ),
    "cross-validation": Operation(
        lambda d: jaxsvm.cross_validate(squared(d), d.Cs, 3).scores.shape, lambda: (3, len(CS))
    ),
    "ball": Operation(
        lambda d: primal(jaxsvm.fit(jaxsvm.meb_problem(jaxsvm.gram(RBF(0.5), d.x)))),
        lambda: oracle.solve_meb(kernel_matrix())[1],
    ),
    "predict": Operation(
        lambda d: (jaxsvm.predict(jaxsvm.compact(jaxsvm.fit(hinge(d)), hinge(d)), d.x) == d.y).mean(),
        lambda: 1.0,
        0.2,  # of the samples may be on the other side
    ),
    "coreset": Operation(
        lambda d: jaxsvm.coresets.coreset(d.x, d.y, 1.0, 20, d.key).weight.sum(), lambda: float(N), 1e-4
    ),
}


@pytest.mark.parametrize("flags", [narrow, wide])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_public_operation(name, flags):
    operation = OPERATIONS[name]
    with flags():
        d = on_device()
        found = operation.run(d)
    np.testing.assert_allclose(np.asarray(found), operation.expected(), rtol=operation.rtol)


MAPPED = {
    "squared": lambda d, C: primal(jaxsvm.fit(squared(d, C))),
    "hinge": lambda d, C: primal(jaxsvm.fit(hinge(d, C))),
    "path": lambda d, C: primal(jaxsvm.solve_path(squared(d), C[None]))[0],
    "grad": lambda d, C: jax.grad(lambda C: primal(jaxsvm.fit(squared(d, C))))(C),
}


@pytest.mark.parametrize("name", MAPPED)
def test_inside_a_shard_map_with_its_checks(name):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    over = jax.sharding.PartitionSpec("i")
    with jax.enable_x64(False):
        d = on_device()
        lanes = jax.vmap(lambda C: MAPPED[name](d, C))
        found = jax.jit(jax.shard_map(lanes, mesh=mesh, in_specs=over, out_specs=over))(d.Cs)
    of = (lambda C: slope(by_oracle, C)) if name == "grad" else by_hinge_oracle if name == "hinge" else by_oracle
    np.testing.assert_allclose(found, [of(C) for C in CS], rtol=2e-2 if name == "grad" else 2e-3)


@pytest.mark.parametrize("spec", [(), ("i",)])
def test_points_on_a_mesh_with_explicit_axes(spec):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.enable_x64(False):
        d = on_device()
        d = d._replace(x=jax.device_put(d.x, jax.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))))
        assert primal(jaxsvm.fit(hinge(d))) == pytest.approx(by_hinge_oracle(2.0), rel=2e-3)
        path = jaxsvm.solve_path(squared(d), d.Cs)
        np.testing.assert_allclose(primal(path), primals(by_oracle)(), rtol=2e-3)
        jitted = jax.jit(lambda x: primal(jaxsvm.fit(squared(d._replace(x=x)))))(d.x)
        assert jitted == pytest.approx(by_oracle(2.0), rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("of", [jax.jacfwd, jax.hessian])
def test_derivatives_by_a_python_float(of):
    with jax.enable_x64(False):
        d = on_device()

        def value(gamma):
            return primal(jaxsvm.fit(squared(d, kernel=RBF(gamma)), jaxsvm.Newton()))

        np.testing.assert_allclose(of(value)(0.3), of(value)(jnp.float32(0.3)), rtol=1e-4)
