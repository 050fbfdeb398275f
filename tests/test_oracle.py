"""The oracle against peers, against optimality conditions, and against the numbers of Frandi et al."""

import itertools

import cases
import numpy as np
import oracle
import pytest
import scipy.optimize
import scipy.stats
import tolerances as tol
from sklearn.svm import LinearSVC

HARD = cases.hard_cases()
BY_NAME = pytest.mark.parametrize("problem", HARD, ids=lambda p: p.name)


def small(kernel="rbf", n=60, d=4, C=10.0, seed=0, flip=0.15, **params):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = np.where(x[:, 0] + 0.5 * x[:, 1] ** 2 > 0.3, 1.0, -1.0)
    y[rng.random(n) < flip] *= -1
    return cases.Problem("small", x, y, C, kernel, params)


SMALL = [
    small("rbf", gamma=0.3),
    small("rbf", C=1e3, gamma=1.0),
    small("linear", C=5.0),
    small("poly", degree=2, gamma=1.0, coef0=1.0),
    small("poly", C=100.0, degree=2, gamma=0.2, coef0=0.0),
    small("laplacian", C=50.0, gamma=0.3),
]
SMALL_IDS = ["rbf-C10", "rbf-C1e3", "linear-C5", "poly1-C10", "poly0-C100", "laplacian-C50"]
ON_SMALL = pytest.mark.parametrize("problem", SMALL, ids=SMALL_IDS)


def assert_optimal(p, solution, bias=True):
    """Simplex, stationarity, and agreement of every field with its definition."""
    alpha, R = solution.alpha, solution.R
    c = oracle.costs(p.y, p.C, p.weight)
    on = c > 0
    assert abs(solution.relative_gap) < tol.ORACLE_GAP
    assert alpha.min() >= 0 and abs(alpha.sum() - 1) < tol.SIMPLEX_SUM and not alpha[~on].any()
    assert np.array_equal(solution.support, np.flatnonzero(alpha))
    long_alpha = alpha.astype(oracle.LONG)
    B = oracle.signed_kernel(p.K, p.y, bias)
    s = B.astype(oracle.LONG) @ long_alpha
    s[on] += long_alpha[on] / c[on]
    rounding = np.finfo(np.float64).eps * (np.abs(B) @ alpha).max()  # of alpha itself, which is stored in float64
    slack = tol.ORACLE_KKT * R * max(1.0, p.stiffness / 1e6) + rounding
    assert (s[on] - R).min() > -slack
    assert np.abs(s[solution.support] - R).max() < slack
    assert solution.optimum == pytest.approx(1 / (2 * R), rel=1e-14)
    np.testing.assert_allclose(solution.dual_coef, p.y * alpha / R, rtol=1e-12)
    expected = float(solution.dual_coef.sum()) if bias else 0.0
    assert solution.bias == pytest.approx(expected, abs=1e-13 * np.abs(solution.dual_coef).sum())
    if p.stiffness < 1e7 and p.n <= 200:  # beyond, the double-precision R and dual_coef are themselves rounded
        primal = oracle.svm_primal(p.K, p.y, p.C, solution.dual_coef, solution.bias, p.weight)
        assert primal == pytest.approx(solution.optimum, rel=1e-11)
        dual = oracle.svm_dual(p.K, p.y, p.C, solution.dual_coef, p.weight, bias)
        assert dual == pytest.approx(solution.optimum, rel=1e-11)
        assert oracle.simplex_objective(p.K, p.y, p.C, alpha, p.weight, bias) == pytest.approx(R, rel=1e-11)


# ---------------------------------------------------------------------------------------------------- exact solutions


def test_random_problems_are_solved_to_the_last_digits():
    kernels, names = set(), set()
    for p in cases.random_problems(200):
        assert p.n in cases.SIZES and p.x.shape[1] in cases.DIMENSIONS and 1e-2 <= p.C <= 1e4
        assert set(p.y) == {-1.0, 1.0}
        assert_optimal(p, oracle.solve_svm(p.K, p.y, p.C))
        kernels.add((p.kernel, p.params.get("coef0")))
        names.add(p.name)
    assert len(kernels) == 4 and len(names) == 200


@BY_NAME
def test_hard_cases_are_solved(problem):
    assert_optimal(problem, oracle.solve_svm(problem.K, problem.y, problem.C))


def test_random_problems_do_not_depend_on_the_count():
    first = [p.name for p in cases.random_problems(5)]
    assert first == [p.name for p in itertools.islice(cases.random_problems(200), 5)]
    assert cases.random_problem(3).x.tobytes() == cases.random_problem(3).x.tobytes()
    assert cases.random_problem(3, seed=1).x.tobytes() != cases.random_problem(3).x.tobytes()


@pytest.mark.parametrize("C", [1e-2, 1.0, 1e2, 1e4, 1e6])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_wide_range_of_C_without_bias(kernel, C):
    p = small(kernel, n=100, C=C, **({"gamma": 0.5} if kernel == "rbf" else {}))
    assert_optimal(p, oracle.solve_svm(p.K, p.y, C, bias=False), bias=False)


def test_the_fallback_is_exact_too():
    for p in [*SMALL, cases.hard_case("C1e6-separable-rbf"), cases.hard_case("duplicates-opposite-labels-rbf")]:
        dual = oracle._Dual(oracle.signed_kernel(p.K, p.y), oracle.costs(p.y, p.C))
        beta = oracle._active_set(
            dual.solve, lambda b, dual=dual: 1 - dual.margins(b) - b / dual.c, np.zeros(p.n, oracle.LONG), 1e-15, 500
        )
        assert dual.gap(beta, dual.margins(beta)) < tol.ORACLE_GAP
        alpha, R = oracle.simplex_minimum(oracle.kt_matrix(p.K, p.y, p.C))
        truth = oracle.solve_svm(p.K, p.y, p.C)
        assert pytest.approx(truth.R, rel=1e-9) == R
        np.testing.assert_allclose(alpha, truth.alpha, atol=1e-7 * truth.alpha.max())


def test_extended_precision_cholesky():
    hilbert = 1 / (np.arange(12)[:, None] + np.arange(12)[None, :] + 1.0)  # condition number 1.7e16
    x = oracle._long_cholesky_solve(hilbert, np.ones(12))
    assert np.abs(hilbert.astype(oracle.LONG) @ x - 1).max() < 1e-7
    with pytest.raises(np.linalg.LinAlgError):
        oracle._long_cholesky_solve(np.diag([1.0, -1.0]), np.ones(2))


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


def test_identical_points_with_opposite_labels_carry_no_information():
    p = cases.hard_case("identical-points-opposite-labels")
    solution = oracle.solve_svm(p.K, p.y, p.C)
    assert abs(solution.bias) < 1e-14 and np.abs(solution.decision(p.K)).max() < 1e-13
    assert pytest.approx(1 / (p.C * p.n), rel=1e-13) == solution.R  # the lower bound of T17, attained


# ------------------------------------------------------------------------------------------------------------- weights


def test_weight_zero_is_absence_and_integers_are_copies():
    for p in cases.weighted_problems(12):
        solution = oracle.solve_svm(p.K, p.y, p.C, p.weight)
        assert_optimal(p, solution)
        on = np.flatnonzero(p.weight > 0)
        reduced = oracle.solve_svm(p.K[np.ix_(on, on)], p.y[on], p.C, p.weight[on])
        np.testing.assert_allclose(solution.alpha[on], reduced.alpha, rtol=1e-9, atol=1e-15)
    p = small("rbf", gamma=0.3)
    copies = np.random.default_rng(0).integers(0, 4, p.n)
    repeated = np.repeat(np.arange(p.n), copies)
    solution = oracle.solve_svm(p.K, p.y, p.C, copies)
    explicit = oracle.solve_svm(p.K[np.ix_(repeated, repeated)], p.y[repeated], p.C)
    assert pytest.approx(explicit.R, rel=1e-12) == solution.R
    np.testing.assert_allclose(solution.alpha, np.bincount(repeated, explicit.alpha, p.n), atol=1e-13)
    assert solution.relative_gap == oracle.relative_gap_direct(p.K, p.y, p.C, solution.alpha, copies)


# --------------------------------------------------------------------------------------------------------------- peers


def test_liblinear_agrees_at_half_our_C():
    checked = 0
    problems = [p for p in cases.random_problems(64) if p.kernel == "linear" and p.C < 100][:5]
    for p in [*problems, next(p for p in cases.weighted_problems() if p.kernel == "linear")]:
        solution = oracle.solve_svm(p.K, p.y, p.C, p.weight)
        peer = LinearSVC(
            loss="squared_hinge", C=p.C / 2, intercept_scaling=1, dual=False, tol=1e-14, max_iter=100_000
        ).fit(p.x, p.y, sample_weight=p.weight)
        w = p.x.T @ solution.dual_coef
        scale = np.linalg.norm(w) + abs(solution.bias)
        assert np.linalg.norm(w - peer.coef_[0]) < tol.PEER_COEFFICIENTS * scale
        assert abs(solution.bias - peer.intercept_[0]) < tol.PEER_COEFFICIENTS * scale
        h = p.x @ peer.coef_[0] + peer.intercept_[0]
        hinge = np.maximum(0, 1 - p.y * h)
        value = (peer.coef_[0] @ peer.coef_[0] + peer.intercept_[0] ** 2) / 2
        value += (oracle.costs(p.y, p.C, p.weight) / 2 * hinge**2).sum()
        assert value == pytest.approx(solution.optimum, rel=tol.PEER_OBJECTIVE)
        assert value > solution.optimum * (1 - 1e-12)  # nobody beats the optimum
        checked += 1
    assert checked == 6


@ON_SMALL
def test_scipy_agrees(problem):
    p = problem
    truth = oracle.solve_svm(p.K, p.y, p.C)
    Kt = oracle.kt_matrix(p.K, p.y, p.C)
    L = np.linalg.cholesky(Kt)
    beta, _ = scipy.optimize.nnls(L.T, np.linalg.solve(L, np.ones(p.n)), maxiter=10_000)
    np.testing.assert_allclose(p.y * beta, truth.dual_coef, atol=1e-7 * np.abs(truth.dual_coef).max())
    assert 1 / beta.sum() == pytest.approx(truth.R, rel=tol.PEER_OBJECTIVE)

    def primal(v):
        h = p.K @ v[:-1] + v[-1]
        hinge = np.maximum(0, 1 - p.y * h)
        gradient = np.append(p.K @ (v[:-1] - p.C * p.y * hinge), v[-1] - p.C * (p.y * hinge).sum())
        return (v[:-1] @ p.K @ v[:-1] + v[-1] ** 2) / 2 + p.C / 2 * (hinge**2).sum(), gradient

    descent = scipy.optimize.minimize(
        primal, np.zeros(p.n + 1), jac=True, method="L-BFGS-B", options={"maxiter": 20_000, "maxfun": 40_000}
    )
    assert truth.optimum * (1 - 1e-12) < descent.fun < truth.optimum * 1.01


def test_sequential_quadratic_programming_agrees_on_the_simplex():
    for p in (small("rbf", n=25, gamma=0.3), small("linear", n=25)):
        Kt, truth = oracle.kt_matrix(p.K, p.y, p.C), oracle.solve_svm(p.K, p.y, p.C)
        peer = scipy.optimize.minimize(
            lambda a, Kt=Kt, C=p.C: C * a @ Kt @ a,
            np.full(p.n, 1 / p.n),
            jac=lambda a, Kt=Kt, C=p.C: 2 * C * Kt @ a,
            method="SLSQP",
            bounds=[(0, None)] * p.n,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": np.ones_like},
            options={"maxiter": 1000, "ftol": 1e-14},
        )
        assert peer.fun / p.C == pytest.approx(truth.R, rel=1e-7)
        np.testing.assert_allclose(peer.x, truth.alpha, atol=1e-4)


def test_kernels_by_hand():
    x, z = np.array([[1.0, 2.0], [0.0, -1.0]]), np.array([[3.0, 0.5]])
    np.testing.assert_allclose(oracle.linear(x, z)[:, 0], [4.0, -0.5])
    np.testing.assert_allclose(oracle.rbf(x, z, gamma=0.1)[:, 0], np.exp([-0.625, -1.125]))
    np.testing.assert_allclose(oracle.poly(x, z, degree=2, gamma=2.0, coef0=1.0)[:, 0], [81.0, 0.0])
    np.testing.assert_allclose(oracle.laplacian(x, z, gamma=0.1)[:, 0], np.exp([-0.35, -0.45]))
    np.testing.assert_allclose(oracle.sigmoid(x, z, gamma=0.5, coef0=-1.0)[:, 0], np.tanh([1.0, -1.25]))
    for name in oracle.KERNELS:
        K = oracle.kernel_matrix(name, x)
        assert np.array_equal(K, K.T)


# -------------------------------------------------------------------------------------------------------- certificates


@ON_SMALL
def test_certificates_of_arbitrary_points(problem):
    """T6 and T7 away from the optimum: identities and bounds for sparse, dense and weighted points."""
    p, rng = problem, np.random.default_rng(1)
    for trial in range(12):
        weight = None if trial % 2 else rng.uniform(0.2, 2, p.n)
        truth = oracle.solve_svm(p.K, p.y, p.C, weight)
        Kt, c = oracle.kt_matrix(p.K, p.y, p.C, weight), oracle.costs(p.y, p.C, weight)
        noise = rng.exponential(size=p.n) * (rng.random(p.n) < (0.2, 1.0)[trial % 3 == 0])
        alpha = truth.alpha + 10.0 ** (-(trial % 5)) * noise / max(noise.sum(), 1)
        alpha /= alpha.sum()
        s = Kt @ alpha
        R, G = alpha @ s, oracle.fw_gap(Kt, alpha)
        scale = Kt.diagonal().max()
        assert pytest.approx(2 * (R - s.min()), abs=1e-13 * scale) == G
        assert -tol.FW_GAP_BOUND * scale < R - truth.R < G + tol.FW_GAP_BOUND * scale
        P = oracle.margin_primal(p.K, p.y, p.C, alpha, weight)
        assert pytest.approx(G / 2, abs=tol.FW_GAP_BOUND * scale) == P + R / 2
        direct = oracle.relative_gap_direct(p.K, p.y, p.C, alpha, weight)
        assert direct >= R / truth.R - 1 - tol.CERTIFICATE_BOUND
        u, v = R - s, alpha / c
        t = np.where(u + v > 0, u * (u + 2 * v), -(v**2))
        assert (c * t).sum() / R == pytest.approx(direct, abs=tol.CERTIFICATE_FORMULA * (1 + direct))
        coef = p.y * alpha / R
        primal = oracle.svm_primal(p.K, p.y, p.C, coef, coef.sum(), weight)
        dual = oracle.svm_dual(p.K, p.y, p.C, coef, weight)
        assert primal / dual - 1 == pytest.approx(direct, abs=1e-9 * (1 + direct))
        h = p.K @ coef + coef.sum()
        radius = oracle.decision_radius(p.K.diagonal(), direct, truth.optimum)
        assert (np.abs(h - truth.decision(p.K)) <= radius * (1 + 1e-9) + 1e-9).all()
        assert dual <= truth.optimum * (1 + 1e-12) and primal >= truth.optimum * (1 - 1e-12)


def test_the_dual_is_minus_infinity_outside_its_domain():
    K, y = np.eye(2), np.array([1.0, -1.0])
    assert oracle.svm_dual(K, y, 1.0, [-1.0, 0.0]) == -np.inf
    assert oracle.svm_dual(K, y, 1.0, [1.0, -1.0], weight=[1.0, 0.0]) == -np.inf
    assert oracle.svm_dual(K, y, 1.0, [0.0, 0.0]) == 0.0


def test_optimum_as_a_function_of_C():
    for p in SMALL:
        values = [oracle.solve_svm(p.K, p.y, C).R for C in 10.0 ** np.arange(-2, 6.5, 0.5)]
        for C, smaller, larger in zip(10.0 ** np.arange(-2, 6, 0.5), values[1:], values, strict=False):
            assert smaller <= larger * (1 + tol.C_MONOTONE)
            assert 1 / (C * p.n) * (1 - tol.C_MONOTONE) <= larger <= (p.K.diagonal() + 1 + 1 / C).min()


def test_invariances():
    p = small("rbf", gamma=0.4, C=30.0)
    truth, order = oracle.solve_svm(p.K, p.y, p.C), np.random.default_rng(0).permutation(p.n)
    permuted = oracle.solve_svm(p.K[np.ix_(order, order)], p.y[order], p.C)
    np.testing.assert_allclose(permuted.alpha, truth.alpha[order], atol=1e-12)
    flipped = oracle.solve_svm(p.K, -p.y, p.C)
    np.testing.assert_allclose(flipped.alpha, truth.alpha, atol=1e-12)
    np.testing.assert_allclose(flipped.decision(p.K), -truth.decision(p.K), atol=1e-10)
    scaled = oracle.solve_svm(4 * (p.K + 1), p.y, p.C / 4, bias=False)  # Kt scales by 4: same alpha, R times 4
    np.testing.assert_allclose(scaled.alpha, truth.alpha, atol=1e-12)
    assert pytest.approx(4 * truth.R, rel=1e-12) == scaled.R


# ------------------------------------------------------------------------------------------------------ enclosing ball


def ball_problems():
    rng = np.random.default_rng(3)
    angle = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    circle = np.c_[np.cos(angle), np.sin(angle)] * 3 + 5  # co-circular: the weights are not unique
    yield "circle", np.r_[circle, 0.5 * rng.normal(size=(30, 2)) + 5], 9.0
    yield "segment", np.array([[0.0, 0, 0], [4, 0, 0], [1, 0.1, 0], [4, 0, 0]]), 4.0
    yield "one point", np.array([[2.0, 1.0]]), 0.0
    yield "equal points", np.tile([1.5, -2.0], (7, 1)), 0.0
    yield "cube", np.array(list(itertools.product([-1.0, 1], repeat=4))), 4.0
    yield "far away", rng.normal(size=(200, 3)) + 1e4, None
    yield "cloud", rng.normal(size=(400, 10)), None


@pytest.mark.parametrize(
    ("name", "z", "expected"), list(ball_problems()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_enclosing_ball_of_points(name, z, expected):
    alpha, r2 = oracle.solve_meb(z @ z.T)
    assert alpha.min() >= 0 and abs(alpha.sum() - 1) < 1e-12
    centre = alpha @ z
    distance = ((z - centre) ** 2).sum(1)
    spread = ((z - z.mean(0)) ** 2).sum(1).max() + (name == "far away")  # the Gram matrix itself is rounded there
    slack = 1e-6 if name == "far away" else tol.ENCLOSING_BALL_GAP
    assert distance.max() <= r2 + slack * spread + 1e-14
    assert np.abs(distance[alpha > 1e-9] - r2).max() <= 1e4 * slack * spread + 1e-14  # complementary slackness
    if expected is not None:
        assert r2 == pytest.approx(expected, abs=1e-10)


def test_enclosing_ball_of_kernels():
    for p in cases.random_problems(24):
        alpha, r2 = oracle.solve_meb(p.K)
        gap, phi = oracle.meb_gap(p.K, alpha)
        assert gap <= tol.ENCLOSING_BALL_GAP * p.K.diagonal().max()
        assert phi == pytest.approx(r2, rel=1e-10)
        if p.kernel == "rbf":  # constant diagonal: the ball of Kt is the support vector machine
            truth, Kt = oracle.solve_svm(p.K, p.y, p.C), oracle.kt_matrix(p.K, p.y, p.C)
            alpha, r2 = oracle.solve_meb(Kt)
            assert r2 == pytest.approx(Kt[0, 0] - truth.R, rel=1e-12)
            assert alpha @ Kt @ alpha == pytest.approx(truth.R, rel=1e-4)


def test_enclosing_ball_is_another_problem_when_the_diagonal_varies():
    p = small("poly", degree=2, gamma=1.0, coef0=1.0)
    Kt = oracle.kt_matrix(p.K, p.y, p.C)
    alpha, _ = oracle.solve_meb(Kt)
    truth = oracle.solve_svm(p.K, p.y, p.C)
    assert alpha @ Kt @ alpha > 2 * truth.R
    ball = np.mean(np.sign((p.K + 1) @ (p.y * alpha)) == p.y)
    assert ball < np.mean(np.sign(truth.decision(p.K)) == p.y) - 0.05


# ------------------------------------------------------------------------------------------------ reference iterations


def uniform_start(n, size=20, seed=0):
    alpha = np.zeros(n)
    alpha[np.random.default_rng(seed).choice(n, size, replace=False)] = 1 / size
    return alpha


@pytest.mark.parametrize("variant", ["fw", "mfw", "pfw", "smo"])
@pytest.mark.parametrize("problem", SMALL[:1] + SMALL[2:5], ids=SMALL_IDS[:1] + SMALL_IDS[2:5])
def test_reference_steps(problem, variant):
    """T1 to T6, T8 to T10, T12 on every step of a run."""
    p = problem
    Kt, truth = oracle.kt_matrix(p.K, p.y, p.C), oracle.solve_svm(p.K, p.y, p.C)
    D, diameter, R_star = Kt.diagonal(), oracle.diam2(Kt), truth.R
    delta2 = D.max()
    start = uniform_start(p.n)
    alpha, R = start, start @ Kt @ start
    h0, best_gap, good, toward, drops = R - R_star, np.inf, 0, 0, 0
    rng = np.random.default_rng(0)
    for step in oracle.reference_steps(Kt, start, variant, 2000):
        best_gap = min(best_gap, step.gap)
        assert step.alpha.min() >= 0 and abs(step.alpha.sum() - 1) < tol.SIMPLEX_SUM
        assert tol.MONOTONE * delta2 >= step.R - R
        assert -tol.FW_GAP_BOUND * delta2 < R - R_star < step.gap + tol.FW_GAP_BOUND * delta2
        if variant != "smo":
            assert step.gap <= step.slope * (1 + 1e-9) + 1e-12 * delta2  # the chosen direction is at least as steep
        if not step.clipped:
            decrease = R - step.R
            assert abs(decrease - step.slope**2 / (4 * step.q)) < tol.STEP_DECREASE * delta2
            assert decrease >= step.gap**2 / (4 * diameter) - tol.STEP_DECREASE * delta2
        if rng.random() < 0.02:  # the line search against a scalar minimiser
            bound = {"toward": 1.0}.get(step.kind, alpha[step.j])
            if step.kind in ("away", "drop"):
                bound = alpha[step.j] / (1 - alpha[step.j])
            direction = np.zeros(p.n)
            if step.i >= 0:
                direction[step.i] += 1
            if step.j >= 0:
                direction[step.j] -= 1
            direction += {"toward": -1, "away": 1, "drop": 1}.get(step.kind, 0) * alpha
            curve = scipy.optimize.minimize_scalar(
                lambda t, a=alpha, d=direction: 2 * t * (d @ Kt @ a) + t * t * (d @ Kt @ d),
                bounds=(0, bound),
                method="bounded",
                options={"xatol": 1e-12 * bound},
            )
            assert step.lam == pytest.approx(curve.x, abs=10 * tol.LINE_SEARCH * bound)
            np.testing.assert_allclose(step.alpha, alpha + step.lam * direction, atol=1e-14)
        toward += step.kind == "toward"
        drops += step.kind in ("drop", "swap")
        if step.kind in ("drop", "swap"):
            assert step.alpha[step.j] == 0
        good += not step.clipped
        alpha, R = step.alpha, step.R
        assert tol.SUBLINEAR * diameter >= R - R_star - 4 * diameter / (good + 4 * diameter / h0)
        if good:
            assert best_gap <= 8 * diameter / good
        if variant in ("fw", "mfw"):
            assert np.count_nonzero(alpha) <= 20 + toward - drops
            assert drops <= 20 + toward
    assert pytest.approx(alpha @ Kt @ alpha, rel=tol.DRIFT) == R
    np.testing.assert_allclose(step.s, Kt @ alpha, atol=tol.DRIFT * R)
    assert good > 100


def test_recomputed_reference_steps_are_the_same_iterates():
    p = SMALL[0]
    Kt = oracle.kt_matrix(p.K, p.y, p.C)
    for variant in ("fw", "mfw", "pfw", "smo"):
        plain = oracle.reference_steps(Kt, uniform_start(p.n), variant, 300)
        exact = oracle.reference_steps(Kt, uniform_start(p.n), variant, 300, recompute=True)
        for a, b in zip(plain, exact, strict=True):
            assert (a.i, a.j, a.kind) == (b.i, b.j, b.kind)
            np.testing.assert_allclose(a.alpha, b.alpha, atol=1e-12)


def test_second_order_pairs_reach_the_optimum():
    for p in SMALL[:3] + SMALL[4:]:
        Kt, truth = oracle.kt_matrix(p.K, p.y, p.C), oracle.solve_svm(p.K, p.y, p.C)
        *_, last = oracle.reference_steps(Kt, uniform_start(p.n), "smo", 10_000)
        assert 1 - 1e-12 <= last.alpha @ Kt @ last.alpha / truth.R <= 1 + 1e-3


def test_published_formulas_are_the_canonical_steps():
    """T19: the paper's formulas by radii, and the misprint of the radius after an away step."""
    worst = 0.0
    for C, gamma in ((1.0, 0.3), (100.0, 0.3), (10.0, 2.0)):
        p = small("rbf", n=150, C=C, gamma=gamma)
        Kt, start = oracle.kt_matrix(p.K, p.y, C), uniform_start(p.n)
        for variant in ("fw", "mfw"):
            canonical = oracle.reference_steps(Kt, start, variant, 500)
            published = oracle.published_steps(Kt, start, variant, 500)
            for a, b in zip(canonical, published, strict=True):
                assert (a.i, a.j, a.kind) == (b.i, b.j, b.kind)
                np.testing.assert_allclose(b.alpha, a.alpha, atol=tol.PUBLISHED_FORM)
                assert pytest.approx(a.R, abs=tol.RADIUS_FORMULA * Kt[0, 0]) == b.R
                assert a.lam < 0.5 or a.kind != "toward"
        for step in oracle.published_steps(Kt, start, "mfw", 500, printed_sign=True):
            wrong = abs(step.R - step.alpha @ Kt @ step.alpha)
            if step.kind in ("away", "drop"):
                worst = max(worst, wrong)
                break
            assert wrong < 1e-12
    assert worst > 1e-3  # the printed sign breaks the radius at the first away step


def test_published_formulas_need_a_constant_diagonal():
    with pytest.raises(ValueError):
        next(oracle.published_steps(np.diag([1.0, 2.0]), np.full(2, 0.5), "fw", 1))


def test_frank_wolfe_meets_the_paper_rule_within_its_bound():
    """T11 and T14."""
    eps = 0.02
    for C in (1.0, 100.0):
        p = small("rbf", n=150, C=C, gamma=0.3)
        Kt = oracle.kt_matrix(p.K, p.y, C)
        delta2, truth = Kt[0, 0], oracle.solve_svm(p.K, p.y, C)
        start = oracle.two_point_start(Kt.diagonal(), 0, Kt[:, 0])
        r2_0 = delta2 - start @ Kt @ start
        assert r2_0 >= oracle.diam2(Kt) / 16
        r2 = r2_0
        covered, taken = start, 0
        for step in oracle.reference_steps(Kt, start, "fw", int(64 / eps) + 2):
            if step.gap <= (2 * eps + eps**2) * r2:
                break
            covered, r2, taken = step.alpha, delta2 - step.R, taken + 1
        assert taken <= 64 / eps + 1
        distance = delta2 + covered @ Kt @ covered - 2 * Kt @ covered
        assert distance.max() <= (1 + eps) ** 2 * r2 + tol.COVERED_BALL * delta2
        assert r2 <= delta2 - truth.R + tol.COVERED_BALL * delta2


def test_core_vector_machine():
    """T13: strictly growing radius, no vertex twice, at most 2/eps rounds; and the core set's own optimum is exact."""
    eps = 1e-3
    for p in (small("rbf", n=150, C=10.0, gamma=0.3), small("rbf", n=150, C=1e3, gamma=0.3), SMALL[2]):
        Kt, truth = oracle.kt_matrix(p.K, p.y, p.C), oracle.solve_svm(p.K, p.y, p.C)
        steps = list(oracle.cvm_steps(Kt, range(20), eps))
        assert 1 < len(steps) <= np.ceil(2 / eps)
        assert all(a.R > b.R for a, b in itertools.pairwise(steps))
        assert len(set(steps[-1].core)) == len(steps[-1].core) == 20 + len(steps) - 1
        last = steps[-1]
        idx = np.array(last.core)
        assert pytest.approx(oracle.solve_svm(p.K[np.ix_(idx, idx)], p.y[idx], p.C).R, rel=1e-9) == last.R
        delta2 = Kt.diagonal().max()
        assert truth.R <= last.R <= truth.R + (2 * eps + eps**2) * delta2
        exact = list(oracle.cvm_steps(Kt, range(20), 1e-15))[-1]
        assert pytest.approx(truth.R, rel=1e-8) == exact.R


# ---------------------------------------------------------------------------------------------------------- statistics


def test_published_table():
    speedup = cases.PUBLISHED_TIME[:, :1] / cases.PUBLISHED_TIME[:, 1:]
    change = cases.PUBLISHED_ACCURACY[:, 1:] - cases.PUBLISHED_ACCURACY[:, :1]
    assert len(cases.PUBLISHED_SETS) == 26
    np.testing.assert_allclose(np.exp(np.log(speedup).mean(0)), [5.7, 5.5], atol=0.05)
    np.testing.assert_allclose(np.median(speedup, axis=0), [3.5, 5.6], atol=0.06)
    assert list((speedup > 1).sum(0)) == [21, 23]
    np.testing.assert_allclose(change.mean(0), [-0.66, -0.41], atol=0.005)
    assert list((change < -1).sum(0)) == [6, 4]


def test_wilcoxon_reproduces_the_paper():
    """What the paper prints and its table does not support is asserted at the recomputed value."""
    time, accuracy = cases.PUBLISHED_TIME.T, cases.PUBLISHED_ACCURACY.T
    expected = [
        (time[1], time[0], "less", 17, 3.1e-6),
        (time[2], time[0], "less", 20, 5.5e-6),
        (time[1], time[2], "two-sided", 159, 0.689),
        (accuracy[1], accuracy[0], "less", 19, 4.98e-6),
        (accuracy[2], accuracy[0], "less", 48.5, 3.6e-4),  # printed 3.2e-4
        (accuracy[1], accuracy[2], "less", 59, 1.23e-3),  # printed W 63.5, p 1.2e-3
    ]
    for a, b, alternative, statistic, p in expected:
        result = oracle.wilcoxon(a, b, alternative)
        assert result.statistic == statistic
        assert result.p == pytest.approx(p, rel=tol.PRINTED_P)
    assert [oracle.wilcoxon(accuracy[a], accuracy[b]).zeros for a, b in ((1, 0), (2, 0), (1, 2))] == [1, 1, 2]


def test_wilcoxon_agrees_with_scipy_and_with_enumeration():
    rng = np.random.default_rng(0)
    for alternative in ("less", "greater", "two-sided"):
        a, b = rng.normal(size=(2, 15))
        ours, theirs = oracle.wilcoxon(a, b, alternative), scipy.stats.wilcoxon(a, b, alternative=alternative)
        assert ours.p == pytest.approx(theirs.pvalue, rel=1e-12)
    d = np.array([0.0, 1, -1, 2, 2, 0, -3, 4, 1])  # ties and zeros: against all sign patterns
    ranks = scipy.stats.rankdata(np.abs(d))
    sums = [ranks[d != 0] @ np.array(signs) for signs in itertools.product([0, 1], repeat=7)]
    assert oracle.wilcoxon(d, 0 * d, "greater").p == pytest.approx(np.mean(sums >= ranks[d > 0].sum()))


def test_friedman_reproduces_the_paper():
    """Frandi et al., Friedman tests: F = 14.858 for time, and both printed p-values are twice the tail of F(2, 50)."""
    time = oracle.friedman(cases.PUBLISHED_TIME)
    np.testing.assert_allclose(time.ranks, [2.69, 1.77, 1.54], atol=5e-3)
    assert pytest.approx(14.858, abs=2 * tol.PRINTED_STATISTIC) == time.F
    assert time.p == pytest.approx(8.62e-6, rel=1e-3)
    assert 2 * time.p == pytest.approx(1.72e-5, rel=5e-3)
    assert scipy.stats.f.sf(11.879, 2, 50) == pytest.approx(6.01e-5, rel=1e-3)
    assert 2 * scipy.stats.f.sf(11.879, 2, 50) == pytest.approx(1.2e-4, rel=5e-3)
    assert pytest.approx(10.75, abs=5e-3) == oracle.friedman(cases.PUBLISHED_ACCURACY).F
    assert pytest.approx(11.54, abs=5e-3) == oracle.friedman(cases.PUBLISHED_ACCURACY, tie_correction=True).F
    plain = scipy.stats.friedmanchisquare(*cases.PUBLISHED_TIME.T)
    assert time.chi2 == pytest.approx(plain.statistic, rel=1e-12)


def test_sampling_numbers():
    """59 draws hit the best 5 % with probability 0.9515; 77 and 90 draws for 98 % and 99 %."""
    assert pytest.approx(0.9515, abs=5e-5) == 1 - 0.95**59
    assert 1 - scipy.stats.hypergeom.pmf(0, 2000, 100, 59) == pytest.approx(0.9537, abs=5e-5)
    for draws, confidence in ((59, 0.95), (77, 0.98), (90, 0.99)):
        assert 1 - 0.95**draws >= confidence > 1 - 0.95 ** (draws - 1)
    assert tol.SAMPLING_BAND[0] < 1 - 0.95**59 < tol.SAMPLING_BAND[1]
