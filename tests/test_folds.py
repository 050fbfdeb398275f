"""Folds in every form that people give them; scores on them; the rule for a decision value of 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import samples
import scipy.sparse
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    LeaveOneGroupOut,
    PredefinedSplit,
    RepeatedStratifiedKFold,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
)

import jaxsvm
from jaxsvm import InputError
from jaxsvm.gram.build import landmarks_among
from jaxsvm.kernels import RBF, Polynomial, Precomputed
from jaxsvm.model_selection.folds import fold_masks
from jaxsvm.models.model import is_right

N = 12
Y = np.where(np.arange(N) % 3 == 0, 1.0, -1.0)
GROUPS = np.repeat(np.arange(4), 3)
PAIRS = [(train, test) for train, test in KFold(3).split(Y)]
WANT = [np.arange(N) // 4 == k for k in range(3)]


def as_mask(part):
    mask = np.zeros(N, bool)
    mask[part] = True
    return mask


class Bare:
    """A splitter of somebody's own."""

    def split(self, X, y=None, groups=None):
        assert X.shape[0] == len(y)
        yield from PAIRS


FORMS = {
    "splitter": lambda: KFold(3),
    "predefined": lambda: PredefinedSplit(np.arange(N) // 4),
    "own splitter": Bare,
    "generator": lambda: KFold(3).split(Y),
    "list": lambda: PAIRS,
    "tuple": lambda: tuple(PAIRS),
    "iterator": lambda: iter(PAIRS),
    "pairs as lists": lambda: [[train.tolist(), test.tolist()] for train, test in PAIRS],
    "pairs of tuples": lambda: tuple((tuple(train.tolist()), tuple(test.tolist())) for train, test in PAIRS),
    "ranges": lambda: [([*range(0, 4 * k), *range(4 * k + 4, N)], range(4 * k, 4 * k + 4)) for k in range(3)],
    "masks": lambda: [(as_mask(train), as_mask(test)) for train, test in PAIRS],
    "masks as lists": lambda: [(as_mask(train).tolist(), as_mask(test).tolist()) for train, test in PAIRS],
    "array of masks": lambda: np.stack([(as_mask(train), as_mask(test)) for train, test in PAIRS]),
    "array of pairs": lambda: np.array([*map(list, PAIRS), None], object)[:-1],
    "jax indices": lambda: [tuple(map(jnp.asarray, pair)) for pair in PAIRS],
    "small integers": lambda: [tuple(part.astype(np.uint8) for part in pair) for pair in PAIRS],
    "numbers": lambda: np.arange(N) // 4,
    "list of numbers": lambda: [k // 4 for k in range(N)],
    "tuple of numbers": lambda: tuple(np.arange(N) // 4),
    "jax numbers": lambda: jnp.arange(N) // 4,
    "other numbers": lambda: np.array([7, 11, 90])[np.arange(N) // 4],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_folds(form):
    found = fold_masks(Y, FORMS[form]())
    assert len(found) == 3
    for fold, test in zip(found, WANT, strict=True):
        assert fold.train.dtype == fold.test.dtype == bool
        np.testing.assert_array_equal(fold.test, test)
        np.testing.assert_array_equal(fold.train, ~test)


@pytest.mark.parametrize("count", [2, np.int64(3), np.asarray(4), jnp.asarray(4)])
@pytest.mark.parametrize("labels", [Y, np.array([5, 1, 5, 3, 3, 1, 1, 1, 5, 3, 3, 3]), np.arange(N) < 7])
def test_a_number_deals_as_scikit_learn_does(count, labels):
    for seed in (0, 3):
        want = StratifiedKFold(int(count), shuffle=True, random_state=seed).split(np.zeros(N), labels)
        for fold, (train, test) in zip(fold_masks(labels, count, seed=seed), want, strict=True):
            np.testing.assert_array_equal(np.flatnonzero(fold.test), test)
            np.testing.assert_array_equal(np.flatnonzero(fold.train), train)


@pytest.mark.parametrize("folds", [GroupKFold(4), LeaveOneGroupOut()])
def test_groups_are_held_out_together(folds):
    for fold in fold_masks(Y, folds.split(Y, Y, GROUPS)):
        assert not set(GROUPS[fold.test]) & set(GROUPS[fold.train])
        np.testing.assert_array_equal(fold.train, ~fold.test)


def test_samples_in_neither_part_and_in_several():
    later = fold_masks(Y, TimeSeriesSplit(3))
    assert [fold.train.sum() for fold in later] == [3, 6, 9] and all(fold.test.sum() == 3 for fold in later)
    assert len(fold_masks(Y, RepeatedStratifiedKFold(n_splits=2, n_repeats=3, random_state=0))) == 6
    assert all(fold.test.sum() == 2 for fold in fold_masks(Y, ShuffleSplit(4, test_size=2, random_state=0)))
    never = np.where(np.arange(N) < 2, -1, np.arange(N) % 2)
    for fold in fold_masks(Y, never):
        assert fold.train[:2].all() and not fold.test[:2].any()


half = np.arange(6), np.arange(6, 12)
BAD = {
    "True": (True, "folds is True"),
    "one": (1, "folds is 1: from 2 to the number of samples, 12"),
    "too many": (13, "folds is 13"),
    "a float": (3.0, "folds is 3.0"),
    "a scalar array": (np.asarray(3.5), "folds is an array of shape"),
    "nothing": (None, "folds is None"),
    "text": ("kfold", "folds is 'kfold'"),
    "a dict": ({0: half}, "folds is a dict of 1"),
    "a class": (KFold, "is the class KFold"),
    "needs groups": (GroupKFold(3), "folds: GroupKFold cannot split these samples: .*split.x, y, groups."),
    "too many splits": (KFold(13), "folds: KFold cannot split"),
    "no folds": ([], "folds holds no fold"),
    "all never": (np.full(N, -1), "folds holds no fold"),
    "too few numbers": (np.arange(5), "folds has 5 values of type int64"),
    "too few numbers in a list": ([0, 1, 0], "folds has 3 values"),
    "floats": (np.linspace(0, 1, N), "folds has 12 values of type float64"),
    "one mask": (np.arange(N) < 6, "folds has 12 values of type bool"),
    "words": (np.array(["a"] * N), "folds has 12 values of type <U1"),
    "one pair": (half, "fold 0 is an array of shape .*single pair stands in a list"),
    "one short pair": (([0, 1], [2, 3]), r"fold 0, train part, is an array|fold 0, train part, is 0"),
    "a third part": ([(*half, half[0])], "fold 0 is"),
    "not a pair": ([half, 5], "fold 1 is 5"),
    "text in a list": (["ab"], "fold 0 is 'ab'"),
    "floats in a pair": ([(half[0] / 2, half[1])], "fold 0, train part, is an array of shape .*float64"),
    "a set": ([(half[0], set(range(6)))], "fold 0, test part, is {"),
    "ragged": ([(half[0], [[1], [2, 3]])], r"fold 0, test part, is \[\[1\]"),
    "outside": ([(half[0], [6, 12])], "test part, names sample 12: from 0 to 11"),
    "negative": ([(half[0], [6, -1])], "test part, names sample -1"),
    "twice": ([(half[0], [6, 6])], "names sample 6 twice"),
    "in both": ([(half[0], [5, 6])], "fold 0 has sample 5 in both parts"),
    "short mask": ([(half[0], np.ones(3, bool))], "is a mask of 3: 12 are needed"),
}


@pytest.mark.parametrize("name", BAD)
def test_anything_else_is_refused_in_words(name):
    folds, said = BAD[name]
    with pytest.raises(InputError, match=said) as refused:
        fold_masks(Y, folds)
    assert str(refused.value).startswith("folds") and len(str(refused.value)) < 400


def test_a_generator_is_used_once():
    used = KFold(3).split(Y)
    assert len(fold_masks(Y, used)) == 3
    with pytest.raises(InputError, match="used once"):
        fold_masks(Y, used)


# --- scores


def points(n=40):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    return x, np.where(x[:, 0] + x[:, 1] ** 2 > 0.7, 1.0, -1.0)


def test_cross_validation_takes_them_all():
    x, y = points()
    gram, Cs = jaxsvm.gram(RBF(0.5), x), [0.3, 3.0]
    pairs = list(StratifiedKFold(4, shuffle=True, random_state=0).split(x, y))
    want = jaxsvm.cross_validate(jaxsvm.svm_problem(gram, y), Cs, 4)
    for folds in (pairs, tuple(pairs), StratifiedKFold(4, shuffle=True, random_state=0), want.folds.tolist()):
        found = jaxsvm.cross_validate(jaxsvm.svm_problem(gram, y), Cs, folds)
        np.testing.assert_array_equal(found.folds, want.folds)
        np.testing.assert_array_equal(found.scores, want.scores)
    for fit, (train, test) in zip((want.fits.alpha[k, 1] for k in range(4)), pairs, strict=True):
        assert not np.asarray(fit)[test].any() and np.asarray(fit)[train].any()


def test_a_sample_in_neither_part_takes_no_part():
    x, y = points()
    gram, (train, test, _) = jaxsvm.gram(RBF(0.5), x), np.array_split(np.arange(40), 3)
    found = jaxsvm.cross_validate(jaxsvm.svm_problem(gram, y), [1.0], [(train, test)], tol=1e-6)
    alone = jaxsvm.svm_problem(jaxsvm.gram(RBF(0.5), x[train]), y[train], 1.0)
    fit = jaxsvm.fit(alone, jaxsvm.FrankWolfe(tol=1e-6))
    assert found.scores[0, 0] == (np.asarray(jaxsvm.predict(fit, alone, x[test])) == y[test]).mean()
    assert not np.asarray(found.fits.alpha)[0, 0, len(train) :].any()
    assert (found.folds == np.where(np.isin(np.arange(40), test), 0, -1)).all()


def test_tune_deals_as_cross_validation_does():
    x, y = points()
    with pytest.raises(InputError, match="of class .* alone"):
        jaxsvm.tune(RBF(0.5), x, y, folds=(y > 0).astype(int))
    with pytest.raises(InputError, match="no sample held out"):
        jaxsvm.tune(RBF(0.5), x, y, folds=[(np.arange(40), [])])


@pytest.mark.thorough
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kernel", [RBF(0.5), Polynomial(2, 0.5, 1.0)])
def test_landmarks_come_from_the_training_part(kernel, sparse):
    """The scores are those of a Gram that has never seen the samples held out."""
    x, y = points()
    x = x + 3
    train, test = np.arange(0, 40, 2), np.arange(1, 40, 2)
    x[test[0]] = 30.0  # of all points the first that pivots would choose
    form = scipy.sparse.csr_matrix if sparse else np.asarray
    seen = []
    found = jaxsvm.cross_validate(
        jaxsvm.svm_problem(jaxsvm.gram(kernel, form(x), rank=6), y),
        [1.0],
        [(train, test)],
        score="squared_hinge",
        tol=1e-12,
        callback=lambda place, fit: seen.append((place, fit.status.name)),
    )
    assert seen == [(0, found.status.name.item())]
    alone = jaxsvm.svm_problem(jaxsvm.gram(kernel, form(x[train]), rank=6), y[train], 1.0)
    values = jaxsvm.decision_function(jaxsvm.fit(alone, jaxsvm.FrankWolfe(tol=1e-12)), alone, form(x[test]))
    want = -np.mean(np.maximum(0, 1 - y[test] * np.asarray(values)) ** 2)
    np.testing.assert_allclose(found.scores[0, 0], want, rtol=1e-5)


def test_random_landmarks_come_from_the_training_part_too():
    x, _ = points()
    allowed = np.arange(40) < 15
    for options in ({"landmarks": "random"}, {"landmarks": "pivoted"}):
        for rank, kept in ((6, 6), (30, 15)):
            gram = jaxsvm.gram(RBF(0.5), x, rank=rank, **options)
            chosen = landmarks_among(gram, allowed, jax.random.key(1))
            landmarks = np.asarray(chosen.features.x + chosen.features.shift)
            distances = np.abs(landmarks[:, None] - x[allowed]).max(axis=2).min(axis=1)
            assert landmarks.shape == (kept, 2) and distances.max() < 1e-12
            assert len(np.unique(landmarks, axis=0)) == kept
            np.testing.assert_allclose(chosen.Z, chosen.features(jnp.asarray(x)), atol=1e-12)
    fourier = jaxsvm.gram(RBF(0.5), x, rank=6, method="fourier")
    assert fourier.landmarks is None  # drawn without a look at the points


# --- a decision value of 0


def test_zero_is_positive_in_every_score():
    """Samples that have nothing in common: every held-out value is 0, and predicted +1."""
    y = np.repeat([1.0, -1.0], [6, 2])
    gram = jaxsvm.gram(Precomputed(), np.eye(8))
    folds = [(np.array([0, 1, 6]), np.array([2, 3, 4, 7]))]

    for score, want in (("accuracy", 0.75), ("balanced_accuracy", 0.5)):
        assert jaxsvm.cross_validate(jaxsvm.svm_problem(gram, y, bias="none"), [1.0], folds, score=score).scores == want


@pytest.mark.parametrize("xp", [np, jnp])
def test_one_rule_for_the_right_side(xp):
    values, y = np.array([-1.0, -0.0, 0.0, 1.0] * 2), np.repeat([1.0, -1.0], 4)
    predicted = np.where(np.asarray(jaxsvm.models.model.is_positive(values)), 1, -1)
    np.testing.assert_array_equal(is_right(xp.asarray(y * values), xp.asarray(y)), predicted == y)


@pytest.mark.thorough
def test_zero_is_positive_in_the_error_of_tuning():
    x, y = np.array([[-1.0], [1.0], *[[0.0]] * 4]), np.array([-1.0, 1.0, 1.0, 1.0, 1.0, -1.0])  # f(0) = 0
    seen = []
    jaxsvm.tune(RBF(1.0), x, y, 1.0, folds=[([0, 1], [2, 3, 4, 5])], steps=1, callback=seen.append)
    assert seen[0].error == 0.25


def test_folds_under_tracing_are_refused():
    x, y = points()
    gram = jaxsvm.gram(RBF(0.5), x)
    with pytest.raises(InputError, match="outside jit"):
        jax.jit(lambda folds: jaxsvm.cross_validate(jaxsvm.svm_problem(gram, y), [1.0], folds).mean)(jnp.arange(40) % 3)


def test_cross_validation_and_a_grid_for_hinge_problems():
    seen = {}
    grid = jaxsvm.C_grid(samples.hinge(), 5, callback=seen.__setitem__)
    assert (np.diff(grid) > 0).all()
    assert list(seen) == pytest.approx([grid[0] * 10.0**k for k in range(len(seen))])
    assert {fit.alpha.shape for fit in seen.values()} == {(samples.N,)}  # without padding
    low = jaxsvm.fit(samples.hinge(grid[0] * 0.99), jaxsvm.SMO(tol=1e-9))
    assert (low.margins <= 1 + 1e-6).all()
    chosen = jaxsvm.cross_validate(samples.hinge(), grid, 3)
    assert (np.asarray(chosen.status) == jaxsvm.Status.CONVERGED).all()
    assert 0.6 < chosen.mean.max() <= 1
    with pytest.raises(jaxsvm.InputError, match="BallProblem"):
        jaxsvm.C_grid(jaxsvm.meb_problem(samples.gram()), 5)


@pytest.mark.parametrize("bias", ["none", "regularized"])
def test_a_grid_of_nu_goes_from_all_under_water_to_nothing_changes(bias):
    """At the largest value w is the mean of all samples, and the level needs `max c - mean c`: both by NumPy."""
    seen, (x, y) = {}, samples.data()
    problem = jaxsvm.slack_problem(samples.gram(), y, 0.1, bias=bias)
    grid = jaxsvm.C_grid(problem, 4, callback=seen.__setitem__)
    assert (np.diff(grid) > 0).all() and {fit.alpha.shape for fit in seen.values()} == {(samples.N,)}
    K = np.asarray(problem.gram.kernel.matrix(x, x), float) + (bias == "regularized")
    c = y * (K @ y) / np.sqrt(y @ K @ y)
    assert c.max() - c.mean() <= grid[-1] * 1.01
    path = jaxsvm.solve_path(problem, grid, tol=1e-4)
    assert (np.asarray(path.status) == jaxsvm.Status.CONVERGED).all()
    levels = np.asarray(path.certificate.dual)
    assert (np.diff(levels) > 0).all()
