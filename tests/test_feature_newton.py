"""Newton in features that reproduce the kernel: its features, paths, fits, and what follows where it is too slow."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from oracle_hinge import parabola

import jaxsvm
from jaxsvm.kernels import RBF
from jaxsvm.path import coarse_to_fine as engine
from jaxsvm.path.anchors import InFeatures
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.simplex import feature_newton as reproduced
from jaxsvm.solvers.simplex.feature_newton import FeatureNewton, features

N = 800
CS = np.geomspace(0.01, 1000, 10)
KEY = jax.random.key(0)


samples = functools.partial(parabola, N)


def problem(dtype="float64", d=2, gamma=0.1, **options):
    x, y = samples(d)
    return jaxsvm.svm_problem(jaxsvm.gram(RBF(gamma=gamma), x.astype(dtype), store=True), y, **options)


@pytest.mark.thorough
def test_features_leave_a_positive_semidefinite_rest_of_the_trace_that_was_asked_for():
    here = problem()
    Z = np.asarray(features(here, 1000.0, KEY))
    K = oracle.kernel_matrix("rbf", samples()[0], gamma=0.1)
    rest = K + 1 - Z @ Z.T
    assert Z.shape[1] % 64 == 1
    assert np.trace(rest) <= N * MEASURED.rest_of_features / 1000
    assert np.linalg.eigvalsh(rest)[0] > -1e-9


def test_no_features_where_a_narrow_kernel_or_few_samples_have_none():
    assert features(problem(d=8, gamma=10.0), 1000.0, KEY) is None
    few = jaxsvm.gram(RBF(gamma=0.1), samples()[0][:100])
    assert features(jaxsvm.svm_problem(few, samples()[1][:100]), 1.0, KEY) is None


@pytest.mark.thorough
@pytest.mark.parametrize("rule", [None, jaxsvm.screening.intersection_test])
def test_a_linear_kernel_has_its_features_at_any_C(rule):
    """A rest that is small beside 1 / C left no features at all, and pair steps by the thousand."""
    x, y = samples(d=8)
    here = jaxsvm.svm_problem(jaxsvm.gram(jaxsvm.kernels.Linear(), x.astype("float32"), store=False), y)
    Z = np.asarray(features(here, 1e-3, KEY), np.float64)
    np.testing.assert_allclose(Z @ Z.T, x @ x.T + 1, atol=1e-4)
    path = jaxsvm.solve_path(here, np.geomspace(1e-5, 10, 12), screen=rule)
    assert np.asarray(path.certificate.relative_gap).max() <= 1e-4
    assert int(np.asarray(path.steps).sum()) < 100


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_take_a_few_systems_each(dtype):
    x, y = samples()
    weight = np.where(y > 0, 3.0, 1.0)
    weight[:40] = 0
    tol = 1e-4 if dtype == "float32" else 1e-8
    path = jaxsvm.solve_path(problem(dtype, sample_weight=weight), CS, tol=tol)
    assert set(path.status.name) == {"CONVERGED"}
    assert np.asarray(path.steps).max() <= 40  # systems; pair steps would be thousands
    K = oracle.kernel_matrix("rbf", x.astype(dtype).astype(float), gamma=0.1)
    for C, alpha in zip(CS, np.asarray(path.alphas, float), strict=True):
        assert oracle.relative_gap_direct(K, y, C, alpha, weight=weight) <= tol * (1 + 1e-3) + 1e-12


def test_values_between_others_take_no_product_of_their_own():
    Cs, (x, y) = np.geomspace(0.01, 1000, 40), samples()
    path = jaxsvm.solve_path(problem(), Cs, tol=1e-5)
    assert set(path.status.name) == {"CONVERGED"}
    without = (np.asarray(path.steps) > 0) & ~np.asarray(path.fits.counters.evaluations).any(axis=-1)
    assert without.sum() >= 5
    K = oracle.kernel_matrix("rbf", x, gamma=0.1)
    for place in np.flatnonzero(without).tolist():
        alpha = np.asarray(path.alphas[place], float)
        assert oracle.relative_gap_direct(K, y, Cs[place], alpha) <= 1e-5 * (1 + 1e-3)


def test_pair_steps_go_on_where_the_rest_is_too_large(monkeypatch):
    generous = dataclasses.replace(MEASURED, largest_rest=np.inf, most_features=64)
    monkeypatch.setattr(reproduced, "MEASURED", generous)
    path = jaxsvm.solve_path(problem(d=8, gamma=1.0), CS, tol=1e-4)
    assert set(path.status.name) == {"CONVERGED"}
    assert np.asarray(path.steps).max() > 100


def test_ctrl_c_ends_it_with_the_point_that_it_has():
    here = problem().at(1.0)
    newton = InFeatures(features(here, 1.0, KEY), 1e-9, lambda *_: None)
    assert newton.point(here, None) is None
    assert newton.Z is not None
    point = InFeatures(newton.Z, 1e-9, lambda call, *rest: call(*rest)).point(here, (jnp.zeros(N), jnp.zeros(N)))
    assert point is not None
    assert point.steps < 20


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_fit_at_a_large_C_takes_a_few_steps(dtype):
    x, y = samples()
    weight = np.where(y > 0, 3.0, 1.0)
    weight[:40] = 0
    here, tol, C = problem(dtype, C=2000.0, sample_weight=weight), 1e-4 if dtype == "float32" else 1e-8, 2000.0
    found = jaxsvm.fit(here, tol=tol)
    assert (found.status.name, set(found.solvers)) == ("CONVERGED", {"FrankWolfe", "FeatureNewton"})
    assert int(found.steps) <= 2012
    # Of the values that are stored, and of the w that is returned, in more digits than either: CPUs round differently.
    K, w, v = (np.asarray(part, np.longdouble) for part in (here.gram.K, found.dual_coef, y * found.alpha))
    K, used = K + 1, weight > 0
    square = v @ K @ v + (v[used] ** 2 / (C * weight[used])).sum()
    dual = 0.5 / square * abs(v).sum() ** 2
    alone = v * abs(v).sum() / square  # the w of the point: rounded to float32 it is worse than the one returned
    for each, most in ((w, 1 + 1e-3), (alone, 1.5)):
        primal = 0.5 * each @ K @ each + 0.5 * C * weight @ np.maximum(0, 1 - y * (K @ each)) ** 2
        rounding = np.finfo(np.longdouble).eps * abs(each) @ K @ abs(each)
        assert -rounding <= primal - dual <= most * tol * dual
    again = jaxsvm.fit(problem(dtype, C=2000.0, sample_weight=weight), tol=2 * tol, init=found)
    assert again.status.name == "CONVERGED"
    assert dtype == "float32" or int(again.steps) == 0
    easy = jaxsvm.fit(problem(dtype, C=1.0), tol=tol)
    assert easy.solvers == ("FrankWolfe",)


@pytest.mark.thorough
def test_a_fit_goes_on_with_others_where_the_rest_is_too_large(monkeypatch):
    monkeypatch.setattr(reproduced, "MEASURED", dataclasses.replace(MEASURED, largest_rest=np.inf, most_features=64))
    found = jaxsvm.fit(problem(d=5, gamma=0.3, C=3000.0), tol=1e-8)
    assert found.status.name == "CONVERGED"
    assert {"FeatureNewton", "FrankWolfe"} < set(found.solvers)  # pair steps ended by Newton


@pytest.mark.thorough
def test_the_solver_starts_at_weights_and_runs_inside_jit():
    here = problem("float32", C=400.0)
    solver = FeatureNewton(features(here, 400.0, KEY), tol=1e-4)
    found = jax.jit(lambda init: jaxsvm.fit(here, solver, init=init))(np.ones(N, np.float32))
    assert found.status.name == "CONVERGED"


def test_a_point_in_primal_scale_is_certified_as_it_is():
    """A factor a rounding away from 1 rounds all coefficients the same way: at C = 300 the gap grew to 30 times."""
    rng = np.random.default_rng(1)
    x = rng.random((1200, 5)).astype(np.float32)
    y = np.where(x[:, 0] + 0.3 * rng.standard_normal(1200) > 0.5, 1, -1)
    problem = jaxsvm.svm_problem(jaxsvm.gram(RBF(0.02), x), y, 1.0)
    path = jaxsvm.solve_path(problem, [100.0, 300.0], tol=1e-3)
    point = np.asarray(y * path.fits.dual_coef[1] * np.float32(1 + 2**-21), np.float32)[:, None]
    one = problem.at(300.0)
    counters = jax.tree.map(lambda leaf: leaf[1:], path.fits.counters)
    columns = (np.asarray(one.y)[:, None], np.asarray(one.weights)[:, None], np.asarray([300.0], np.float32))
    again = engine._finish(one, *columns, point, path.fits.margins[1][:, None], counters, 1e-3, np.asarray(True))
    assert (np.asarray(again.dual_coef[0]) == y * point[:, 0]).all()
