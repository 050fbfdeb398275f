"""Estimators: scikit-learn's answers, attributes and habits; few sizes, so that few programs are compiled."""

import dataclasses
import functools
import pickle
import subprocess
import sys
import warnings

import jax
import numpy as np
import oracle
import pytest
from sklearn import svm
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import jaxsvm
from jaxsvm import estimators, kernels
from jaxsvm.estimators import machines
from jaxsvm.loop import driver as loop
from jaxsvm.loop import many, small
from jaxsvm.loop.interruption import Interruption

X, Y = load_iris(return_X_y=True)
X2, Y2 = X[Y > 0], Y[Y > 0]
XR, YR = (part[:60] for part in load_diabetes(return_X_y=True))


@pytest.mark.parametrize(
    "options",
    [{}, {"C": 10.0, "gamma": 0.5}, {"kernel": "poly", "coef0": 1.0}, {"kernel": "linear"}],
    ids=str,
)
def test_svc_of_three_classes_agrees_with_scikit_learns(options):
    """Support, coefficients in LIBSVM's layout, constants, both shapes of decision values."""
    theirs, ours = svm.SVC(tol=1e-6, **options).fit(X, Y), estimators.SVC(tol=1e-6, **options).fit(X, Y)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    np.testing.assert_array_equal(ours.n_support_, theirs.n_support_)
    np.testing.assert_array_equal(ours.support_, theirs.support_)
    np.testing.assert_allclose(ours.dual_coef_.sum(axis=1), theirs.dual_coef_.sum(axis=1), atol=1e-3)
    for shape in ("ovo", "ovr"):
        mine = ours.set_params(decision_function_shape=shape).decision_function(X)
        np.testing.assert_allclose(
            mine, theirs.set_params(decision_function_shape=shape).decision_function(X), atol=1e-3
        )
    assert ours.certificate_.relative_gap.max() <= 1e-6
    assert ours.dual_coef_.shape == theirs.dual_coef_.shape
    assert ours.n_iter_.shape == theirs.n_iter_.shape


def test_widths_by_rules_are_those_of_their_definitions():
    squares = ((X[:, None] - X) ** 2).sum(axis=2)
    widths = {"paper": 0.5 / squares.mean(), "median": 1 / np.median(squares[np.triu_indices(150, 1)])}
    for rule, gamma in widths.items():
        named, given = (estimators.SVC(gamma=width).fit(X, Y).decision_function(X) for width in (rule, gamma))
        np.testing.assert_allclose(named, given, atol=1e-3)


def test_svc_of_two_classes_has_scikit_learns_signs():
    theirs, ours = svm.SVC(kernel="linear", tol=1e-6).fit(X2, Y2), estimators.SVC(kernel="linear", tol=1e-6).fit(X2, Y2)
    for name in ("dual_coef_", "intercept_", "coef_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=2e-4)
    np.testing.assert_allclose(ours.decision_function(X2), theirs.decision_function(X2), atol=1e-4)


def test_kernel_matrices_functions_of_two_sets_and_own_kernels_are_the_kernel_by_name():
    reference = estimators.SVC(gamma=0.5).fit(X, Y).decision_function(X)
    rbf = functools.partial(oracle.rbf, gamma=0.5)
    for kernel, points in (("precomputed", rbf(X, X)), (rbf, X), (kernels.RBF(0.5), X)):
        fitted = estimators.SVC(kernel=kernel).fit(points, Y)
        np.testing.assert_allclose(fitted.decision_function(points), reference, atol=1e-5)


def test_sparse_and_float32_points_are_the_dense_ones():
    import scipy.sparse as sp

    dense = estimators.SVC().fit(X, Y)
    sparse = estimators.SVC().fit(sp.csr_array(X), Y)
    np.testing.assert_allclose(sparse.decision_function(sp.csr_array(X)), dense.decision_function(X), atol=1e-3)
    assert sp.issparse(sparse.dual_coef_) and sp.issparse(sparse.support_vectors_)
    single = estimators.SVC().fit(X.astype(np.float32), Y)
    np.testing.assert_allclose(single.decision_function(X.astype(np.float32)), dense.decision_function(X), atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"C": 100.0}, {"epsilon": 200.0}], ids=str)
def test_svr_agrees_with_scikit_learns(options):
    theirs, ours = svm.SVR(tol=1e-6, **options).fit(XR, YR), estimators.SVR(tol=1e-6, **options).fit(XR, YR)
    np.testing.assert_allclose(ours.predict(XR), theirs.predict(XR), atol=1e-3)
    assert ours.fit_status_ == 0 and ours.n_support_.shape == theirs.n_support_.shape


@pytest.mark.parametrize(
    "options", [{}, {"C": 100.0, "nu": 0.2}, {"nu": 1.0}, {"kernel": "linear", "C": 1000}], ids=str
)
def test_nu_svr_agrees_with_scikit_learns_and_is_the_svr_of_its_epsilon(options):
    weight = np.arange(60) % 3.0
    for given in (None, weight):
        theirs = svm.NuSVR(tol=1e-7, **options).fit(XR, YR, given)
        ours = estimators.NuSVR(tol=1e-7, **options).fit(XR, YR, given)
        np.testing.assert_allclose(ours.predict(XR), theirs.predict(XR), atol=1e-3)
        assert ours.fit_status_ == 0 and ours.n_support_ == theirs.n_support_
    same = {name: value for name, value in options.items() if name != "nu"}
    tube = estimators.SVR(epsilon=ours.epsilon_, tol=1e-7, **same).fit(XR, YR, weight)
    np.testing.assert_allclose(tube.certificate_.dual, ours.certificate_.dual, rtol=1e-6, atol=1e-6)


def test_one_class_machine_agrees_with_scikit_learns():
    theirs, ours = svm.OneClassSVM(nu=0.2, tol=1e-6).fit(XR), estimators.OneClassSVM(nu=0.2, tol=1e-6).fit(XR)
    np.testing.assert_allclose(ours.decision_function(XR), theirs.decision_function(XR), atol=1e-4)
    np.testing.assert_allclose(ours.offset_, theirs.offset_, rtol=1e-5)
    objective = ours.dual_coef_ @ np.exp(-ours._gamma * ((XR[ours.support_][:, None] - XR[ours.support_]) ** 2).sum(2))
    np.testing.assert_allclose(-(objective @ ours.dual_coef_.T) / 2, ours.certificate_.dual, rtol=1e-6)


def test_nu_svc_agrees_with_scikit_learns_and_is_the_svc_of_its_c():
    theirs, ours = svm.NuSVC(nu=0.3, tol=1e-6).fit(X2, Y2), estimators.NuSVC(nu=0.3, tol=1e-6).fit(X2, Y2)
    np.testing.assert_allclose(ours.decision_function(X2), theirs.decision_function(X2), atol=1e-3)
    same = estimators.SVC(C=ours.C_[0], tol=1e-7).fit(X2, Y2)
    np.testing.assert_allclose(ours.decision_function(X2), same.decision_function(X2), atol=1e-3)
    with pytest.raises(ValueError, match="nu is infeasible"):
        estimators.NuSVC(nu=0.9).fit(X[20:], Y[20:])


def test_estimators_pickle_clone_and_hold_no_arrays_of_jax():
    for fitted in (estimators.SVC().fit(X, Y), estimators.SVR().fit(XR, YR), estimators.PegasosClassifier().fit(X, Y)):
        leaves = jax.tree.leaves(vars(fitted))
        assert not any(isinstance(leaf, jax.Array) for leaf in leaves)
        points = XR if isinstance(fitted, estimators.SVR) else X
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(points), fitted.predict(points))
        assert clone(fitted).get_params() == fitted.get_params()


def test_a_class_derived_from_an_estimator_may_have_parameters_of_its_own():
    class Named(estimators.LinearSVC):
        def __init__(self, name="", C=1.0):
            super().__init__(C=C)
            self.name = name

    assert clone(Named(name="a")).fit(X2, Y2).score(X2, Y2) > 0.5
    with pytest.raises(ValueError, match="'C' parameter of Named"):
        Named(C=-1.0).fit(X2, Y2)


def test_a_pickle_of_another_version_is_refused():
    for machine in (estimators.SVC().fit(X, Y), estimators.PegasosClassifier(passes=1).fit(X, Y)):
        state = machine.__getstate__()
        for other in ({**state, "_jaxsvm_version": "0.0.0"}, {k: v for k, v in state.items() if "version" not in k}):
            with pytest.raises(ValueError, match=r"written by jaxsvm (0.0.0|of an unknown version).*train again"):
                type(machine).__new__(type(machine)).__setstate__(other)


def test_a_grid_search_compiles_nothing_that_a_fit_of_its_size_has_compiled(monkeypatch):
    monkeypatch.setattr("jaxsvm.runtime.programs.PROGRAMS_KEPT", 10_000)  # of other tests too: none is cleared
    estimators.SVC().fit(X[:120], np.arange(120) % 3)  # the size of a fold, and that of all
    estimators.SVC().fit(X, Y)
    before = many._solved._cache_size()
    grid = {"svc__C": [0.1, 1.0, 10.0, 100.0], "svc__gamma": [0.01, 0.03, 0.1, 0.3, 1.0]}
    search = GridSearchCV(make_pipeline(StandardScaler(), estimators.SVC()), grid, cv=5).fit(X, Y)
    assert many._solved._cache_size() == before
    assert search.best_score_ > 0.95


def test_a_chosen_c_is_the_best_of_the_folds():
    Cs = [0.01, 1.0, 100.0]
    path = estimators.SVCPath(Cs=Cs, cv=3, gamma=0.5).fit(X, Y)
    assert path.scores_.shape == (3, 3) and path.Cs_[path.mean_score_.argmax()] == path.C_
    grid = GridSearchCV(estimators.SVC(gamma=0.5), {"C": Cs}, cv=3).fit(X, Y)
    np.testing.assert_allclose(path.mean_score_, grid.cv_results_["mean_test_score"])
    same = estimators.SVC(C=path.C_, gamma=0.5).fit(X, Y)
    np.testing.assert_allclose(path.decision_function(X), same.decision_function(X), atol=1e-8)


def test_chains_over_c_are_certified_and_are_the_fits_of_each_value():
    """With and without an equality, with absent samples, with values above which no sample is at its bound."""
    y, Cs, rows = np.where(Y2 == 1, 1.0, -1.0), np.geomspace(0.01, 1e5, 20)[::-1], np.arange(len(Y2)) % 5 != 0
    for bias in ("free", "regularized", "none"):
        problem = jaxsvm.hinge_problem(jaxsvm.gram(jaxsvm.kernels.RBF(0.5), X2), y, bias=bias)
        weights = np.stack([rows, ~rows, 0 * rows + 2]).astype(problem.dtype)
        found = jaxsvm.check(small.small_chains(problem, weights, Cs, 1e-4, Interruption()))
        assert found.alpha.shape == (3, 20, len(y)) and (found.alpha[0][:, ~rows] == 0).all()
        for place in (0, 7, 15):
            one = estimators.SVC(C=Cs[place], gamma=0.5, bias=bias, tol=1e-7).fit(X2[rows], Y2[rows])
            decisions = found.margins[0, place] * y
            np.testing.assert_allclose(-decisions, one.decision_function(X2), atol=0.03)


def test_a_chain_in_float32_that_holds_no_sample_reaches_a_gap_of_1e_5():
    """What w is made longer by, so that rounding leaves no loss, is a part of the gap."""
    x = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    y = np.where(x[:, 0] > 0, 1.0, -1.0).astype(np.float32)
    for bias in ("free", "none"):
        problem = jaxsvm.hinge_problem(jaxsvm.gram(jaxsvm.kernels.RBF(0.5), x, store=True), y, bias=bias)
        found = small.small_chains(problem, np.ones((1, 60)), np.array([1e2, 1e4]), 1e-5, Interruption())
        assert (jaxsvm.check(found).alpha < 1e2).all() and found.status.name.tolist() == [["CONVERGED"] * 2]


def test_a_class_that_a_fold_lacks_is_never_told():
    rows = np.r_[0:50, 50:100, 100:103]
    folds = [(np.arange(100), np.arange(100, 103)), (np.arange(3, 103), np.arange(3))]
    path = estimators.SVCPath(Cs=[1.0, 10.0], cv=folds).fit(X[rows], Y[rows])
    assert (path.scores_[0] == 0).all() and (path.scores_[1] == 1).all()


@pytest.mark.slow
def test_a_path_over_many_samples_goes_by_working_sets(monkeypatch):
    reference = estimators.SVCPath(Cs=[0.1, 1.0, 10.0], cv=3).fit(X, Y)
    monkeypatch.setattr(small, "MEASURED", dataclasses.replace(small.MEASURED, samples_of_a_small_problem=0))
    path = estimators.SVCPath(Cs=[0.1, 1.0, 10.0], cv=3).fit(X, Y)
    assert path.largest_gap_.max() <= 1e-3
    np.testing.assert_allclose(path.mean_score_, reference.mean_score_, atol=0.01)


@pytest.mark.parametrize("multi_class", ["ovo", "ovr"])
def test_probabilities_are_calibrated_on_samples_left_out(multi_class):
    fitted = estimators.SVC(probability=True, random_state=0, multi_class=multi_class).fit(X, Y)
    probabilities = fitted.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert (probabilities.argmax(axis=1) == Y).mean() > 0.9
    assert not hasattr(estimators.SVC(), "predict_proba")


def test_coupled_probabilities_and_sigmoids_are_the_best_there_are():
    from scipy.optimize import minimize

    from jaxsvm.estimators.probability import coupled, sigmoids

    random = np.random.default_rng(0)
    truth = random.dirichlet(np.ones(4), size=20)
    i, j = np.triu_indices(4, 1)
    np.testing.assert_allclose(coupled(truth[:, i] / (truth[:, i] + truth[:, j]), 4), truth, atol=1e-10)
    r = random.uniform(0.01, 0.99, size=(5, 6))
    for pairs, p in zip(r, coupled(r, 4), strict=True):
        square = np.zeros((4, 4))
        square[i, j], square[j, i] = pairs, 1 - pairs

        def objective(p, square=square):
            return ((square.T * p[:, None] - square * p) ** 2).sum()

        start = np.full(4, 0.25)
        constraint = {"type": "eq", "fun": lambda p: p.sum() - 1}
        best = minimize(objective, start, bounds=[(0, 1)] * 4, constraints=constraint, options={"ftol": 1e-14})
        np.testing.assert_allclose(p, best.x, atol=1e-4)
    values, positive = random.normal(size=200), random.random(200) < 0.4
    positive |= values > 1
    found = sigmoids(values[:, None], positive.astype(int), np.ones(200), [(0, 1)])[0]  # of the second class
    target = np.where(positive, (positive.sum() + 1) / (positive.sum() + 2), 1 / ((~positive).sum() + 2))

    def loss(parameters):
        exponent = parameters[0] * values + parameters[1]
        return (np.logaddexp(0, exponent) - (1 - target) * exponent).sum()

    np.testing.assert_allclose(found, minimize(loss, [0.0, 0.0]).x, atol=1e-3)


def test_a_stream_is_learned_in_parts_of_any_length():
    points = StandardScaler().fit_transform(X)
    stream = estimators.PegasosClassifier(alpha=1e-3, batch=32)
    for part in range(60):
        rows = np.random.default_rng(part).permutation(len(X))[: 40 + part]
        stream.partial_fit(points[rows], Y[rows], classes=[0, 1, 2])
    assert stream.score(points, Y) > 0.9 and stream.coef_.shape == (3, 4)


def test_a_fit_that_is_cut_short_warns_with_its_gap():
    with pytest.warns(ConvergenceWarning, match="relative duality gap of up to"):
        fitted = estimators.SVC(C=1e4, kernel="linear", max_iter=1, tol=1e-9).fit(X[:, :2], Y)
    assert fitted.fit_status_ == 1


POINTS = np.random.default_rng(0).normal(size=(24, 2))
SIDES = np.where(POINTS[:, 0] + 0.5 * POINTS[:, 1] > 0, 1, -1)
MACHINES = {
    "SVC": lambda **options: estimators.SVC(C=10.0, **options),
    "regularized": lambda **options: estimators.SVC(C=10.0, bias="regularized", **options),
    "squared hinge": lambda **options: estimators.SVC(C=10.0, loss="squared_hinge", bias="none", **options),
    "NuSVC": lambda **options: estimators.NuSVC(nu=0.3, **options),
    "SVR": lambda **options: estimators.SVR(C=10.0, **options),
    "NuSVR": lambda **options: estimators.NuSVR(nu=0.3, **options),
    "OneClassSVM": lambda **options: estimators.OneClassSVM(nu=0.3, **options),
    "SVCPath": lambda **options: estimators.SVCPath(Cs=[1.0, 10.0], cv=2, **options),
    "SBPClassifier": lambda **options: estimators.SBPClassifier(steps=50, **options),
}


@pytest.mark.parametrize("name", MACHINES)
def test_an_indefinite_matrix_is_certified_by_no_estimator(name):
    K = POINTS @ POINTS.T
    K[0, 0] -= 5
    with pytest.warns(ConvergenceWarning, match="indefinite, so that nothing is certified"):
        fitted = MACHINES[name](kernel="precomputed").fit(K, SIDES)
    assert fitted.fit_status_ == 1
    assert np.isinf(fitted.certificate_.relative_gap).all()


@pytest.mark.parametrize("kernel", ["sigmoid", lambda a, b: -(a @ b.T)], ids=["sigmoid", "callable"])
def test_an_indefinite_kernel_is_not_certified_however_it_is_given(kernel):
    with pytest.warns(ConvergenceWarning, match="NOT_PSD"):
        fitted = estimators.SVC(kernel=kernel, gamma=3.0, coef0=-2.0, C=100.0).fit(POINTS, SIDES)
    assert fitted.fit_status_ == 1


MANY = np.random.default_rng(0).normal(size=(2200, 5))
SLOPING = np.where(MANY[:, 0] + 0.5 * np.random.default_rng(1).normal(size=2200) > 0, 1, -1)


def hidden_negative(x):
    K = np.exp(-0.2 * (np.square(x).sum(axis=1)[:, None] + np.square(x).sum(axis=1) - 2 * x @ x.T))
    K[0, 0] -= 0.5
    return K


INDEFINITE = {
    "sigmoid": (1100, lambda x: ({"kernel": "sigmoid", "gamma": 2.0, "coef0": -1.0}, x)),
    "sigmoid in float32": (1100, lambda x: ({"kernel": "sigmoid", "gamma": 0.5}, x.astype(np.float32))),
    "an object": (1100, lambda x: ({"kernel": kernels.Sigmoid(0.5, -1.0)}, x)),
    "precomputed": (2200, lambda x: ({"kernel": "precomputed"}, hidden_negative(x))),
    "precomputed in float32": (2200, lambda x: ({"kernel": "precomputed"}, hidden_negative(x).astype(np.float32))),
    "callable": (2200, lambda x: ({"kernel": lambda a, b: hidden_negative(a) if len(a) == len(b) else a @ b.T}, x)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "sigmoid")) for name in INDEFINITE]
)
@pytest.mark.parametrize("machine", ["SVC", "three classes", "SVCPath"])
def test_no_indefinite_kernel_of_many_samples_is_certified(name, machine):
    """Values in float32 were certified once more in float64, and the matrix not asked after again."""
    n, made = INDEFINITE[name]
    options, X = made(MANY[:n])
    labels = SLOPING[:n] if machine != "three classes" else np.arange(n) % 3
    new = (
        estimators.SVCPath(Cs=[0.01, 0.1], cv=2, **options)
        if machine == "SVCPath"
        else estimators.SVC(C=0.1, **options)
    )
    with pytest.warns(ConvergenceWarning, match="NOT_PSD"):
        fitted = new.fit(X, labels)
    assert fitted.fit_status_ == 1 and np.isinf(fitted.certificate_.relative_gap).any()
    assert machine != "SVCPath" or np.isinf(fitted.largest_gap_).all() or name.startswith(("pre", "call"))


@pytest.mark.thorough
@pytest.mark.parametrize("n", [200, 1100])
@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_one_huge_entry_rounds_no_other_point(n, kernel):
    """What a missing time becomes: the mean, subtracted, made all other points one, and their fit was certified."""
    from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

    x = MANY[:n, :2].copy()
    y = np.where(x[:, 0] * x[:, 1] > 0, 1, -1)
    x[0, 0] = np.iinfo(np.int64).min
    K = {"rbf": rbf_kernel, "laplacian": laplacian_kernel}[kernel](x, gamma=0.5)
    theirs = svm.SVC(C=10.0, kernel="precomputed").fit(K, y)
    ours = estimators.SVC(C=10.0, kernel=kernel, gamma=0.5).fit(x, y)
    assert ours.fit_status_ == 0
    np.testing.assert_allclose(ours.decision_function(x), theirs.decision_function(K), atol=0.03)


@pytest.mark.parametrize("name", ["SVC", "NuSVC", "SVR", "NuSVR", "OneClassSVM", "SVCPath"])
def test_a_matrix_that_is_semidefinite_along_the_equality_is_certified(name):
    """`-|x - z|`: no kernel, and with a free bias as good as one."""
    K = -np.linalg.norm(POINTS[:, None] - POINTS, axis=2)
    with warnings.catch_warnings(action="error", category=ConvergenceWarning):
        assert MACHINES[name](kernel="precomputed").fit(K, SIDES).fit_status_ == 0


@pytest.mark.parametrize("name", MACHINES)
def test_an_asymmetric_matrix_is_refused(name):
    K = POINTS @ POINTS.T
    K[0, 1] += 0.1
    with pytest.raises(ValueError, match="it must be symmetric"):
        MACHINES[name](kernel="precomputed").fit(K, SIDES)


def test_machines_whose_own_part_is_definite_are_certified():
    """Of three classes, one of whose samples makes the matrix indefinite."""
    labels = np.arange(24) % 3
    K = POINTS @ POINTS.T
    K[0, 0] -= 5
    with pytest.warns(ConvergenceWarning, match="2 of 3 problem"):
        fitted = estimators.SVC(kernel="precomputed").fit(K, labels)
    assert np.isinf(fitted.certificate_.relative_gap).tolist() == [True, True, False]


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.parametrize("Cs", [[0.0, 1.0], [np.nan, 1.0], [1.0, np.inf], [-1.0, 1.0], [1e-320, 1.0], [], [[1.0, 2.0]]])
def test_values_of_c_that_are_none_are_refused_by_name(Cs, loss):
    with pytest.raises(ValueError, match=r"^(Cs|C times|C is)"):
        estimators.SVCPath(Cs=Cs, cv=2, loss=loss).fit(X2, Y2)


def test_a_gap_that_is_nan_counts_as_failed(monkeypatch):
    path = estimators.SVCPath(Cs=[1.0], cv=2)
    path.Cs_, path.largest_gap_ = np.array([1.0]), np.array([[np.nan], [0.0]])
    monkeypatch.setattr(path, "_correct_by_pairs", lambda _, codes, *rest: np.ones((1, len(codes)), bool))
    with pytest.warns(ConvergenceWarning, match="1 of 2 fits"):
        path.fit(X2, Y2)


def test_kernel_values_that_overflow_are_refused():
    """The solver keeps its last finite point: zeros, with an infinite primal value."""
    huge = np.finfo(float).max * np.random.default_rng(0).random((20, 2))
    for machine in (estimators.SVC(), estimators.SVR(), estimators.SVC(kernel=lambda x, z: np.full((20, 20), np.nan))):
        with (
            pytest.raises(ValueError, match="not finite|NaN or infinite|distances overflow"),
            np.errstate(all="ignore"),
        ):
            machine.fit(huge, np.arange(20) % 2)


def test_without_scikit_learn_the_library_imports_and_estimators_say_what_to_install():
    program = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import jaxsvm\n"
        "try: import jaxsvm.estimators\n"
        "except ImportError as error: assert isinstance(error, jaxsvm.MissingPackageError); print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "needs scikit-learn" in run.stdout and "pip install 'jaxsvm[sklearn]'" in run.stdout


def test_weights_are_routed_through_a_pipeline_and_a_search():
    from sklearn import config_context

    few, kinds = X[Y > 0], Y[Y > 0]
    weight = np.where(kinds == 1, 5.0, 0.2)
    with config_context(enable_metadata_routing=True):
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        models = []
        for kind in (estimators.SVC, svm.SVC):
            one = kind(gamma=0.5).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
            pipeline = make_pipeline(scaler, one).set_output(transform="default")
            search = GridSearchCV(
                pipeline, {next(reversed(pipeline.named_steps)) + "__C": [0.1, 1.0]}, cv=3, error_score="raise"
            )
            models.append(search.fit(few, kinds, sample_weight=weight))
    ours, theirs = models
    assert ours.best_params_ == theirs.best_params_
    np.testing.assert_array_equal(ours.predict(few), theirs.predict(few))
    unweighted = make_pipeline(scaler, estimators.SVC(gamma=0.5, C=ours.best_params_["svc__C"])).fit(few, kinds)
    assert (unweighted.predict(few) != ours.predict(few)).any()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_tell_their_names(library):
    frames = pytest.importorskip(library)
    frame = frames.DataFrame({f"f{j}": X[:, j] for j in range(4)})
    model = estimators.SVC(gamma=0.5).fit(frame, Y)
    assert model.feature_names_in_.tolist() == ["f0", "f1", "f2", "f3"]
    np.testing.assert_array_equal(model.predict(frame), estimators.SVC(gamma=0.5).fit(X, Y).predict(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["f1", "f0", "f2", "f3"]])


def overlapping(n, d, scales=False):
    rng = np.random.default_rng(n + d)
    x = rng.normal(size=(n, d)) * (10.0 ** rng.integers(-2, 3, d) if scales else 1.0)
    y = np.where(x @ (rng.normal(size=d) / x.std(axis=0)) + rng.normal(size=n) + 0.5 > 0, "yes", "no")
    return x, y


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_linear_machines_of_few_features_end_at_any_C(dtype):
    """Where pair steps crawl: n d^2 operations a step whatever C, certified, and no worse than LIBSVM's."""
    x, y = overlapping(600, 6, scales=True)
    x = x.astype(dtype)
    with warnings.catch_warnings(action="error"):
        for C in (1.0, 1e2, 1e6):
            ours = estimators.SVC(kernel="linear", C=C).fit(x, y)
            assert (ours.certificate_.relative_gap <= 1e-3).all()
            assert (abs(ours.dual_coef_) <= C * (1 + 1e-6)).all()
            assert ours.n_iter_.max() < 100
            if C == 1.0:
                theirs = svm.SVC(kernel="linear", C=C, tol=1e-6).fit(x, y)
                assert hinge(ours, x, y) <= hinge(theirs, x, y) * (1 + 1e-6)  # unscaled, LIBSVM's is 1e-5 larger
                agree = ours.predict(x) == theirs.predict(x)
                assert agree.mean() > 0.99


def hinge(machine, x, y):
    w = machine.dual_coef_[0] @ np.asarray(machine.support_vectors_, float)
    slack = 1 - np.where(y == "yes", 1, -1) * (x.astype(float) @ w + machine.intercept_[0])
    return w @ w / 2 + np.maximum(0, slack).sum()


def test_interior_points_that_rounding_ends_are_not_handed_to_pair_steps():
    """Features of 1e-3 to 1e3 at C = 1e4: a gap of .002, which pair steps took minutes to make .1."""
    with pytest.warns(ConvergenceWarning, match="STALLED"):
        ours = estimators.SVC(kernel="linear", tol=1e-15).fit(*overlapping(600, 6, scales=True))
    assert 1e-15 < ours.certificate_.relative_gap < 1e-6
    assert ours.n_iter_.max() < 200


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_regression_within_the_tube_is_a_constant(kernel):
    """Nothing to fit, proved: interior points ended as STALLED with every sample as support, pair steps at eps = 0."""
    rng = np.random.default_rng(0)
    x, target = rng.normal(size=(300, 2)), 3 + 0.05 * rng.uniform(-1, 1, 300)
    with warnings.catch_warnings(action="error"):
        ours = estimators.SVR(kernel=kernel).fit(x, target)
        flat = estimators.SVR(kernel=kernel, epsilon=0.0).fit(x, np.full(300, 3.0))
    theirs = svm.SVR(kernel=kernel).fit(x, target)
    assert len(ours.support_) == len(flat.support_) == len(theirs.support_) == 0
    np.testing.assert_allclose(ours.predict(x), theirs.predict(x), atol=0.05)
    np.testing.assert_allclose(flat.predict(x), 3.0)
    assert ours.certificate_.primal == flat.certificate_.primal == 0


def test_warnings_are_those_of_the_estimator(monkeypatch):
    """In threads nobody silences a solver's own: of interior points that end short of more than was asked for."""
    told = []
    monkeypatch.setattr(loop, "warn_unless_converged", lambda *fitted: told.append(fitted))
    ours = estimators.SVC(kernel="linear", tol=1e-9).fit(*overlapping(600, 6, scales=True))
    assert ours.certificate_.relative_gap <= 1e-9
    assert not told


def test_linear_regression_of_few_features_ends_at_any_C():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5))
    target = x @ rng.normal(size=5) + 0.3 * rng.normal(size=300) + 2
    with warnings.catch_warnings(action="error"):
        for C in (1.0, 1e6):
            ours = estimators.SVR(kernel="linear", C=C).fit(x, target)
            assert ours.n_iter_ < 100
        theirs = svm.SVR(kernel="linear", C=1.0, tol=1e-6).fit(x, target)
        ours = estimators.SVR(kernel="linear").fit(x, target)
        np.testing.assert_allclose(ours.predict(x), theirs.predict(x), atol=1e-3)


def test_a_path_of_linear_machines_of_few_features():
    """Every fold and value is certified, and the chosen machine is what `SVC` makes of that C."""
    x, y = overlapping(1100, 6)
    with warnings.catch_warnings(action="error"):
        path = estimators.SVCPath(Cs=[1e-2, 1.0, 1e4], kernel="linear", cv=2).fit(x, y)
    assert path.largest_gap_.max() <= path.tol
    alone = estimators.SVC(kernel="linear", C=path.C_).fit(x, y)
    np.testing.assert_allclose(path.decision_function(x), alone.decision_function(x), atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", ["linear", "rbf", "poly"])
def test_decisions_on_float32_points_are_those_of_the_certificate(kernel):
    """At C = 1e4 rounding of kernel values was .6 of a margin: the decisions' primal, 7 % above the proof's."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 20)).astype(np.float32)
    y = x @ rng.normal(size=20) + 8 * rng.normal(size=300) > 0
    options = {"kernel": kernel, "gamma": 1e-3 if kernel == "rbf" else 0.05, "coef0": 1.0, "degree": 2, "C": 1e4}
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        ours = estimators.SVC(**options).fit(x, y)
    wide = x.astype(np.float64)
    K = exact_kernel(kernel, options)(wide[ours.support_], wide)
    exact = ours.dual_coef_[0] @ K + ours.intercept_[0]
    np.testing.assert_allclose(ours.decision_function(x), exact, atol=1e-6)
    slack = np.maximum(0, 1 - np.where(y, 1, -1) * exact)
    primal = ours.dual_coef_[0] @ K[:, ours.support_] @ ours.dual_coef_[0] / 2 + 1e4 * slack.sum()
    assert primal == pytest.approx(ours.certificate_.primal[0], rel=1e-6)


def exact_kernel(name, options):
    wanted = {"linear": (), "rbf": ("gamma",), "poly": ("gamma", "coef0", "degree")}[name]
    return functools.partial(pairwise_kernels, metric=name, **{key: options[key] for key in wanted})


@pytest.mark.thorough
@pytest.mark.parametrize("estimator", ["SVC", pytest.param("SVR", marks=pytest.mark.slow)])
def test_certificates_of_many_float32_points_are_of_exact_kernel_values(estimator):
    """More than are computed at once in float64: at C = 1e4 a gap of 8e-4 was proved, and was 6e-3."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1100, 5)).astype(np.float32)
    target = np.sin(x[:, 0]) + 0.3 * rng.normal(size=1100)
    if estimator == "SVC":
        target = np.where(target > 0, 1.0, -1.0)
    ours = getattr(estimators, estimator)(C=1e4, gamma=0.05, **EPSILON[estimator]).fit(x, target)
    wide, coef = x.astype(np.float64), ours.dual_coef_[0]
    K = exact_kernel("rbf", {"gamma": 0.05})(wide[ours.support_], wide)
    f = coef @ K + ours.intercept_[0]
    loss = 1 - target * f if estimator == "SVC" else abs(target - f) - 0.1
    primal = coef @ K[:, ours.support_] @ coef / 2 + 1e4 * np.maximum(0, loss).sum()
    assert primal == pytest.approx(float(np.ravel(ours.certificate_.primal)[0]), rel=1e-6)


EPSILON = {"SVC": {}, "SVR": {"epsilon": 0.1}}


@pytest.mark.parametrize("name", ["SVC", "NuSVC", "SVR", "NuSVR", "OneClassSVM", "LinearSVC"])
def test_a_verbose_estimator_says_how_each_problem_ended(name, capsys):
    getattr(estimators, name)(verbose=True).fit(X, Y)
    last = capsys.readouterr().out.splitlines()[-1]
    problems = 3 if name.endswith("SVC") else 1
    assert last.startswith(f"[{name}] {problems} of {problems} problems: CONVERGED, relative gap ")
    assert "steps" in last and "left" not in last
    getattr(estimators, name)().fit(X, Y)
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("SVCPath", {}, ["12 of 12 fits of the folds, ", "3 of 3 problems: CONVERGED, relative gap "]),
        (
            "SVCPath",
            {"loss": "squared_hinge"},
            ["12 of 12 fits of the folds, ", "3 of 3 problems: CONVERGED, relative gap "],
        ),
        ("CoresetSVC", {}, ["3 of 3 problems: CONVERGED, relative gap "]),
        ("SBPClassifier", {"steps": 50}, ["3 of 3 problems: MAX_STEPS, relative gap "]),
        ("PegasosClassifier", {"passes": 2}, ["2 of 2 passes: mean loss "]),
    ],
)
def test_folds_coresets_and_passes_have_a_sign_of_life(name, options, said, capsys):
    options |= {"Cs": [1.0, 10.0], "cv": 2} if name == "SVCPath" else {}
    getattr(estimators, name)(verbose=True, **options).fit(X, Y)
    lines = [line for line in capsys.readouterr().out.splitlines() if "left" not in line and "RUNNING" not in line]
    assert len(lines) == len(said)
    assert all(line.startswith(f"[{name}] {what}") for line, what in zip(lines, said, strict=True)), lines
    getattr(estimators, name)(**options).fit(X, Y)
    assert not capsys.readouterr().out


def test_a_machine_of_a_coreset_is_certified_on_all_samples():
    """Three classes against the rest, samples of weight 0 and others: the certificate was that of forty points."""
    weight = np.random.default_rng(0).choice([0.0, 1.0, 3.0], len(Y))
    machine = estimators.CoresetSVC(C=0.5, m=40, random_state=0).fit(X, Y, weight)
    for k, label in enumerate(machine.classes_):
        w, b, y = machine.coef_[k], machine.intercept_[k], np.where(label == Y, 1, -1)
        value = 0.5 * w @ w + 0.5 * weight @ np.maximum(0, 1 - y * (X @ w + b))
        best = svm.SVC(kernel="linear", C=0.5, tol=1e-8).fit(X, y, weight)
        optimum = 0.5 * best.coef_[0] @ best.coef_[0]
        optimum += 0.5 * weight @ np.maximum(0, 1 - y * best.decision_function(X))
        primal, dual, gap = (part[k] for part in machine.certificate_)
        np.testing.assert_allclose(primal, value, rtol=1e-9)
        assert dual <= optimum * (1 + 1e-9) and value / optimum - 1 - 1e-6 <= gap < 1


@pytest.mark.thorough
def test_machines_of_several_classes_take_any_solver():
    """By pairs and against the rest, the papers' solvers find what the chosen ones find; a wrong one is refused."""
    kernel = {"loss": "squared_hinge", "bias": "regularized"}
    for multi_class, solver in (("ovo", jaxsvm.FrankWolfe(variant="away")), ("ovr", jaxsvm.CoreVectorMachine())):
        options = {**kernel, "multi_class": multi_class}
        ours = clone(estimators.SVC(solver=solver, **options)).fit(X, Y)
        assert ours.fit_status_ == 0 and (ours.certificate_.relative_gap <= 1e-4).all()
        assert type(ours.solver) is type(solver) and len(ours.certificate_.primal) == 3
        reference = estimators.SVC(**options).fit(X, Y)
        np.testing.assert_allclose(ours.decision_function(X), reference.decision_function(X), atol=0.05)
    ascent = estimators.LinearSVC(loss="hinge", solver=jaxsvm.SDCA(tol=1e-2)).fit(X, Y)
    assert ascent.fit_status_ == 0 and (ascent.certificate_.primal < 1.01 * ascent.certificate_.dual).all()
    with pytest.raises(jaxsvm.InputError, match="FrankWolfe is for squared-hinge problems"):
        estimators.SVC(solver=jaxsvm.FrankWolfe()).fit(X, Y)


@pytest.mark.parametrize("C", [1.0, 1e3])
def test_a_solution_of_the_driver_is_certified_in_double_and_continued_there(C, monkeypatch):
    """Above `LARGEST_PADDED` samples the driver solves in float32: at C = 1e3 not to this tol."""
    monkeypatch.setattr(machines, "LARGEST_PADDED", 1024)
    x, y = make_classification(1100, 6, n_informative=3, flip_y=0.1, random_state=1)
    theirs = svm.SVC(C=C, gamma=0.01, tol=1e-6).fit(x, y)
    for bias in ("free", "regularized"):
        ours = estimators.SVC(C=C, gamma=0.01, tol=1e-5, bias=bias).fit(x, y)
        a = np.zeros(len(y))
        a[ours.support_] = ours.dual_coef_[0]
        K = pairwise_kernels(x, metric="rbf", gamma=0.01) + (bias == "regularized")
        f = K @ a + (ours.intercept_ if bias == "free" else 0)
        losses = C * np.maximum(0, 1 - np.where(y == ours.classes_[1], 1, -1) * f).sum()
        primal, dual = a @ K @ a / 2 + losses, np.abs(a).sum() - a @ K @ a / 2
        assert (np.abs(a) <= C * (1 + 1e-12)).all() and (bias != "free" or abs(a.sum()) <= 1e-9 * C)
        assert primal - dual <= 1.01e-5 * dual
        np.testing.assert_allclose(ours.certificate_.primal[0], primal, rtol=1e-9)
        np.testing.assert_allclose(ours.certificate_.dual[0], dual, rtol=1e-9)
        if bias == "free":
            np.testing.assert_allclose(ours.decision_function(x), theirs.decision_function(x), atol=0.02)
