"""Agreement with scikit-learn where it solves the same problem: `LinearSVC(loss="squared_hinge", C=C/2)`."""

import jax
import numpy as np
import pytest
from sklearn import svm
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import KFold, cross_val_score
from sklearn.svm import LinearSVC

import jaxsvm
from jaxsvm.datasets import Scaling
from jaxsvm.kernels import RBF, Linear, Precomputed


@pytest.mark.parametrize(("C", "weighted"), [(0.01, False), (1.0, True), (100.0, False)])
def test_coefficients_on_breast_cancer(C, weighted):
    x, labels = load_breast_cancer(return_X_y=True)
    y, _ = jaxsvm.datasets.two_classes(labels)
    x = np.asarray(Scaling.standardise(x)(x))
    weight = np.random.default_rng(0).uniform(0.1, 3, len(y)) if weighted else None
    problem = jaxsvm.svm_problem(jaxsvm.gram(Linear(), x), y, C, sample_weight=weight)
    fit = jaxsvm.check(jaxsvm.fit(problem, jaxsvm.FrankWolfe(tol=1e-12)))
    ours = np.append(np.asarray(fit.dual_coef) @ x, float(fit.bias))
    peer = LinearSVC(C=C / 2, tol=1e-12, max_iter=100_000, dual=False).fit(x, y, sample_weight=weight)
    theirs = np.append(peer.coef_[0], peer.intercept_[0])
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * max(1, np.abs(theirs).max()))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["svr", "one class", "nu"])
def test_machines_of_libsvm_are_problems_of_the_library(kind):
    """`svr_problem`, `one_class_problem` and `nu_problem` are scikit-learn's, weights included."""
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((120, 3)).astype(np.float32), rng.standard_normal((10, 3)).astype(np.float32)
    y, weight = np.sin(x[:, 0]), np.r_[np.zeros(5), rng.uniform(0.5, 2, 115)]
    gram = jaxsvm.gram(RBF(0.5), x)

    def problem(parameter):
        if kind == "svr":
            return jaxsvm.svr_problem(gram, y, parameter, epsilon=0.05, sample_weight=weight)
        if kind == "nu":
            return jaxsvm.nu_problem(gram, np.sign(y), parameter, sample_weight=weight)
        return jaxsvm.one_class_problem(gram, parameter, sample_weight=weight)

    if kind == "svr":
        theirs = svm.SVR(C=2.0, epsilon=0.05, gamma=0.5, tol=1e-6).fit(x, y, weight).predict(z)
    elif kind == "nu":
        theirs = svm.NuSVC(nu=0.3, gamma=0.5, tol=1e-6).fit(x, np.sign(y), weight).decision_function(z)
    else:
        theirs = svm.OneClassSVM(nu=0.3, gamma=0.5, tol=1e-6).fit(x, None, weight).decision_function(z)
    parameter = 2.0 if kind == "svr" else 0.3
    fit = jaxsvm.check(jaxsvm.fit(problem(parameter), tol=1e-5))
    np.testing.assert_allclose(jaxsvm.decision_function(fit, problem(parameter), z), theirs, atol=2e-3)
    traced = jax.jit(problem)(parameter)
    np.testing.assert_allclose(traced.upper * traced.q, problem(parameter).upper * problem(parameter).q, rtol=1e-6)
    assert bool(traced.feasible)
    for wrong in (0.0, np.inf):
        with pytest.raises(jaxsvm.InputError, match="C is" if kind == "svr" else "nu is"):
            problem(wrong)


def test_regression_is_scored_and_predicted_as_by_scikit_learn():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((90, 3))
    y = np.sin(x[:, 0]) + x[:, 1] / 3
    problem, Cs = jaxsvm.svr_problem(jaxsvm.gram(RBF(0.3), x), y, epsilon=0.05), [0.1, 10.0]
    seen = []
    found = jaxsvm.cross_validate(problem, Cs, KFold(5), tol=1e-6, callback=lambda place, fit: seen.append(place))
    assert sorted(seen) == 5 * [0] + 5 * [1]
    of = [cross_val_score(svm.SVR(C=C, epsilon=0.05, gamma=0.3, tol=1e-6), x, y, cv=KFold(5)) for C in Cs]
    np.testing.assert_allclose(found.scores.T, of, atol=1e-4)
    weight = np.r_[np.zeros(10), np.ones(80)]
    part = jaxsvm.svr_problem(jaxsvm.gram(RBF(0.3), x), y, epsilon=0.05, sample_weight=weight)
    folds = [(train + 10, test + 10) for train, test in KFold(4).split(y[10:])]
    alone = jaxsvm.svr_problem(jaxsvm.gram(RBF(0.3), x[10:]), y[10:], epsilon=0.05)
    scores = [jaxsvm.cross_validate(*of, tol=1e-6).scores for of in ((part, Cs, folds), (alone, Cs, KFold(4)))]
    np.testing.assert_allclose(*scores, atol=1e-5)

    fit, values = jaxsvm.fit(problem, tol=1e-6), svm.SVR(epsilon=0.05, gamma=0.3, tol=1e-6).fit(x, y).predict(x)
    np.testing.assert_allclose(jaxsvm.predict(fit, problem, x), values, atol=1e-4)
    np.testing.assert_allclose(jaxsvm.predict(jaxsvm.compact(fit, problem), x), values, atol=1e-4)
    assert repr(problem).startswith(
        "RegressionProblem(epsilon-insensitive: C max(0, |y - f| - epsilon), C=1, free bias"
    )
    assert "90 samples" in repr(problem)
    for score, folds, wrong in (("accuracy", 5, "one of r2"), (None, 90, "two targets that differ")):
        with pytest.raises(jaxsvm.InputError, match=wrong):
            jaxsvm.cross_validate(problem, Cs, folds, score=score)
    with pytest.raises(jaxsvm.InputError, match="a grid of C is for .*`slack_problem`"):
        jaxsvm.C_grid(problem)


def regression(epsilon, target=None, C=1.3, **options):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(18, 2))
    target = np.sin(x[:, 0]) + 0.3 * rng.normal(size=18) if target is None else target
    return jaxsvm.svr_problem(jaxsvm.gram(RBF(0.6), x, **options), target, C, epsilon=epsilon)


def test_the_value_of_regression_has_its_derivatives_in_epsilon_and_targets():
    """A multiplier at the upper bound moved with the target: -28.6 was said, and -13.0 is right."""

    @jax.jit
    def dual(epsilon, target):
        return jaxsvm.fit(regression(epsilon, target), tol=1e-9).certificate.dual

    coef = jaxsvm.fit(regression(0.15), tol=1e-9)
    target = np.asarray(regression(0.15).q[:18]) + 0.15
    by_epsilon, by_target = jax.jit(jax.grad(dual, argnums=(0, 1)))(0.15, target)
    np.testing.assert_allclose(by_epsilon, -np.abs(coef.dual_coef).sum(), rtol=1e-7)
    np.testing.assert_allclose(by_target, coef.dual_coef[:18] + coef.dual_coef[18:], atol=1e-7)


def test_traced_tubes_and_shares_that_make_no_problem_are_infeasible():
    """A negative width, and a share of 0, were CONVERGED."""
    gram = regression(0.1).gram
    width = jax.jit(lambda epsilon: jaxsvm.fit(regression(epsilon)).status.code)
    share = jax.jit(lambda nu: jaxsvm.fit(jaxsvm.one_class_problem(gram, nu)).status.code)
    assert [int(width(value)) for value in (-0.1, np.nan, 0.0, 0.1)] == [6, 6, 1, 1]
    assert [int(share(value)) for value in (0.0, 1.5, np.nan, 0.5)] == [6, 6, 6, 1]


def test_regression_on_no_sample_is_refused():
    with pytest.raises(jaxsvm.InputError, match="zero everywhere"):
        regression(0.1).weighted(np.zeros(36))


def test_regression_on_stored_values_predicts():
    """Its variables are each sample twice; new points have a column of kernel values for each sample, not for two."""
    problem, stored = regression(0.1), regression(0.1, store=True)
    x = np.random.default_rng(0).normal(size=(18, 2))
    K = np.exp(-0.6 * ((x[:, None] - x) ** 2).sum(-1))
    target = np.asarray(problem.q[:18]) + 0.1
    given = jaxsvm.svr_problem(jaxsvm.gram(Precomputed(), K), target, 1.3)
    expected = jaxsvm.decision_function(jaxsvm.fit(problem, tol=1e-9), problem, x[:3])
    for one, new in ((stored, x[:3]), (given, K[:3])):
        fit = jaxsvm.fit(one, tol=1e-9)
        np.testing.assert_allclose(jaxsvm.decision_function(fit, one, new), expected, atol=1e-6)
        np.testing.assert_allclose(jaxsvm.predict(jaxsvm.compact(fit, one), new), expected, atol=1e-6)
        predicted = jax.jit(lambda new, fit=fit, one=one: jaxsvm.decision_function(fit, one, new))(new)
        np.testing.assert_allclose(predicted, expected, atol=1e-6)
