"""Derivatives of float32 fits with x64 off, as most callers have it, against those of float64: right, or NaN."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsvm
from jaxsvm import SMO, InteriorPoint, implicit
from jaxsvm.kernels import RBF, Linear, Precomputed
from jaxsvm.loop.differentiation import differentiable
from jaxsvm.solvers.simplex.newton import Newton

pytestmark = pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning", "ignore::jaxsvm.PrecisionWarning")
N, D = 60, 3


@functools.cache
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D))
    y = np.where(x[:, 0] + 0.5 * rng.normal(size=N) > 0, 1.0, -1.0)
    x, move, new = (values.astype(np.float32) for values in (x, rng.normal(size=(N, D)), rng.normal(size=(20, D))))
    return x, move, y, new, rng.normal(size=20).astype(np.float32), rng.normal(size=N).astype(np.float32)


def build(theta, C, loss, kernel, bias):
    x, move, y, *_ = data()
    points = jnp.asarray(x, theta.dtype) + theta[2] * move.astype(theta.dtype)
    gram = jaxsvm.gram(RBF(0.3 * jnp.exp(theta[1])) if kernel == "rbf" else Linear(), points)
    make = jaxsvm.svm_problem if loss == "squared hinge" else jaxsvm.hinge_problem
    return make(gram, y, C * jnp.exp(theta[0]), bias=bias)


def measure(fit, problem):
    _, _, _, new, u, v = (values.astype(problem.dtype) for values in data())
    held_out = jnp.tanh(jaxsvm.decision_function(fit, problem, new) / 3) @ u
    return jnp.stack([held_out, fit.bias, fit.margins @ v, fit.certificate.dual])


def solver(loss, dtype):
    exact = dtype == np.float64
    if loss == "squared hinge":
        return Newton(tol=1e-12 if exact else 1e-5)
    return InteriorPoint(tol=1e-11 if exact else 1e-5)


def fitted(theta, *case):
    problem = build(theta, *case)
    return measure(jaxsvm.fit(problem, solver(case[1], theta.dtype)), problem)


@functools.cache
def truth(*case):
    with jax.enable_x64(True):
        return np.asarray(jax.jacfwd(fitted)(jnp.zeros(3), *case))


def assert_close(found, case, tolerances):
    expected = truth(*case)
    error = np.abs(np.asarray(found) - expected).max(axis=-1) / np.abs(expected).max(axis=-1)
    assert (error <= tolerances).all(), error


# Of held-out values: a cotangent of the points is a sum of 180 numbers of about C, each rounded. Of margins: those
# of a fit that stalls are off by themselves; and the entries of a stored kernel matrix are rounded.
CLOSE = {1.0: (1e-4, 1e-5, 1e-5, 1e-5), 1e3: (2e-3, 1e-4, 2e-4, 3e-4), 1e5: (1e-1, 3e-4, 3e-2, 5e-4)}
ALWAYS = [("hinge", "linear", "regularized")]
"""One compiles for half a minute; those of the squared hinge in float32 have a default test in test_implicit.py."""
KINDS = [(loss, kernel, bias) for loss in ("hinge", "squared hinge") for kernel in ("linear", "rbf")
         for bias in ("regularized", "free")]  # fmt: skip
every_kind = pytest.mark.parametrize(
    "kind", [kind if kind in ALWAYS else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS], ids=" ".join
)


@pytest.mark.thorough  # of `make test-core`
@every_kind
@pytest.mark.parametrize(
    "C", [pytest.param(1.0, marks=pytest.mark.slow), 1e3, pytest.param(1e5, marks=pytest.mark.slow)]
)
def test_both_modes_agree_with_float64(kind, C):
    case = (C, *kind)
    truth(*case)
    with jax.enable_x64(False):
        at = jnp.zeros(3, jnp.float32)
        for mode in (jax.jacfwd, jax.jacrev):
            assert_close(mode(fitted)(at, *case), case, CLOSE[C])


@pytest.mark.thorough
def test_the_truth_agrees_with_differences():
    case = (1e5, "hinge", "linear", "regularized")
    # Dual coefficients of 1e5 leave 1e-9 of rounding in a held-out value: a shorter step would measure that.
    with jax.enable_x64(True):
        step = 1e-4 * jnp.array([0.0, 0.0, 1.0])
        expected = (fitted(step, *case) - fitted(-step, *case)) / 2e-4
    np.testing.assert_allclose(truth(*case)[:, 2], expected, rtol=1e-4)


@pytest.mark.slow
def test_the_direction_that_was_wrong():
    """Of a linear kernel at C = 1e5 what is known exactly is exact: bias, margins and value, in both modes."""
    case = (1e5, "hinge", "linear", "free")
    truth(*case)
    with jax.enable_x64(False):
        at = jnp.zeros(3, jnp.float32)
        assert_close(jax.jacfwd(fitted)(at, *case), case, (1e-3, 1e-6, 1e-6, 1e-6))
        assert_close(jax.jacrev(fitted)(at, *case), case, (2e-2, 1e-6, 1e-6, 1e-6))


@pytest.mark.slow
def test_lanes_in_a_compiled_function():
    """Lanes of fits, differentiated; and the points of one problem under a batch of directions."""
    Cs = [1.0, 1e3, 1e5]
    expected = [truth(C, "hinge", "rbf", "free")[1] for C in Cs]

    def gradient(C):
        def bias(theta):
            problem = build(theta, C, "hinge", "rbf", "free")
            return jaxsvm.fit(problem, SMO(tol=1e-4)).bias

        return jax.grad(bias)(jnp.zeros(3, jnp.float32))

    with jax.enable_x64(False):
        found = jax.jit(jax.vmap(gradient))(jnp.asarray(Cs, jnp.float32))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4 * np.abs(other).max())


@pytest.mark.slow
def test_second_derivatives():
    def curvature(theta):
        fit = implicit.solution(build(theta, 1e3, "squared hinge", "rbf", "regularized"))
        return fit.bias + fit.certificate.dual / 1e3

    expected = jax.hessian(curvature)(jnp.zeros(3))
    with jax.enable_x64(False):
        at = jnp.zeros(3, jnp.float32)
        for mode in (jax.hessian, lambda f: jax.jacrev(jax.jacfwd(f))):
            np.testing.assert_allclose(mode(curvature)(at), expected, atol=1e-3 * np.abs(expected).max())


@pytest.mark.slow
def test_coefficients_that_are_too_coarse_have_no_derivative_but_margins_do():
    """Points that coincide with different labels have coefficients of C, whatever it is: at 1e8 no digit is left."""
    x, _, y, *_, v = data()
    x, signs = np.concatenate([x[:20], x[:20]]), np.concatenate([y[:20], -y[:20]])
    K = np.exp(-0.3 * ((x[:, None] - x) ** 2).sum(-1))

    def of(measured):
        def function(scale):
            problem = jaxsvm.hinge_problem(jaxsvm.gram(Precomputed(), jnp.asarray(K)), signs, 1e8 * scale)
            return measured(jaxsvm.fit(problem, InteriorPoint(tol=1e-3)))

        return float(jax.grad(function)(jnp.float32(1.0)))

    with jax.enable_x64(False):
        assert np.isnan(of(lambda fit: fit.dual_coef @ K[0]))
        assert np.isfinite(of(lambda fit: fit.margins @ v[:40]))


@pytest.mark.thorough
def test_a_fit_without_sets_has_no_derivative():
    """A point that no active set stands on: sixteen corrections of a wrong one do not end, or end at the right one."""
    case = (1e3, "hinge", "rbf", "regularized")
    exact = truth(*case)[2]
    with jax.enable_x64(False):
        at = jnp.zeros(3, jnp.float32)
        far = jaxsvm.fit(build(at, 0.01, *case[1:]), SMO(tol=1e-3))

        def margins(theta):
            return differentiable(build(theta, *case), far).margins @ data()[5]

        found = jax.jacfwd(margins)(at)
    assert np.isnan(found).all() or np.abs(found - exact).max() <= 1e-3 * np.abs(exact).max()
