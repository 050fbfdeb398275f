"""Several classes: machines on one Gram operator, solved as lanes, judged one by one and by scikit-learn."""

import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import SVC

import jaxsvm
from jaxsvm.kernels import RBF, Linear

X, Y = (part[::3] for part in load_iris(return_X_y=True))
NEW = load_iris().data[1::3]
GRAM = jaxsvm.gram(RBF(0.5), X, store=True)
BUILDERS = {"rest": jaxsvm.one_versus_rest, "pairs": jaxsvm.one_versus_one}


def hinge(gram=GRAM, C=10.0, **options):
    return partial(jaxsvm.hinge_problem, gram, C=C, bias="free", **options)


def machines(name, **options):
    return BUILDERS[name](hinge(**options), Y)


def one_by_one(name):
    make, codes = hinge(), range(3)
    if name == "rest":
        return [jaxsvm.fit(make(np.where(code == Y, 1, -1))) for code in codes]
    pairs = [(0, 1), (0, 2), (1, 2)]
    return [jaxsvm.fit(make(np.where(i == Y, 1, -1), sample_weight=np.isin(Y, (i, j)) * 1.0)) for i, j in pairs]


def peer(name):
    svc = SVC(C=10, gamma=0.5, tol=1e-6)
    return (OneVsRestClassifier(svc) if name == "rest" else svc).fit(X, Y)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", BUILDERS)
def test_machines_are_solved_as_one_by_one_and_predict_as_the_peer(name, traced):
    def run(codes, C):
        built = BUILDERS[name](hinge(C=C), codes, classes=3)
        fits = jaxsvm.fit_many(built, jaxsvm.SMO(tol=1e-7))
        return fits, jaxsvm.decision_function(fits, built, NEW), jaxsvm.predict(fits, built, NEW)

    fits, values, codes = (jax.jit(run) if traced else run)(Y, 10.0)
    jaxsvm.check(fits)
    loop = one_by_one(name)
    np.testing.assert_allclose(fits.certificate.primal, [float(fit.certificate.primal) for fit in loop], rtol=2e-4)
    assert values.shape == (len(NEW), 3) and np.issubdtype(codes.dtype, np.integer)
    np.testing.assert_array_equal(codes, peer(name).predict(NEW))


@pytest.mark.parametrize("name", BUILDERS)
def test_a_machine_is_a_problem_and_all_have_paths(name):
    built = machines(name)
    assert len(list(built)) == len(built) == 3 and all(problem.gram is GRAM for problem in built)
    fits = jaxsvm.fit_many(built)
    for lane, fit in enumerate(one_by_one(name)):
        np.testing.assert_allclose(fits.certificate.primal[lane], fit.certificate.primal, rtol=1e-4)
        np.testing.assert_allclose(fits.margins[lane], fit.margins, atol=1e-2)  # by one program, not by the driver
    path = jaxsvm.solve_path(list(built), [1.0, 10.0])
    np.testing.assert_allclose(path.certificate.primal[:, 1], fits.certificate.primal, rtol=2e-4)
    with pytest.raises(IndexError, match="3 machines"):
        built[3]


def test_lanes_of_lanes():
    """A batch of C, and of data sets, each of three machines."""
    Cs = jnp.array([1.0, 10.0])
    of_C = jax.jit(jax.vmap(lambda C: jaxsvm.fit_many(jaxsvm.one_versus_one(hinge(C=C), Y))))(Cs)
    assert of_C.alpha.shape == (2, 3, len(Y)) and (of_C.status == jaxsvm.Status.CONVERGED).all()
    np.testing.assert_allclose(
        of_C.certificate.primal[1], jaxsvm.fit_many(machines("pairs")).certificate.primal, rtol=2e-4
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", BUILDERS)
def test_the_gradient_by_features(name):
    """Of a loss on decision values of new points, against central differences."""
    x, codes, rows = X[::2], Y[::2], jnp.asarray(NEW[:10])

    def loss(x):
        gram = jaxsvm.gram(Linear(), x)
        built = BUILDERS[name](partial(jaxsvm.svm_problem, gram, C=1.0), codes)
        fits = jaxsvm.fit_many(built, jaxsvm.Newton(tol=1e-12))
        return (jaxsvm.decision_function(fits, built, rows) ** 2).mean()

    along = np.random.default_rng(0).normal(size=x.shape)
    h = 1e-4
    compiled = jax.jit(loss)
    expected = (compiled(x + h * along) - compiled(x - h * along)) / (2 * h)
    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        assert (gradient(x) * along).sum() == pytest.approx(float(expected), rel=1e-5)


def test_sample_weights_stay():
    weight = np.where(np.arange(len(Y)) % 5 == 0, 0.0, 2.0)
    built = machines("pairs", sample_weight=weight)
    np.testing.assert_array_equal(built[1].weight, weight * np.isin(Y, (0, 2)))


def test_pairs_make_a_model_that_is_kept():
    built = machines("pairs")
    fits = jaxsvm.fit_many(built)
    model = jaxsvm.compact(fits, built, classes=("setosa", "versicolor", "virginica"))
    assert model.coef.shape[0] < len(Y) and model.coef.shape[1] == 3
    np.testing.assert_allclose(
        jaxsvm.decision_function(model, NEW), jaxsvm.decision_function(fits, built, NEW), atol=1e-12
    )
    assert (jaxsvm.predict(model, NEW) == np.array(model.classes)[jaxsvm.predict(fits, built, NEW)]).all()
    with pytest.raises(jaxsvm.InputError, match="each against the rest"):
        jaxsvm.compact(fits, machines("rest"))


def test_a_value_that_is_not_known_is_no_class():
    built = machines("rest")
    fits = jaxsvm.fit_many(built)
    lost = jax.jit(lambda fits, x: jaxsvm.predict(fits, built, x))(fits, jnp.full((1, 4), jnp.nan))
    assert lost.tolist() == [-1]


def test_what_time_did_not_reach_says_so():
    fits = jaxsvm.fit_many(machines("pairs"), max_seconds=0.0)
    assert (fits.status == jaxsvm.Status.INTERRUPTED).all() and np.isinf(fits.certificate.relative_gap[1:]).all()


def test_a_callback_gets_every_machine_in_the_callers_thread():
    seen, here = {}, threading.current_thread()

    def callback(place, fit):
        assert threading.current_thread() is here and place not in seen
        seen[place] = fit.alpha

    fits = jaxsvm.fit_many(machines("pairs"), callback=callback)
    np.testing.assert_array_equal([seen[place] for place in range(3)], fits.alpha)
    with pytest.raises(ZeroDivisionError):
        jaxsvm.fit_many(machines("pairs"), callback=lambda *_: 1 / 0)
    with pytest.raises(jaxsvm.InputError, match="callback and max_seconds need concrete arrays"):
        jax.jit(lambda codes: jaxsvm.fit_many(BUILDERS["rest"](hinge(), codes, 3), callback=print).alpha)(Y)


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (["a", "b"], None, "np.unique"),
        ([0.5, 1.0], None, "class codes"),
        ([0, 0], None, "two or more"),
        ([0, 1, 5], 3, r"labels has the class codes \[0, 1, 5\]: samples of each class from 0 to 2"),
        ([0, 2, 2], None, r"labels has the class codes \[0, 2\]: samples of each class from 0 to 2"),
        (Y[:-1], None, "shape"),
    ],
)
@pytest.mark.parametrize("name", BUILDERS)
def test_labels_that_are_no_codes_are_refused(name, labels, classes, message):
    with pytest.raises(jaxsvm.InputError, match=message):
        BUILDERS[name](hinge(), np.asarray(labels), classes=classes)


@pytest.mark.parametrize("name", BUILDERS)
def test_traced_labels_that_are_no_codes_are_infeasible(name):
    """Also pairs with a class that has no sample, which are problems without weights."""
    run = jax.jit(lambda codes: jaxsvm.fit_many(BUILDERS[name](hinge(), codes, classes=3)).status.code)
    assert (np.asarray(run(np.where(Y == 1, 7, Y))) == jaxsvm.Status.INFEASIBLE).all()
    absent = np.asarray(run(np.where(Y == 1, 0, Y))).tolist()
    assert absent.count(jaxsvm.Status.INFEASIBLE) == (1 if name == "rest" else 2)
    with pytest.raises(jaxsvm.InputError, match="classes=3"):
        jax.jit(lambda codes: jaxsvm.one_versus_rest(hinge(), codes))(Y)


def test_weights_that_leave_no_sample_of_a_class_are_refused():
    with pytest.raises(jaxsvm.InputError, match="positive weight"):
        machines("pairs", sample_weight=(Y != 2).astype(float))


def test_codes_of_a_byte():
    wide, narrow = (jaxsvm.one_versus_one(hinge(), Y.astype(kind)) for kind in (np.int64, np.uint8))
    np.testing.assert_array_equal(wide.lanes.y, narrow.lanes.y)
    with pytest.raises(jaxsvm.InputError, match="class codes .0, 1, 2.: samples of each class from 0 to 299"):
        jaxsvm.one_versus_rest(hinge(), Y.astype(np.uint8), classes=300)


def test_what_is_no_machines_is_refused():
    with pytest.raises(jaxsvm.InputError, match="one_versus_rest"):
        jaxsvm.fit_many(list(machines("rest")))
    built = machines("rest")
    with pytest.raises(jaxsvm.InputError, match="lane each"):
        jaxsvm.predict(jaxsvm.fit(built[0]), built, NEW)
