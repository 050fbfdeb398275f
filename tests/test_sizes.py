"""Samples that are not there: one size class compiles once, and nobody sees the padding."""

import jax
import numpy as np
import pytest
from test_path import compilations

import jaxsvm
from jaxsvm import estimators
from jaxsvm.errors import InputError
from jaxsvm.kernels import RBF, Linear
from jaxsvm.loop.round import ready, ready_together
from jaxsvm.numerics.sizes import size_class
from jaxsvm.problems.padding import padded
from jaxsvm.runtime.programs import compiled_functions

GAMMA = 0.4
PAIRS = jaxsvm.FrankWolfe(tol=1e-6)


def data(n, dtype="float64"):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(n, 4)).astype(dtype)
    return x, np.where(x[:, 0] + x[:, 1] ** 2 > 0.7, 1.0, -1.0)


def svm(n, C=3.0, dtype="float64", **options):
    x, y = data(n, dtype)
    return jaxsvm.svm_problem(jaxsvm.gram(RBF(GAMMA), x, **options), y, C)


def hinge(n, C=3.0, **options):
    x, y = data(n)
    return jaxsvm.hinge_problem(jaxsvm.gram(RBF(GAMMA), x, **options), y, C, bias="free")


def test_size_classes():
    sizes = [size_class(n) for n in range(1, 20_000)]
    assert all(size >= n for n, size in enumerate(sizes, 1))
    assert all(size_class(size) == size for size in sizes)
    assert all(size <= n + max(64, n / 4) for n, size in enumerate(sizes, 1))
    assert all(size <= 1.04 * n for n, size in enumerate(sizes, 1) if n > 1024)
    assert size_class(1000) == size_class(1010)
    assert size_class(0) == 0
    assert len({size_class(n) for n in range(200, 5001)}) < 100


@pytest.mark.thorough
def test_a_second_size_of_a_class_compiles_nothing():
    Cs = np.geomspace(0.1, 10, 5)

    def everything(n):
        x, _ = data(n)
        problem, other = svm(n), hinge(n)
        fit = jaxsvm.check(jaxsvm.fit(problem, PAIRS))
        again = jaxsvm.fit(problem.at(4.0), PAIRS, init=fit)
        jaxsvm.fit(other, jaxsvm.SMO(tol=1e-3))
        path = jaxsvm.check(jaxsvm.solve_path(problem, Cs))
        chain = jaxsvm.check(jaxsvm.solve_path(other, Cs, tol=1e-3))
        found = jaxsvm.cross_validate(problem, Cs[:2], 3)
        model = jaxsvm.compact(fit, problem)
        values = jaxsvm.decision_function(model, x[:9])
        np.testing.assert_allclose(values, jaxsvm.decision_function(fit, problem, x[:9]), atol=1e-9)
        assert values.shape == (9,) and again.alpha.shape == (n,)
        assert path.alphas.shape == chain.alphas.shape == (5, n)
        assert found.fits.alpha.shape == (3, 2, n)

    for program in compiled_functions():  # too many, of tests before, would be cleared at some call below
        program.clear_cache()
    everything(201)
    with compilations() as seen:
        everything(209)
    assert seen == []


def test_callbacks_and_warm_starts_see_no_padding():
    seen, problem = [], svm(150)
    fit = jaxsvm.fit(problem, PAIRS, callback=lambda fitted: seen.append(fitted.alpha.shape))
    assert set(seen) == {(150,)}
    warm = jaxsvm.fit(problem, PAIRS, init=np.asarray(fit.alpha))
    assert int(warm.steps) <= int(fit.steps)
    with pytest.raises(InputError, match=r"init has weights of shape \(149,\): \(150,\) is needed"):
        jaxsvm.fit(problem, PAIRS, init=np.ones(149))
    seen.clear()
    jaxsvm.solve_path(problem, [1.0, 2.0], callback=lambda place, fitted: seen.append(fitted.margins.shape))
    assert set(seen) == {(150,)}


@pytest.mark.parametrize("make", [svm, hinge])
def test_traced_weights_of_a_concrete_problem(make):
    """A bootstrap under `vmap`: the problem could be padded, its weights have no values yet."""
    weights = np.random.default_rng(1).integers(0, 3, (2, 90)).astype(float)
    bounds = jax.vmap(lambda weight: (make(90).weighted(weight).diagonal, make(90).weighted(weight).feasible))(weights)
    for weight, diagonal, feasible in zip(weights, *bounds, strict=True):
        there = make(90).weighted(weight)
        assert feasible and there.feasible
        np.testing.assert_allclose(diagonal, there.diagonal, rtol=1e-12)


def test_what_is_padded_and_stored():
    problem = svm(150)
    longer = ready(problem, PAIRS)
    assert longer.n == 192 and longer.gram.stored and longer.gram.K.shape == (192, 192)
    assert int(longer.present.sum()) == 150
    assert ready(longer, PAIRS) is longer
    assert padded(longer) is longer
    stored = svm(150, store=True)
    assert ready(stored, PAIRS) is stored  # a copy of what is stored costs more than programs
    first, second = ready_together([problem, problem.at(5.0)], [PAIRS, PAIRS])
    assert first.gram is second.gram
    few = svm(150, memory=10)
    assert not ready(few, PAIRS).gram.stored
    x, y = data(150)
    linear = jaxsvm.svm_problem(jaxsvm.gram(Linear(), x), y, 1.0)
    assert not ready(linear, jaxsvm.Newton()).gram.stored


def test_nothing_is_padded_under_tracing():
    fitted = jax.jit(lambda C: jaxsvm.fit(svm(70, C), PAIRS))(3.0)
    assert fitted.alpha.shape == (70,)
    np.testing.assert_allclose(fitted.alpha, jaxsvm.fit(svm(70), PAIRS).alpha, atol=1e-6)


def test_linear_estimators_of_another_number_of_features_compile_nothing():
    """Features are padded too where interior points solve in their space: 3 s for each number of them before."""
    rng = np.random.default_rng(0)
    for n, d, C in ((600, 5, 1.0), (650, 6, 10.0)):
        x = rng.normal(size=(n, d))
        y = x @ rng.normal(size=d) + rng.normal(size=n) > 0
        with compilations() as seen:
            estimators.SVC(kernel="linear", C=C).fit(x, y)
    assert not seen
