"""Every public operation once, as users meet it: in 32 bits and in 64, under the flags that careful users turn on.

What passes here is right by an independent reference; each program is small. `make test-core` runs this file with what
else shows that a version of JAX works, in an environment of its own.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lowered
import numpy as np
import oracle
import oracle_hinge
import pytest
from samples import N, data, kernel_matrix
from scipy.sparse import csr_array

import jaxsvm
import jaxsvm.coresets
import jaxsvm.designs
import jaxsvm.estimators
import jaxsvm.relational
import jaxsvm.screening
from jaxsvm.kernels import RBF, Laplacian, Linear

pytestmark = pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")


FLAGS = {
    "jax_enable_x64": False,
    "jax_numpy_rank_promotion": "raise",
    "jax_numpy_dtype_promotion": "strict",
    "jax_transfer_guard": "disallow",
    "jax_debug_nans": jax.default_backend() == "cpu",  # it reads results back, which the guard forbids elsewhere
}


@contextlib.contextmanager
def narrow() -> Iterator[None]:
    """32 bits, as most users have it; no promotion of ranks or dtypes, no transfer that nobody asked for, no NaN.

    Set for the whole process, as research code does it, and so for the threads of this library too.
    """
    before = {flag: getattr(jax.config, flag) for flag in FLAGS}
    try:
        for flag, value in FLAGS.items():
            jax.config.update(flag, value)
        with lowered.without_reading_back():
            yield
    finally:
        for flag, value in before.items():
            jax.config.update(flag, value)


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
    x, y = data()
    dtype = jax.dtypes.canonicalize_dtype(float)
    given = (np.asarray(x, dtype), np.asarray(y, dtype), np.asarray(CS, dtype), np.asarray(CS[1], dtype))
    with jax.transfer_guard("allow"):
        return Data(*jax.device_put(given), jax.random.key(0))


def on_host(d: Data) -> Data:
    """As NumPy arrays: where a user's jitted function closes over arrays on a device, JAX itself copies them back."""
    return Data(*map(read, d[:-1]), d.key)


def squared(d: Data, C: Any = None, kernel: Any = None, **options: Any) -> Any:
    return jaxsvm.svm_problem(jaxsvm.gram(kernel or RBF(0.5), d.x, **options), d.y, d.C if C is None else C)


def hinge(d: Data, C: Any = None, kernel: Any = None, bias: str = "free", **options: Any) -> Any:
    given = jaxsvm.gram(kernel or RBF(0.5), d.x, **options)
    return jaxsvm.hinge_problem(given, d.y, d.C if C is None else C, bias=bias)


def read(array: Any) -> np.ndarray:
    """Into NumPy, where the flags forbid it."""
    with jax.transfer_guard("allow"):
        return np.asarray(array)


def codes(d: Data) -> np.ndarray:
    return (read(d.y) < 0).astype(np.int32)


def share(predicted: Any, labels: Any) -> Any:
    """The share of right predictions, in NumPy: JAX's flag against NaN reads what an operation by itself returns."""
    return (read(predicted) == read(labels)).mean()


def machines(d: Data, build: Callable[..., Any], C: Any = None) -> Any:
    given = jaxsvm.gram(RBF(0.5), d.x)
    return build(lambda signs: jaxsvm.hinge_problem(given, signs, d.C if C is None else C, bias="free"), codes(d))


def by_oracle(C: float) -> float:
    return oracle.solve_svm(kernel_matrix(), data()[1], C, np.ones(N)).optimum


def by_hinge_oracle(C: float, bias: str = "free", kernel: str = "rbf") -> float:
    K = kernel_matrix() if kernel == "rbf" else data()[0] @ data()[0].T
    return oracle_hinge.hinge_solution(K, data()[1], C, bias, np.ones(N)).primal


def slope(value: Callable[[float], float], C: float) -> float:
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
    "jit": Operation(jax.jit(lambda d: primal(jaxsvm.fit(squared(d)))), lambda: by_oracle(2.0)),
    "jit, hinge": Operation(jax.jit(lambda d: primal(jaxsvm.fit(hinge(d)))), lambda: by_hinge_oracle(2.0)),
    "jit over arrays of the host": Operation(
        lambda d: jax.jit(lambda C: primal(jaxsvm.fit(hinge(on_host(d), C))))(d.C), lambda: by_hinge_oracle(2.0)
    ),
    "vmap": Operation(lambda d: jax.vmap(lambda C: primal(jaxsvm.fit(squared(d, C))))(d.Cs), primals(by_oracle)),
    "classes": Operation(
        lambda d: primal(jaxsvm.fit_many(machines(d, jaxsvm.one_versus_rest))), lambda: [by_hinge_oracle(2.0)] * 2
    ),
    "jit, classes": Operation(
        lambda d: jax.jit(lambda C: primal(jaxsvm.fit_many(machines(on_host(d), jaxsvm.one_versus_one, C))))(d.C),
        lambda: [by_hinge_oracle(2.0)],
    ),
    "predict classes": Operation(
        lambda d: share(
            jaxsvm.predict(
                jaxsvm.fit_many(machines(d, jaxsvm.one_versus_one)), machines(d, jaxsvm.one_versus_one), d.x
            ),
            codes(d),
        ),
        lambda: 1.0,
        0.2,  # of the samples may be on the other side
    ),
    "grad": Operation(
        lambda d: jax.jit(jax.grad(lambda C: primal(jaxsvm.fit(squared(on_host(d), C)))))(d.C),
        lambda: slope(by_oracle, 2.0),
        2e-2,
    ),
    "grad, hinge": Operation(
        lambda d: jax.jit(jax.grad(lambda C, d: primal(jaxsvm.fit(hinge(d, C)))))(d.C, d),
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
        lambda: oracle_hinge.solve_meb(kernel_matrix())[1],
    ),
    "predict": Operation(
        lambda d: share(jaxsvm.predict(jaxsvm.compact(jaxsvm.fit(hinge(d)), hinge(d)), d.x), d.y),
        lambda: 1.0,
        0.2,  # of the samples may be on the other side
    ),
    "coreset": Operation(
        lambda d: jaxsvm.coresets.coreset(d.x, d.y, 1.0, 20, d.key).weight.sum(), lambda: float(N), 2e-3
    ),
}


def signs(d: Data) -> np.ndarray:
    return read(d.y)


def points(d: Data) -> np.ndarray:
    return read(d.x)


def rows(d: Data) -> Any:
    return jaxsvm.designs.from_arrays(d.x, d.y)


def joined() -> Any:
    r, (x, y) = np.random.default_rng(0), data()
    left = {"key": r.integers(0, 5, N), "u": x[:, 0], "label": y > 0}
    return jaxsvm.relational.Join(
        {"a": left, "b": {"key": np.arange(5).repeat(2), "v": r.normal(size=10)}}, ("a", "label")
    )


def slacks(d: Data) -> Any:
    return jaxsvm.slack_problem(jaxsvm.gram(RBF(0.5), d.x), d.y, 0.2, bias="none")


def has_values(tree: Any) -> bool:
    leaves = [read(leaf) for leaf in jax.tree.leaves(tree)]
    return bool(leaves) and all(np.isfinite(leaf).all() for leaf in leaves if leaf.dtype.kind == "f")


def layers(d: Data, make: Callable[..., Any]) -> Any:
    def value(x: Any, d: Data) -> Any:
        return (jaxsvm.fit(make(jaxsvm.gram(Linear(), x), d.y[:12], d.C)).alpha ** 2).sum()

    return jax.jit(lambda d: jax.vmap(jax.grad(value), (0, None))(d.x[:24].reshape(2, 12, 2), d))(d)


def solved(make: Callable[[Data], Any], solver: Any) -> Callable[[Data], Any]:
    return lambda d: primal(jaxsvm.fit(make(d), solver))


def scored(machine: Any, labels: Callable[[Data], Any] = signs) -> Callable[[Data], Any]:
    return lambda d: machine.fit(points(d), labels(d)).score(points(d), labels(d)) > 0.7


def screened_by(rule: str) -> Callable[[Data], Any]:
    return lambda d: primal(jaxsvm.solve_path(unbiased(d), d.Cs, screen=getattr(jaxsvm.screening, rule)))


unbiased = functools.partial(hinge, bias="none")
E, STREAM = jaxsvm.estimators, jaxsvm.coresets.Stream(1.0, 20)
RUN = {
    "sparse": lambda d: primal(jaxsvm.fit(squared(d._replace(x=csr_array(points(d)))))),
    "function": lambda d: primal(jaxsvm.fit(squared(d, kernel=lambda x, z: jnp.exp(-0.5 * ((x - z) ** 2).sum())))),
    "kernels": lambda d: (RBF(0.5) * Linear() + 0.5 * Laplacian(0.1)).matrix(points(d), points(d)),
    "a kernel": lambda d: (RBF(0.5)(points(d)[0], points(d)[1]), RBF(0.5).diag(points(d))),
    "coordinate ascent": solved(unbiased, jaxsvm.SDCA()),
    "core vectors": solved(squared, jaxsvm.CoreVectorMachine()),
    "perceptron": solved(unbiased, jaxsvm.Perceptron(steps=200)),
    "pegasos": solved(unbiased, jaxsvm.Pegasos(steps=200)),
    "descent in a ball": solved(unbiased, jaxsvm.BallSGD(radius=2.0, steps=200)),
    "polished": solved(squared, jaxsvm.polished(jaxsvm.FrankWolfe())),
    "sampled": solved(squared, jaxsvm.sampled(jaxsvm.FrankWolfe())),
    "slack": lambda d: jaxsvm.slack.equivalent_C(slacks(d), jaxsvm.fit(slacks(d))),
    "batch perceptron": solved(slacks, jaxsvm.StochasticBatchPerceptron(steps=200)),
    "a batch of layers": lambda d: layers(d, functools.partial(jaxsvm.hinge_problem, bias="free")),
    "squared layers": lambda d: layers(d, jaxsvm.svm_problem),
    "grid": lambda d: jaxsvm.C_grid(squared(d), 4),
    "tune": lambda d: jaxsvm.tune(RBF(0.5), d.x, d.y, folds=2, steps=2).loss,
    "two-sided": lambda d: jaxsvm.screening.two_sided_test(
        unbiased(d), jaxsvm.fit(unbiased(d, CS[0])), jaxsvm.fit(unbiased(d, CS[2])), CS[0], CS[2]
    ).inactive,
    "water": lambda d: jaxsvm.water_level(points(d)[:, 0], 3.0),
    "water and a bias": lambda d: jaxsvm.water_level_with_bias(points(d)[:, 0], signs(d), 3.0),
    "designs": lambda d: jaxsvm.designs.fit(rows(d)).predict(points(d)),
    "folds of designs": lambda d: jaxsvm.designs.cross_validate(rows(d), CS, 2).mean,
    "random features": lambda d: jaxsvm.designs.fit(jaxsvm.designs.fourier(rows(d), RBF(0.5), 8)).coef,
    "landmarks": lambda d: jaxsvm.designs.fit(jaxsvm.designs.nystroem(rows(d), RBF(0.5), 8)).coef,
    "standardised": lambda d: jaxsvm.designs.fit(jaxsvm.designs.standardised(rows(d))).coef,
    "a measured coreset": lambda d: jaxsvm.coresets.evaluate(
        jaxsvm.coresets.coreset(points(d), signs(d), 1.0, 20), (points(d), signs(d))
    ).worst,
    "a certified coreset": lambda d: jaxsvm.coresets.certify(
        jaxsvm.coresets.coreset(points(d), signs(d), 1.0, 20), (points(d), signs(d))
    ).relative_gap,
    "sensitivities": lambda d: jaxsvm.coresets.sensitivity(points(d), signs(d), 1.0),
    "a stream": lambda d: STREAM.finalize(STREAM.update(STREAM.init(), points(d), signs(d))).weight,
    "joined": lambda d: jaxsvm.coresets.join(jaxsvm.coresets.coreset(points(d), signs(d), 1.0, 20)).weight,
    "dynamic": lambda d: jaxsvm.coresets.DynamicCoreset(1.0, 20).insert(points(d), signs(d)),
    "a join": lambda d: jaxsvm.relational.fit(joined(), C=1e-2, scale="standard").coef,
    "a join's gradient": lambda d: jaxsvm.relational.pseudo_gradient(joined(), np.zeros(2), 1e-2).gradient,
    "a join's stability": lambda d: np.array(jaxsvm.relational.stability(joined(), 1e-2)),
    "a join as a design": lambda d: jaxsvm.designs.fit(jaxsvm.relational.design(joined())).coef,
    "SVC": scored(E.SVC()),
    "SVC, squared": scored(E.SVC(loss="squared_hinge", bias="regularized")),
    "LinearSVC": scored(E.LinearSVC()),
    "NuSVC": scored(E.NuSVC(nu=0.3)),
    "SVR": scored(E.SVR(), lambda d: points(d)[:, 0]),
    "NuSVR": scored(E.NuSVR(), lambda d: points(d)[:, 0]),
    "one class": lambda d: E.OneClassSVM(nu=0.3).fit(points(d)).score_samples(points(d)),
    "SVCPath": scored(E.SVCPath(Cs=[1.0, 10.0], cv=2)),
    "PegasosClassifier": scored(E.PegasosClassifier()),
    "SBPClassifier": scored(E.SBPClassifier()),
    **{rule: screened_by(rule) for rule in ("ball_test_2", "intersection_test", "dvi", "gap_safe")},
}  # fmt: skip
"""Other tests know what these return. Here each runs under the flags, and returns numbers."""
LONGER = {"a measured coreset", "tune", "landmarks", "random features", "sensitivities", "sampled",
          "a join as a design", "polished", "water and a bias", "dynamic"}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONGER else name for name in RUN]
)
def test_runs_under_flags_of_research_code(name):
    with narrow():
        d = on_device()
        found = RUN[name](d)
    assert has_values(found) if not isinstance(found, bool) else found


@pytest.mark.thorough  # of `make test-core`: other tests know each of them
@pytest.mark.parametrize("flags", [narrow, pytest.param(wide, marks=pytest.mark.slow)])  # as all other tests run
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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
