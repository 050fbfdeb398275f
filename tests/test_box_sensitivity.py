"""Derivatives of hinge solutions: free samples move, bounded ones stay at their bound."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle_hinge import parabola

import jaxsvm
from jaxsvm import SMO, implicit
from jaxsvm.kernels import RBF, Linear, Precomputed
from jaxsvm.results.fit import Active

STEP = 1e-5
CLOSE = 1e-5
U = np.random.default_rng(1).normal(size=60)


data = functools.cache(parabola)


def by_C_and_gamma(theta, bias):
    return jaxsvm.hinge_problem(jaxsvm.gram(RBF(gamma=theta[1]), data()[0]), data()[1], theta[0], bias=bias)


def by_weights(theta, bias):
    return jaxsvm.hinge_problem(jaxsvm.gram(RBF(0.5), data()[0]), data()[1], 2.0, bias=bias, sample_weight=theta)


def by_points(theta, bias):
    return jaxsvm.hinge_problem(jaxsvm.gram(RBF(0.5), theta, tile=32), data()[1], 2.0, bias=bias)


def by_entries(theta, bias):
    return jaxsvm.hinge_problem(jaxsvm.gram(Precomputed(), (theta + theta.T) / 2), data()[1], 2.0, bias=bias)


CASES = {
    "C and gamma": (by_C_and_gamma, np.array([3.0, 0.5])),
    "weights": (by_weights, np.linspace(0.5, 1.5, 60)),
    "points": (by_points, data()[0]),
    "kernel entries": (by_entries, np.exp(-0.5 * ((data()[0][:, None] - data()[0]) ** 2).sum(-1))),
}


def loss(fit):
    return jnp.tanh(fit.margins @ U / 5) + fit.bias + fit.dual_coef @ U / 50


OFTEN = [("C and gamma", "none")]
"""Each compiles a hundred programs of its own."""
RARER = [(name, bias) for name in CASES for bias in ("free", "regularized", "none") if (name, bias) not in OFTEN]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "bias"), [*OFTEN, *(pytest.param(*case, marks=pytest.mark.slow) for case in RARER)])
def test_both_modes_agree_with_differences_of_fits(name, bias):
    build, theta = CASES[name]
    rng = np.random.default_rng(2)
    u = rng.normal(size=theta.shape)
    u = u / np.linalg.norm(u)

    def solved(theta):
        return loss(jaxsvm.fit(build(theta, bias), SMO(tol=1e-13, max_steps=100_000)))

    def exact(theta):
        return loss(implicit.solution(build(theta, bias)))

    with_differences = float(exact(theta + STEP * u) - exact(theta - STEP * u)) / (2 * STEP)
    direct = float(solved(theta + STEP * u) - solved(theta - STEP * u)) / (2 * STEP)
    assert direct == pytest.approx(with_differences, rel=1e-3, abs=1e-6)  # a fit to 1e-13 is off by its root
    for function in (solved, exact):
        forward = float(jax.jvp(function, (theta,), (u,))[1])
        assert forward == pytest.approx(with_differences, rel=CLOSE, abs=1e-8)
        assert float(np.vdot(jax.grad(function)(theta), u)) == pytest.approx(forward, rel=1e-7, abs=1e-10)


@pytest.mark.slow
def test_second_derivatives():
    def value(theta):
        return loss(implicit.solution(by_C_and_gamma(theta, "free")))

    at = CASES["C and gamma"][1]
    gradient = jax.jit(jax.grad(value))
    expected = [(gradient(at + e) - gradient(at - e)) / (2 * STEP) for e in STEP * np.eye(2)]
    np.testing.assert_allclose(jax.jit(jax.hessian(value))(at), expected, rtol=CLOSE, atol=1e-7)


@pytest.mark.thorough
def test_the_optimal_value_by_the_envelope_theorem():
    def value(theta, bias):
        return jaxsvm.fit(by_C_and_gamma(theta, bias), SMO(tol=1e-12)).certificate.dual

    at = CASES["C and gamma"][1]
    for bias in ("free", "none"):
        expected = [(value(at + e, bias) - value(at - e, bias)) / (2 * STEP) for e in STEP * np.eye(2)]
        np.testing.assert_allclose(jax.grad(value)(at, bias), expected, rtol=CLOSE)


@pytest.mark.thorough
def test_the_equality_of_a_box_moves_too():
    """A one-class machine: its right-hand side and its bounds are parameters as well."""
    gram = jaxsvm.gram(RBF(0.5), data()[0])

    def value(theta):
        problem = jaxsvm.box_problem(gram, np.zeros(60), theta[0], c=np.ones(60), e=theta[1])
        return implicit.solution(problem).margins @ U

    at = np.array([0.1, 1.5])
    expected = [(value(at + e) - value(at - e)) / (2 * STEP) for e in STEP * np.eye(2)]
    np.testing.assert_allclose(jax.grad(value)(at), expected, rtol=CLOSE)


def test_a_kink_is_flagged():
    """A sample just outside the margin, moved onto it: it would be free for the least move."""
    problem = by_C_and_gamma(np.array([3.0, 0.5]), "none")
    fit = jaxsvm.fit(problem, SMO(tol=1e-12))
    assert not implicit.one_sided(problem, fit, 1e-9).any()
    distance = np.abs(np.asarray(fit.margins) - 1) + np.where(np.asarray(fit.alpha) % 3.0 > 1e-9, np.inf, 0)
    flagged = np.flatnonzero(implicit.one_sided(problem, fit, distance.min() * 1.01))
    assert flagged.tolist() == [int(distance.argmin())]
    absent = problem.weighted(1.0 * (np.arange(60) != flagged[0]))  # it is free whatever moves
    assert not implicit.one_sided(absent, fit, distance.min() * 1.01).any()


def test_active_sets_by_hand():
    """Margins count in units of q, or of 1 if it is smaller; what is absent is in no set."""
    q, upper = np.array([8.0, 1.0, 0.0, 0.0, 1.0, 1.0]), np.array([1.0, 1.0, 1.0, 1.0, 0.0, 1.0])
    a, margins = np.array([0.5, 0.5, 0.5, 0.5, 0.0, 0.0]), np.array([7.2, 0.3, -0.2, -0.7, 0.0, 3.0])
    here = jaxsvm.box_problem(jaxsvm.gram(Precomputed(), np.eye(6)), q, upper)
    found = here.active_set(SimpleNamespace(alpha=jnp.asarray(a), margins=jnp.asarray(margins)))
    np.testing.assert_array_equal(found.free, [True, False, True, False, False, False])
    np.testing.assert_array_equal(found.bound, [False, True, False, True, False, False])
    none = Active(*jnp.zeros((2, 6), bool))
    again = here.active_set(SimpleNamespace(alpha=jnp.zeros(6), margins=jnp.asarray(margins)), none)
    np.testing.assert_array_equal(again.free, np.arange(6) < 4)


def test_another_support_is_no_solution():
    one, other = (by_C_and_gamma(np.array([C, 0.5]), "none") for C in (3.0, 0.05))
    wrong = implicit.solution(one, jaxsvm.fit(other, SMO(tol=1e-9)))
    assert wrong.status.name in ("STALLED", "NOT_FINITE")
    assert not wrong.certificate.relative_gap <= 1e-6
    with pytest.raises(jaxsvm.InputError, match="fit of it"):
        implicit.solution(one, np.ones(60, bool))


@pytest.mark.thorough
def test_what_is_unique_moves_where_more_samples_are_between_their_bounds_than_the_kernel_tells_apart():
    """Of an inexact fit: their system has no solution; and of twins, whose coefficients have no one way to move."""
    x, y = data()
    twins, labels = np.concatenate([x[:30], x[:30]]), np.concatenate([y[:30], y[:30]])

    def problem(x, y, C):
        return jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x, store=False), y, C, bias="free")

    def seen(fit):
        return jnp.append(fit.margins, fit.bias)

    for points, signs, tol in ((x, y, 1e-2), (twins, labels, 1e-8)):
        inexact, exact = SMO(tol=tol, check_every=1), jaxsvm.InteriorPoint(tol=1e-13)
        a = np.asarray(jaxsvm.fit(problem(points, signs, 2.0), inexact).alpha)
        assert ((a > 1e-6) & (a < 2 - 1e-6)).sum() > 3
        ahead, behind = (seen(jaxsvm.fit(problem(points, signs, 2.0 + t), exact)) for t in (1e-5, -1e-5))
        found = jax.jvp(lambda C: seen(jaxsvm.fit(problem(points, signs, C), inexact)), (2.0,), (1.0,))[1]  # noqa: B023
        np.testing.assert_allclose(found, (ahead - behind) / 2e-5, rtol=1e-4, atol=1e-6)
    assert implicit.one_sided(problem(twins, labels, 2.0), jaxsvm.fit(problem(twins, labels, 2.0), exact), 1e-6).any()


def test_a_corner_has_the_derivatives_of_its_bias():
    """All samples at their bound: the bias is the middle of an interval, whose ends move; twins may set one of them."""
    x = data()[0][:20]
    y = np.where(np.arange(20) % 2 == 0, 1.0, -1.0)

    def problem(x, C):
        return jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x), y, C, bias="free")

    def bias(C):
        return jaxsvm.fit(problem(x, C), SMO(tol=1e-9)).bias

    twins = np.concatenate([x[:2]] * 10)
    marked = [
        implicit.one_sided(p, jaxsvm.fit(p, SMO(tol=1e-9)), 1e-9) for p in (problem(x, 1e-3), problem(twins, 1e-3))
    ]
    assert marked[0].sum() == 2 and marked[1].all()  # one sample an end, or all twins

    expected = float(bias(1e-3 + 1e-6) - bias(1e-3 - 1e-6)) / 2e-6
    assert float(jax.grad(bias)(1e-3)) == pytest.approx(expected, rel=1e-4)


def test_a_corner_is_a_kink_of_weights_that_break_the_equality():
    """A marked sample leaves its bound on one side, another on the other: no derivative exists."""
    x = data()[0][:20]
    y, ones = np.where(np.arange(20) % 2 == 0, 1.0, -1.0), np.ones(20)
    direction = np.random.default_rng(0).normal(size=20)

    def fitted(weight):
        problem = jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x), y, 1e-3, bias="free", sample_weight=weight)
        return problem, jaxsvm.fit(problem, SMO(tol=1e-12))

    step = 1e-4
    behind, here, ahead = (x.T @ fitted(ones + t * direction)[1].dual_coef for t in (-step, 0, step))
    assert np.abs((ahead - here) - (here - behind)).max() > 0.1 * np.abs(ahead - here).max()
    marked = np.flatnonzero(implicit.one_sided(*fitted(ones), 1e-9))
    inside = [
        (fit.alpha > 1e-9) & (fit.alpha < p.upper - 1e-9)
        for p, fit in map(fitted, ones + np.outer([-step, step], direction))
    ]
    assert set(np.flatnonzero(inside[0] | inside[1])) == set(marked)


@pytest.mark.thorough
def test_a_twin_at_its_bound_moves_with_the_equality():
    """Two twins share what the equality asks for; pair steps put one of them at its bound and leave the other at 0."""
    x = np.array([[0.0, 1.0], [1.0, 2.0], [0.0, 1.0], [0.0, -1.0], [1.0, 1.0], [1.0, 1.0]])
    y, direction = np.array([1.0, -1.0, -1.0, 1.0, -1.0, -1.0]), np.array([-1.4, -1.4, -0.1, -1.5, -1.6, 1.5])

    def bias(weight):
        problem = jaxsvm.hinge_problem(jaxsvm.gram(RBF(0.1), x), y, 0.5, bias="free", sample_weight=weight)
        return jaxsvm.fit(problem, SMO(tol=1e-12)).bias

    ones = np.ones(6)
    found = jax.jvp(bias, (ones,), (direction,))[1]
    expected = (bias(ones + STEP * direction) - bias(ones - STEP * direction)) / (2 * STEP)
    assert float(found) == pytest.approx(float(expected), rel=1e-4)
