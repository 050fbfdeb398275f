"""Files larger than memory (here: than a piece): formats, damaged lines, runs killed and resumed."""

import numpy as np
import pytest

from jaxsvm import coresets
from jaxsvm.coresets import chunks, files
from jaxsvm.errors import DataError, InputError

SIZES = {"size": 24, "chunk": 96}


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(chunks, "TEXT", 250)
    monkeypatch.setattr(chunks, "ROWS", 16)
    monkeypatch.setattr(files, "EVERY", 2)


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


def test_shards_are_one_set(tmp_path, small_pieces):
    x, y = data()
    paths = []
    for i in range(3):
        part = slice(i * 150, (i + 1) * 150)
        paths.append(tmp_path / f"{i}.npz")
        np.savez(paths[-1], X=x[part], y=y[part])
    whole = coresets.from_files(write(tmp_path, "npz", x, y), 1.0, **SIZES)
    assert same(whole, coresets.from_files(paths, 1.0, **SIZES))


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
