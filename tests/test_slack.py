"""The slack-constrained hinge SVM: certificates, and what it is to the C-SVM and the nu-SVM (docs/mathematics.md)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle_hinge as truth
import pytest
from scipy.optimize import nnls
from sklearn.svm import SVC, NuSVC

import jaxsvm
from jaxsvm import Status, StochasticBatchPerceptron, hinge_problem, slack_problem
from jaxsvm.kernels import Precomputed
from jaxsvm.loop.round import begin, certify, finish
from jaxsvm.problems.slack import equivalent_C, equivalent_nu, nu_svm_parameter, squared_norm

BIASES = ("none", "regularized", "free")
NUS = (0.01, 0.08, 0.4, 1.5)
every_bias = pytest.mark.parametrize("bias", BIASES)
N = 60
data = functools.cache(truth.noisy)


@functools.cache
def exact(nu, bias="none", weighted=False):
    _, y, K = data()
    return truth.slack_solution(K, y, nu, bias, weights() if weighted else None)


@functools.cache
def weights():
    weight = np.random.default_rng(1).integers(0, 3, N).astype(float)
    weight[:2] = 1.5
    return weight


@functools.partial(jax.jit, static_argnames="bias")
def started(K, y, nu, weight, p, bias):
    problem = slack_problem(jaxsvm.gram(Precomputed(), K), y, nu, bias=bias, sample_weight=weight)
    solver = StochasticBatchPerceptron(batch=None)
    return finish(solver, certify(problem, solver, begin(problem, solver, jax.random.key(0), p))), problem


def at_optimum(nu, bias="none", weighted=False):
    _, y, K = data()
    weight = weights() if weighted else np.ones(N)
    return started(K, y, nu, weight, exact(nu, bias, weighted).p, bias)


# --- certificates


@pytest.mark.thorough
@every_bias
@pytest.mark.parametrize("weighted", [False, True])
def test_the_optimal_p_is_certified_as_optimal(bias, weighted):
    """The unit vector along `sum p_i y_i phi_i` and p meet at f*: both bounds are exact; weights count."""
    for nu in NUS:
        fit, _ = at_optimum(nu, bias, weighted)
        wanted = exact(nu, bias, weighted)
        assert float(fit.certificate.dual) <= wanted.level * (1 + 1e-12)
        assert float(fit.certificate.primal) >= wanted.level * (1 - 1e-12)
        # At nu = 0.01 the optimum is a point where p is ill determined: the oracle's rounding is what remains.
        assert float(fit.certificate.relative_gap) <= 1e-9
        assert float(fit.bias) * wanted.level == pytest.approx(wanted.bias, abs=1e-7)
        np.testing.assert_allclose(np.asarray(fit.dual_coef) * wanted.level, data()[1] * wanted.a, atol=1e-7)


def test_11_every_p_bounds_the_optimum():
    """With and without a free bias (where p has half of its mass in each class), for random p and sparse p."""
    _, y, K = data()
    rng = np.random.default_rng(2)
    p = np.concatenate([rng.dirichlet(np.full(N, scale), 10) for scale in (0.02, 0.3, 30.0)])
    nu = 0.2
    for bias in ("none", "free"):
        for given in p:
            fit, _ = started(K, y, nu, np.ones(N), given, bias)
            share = np.asarray(fit.alpha)
            assert float(fit.certificate.dual) <= exact(nu, bias).level <= float(fit.certificate.primal)
            assert share.sum() == pytest.approx(1, rel=1e-14)
            assert bias == "none" or abs(y @ share) <= 1e-14
            bound = truth.slack_bound(K, y, nu, share, bias)
            assert float(fit.certificate.primal) == pytest.approx(bound, rel=1e-10)


def test_certificate_holds_for_a_vector_that_is_too_long():
    _, y, K = data()
    problem = slack_problem(jaxsvm.gram(Precomputed(), K), y, 0.2, bias="none")
    wanted = exact(0.2)
    point = jnp.stack([3 * wanted.a, wanted.p])
    certificate = jax.jit(lambda point: problem.certificate(point, problem.matvec(point)))(point)
    assert float(certificate.primal) >= wanted.level * (1 - 1e-12)
    assert float(certificate.dual) == pytest.approx(wanted.level, rel=1e-9)


# --- the conversions of docs/mathematics.md, The slack budget


@every_bias
@pytest.mark.parametrize("weighted", [False, True])
def test_10_equivalent_C_and_nu_are_inverse_to_each_other(bias, weighted):
    _, y, K = data()
    weight = weights() if weighted else np.ones(N)
    for nu in NUS:
        fit, problem = at_optimum(nu, bias, weighted)
        C, wanted = float(equivalent_C(problem, fit)), exact(nu, bias, weighted)
        assert float(fit.bias) * wanted.level == pytest.approx(wanted.bias, abs=1e-7)
        assert abs(C / wanted.C - 1) <= 1e-4
        solution = truth.hinge_solution(K, y, C, bias, weight)
        assert solution.nu == pytest.approx(nu, rel=1e-4)
        hinge = hinge_problem(jaxsvm.gram(Precomputed(), K), y, C, bias=bias, sample_weight=weight)
        hinge_fit = _fit_of(hinge, solution)
        assert float(jnp.sqrt(squared_norm(hinge, hinge_fit))) == pytest.approx(solution.norm, rel=1e-9)
        assert float(equivalent_nu(hinge, hinge_fit)) == pytest.approx(solution.nu, rel=1e-9)


def _fit_of(problem, solution):
    """A `Fit` that holds the oracle's solution."""
    nothing = jnp.zeros(())
    return jaxsvm.Fit(
        alpha=jnp.asarray(solution.a),
        dual_coef=problem.y * solution.a,
        bias=jnp.asarray(solution.bias),
        R=nothing,
        margins=jnp.asarray(solution.margins),
        certificate=jaxsvm.Certificate(jnp.asarray(solution.primal), jnp.asarray(solution.dual), nothing),
        status=None,  # pyright: ignore[reportArgumentType]  # nobody looks at it here
        counters=None,  # pyright: ignore[reportArgumentType]
    )


@pytest.mark.parametrize("nu", [0.08, 0.2])  # from 0.3 on nu_s is the largest there is, where NuSVC gives up
def test_10_same_decision_function_as_svc_and_nu_svc(nu):
    """With a free bias: `SVC(C=equivalent_C)` and `NuSVC(nu=nu_svm_parameter)`, to what their tolerance gives."""
    _, y, K = data()
    fit, problem = at_optimum(nu, "free")
    ours = K @ np.asarray(fit.dual_coef) + float(fit.bias)
    nu_s = float(nu_svm_parameter(problem, fit))
    assert nu_s == pytest.approx(1 / (N * exact(nu, "free").p.max()), rel=1e-12)
    peers = (
        SVC(C=float(equivalent_C(problem, fit)), kernel="precomputed", tol=1e-10),
        NuSVC(nu=nu_s, kernel="precomputed", tol=1e-10),
    )
    for peer in peers:
        np.testing.assert_allclose(peer.fit(K, y).decision_function(K), ours, atol=1e-6)


def test_the_level_rises_with_nu_by_the_inverse_of_nu_of_nu_svm():
    """The envelope, against differences of the oracle's levels."""
    _, y, K = data()
    problem = slack_problem(jaxsvm.gram(Precomputed(), K), y, 0.1, bias="none")
    slope = (exact(0.1 + 1e-4).level - exact(0.1 - 1e-4).level) / 2e-4
    assert 1 / float(nu_svm_parameter(problem, jaxsvm.fit(problem, tol=1e-9))) == pytest.approx(slope, rel=1e-3)


def test_an_inexact_p_may_tell_no_C():
    _, y, K = data()
    fit, problem = started(K, y, 0.4, np.ones(N), np.eye(N)[0], "none")
    assert float(equivalent_C(problem, fit)) == float("inf")


# --- the problem itself


def test_feasible_point_repairs_whatever_it_is_given():
    _, y, K = data()
    for bias in ("none", "free"):
        problem = slack_problem(jaxsvm.gram(Precomputed(), K), y, 0.2, bias=bias, sample_weight=weights())
        for given in (np.zeros(N), -np.ones(N), np.eye(N)[3], np.where(y > 0, 1.0, 0.0), np.ones(N)):
            p = np.asarray(problem.feasible_point(jnp.asarray(given)))
            assert (p >= 0).all()
            assert p.sum() == pytest.approx(1, rel=1e-14)
            assert (p[weights() == 0] == 0).all()
            assert bias == "none" or abs(y @ p) <= 1e-14


def test_lambda_and_C_are_each_others_map():
    assert jaxsvm.slack.lambda_of_C(2.0, 50) == pytest.approx(0.01)
    assert jaxsvm.slack.lambda_of_C(0.01, 50) == pytest.approx(2.0)


# --- the solver that is taken where none is named


@pytest.mark.parametrize(
    "bias",
    [pytest.param("none", marks=pytest.mark.thorough), pytest.param("regularized", marks=pytest.mark.slow), "free"],
)
def test_any_nu_is_certified_by_default(bias):
    """Small ones too, where the hard margin is near, none at all, and such as make every sample support."""
    _, y, K = data()
    problem = slack_problem(jaxsvm.gram(Precomputed(), K), y, 0.1, bias=bias)
    levels = []
    for nu in (0.0, 1e-6, 3e-5, 1e-4, *NUS, 20.0):
        fit = jaxsvm.fit(problem.at(nu), tol=1e-5)
        assert float(jaxsvm.check(fit).certificate.relative_gap) <= 1e-5
        if nu in NUS:
            assert float(fit.certificate.dual) <= exact(nu, bias).level * (1 + 1e-9)
            assert float(fit.certificate.primal) >= exact(nu, bias).level * (1 - 1e-9)
        levels.append(float(fit.certificate.dual))
    assert (np.diff(levels) > 0).all()
    hard = jaxsvm.fit(hinge_problem(problem.gram, y, 1e6, bias=bias), tol=1e-6)
    norm = float(jnp.sqrt(squared_norm(hinge_problem(problem.gram, y, 1e6, bias=bias), hard)))
    assert levels[0] == pytest.approx(1 / norm, rel=1e-4)


@pytest.mark.thorough
def test_a_nu_that_no_loss_is_as_small_as_has_its_w_inside_the_ball():
    """Inseparable samples: below `L / |w|` of the smallest loss L the level is `nu / L`, of a w shorter than 1."""
    x, y, _ = data()
    gram = jaxsvm.gram(jaxsvm.kernels.Linear(), x)
    hinge = hinge_problem(gram, y, 1e4, bias="free")
    smallest = jaxsvm.fit(hinge, jaxsvm.InteriorPoint(tol=1e-8))
    loss = float(np.maximum(0, 1 - np.asarray(smallest.margins)).mean())
    nu = 0.1 * float(equivalent_nu(hinge, smallest))
    fit = jaxsvm.check(jaxsvm.fit(slack_problem(gram, y, nu, bias="free")))
    assert float(fit.certificate.dual) == pytest.approx(nu / loss, rel=2e-4)


def test_inseparable_samples_are_certified_at_any_nu_and_at_none_it_ends():
    """The level is proportional to nu down there; at nu = 0 it is 0, and no relative gap of that can be proven."""
    x, y, _ = data()
    problem = slack_problem(jaxsvm.gram(jaxsvm.kernels.Linear(), x), y, 1e-3, bias="free")
    fits = [jaxsvm.check(jaxsvm.fit(problem.at(nu))) for nu in (1e-4, 1e-8)]
    levels = [float(fit.certificate.dual) for fit in fits]
    assert levels[1] == pytest.approx(1e-4 * levels[0], rel=2e-4)
    assert fits[0].solvers == ("SMO", "EquivalentHinge")
    with pytest.warns(jaxsvm.ConvergenceWarning):
        none = jaxsvm.fit(problem.at(0.0))
    assert none.status.name == "STALLED"
    assert abs(float(none.certificate.primal)) < 1e-6
    assert float(none.certificate.relative_gap) == np.inf


def test_paths_and_folds_begin_at_no_slack_at_all():
    _, y, K = data()
    problem = slack_problem(jaxsvm.gram(Precomputed(), K), y, 0.08, bias="none", sample_weight=weights())
    path = jaxsvm.solve_path(problem, [0.08, 0.0])
    kept = weights() > 0  # without slack: the largest margin, 1 / |w| of the a >= 0 that minimises a'Qa / 2 - 1'a
    A = np.linalg.cholesky(truth.signed(K, y)[np.ix_(kept, kept)]).T
    margin = nnls(A, np.linalg.solve(A.T, np.ones(len(A))), maxiter=10_000)[0].sum() ** -0.5
    assert path.certificate.dual[1] * (1 - 1e-9) <= margin <= path.certificate.primal[1] * (1 + 1e-9)
    np.testing.assert_allclose(path.certificate.dual[1], margin, rtol=2e-4)
    assert float(path.certificate.dual[0]) == pytest.approx(exact(0.08, "none", True).level, rel=1e-4)
    assert jaxsvm.cross_validate(problem, [0.0, 0.08], 2).status.code.shape[0] == 2
    with pytest.raises(jaxsvm.InputError, match="nu must not be negative"):
        jaxsvm.solve_path(problem, [-0.1])


def test_counters_are_those_of_all_hinge_problems_that_were_solved():
    """Two columns of the matrix for each pair step, whatever C it was taken at; a start that is known takes none."""
    _, y, K = data()
    problem = slack_problem(jaxsvm.gram(Precomputed(), K), y, 0.01, bias="none")
    fit = jaxsvm.check(jaxsvm.fit(problem))
    assert fit.kernel_evaluations % (2 * int(fit.steps)) == 0
    assert fit.kernel_evaluations >= 2 * N * int(fit.steps)
    assert int(jaxsvm.fit(problem, init=fit).steps) == 0


def test_weights_whose_products_underflow_are_refused():
    """They would leave samples out, unsaid; traced ones are a status."""
    _, y, K = data()
    small = np.where(np.arange(N) == 3, 1e-200, 1.0)
    for build in (slack_problem, hinge_problem, jaxsvm.svm_problem):
        problem = build(jaxsvm.gram(Precomputed(), K), y, 0.1, sample_weight=small)
        with pytest.raises(jaxsvm.InputError, match=r"sample_weight\[3\]"):
            problem.weighted(small)
        assert not bool(jax.jit(lambda weight, problem=problem: problem.weighted(weight).feasible)(small))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every_bias
def test_no_w_is_certified_where_none_is_better(bias, dtype):
    """Each sample with both signs: w = 0 has the level V / sum w, with a free bias V / 2 of the smaller class.

    In float32 kernel values of a sample and its copy differ by rounding, which features do not.
    """
    rng = np.random.default_rng(47)
    x, y = np.tile(rng.normal(size=(20, 2)), (3, 1)).astype(dtype), np.repeat([1.0, -1.0, 1.0], 20)
    gram = jaxsvm.gram(jaxsvm.kernels.RBF(0.5) if dtype == np.float64 else jaxsvm.kernels.Linear(), x, store=True)
    for copies in (np.ones(20), rng.integers(1, 4, 20), rng.integers(0, 3, 20)):
        weight = np.concatenate([copies, copies, copies * (bias == "free")]).astype(dtype)
        problem = slack_problem(gram, y.astype(dtype), 0.25, bias=bias, sample_weight=weight)
        fit = jaxsvm.check(jaxsvm.fit(problem))
        level = 0.25 * weight.sum() / (2 * weight[y < 0].sum())
        assert level * (1 - 1e-6) <= float(fit.certificate.dual) <= level * (1 + 1e-7)
        assert level <= float(fit.certificate.primal) * (1 + 1e-7) <= level * (1 + 1e-4)
        assert not np.asarray(fit.dual_coef).any()
        assert float(fit.bias) == (bias == "free")
    if bias == "none" and dtype == np.float32:
        traced = jax.vmap(lambda nu: jaxsvm.fit(problem.at(nu)))(np.asarray([0.25, 2.0], dtype))
        assert (np.asarray(traced.status.code) == Status.CONVERGED).all()
        np.testing.assert_allclose(traced.certificate.dual, [level, 8 * level], rtol=1e-4)
        path = jaxsvm.solve_path(problem, [0.25, 2.0]).fits.certificate
        np.testing.assert_allclose(path.dual, [level, 8 * level], rtol=1e-4)
