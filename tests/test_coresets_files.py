"""Files larger than memory (here: than a piece): formats, damaged lines, runs killed and resumed."""

import dataclasses
import signal
import subprocess
import sys

import numpy as np
import pytest

from jaxsvm import coresets
from jaxsvm.coresets.parts import files
from jaxsvm.datasets import Scaling, delimited, svmlight, text
from jaxsvm.datasets.shards import source as shards
from jaxsvm.errors import DataError, InputError

SIZES = {"size": 24, "chunk": 96}


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(text, "MEASURED", dataclasses.replace(text.MEASURED, bytes_per_text_piece=250))
    monkeypatch.setattr(shards, "MEASURED", dataclasses.replace(shards.MEASURED, bytes_per_block=16 * 2 * 8))
    monkeypatch.setattr(files, "MEASURED", dataclasses.replace(files.MEASURED, pieces_between_saves=2))


def data(n=400):
    rng = np.random.default_rng(0)
    y = np.where(rng.random(n) < 0.4, 1.0, -1.0)
    return np.round(rng.normal(size=(n, 2)) + y[:, None], 4), y


def write(folder, kind, x, y):
    path = folder / f"data.{kind}"
    if kind == "npz":
        np.savez(path, X=x, y=y.astype(np.int8))
    elif kind == "csv":
        lines = [f"{a!r},{b!r},{'yes' if s > 0 else 'no'}" for (a, b), s in zip(x.tolist(), y, strict=True)]
        path.write_text("a,b,class\n" + "\n".join(lines) + "\n")
    elif kind == "svm":
        lines = [f"{int(s):+d} 1:{a!r} 2:{b!r}" for (a, b), s in zip(x.tolist(), y, strict=True)]
        path.write_text("\n".join(lines) + "\n")
    else:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        parquet.write_table(pa.table({"a": x[:, 0], "b": x[:, 1], "class": y}), path)
    return path


def same(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("x", "y", "weight"))


@pytest.mark.parametrize("kind", ["npz", "csv", "svm", "parquet"])
def test_all_formats_give_the_coreset_of_the_stream(tmp_path, small_pieces, kind):
    x, y = data()
    small = coresets.from_files(write(tmp_path, kind, x, y), 1.0, key=3, **SIZES)
    stream = coresets.Stream(1.0, **SIZES, total_weight=400.0)
    assert same(small, stream.finalize(stream.update(stream.init(3), x, y)))
    assert small.info["damaged"] == 0 and small.info["n"] == 400
    assert tuple(small.info["classes"]) == (("no", "yes") if kind == "csv" else (-1, 1))


def test_one_pass_needs_what_two_find_out(tmp_path, small_pieces):
    x, y = data()
    path = write(tmp_path, "svm", x, y)
    with pytest.raises(InputError, match="features is None"):
        coresets.from_files(path, 1.0, passes=1, **SIZES)
    small = coresets.from_files(path, 1.0, passes=1, features=2, **SIZES)
    assert small.info["n"] == 400 and small.x.shape[1] == 2
    with pytest.raises(InputError, match="positive="):
        coresets.from_files(write(tmp_path, "csv", x, y), 1.0, passes=1, **SIZES)
    assert coresets.from_files(tmp_path / "data.csv", 1.0, passes=1, positive="yes", **SIZES).info["n"] == 400


def test_damaged_lines_are_named_counted_and_left_out(tmp_path, small_pieces):
    x, y = data(300)
    good = tmp_path / "good.svm"
    write(tmp_path, "svm", x, y).rename(good)
    lines = good.read_text().splitlines()
    for i in range(9, 300, 10):
        lines[i] = ["+1 1:oops", "1 2:0.5 1:0.5", "nan 1:1", "-1 1"][i // 10 % 4]
    (tmp_path / "bad.svm").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"bad\.svm, line 10: .*damaged='skip'"):
        coresets.from_files(tmp_path / "bad.svm", 1.0, **SIZES)
    small = coresets.from_files(tmp_path / "bad.svm", 1.0, damaged="skip", **SIZES)
    assert small.info["damaged"] == 30 and "line 10:" in small.info["damaged_lines"][0]
    kept = np.arange(300) % 10 != 9
    write(tmp_path, "svm", x[kept], y[kept])
    assert same(small, coresets.from_files(tmp_path / "data.svm", 1.0, **SIZES))


@pytest.mark.slow
def test_rows_drawn_by_their_part_in_the_whole(tmp_path, small_pieces):
    """Global sensitivities: three looks, no error of merging, and a killed run ends with the same coreset here too."""
    x, y = data(1200)
    path, options = write(tmp_path, "npz", x, y), SIZES | {"key": 1, "mode": "global", "standardise": True}
    small = coresets.from_files(path, 1.0, m=150, **options)
    assert 120 <= len(small) <= 180 and small.info["n"] == 1200
    for sign in (-1, 1):  # calibrated: the classes have their weights
        np.testing.assert_allclose(small.weight[small.y == sign].sum(), (y == sign).sum(), rtol=0.02)
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    judged = coresets.evaluate(small, (scaled, y))
    assert judged.excess < 0.02 and judged.worst < 0.8
    assert 0.5 * judged.optimum < small.info["opt"] <= judged.optimum  # a proof, and of some use
    found = [np.flatnonzero(np.isclose(scaled, row, atol=1e-12).all(axis=1)).size for row in small.x]
    assert min(found) >= 1

    class Killed(Exception):
        pass

    for limit in (300, 1500, 3000):

        def stop(done, total, limit=limit):
            assert total == 3600
            if done >= limit:
                raise Killed

        with pytest.raises(Killed):
            coresets.from_files(path, 1.0, m=150, checkpoint=tmp_path / "state", progress=stop, **options)
    assert same(small, coresets.from_files(path, 1.0, m=150, checkpoint=tmp_path / "state", **options))
    with pytest.raises(InputError, match="more than once"):
        coresets.from_files(path, 1.0, passes=1, mode="global", **SIZES)


@pytest.mark.parametrize("kind", ["svm", "npz", "parquet"])
def test_a_killed_run_goes_on_to_the_same_coreset(tmp_path, small_pieces, kind):
    x, y = data()
    path, checkpoint = write(tmp_path, kind, x, y), tmp_path / "state.npz"
    options = SIZES | {"key": 1, "standardise": True}
    whole = coresets.from_files(path, 1.0, **options)

    class Killed(Exception):
        pass

    for limit in (3, 4, 5, 6, 7):
        calls = []

        def stop(done, total, limit=limit, calls=calls):
            calls.append(done)
            assert total == 400
            if len(calls) == limit:
                raise Killed

        with pytest.raises(Killed):
            coresets.from_files(path, 1.0, checkpoint=checkpoint, progress=stop, **options)
        assert checkpoint.exists()
    with pytest.raises(InputError, match="of another run"):
        coresets.from_files(path, 2.0, checkpoint=checkpoint, **options)
    assert same(whole, coresets.from_files(path, 1.0, checkpoint=checkpoint, **options))
    assert not checkpoint.exists()
    np.testing.assert_allclose(whole.info["mean"], x.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(whole.info["scale"], x.std(axis=0))


@pytest.mark.parametrize("change", ["labels", "length", "zero_based", "features", "header", "format", "label"])
def test_a_run_goes_on_with_the_files_and_arguments_that_it_began_with(tmp_path, small_pieces, change):
    x, y = data(96)
    path, checkpoint = write(tmp_path, "svm", x, y), tmp_path / "state.npz"
    options = SIZES | {"passes": 1, "features": 2, "positive": 1, "checkpoint": checkpoint}

    class Killed(Exception):
        pass

    def stop(done, total):
        if done > 60:
            raise Killed

    with pytest.raises(Killed):
        coresets.from_files(path, 1.0, progress=stop, **options)
    more = {"zero_based": True, "features": 3, "header": True, "format": "svmlight", "label": 0}
    if change == "labels":  # the same size, another time
        path.write_text("\n".join(path.read_text().split("\n")[::-1][1:]) + "\n")
    elif change == "length":
        path.write_text(path.read_text() + path.read_text())
    else:
        options |= {change: more[change]}
    said = "what the files hold" if change in ("labels", "length") else change
    with pytest.raises(InputError, match=f"of another run .{said} differ"):
        coresets.from_files(path, 1.0, **options)


def test_constant_columns_keep_their_scale(tmp_path):
    """A column of 0.1 was divided by its rounding, 5e-16; one of 1e160 has squares that overflow."""
    n = 300
    r = np.random.default_rng(0).normal(size=n)
    columns = [np.full(n, 0.1), np.full(n, 1 / 3), r * 1e160, np.full(n, -7.0), r]
    np.savez(tmp_path / "a.npz", X=np.stack(columns, axis=1), y=np.where(r > 0, 1, -1))
    found = files.scan(shards.Source((str(tmp_path / "a.npz"),)))
    np.testing.assert_allclose(found.scale, [1, 1, 1e160 * r.std(), 1, r.std()], rtol=1e-12)
    x = np.stack(columns, axis=1)
    np.testing.assert_allclose(1 / np.asarray(Scaling.standardise(x).factor), found.scale, rtol=1e-12)


def test_shards_are_one_set(tmp_path, small_pieces):
    x, y = data()
    paths = []
    for i in range(3):
        part = slice(i * 150, (i + 1) * 150)
        paths.append(tmp_path / f"{i}.npz")
        np.savez(paths[-1], X=x[part], y=y[part])
    whole = coresets.from_files(write(tmp_path, "npz", x, y), 1.0, **SIZES)
    assert same(whole, coresets.from_files(paths, 1.0, **SIZES))
    assert same(whole, coresets.from_files(tmp_path / "[0-2].npz", 1.0, **SIZES))


@pytest.mark.parametrize("end", [".npz", ".parquet", ".svm"])
def test_coresets_are_written_for_any_tool(tmp_path, end):
    x, y = data(200)
    small = coresets.coreset(x, y, 1.0, 40, 0, clusters=4)
    path = tmp_path / f"small{end}"
    coresets.save_coreset(path, small)
    if end == ".npz":
        again = coresets.load_coreset(path)
        assert same(small, again) and again.C == 1.0
    elif end == ".svm":
        from sklearn.datasets import load_svmlight_file

        points, labels = load_svmlight_file(str(path))
        np.testing.assert_array_equal(points.toarray(), small.x)
        np.testing.assert_array_equal(labels, small.y)
        np.testing.assert_array_equal(np.loadtxt(f"{path}.weight"), small.weight)
    else:
        import pyarrow.parquet as parquet

        table = parquet.read_table(path)
        np.testing.assert_array_equal(table["weight"].to_numpy(), small.weight)
        np.testing.assert_array_equal(table["x1"].to_numpy(), small.x[:, 1])


def _pieces(path, fast, monkeypatch, **options):
    with monkeypatch.context() as patch:
        if not fast:
            patch.setattr(svmlight.Svmlight, "fast", lambda self, block: None)
            patch.setattr(delimited.Delimited, "fast", lambda self, block: None)
        return list(shards.Source((str(path),), **options).pieces())


@pytest.mark.parametrize("kind", ["csv", "svm"])
def test_blocks_without_a_fault_are_read_as_their_lines_are(tmp_path, monkeypatch, kind):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(500, 2)) * 10.0 ** rng.integers(-300, 15, (500, 2))
    path = write(tmp_path, kind, x, np.where(rng.random(500) < 0.5, 1.0, -1.0))
    monkeypatch.setattr(text, "MEASURED", dataclasses.replace(text.MEASURED, bytes_per_text_piece=2000))
    options = {"features": 2, "zero_based": False} if kind == "svm" else {}
    read = [_pieces(path, fast, monkeypatch, **options) for fast in (True, False)]
    assert len(read[0]) > 5
    for one, other in zip(*read, strict=True):
        np.testing.assert_array_equal(_dense(one.x), _dense(other.x))
        written = [[piece.label.values[i] for i in piece.label.codes] for piece in (one, other)]
        assert one.after == other.after and written[0] == written[1]
    np.testing.assert_array_equal(np.concatenate([_dense(piece.x) for piece in read[0]]), x)


def _dense(x):
    return x.toarray() if hasattr(x, "toarray") else x


@pytest.mark.parametrize("arrow", [True, False])
def test_lines_that_are_not_plain_are_never_read_in_a_block(monkeypatch, arrow):
    if not arrow:

        def absent(name):
            raise ImportError(name)

        monkeypatch.setattr(svmlight.importlib, "import_module", absent)
    fine = b"+1 1:2 3:-4e+1\r\n\n-1\n"
    label, row, index, value = svmlight.svmlight_entries(fine)
    assert (label.tolist(), row.tolist(), index.tolist(), value.tolist()) == ([1, -1], [0, 0], [1, 3], [2, -40])
    damaged = [
        "1 2:3:4 5", "1 2:", "1 :2", "1 2:3 4", "1 2: 3", "1 2:x", "1 1.0:3", "1 2:1 1:1", "1 2:1 2:1", "x 1:1", "1:2",
        "1 -1:2", "1 1:2 # note", "1 qid:3 1:2", "1 1:++1", "1 1:1+1", "+ 1:1", "1 1:0x10", "1 1:1_0", "1 1:2,3",
    ]  # fmt: skip
    for line in damaged:
        assert svmlight.svmlight_entries(fine + line.encode() + b"\n-1 2:5\n") is None, line


KILLED = """
import dataclasses, sys
from jaxsvm.coresets.parts import files
from jaxsvm.datasets import text
import jax
jax.config.update("jax_compilation_cache_dir", sys.argv[4])
text.MEASURED = dataclasses.replace(text.MEASURED, bytes_per_text_piece=4000)
files.MEASURED = dataclasses.replace(files.MEASURED, pieces_between_saves=2)
from jaxsvm import coresets
def look(done, total):
    print(done, flush=True)
small = coresets.from_files(
    sys.argv[1], 1.0, 60, 5, chunk=480, damaged="skip", checkpoint=sys.argv[2], progress=look
)
coresets.save_coreset(sys.argv[3], small)
"""


@pytest.mark.slow
def test_a_process_that_is_killed_five_times_ends_with_the_same_coreset(tmp_path):
    """SIGKILL, on a file of which every tenth line is damaged."""
    x, y = data(6000)
    path = write(tmp_path, "svm", x, y)
    lines = path.read_text().splitlines()
    for i in range(9, 6000, 10):
        lines[i] = ["+1 1:oops", "1 2:0.5 1:0.5", "nan 1:1", "-1 1"][i // 10 % 4]
    bad = tmp_path / "bad.svm"
    bad.write_text("\n".join(lines) + "\n")

    def run(name, source, out, limit=None):
        command = [sys.executable, "-c", KILLED, source, tmp_path / name, out, tmp_path / "cache"]
        with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if limit is not None and int(line) >= limit:
                    process.send_signal(signal.SIGKILL)
            process.wait()
        return process.returncode

    assert run("whole.state", bad, tmp_path / "whole.npz") == 0
    for rows in (700, 1500, 2600, 3900, 5000):
        assert run("state", bad, tmp_path / "resumed.npz", rows) == -signal.SIGKILL
        assert (tmp_path / "state").exists() and not (tmp_path / "resumed.npz").exists()
    assert run("state", bad, tmp_path / "resumed.npz") == 0 and not (tmp_path / "state").exists()
    kept = np.arange(6000) % 10 != 9
    assert run("clean.state", write(tmp_path, "svm", x[kept], y[kept]), tmp_path / "clean.npz") == 0
    whole, resumed, clean = (coresets.load_coreset(tmp_path / f"{name}.npz") for name in ("whole", "resumed", "clean"))
    assert same(whole, resumed) and same(whole, clean)
    assert resumed.info["damaged"] == whole.info["damaged"] == 600 and clean.info["damaged"] == 0
    assert resumed.info["n"] == 5400 and "bad.svm, line 10: " in resumed.info["damaged_lines"][0]


@pytest.mark.parametrize(
    ("positive", "said"), [("Yes", "no row has the label 'Yes'"), ("yes", None), (None, "are not")]
)
def test_one_pass_over_one_class_is_refused(tmp_path, positive, said):
    (tmp_path / "a.csv").write_text("x,kind\n" + "".join(f"{i},{'yes' if i % 3 else 'no'}\n" for i in range(40)))
    if said is None:
        assert coresets.from_files(tmp_path / "a.csv", 1.0, 24, passes=1, positive=positive).info["n"] == 40
        (tmp_path / "a.csv").write_text("x,kind\n" + "".join(f"{i},yes\n" for i in range(40)))
        said = "every row has the label 'yes'"
    with pytest.raises(InputError, match=said):
        coresets.from_files(tmp_path / "a.csv", 1.0, 24, passes=1, positive=positive)


def test_a_file_that_is_no_coreset_is_named_so(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="not a whole npz file of a coreset"):
        coresets.load_coreset(tmp_path / "a.parquet")
