"""Designs: linear SVMs of rows anywhere, against their definition, the problems in memory, and each other."""

import dataclasses
import pickle
import warnings

import jax
import numpy as np
import pytest
import scipy.sparse
from sklearn.metrics import accuracy_score, r2_score

import jaxsvm
from jaxsvm import designs
from jaxsvm.designs import descent
from jaxsvm.designs import measured as numbers
from jaxsvm.designs.features import applied
from jaxsvm.designs.losses import Describe, Spread
from jaxsvm.designs.places import arrays, files
from jaxsvm.errors import ConvergenceWarning, DataError, InputError
from jaxsvm.kernels import RBF, Linear, Precomputed


def data(n=300, d=3, seed=0, noise=0.5):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)).astype(np.float32)
    f = x @ np.arange(1.0, d + 1) - 0.5
    return x, np.where(f + noise * rng.normal(size=n) > 0, 1, -1), f


def primal(x, y, fit, C, loss, bias, weight=1.0, epsilon=0.1):
    f = x.astype(float) @ fit.coef + fit.intercept
    z = np.maximum(np.abs(y - f) - epsilon, 0) if loss == "epsilon_insensitive" else np.maximum(1 - y * f, 0)
    each = z**2 / 2 if loss == "squared_hinge" else z
    return fit.coef @ fit.coef / 2 + (bias == "regularized") * fit.intercept**2 / 2 + C * (weight * each).sum()


def as_for_many_rows(monkeypatch):
    small = dataclasses.replace(numbers.MEASURED, most_rows=64)
    monkeypatch.setattr(descent, "MEASURED", small)


@pytest.mark.thorough
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "epsilon_insensitive"])
@pytest.mark.parametrize("bias", ["regularized", "free", "none"])
@pytest.mark.parametrize("many", [False, True])
def test_the_certificate_holds_by_definition(loss, bias, many, monkeypatch):
    if many:
        as_for_many_rows(monkeypatch)
    x, y, f = data(600)
    y = 10 * f + np.random.default_rng(2).normal(size=600) if loss == "epsilon_insensitive" else y
    rng = np.random.default_rng(1)
    weight = rng.uniform(0, 2, len(y))
    design = designs.from_arrays(x, y, weight, regression=loss == "epsilon_insensitive")
    for C in (1e-3, 1.0, 1e4):
        fit = designs.fit(design, C, loss=loss, bias=bias, tol=1e-6)
        assert fit.status.name == "CONVERGED" and fit.passes <= 40
        P, D, gap = (float(part) for part in fit.certificate)
        np.testing.assert_allclose(P, primal(x, y, fit, C, loss, bias, weight), rtol=1e-12)
        assert D <= P * (1 + 1e-12) and gap <= 1e-6
        if loss != "epsilon_insensitive":
            make = jaxsvm.hinge_problem if loss == "hinge" else jaxsvm.svm_problem
            problem = make(jaxsvm.gram(Linear(), x), y, C, bias=bias, sample_weight=weight)
            other = jaxsvm.fit(problem, tol=1e-4)
            assert float(other.certificate.dual) <= P * (1 + 1e-5) and float(other.certificate.primal) >= D * (1 - 1e-5)


def places(x, y, path):
    """The same rows in each place that one process has."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {f"c{j}": x[:, j] for j in range(x.shape[1])} | {"label": y}
    cut = len(y) // 3
    for k, part in enumerate((slice(0, cut), slice(cut, None))):
        parquet.write_table(pa.table({name: column[part] for name, column in columns.items()}), path / f"{k}.parquet")
    yield "parquet", designs.from_files(path / "[01].parquet", label="label")
    np.savez(path / "a.npz", X=x, y=y)
    yield "npz", designs.from_files(path / "a.npz")
    yield "sparse", designs.from_arrays(scipy.sparse.csr_matrix(x), y)
    yield "mesh", designs.from_arrays(x, y, mesh=jax.make_mesh((1,), ("rows",)))
    da = pytest.importorskip("dask.array")
    size = max(70, len(y) // 2)
    yield "dask", designs.from_dask((da.from_array(x, chunks=(size, 3)), da.from_array(y, chunks=size)))


def test_sums_over_chunks_of_any_size_count_all_rows(tmp_path, monkeypatch):
    """Rows of NumPy, of files and partitions, were cut after the first tile of 2,048."""
    x, y, _ = data(5000)
    for place, rows in (("one", designs.from_arrays(x, y)), *places(x, y, tmp_path)):
        weight, sums, *_ = rows.total(Describe(1, 0))
        assert weight == 5000, place
        np.testing.assert_allclose(sums[0, 0], x.sum(axis=0, dtype=float), atol=1e-9, err_msg=place)
    as_for_many_rows(monkeypatch)
    rough = designs.fit(rows, bias="free", tol=0.5)  # the part of rows was kept at w = 0, from where no step went
    assert rough.status.name == "CONVERGED" and rough.certificate.primal < 4000


@pytest.mark.thorough
def test_every_place_has_the_same_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MEASURED", dataclasses.replace(files.MEASURED, bytes_per_chunk=8 * 3 * 128))
    as_for_many_rows(monkeypatch)
    x, y, _ = data(400)
    one = designs.from_arrays(x, y)
    kernel = RBF(0.5)
    fits = {
        "": lambda rows: designs.fit(rows, [0.1, 10.0], bias="free", tol=1e-6),
        "features": lambda rows: designs.fit(designs.nystroem(designs.standardised(rows), kernel, 8), tol=1e-6),
    }
    expected = {name: fit(one) for name, fit in fits.items()}
    for place, rows in places(x, y, tmp_path):
        np.testing.assert_array_equal(rows.chosen(Spread(400, 50)).first + np.arange(50), np.arange(7, 400, 8), place)
        for name, fit in fits.items():
            got, wanted = fit(rows), expected[name]
            np.testing.assert_allclose(got.coef, wanted.coef, atol=1e-9, err_msg=f"{place} {name}")
            np.testing.assert_allclose(got.certificate.primal, wanted.certificate.primal, rtol=1e-8)
            np.testing.assert_array_equal(got.predict(x), wanted.predict(x))
            assert set(got.status.name.ravel() if got.status.shape else [got.status.name]) == {"CONVERGED"}


def test_several_classes_targets_and_values_of_C_share_the_passes():
    x, _, f = data(500)
    labels = np.asarray(["a", "b", "c"])[np.digitize(f, [-2, 1])]
    fit = designs.fit(designs.from_arrays(x, labels), [0.1, 1.0])
    assert fit.coef.shape == (2, 3, 3) and fit.C.shape == (2, 3) and fit.classes == ("a", "b", "c")
    assert (fit.predict(x)[:, 1] == labels).mean() > 0.8
    single = designs.fit(designs.from_arrays(x, np.where(labels == "b", 1, -1)), 1.0)
    np.testing.assert_allclose(fit.certificate.primal[1, 1], single.certificate.primal, rtol=1e-4)
    targets = designs.fit(designs.from_arrays(x, f, regression=True), 10.0, loss="epsilon_insensitive", bias="free")
    np.testing.assert_allclose(targets.predict(x), f, atol=0.15)


@pytest.mark.thorough
def test_folds_of_several_classes_and_of_targets_are_fits_of_the_other_rows():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(240, 3))
    letters = np.array(["a", "b", "c"])[(x @ rng.normal(size=(3, 3)) + 0.5 * rng.normal(size=(240, 3))).argmax(axis=1)]
    weight, targets = rng.uniform(0.5, 2, 240) * (np.arange(240) % 7 > 0), x @ [1.0, -1, 0.5] + 5
    for y, options in ((letters, {}), (targets, {"loss": "epsilon_insensitive", "bias": "free"})):
        regression = bool(options)
        rows = designs.from_arrays(x, y, weight, regression=regression)
        with warnings.catch_warnings(action="error"):  # rows that are fetched keep their folds
            scores = designs.cross_validate(rows, [0.01, 1.0], folds=3, tol=1e-6, **options)
        for fold in range(3):
            held = np.arange(240) % 3 == fold
            others = designs.from_arrays(x[~held], y[~held], weight[~held], regression=regression)
            guess = designs.fit(others, [0.01, 1.0], tol=1e-6, **options).predict(x[held])
            score = r2_score if regression else accuracy_score
            expected = [score(y[held], column, sample_weight=weight[held]) for column in guess.T]
            np.testing.assert_allclose(scores.scores[fold], expected, atol=0.04)
    with pytest.warns(ConvergenceWarning, match="MAX_STEPS"):
        designs.cross_validate(rows, [1.0], folds=3, tol=1e-9, max_passes=2, **options)


def test_folds_of_targets_have_the_scores_of_cross_validate():
    """R2 on the same folds, of targets far from 0 too; a fold whose targets are equal has none."""
    x, _, f = data(90)
    y, Cs, options = f + 1e6, [0.01, 1.0], {"loss": "epsilon_insensitive", "bias": "free", "tol": 1e-6}
    scores = designs.cross_validate(designs.from_arrays(x, y, regression=True), Cs, folds=3, **options)
    problem = jaxsvm.svr_problem(jaxsvm.gram(Linear(), x.astype(float)), y, epsilon=0.1)
    expected = jaxsvm.cross_validate(problem, Cs, np.arange(90) % 3, tol=1e-6)
    np.testing.assert_allclose(scores.scores, expected.scores, atol=2e-3)
    assert scores.C == 1.0 and 0.9 < scores.mean[1] < 1
    y[::3] = 0.1
    with pytest.raises(InputError, match="two targets that differ; fold 0 holds out none"):
        designs.cross_validate(designs.from_arrays(x, y, regression=True), Cs, folds=3, **options)


def test_what_takes_no_design_says_what_does():
    pytest.importorskip("sklearn")
    from jaxsvm.estimators import LinearSVC

    x, y, _ = data(30)
    rows = designs.from_arrays(x, y)
    with pytest.raises(InputError, match=r"X is a design: `jaxsvm\.designs\.fit"):
        LinearSVC().fit(rows)
    with pytest.raises(InputError, match=r"designs\.cross_validate"):
        jaxsvm.tune(RBF(1.0), rows, None, folds=3)


@pytest.mark.thorough
def test_a_fit_is_a_model_that_is_kept(tmp_path):
    x, y, f = data(300)
    plain, names = designs.from_arrays(x, y), np.where(y > 0, "yes", "no")
    scaled = designs.standardised(designs.from_arrays(10 * x + 3, names))
    for rows, points in ((plain, x), (scaled, 10 * x + 3), (designs.nystroem(scaled, RBF(0.3), 8), 10 * x + 3)):
        fit = designs.fit(rows, 1.0)
        fit.model().save(tmp_path / "model.npz")
        model = jaxsvm.load_model(tmp_path / "model.npz")
        np.testing.assert_allclose(jaxsvm.decision_function(model, points), fit.decision_function(points), atol=1e-5)
        assert (np.asarray(jaxsvm.predict(model, points)) == fit.predict(points)).all()
        assert fit.predict(points[:0]).shape == (0,)
    fit = designs.fit(scaled, [0.1, 1.0])
    np.testing.assert_allclose(fit.unscaled().decision_function(10 * x + 3), fit.decision_function(10 * x + 3))
    with jax.enable_x64(False):  # digits of the maps are kept
        again = pickle.loads(pickle.dumps(fit))
    np.testing.assert_array_equal(again.decision_function(x), fit.decision_function(x))
    for several in (fit, designs.fit(designs.standardised(scaled))):
        with pytest.raises(InputError, match="one machine"):
            several.model()
    kernels = designs.fit(designs.nystroem(plain, RBF(0.3), 8), 1.0)
    with pytest.raises(InputError, match="do not exist"):
        kernels.unscaled()
    with_constant = designs.fit(plain, 0.01, bias="free")
    assert designs.fit(plain, 0.01, bias="none", init=with_constant).intercept == 0
    for narrow in (x[:, :1], x[:, 0]):  # a single column would be taken for all
        with pytest.raises(InputError, match="points of 3 columns"):
            kernels.predict(narrow)
    targets = designs.from_arrays(x, f, regression=True)
    regression = designs.fit(targets, loss="epsilon_insensitive").model()
    np.testing.assert_allclose(jaxsvm.predict(regression, x), f, atol=0.2)


def test_a_run_that_was_stopped_goes_on_from_its_checkpoint_in_another_place(tmp_path, monkeypatch):
    as_for_many_rows(monkeypatch)
    x, y, _ = data(400)
    one, path = designs.from_arrays(x, y), tmp_path / "state.npz"
    whole = designs.fit(one, [0.1, 10.0], tol=1e-6)
    with pytest.warns(ConvergenceWarning, match="INTERRUPTED"):
        part = designs.fit(one, [0.1, 10.0], tol=1e-6, checkpoint=path, callback=lambda passes, gaps: passes >= 4)
    assert part.passes < whole.passes and path.exists()
    mesh = designs.from_arrays(x, y, mesh=jax.make_mesh((1,), ("rows",)))
    resumed = designs.fit(mesh, [0.1, 10.0], tol=1e-6, checkpoint=path)
    np.testing.assert_allclose(resumed.coef, whole.coef, atol=1e-12)
    assert resumed.passes == whole.passes + 1 and not path.exists()  # a pass compares the rows
    designs_of_more = designs.from_arrays(x[:-1], y[:-1])
    with pytest.warns(ConvergenceWarning):
        designs.fit(one, 1.0, max_passes=2, checkpoint=path, tol=1e-9)
    with pytest.raises(InputError, match="rows differ"):
        designs.fit(designs_of_more, 1.0, checkpoint=path, tol=1e-9)
    with pytest.raises(InputError, match="sums over the rows differ"):
        designs.fit(designs.from_arrays(2 * x, y), 1.0, checkpoint=path, tol=1e-9)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="not a whole state"):
        designs.fit(one, 1.0, checkpoint=path)


def test_what_cannot_be_used_is_refused_by_name(tmp_path, monkeypatch):
    x, y, f = data(50)
    one, two = designs.from_arrays(x, y), designs.from_arrays(x, np.arange(50) == 4)
    cases = [
        (lambda: designs.fit(x), "design is a ndarray"),
        (lambda: designs.fit(one, -1.0), "C is -1"),
        (lambda: designs.fit(one, loss="epsilon_insensitive"), "targets and the epsilon-insensitive"),
        (lambda: designs.fit(one, bias="intercept"), "bias is 'intercept'"),
        (lambda: designs.from_arrays(x, np.ones(50)), "one class only"),
        (lambda: designs.from_arrays(x, y[:-1]), r"y has shape \(49,\)"),
        (lambda: designs.fit(designs.from_arrays(x, y, (y > 0) * 1.0)), "no row of class"),
        (lambda: designs.cross_validate(one, [1.0], folds=1), "folds is 1"),
        (lambda: designs.cross_validate(one, [1.0], folds=51), "fold 50 has no row"),
        (lambda: designs.cross_validate(two, [1.0], folds=2), "outside fold 0: two classes"),
        (lambda: designs.nystroem(one, "rbf", 3), "kernel is a str"),
        (lambda: designs.nystroem(one, Precomputed(), 3), "kernel is a Precomputed"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()
    with monkeypatch.context() as little:
        little.setattr(descent, "memory", lambda: 5 * 10**5)
        with pytest.raises(InputError, match=r"C is of 300 machines .* take .* fit some at a time"):
            designs.fit(one, np.ones(300))
    with pytest.raises(InputError, match="points of 3 features"):
        designs.fit(one).predict(x[:, :2])
    with pytest.raises(InputError, match="init"):
        designs.fit(one, init=dataclasses.replace(designs.fit(one), coef=np.full(3, np.nan)))
    with pytest.raises(InputError, match=r"1 point\(s\) with NaN, the first in row 2"):
        designs.fit(one).predict(np.where(np.arange(5)[:, None] == 2, np.nan, x[:5]))
    assert len(repr(one)) < 200 and len(repr(designs.standardised(one))) < 400
    np.savez(tmp_path / "a.npz", X=x, y=y)
    with pytest.raises(DataError, match="c[*].npz: there is no such file, and none that fits"):
        designs.from_files(tmp_path / "c*.npz")
    rows = designs.from_files(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", X=x[:-1], y=y[:-1])
    with pytest.raises(DataError, match="changed since"):
        designs.fit(rows)
    np.savez(tmp_path / "b.npz", X=x.astype(float) * 1e60, y=y)
    with pytest.raises(DataError, match="float32 does not hold"):
        designs.fit(designs.from_files(tmp_path / "b.npz"))


@pytest.mark.parametrize("kind", ["delayed", "arrays", "frame"])
def test_partitions_of_any_form_are_the_rows(kind):
    dask, (x, y, _) = pytest.importorskip("dask"), data(500)
    if kind == "delayed":
        rows = designs.from_dask([dask.delayed((x[i : i + 50], y[i : i + 50])) for i in range(0, 500, 50)])
    elif kind == "arrays":
        da = pytest.importorskip("dask.array")
        rows = designs.from_dask((da.from_array(x, chunks=(50, 1)), da.from_array(y, chunks=70)))
    else:
        pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
        frame = pd.DataFrame({"a": x[:, 0], "class": y, "b": x[:, 1], "c": x[:, 2]})
        rows = designs.from_dask(dd.from_pandas(frame, npartitions=10), label="class")
    found = rows.chosen(Spread(500, 500))
    assert len(rows.parts) == 10 and rows.classes == (-1, 1)
    np.testing.assert_array_equal(found.x, x)
    np.testing.assert_array_equal(found.y, y > 0)


def test_partitions_that_cannot_be_used_are_refused_by_name():
    delayed = pytest.importorskip("dask").delayed
    x, y, f = data(50)
    part = delayed(lambda *part: part)
    y_and_none = y.astype(object)
    y_and_none[3] = None
    cases = [
        ([part(x, y), part(x, y.astype(str))], {}, "text in some partitions"),
        ([part(x, y_and_none)], {}, "missing or not finite"),
        ([part(x, y[:, None])], {}, r"labels \(50, 1\)"),
        ([part(x, y), part(x[:, :2], y)], {}, r"partitions of \[2, 3\] columns"),
        ([part(x, f)], {}, "50 labels in 50 rows"),
        ([part(x, f, np.zeros(50))], {"regression": True}, "no row with a positive weight"),
    ]
    for parts, how, message in cases:
        with pytest.raises(InputError, match=message):
            designs.fit(designs.from_dask(parts, **how), loss="epsilon_insensitive" if how else "hinge")
    pandas, frames = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    rows = frames.from_pandas(pandas.DataFrame({"a": f, "b": y}), npartitions=2)
    assert len(repr(designs.from_dask(rows, label="b"))) < 100
    with pytest.raises(
        DataError, match="or say where the labels are.* Dask's `fillna`"
    ) as refused:  # no option of `load`
        designs.from_dask(rows.assign(c="red"), label="b")
    assert "--" not in str(refused.value)


@pytest.mark.thorough
def test_a_tube_of_classes_is_refused():
    x, y, _ = data(40)
    for call in (designs.fit, designs.cross_validate):
        with pytest.raises(jaxsvm.InputError, match="epsilon is 0.1, loss 'hinge': .* for 'epsilon_insensitive' alone"):
            call(designs.from_arrays(x, y), [1.0], epsilon=0.1)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "epsilon_insensitive"])
@pytest.mark.parametrize("bias", ["regularized", "free"])
def test_bounds_hold_where_numbers_are_extreme(loss, bias):
    """C over sixteen orders, repeated and unordered; few rows; a constant column; targets far from 0; epsilon 0."""
    x, y, f = data(40)
    x[:, 0] = 1000.0
    y, Cs = (f + 1e6 if loss == "epsilon_insensitive" else y), [1.0, 1e8, 1e-8, 1.0]
    for rows, tol in ((slice(None), 1e-10), (slice(0, 7), 1e-6)):
        design = designs.from_arrays(x[rows], y[rows], regression=loss == "epsilon_insensitive")
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # float64 has no 1e-10 of some
            fit = designs.fit(
                design, Cs, loss=loss, bias=bias, tol=tol, epsilon=0.0 if loss == "epsilon_insensitive" else None
            )
        assert fit.certificate.primal[0] == fit.certificate.primal[3]
        for k, C in enumerate(Cs):
            one = dataclasses.replace(fit, coef=fit.coef[k], intercept=fit.intercept[k])
            P, D, gap = (part[k] for part in fit.certificate)
            value = primal(x[rows], y[rows], one, C, loss, bias, epsilon=0.0)
            slack = 1e-11 * value + 1e-15 * C * (np.abs(y[rows]).sum() if loss == "epsilon_insensitive" else 0)
            scores = np.abs(x[rows]) @ np.abs(one.coef) + np.abs(one.intercept) + np.maximum(np.abs(y[rows]), 1)
            above = slack + 8e-15 * C * scores.sum()  # P allows for the rounding of scores
            assert not gap < np.inf or (-slack <= P - value <= above and value + slack >= D)
            assert not gap < np.inf or gap * P + slack >= P - D
            assert gap <= 1e-4 or bias == "free"


def test_a_part_of_the_rows_without_weight_is_no_start(monkeypatch):
    as_for_many_rows(monkeypatch)
    x, y, _ = data(200)
    some = [int(np.flatnonzero(y == sign)[3]) for sign in (-1, 1)]
    weight = np.bincount(some, minlength=200).astype(float)
    fit = designs.fit(designs.from_arrays(x, y, weight), tol=1e-8)
    np.testing.assert_allclose(fit.coef, designs.fit(designs.from_arrays(x[some], y[some]), tol=1e-8).coef, atol=1e-6)
    with pytest.raises(InputError, match="rows is 3"):
        designs.nystroem(designs.from_arrays(x, y, weight), RBF(0.5), 2, rows=3)


class Mine:
    """Rows of a user's own, as NumPy arrays that no program is compiled for."""

    classes, features, together = (-1, 1), (), False

    def __init__(self, x, y):
        self.x, self.y, (self.n, self.d) = x, y, x.shape

    def chunks(self):
        for i in range(0, self.n, 50):
            x, y = self.x[i : i + 50], self.y[i : i + 50]
            yield designs.Chunk(x, (y > 0) * 1.0, np.ones(len(y)), np.int64(i))

    def total(self, function, *arguments):
        with jax.enable_x64(True):
            parts = [function(chunk, *arguments) for chunk in self.chunks()]
        return jax.tree.map(lambda *sums: sum(map(np.asarray, sums)), *parts)

    def chosen(self, function, *arguments):
        with jax.enable_x64(True):
            flags = [np.asarray(function(chunk, *arguments)) for chunk in self.chunks()]
        kept = [[part[rows] for part in chunk[:3]] for chunk, rows in zip(self.chunks(), flags, strict=True)]
        return designs.Chunk(*map(np.concatenate, zip(*kept, strict=True)), np.int64(0))


@pytest.mark.parametrize("lam", [1e-1, 1e-3])
def test_rows_that_repeat_and_lie_at_the_margin_leave_a_ramp(lam):
    """A ramp of width 0, the quantile of their distances, stalled at a gap of .05; the optimum is that of 12 rows."""
    rng = np.random.default_rng(0)
    few, labels = rng.choice([-1.0, 0.0, 1.0], (12, 3)), np.arange(12) % 2 * 2 - 1
    order = rng.permutation(48_000)
    x, y = np.repeat(few, 4_000, axis=0)[order], np.repeat(labels, 4_000)[order]
    fit = designs.fit(designs.from_arrays(x, y), 1 / (2 * lam * len(y)), bias="none", tol=1e-6, max_passes=40)
    alone = designs.fit(designs.from_arrays(few, labels), 1 / (2 * lam * 12), bias="none", tol=1e-9)
    assert fit.status == jaxsvm.Status.CONVERGED
    np.testing.assert_allclose(float(fit.certificate.primal), float(alone.certificate.primal), rtol=1e-6)


@pytest.mark.thorough
def test_a_design_of_a_user_and_features_of_features():
    x, y, _ = data(120)
    wanted, got = (
        designs.fit(designs.standardised(designs.nystroem(designs.standardised(rows), RBF(0.5), 4)), tol=1e-6)
        for rows in (designs.from_arrays(x, y), Mine(x, y))
    )
    np.testing.assert_allclose(got.coef, wanted.coef, atol=1e-9)
    assert (got.predict(x) == y).mean() > 0.7


def test_fourier_features_need_no_rows():
    """Landmarks are rows; random frequencies are as many as asked for, and approximate the kernel so well."""
    x, y, _ = data(120)
    for options in ({}, {"rows": 50}):
        features = designs.fourier(designs.from_arrays(x, y), RBF(0.5), 1000, **options)
        z = applied(features.features, x)
        assert features.d == z.shape[1] == 1000
        exact = np.exp(-0.5 * ((x[:, None].astype(float) - x[None]) ** 2).sum(axis=2))
        assert np.abs(z @ z.T - exact).max() <= 0.25
    assert designs.nystroem(designs.from_arrays(x, y), RBF(0.5), 1000).d <= 120


def test_an_interruption_ends_a_fit_and_an_error_passes():
    x, y, _ = data(100)
    rows = designs.from_arrays(x, y)

    def interrupt(passes, gaps):
        raise KeyboardInterrupt

    with pytest.warns(ConvergenceWarning, match="INTERRUPTED"):
        assert np.isfinite(designs.fit(rows, tol=1e-15, callback=interrupt).certificate.primal)
    with pytest.raises(ZeroDivisionError):
        designs.fit(rows, tol=1e-15, callback=lambda passes, gaps: 1 / 0)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_pass_lowers_for_gpus_and_tpus(platform):
    x, y, _ = data(50)
    rows, function = designs.from_arrays(x, y).rows, descent.Evaluate("hinge")
    ones = np.ones(2)
    points = descent.Lanes(
        np.zeros((2, 4)), ones, ones.astype(np.int32), -ones.astype(np.int32), ones, 0 * ones, 0 * ones
    )
    with jax.enable_x64(True):
        lowered = (
            jax.jit(lambda rows: arrays.total_of(function, rows, (points,)))
            .trace(rows)
            .lower(lowering_platforms=(platform,))
        )
    assert lowered.as_text().count("\n") > 10


@pytest.mark.parametrize("C", [1e-320, 1e-300, 1e300])
def test_a_cost_whose_losses_vanish_or_overflow_is_refused(C):
    """Losses of 0 proved an optimum of 0."""
    x, y, _ = data(8)
    with pytest.raises(InputError, match="C times the mean weight"):
        designs.fit(designs.from_arrays(x, y), C)


def test_a_heavy_class_does_not_cancel_the_other_one():
    """The light class was the difference of two sums: it was absent, or its plane false."""
    x, y, _ = data(8)
    y = np.where(np.arange(8) % 2 == 0, 1, -1)
    weight = np.where(y > 0, 1e17, 1.0)
    fit = designs.fit(designs.from_arrays(x, y, weight), 1e-17, bias="free")
    P, D, _ = (float(part) for part in fit.certificate)
    assert primal(x, y, fit, 1e-17, "hinge", "free", weight) * (1 + 1e-9) >= D
    assert D <= 2e-17 * 4 * (1 + 1e-9)  # w = 0 and b = 1


@pytest.mark.thorough
@pytest.mark.parametrize(("weight", "scale", "C"), [(9e23, 1.0, 0.7), (1.0, 5e11, 0.003)])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")  # rounding permits no smaller gap
def test_the_primal_value_holds_under_the_rounding_of_margins(loss, weight, scale, C):
    """Losses of 1e-9 of margins that are sums of large parts: values were 8e-9 and 4e-8 of themselves too low."""
    rng = np.random.default_rng(47)
    for _ in range(3):
        x, y = scale * rng.normal(size=(40, 3)), np.where(rng.random(40) < 0.5, 1, -1)
        x[:, 0] = scale * y * (1 + 0.1 * rng.random(40))
        fit = designs.fit(designs.from_arrays(x, y, np.full(40, weight)), C, loss=loss, max_passes=20)
        long = [np.asarray(part, np.longdouble) for part in (x, fit.coef, fit.intercept)]
        z = np.maximum(1 - y * (long[0] @ long[1] + long[2]), 0)
        true = (long[1] @ long[1] + long[2] ** 2) / 2 + C * weight * (z.sum() if loss == "hinge" else z @ z / 2)
        P, D, _ = (float(part) for part in fit.certificate)
        assert D <= true <= P
        assert loss == "hinge" or true * (1 + 1e-3) >= P


@pytest.mark.parametrize("maps", [lambda rows: rows, designs.standardised], ids=["columns", "scaled"])
def test_columns_of_a_frame_go_by_name_where_the_files_had_names(maps, tmp_path):
    """A frame in another order was predicted by place, silently, from a model that came from a saved file too."""
    pa, rng = pytest.importorskip("pyarrow"), np.random.default_rng(0)
    parquet = pytest.importorskip("pyarrow.parquet")
    x = rng.normal(size=(300, 3))
    kind = np.where(x @ [3, -1, 0.5] > 0, "a", "b")
    table = pa.table({"u": x[:, 0], "v": x[:, 1], "w": x[:, 2], "kind": kind})
    parquet.write_table(table, tmp_path / "rows.parquet")
    fit = designs.fit(maps(designs.from_files(tmp_path / "rows.parquet", label="kind")), C=1.0)
    fit.model().save(tmp_path / "model.npz")
    model, wanted = jaxsvm.load_model(tmp_path / "model.npz"), fit.predict(x)
    assert (wanted == kind).mean() > 0.95 and model.columns == ("u", "v", "w")
    for predict in (fit.predict, lambda rows: jaxsvm.predict(model, rows)):
        for order in (["u", "v", "w"], ["w", "u", "v"]):
            for frame in (table.select(order), table.select(order).to_pandas()):
                np.testing.assert_array_equal(predict(frame), wanted)
        with pytest.raises(InputError, match="the column 'kind', which the training file had not"):
            predict(table)
