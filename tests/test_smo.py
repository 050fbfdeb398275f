"""SMO on hinge problems and on boxes in general, against exact solutions and scikit-learn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import oracle_hinge as truth
import pytest

import jaxsvm
from jaxsvm import SMO, box_problem, hinge_problem
from jaxsvm.kernels import RBF, Precomputed
from jaxsvm.loop.driver import fit_compiled

N = 60
data = functools.cache(truth.noisy)
TIGHT = 1e-9
# A free bias is an equality, which needs pairs.
SETTINGS = [(2, "none"), (2, "free"), (1, "none")] + [
    pytest.param(variables, "regularized", marks=pytest.mark.slow) for variables in (1, 2)
]
every_setting = pytest.mark.parametrize(("variables", "bias"), SETTINGS)


@functools.cache
def exact(C=2.0, bias="none"):
    _, y, K = data()
    return truth.hinge_solution(K, y, C, bias)


@functools.partial(jax.jit, static_argnames="bias")
def solve(K, y, C, weight, solver, bias):
    here = hinge_problem(jaxsvm.gram(Precomputed(), K), y, C, bias=bias, sample_weight=weight)
    return fit_compiled(here, solver, jax.random.key(0))


def assert_certified(fit, wanted, tol):
    """The bounds hold the optimum, and the gap is what they say."""
    certificate = jax.tree.map(float, fit.certificate)
    assert fit.status.name == "CONVERGED"
    assert certificate.relative_gap <= tol
    rounding = 1e-11 * abs(wanted.optimum)  # what the oracle may be off by
    assert certificate.dual <= wanted.primal + rounding
    assert certificate.primal >= wanted.dual - rounding
    assert (certificate.primal - certificate.dual) <= (tol + 1e-12) * abs(certificate.dual)


# --- the exact solution


@every_setting
@pytest.mark.parametrize("C", [0.05, 2.0, 300.0])
def test_17_objective_is_that_of_the_exact_solver(variables, bias, C):
    """1e-6 against a QP solver; and bounds on alpha and a gap that is no less than 0."""
    _, y, K = data()
    fit = solve(K, y, C, np.ones(N), SMO(variables=variables, tol=TIGHT), bias)
    wanted = exact(C, bias)
    assert_certified(fit, wanted, TIGHT)
    assert float(fit.certificate.dual) == pytest.approx(wanted.optimum, rel=1e-6)
    a = np.asarray(fit.alpha)
    assert (a >= 0).all()
    assert (a <= C).all()
    assert bias != "free" or abs(y @ a) <= 1e-12 * C * N
    # The certificate is that of the definitions.
    assert truth.hinge_dual(K, y, a, bias) == pytest.approx(float(fit.certificate.dual), rel=1e-11)
    decision = K @ np.asarray(fit.dual_coef) + float(fit.bias)
    square = 2 * wanted.optimum * TIGHT  # of the distance to w*, by strong convexity: 1/2 |w - w*|^2 <= gap
    constant = 0.0 if bias == "none" else 2.0
    size = np.sqrt(square) * np.sqrt(K.max() + constant) * (10 if bias == "free" else 1)
    assert np.abs(decision - y * wanted.margins).max() <= size
    np.testing.assert_allclose(fit.margins, y * decision, atol=1e-9)


# --- boxes in general


@jax.jit
def _box(K, q, upper, y, c, e):
    here = box_problem(jaxsvm.gram(Precomputed(), K), q, upper, y=y, c=c, e=e)
    return fit_compiled(here, SMO(tol=1e-8), jax.random.key(0))


@pytest.mark.parametrize("equality", [True, False])
def test_17_random_boxes(equality):
    """Random q, U (with zeros), signs, c (both signs and sizes) and a reachable e."""
    rng = np.random.default_rng(5)
    for _ in range(8):
        x = rng.normal(size=(N, 3))
        K = x @ x.T + 0.1 * np.eye(N) if rng.random() < 0.5 else oracle.kernel_matrix("rbf", x, gamma=0.3)
        q, upper = rng.normal(size=N) + 0.5, rng.uniform(0.1, 2, N) * (rng.random(N) < 0.8)
        y = rng.choice([-1.0, 1.0], N)
        c = rng.choice([-1.0, 1.0], N) * rng.uniform(0.3, 3, N)
        e = float(c @ (upper * rng.random(N)))
        Q = np.outer(y, y) * K
        wanted = truth.box_solution(Q, q, upper, *((c, e) if equality else ()))
        fit = _box(K, q, upper, y, *((c, e) if equality else (None, 0.0)))
        assert_certified(fit, wanted, 1e-8)
        a = np.asarray(fit.alpha)
        assert (a >= 0).all()
        assert (a <= upper).all()
        assert not equality or abs(c @ a - e) <= 1e-12 * (np.abs(c) @ upper)


@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")  # at e = 0 the optimum is 0: no relative gap
def test_one_class_machine_on_the_host_with_e_at_its_bounds():
    """`c'a = e` leaves one point where e is what the box can reach at the most."""
    _, _, K = data()
    gram = jaxsvm.gram(Precomputed(), K)
    for e in (0.0, float(N)):
        here = box_problem(gram, np.zeros(N), 1.0, c=1.0, e=e)
        fit = jaxsvm.fit(here, SMO(tol=1e-6, max_steps=1000))
        np.testing.assert_allclose(fit.alpha, e / N, atol=1e-14)
        assert float(fit.certificate.dual) <= -(e**2) * K.mean() / 2 * (1 - 1e-12)
        assert float(fit.certificate.primal) >= -(e**2) * K.mean() / 2 * (1 + 1e-12)


# --- hard settings


def hard_settings():
    """By name: K, y, C, weight; all with n = 60, which spares compilations."""
    rng = np.random.default_rng(7)
    x, y, K = data()
    half = np.repeat(np.arange(N // 2), 2)
    apart = np.concatenate([x[:30] + 8, x[30:] - 8])
    raw = 1e3 * x + 1e4
    one_each = np.zeros(N)
    one_each[[int(np.argmax(y > 0)), int(np.argmax(y < 0))]] = 1.0
    rare = np.where(np.arange(N) == 7, 1.0, -1.0)
    return {
        "C=1e6": (K, y, 1e6, None),
        "C=1e6, linear, separable": (apart @ apart.T, np.repeat([1.0, -1.0], 30), 1e6, None),
        "opposite duplicates": (K[np.ix_(half, half)], np.tile([1.0, -1.0], 30), 100.0, None),
        "opposite duplicates, C=1e6": (K[np.ix_(half, half)], np.tile([1.0, -1.0], 30), 1e6, None),
        "identical points": (np.ones((N, N)), np.tile([1.0, -1.0], 30), 1.0, None),
        "1 to 1000": (K, rare, 10.0, np.where(rare > 0, 1.0, 1000 / 59)),
        "unscaled": (raw @ raw.T, y, 1e-6, None),
        "one sample a class": (K, y, 10.0, one_each),
        "weights over 12 decades": (K, y, 1.0, 10.0 ** rng.uniform(-6, 6, N)),
    }


@pytest.mark.parametrize("bias", ["none", "free"])
@pytest.mark.parametrize("name", hard_settings())
def test_hard_settings_end_certified(name, bias):
    K, y, C, weight = hard_settings()[name]
    fit = solve(K, y, C, np.ones(N) if weight is None else weight, SMO(tol=1e-6, max_steps=1_000_000), bias)
    wanted = truth.hinge_solution(K, y, C, bias, weight, accuracy=1e-6)
    assert_certified(fit, wanted, 1e-6)
    assert float(fit.certificate.dual) == pytest.approx(wanted.optimum, rel=2e-6)


# --- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.ones(3)}, "q has shape"),
        ({"q": 1.0}, "q has shape"),
        ({"q": np.full(N, np.nan)}, "q has 60 value"),
        ({"upper": np.ones(3)}, "upper has shape"),
        ({"upper": -1.0}, "upper holds -1.0"),
        ({"upper": np.inf}, "upper has 1 value"),
        ({"y": np.ones(3)}, "y has shape"),
        ({"y": np.full(N, 0.5)}, "y holds the values"),
        ({"c": np.ones(3)}, "c has shape"),
        ({"c": np.where(np.arange(N) == 3, 0.0, 1.0)}, "c holds"),
        ({"e": 1.0}, "e is 1.0 without c"),
        ({"c": 1.0, "e": 61.0}, "e is 61.0"),
        ({"c": 1.0, "e": -1.0}, "e is -1.0"),
        ({"c": 1.0, "e": float("nan")}, "e is nan"),
    ],
)
def test_bad_boxes_are_refused(change, message):
    _, _, K = data()
    arguments = {"q": np.ones(N), "upper": 1.0} | change
    with pytest.raises(jaxsvm.InputError, match=message):
        box_problem(jaxsvm.gram(Precomputed(), K), arguments.pop("q"), arguments.pop("upper"), **arguments)


@pytest.mark.parametrize("q", [-1.0, 0.0])
def test_a_problem_whose_answer_is_nothing_is_answered(q):
    """P = D = 0 is a proof, though no share of D can be asked for."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    fit = jaxsvm.fit(jaxsvm.box_problem(jaxsvm.gram(RBF(1.0), x), np.full(40, q), 1.0))
    assert fit.status == jaxsvm.Status.CONVERGED
    assert not np.asarray(fit.alpha).any()
    assert float(fit.certificate.primal) == float(fit.certificate.dual) == 0
    assert float(fit.certificate.relative_gap) < 1e-12


def test_a_nu_machine_without_a_margin_has_numbers():
    """Equal points of both classes: coefficients are over a margin of rounding, not over the least number."""
    x, y = np.ones((40, 2), np.float32), np.where(np.arange(40) % 3 == 0, 1.0, -1.0)
    fit = jaxsvm.fit(jaxsvm.nu_problem(jaxsvm.gram(RBF(1.0), x), y, 0.3))
    assert fit.status != jaxsvm.Status.CONVERGED
    assert all(np.isfinite(np.asarray(part)).all() for part in (fit.alpha, fit.dual_coef, fit.bias, fit.margins))


@pytest.mark.parametrize("free", [False, True])
def test_the_running_excess_is_the_gap(free):
    """`(P - D) / D / tol` of a point inside by NumPy, with b between the pulls: the driver ends a fit's steps by it."""
    _, y, K = data()
    Q, c = truth.signed(K, y), y * np.linspace(0.5, 1.5, N) if free else None
    a = np.random.default_rng(0).random(N)
    a *= a.sum() / (a @ Q @ a)  # the dual value is positive
    here = box_problem(jaxsvm.gram(Precomputed(), K), np.ones(N), 2.0, y=y, c=c, e=c @ a if free else 0.0)
    pulls = (1 - Q @ a) / c if free else np.zeros(N)
    shift = (pulls.max() + pulls.min()) / 2 * (c if free else np.zeros(N))
    dual = a.sum() - a @ Q @ a / 2
    primal = a @ Q @ a / 2 + shift @ a + 2.0 * np.maximum(0, 1 - Q @ a - shift).sum()
    assert dual > 0 and a.max() < 2
    solver = SMO(variables=1 + free, tol=0.25)
    excess = solver.running_excess(here, solver.init(here, None, jnp.asarray(a)))
    assert float(excess) == pytest.approx((primal - dual) / dual / 0.25, rel=1e-9)
