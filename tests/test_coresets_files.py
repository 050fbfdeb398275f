"""Coresets of the rows of a design, and their files: more rows than are fetched, resumed runs, the command."""

import dataclasses
import subprocess
import sys

import jax
import numpy as np
import pytest
from scipy.sparse import csr_matrix
from test_cli import refusal, report_of

from jaxsvm import coresets, designs
from jaxsvm.coresets import rows
from jaxsvm.datasets import Scaling
from jaxsvm.designs.fit import BIASES
from jaxsvm.designs.losses import Spread
from jaxsvm.errors import DataError, InputError
from jaxsvm.kernels import RBF


def data(n=400):
    rng = np.random.default_rng(0)
    y = np.where(rng.random(n) < 0.4, 1.0, -1.0)
    return np.round(rng.normal(size=(n, 2)) + y[:, None], 4), y


def write(folder, kind, x, y):
    path = folder / f"data.{kind}"
    if kind == "npz":
        np.savez(path, X=x, y=y.astype(np.int8))
    else:
        lines = [f"{a!r},{b!r},{'yes' if s > 0 else 'no'}" for (a, b), s in zip(x.tolist(), y, strict=True)]
        path.write_text("a,b,class\n" + "\n".join(lines) + "\n")
    return path


def of_files(path, *arguments, standardise=False, **options):
    found = designs.from_files(path, dtype=float)
    return coresets.of_rows(designs.standardised(found) if standardise else found, *arguments, **options)


def same(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("x", "y", "weight"))


@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_files_give_the_coreset_of_their_rows(tmp_path, kind):
    x, y = data()
    small = of_files(write(tmp_path, kind, x, y), 1.0, 24, 3)
    assert same(small, coresets.coreset(x, y, 1.0, 24, 3))
    assert small.info["n"] == 400
    assert tuple(small.info["classes"]) == (("no", "yes") if kind == "csv" else (-1, 1))


@pytest.fixture(scope="module")
def summary():
    x, y = data()
    u = np.random.default_rng(1).choice([0.0, 1.0, 5.0], len(y))
    return x, y, u, coresets.coreset(x, y, 0.5, 24, 3, u)


def value(x, y, u, C, w, b):
    return 0.5 * w @ w + C * (u * np.maximum(0, 1 - y * (x @ w + b))).sum()


@pytest.mark.parametrize("place", ["arrays", "single", "sparse", "mesh", "npz", "csv", "dask"])
def test_a_machine_is_certified_on_all_rows_wherever_they_lie(tmp_path, summary, place):
    x, y, u, small = summary
    if place in ("npz", "csv"):  # rows of files have no weights
        u, small = np.ones(len(y)), coresets.coreset(x, y, 0.5, 24, 3)
        design = designs.from_files(write(tmp_path, place, x, y), dtype=float)
    elif place == "dask":
        array = pytest.importorskip("dask.array").from_array
        design = designs.from_dask(tuple(array(part, chunks=150) for part in (x, y, u)))
    else:
        points = {"single": np.float32, "sparse": csr_matrix}.get(place, np.asarray)(x)
        mesh = jax.make_mesh((1,), ("rows",)) if place == "mesh" else None
        design = designs.from_arrays(points, y, u, mesh=mesh)
    told = coresets.certify(small, design)
    w, b = small.solution()
    np.testing.assert_allclose(told.primal, value(x, y, u, 0.5, w, b), rtol=1e-7 if place == "single" else 1e-9)
    best = coresets.evaluate(small, (x, y, u)).optimum
    assert told.primal / best - 1 - 1e-6 <= told.relative_gap == small.info["excess"] < 0.1
    assert told.dual <= best * (1 + 1e-9)


def test_a_certificate_is_of_another_C_or_bias_too(summary):
    x, y, u, small = summary
    before = dict(small.info)
    for C in (0.1, 2.0):
        (w, b), told = small.solution(C), coresets.certify(small, (x, y, u), C=C)
        np.testing.assert_allclose(told.primal, value(x, y, u, C, w, b), rtol=1e-9)
        np.testing.assert_allclose(told.dual, min(1, C / 0.5) * small.info["lower"], rtol=1e-9)
        assert told.dual <= coresets.evaluate(small, (x, y, u), C).optimum
    w, b = small.solution()
    ridge, none, free = (coresets.certify((w, b), (x, y, u), 1.0, C=0.5, bias=of).primal for of in BIASES)
    np.testing.assert_allclose(free, value(x, y, u, 0.5, w, b), rtol=1e-9)
    np.testing.assert_allclose([ridge - free, none], [b * b / 2, value(x, y, u, 0.5, w, 0)], rtol=1e-6)
    assert small.info == before


def test_a_kernel_machine_of_a_coreset_is_certified_on_the_features_of_all_rows():
    x, y = data(300)
    rows = designs.nystroem(designs.from_arrays(x, y), RBF(0.5), 16)
    small = coresets.of_rows(rows, 1.0, 80)
    told, (w, b) = coresets.certify(small, rows), small.solution()
    features = np.asarray(rows.chosen(Spread(300, 300)).x)
    np.testing.assert_allclose(told.primal, value(features, y, 1.0, 1.0, w, b), rtol=1e-9)
    best = coresets.evaluate(small, (features, y)).optimum
    assert told.dual <= best * (1 + 1e-9) and told.primal / best - 1 - 1e-6 <= told.relative_gap < 0.2


def test_certificates_that_cannot_be_are_refused(summary):
    x, y, u, small = summary
    w, b = small.solution()
    for said, arguments, options in (
        ("C is None", ((w, b), (x, y)), {}),
        ("lower is None", ((w, b), (x, y)), {"C": 1.0}),
        ("lower is nan", (small, (x, y), np.nan), {}),
        ("C is 0", (small, (x, y)), {"C": 0.0}),
        ("2 features, the machine 1", ((w[:1], b), (x, y), 1.0), {"C": 1.0}),
        ("bias is 'fre'", (small, (x, y)), {"bias": "fre"}),
        ("the label False", (small, (x, y > 0)), {}),
        ("positive is 3", (small, designs.from_arrays(x, y)), {"positive": 3}),
        ("design is a ndarray", (small, x), {}),
    ):
        with pytest.raises(InputError, match=said):
            coresets.certify(*arguments, **options)
    assert coresets.certify((w * np.nan, b), (x, y), 1.0, C=1.0).relative_gap == np.inf
    assert coresets.certify(small, (x, y, u), 1e6).relative_gap == np.inf  # a bound that is none proves nothing


@pytest.fixture
def many_rows(monkeypatch):
    little = dataclasses.replace(rows.MEASURED, rows_held=256, rows_per_point=2, rows_for_centres=200)
    monkeypatch.setattr(rows, "MEASURED", little)


class Killed(Exception):
    pass


@pytest.mark.thorough
def test_rows_are_drawn_alike_wherever_they_lie(tmp_path, many_rows):
    """Of more rows than are fetched some are drawn by their bounds: in files, in memory, on a mesh, on a cluster."""
    x, y = data(1200)
    path = write(tmp_path, "npz", x, y)
    small = of_files(path, 1.0, 100, 1)
    assert len(small) == 100 and small.info["n"] == 1200
    for sign in (-1, 1):  # calibrated: the classes have their weights
        np.testing.assert_allclose(small.weight[small.y == sign].sum(), (y == sign).sum(), rtol=0.02)
    judged = coresets.evaluate(small, (x, y))
    assert judged.excess < 0.03 and judged.worst < 0.8
    assert 0.9 * judged.optimum < small.info["lower"] <= judged.optimum  # a proof, and of some use
    assert np.isinf(small.info["epsilon"]) and "lower bound" in small.info["notes"][0]
    np.testing.assert_array_equal(small.x, x[small.info["index"]])
    whole = coresets.coreset(x, y, 1.0, 100, 1, clusters=64).info["total"]
    assert 0.7 < small.info["total"] / whole < 1.5
    da = pytest.importorskip("dask.array")
    parts = da.from_array(x, chunks=(500, 2)), da.from_array(y, chunks=500)
    mesh = jax.make_mesh((1,), ("rows",))
    for design in (designs.from_dask(parts), designs.from_arrays(x, y), designs.from_arrays(x, y, mesh=mesh)):
        other = coresets.of_rows(design, 1.0, 100, 1)
        np.testing.assert_array_equal(other.info["index"], small.info["index"])
        np.testing.assert_allclose(other.weight, small.weight, rtol=1e-6)
    excess = [coresets.evaluate(of_files(path, 1.0, 100, key), (x, y)).excess for key in range(2, 6)]
    assert np.mean(excess) < 0.02


@pytest.mark.thorough
def test_a_point_that_can_dominate_is_among_the_rows_drawn(many_rows):
    x, y = data(1200)
    x[7] = [1e4, -1e4]
    for key in range(6):
        assert 7 in coresets.of_rows(designs.from_arrays(x, y), 1.0, 60, key).info["index"]


def test_a_killed_run_goes_on_to_the_same_coreset(tmp_path, many_rows):
    x, y = data(1200)
    path, checkpoint = write(tmp_path, "csv", x, y), tmp_path / "state.npz"
    options = {"standardise": True, "positive": "no"}
    whole = of_files(path, 1.0, 60, **options)
    assert tuple(whole.info["classes"]) == ("yes", "no") and not checkpoint.exists()
    for limit in (3, 4):

        def stop(passes, gaps, limit=limit):
            if passes >= limit:
                raise Killed

        with pytest.raises(Killed):
            of_files(path, 1.0, 60, checkpoint=checkpoint, callback=stop, **options)
        assert checkpoint.exists()
    for change in ({"positive": "yes"}, {"standardise": False}):
        with pytest.raises(InputError, match="of another run"):
            of_files(path, 1.0, 60, checkpoint=checkpoint, **options | change)
    assert same(whole, of_files(path, 1.0, 60, checkpoint=checkpoint, **options))
    assert not checkpoint.exists()
    np.testing.assert_allclose(whole.info["mean"], x.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(whole.info["scale"], x.std(axis=0))


def test_a_file_that_the_run_did_not_write_is_not_removed(tmp_path):
    """Rows that are fetched need no checkpoint; a file of its name was removed, whatever it was."""
    (tmp_path / "other").write_text("mine")
    coresets.of_rows(designs.from_arrays(*data(40)), 1.0, 20, checkpoint=tmp_path / "other")
    assert (tmp_path / "other").read_text() == "mine"


def test_constant_columns_keep_their_scale(tmp_path):
    """A column of 0.1 was divided by its rounding, 5e-16; one of 1e160 has squares that overflow."""
    r = np.random.default_rng(0).normal(size=300)
    x, y = np.stack([np.full(300, 0.1), np.full(300, 1 / 3), r * 1e150, np.full(300, -7.0), r], axis=1), np.sign(r)
    np.savez(tmp_path / "a.npz", X=x, y=y)
    found = of_files(tmp_path / "a.npz", 1.0, 40, standardise=True).info["scale"]
    np.testing.assert_allclose(found, [1, 1, 1e150 * r.std(), 1, r.std()], rtol=1e-12)
    np.testing.assert_allclose(1 / np.asarray(Scaling.standardise(x).factor), found, rtol=1e-12)
    np.savez(tmp_path / "a.npz", X=x * 1e10, y=y)
    with pytest.raises(InputError, match="above 1e154"):
        of_files(tmp_path / "a.npz", 1.0, 40, standardise=True)


def test_coresets_are_written_and_read(tmp_path):
    small = coresets.coreset(*data(200), 1.0, 40, 0, clusters=4)
    coresets.save_coreset(tmp_path / "small.npz", small)
    again = coresets.load_coreset(tmp_path / "small.npz")
    assert same(small, again) and again.C == 1.0
    with pytest.raises(InputError, match="ends in .npz"):
        coresets.save_coreset(tmp_path / "small.svm", small)


def test_what_is_not_two_classes_is_refused(tmp_path):
    file = tmp_path / "a.csv"
    for labels, positive, said in (
        ("yes", None, "1 labels .'yes'"), ("abc", None, "3 labels: two are needed, or positive="),
        ("abc", "d", "positive is 'd'"), ("abc", True, "positive is True"),
    ):  # fmt: skip
        kinds = [labels] if labels == "yes" else list(labels)
        file.write_text("x,kind\n" + "".join(f"{i},{kinds[i % len(kinds)]}\n" for i in range(40)))
        with pytest.raises(InputError, match=said):
            of_files(file, 1.0, 20, positive=positive)
    assert of_files(file, 1.0, 20, positive="b").info["classes"] == ("rest", "b")
    x, y = data(40)
    none = designs.from_arrays(x, y)
    none = dataclasses.replace(none, rows=none.rows._replace(weight=0 * none.rows.weight))
    for design, said in (
        (designs.from_arrays(x, y, regression=True), "targets of regression"), (x, "design"),
        (none, "no row has a positive weight"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            coresets.of_rows(design, 1.0, 20)


def test_a_file_that_is_no_coreset_is_named_so(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="not a whole npz file of a coreset"):
        coresets.load_coreset(tmp_path / "a.parquet")


def test_a_file_of_a_coreset_with_a_kernel_is_refused(tmp_path):
    """Older versions wrote points of a kernel machine: a linear one would be trained on them."""
    old = coresets.Coreset(np.ones((2, 2)), np.array([1.0, -1.0]), np.ones(2), {"C": 1.0, "kernel": "RBF(gamma=0.5)"})
    coresets.save_coreset(tmp_path / "k.npz", old)
    with pytest.raises(DataError, match="by an older version"):
        coresets.load_coreset(tmp_path / "k.npz")


def test_the_command_writes_a_coreset(tmp_path):
    path, out, options = write(tmp_path, "csv", *data(300)), tmp_path / "small.npz", ("--size", 40, "--lambda", 0.5)
    lines = path.read_text().splitlines()
    (tmp_path / "bad.csv").write_text("\n".join([*lines[:4], "1,2", *lines[5:]]) + "\n")
    assert "line 5" in refusal("coreset", *options, tmp_path / "bad.csv")
    report, small = report_of("coreset", *options, path, "--out", out), coresets.load_coreset(out)
    assert report["n"] == 300 and report["points"] == len(small) <= 300 and small.C == 0.5
    assert jax.numpy.zeros(()).dtype == jax.numpy.float64  # the flag is the user's


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_five_million_rows_take_less_than_a_gibibyte(tmp_path):
    arrow, csv = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.csv")
    rng, path = np.random.default_rng(0), tmp_path / "rows.csv"
    y = np.where(rng.random(100_000) < 0.2, 1, -1)
    x = (rng.normal(size=(100_000, 10)) + 0.5 * y[:, None]).round(5)
    part = arrow.table({**{f"c{j}": x[:, j] for j in range(10)}, "y": y})
    with csv.CSVWriter(path, part.schema) as file:
        for _ in range(50):
            file.write(part)
    script = f"""if True:
        from jaxsvm import coresets, designs  # below: the peak without the parent's, unlike ru_maxrss
        small = coresets.of_rows(designs.from_files({str(path)!r}, label="y"), 1.0, 1000)
        kibibytes = open("/proc/self/status").read().split("VmHWM:")[1].split()[0]
        print(len(small), small.info["n"], kibibytes)"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    points, rows, kibibytes = map(int, done.stdout.split())
    assert (points, rows) == (1000, 5_000_000) and kibibytes < 1 << 20
