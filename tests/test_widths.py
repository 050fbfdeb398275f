"""Paths and cross-validations at several widths of a kernel, and fits between the values of a path."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsvm
from jaxsvm.gram.build import at_widths
from jaxsvm.kernels import RBF, Laplacian, Linear

N, CS, GAMMAS = 120, np.geomspace(0.1, 100, 7), [0.5, 0.05, 2.0]


def data(dtype=np.float32, shift=0.0):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3))
    return (x + shift).astype(dtype), np.where(x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=N) > 0, 1, -1).astype(dtype)


def squared(gram, y):
    return jaxsvm.svm_problem(gram, y)


def hinge(gram, y):
    return jaxsvm.hinge_problem(gram, y, bias="free")


@pytest.mark.thorough
@pytest.mark.parametrize("make", [squared, hinge])
def test_a_path_at_each_width_is_that_of_its_own_kernel(make):
    x, y = data(shift=30.0)
    path = jaxsvm.solve_path(make(jaxsvm.gram(RBF(1.0), x), y), CS, gammas=GAMMAS)
    assert path.fits.alpha.shape == (3, 7, N)
    assert (np.asarray(path.status.code) == 1).all()
    assert "3 widths" in repr(path)
    for i, gamma in enumerate(GAMMAS):
        own = jaxsvm.solve_path(make(jaxsvm.gram(RBF(gamma), x), y), CS)
        np.testing.assert_allclose(path[i].certificate.dual, own.certificate.dual, rtol=2e-4)


@pytest.mark.parametrize("kernel", [RBF(1.0), Laplacian(1.0)])
@pytest.mark.parametrize("how", [{}, {"store": True}, {"store": False}, {"tile": 16}])
def test_operators_at_widths_have_the_values_of_their_kernels(kernel, how):
    x, _ = data(shift=5.0)
    kind = type(kernel)
    for gamma, gram in zip(GAMMAS, at_widths(jaxsvm.gram(kernel, x, **how), GAMMAS, store=True), strict=True):
        own = jaxsvm.gram(kind(gamma), x, store=True)
        np.testing.assert_allclose(gram.rows(jnp.arange(N)), own.K, atol=4e-6)


def test_widths_inside_a_users_program():
    x, y = data()
    problem = squared(jaxsvm.gram(RBF(1.0), x), y)

    def duals(Cs, gammas):
        return jaxsvm.solve_path(problem, Cs, gammas=gammas).certificate.dual

    expected = jaxsvm.solve_path(problem, CS, gammas=GAMMAS).certificate.dual
    found = jax.jit(duals)(jnp.asarray(CS, np.float32), jnp.asarray(GAMMAS, np.float32))
    np.testing.assert_allclose(found, expected, rtol=3e-4)


def test_widths_that_cannot_be_used():
    x, y = data()
    problem = squared(jaxsvm.gram(RBF(1.0), x), y)
    for bad, gammas, said in (
        (squared(jaxsvm.gram(Linear(), x), y), [1.0], "Linear"),
        (squared(jaxsvm.gram(RBF(np.ones(3)), x), y), [1.0], "number `gamma`"),
        (squared(jaxsvm.gram(RBF(1.0), x, rank=8), y), [1.0], "gammas"),
        ([problem], [1.0], "one problem"),
        (problem, [1.0, -1.0], "gammas holds -1"),
        (problem, [], "gammas has shape"),
    ):
        with pytest.raises(jaxsvm.InputError, match=said):
            jaxsvm.solve_path(bad, CS, gammas=gammas)


@pytest.mark.thorough
def test_cross_validation_at_widths_is_that_at_each():
    x, y = data()
    problem = hinge(jaxsvm.gram(RBF(1.0), x), y)
    found = jaxsvm.cross_validate(problem, CS, 3, gammas=GAMMAS)
    for gamma, result in zip(GAMMAS, found.results, strict=True):
        own = jaxsvm.cross_validate(hinge(jaxsvm.gram(RBF(gamma), x), y), CS, 3)
        np.testing.assert_allclose(result.scores, own.scores, atol=0.03)
        np.testing.assert_array_equal(result.folds, own.folds)
    i, j = np.unravel_index(np.argmax(found.mean), found.mean.shape)
    assert found.mean.max() == found.mean[i, j] == found.best.mean.max()
    assert found.gamma in GAMMAS
    assert found.C in CS


def test_a_picture_of_the_widths():
    pytest.importorskip("matplotlib")
    from jaxsvm import plots

    x, y = data()
    found = jaxsvm.cross_validate(squared(jaxsvm.gram(RBF(1.0), x), y), CS, 3, gammas=GAMMAS)
    axes = plots.width_scores(found)
    assert axes.get_xscale() == axes.get_yscale() == "log"
    for (low, high), values in ((axes.get_xlim(), np.sort(CS)), (axes.get_ylim(), np.sort(GAMMAS))):
        np.testing.assert_allclose(values[0] / low, np.sqrt(values[1] / values[0]))  # whole cells, also at the ends
        np.testing.assert_allclose(high / values[-1], np.sqrt(values[-1] / values[-2]))
    assert f"gamma = {found.gamma:.3g}" in axes.get_legend().get_texts()[0].get_text()


@pytest.mark.thorough
@pytest.mark.parametrize("make", [squared, hinge])
@pytest.mark.parametrize("C", [0.03, 0.1, 0.5, 7.0, 100.0, 300.0])
def test_a_fit_between_the_values_of_a_path_is_certified(make, C):
    x, y = data()
    problem = make(jaxsvm.gram(RBF(0.5), x), y)
    path = jaxsvm.solve_path(problem, CS[::-1])
    fit, own = path.at(C, problem), jaxsvm.fit(problem.at(C))
    assert fit.status.name == "CONVERGED"
    assert float(fit.certificate.dual) == pytest.approx(float(own.certificate.dual), rel=2e-4)


def test_a_fit_between_near_values_takes_no_step():
    x, y = data()
    problem = squared(jaxsvm.gram(RBF(0.5), x), y)
    path = jaxsvm.solve_path(problem, np.geomspace(0.1, 100, 60))
    assert sum(int(path.at(C, problem, tol=1e-3).steps) == 0 for C in np.geomspace(0.2, 90, 12)) >= 10


@pytest.mark.thorough
def test_a_fit_between_has_the_derivative_of_its_problem():
    x, y = data(np.float64)
    problem = squared(jaxsvm.gram(RBF(0.5), x), y)
    path = jaxsvm.solve_path(problem, CS)
    own = jax.grad(lambda C: jaxsvm.fit(problem.at(C)).bias)(3.3)
    assert float(jax.jit(jax.grad(lambda C: path.at(C, problem).bias))(3.3)) == pytest.approx(float(own), rel=1e-3)


def test_a_fit_between_of_another_problem_is_refused():
    x, y = data()
    problem = squared(jaxsvm.gram(RBF(0.5), x), y)
    path = jaxsvm.solve_path(problem, CS)
    with pytest.raises(jaxsvm.InputError, match="that of the path"):
        path.at(1.0, squared(jaxsvm.gram(RBF(0.5), x[:50]), y[:50]))
    with pytest.raises(jaxsvm.InputError, match="positive"):
        path.at(0.0, problem)
    with pytest.raises(jaxsvm.InputError, match="a positive number is needed"):
        path.at(np.ones(2), problem)
    with pytest.raises(jaxsvm.InputError, match="that of the path"):
        jaxsvm.solve_path(problem, CS, gammas=GAMMAS).at(1.0, problem)
