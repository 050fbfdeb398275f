"""The oracle against closed forms and peers. Each of its solutions has a gap of 1e-10, by definition in long double."""

import itertools

import cases
import numpy as np
import oracle
import oracle_hinge
import pytest
import scipy.optimize
from sklearn.svm import LinearSVC


def test_bad_input_is_refused():
    K, y = np.eye(3), np.array([1.0, -1.0, 1.0])
    bad = [
        (K, np.array([1.0, 0.0, 1.0]), 1.0, None),
        (K, y, 0.0, None),
        (K * np.nan, y, 1.0, None),
        (K, y, 1.0, np.zeros(3)),
        (K, y, 1.0, -np.ones(3)),
        (-5 * K, y, 1e3, None),
    ]
    for k, labels, C, weight in bad:
        with pytest.raises(ValueError):
            oracle.solve_svm(k, labels, C, weight)


def test_two_samples_in_closed_form():
    for p in (cases.hard_case("one-sample-per-class-linear"), cases.hard_case("one-sample-per-class-rbf")):
        Kt = oracle.kt_matrix(p.K, p.y, p.C)
        a = (Kt[1, 1] - Kt[0, 1]) / (Kt[0, 0] + Kt[1, 1] - 2 * Kt[0, 1])
        solution = oracle.solve_svm(p.K, p.y, p.C)
        np.testing.assert_allclose(solution.alpha, [a, 1 - a], rtol=1e-13)
        assert pytest.approx(np.linalg.det(Kt) / (Kt[0, 0] + Kt[1, 1] - 2 * Kt[0, 1]), rel=1e-10) == solution.R


def test_weight_zero_is_absence_and_integers_are_copies():
    p = cases.random_problem(1)
    copies = np.random.default_rng(0).integers(0, 4, p.n)
    repeated = np.repeat(np.arange(p.n), copies)
    solution = oracle.solve_svm(p.K, p.y, p.C, copies)
    explicit = oracle.solve_svm(p.K[np.ix_(repeated, repeated)], p.y[repeated], p.C)
    assert pytest.approx(explicit.R, rel=1e-12) == solution.R
    np.testing.assert_allclose(solution.alpha, np.bincount(repeated, explicit.alpha, p.n), atol=1e-13)
    assert solution.relative_gap == oracle.relative_gap_direct(p.K, p.y, p.C, solution.alpha, copies)


def test_liblinear_agrees_at_half_our_C():
    problems = [p for p in cases.random_problems(64) if p.kernel == "linear" and p.C < 100][:5]
    for p in [*problems, next(p for p in cases.weighted_problems() if p.kernel == "linear")]:
        solution = oracle.solve_svm(p.K, p.y, p.C, p.weight)
        peer = LinearSVC(C=p.C / 2, dual=False, tol=1e-14, max_iter=100_000).fit(p.x, p.y, sample_weight=p.weight)
        ours = np.append(p.x.T @ solution.dual_coef, solution.bias)
        theirs = np.append(peer.coef_[0], peer.intercept_[0])
        assert np.linalg.norm(ours - theirs) < 1e-5 * np.linalg.norm(ours)  # the root of its objective's error
        hinge = np.maximum(0, 1 - p.y * (p.x @ theirs[:-1] + theirs[-1]))
        value = theirs @ theirs / 2 + (oracle.costs(p.y, p.C, p.weight) / 2 * hinge**2).sum()
        assert value == pytest.approx(solution.optimum, rel=1e-8)
        assert value > solution.optimum * (1 - 1e-12)  # nobody beats the optimum


@pytest.mark.parametrize("index", [1, 2, 3, 5])
def test_scipy_agrees(index):
    p = cases.random_problem(index)
    truth = oracle.solve_svm(p.K, p.y, p.C)
    L = np.linalg.cholesky(oracle.kt_matrix(p.K, p.y, p.C))
    beta, _ = scipy.optimize.nnls(L.T, np.linalg.solve(L, np.ones(p.n)), maxiter=10_000)
    np.testing.assert_allclose(p.y * beta, truth.dual_coef, atol=1e-6 * np.abs(truth.dual_coef).max())
    assert 1 / beta.sum() == pytest.approx(truth.R, rel=1e-8)


def test_kernels_by_hand():
    x, z = np.array([[1.0, 2.0], [0.0, -1.0]]), np.array([[3.0, 0.5]])
    np.testing.assert_allclose(oracle.linear(x, z)[:, 0], [4.0, -0.5])
    np.testing.assert_allclose(oracle.rbf(x, z, gamma=0.1)[:, 0], np.exp([-0.625, -1.125]))
    np.testing.assert_allclose(oracle.poly(x, z, degree=2, gamma=2.0, coef0=1.0)[:, 0], [81.0, 0.0])
    np.testing.assert_allclose(oracle.laplacian(x, z, gamma=0.1)[:, 0], np.exp([-0.35, -0.45]))
    np.testing.assert_allclose(oracle.sigmoid(x, z, gamma=0.5, coef0=-1.0)[:, 0], np.tanh([1.0, -1.25]))


def ball_problems():
    rng = np.random.default_rng(3)
    angle = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    circle = np.c_[np.cos(angle), np.sin(angle)] * 3 + 5  # co-circular: the weights are not unique
    yield np.r_[circle, 0.5 * rng.normal(size=(30, 2)) + 5], 9.0
    yield np.array([[0.0, 0, 0], [4, 0, 0], [1, 0.1, 0], [4, 0, 0]]), 4.0
    yield np.array([[2.0, 1.0]]), 0.0
    yield np.tile([1.5, -2.0], (7, 1)), 0.0
    yield np.array(list(itertools.product([-1.0, 1], repeat=4))), 4.0
    yield rng.normal(size=(150, 10)), None


@pytest.mark.parametrize(("z", "expected"), list(ball_problems()))
def test_enclosing_balls(z, expected):
    alpha, r2 = oracle_hinge.solve_meb(z @ z.T)
    assert alpha.min() >= 0 and abs(alpha.sum() - 1) < 1e-12
    distance = ((z - alpha @ z) ** 2).sum(1)
    spread = ((z - z.mean(0)) ** 2).sum(1).max()
    assert distance.max() <= r2 + 1e-9 * spread + 1e-14
    assert r2 == pytest.approx(distance.max() if expected is None else expected, rel=1e-9, abs=1e-10)


def test_the_ball_of_a_constant_diagonal_is_the_machine():
    p = cases.random_problem(1)
    assert p.kernel == "rbf"
    truth, Kt = oracle.solve_svm(p.K, p.y, p.C), oracle.kt_matrix(p.K, p.y, p.C)
    assert oracle_hinge.solve_meb(Kt)[1] == pytest.approx(Kt[0, 0] - truth.R, rel=1e-9)
