"""What an attack on the estimators tried: labels, weights and points that are unusual, against scikit-learn's SVC."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import svm

from jaxsvm import estimators

N = 60
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(N, 4))
Y = (X[:, 0] + 0.5 * RANDOM.normal(size=N) > 0).astype(int)
TINY = np.r_[0, 1, 1, np.full(N - 3, 2)]
HALF = (RANDOM.random(N) < 0.5).astype(float)
NEGATIVE = np.where(np.arange(N) < 8, -1.0, 1.0)
HOLES = np.where(RANDOM.random((N, 4)) < 0.5, X, 0)
ZEROS = sp.csr_matrix(HOLES)
ZEROS.data[::3] = 0

CASES = {
    "strings": (X, np.where(Y, "yes", "no"), None, {}),
    "bools": (X, Y.astype(bool), None, {}),
    "objects": (X, np.array(["a", "b"], object)[Y], None, {}),
    "a class of one sample": (X, TINY, None, {}),
    "a class of one sample, balanced": (X, TINY, None, {"class_weight": "balanced"}),
    "weights of 0": (X, Y, HALF, {}),
    "negative weights": (X, Y, NEGATIVE, {}),
    "weights of all sizes": (X, Y, np.geomspace(1e-8, 1, N), {"tol": 1e-8}),
    "explicit zeros": (ZEROS, Y, None, {}),
    "unscaled": (X * np.array([1, 1e3, 1e6, 1e-3]), Y, None, {}),
    "fewer samples than features": (RANDOM.normal(size=(N, 90)), Y, None, {}),
    "two samples": (X[:2], np.array([0, 1]), None, {}),
    "constant features": (0 * X + 1, Y, None, {}),
    "integers": ((10 * X).astype(int), Y, None, {}),
    "a matrix of integers": (3 * np.eye(N, dtype=int), Y, None, {"kernel": "precomputed"}),
    "an indefinite matrix": (np.tanh(X @ X.T - 1), Y, None, {"kernel": "precomputed", "tol": 1e-4}),
    "a function": (X, Y, None, {"kernel": lambda a, b: a @ b.T}),
    "C = 1e6": (X, Y, None, {"C": 1e6}),
    "C = 1e-6": (X, Y, None, {"C": 1e-6, "tol": 1e-8}),
    "a narrow kernel": (X, Y, None, {"gamma": 1e6}),
    "a flat kernel": (X, Y, None, {"gamma": 0.0}),
}


@pytest.mark.parametrize("name", CASES)
def test_answers_are_scikit_learns(name):
    x, y, weight, options = CASES[name]
    options = {"tol": 1e-6, **options}
    theirs = svm.SVC(**options).fit(x, y, sample_weight=weight)
    ours = estimators.SVC(**options).fit(x, y, sample_weight=weight)
    scale = max(1.0, float(np.abs(theirs.decision_function(x)).max()))
    np.testing.assert_allclose(ours.decision_function(x), theirs.decision_function(x), atol=1e-3 * scale)
    assert (ours.predict(x) == theirs.predict(x)).mean() > 0.98
    assert ours.predict(x).dtype == theirs.predict(x).dtype
    assert ours.fit_status_ == (name == "an indefinite matrix")  # which nothing certifies


@pytest.mark.parametrize("C", [1.0, 1e6])
def test_samples_of_both_labels_decide_nothing(C):
    x, y = np.vstack([X, X]), np.append(Y, 1 - Y)
    np.testing.assert_allclose(estimators.SVC(C=C).fit(x, y).decision_function(x), 0, atol=1e-6)


@pytest.mark.parametrize("offset", [1e3, 1e6, 1e8])
def test_points_far_from_the_origin_keep_their_distances(offset):
    """An expanded square swallows them: scikit-learn's decision values are off by 6 at 1e8, and ours were."""
    reference = estimators.SVC(gamma=0.25, tol=1e-6).fit(X, Y).decision_function(X)
    moved = estimators.SVC(gamma=0.25, tol=1e-6).fit(X + offset, Y).decision_function(X + offset)
    np.testing.assert_allclose(moved, reference, atol=1e-6)


@pytest.mark.parametrize(
    ("x", "y", "weight", "options", "message"),
    [
        (X, 0 * Y, None, {}, "number of classes"),
        (X, X[:, 0], None, {}, "Unknown label type"),
        (np.where(X > 2, np.nan, X), Y, None, {}, "NaN"),
        (X, Y, np.where(Y, 1.0, 0.0), {}, "belong to the same class"),
        (X, Y, np.full(N, np.nan), {}, "sample_weight contains NaN"),
        (X, Y, None, {"class_weight": {0: 1, 7: 2}}, "not in class_weight"),
        (X, Y, None, {"kernel": "poly", "coef0": -1.0}, "coef0 >= 0"),
    ],
)
def test_what_has_no_answer_is_refused(x, y, weight, options, message):
    with pytest.raises(ValueError, match=message):
        estimators.SVC(**options).fit(x, y, sample_weight=weight)
