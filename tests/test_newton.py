"""Newton against the oracle: kernel space, feature space, free bias, every method, the hard cases."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import scipy.sparse as sp
from cases import hard_cases
from scipy.optimize import minimize

import jaxsvm
from jaxsvm import Newton
from jaxsvm.kernels import RBF, Linear, Polynomial, Precomputed
from jaxsvm.numerics.line_search import best_bias, hinge_minimum

ACCEPTED_GAP = 1e-8
SOLVER = Newton(tol=ACCEPTED_GAP)
KERNELS = {"linear": Linear, "rbf": RBF, "poly": Polynomial}


@functools.cache
def data(n=160, d=4, separable=False):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, d))
    score = x[:, 0] + 0.5 * x[:, 1] ** 2 - 0.6
    x, score = (x[abs(score) > 0.3], score[abs(score) > 0.3]) if separable else (x, score)
    y = np.where(score > 0, 1.0, -1.0)
    return x, y if separable else np.where(rng.random(n) < 0.1, -y, y)


def bounded(fit, optimum, rel=1e-7):
    assert fit.status.name == "CONVERGED"
    assert float(fit.certificate.dual) <= optimum * (1 + rel)
    assert float(fit.certificate.primal) >= optimum * (1 - rel)
    assert float(fit.certificate.relative_gap) <= ACCEPTED_GAP


# --- kernel space ------------------------------------------------------------------------------------------------


def a_third(values):
    return [value if i % 3 == 0 else pytest.param(value, marks=pytest.mark.slow) for i, value in enumerate(values)]


@pytest.mark.thorough
@pytest.mark.parametrize("case", a_third([case for case in hard_cases() if case.n < 1000]), ids=lambda case: case.name)
def test_hard_cases(case):
    truth = oracle.solve_svm(case.K, case.y, case.C)
    gram = jaxsvm.gram(KERNELS[case.kernel](**case.params), case.x)
    bounded(jaxsvm.fit(jaxsvm.svm_problem(gram, case.y, case.C), SOLVER), truth.optimum)


def test_one_to_a_thousand():
    case = next(case for case in hard_cases() if case.name == "imbalance-1-to-1000-rbf")
    fit = jaxsvm.fit(jaxsvm.svm_problem(jaxsvm.gram(RBF(**case.params), case.x), case.y, case.C), SOLVER)
    assert fit.status.name == "CONVERGED"
    assert float(oracle.relative_gap_direct(case.K, case.y, case.C, np.asarray(fit.alpha))) <= ACCEPTED_GAP


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("C", "bias"),
    [
        (1e3, "regularized"),
        pytest.param(0.1, "free", marks=pytest.mark.slow),
        pytest.param(0.1, "regularized", marks=pytest.mark.slow),
        pytest.param(1e3, "free", marks=pytest.mark.slow),
    ],
)
def test_conjugate_gradients_agree_with_the_factor(bias, C):
    x, y = data()
    problem = jaxsvm.svm_problem(jaxsvm.gram(RBF(gamma=0.5), x, tile=64), y, C, bias=bias)
    exact = jaxsvm.fit(problem, Newton(tol=1e-8, method="cholesky"))
    for solver in (Newton(tol=1e-8, method="cg"), Newton(tol=1e-8, factor_limit=40)):
        fit = jaxsvm.fit(problem, solver)
        assert fit.status.name == "CONVERGED"
        np.testing.assert_allclose(fit.margins, exact.margins, atol=1e-3)
        assert float(fit.certificate.dual) == pytest.approx(float(exact.certificate.dual), rel=1e-7)


# --- feature space -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["cholesky", "cg"])
@pytest.mark.parametrize("bias", ["regularized", "free", pytest.param("none", marks=pytest.mark.slow)])
def test_feature_space_equals_kernel_space(method, bias):
    x, y = data()
    weight = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    K = jaxsvm.gram(Precomputed(), x @ x.T)
    exact = jaxsvm.check(jaxsvm.fit(jaxsvm.svm_problem(K, y, 0.3, bias=bias, sample_weight=weight), SOLVER))
    problem = jaxsvm.svm_problem(jaxsvm.gram(Linear(), x, tile=64), y, 0.3, bias=bias, sample_weight=weight)
    fit = jaxsvm.check(jaxsvm.fit(problem, Newton(tol=1e-9, method=method)))
    assert float(fit.certificate.primal) == pytest.approx(float(exact.certificate.primal), rel=1e-8)
    assert float(fit.bias) == pytest.approx(float(exact.bias), abs=1e-4)
    np.testing.assert_allclose(x.T @ fit.dual_coef, x.T @ exact.dual_coef, atol=1e-4)


@pytest.mark.parametrize("method", a_third(["auto", "cg"]))
def test_sparse(method):
    sparse = pytest.importorskip("scipy.sparse")
    x, y = data()
    x = np.where(abs(x) > 0.7, x, 0)
    truth = oracle.solve_svm(x @ x.T, y, 2.0)
    problem = jaxsvm.svm_problem(jaxsvm.gram(Linear(), sparse.csr_matrix(x), tile=64), y, 2.0)
    bounded(jaxsvm.fit(problem, Newton(tol=1e-8, method=method)), truth.optimum)


def test_low_rank():
    x, y = data()
    gram = jaxsvm.gram(RBF(gamma=0.5), x, rank=20)
    truth = oracle.solve_svm(np.asarray(gram.Z @ gram.Z.T), y, 1e3)
    bounded(jaxsvm.fit(jaxsvm.svm_problem(gram, y, 1e3), SOLVER), truth.optimum)


# --- free bias ---------------------------------------------------------------------------------------------------


def free_problem(x, y, C=2.0, **options):
    return jaxsvm.svm_problem(jaxsvm.gram(RBF(gamma=0.5), x), y, C, bias="free", **options)


def test_free_bias_against_scipy_and_its_certificate():
    x, y = data()
    weight = np.random.default_rng(1).integers(0, 3, len(y)).astype(float)

    def primal(v):
        slack = np.maximum(0, 1 - y * (x @ v[:-1] + v[-1]))
        pull = 2.0 * weight * slack * y
        return v[:-1] @ v[:-1] / 2 + (weight * slack) @ slack, np.append(v[:-1] - x.T @ pull, -pull.sum())

    best = minimize(primal, np.zeros(5), jac=True, method="BFGS", options={"gtol": 1e-9})
    for kernel in (Linear(), Polynomial(degree=1, gamma=1.0, coef0=0.0)):  # in feature and in kernel space
        gram = jaxsvm.gram(kernel, x)
        problem = jaxsvm.svm_problem(gram, y, 2.0, bias="free", sample_weight=weight)
        fit = jaxsvm.check(jaxsvm.fit(problem, SOLVER))
        assert float(fit.certificate.primal) == pytest.approx(best.fun, rel=1e-8)
        v = np.append(x.T @ np.asarray(fit.dual_coef), float(fit.bias))
        assert primal(v)[0] == pytest.approx(float(fit.certificate.primal), rel=1e-9)
        np.testing.assert_allclose(v, best.x, atol=1e-4)
    # Far from the optimum the bounds hold as well: the point has the best bias, and y . alpha = 0.
    alpha = problem.feasible_point(jnp.asarray(np.random.default_rng(2).random(160)))
    assert abs(float(alpha @ problem.y)) < 1e-15
    certificate = problem.certificate(alpha, problem.matvec(alpha))
    assert float(certificate.dual) <= best.fun <= float(certificate.primal)
    R = alpha @ problem.matvec(alpha)
    answer = problem.certified(alpha / R, problem.matvec(alpha) / R, problem.dtype)
    at = primal(np.append(x.T @ np.asarray(answer.dual_coef), float(answer.bias)))[0]
    assert at == pytest.approx(float(answer.certificate.primal), rel=1e-9) == float(certificate.primal)


@pytest.mark.thorough
def test_free_bias_of_shifted_and_of_imbalanced_data():
    x, y = data()
    far = jaxsvm.fit(jaxsvm.svm_problem(jaxsvm.gram(Linear(), x + 30.0), y, 1.0, bias="free"), SOLVER)
    near = jaxsvm.fit(jaxsvm.svm_problem(jaxsvm.gram(Linear(), x), y, 1.0, bias="free"), SOLVER)
    assert far.status.name == near.status.name == "CONVERGED"
    assert float(far.certificate.primal) == pytest.approx(float(near.certificate.primal), rel=1e-7)
    rare = np.where(np.arange(160) < 1, 1.0, -1.0)
    for C in (1e-2, 1e4):
        fit = jaxsvm.fit(free_problem(x, rare, C), SOLVER)
        assert fit.status.name == "CONVERGED"
    pair = jaxsvm.fit(free_problem(x[:2], np.array([1.0, -1.0])), SOLVER)
    assert float(pair.bias) == pytest.approx(0, abs=1e-12)


def test_the_best_bias_is_best_where_pieces_share_their_curvature():
    """With equal costs two pieces of the objective can have one curvature: the search must not take them for one."""
    random = np.random.default_rng(0)
    for _ in range(20):
        margins, y = random.normal(size=60), np.where(random.random(60) < 0.5, 1.0, -1.0)
        b = float(best_bias(jnp.asarray(margins), jnp.asarray(y), jnp.full(60, 10.0), 1.0))

        def loss(b, margins=margins, y=y):
            return (np.maximum(0, 1 - margins - y * b) ** 2).sum()

        assert loss(b) <= min(loss(b + step) for step in np.linspace(-0.5, 0.5, 201)) + 1e-12


def test_a_line_search_never_goes_from_end_to_end():
    """One sample of the rarer class: from either end a Newton step lands on the other one; the minimum is between."""
    slack = jnp.zeros(5000).at[0].set(2.0)
    change = jnp.full(5000, 2.0).at[0].set(-2.0)
    t = float(hinge_minimum(slack, change, jnp.ones(5000), 0.0, 0.0, (0.0, 1.0), 1.0))
    assert t == pytest.approx(1 / 5000, rel=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_one_sample_of_the_rarer_class_comes_into_a_growing_part(dtype):
    """With a free bias all others have no slack at all before it does: here it comes last."""
    x, y = np.random.default_rng(0).normal(size=(1100, 3)).astype(dtype), -np.ones(1100)
    y[int(jax.random.permutation(jax.random.key(0), 1100)[-1])] = 1.0
    fit = jaxsvm.fit(jaxsvm.svm_problem(jaxsvm.gram(RBF(0.2), x), y, 1.0, bias="free"), Newton(tol=1e-3))
    assert fit.status.name == "CONVERGED"


def test_a_chain_of_linear_problems_is_as_exact_as_single_fits():
    """A recomputed point had the value of the one before, below any that a step reached: no step was taken any more."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1500, 20)) * rng.uniform(0.5, 4, 20)
    y = np.where(x @ rng.normal(size=20) + 4 * rng.normal(size=1500) > 0, 1.0, -1.0)
    here = jaxsvm.svm_problem(jaxsvm.gram(jaxsvm.kernels.Linear(), x.astype(np.float32)), y)
    Cs = np.geomspace(1e-3, 100, 11)
    path = jaxsvm.solve_path(here, Cs, solver=jaxsvm.Newton(tol=1e-4))
    alone = [float(jaxsvm.fit(here.at(C), jaxsvm.Newton(tol=1e-4)).certificate.relative_gap) for C in Cs]
    assert (np.asarray(path.certificate.relative_gap) <= 2 * np.maximum(alone, 1e-4)).all()
    assert path.certificate.relative_gap.max() <= 1e-2


def test_sparse_rows_of_few_features_take_newton():
    """Working sets took 22 CPU seconds where Newton takes .03 (5,000 x 20, C = 100)."""
    rng = np.random.default_rng(0)
    x = sp.random(2000, 20, 0.3, "csr", dtype=np.float32, random_state=0)
    y = np.where(x @ rng.normal(size=20) + 0.1 * rng.normal(size=2000) > 0, 1.0, -1.0)
    fit = jaxsvm.fit(jaxsvm.svm_problem(jaxsvm.gram(jaxsvm.kernels.Linear(), x), y, 10.0))
    assert fit.status.name == "CONVERGED" and int(fit.steps) < 40
