"""Every driver refuses the same numbers in the same words, before it compiles anything."""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import samples

import jaxsvm
from jaxsvm import (
    SDCA,
    SMO,
    BallSGD,
    CoreVectorMachine,
    FrankWolfe,
    InteriorPoint,
    Newton,
    Pegasos,
    Perceptron,
    StochasticBatchPerceptron,
    coresets,
    datasets,
    designs,
    interchange,
    plots,
    polished,
    relational,
    sampled,
    screening,
)
from jaxsvm.errors import InputError
from jaxsvm.kernels import RBF, Linear

N = 24
CS = np.array([0.5, 1.0, 2.0])


@functools.cache
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 2))
    return jaxsvm.gram(RBF(0.5), x), np.where(x[:, 0] > 0, 1.0, -1.0)


def problem_of(solver):
    inner = solver
    while hasattr(inner, "solver"):
        inner = inner.solver
    if isinstance(inner, StochasticBatchPerceptron):
        return lambda gram, y, nu=0.5: jaxsvm.slack_problem(gram, y, nu)
    return jaxsvm.svm_problem if isinstance(inner, FrankWolfe | Newton | CoreVectorMachine) else jaxsvm.hinge_problem


def fitted(solver):
    gram, y = data()
    return jaxsvm.fit(problem_of(solver)(gram, y, 0.5), solver)


def path(solver, **options):
    gram, y = data()
    return jaxsvm.solve_path(problem_of(solver)(gram, y), CS, solver=solver, **options)


def traced(solver):
    gram, y = data()
    return jax.jit(lambda C: jaxsvm.fit(problem_of(solver)(gram, y, C), solver).R)(0.5)


def traced_path(solver):
    gram, y = data()
    run = jax.jit(lambda Cs: jaxsvm.solve_path(problem_of(solver)(gram, y), Cs, solver=solver).fits.R)
    return run(jnp.asarray(CS))


DRIVERS = {
    "fit": fitted,
    "chain": path,
    "lanes": functools.partial(path, lanes=2),
    "jit": traced,
    "path in jit": traced_path,
}
every_driver = pytest.mark.parametrize("drive", DRIVERS.values(), ids=DRIVERS)


@every_driver
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FrankWolfe(stop="typo"), "stop is 'typo': one of"),
        (lambda: polished(FrankWolfe(stop="typo")), "stop is 'typo': one of"),
        (lambda: sampled(FrankWolfe(tol=np.inf)), "tol is inf"),
        (lambda: FrankWolfe(tol=np.nan), "tol is nan: one positive finite number"),
        (lambda: FrankWolfe(tol=-1.0), "tol is -1.0"),
        (lambda: FrankWolfe(tol="small"), "tol is 'small'"),
        (lambda: FrankWolfe(tol=np.ones(3)), "tol is an array of shape"),
        (lambda: FrankWolfe(check_every=0), "check_every is 0: an integer from 1"),
        (lambda: FrankWolfe(refresh_every=0), "refresh_every is 0: an integer from 1"),
        (lambda: FrankWolfe(draw=0), "draw is 0: an integer from 2"),
        (lambda: CoreVectorMachine(draw=1), "draw is 1: an integer from 2"),
        (lambda: CoreVectorMachine(inner_tol=0.0), "inner_tol is 0.0"),
        (lambda: FrankWolfe(max_steps=3_000_000_000), "max_steps is 3000000000: an integer from 0 to 2147483647"),
        (lambda: FrankWolfe(max_steps=10**30), "max_steps is 1000"),
        (lambda: FrankWolfe(max_steps=-1), "max_steps is -1"),
        (lambda: FrankWolfe(max_steps=np.nan), "max_steps is nan"),
        (lambda: Newton(max_steps=1.5), "max_steps is 1.5"),
        (lambda: SMO(max_steps=None), "max_steps is None"),
        (lambda: SMO(check_every=True), "check_every is True"),
        (lambda: SDCA(tol=0.0), "tol is 0.0"),
        (lambda: InteriorPoint(max_steps=3e9), "max_steps is 3000000000.0"),
        (lambda: Pegasos(steps=3_000_000_000), "steps is 3000000000"),
        (lambda: BallSGD(1.0, steps=0.5), "steps is 0.5"),
        (lambda: BallSGD(np.inf), "radius is inf"),
        (lambda: Perceptron(steps=-5), "steps is -5"),
        (lambda: StochasticBatchPerceptron(steps=2**31), "steps is 2147483648"),
        (lambda: StochasticBatchPerceptron(check_every=0), "check_every is 0"),
    ],
)
def test_a_solver_nobody_can_run_is_refused(drive, make, message):
    with pytest.raises(jaxsvm.InputError, match=message):
        drive(make())


@pytest.mark.thorough
@every_driver
def test_traced_numbers_pass(drive):
    """They have no value yet, and a driver must not ask for one."""
    if drive in (traced, traced_path):
        jax.eval_shape(lambda tol: drive(FrankWolfe(tol=tol)), 1e-2)
    assert drive(FrankWolfe(tol=jnp.asarray(1e-2), max_steps=np.int64(1000))) is not None


@pytest.mark.parametrize("seconds", [np.nan, -1.0, "soon", [1.0, 2.0]])
@pytest.mark.parametrize("solver", [FrankWolfe(), SMO()])
def test_a_time_limit_is_a_number_of_seconds(seconds, solver):
    gram, y = data()
    with pytest.raises(jaxsvm.InputError, match="max_seconds is .* at least 0 seconds"):
        jaxsvm.fit(problem_of(solver)(gram, y, 1.0), solver, max_seconds=seconds)
    assert jaxsvm.fit(jaxsvm.svm_problem(gram, y, 1.0), FrankWolfe(), max_seconds=np.inf).status.name == "CONVERGED"


@pytest.mark.parametrize("tol", [0.0, np.inf, np.nan])
def test_a_tolerance_is_a_positive_number_everywhere(tol):
    gram, y = data()
    for call in (
        lambda: jaxsvm.solve_path(jaxsvm.svm_problem(gram, y), CS, tol=tol),
        lambda: jaxsvm.solve_path(jaxsvm.svm_problem(gram, y), CS, tol=tol, lanes=2),
        lambda: jaxsvm.cross_validate(jaxsvm.svm_problem(gram, y), CS, folds=2, tol=tol),
        lambda: jaxsvm.cross_validate(jaxsvm.hinge_problem(gram, y), CS, folds=2, tol=tol),
        lambda: jaxsvm.is_coreset(jaxsvm.meb_problem(gram), [0, 1], 0.1, tol=tol),
        lambda: jaxsvm.tune(RBF(0.5), gram.x, y, folds=2, steps=1, solver=FrankWolfe(tol=tol)),
    ):
        with pytest.raises(jaxsvm.InputError, match=f"tol is {tol}"):
            call()


@pytest.mark.parametrize("lanes", [0, 1.5, np.nan])
def test_lanes_are_counted(lanes):
    with pytest.raises(jaxsvm.InputError, match="lanes is"):
        path(FrankWolfe(), lanes=lanes)


# --- costs ---


@pytest.mark.parametrize("make", [jaxsvm.svm_problem, jaxsvm.hinge_problem])
@pytest.mark.parametrize(
    ("dtype", "C", "weight"),
    [
        ("float32", 1e39, None),
        ("float32", 1e38, None),  # its ridge is subnormal, which XLA takes for 0: absent
        ("float32", 1e30, 1e10),
        ("float32", 1e-30, 1e-10),
        ("float32", 1e20, 1e-50),  # the product is fine, and the weight is 0
        ("float64", 1e200, 1e200),
        ("float64", 1e-200, 1e-200),
    ],
)
def test_costs_that_the_dtype_cannot_hold_are_refused(make, dtype, C, weight):
    """The weight of one sample: that one would be absent, in silence."""
    _, y = data()
    gram = jaxsvm.gram(RBF(0.5), np.asarray(data()[0].x, dtype))
    weights = None
    if weight is not None:
        weights = np.full(N, 1 / C)
        weights[3] = weight
    with pytest.raises(jaxsvm.InputError, match=r"C .*is .*: float(32|64) holds costs"):
        make(gram, y, C, sample_weight=weights)
    if weight != 1e-50:  # which is 0 before anybody can ask
        assert not jax.jit(lambda C, weights: make(gram, y, C, sample_weight=weights).feasible)(C, weights)


def test_bounds_and_coefficients_of_a_traced_box_are_refused_as_those_of_the_host_are():
    gram, y = data()
    feasible = jax.jit(lambda upper, c: jaxsvm.box_problem(gram, np.ones(N), upper, y=y, c=c).feasible)
    taken, refused = [(1, 1), (0, 1), (0, 0)], [(1, 0), (1, np.inf), (-1, 1), (np.inf, 1)]
    for at in taken + refused:
        upper, c = np.array([np.ones(N), y])
        upper[3], c[3] = at
        assert bool(feasible(upper, c)) == (at in taken)


def test_large_and_small_costs_that_are_held_pass():
    gram, y = data()
    for C, weight in ((1e30, 1e-30), (1e-8, 1e8), (1e8, 1.0)):
        problem = jaxsvm.svm_problem(gram, y, C, sample_weight=np.full(N, weight))
        assert bool(problem.feasible)
        np.testing.assert_allclose(problem.costs, C * weight)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x, y: jaxsvm.gram(x, RBF(0.5)), r"an array of shape \(24, 2\): .* is needed, before the points"),
        (lambda x, y: jaxsvm.gram(RBF, x), "kernel is the class RBF"),
        (lambda x, y: jaxsvm.gram(RBF(0.5), x.astype(object)), r"dtype object: .*`x.astype\(float\)`"),
        (lambda x, y: jaxsvm.gram(RBF(0.5), x * 1e300), r"values up to .*e\+300 in size, which float32 cannot hold"),
        (jaxsvm.svm_problem, "gram is a ndarray: a Gram operator is needed"),
        (jaxsvm.hinge_problem, "gram is a ndarray: a Gram operator is needed"),
        (lambda x, y: jaxsvm.slack_problem(x, y, 0.5), "gram is a ndarray: a Gram operator is needed"),
        (lambda x, y: jaxsvm.meb_problem(x), "gram is a ndarray: a Gram operator is needed"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_arguments_of_beginners_are_told_in_words(call, said):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 2))
    with jax.enable_x64(False), pytest.raises(InputError, match=said):
        call(x, np.where(x[:, 0] > 0, 1.0, -1.0))


def test_arguments_of_another_class_are_named():
    gram, y = data()
    problem = jaxsvm.svm_problem(gram, y, 1.0)
    fit, kernel = jaxsvm.fit(problem), RBF(0.5)
    a_fit, a_problem = "fit is a RBF: a fit", "problem is a RBF: one of "
    calls = {
        "x is a TiledGram: an array of points": [lambda: jaxsvm.gram(kernel, gram)],
        "solver is RBF": [lambda: jaxsvm.fit(problem, kernel)],
        "solver is SquaredHingeProblem": [lambda: jaxsvm.fit(problem, problem)],
        "model is a Fit": [lambda: jaxsvm.interchange.to_libsvm(fit, "file")],
        "reference is a RBF": [
            lambda: jaxsvm.screening.dvi(problem, kernel), lambda: jaxsvm.screening.gap_safe(problem, kernel),
        ],
        a_fit: [
            lambda: jaxsvm.ball(kernel, problem), lambda: jaxsvm.compact(kernel, problem), lambda: jaxsvm.check(kernel),
            lambda: jaxsvm.implicit.value(problem, kernel), lambda: jaxsvm.implicit.one_sided(problem, kernel),
        ],
        a_problem: [
            lambda: jaxsvm.ball(fit, kernel), lambda: jaxsvm.is_coreset(kernel, [0], 0.1),
            lambda: jaxsvm.cross_validate(kernel, [1.0]), lambda: jaxsvm.C_grid(kernel),
            lambda: jaxsvm.slack.equivalent_nu(kernel, fit), lambda: jaxsvm.slack.equivalent_C(kernel, fit),
            lambda: jaxsvm.slack.nu_svm_parameter(kernel, fit), lambda: jaxsvm.slack.squared_norm(kernel, fit),
        ],
        "problem is a RBF: the problem of the fit": [lambda: jaxsvm.compact(fit, kernel)],
        "design is a RBF": [
            lambda: jaxsvm.designs.standardised(kernel), lambda: jaxsvm.designs.fourier(kernel, kernel, 2),
        ],
    }  # fmt: skip
    for said, each in calls.items():
        for call in each:
            with pytest.raises(InputError, match=said):
                call()


def test_problems_and_kernels_do_not_share_the_callers_memory():
    """Large NumPy arrays are aligned: JAX takes them as they are on a CPU, and what the caller writes is seen."""
    n = 256

    def aligned(value):
        room = np.zeros(n * 8 + 64, np.uint8)
        start = -room.ctypes.data % 64
        array = room[start : start + n * 8].view(np.float64)
        array[:] = value
        return array

    x, gamma = np.random.default_rng(0).normal(size=(4, n)), aligned(2.0)
    kernel = RBF(gamma)
    gram = jaxsvm.gram(Linear(), np.ones((n, 2)))
    q, upper, c, y = aligned(1.0), aligned(3.0), aligned(1.0), aligned(1.0)
    problem = jaxsvm.box_problem(gram, q, upper, y=y, c=c)
    before = kernel.matrix(x, x)
    for array in (gamma, q, upper, c, y):
        array[:] = 7
    np.testing.assert_array_equal(before, kernel.matrix(x, x))
    for name, value in (("q", 1), ("upper", 3), ("c", 1), ("y", 1)):
        np.testing.assert_array_equal(getattr(problem, name), value)


class Tensor:
    """What a tensor of PyTorch offers NumPy, with a dtype that is not NumPy's."""

    dtype = object()

    def __init__(self, values):
        self.values, self.shape = values, values.shape

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


def test_tensors_of_other_libraries_are_read():
    x, y = np.random.default_rng(0).normal(size=(N, 2)), np.arange(N) % 2 * 2.0 - 1
    theirs = jaxsvm.svm_problem(jaxsvm.gram(RBF(0.5), Tensor(x)), Tensor(y))
    ours = jaxsvm.svm_problem(jaxsvm.gram(RBF(0.5), x), y)
    np.testing.assert_array_equal(jaxsvm.fit(theirs).alpha, jaxsvm.fit(ours).alpha)


def test_warnings_point_at_the_line_that_called():
    x, y = samples.data()
    problem = jaxsvm.hinge_problem(jaxsvm.gram(RBF(0.5), x), y, 1.0, bias="none")
    with pytest.warns(jaxsvm.ConvergenceWarning) as seen:
        jaxsvm.fit(problem, jaxsvm.Perceptron(60))
    assert [warning.filename for warning in seen] == [__file__]


PLAIN = {
    "ArrayLike",
    "PointsLike",
    "Number",
    "float",
    "int",
    "str",
    "PathLike",
    "Solver",
    "Fit",
    "Mesh",
    "Layout",
    "None",
}


def annotated():
    """Functions, and names of arguments whose annotation says enough to refuse an object."""
    rooms = (jaxsvm, coresets, datasets, designs, interchange, plots, relational, screening)
    functions = {getattr(room, name) for room in rooms for name in room.__all__}
    for function in sorted(filter(inspect.isfunction, functions), key=lambda function: function.__name__):
        for name, annotation in function.__annotations__.items():
            text = re.sub(r"\[.*?\]", "", annotation if isinstance(annotation, str) else str(annotation))
            parts = {part.strip().rpartition(".")[2] for part in text.split("|")}
            variable = inspect.signature(function).parameters.get(name)
            if parts <= PLAIN and variable and "VAR" not in variable.kind.name and function is not jaxsvm.load_model:
                yield function, name


def test_arguments_of_another_kind_are_refused_by_name():
    found = list(annotated())
    assert len(found) >= 200
    for function, name in found:
        with pytest.raises(InputError, match=rf"^{name} (is|has|holds) "):
            function(**{name: object()})


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("C", lambda: jaxsvm.hinge_problem(samples.gram(), samples.data()[1], C="1")),
        ("C", lambda: jaxsvm.svm_problem(samples.gram(), samples.data()[1], C=1j)),
        ("y", lambda: jaxsvm.svm_problem(samples.gram(), [object()] * samples.N)),
        ("y", lambda: jaxsvm.svm_problem(samples.gram(), [[1], [1, 2]])),
        ("sample_weight", lambda: samples.svm(sample_weight=["a"] * samples.N)),
        ("e", lambda: jaxsvm.box_problem(samples.gram(), np.ones(samples.N), 1.0, e=[1.0, 2.0])),
        ("solver", lambda: jaxsvm.cross_validate(samples.svm(), [1.0], 2, solver=SMO)),
        ("callback", lambda: jaxsvm.fit(samples.svm(), callback=5)),
        ("make", lambda: jaxsvm.one_versus_one(len, (samples.data()[1] > 0).astype(int))),
        ("x", lambda: jaxsvm.gram(RBF(0.5), [["a", "b"]])),
        ("x", lambda: jaxsvm.kernels.RBF(0.5).matrix([[1.0]], np.ones((1, 1)))),
        ("gamma", lambda: RBF({})),
        ("x and z", lambda: RBF(0.5)(np.ones(2), np.ones(3))),
        ("paths", lambda: designs.from_files([1])),
        ("mesh", lambda: designs.from_arrays(*samples.data(), mesh=3)),
        ("init", lambda: designs.fit(designs.from_arrays(*samples.data()), init=3)),
    ],
)
def test_what_is_no_number_is_named(name, call):
    with pytest.raises(InputError, match=rf"^{name} "):
        call()
