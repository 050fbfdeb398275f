"""Derivatives of a solution, against central differences of the oracle, which shares nothing with them."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jaxsvm
from jaxsvm import FrankWolfe, implicit
from jaxsvm.kernels import RBF, Laplacian, Linear, Polynomial, Precomputed
from jaxsvm.solvers.simplex.newton import Newton

pytestmark = pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")  # gaps asked for are at the dtype's floor
N, D = 40, 3
CLOSE = 1e-5  # relative: what the project promises away from kinks
STEP = 1e-5
TIGHT = FrankWolfe(tol=1e-11)
EXACT = Newton(tol=1e-12)


@functools.cache
def data():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(N, D))
    y = np.where(x[:, 0] + x[:, 1] ** 2 > 0.7, 1.0, -1.0)
    return x, np.where(rng.random(N) < 0.1, -y, y), rng.uniform(0.5, 2.0, N)


def svm(kernel, C=30.0, x=None, bias="regularized", sample_weight=None, **options):
    return jaxsvm.svm_problem(
        jaxsvm.gram(kernel, data()[0] if x is None else x, **options),
        data()[1],
        C,
        bias=bias,
        sample_weight=sample_weight,
    )


def precomputed(K):
    return svm(Precomputed(), x=(K + K.T) / 2)


def composed(theta):
    return svm(theta[0] * RBF(theta[1]) + Polynomial(2, theta[2], theta[3]) * Laplacian(theta[4]))


CASES = {
    "C": (lambda C: svm(RBF(0.5), C), 30.0),
    "C, no bias": (lambda C: svm(RBF(0.5), C, bias="none"), 30.0),
    "C, free bias": (lambda C: svm(RBF(0.5), C, bias="free"), 30.0),
    "weights": (lambda weight: svm(RBF(0.5), 30.0, sample_weight=weight), data()[2]),
    "gamma": (lambda gamma: svm(RBF(gamma)), 0.5),
    "a width a feature": (lambda gamma: svm(RBF(gamma)), np.array([0.3, 0.8, 0.1])),
    "sums and products": (composed, np.array([0.7, 0.5, 0.3, 1.2, 0.2])),
    "points": (lambda x: svm(RBF(0.5), x=x), data()[0]),
    "points, tiled": (lambda x: svm(RBF(0.5), x=x, tile=16), data()[0]),
    "Gram entries": (precomputed, oracle.kernel_matrix("rbf", data()[0], gamma=0.5)),
    "linear features": (lambda x: svm(Linear(), 30.0, x=x, rank=D), data()[0]),
    "Nystroem": (lambda gamma: svm(RBF(gamma), rank=10), 0.5),
}
OFTEN = ("C, free bias", "weights")
"""Tested always; the others with the slow tests: each compiles programs of its own."""


def often(names):
    return [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in names]


every_case = pytest.mark.parametrize("name", often(CASES))


@functools.cache
def functional():
    rng = np.random.default_rng(9)
    return rng.normal(size=(3, N)), rng.normal(size=3)


def measure(fit):
    (a, b, c), (d, e, f) = functional()
    certificate = fit.certificate.primal + 0.5 * fit.certificate.dual
    return 10 * fit.alpha @ a + fit.dual_coef @ b + fit.margins @ c + d * fit.bias + e * fit.R + f * certificate


def truth(problem):
    """`measure` of the oracle's solution of the same problem, for any kernel matrix."""
    K, y = np.asarray(problem.gram.matvec(jnp.eye(N))), np.asarray(problem.y)
    C, weight = float(problem.C), np.asarray(1 / (problem.ridge * problem.C))
    if problem.free_bias:
        return free_truth(K, y, C)
    found = oracle.solve_svm((K + K.T) / 2, y, C, weight, bias=problem.offset > 0)
    margins = y * (K @ found.dual_coef + found.bias)
    certificate = jaxsvm.Certificate(found.optimum, found.optimum, 0.0)
    return measure(jaxsvm.Fit(found.alpha, found.dual_coef, found.bias, found.R, margins, certificate, None, None))


def free_truth(K, y, C):
    """With a free bias: the bordered system, on sets of samples inside the margin until the set repeats."""
    support = np.ones(N, bool)
    for _ in range(50):
        S = np.flatnonzero(support)
        matrix = np.block(
            [[np.outer(y[S], y[S]) * K[np.ix_(S, S)] + np.eye(len(S)) / C, y[S][:, None]], [y[S], np.zeros(1)]]
        )
        found = np.linalg.solve(matrix, np.append(np.ones(len(S)), 0))
        coef, bias = np.zeros(N), found[-1]
        coef[S] = y[S] * found[:-1]
        f = y * (K @ coef + bias)
        if (support == (f < 1)).all():
            break
        support = f < 1
    else:
        raise AssertionError("the active set cycles")
    total = (y * coef).sum()
    certificate = jaxsvm.Certificate(total / 2, total / 2, 0.0)
    return measure(jaxsvm.Fit(y * coef / total, coef, bias, 1 / total, f, certificate, None, None))


def direction(theta):
    return np.random.default_rng(3).normal(size=np.shape(theta))


def difference(build, theta):
    u = direction(theta)
    return (truth(build(theta + STEP * u)) - truth(build(theta - STEP * u))) / (2 * STEP)


def fit(problem, solver=EXACT):
    return jaxsvm.fit(problem, solver)


@every_case
def test_derivatives_agree_with_differences_of_the_oracle(name):
    build, theta = CASES[name]
    expected = difference(build, theta)
    exact = implicit.solution(build(theta))
    assert exact.status.name == "CONVERGED"
    assert not implicit.one_sided(build(theta), exact, 1e-4).any()
    assert (exact.alpha == 0).any() or name == "linear features"  # too few features: nobody is outside the margin
    assert float(measure(exact)) == pytest.approx(truth(build(theta)), rel=1e-9)

    def of_the_support(theta):
        return measure(implicit.solution(build(theta), exact))

    u = direction(theta)
    _, forward = jax.jvp(of_the_support, (theta,), (u,))
    backward = (jax.grad(of_the_support)(theta) * u).sum()
    assert float(forward) == pytest.approx(expected, rel=CLOSE)
    assert float(backward) == pytest.approx(float(forward), rel=1e-9)


def test_tangents_may_be_numbers_of_python():
    """`jax.jvp` hands them on as they are, without a dtype."""

    def of_a_fit(gamma):
        return measure(fit(svm(RBF(gamma))))

    number, array = (jax.jvp(of_a_fit, (make(0.5),), (make(1.0),))[1] for make in (float, jnp.asarray))
    assert number == array


THROUGH_FIT = ["a width a feature", "weights", "points, tiled", "Gram entries", "Nystroem"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("C", marks=pytest.mark.thorough),
        *(pytest.param(name, marks=pytest.mark.slow) for name in THROUGH_FIT),
    ],
)
def test_derivatives_go_through_fit(name):
    build, theta = CASES[name]

    def of_a_fit(theta):
        return measure(fit(build(theta)))

    u = direction(theta)
    expected = difference(build, theta)
    assert float(jax.jvp(of_a_fit, (theta,), (u,))[1]) == pytest.approx(expected, rel=CLOSE)
    assert float((jax.grad(of_a_fit)(theta) * u).sum()) == pytest.approx(expected, rel=CLOSE)


@functools.cache
def known_support():
    with jax.ensure_compile_time_eval():
        return np.asarray(implicit.solution(svm(RBF(0.5), 30.0)).alpha > 0)


def rbf_loss(log_parameters, solver=None):
    C, gamma = jnp.exp(log_parameters)
    here = svm(RBF(gamma), C)
    fitted = implicit.solution(here, known_support()) if solver is None else fit(here, solver)
    fresh = data()[0][:7] + 0.1
    return jnp.tanh(jaxsvm.decision_function(fitted, here, fresh)).sum() + fitted.certificate.primal / 50


WHERE = np.log([30.0, 0.5])


@pytest.mark.parametrize(
    ("outer", "inner"), [(jax.jacfwd, jax.jacrev), pytest.param(jax.jacrev, jax.jacfwd, marks=pytest.mark.slow)]
)
def test_second_derivatives_in_mixed_modes(outer, inner):
    """Against differences of gradients, which the tests above hold against the oracle."""
    gradient = jax.jit(jax.grad(rbf_loss))
    expected = np.stack([(gradient(WHERE + e) - gradient(WHERE - e)) / (2 * STEP) for e in STEP * np.eye(2)])
    np.testing.assert_allclose(jax.jit(outer(inner(rbf_loss)))(WHERE), expected, rtol=CLOSE, atol=1e-7)


@pytest.mark.parametrize("name", often(["C", "points, tiled", "Nystroem"]))
def test_float32(name):
    build, theta = CASES[name]
    x = data()[0].astype(np.float32)

    def gradient(theta):
        here = build(theta) if "points" in name else svm(RBF(0.5), theta, x=x) if name == "C" else lowrank(theta)
        return measure(implicit.solution(here, exact_support))

    def lowrank(theta):
        return svm(RBF(theta), x=x, rank=10)

    exact_support = implicit.solution(build(theta)).alpha > 0
    theta32, u = np.asarray(theta, np.float32), direction(theta).astype(np.float32)
    value, found = jax.jvp(gradient, (theta32,), (u,))
    del value
    assert float(found) == pytest.approx(difference(build, theta), rel=2e-3)


# --- ways to the same system -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tiled_and_dense_and_every_method_agree():
    exact = implicit.solution(svm(RBF(0.5)))

    def gradient(method, **options):
        def loss(x):
            return measure(implicit.solution(svm(RBF(0.5), x=x, **options), exact, method=method))

        return jax.grad(loss)(data()[0])

    dense = gradient("cholesky")
    for method, options in (("cg", {}), ("cg", {"tile": 16}), ("cholesky", {"tile": 16})):
        np.testing.assert_allclose(gradient(method, **options), dense, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
def test_an_ill_conditioned_system_is_solved_or_refused():
    """C = 1e6: the derivative is right; where conjugate gradients cannot get there it is NaN, never a wrong number."""
    exact = implicit.solution(svm(RBF(0.5), 1e6))
    assert exact.status.name == "CONVERGED"

    def loss(log_gamma, method="auto"):
        return implicit.solution(svm(RBF(jnp.exp(log_gamma)), 1e6), exact, method=method).dual_coef @ functional()[0][0]

    here, h = np.log(0.5), 1e-6
    expected = (loss(here + h) - loss(here - h)) / (2 * h)
    assert float(jax.grad(loss)(here)) == pytest.approx(float(expected), rel=1e-4)
    iterated = float(jax.grad(loss)(here, "cg"))
    assert np.isnan(iterated) or iterated == pytest.approx(float(expected), rel=1e-4)


def largest_intermediate(jaxpr):
    """Size of the largest array that a jaxpr makes, in whatever it calls, in numbers of 64 bits."""
    made = [v.aval for eqn in jaxpr.eqns for v in eqn.outvars if hasattr(v.aval, "shape")]
    sizes = [np.prod(aval.shape, dtype=int) * aval.dtype.itemsize / 8 for aval in made]
    inner = []
    for eqn in jaxpr.eqns:
        for parameter in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            sub = getattr(parameter, "jaxpr", parameter)
            if hasattr(sub, "eqns"):
                inner.append(largest_intermediate(sub))
    return max([*sizes, *inner, 0])


def test_the_derivative_of_a_tiled_gram_takes_little_memory():
    n, tile = 3000, 32
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, D)), np.where(rng.random(n) < 0.5, 1.0, -1.0)
    support = jnp.asarray(rng.random(n) < 0.4)

    def loss(x, gamma, C):
        here = jaxsvm.svm_problem(jaxsvm.gram(RBF(gamma), x, tile=tile), y, C)
        return (implicit.solution(here, support).margins ** 2).sum()

    gradient = jax.grad(loss, argnums=(0, 1, 2))
    limit = n * (128 + 1 + tile)  # landmarks of the preconditioner, or a tile
    assert largest_intermediate(jax.make_jaxpr(gradient)(x, 0.5, 1.0).jaxpr) <= limit
    used = jax.jit(gradient).lower(x, 0.5, 1.0).compile().memory_analysis()
    assert used.temp_size_in_bytes < 8 * 8 * limit < 8 * n * n


# --- values and kinks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outside", "order"),
    [(False, 1), *(pytest.param(outside, 2, marks=pytest.mark.slow) for outside in (True, False))],
)
def test_the_optimal_value_and_its_derivatives(outside, order):
    known = implicit.solution(svm(RBF(0.5), 30.0))

    def value(parameters):
        here = svm(RBF(parameters[1]), parameters[0])
        return implicit.value(here, known if outside else implicit.solution(here))

    def optimum(parameters):
        K = oracle.kernel_matrix("rbf", data()[0], gamma=parameters[1])
        return oracle.solve_svm(K, data()[1], parameters[0]).optimum

    at = np.array([30.0, 0.5])
    gradient = jax.jit(jax.grad(value))(at)
    steps = STEP * np.eye(2)
    np.testing.assert_allclose(gradient, [(optimum(at + e) - optimum(at - e)) / (2 * STEP) for e in steps], rtol=CLOSE)
    if order == 1:
        return
    exact = jax.jit(jax.hessian(lambda p: implicit.solution(svm(RBF(p[1]), p[0])).certificate.dual))(at)
    np.testing.assert_allclose(jax.jit(jax.hessian(value))(at), exact, rtol=1e-7)


@pytest.mark.thorough
def test_the_gradient_of_the_optimal_value_solves_nothing():
    known = implicit.solution(svm(RBF(0.5), 30.0))
    text = str(jax.make_jaxpr(jax.grad(lambda C: implicit.value(svm(RBF(0.5), C), known)))(30.0))
    assert "custom_linear_solve" in text  # identities alone, for NaN of fits that have failed
    assert not re.search(r"matvec=\{ lambda[^}]*let(?!\s+in\b)", text)
    assert "cholesky" not in text


@pytest.mark.thorough
def test_a_kink_is_flagged():
    """A sample on the margin without weight: moved until it stands there, it has two one-sided derivatives."""
    x, y, _ = data()
    exact = implicit.solution(svm(RBF(0.5)))
    assert not implicit.one_sided(svm(RBF(0.5)), exact).any()
    place = int(np.argmax(np.asarray(exact.margins)))

    def slack(t):
        moved = x.copy()
        moved[place] += t * (x[np.argmax(y == -y[place])] - x[place])
        here = svm(RBF(0.5), x=moved)
        fitted = implicit.solution(here)
        return float(1 - fitted.margins[place]), here, fitted

    low, high = 0.0, 1.0
    assert slack(low)[0] < 0 < slack(high)[0]
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if slack(middle)[0] < 0 else (low, middle)
    _, here, fitted = slack((low + high) / 2)
    flags = np.asarray(implicit.one_sided(here, fitted))
    assert flags[place]
    assert flags.sum() == 1


# --- what is refused -------------------------------------------------------------------------------------------------


def test_faults_are_said():
    here = svm(RBF(0.5))
    with pytest.raises(jaxsvm.InputError, match="mask"):
        implicit.solution(here, np.arange(3))
    with pytest.raises(jaxsvm.InputError, match="empty"):
        implicit.solution(here, np.zeros(N, bool))
    with pytest.raises(jaxsvm.InputError, match="method"):
        implicit.solution(here, np.ones(N, bool), method="lu")
    with pytest.raises(jaxsvm.InputError, match="BallProblem"):
        implicit.solution(jaxsvm.meb_problem(here.gram))


def test_a_support_that_is_none_of_a_solution_is_not_certified():
    assert implicit.solution(svm(RBF(0.5)), np.arange(N) % 2 == 0).status.name == "STALLED"


def test_a_fit_without_an_answer_has_no_derivative():
    gradient = jax.grad(lambda C: fit(svm(RBF(0.5), C), TIGHT).R)
    assert np.isnan(jax.jit(gradient)(-1.0))


@pytest.mark.thorough
@pytest.mark.parametrize("bias", ["regularized", "free"])
def test_a_traced_fit_of_few_features_has_derivatives(bias):
    """Its sets may circle, whatever solver it was solved by: they are then found anew. Three of thirty were NaN."""

    @jax.jit
    def slope(x, y, C):
        gram = jaxsvm.gram(jaxsvm.kernels.Linear(), x)
        return jax.jvp(lambda C: jaxsvm.fit(jaxsvm.hinge_problem(gram, y, C, bias=bias)).margins, (C,), (C,))[1]

    for seed in range(30):
        rng = np.random.default_rng([100, 10, seed])
        x = rng.normal(size=(100, 10))
        y = np.where(x[:, 0] + 0.5 * rng.normal(size=100) > 0, 1.0, -1.0)
        assert np.isfinite(np.asarray(slope(x, y, 100.0))).all(), seed


@pytest.mark.parametrize("make", ["hinge_problem", pytest.param("svm_problem", marks=pytest.mark.slow)])
def test_a_masked_lane_without_a_solution_leaves_the_gradient_of_the_others(make):
    """A task of one class has no solution: its derivative is NaN, and 0 times it was NaN in what all tasks share."""
    x = np.random.default_rng(0).normal(size=(3, 12, 2))
    y = np.where(x[..., 0] > 0, 1.0, -1.0)
    broken = y.copy()
    broken[1] = 1.0

    def task(w, x, y):
        problem = getattr(jaxsvm, make)(jaxsvm.gram(Linear(), x @ w), y, 1.0, bias="free")
        fit = jaxsvm.fit(problem)
        return (fit.dual_coef @ x @ w).sum() + fit.bias + fit.certificate.dual, fit.status.code

    def total(w, y, mask):
        values, codes = jax.vmap(lambda x, y: task(w, x, y))(x, y)
        return jnp.where(mask & (codes == jaxsvm.Status.CONVERGED), values, 0.0).sum()

    others = np.array([True, False, True])
    slope = jax.jit(jax.grad(total))
    found, known = (slope(jnp.eye(2), jnp.asarray(labels), others) for labels in (broken, y))
    np.testing.assert_allclose(found, known, rtol=1e-6)
    unmasked = jax.jit(jax.grad(lambda w: jax.vmap(lambda x, y: task(w, x, y)[0])(x, broken).sum()))(jnp.eye(2))
    assert np.isnan(unmasked).any()


def test_no_solution_on_an_indefinite_matrix_is_certified():
    K = data()[0] @ data()[0].T - 3 * np.eye(N)
    problem = jaxsvm.hinge_problem(jaxsvm.gram(Precomputed(), K), data()[1], 0.1)
    fit = implicit.solution(problem, jaxsvm.fit(problem))
    assert fit.status.name == "NOT_PSD" and np.isinf(fit.certificate.relative_gap)
