"""Tuning by gradients: what it finds, what it returns, and what it says when something fails."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsvm
from jaxsvm import FrankWolfe, Newton, Status
from jaxsvm.kernels import RBF, Polynomial, Precomputed
from jaxsvm.model_selection import tune as held_out
from jaxsvm.model_selection.folds import fold_masks
from jaxsvm.model_selection.tune import tune

N, M, D = 120, 80, 8


@functools.cache
def data():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(N + M, D))
    y = np.where(x[:, 0] * x[:, 1] + 0.5 * x[:, 0] > 0, 1.0, -1.0)
    y = np.where(rng.random(N + M) < 0.02, -y, y)
    return x, y, [(np.arange(N), np.arange(N, N + M))]


@functools.cache
def tuned(**options):
    x, y, held = data()
    return tune(RBF(np.full(D, 0.2)), x, y, 1.0, folds=held, steps=40, **options)


@pytest.mark.thorough
def test_length_scales_of_the_features_that_matter_grow():
    found = tuned()
    gamma = np.asarray(found.kernel.gamma)
    assert gamma[:2].min() > 5 * gamma[2:].max()
    first = found.history[0]
    assert found.loss < 0.6 * first.loss
    assert found.history[found.best].error < first.error


def test_the_best_certified_point_is_returned():
    found = tuned()
    certified = [record.loss for record in found.history if record.status == Status.CONVERGED]
    assert found.loss == min(certified) == found.history[found.best].loss
    record = found.history[found.best]
    assert found.C == record.C == pytest.approx(float(found.problem.C))
    np.testing.assert_array_equal(found.kernel.gamma, record.kernel.gamma)
    assert found.fit.status.name == "CONVERGED"
    assert found.problem.y.shape == (N + M,)


def test_the_loss_is_that_of_held_out_decision_values():
    x, y, held = data()
    found = tune(RBF(0.2), x, y, folds=held, steps=1, solver=FrankWolfe(tol=1e-9))
    problem = jaxsvm.svm_problem(jaxsvm.gram(RBF(0.2), x[:N]), y[:N], 1.0)
    margins = y[N:] * jaxsvm.decision_function(jaxsvm.fit(problem, Newton(tol=1e-12)), problem, x[N:])
    assert float(held_out.smoothed_hinge(margins).mean()) == pytest.approx(found.loss, rel=1e-4)
    assert np.mean(np.asarray(margins) < 0) == found.history[0].error


def test_a_step_that_is_too_long_is_not_the_answer():
    """The last points are worse than the best; patience counts from the best."""
    x, y, held = data()
    found = tune(RBF(0.2), x, y, folds=held, optimizer=optax.sgd(200.0), steps=30, patience=4)
    assert found.stopped == "patience"
    assert len(found.history) == found.best + 5
    assert found.loss < found.history[-1].loss


@pytest.mark.slow
def test_the_gradient_is_that_of_the_loss():
    """Against central differences of the same function with a tight inner solver."""
    x, y, held = data()
    objective = held_out.Objective(jax.tree.structure(RBF(1.0)), (True,), held_out.logistic)
    at = (jnp.asarray(0.7), (jnp.asarray(-1.0),))
    for folds in (held, 3):
        masks = tuple(jnp.asarray(np.stack(part), float) for part in zip(*fold_masks(y, folds), strict=True))
        given = held_out.HeldOut(jnp.asarray(x), jnp.asarray(y), masks, (0.5,), Newton(tol=1e-11))
        alpha = masks[0] / masks[0].sum(axis=1, keepdims=True)

        def value(parameters, alpha=alpha, given=given):
            return held_out.evaluate(parameters, alpha, given, objective)

        gradient, h = value(at)[1], 1e-5
        for change, found in (((h, 0.0), gradient[0]), ((0.0, h), gradient[1][0])):
            up, down = ((at[0] + s * change[0], (at[1][0] + s * change[1],)) for s in (1, -1))
            difference = (value(up)[0][0] - value(down)[0][0]) / (2 * h)
            assert float(found) == pytest.approx(float(difference), rel=1e-5)


@pytest.mark.slow
def test_folds():
    x, y, _ = data()
    seen = []
    found = tune(RBF(0.2), x, y, folds=3, steps=12, callback=seen.append)
    assert len(seen) == len(found.history) == 12
    assert found.stopped == "steps"
    assert found.loss < found.history[0].loss
    assert found.fit.status.name == "CONVERGED"
    given = np.arange(N + M) % 4
    assert tune(RBF(0.2), x, y, folds=given, steps=1).history[0].loss > 0


def test_a_second_tuning_of_the_same_shapes_compiles_nothing(monkeypatch):
    monkeypatch.setattr("jaxsvm.runtime.programs.PROGRAMS_KEPT", 10_000)  # of other tests too: none is cleared
    x, y, held = data()
    tune(RBF(0.2), x, y, 1.0, folds=held, steps=2)
    before = held_out.measured._cache_size()
    tune(RBF(0.9), x + 1, y, 7.0, folds=held, steps=2, solver=FrankWolfe(tol=1e-5), bounds=(0.1, 10))
    assert held_out.measured._cache_size() == before


def test_parameters_stay_within_bounds_and_zeros_stay():
    x, y, held = data()
    start = 2.0 * Polynomial(2, gamma=0.1, coef0=0.0)
    found = tune(start, x, y, folds=held, steps=6, bounds=(0.9, 1.1), optimizer=optax.sgd(100.0))
    for record in found.history:
        assert 0.9 - 1e-9 <= record.C <= 1.1 + 1e-9
        assert 1.8 - 1e-9 <= record.kernel.factor <= 2.2 + 1e-9
        assert record.kernel.base.coef0 == 0
        assert record.kernel.base.degree == 2


@pytest.mark.thorough
def test_a_precomputed_kernel_has_its_C_tuned():
    x, y, _ = data()
    K = np.asarray(RBF(0.5).matrix(x, x))
    assert tune(Precomputed(), (K + K.T) / 2, y, 0.01, folds=2, steps=5).C > 0.01


def test_failures_are_in_the_history_and_said():
    """The first fit starts far from its solution and is cut short; those after it start near theirs."""
    x, y, held = data()
    with pytest.warns(jaxsvm.ConvergenceWarning, match="evaluations failed"):
        found = tune(RBF(0.2), x, y, folds=held, steps=8, solver=FrankWolfe(tol=1e-4, max_steps=120))
    assert found.history[0].status == Status.MAX_STEPS
    assert found.history[found.best].status == Status.CONVERGED
    with pytest.raises(jaxsvm.InputError, match="MAX_STEPS"):
        tune(RBF(0.2), x, y, folds=held, steps=2, solver=FrankWolfe(tol=1e-12, max_steps=3))


def no_number_beyond(margins):
    return jnp.where(margins.max() > 1.5, jnp.nan, held_out.logistic(margins))


def test_it_comes_back_from_where_there_is_no_number():
    x, y, held = data()
    with pytest.warns(jaxsvm.ConvergenceWarning, match="evaluations failed"):
        found = tune(RBF(0.2), x, y, folds=held, steps=25, loss=no_number_beyond)
    lost = [np.isnan(record.loss) for record in found.history]
    assert any(lost)
    assert np.isfinite(found.loss)
    first = lost.index(True)
    assert found.history[first + 1].C < found.history[first].C


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "hinge"}, "loss"),
        ({"C": -1.0}, "C is"),
        ({"steps": 0}, "steps"),
        ({"patience": 0}, "patience"),
        ({"bounds": (2.0, 3.0)}, "bounds"),
        ({"folds": 1}, "folds"),
        ({"folds": np.arange(3)}, "folds"),
        ({"y": np.arange(N + M)}, "y holds the values 0, 1"),
        ({"folds": (data()[1] > 0).astype(int)}, "fold"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    x, y, held = data()
    arguments = {"y": y, "C": 1.0, "folds": held} | change
    with pytest.raises(jaxsvm.InputError, match=message):
        tune(RBF(0.2), x, arguments.pop("y"), arguments.pop("C"), **arguments)


@pytest.mark.thorough
def test_float32_stays_float32():
    x, y, held = data()
    found = tune(RBF(np.full(D, 0.2)), x.astype(np.float32), y, folds=held, steps=15)
    assert found.fit.alpha.dtype == found.kernel.gamma.dtype == jnp.float32
    assert found.loss < 0.9 * found.history[0].loss
