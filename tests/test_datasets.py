import bz2
import gzip
import io
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.datasets import dump_svmlight_file
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

from jaxsvm.datasets import Layout, Scaling, load, two_classes, two_gaussians
from jaxsvm.datasets.columns.table import Table
from jaxsvm.datasets.layout import Wanted
from jaxsvm.errors import DataError, InputError
from jaxsvm.points.rows import CSR

many = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
numbers = st.floats(-1e6, 1e6, allow_nan=False, width=64)
points = hnp.arrays(np.float64, st.tuples(st.integers(1, 8), st.integers(1, 5)), elements=numbers)


def labels_for(x):
    return np.where(np.arange(len(x)) % 2 == 0, -1, 1)


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def parquet(columns):
    file = io.BytesIO()
    pa.parquet.write_table(pa.table(columns), file)
    return file.getvalue()


# ------------------------------------------------------------------------------------------------- round trips


@many
@given(x=points, zero_based=st.booleans(), suffix=st.sampled_from([".svm", ".libsvm.gz", ".txt.bz2"]))
def test_svmlight_round_trip(tmp_path, x, zero_based, suffix):
    x[0, 0] = 1.5  # fixes which index is the first
    file = io.BytesIO()
    dump_svmlight_file(x, labels_for(x), file, zero_based=zero_based)
    packed = {".svm": bytes, ".libsvm.gz": gzip.compress, ".txt.bz2": bz2.compress}[suffix](file.getvalue())
    data = load(write(tmp_path, "points" + suffix, packed), features=x.shape[1])
    assert scipy.sparse.issparse(data.x) and data.x.format == "csr" and data.x.dtype == np.float64
    np.testing.assert_allclose(data.x.toarray(), x, rtol=1e-15)  # sklearn writes 16 digits
    assert data.y.dtype == np.int64 and data.y.tolist() == labels_for(x).tolist()
    assert data.feature_names is None


@many
@given(x=points, header=st.booleans(), column=st.integers(0, 5), delimiter=st.sampled_from(",;\t"))
def test_csv_round_trip(tmp_path, x, header, column, delimiter):
    column = min(column, x.shape[1])
    names = [f"f{i}" for i in range(x.shape[1])]
    rows = [[repr(value) for value in row] for row in x.tolist()]
    for row, label in zip(rows, labels_for(x).tolist(), strict=True):
        row.insert(column, f"{label:+d}")
    head = names.copy()
    head.insert(column, "outcome")
    text = "\n".join(delimiter.join(row) for row in ([head] if header else []) + rows) + "\n"
    data = load(write(tmp_path, "points.csv", text), label="outcome" if header else column)
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_array_equal(data.y, labels_for(x))
    assert data.feature_names == (tuple(names) if header else None)


@many
@given(x=points, sparse=st.booleans(), part=st.sampled_from(["train", "test"]))
def test_npz_round_trip(tmp_path, x, sparse, part):
    key, y = ("X", "y") if part == "train" else ("Xt", "yt")
    rows = scipy.sparse.csr_array(x)
    fields = {f"{key}_{field}": getattr(rows, field) for field in ("data", "indices", "indptr", "shape")}
    arrays = (fields if sparse else {key: x}) | {y: labels_for(x).astype(np.int8)}
    data = load(write(tmp_path, "points.npz", npz(**arrays)), part=part)
    np.testing.assert_array_equal(data.x.toarray() if sparse else data.x, x)
    assert scipy.sparse.issparse(data.x) == sparse
    assert data.y.dtype == np.int64
    np.testing.assert_array_equal(data.y, labels_for(x))


@many
@given(x=points, strings=st.booleans())
def test_parquet_round_trip(tmp_path, x, strings):
    y = np.where(labels_for(x) > 0, "yes", "no") if strings else labels_for(x)
    columns = {f"f{i}": x[:, i] for i in range(x.shape[1])} | {"y": y}
    data = load(write(tmp_path, "points.parquet", parquet(columns)))
    np.testing.assert_array_equal(data.x, x)
    assert data.y.tolist() == y.tolist()
    assert data.feature_names == tuple(f"f{i}" for i in range(x.shape[1]))


# ------------------------------------------------------------------------------------------------- what files hold


def test_svmlight_details(tmp_path):
    path = write(tmp_path, "a9a", "\ufeff# a comment\n+1 qid:3 2:0.5  4:1 # more\r\n\n-1\n+1 1:0 3:2.5")
    data = load(path, format="svmlight")
    np.testing.assert_array_equal(data.x.toarray(), [[0, 0.5, 0, 1], [0, 0, 0, 0], [0, 0, 2.5, 0]])
    assert data.y.tolist() == [1, -1, 1] and data.source == str(path)
    assert load(path, format="svmlight", features=7).x.shape == (3, 7)
    halves = load(write(tmp_path, "halves.svm", "0.5 0:1\n1.5 1:1\n"))
    assert halves.y.tolist() == [0.5, 1.5] and halves.x.toarray().tolist() == [[1, 0], [0, 1]]


def test_csv_details(tmp_path):
    # What the fast reader refuses (a plus, spaces) the patient one reads; blank lines and a BOM mean nothing.
    data = load(write(tmp_path, "a.csv", "\ufeffwidth, height, kind\n\n +1.5, 2, small cat\n3, 4e-1,dog\n   \n"))
    np.testing.assert_array_equal(data.x, [[1.5, 2], [3, 0.4]])
    assert data.y.tolist() == ["small cat", "dog"] and data.feature_names == ("width", "height")
    first = load(write(tmp_path, "b.csv", "1,2.5,3\n0,4,5\n"), label=0, dtype=np.float32)
    assert first.x.tolist() == [[2.5, 3], [4, 5]] and first.x.dtype == np.float32 and first.y.tolist() == [1, 0]
    assert load(write(tmp_path, "c.csv", "0,1,2\n5,6,7\n"), header=True).y.tolist() == [7]
    assert load(write(tmp_path, "d.csv", "1,2\n3,4.5\n")).y.tolist() == [2, 4.5]
    assert load(write(tmp_path, "e.tsv.gz", gzip.compress(b"1\t2\n3\t4\n"))).x.tolist() == [[1], [3]]
    later = "1,0\n" * 300_000 + "2.5,1\n"  # a float after a megabyte of whole numbers
    assert load(write(tmp_path, "f.csv", later)).x[-1, 0] == 2.5


UNLABELLED = {
    "a.csv": b"1,2.5\n3,4\n",
    "b.csv": b"u;v\n1;2.5\n+3; 4\n",  # for the patient reader
    "a.npz": npz(X=np.asarray([[1, 2.5], [3, 4]])),
    "b.npz": npz(X_data=np.asarray([1, 2.5, 3, 4]), X_indices=[0, 1, 0, 1], X_indptr=[0, 2, 4], X_shape=[2, 2]),
    "a.parquet": parquet({"u": [1.0, 3.0], "v": [2.5, 4.0]}),
}


@pytest.mark.parametrize("name", UNLABELLED)
def test_points_without_labels(tmp_path, name):
    path = write(tmp_path, name, UNLABELLED[name])
    for arguments in ({"label": False}, {"label": False, "features": 2}, {"label_optional": True, "features": 2}):
        data = load(path, **arguments)
        x = data.x.toarray() if scipy.sparse.issparse(data.x) else data.x
        assert x.tolist() == [[1, 2.5], [3, 4]] and data.y is None
        assert data.feature_names == (("u", "v") if name in ("b.csv", "a.parquet") else None)
    with pytest.raises(DataError, match=r"no labels 'y'|has 1 feature columns; features=2"):
        load(path, features=2)
    with pytest.raises(DataError, match="feature"):
        load(path, label=False, features=3)
    with pytest.raises(InputError, match="label is True"):
        load(path, label=True)


def test_labels_that_are_there_or_dropped(tmp_path):
    table = write(tmp_path, "a.csv", "1,2,0\n3,4,1\n")
    assert load(table, label_optional=True, features=2).y.tolist() == [0, 1]
    assert load(table, label=False).x.shape == (2, 3)
    assert load(write(tmp_path, "one.csv", "1\n2\n"), label=False).x.tolist() == [[1], [2]]
    arrays = write(tmp_path, "a.npz", npz(X=np.eye(2), y=[0, 1]))
    assert load(arrays, label_optional=True).y.tolist() == [0, 1] and load(arrays, label=False).y is None
    with pytest.raises(DataError, match="no labels 'z'"):  # a key that is named must be there
        load(arrays, label="z", label_optional=True)
    lines = write(tmp_path, "a.svm", "1 1:2\n-1 2:3\n")
    assert load(lines, label_optional=True, features=2).y.tolist() == [1, -1]
    assert load(lines, label=False).y is None and load(lines, label=False).x.shape == (2, 2)
    with pytest.raises(DataError, match="'1:2'"):  # a line without its label
        load(write(tmp_path, "b.svm", "1:2\n2:3\n"), label=False)
    with pytest.raises(DataError, match="no column"):
        load(write(tmp_path, "none.csv", '""\n'), label=False)
    with pytest.raises(DataError, match=r"line 2: column 1 is missing"):
        load(write(tmp_path, "gap.csv", "1,2\n3,\n"), label=False)


def test_small_types_get_the_smallest_float(tmp_path):
    for dtype, expected in ((np.uint8, np.float32), (np.int16, np.float32), (np.int32, np.float64), (bool, np.float32)):
        path = write(tmp_path, "a.npz", npz(X=np.eye(2).astype(dtype), y=np.asarray([0, 1], np.int8)))
        assert load(path).x.dtype == expected
    assert load(path, dtype=np.float64).x.dtype == np.float64
    columns = {
        "a": np.asarray([1, 2], np.uint8),
        "b": pa.array([True, False]),
        "y": pa.array(["u", "v"]).dictionary_encode(),
    }
    data = load(write(tmp_path, "a.parquet", parquet(columns)))
    assert data.x.tolist() == [[1, 1], [2, 0]] and data.x.dtype == np.float32 and data.y.tolist() == ["u", "v"]


def test_published_sets(shared, tmp_path):
    for name, shape, positives in (("heart", (270, 13), 120), ("adult", (32561, 123), 7841)):
        arrays = shared(name)
        data = load(write(tmp_path, f"{name}.npz", npz(**arrays)))
        signs, classes = two_classes(data.y)
        assert data.x.shape == shape and (signs > 0).sum() == positives and classes.tolist() == [-1, 1]
    assert load(tmp_path / "adult.npz", part="test").x.shape == (16281, 123)


def test_sound_quotes(tmp_path):
    text = '"a, b","c ""d"""," y"\n"1",2.5,"small, cat"\n3,"4" ,"dog ""x"""\n5,6,""""\n'
    data = load(write(tmp_path, "a.csv", text))
    assert data.x.tolist() == [[1, 2.5], [3, 4], [5, 6]] and data.y.tolist() == ["small, cat", 'dog "x"', '"']
    assert data.feature_names == ("a, b", 'c "d"')


# ------------------------------------------------------------------------------------------------- like another file


def table(kind, columns):
    if kind == "parquet":
        return parquet(columns)
    rows = zip(*columns.values(), strict=True)
    return "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n"


TRAINING = {"u": [1.0, 2.0], "answer": ["no", "yes"], "v": [3.0, 4.0], "w": [5.0, 6.0]}
WANTED = [[1, 3, 5], [2, 4, 6]]


def like_training(tmp_path, kind="csv"):
    data = load(write(tmp_path, f"train.{kind}", table(kind, TRAINING)), label="answer")
    assert data.layout == Layout(("u", "v", "w"), "answer") and data.notes == ()
    return data.layout


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("order", ["u answer v w", "answer w v u", "w u answer v", "v w u answer"])
def test_columns_in_another_order_are_put_in_order(tmp_path, kind, order):
    """As they came they gave an accuracy of 0.05."""
    layout = like_training(tmp_path, kind)
    names = order.split()
    path = write(tmp_path, f"new.{kind}", table(kind, {name: TRAINING[name] for name in names}))
    for options in ({}, {"label_optional": True}, {"label": "answer"}, {"label": names.index("answer")}):
        data = load(path, like=layout, features=3, **options)
        assert data.x.tolist() == WANTED and data.y.tolist() == ["no", "yes"]
        assert data.feature_names == ("u", "v", "w") and data.layout == layout
        moved = [name for name in names if name != "answer"] != ["u", "v", "w"]
        assert any("order of the training file" in note for note in data.notes) == moved
        found = "label" not in options and names[-1] != "answer"
        assert any("labels are in column 'answer'" in note for note in data.notes) == found
    bare = write(tmp_path, f"bare.{kind}", table(kind, {name: TRAINING[name] for name in names if name != "answer"}))
    for options in ({"label_optional": True, "features": 3}, {"label": False}):
        data = load(bare, like=layout, **options)
        assert data.x.tolist() == WANTED and data.y is None


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        ("u v answer", {}, "lacks the column 'w', which the training file had"),
        ("u v", {}, "lacks the column 'w'"),
        ("u v z", {}, "lacks the column 'w', which the training file had; has the column 'z', which .* had not"),
        ("u v w z", {}, "has the column 'z', which .* had not .*--drop z.; name the column of the labels"),
        ("u v w z answer", {}, "has the column 'z'"),
        ("u v w answer", {"label": False}, "has the column 'answer', which the training file had not"),
        ("u v w answer", {"label": "u"}, "lacks the column 'u'.* has the column 'answer'"),
        ("u v w", {"label_optional": False}, "has the features of the training file and no other column"),
    ],
)
def test_missing_and_other_columns_are_named(tmp_path, kind, names, options, said):
    layout = like_training(tmp_path, kind)
    path = write(tmp_path, f"new.{kind}", table(kind, {name: TRAINING.get(name, [7.0, 8.0]) for name in names.split()}))
    with pytest.raises(DataError, match=f"new.{kind}: {said}"):
        load(path, like=layout, **({"label_optional": True, "features": 3} | options))


def test_columns_without_names(tmp_path):
    first = write(tmp_path, "first.csv", "no,1,3\nyes,2,4\n")
    layout = load(first, label=0).layout
    assert layout == Layout(None, 0)
    for content in ("yes,5,6\n", "answer,u,v\nyes,5,6\n"):  # the label is where it was
        data = load(write(tmp_path, "new.csv", content), like=layout, label_optional=True, features=2)
        assert data.x.tolist() == [[5, 6]] and data.y.tolist() == ["yes"] and "column" in data.notes[0]
    bare = load(write(tmp_path, "bare.csv", "5,6\n"), like=layout, label_optional=True, features=2)
    assert bare.x.tolist() == [[5, 6]] and bare.y is None
    named = like_training(tmp_path)
    plain = load(write(tmp_path, "plain.csv", "1,3,5\n"), like=named, label_optional=True, features=3)
    assert plain.x.tolist() == [[1, 3, 5]] and plain.y is None
    with pytest.raises(DataError, match="no header, and the training file had its labels in 'answer'"):
        load(write(tmp_path, "plain.csv", "1,0,3,5\n"), like=named, label_optional=True, features=3)
    assert load(tmp_path / "plain.csv", like=named, label=1, features=3).x.tolist() == [[1, 3, 5]]


@pytest.mark.parametrize(
    ("head", "rows"),
    [
        ("0,1,target", "1.5,2,0 2.5,3,1 1.5,3,0"),
        ("0,1,target", "1.5,2,no 2.5,3,yes 1.5,3,no"),
        ("2019,2020,kind", "1.5,2,no 2.5,3,yes 1.5,3,no"),
        ("2019,2020,2021,kind", "1.5,2,7,0 2.5,3,7,1 1.5,3,8,0"),
        ("0,1,2", "1.5,2,0 2.5,3,1 1.5,3,0"),
        ("age,2020,kind", "1.5,2,0 2.5,3,1 1.5,3,0"),
        ("age,2020,kind", "1.5,2,no 2.5,3,yes 1.5,3,no"),
    ],
)
def test_names_that_are_numbers_are_no_sample(tmp_path, head, rows):
    """As pandas numbers columns: the names were one more sample, of a class of its own."""
    names = tuple(head.split(","))
    path = write(tmp_path, "a.csv", "\n".join([head, *rows.split(), ""]))
    data = load(path)
    assert data.x.shape == (3, len(names) - 1) and data.layout == Layout(names[:-1], names[-1])
    assert "first line is taken for the names" in data.notes[0]
    table = Table(str(path), "csv", Wanted())
    assert table.layout == data.layout and table.n == 3 and table.notes == data.notes
    content = ",".join(names[:-1]) + "\n" + ",".join("567"[: len(names) - 1]) + "\n"
    bare = load(write(tmp_path, "new.csv", content), like=data.layout, label_optional=True, features=len(names) - 1)
    assert bare.x.tolist() == [[5, 6, 7][: len(names) - 1]] and bare.y is None


@pytest.mark.parametrize(
    "rows",
    [
        "1,2,0 3,4,1 1,4,0 1,5,1", "0,1,p 1,0,p 0,0,q 1,1,q", "1,1,p 0,1,q 2,2,q 1,2,q", "0,2,4 1,2,3 1,2,4 1,1,1",
        "0,1,2 3,4,5", "0.5,1.5,2.5 1,2,3 1,2,3 1,3,3", "1,2,T 4,3,U 5,5,T 5,5,U",
        "NA,p 1,p 2,q",
    ],
)  # fmt: skip
def test_samples_are_no_names(tmp_path, rows):
    path = write(tmp_path, "a.csv", "\n".join([*rows.split(), ""]))
    assert Table(str(path), "csv", Wanted()).n == len(rows.split())
    assert "NA" in rows or load(path).x.shape[0] == len(rows.split())


def test_a_name_goes_before_a_place(tmp_path):
    path = write(tmp_path, "a.csv", ",0,1,2\n0,5,6,7\n1,5,7,8\n2,5,6,7\n3,5,7,8\n")
    with pytest.raises(DataError, match="--index-col 0"):
        load(path)
    table = Table(str(path), "csv", Wanted("1"), [0])  # as --index-col 0: a place
    assert table.layout == Layout(("0", "2"), "1") and table.y.tolist() == [6, 7, 6, 7]
    assert Table(str(path), "csv", Wanted("3"), [0]).layout.label == "2"


def test_text_that_spells_numbers_in_parquet(tmp_path):
    """As text it is no number, whatever is done to other columns."""
    path = write(tmp_path, "a.parquet", table("parquet", {"a": [1.0, 2.0], "b": ["x", "y"], "kind": ["+1", "-1"]}))
    assert Table(str(path), "parquet", Wanted(), ["b"]).y.tolist() == ["+1", "-1"]


def test_a_named_index_of_pandas_is_no_feature(tmp_path):
    """It was the last column, so it was taken for the labels."""
    frame = pandas.DataFrame({"a": [1.0, 2.0], "kind": ["x", "y"]}, pandas.Index([17, 18], name="id"))
    frame.to_parquet(tmp_path / "a.parquet")
    for data in (load(tmp_path / "a.parquet"), Table(str(tmp_path / "a.parquet"), "parquet", Wanted())):
        assert data.layout == Layout(("a",), "kind") and "left out ('id')" in data.notes[0]
    frame[["a"]].to_parquet(tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet", label="id").y.tolist() == [17, 18]


def test_columns_that_share_a_name(tmp_path):
    layout = load(write(tmp_path, "a.csv", "a,a,b,y\n1,2,3,0\n")).layout
    assert load(tmp_path / "a.csv", like=layout).x.tolist() == [[1, 2, 3]]
    with pytest.raises(DataError, match="some share a name"):
        load(write(tmp_path, "b.csv", "b,a,a,y\n1,2,3,0\n"), like=layout)
    with pytest.raises(DataError, match="has the column 'b' more than once"):
        load(write(tmp_path, "c.csv", "a,b,b,y\n1,2,3,0\n"), like=layout)


def test_keys_of_npz_are_remembered_where_they_were_asked_for(tmp_path):
    path = write(tmp_path, "a.npz", npz(X=np.eye(2), y=[0, 1], target=[5, 6], Xt=np.eye(2), yt=[2, 3]))
    assert load(path).layout == Layout()
    layout = load(path, label="target").layout
    assert layout.label == "target"
    assert load(path, like=layout, label_optional=True).y.tolist() == [5, 6]
    assert load(path, like=layout, label="y").y.tolist() == [0, 1]
    assert load(path, like=layout, part="test").y.tolist() == [2, 3]
    assert load(write(tmp_path, "b.npz", npz(X=np.eye(2), y=[0, 1])), like=layout).y.tolist() == [0, 1]


def test_where_svmlight_indices_start(tmp_path):
    """A test file read from elsewhere than the training file: 0.96 became 0.50."""
    zero = write(tmp_path, "zero.svm", "1 0:1 2:3\n-1 1:2\n")
    one = write(tmp_path, "one.svm", "1 1:1 3:3\n-1 2:2\n")
    lacking = write(tmp_path, "lacking.svm", "1 2:3\n-1 1:2\n")  # of zero's points, the first feature is always 0
    assert load(zero).layout == Layout(index_base=0) and load(one).layout == Layout(index_base=1)
    np.testing.assert_array_equal(load(zero).x.toarray(), load(one).x.toarray())
    # As in training, although no index is 0 here: shifted by one before.
    data = load(lacking, features=3, like=load(zero).layout)
    assert data.x.toarray().tolist() == [[0, 0, 3], [0, 2, 0]] and "count from 0" in data.notes[0]
    assert load(lacking, features=3, like=load(zero).layout, zero_based=True).notes == ()
    assert load(lacking, features=3, zero_based=True).layout.index_base == 0
    assert load(lacking, features=3).x.toarray().tolist() == [[0, 3, 0], [2, 0, 0]]
    assert load(one, zero_based=True).x.shape == (2, 4)
    # Certainly elsewhere: refused, and stated otherwise read.
    with pytest.raises(DataError, match=r"zero\.svm: its indices count from 0 .*--index-base 0"):
        load(zero, features=3, like=load(one).layout)
    assert load(zero, features=3, like=load(one).layout, zero_based=True).x.shape == (2, 3)
    with pytest.raises(DataError, match="the index 0 occurs"):
        load(zero, zero_based=False)
    with pytest.raises(DataError, match=r"line 1: the feature index is 3, and indices count from 0; features=3"):
        load(one, features=3, like=load(zero).layout)
    with pytest.raises(InputError, match="only svmlight files"):
        load(write(tmp_path, "a.csv", "1,2\n"), zero_based=True)


@pytest.mark.parametrize("name", ["a9a", "a9a.t", "mnist.scale.t"])
def test_svmlight_by_its_first_line(tmp_path, name):
    """LIBSVM's own files have no suffix that says it, and the command has no option that could."""
    content = b"# made by hand\n+1 1:0.5 3:1 # why\n-1 2:1\n"
    for ending, packed in (("", content), (".gz", gzip.compress(content))):
        data = load(write(tmp_path, name + ending, packed))
        assert data.x.toarray().tolist() == [[0.5, 0, 1], [0, 1, 0]] and data.y.tolist() == [1, -1]


# ------------------------------------------------------------------------------------------------- bad files


BAD_LINES = [
    ("a.svm", "+1 1:2\n+1 1:2 3\n", 2, "'3'"),
    ("a.svm", "+1 1:2\n-1 1:3 2:", 2, "cut short"),
    ("a.svm", "+1 1:2\n-1 1:3 2", 2, "cut short"),
    ("a.svm", "+1 1:2\n-1 1:x\n", 2, "'1:x'"),
    ("a.svm", "+1 1:2\n\n# note\nyes 1:1\n", 4, "'yes'"),
    ("a.svm", "+1 1:2\n1,2 1:1\n", 2, "'1,2'"),
    ("a.svm", "+1 2:2 1:1\n", 1, "ascend"),
    ("a.svm", "+1 2:2 2:1\n", 1, "ascend"),
    ("a.svm", "+1 -2:2\n", 1, "'-2:2'"),
    ("a.svm", "+1 1:2\n+1 1:nan\n", 2, "not finite"),
    ("a.svm", "+1 1:2\n+1 1:inf\n", 2, "not finite"),
    ("a.svm", "+1 1:2\nnan 1:1\n", 2, "'nan'"),
    ("a.svm", "+1 99999999999:2\n", 1, "99999999999"),
    ("a.svm", "+1 99999999999999999999999:2\n", 1, "indices go to"),
    ("a.svm", b"+1 1:2\n-1 1:\xff\n", 2, "0xff"),
    ("a.txt", "1,2,3\n4,5,6\n", 1, "'1,2,3'"),
    ("a.csv", "a,b,y\n1,2,0\n1,0\n", 3, "2 fields"),
    ("a.csv", "1,2,0\n1,2,0,4\n", 2, "4 fields"),
    ("a.csv", "1,2,0\n3,4,1\n5,", 3, "cut short"),
    ("a.csv", "a,b,y\n1,2,0\n1,,0\n", 3, "column 1 (b) is missing"),
    ("a.csv", "1,2,0\n?,2,0\n", 2, "column 0 is missing"),
    ("a.csv", "1,2,0\nNaN,2,0\n", 2, "column 0 is missing"),
    ("a.csv", "1,NA,0\n1,2,0\n", 1, "column 1 is missing"),
    ("a.csv", "1,2,0\n1,oops,0\n", 2, "'oops'"),
    ("a.csv", "1,2,0\n1,inf,0\n", 2, "'inf'"),
    ("a.csv", "1,2,0\n1,1_0,0\n", 2, "'1_0'"),
    ("a.csv", "1,2,0\n1,2,\n", 2, "label (column 2) is missing"),
    ("a.csv", "1,2,0\n1,2,nan\n", 2, "label (column 2) is missing"),
    ("a.csv", "1,oops,0\n1,2,0\n", 1, "header=True"),
    ("a.csv", ",a,y\n0,1,1\n", 1, "index=False"),
    ("a.csv", b"1,2,0\n\xff,2,0\n", 2, "0xff"),
    ("a.csv", 'a,y\n1,0\n"' + "x" * 200_000, 3, "quotation"),
    # A stray quotation mark lost the lines up to the next one, without a word.
    ("a.csv", 'a,y\n1,no\n2,"yes\n3,no\n4,no\n5,yes"\n6,no\n', 3, "a stray quotation mark in '2,\"yes'"),
    ("a.csv", 'a,y\r\n1,"0\r\n2,1\r\n3,0"\r\n', 2, "stray"),
    ("a.csv", '"a,y\n1,0\n2,1\n', 1, "stray"),
    ("a.csv", 'a,y\n1,no"\n2,yes\n', 2, "stray"),
    ("a.csv", 'a,y\n1,"no" way\n2,yes\n', 2, "stray"),
    ("a.csv", 'a;y\n1;"no\n2;yes\n', 2, "stray"),
]


@pytest.mark.parametrize(("name", "content", "line", "found"), BAD_LINES)
def test_a_bad_line_is_named(tmp_path, name, content, line, found):
    path = write(tmp_path, name, content)
    with pytest.raises(DataError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line {line}:") and found in message
    assert len(message) < len(str(path)) + 300


def random_points(n=200, d=5):
    x = np.random.default_rng(0).normal(size=(n, d))
    return x, labels_for(x)


@pytest.mark.parametrize("name", ["a.svm.gz", "a.csv.bz2", "a.npz", "a.parquet"])
@pytest.mark.parametrize("kept", [0.02, 0.5, 0.9, "all but one"])
def test_a_file_cut_short(tmp_path, name, kept):
    x, y = random_points()
    text = "".join(",".join(map(str, [*row, label])) + "\n" for row, label in zip(x, y, strict=True)).encode()
    svm = io.BytesIO()
    dump_svmlight_file(x, y, svm)
    whole = {
        "a.svm.gz": gzip.compress(svm.getvalue()),
        "a.csv.bz2": bz2.compress(text),
        "a.npz": npz(X=x, y=y),
        "a.parquet": parquet({"a": x[:, 0], "y": y}),
    }[name]
    assert load(write(tmp_path, name, whole)).x.shape[0] == 200
    size = len(whole) - 1 if kept == "all but one" else int(len(whole) * kept)
    with pytest.raises(DataError, match="cut short") as caught:
        load(write(tmp_path, name, whole[:size]))
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("name", ["a.npz", "a.parquet", "a.svm.gz"])
def test_a_damaged_byte(tmp_path, name):
    x, y = random_points()
    whole = {
        "a.npz": npz(X=x, y=y),
        "a.parquet": parquet({"a": x[:, 0], "y": y}),
        "a.svm.gz": gzip.compress(b"+1 1:2\n-1 2:3\n" * 50),
    }[name]
    broken = bytearray(whole)
    broken[10 if name.endswith("gz") else -6] ^= 0xFF
    with pytest.raises(DataError):
        load(write(tmp_path, name, bytes(broken)))


@pytest.mark.parametrize("name", ["a.svm", "a.csv", "a.npz", "a.parquet", "a.svm.gz", "a.csv.bz2"])
@pytest.mark.parametrize("content", [b"", b" \n \n"])
def test_an_empty_file(tmp_path, name, content):
    if content and name.endswith(("gz", "bz2")):
        content = (gzip if name.endswith("gz") else bz2).compress(content)
    with pytest.raises(DataError, match="no samples"):
        load(write(tmp_path, name, content))


@pytest.mark.parametrize(
    ("name", "content"), [("a.svm", "# only\n# comments\n"), ("a.csv", "a,b,y\n"), ("a.csv", '""\n')]
)
def test_a_file_without_samples(tmp_path, name, content):
    with pytest.raises(DataError, match="no samples|one column"):
        load(write(tmp_path, name, content))


def test_text_says_that_it_may_be_the_label(tmp_path):
    columns = {"answer (text)": ["no", "yes"], "u": [1.0, 2.0]}
    content = "answer (text),u\nno,1\nyes,2\n"
    said = r"--label 'answer \(text\)'\): they were looked for in the last column, 'u'\.$"
    for file in (write(tmp_path, "a.csv", content), write(tmp_path, "a.parquet", parquet(columns))):
        with pytest.raises(DataError, match=said):
            load(file)
        assert load(file, label=0).y.tolist() == ["no", "yes"]
        with pytest.raises(DataError, match=r"\(--drop\)(\) are needed)?\.$"):
            load(file, label="u")  # somebody said it
    with pytest.raises(DataError, match=r"--label 0\): they were looked for in the last column, 1\.$"):
        load(write(tmp_path, "bare.csv", "1,2\nno,1\n"))


def test_lines_that_lack_a_value_are_counted(tmp_path):
    with pytest.raises(DataError, match=r"line 3: column 0 \(a\) is missing \(''\), and 2 more line\(s\) lack a value"):
        load(write(tmp_path, "a.csv", "a,b,y\n1,2,0\n,2,0\n1,2,1\nNA,?,1\n1,,0\n"))


def test_no_file_no_format_no_access(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        load(tmp_path / "absent.csv")
    with pytest.raises(DataError, match="is a directory"):
        load(tmp_path)
    with pytest.raises(DataError, match=r"'\.xlsx' files is not known.*\.parquet"):
        load(write(tmp_path, "a.xlsx", "x"))
    with pytest.raises(DataError, match="format="):
        load(write(tmp_path, "a9a", "x"))
    with pytest.raises(DataError, match="one column"):
        load(write(tmp_path, "one.csv", "1\n2\n"))
    with pytest.raises(DataError, match="no line has a feature"):
        load(write(tmp_path, "labels.svm", "1\n-1\n"))
    with pytest.raises(DataError, match=r"line 2: the feature index is 3; features=2"):
        load(write(tmp_path, "wide.svm", "1 1:1\n-1 3:1\n"), features=2)
    with pytest.raises(DataError, match=r"has 2 feature columns; features=3"):
        load(write(tmp_path, "narrow.csv", "1,2,1\n"), features=3)


@pytest.mark.parametrize(
    ("arrays", "found"),
    [
        ({"Z": np.eye(2)}, "no labels 'y'; its keys are Z"),
        ({"y": np.ones(2)}, "has no points"),
        ({"X": np.eye(2), "y": np.ones(3)}, r"shape \(2, 2\) and y \(3,\)"),
        ({"X": np.ones(2), "y": np.ones(2)}, r"shape \(2,\)"),
        ({"X": np.asarray([["a"], ["b"]]), "y": np.ones(2)}, "numbers"),
        ({"X": np.asarray([[1], [np.nan]]), "y": np.ones(2)}, r"row 1 \(from 0\): column 0 of X is nan"),
        ({"X": np.eye(2), "y": np.asarray([1, np.nan])}, r"row 1 \(from 0\): the label \(y\) is nan"),
        ({"X": np.asarray([[1], [None]], dtype=object), "y": np.ones(2)}, "pickled"),
        (
            {
                "X_data": np.ones(2),
                "X_indices": np.asarray([0, 9]),
                "X_indptr": np.arange(3),
                "X_shape": (2, 2),
                "y": np.ones(2),
            },
            "do not fit together",
        ),
        *(
            (
                {"X_data": np.ones(2), "X_indices": np.asarray([0, 1]), "X_indptr": np.arange(3), "X_shape": (2, 2)}
                | {"y": np.ones(2)}
                | wrong,
                f"do not fit together .{said}",
            )
            for wrong, said in (
                ({"X_indices": np.asarray([0, 2**32 + 1])}, "indices go from 0 to 4294967297: from 0 to 1 is possible"),
                ({"X_indptr": np.asarray([0, 1, 2**32 + 2])}, "indptr go from 0 to 4294967298: from 0 to 2"),
                ({"X_indices": np.asarray([0, -1])}, "indices go from -1"),
                ({"X_indices": np.asarray([0.0, 1.0])}, "indices are float64"),
                ({"X_shape": (2, 2**31 + 1)}, "indices may go to 2147483648"),
                ({"X_shape": (2,)}, ""),
            )
        ),
    ],
)
def test_bad_arrays(tmp_path, arrays, found):
    with pytest.raises(DataError, match=found):
        load(write(tmp_path, "a.npz", npz(**arrays)))


def test_an_array_alone_is_no_archive(tmp_path):
    np.save(tmp_path / "a.npy", np.eye(2))
    with pytest.raises(DataError, match="not a whole npz"):
        load(tmp_path / "a.npy", format="npz")


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"a": pa.array([1.0, None]), "y": [0, 1]}, r"row 1 \(from 0\): column 0 \(a\) is missing"),
        ({"a": [1.0, float("nan")], "y": [0, 1]}, r"row 1 \(from 0\): column 0 \(a\) is nan"),
        ({"a": ["u", "v"], "y": [0, 1]}, r"column 0 \(a\) is of type string"),
        ({"a": [[1], [2]], "y": [0, 1]}, "is of type list"),
        ({"a": [1, 2], "y": pa.array([0, None])}, r"row 1 \(from 0\): column 1 \(y\) is missing"),
        ({"y": [0, 1]}, "one column"),
        ({"a": pa.array([], pa.float64()), "y": pa.array([], pa.int8())}, "no samples"),
    ],
)
def test_bad_tables(tmp_path, columns, found):
    with pytest.raises(DataError, match=found):
        load(write(tmp_path, "a.parquet", parquet(columns)))


@pytest.mark.parametrize(
    ("name", "arguments", "found"),
    [
        ("a.csv", {"label": "z"}, "no column of that name; it has a, a, y"),
        ("a.csv", {"label": "a"}, "2 columns of that name"),
        ("a.csv", {"label": 3}, "index from 0 to 2"),
        ("a.csv", {"label": -4}, "index from 0 to 2"),
        ("a.csv", {"label": "y", "header": False}, "no header"),
        ("a.csv", {"part": "test"}, "only npz"),
        ("a.csv", {"part": "valid"}, '"train" or "test"'),
        ("a.csv", {"format": "arff"}, "svmlight, csv, npz, parquet"),
        ("a.csv", {"dtype": np.int32}, "int32: a floating one"),
        ("a.svm", {"label": 0}, "start with their label"),
        ("a.npz", {"label": 0}, "it is a key"),
    ],
)
def test_bad_arguments(tmp_path, name, arguments, found):
    with pytest.raises(InputError, match=found):
        load(write(tmp_path, name, "a,a,y\n1,2,0\n"), **arguments)


@pytest.mark.parametrize(
    ("module", "name", "content"),
    [
        ("pyarrow.parquet", "a.parquet", parquet({"a": [1], "y": [2]})),
    ],
)
def test_a_missing_package_is_named(tmp_path, monkeypatch, module, name, content):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install 'jaxsvm\[cli\]'"):
        load(write(tmp_path, name, content))


# ------------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        ([1, 0, 1], [0, 1]),
        (np.asarray([7, -7, 7], np.int8), [-7, 7]),
        ([2.5, 1.5, 2.5], [1.5, 2.5]),
        ([True, False, True], [False, True]),
        (["yes", "no", "yes"], ["no", "yes"]),
        (np.asarray(["yes", "no", "yes"], dtype=object), ["no", "yes"]),
        (jnp.asarray([1, 0, 1]), [0, 1]),
    ],
)
def test_two_classes_sorts_any_labels(y, classes):
    signs, found = two_classes(y)
    assert signs.tolist() == [1, -1, 1] and signs.dtype == np.float64
    assert found.tolist() == classes and found.shape == (2,)


@pytest.mark.parametrize(
    ("y", "positive", "signs", "classes"),
    [
        ([1, 0, 1], 0, [-1, 1, -1], [1, 0]),
        (["b", "a"], "a", [-1, 1], ["b", "a"]),
        ([3, 8, 5, 8], 8, [-1, 1, -1, 1], ["not 8", "8"]),
        ([3, 8, 5, 8], "8", [-1, 1, -1, 1], ["not 8", "8"]),
        ([1.0, 2.0], "1", [1, -1], [2.0, 1.0]),
        ([True, False], "False", [-1, 1], [True, False]),
        (["3", "8"], 3, [1, -1], ["8", "3"]),
    ],
)
def test_one_class_against_the_rest(y, positive, signs, classes):
    found, names = two_classes(y, positive=positive)
    assert found.tolist() == signs and names.tolist() == classes


@pytest.mark.parametrize(
    ("y", "positive", "found"),
    [
        ([1, 1], None, "one class only, 1"),
        ([1, 1], 1, "one class only, 1"),
        ([1, 2, 3], None, r"3 classes \(1, 2, 3\).*positive=3"),
        ([1, 2, 3], 4, "no such label; it has 1, 2, 3"),
        ([1.0, np.nan, 2.0], None, "first at index 1"),
        ([1.0, np.inf], None, "first at index 1"),
        (["a", None], None, "first at index 1"),
        (["a", float("nan")], None, "first at index 1"),
        (np.asarray(["a", float("nan")], dtype=object), None, "first at index 1"),
        (np.asarray(["a", 1], dtype=object), None, "no order"),
        ([[1], [2]], None, r"shape \(2, 1\)"),
        ([], None, r"shape \(0,\)"),
        (np.asarray([1 + 2j, 3]), None, "complex"),
    ],
)
def test_labels_that_are_no_two_classes(y, positive, found):
    with pytest.raises(InputError, match=found):
        two_classes(y, positive=positive)


def test_labels_under_tracing_are_refused():
    with pytest.raises(InputError, match="outside jit"):
        jax.jit(lambda y: two_classes(y)[0])(jnp.asarray([0, 1]))


# ------------------------------------------------------------------------------------------------- scaling


# Spread-out columns: scikit-learn calls columns constant that vary by rounding alone, we take them at their word.
steps = hnp.arrays(np.float64, st.tuples(st.integers(2, 12), st.integers(1, 4)), elements=st.integers(-1000, 1000))


@many
@given(x=steps)
def test_scaling_agrees_with_scikit_learn(x):
    np.testing.assert_allclose(Scaling.standardise(x)(x), StandardScaler().fit_transform(x), atol=1e-12)
    np.testing.assert_allclose(Scaling.min_max(x)(x), MinMaxScaler().fit_transform(x), atol=1e-12)
    rows = scipy.sparse.csr_array(x)
    for ours, theirs in (
        (Scaling.standardise(rows), StandardScaler(with_mean=False)),
        (Scaling.min_max(rows), MaxAbsScaler()),
    ):
        scaled = ours(rows)
        assert scipy.sparse.issparse(scaled) and scaled.format == "csr" and not np.asarray(ours.offset).any()
        np.testing.assert_allclose(scaled.toarray(), theirs.fit_transform(rows).toarray(), atol=1e-9)
        np.testing.assert_allclose(ours(x), scaled.toarray(), atol=1e-12)  # dense points fit too


@pytest.mark.parametrize("constructor", [Scaling.standardise, Scaling.min_max])
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray, scipy.sparse.csr_array, scipy.sparse.csc_matrix])
def test_constant_columns_keep_their_factor(constructor, kind):
    x = np.asarray([[0.1, 0, 1e-310], [0.1, 0, 0], [0.1, 0, 0]])  # the last column's spread has no inverse
    scaling = constructor(kind(x))
    if "spars" in type(kind(x)).__module__ and constructor == Scaling.min_max:
        np.testing.assert_allclose(scaling.factor, [10, 1, 1])  # the largest absolute value, not the spread
    else:
        np.testing.assert_array_equal(scaling.factor, [1, 1, 1])
    assert np.isfinite(scaling(x)).all()


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array, jnp.asarray])
def test_scaling_knows_rounding_from_spread_at_any_size(kind):
    r = np.random.default_rng(0).normal(size=(40, 1))
    x = np.concatenate([r * 1e160, r * 1e-200, 0.1 + 1e-17 * r, np.nextafter(0.3, 1.0 * (r > 0)), 5 + 1e-9 * r], 1)
    factor = np.asarray(Scaling.standardise(kind(x)).factor)
    expected = [1e-160 / r.std(), 1e200 / r.std(), 1, 1, 1 / x[:, 4].std()]
    np.testing.assert_allclose(factor, expected, rtol=1e-6)
    assert np.asarray(Scaling.min_max(np.asarray([[0.3], [np.nextafter(0.3, 1)]])).factor) == 1
    with pytest.raises(InputError, match="more than float64 can subtract"):
        Scaling.min_max(np.asarray([[1.7e308], [-1.7e308]]))


def test_scaling_keeps_type_and_dtype():
    x = np.random.default_rng(0).normal(3, 2, (50, 3)).astype(np.float32)
    scaling = Scaling.standardise(x)
    assert isinstance(scaling(x), np.ndarray) and scaling(x).dtype == np.float32
    assert isinstance(scaling(jnp.asarray(x)), jax.Array) and scaling(jnp.asarray(x)).dtype == jnp.float32
    bytes_in = Scaling.min_max(np.asarray([[0], [255]], np.uint8))(np.asarray([[51]], np.uint8))
    assert bytes_in.dtype == np.float32 and np.isclose(bytes_in[0, 0], 0.2)
    for short in (x.astype(np.float16), jnp.asarray(x, jnp.bfloat16), x.astype(jnp.bfloat16)):
        assert Scaling.standardise(short)(short).dtype == np.float32  # one rule: see jaxsvm.runtime.arrays.floating
    for kind in (scipy.sparse.csr_array, scipy.sparse.csr_matrix):
        rows = kind(x)
        kept = rows.copy()
        assert type(Scaling.standardise(rows)(rows)) is kind
        assert (rows != kept).nnz == 0  # the caller's points are untouched


def test_scaling_is_a_pytree_and_compiles():
    x = jnp.asarray(np.random.default_rng(0).normal(3, 2, (50, 3)))
    scaling = Scaling.standardise(x)
    np.testing.assert_allclose(jax.jit(lambda scaling, x: scaling(x))(scaling, x), scaling(x), rtol=1e-12)
    np.testing.assert_allclose(jax.jit(lambda x: Scaling.standardise(x)(x))(x), scaling(x), rtol=1e-9)
    np.testing.assert_allclose(jax.jit(lambda x: Scaling.min_max(x)(x).max(axis=0))(x), 1, rtol=1e-12)
    assert [leaf.shape for leaf in jax.tree.leaves(scaling)] == [(3,), (3,)]
    slope = jax.grad(lambda x: scaling(x).sum())(x)
    np.testing.assert_allclose(slope, np.broadcast_to(scaling.factor, x.shape), rtol=1e-12)


def test_float32_columns_far_from_zero_are_centred():
    x = (1e4 + np.random.default_rng(0).normal(size=(200_000, 1))).astype(np.float32)
    scaled = Scaling.standardise(x)(x).astype(np.float64)
    assert abs(scaled.mean()) < 1e-3 and abs(scaled.std() - 1) < 1e-3


def test_our_own_sparse_rows_scale_as_scipys_do():
    x = np.random.default_rng(0).poisson(0.5, (30, 4)).astype(float)
    rows = CSR.from_scipy(scipy.sparse.csr_array(x))
    for constructor in (Scaling.standardise, Scaling.min_max):
        scaling, expected = constructor(rows), constructor(scipy.sparse.csr_array(x))
        np.testing.assert_allclose(scaling.factor, expected.factor, rtol=1e-12)
        scaled = jax.jit(lambda scaling, rows: scaling(rows))(scaling, rows)
        assert isinstance(scaled, CSR)
        np.testing.assert_allclose(scaled.rows(jnp.arange(30)), x * np.asarray(expected.factor), rtol=1e-12)


def test_sparse_duplicates_are_summed_first():
    doubled = scipy.sparse.csr_array((np.asarray([1.0, 1.0, 4.0]), [0, 0, 0], [0, 2, 3]), shape=(2, 1))
    np.testing.assert_allclose(Scaling.min_max(doubled)(doubled).toarray(), [[0.5], [1]])
    np.testing.assert_allclose(Scaling.standardise(doubled).factor, [1.0])


def test_scaling_refuses():
    x = np.eye(3)
    with pytest.raises(InputError, match="2 columns: 3 are needed"):
        Scaling.standardise(x)(np.ones((4, 2)))
    with pytest.raises(InputError, match="fill it"):
        Scaling.standardise(x)(scipy.sparse.csr_array(x))
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        Scaling.standardise(np.ones(3))
    with pytest.raises(InputError, match=r"shape \(0, 3\)"):
        Scaling.min_max(np.ones((0, 3)))
    with pytest.raises(InputError, match="first at index"):
        Scaling.standardise(np.asarray([[1.0, np.nan]]))
    with pytest.raises(InputError, match="first at index"):
        Scaling.min_max(scipy.sparse.csr_array([[1.0, np.inf]]))
    with pytest.raises(InputError, match="numbers are needed"):
        Scaling.standardise(np.asarray([["a"]]))


# ------------------------------------------------------------------------------------------------- points


def test_two_gaussians_have_the_promised_error():
    x, y = jax.jit(two_gaussians, static_argnums=(1, 2))(jax.random.key(0), 20_001, 4, separation=3.0)
    assert x.shape == (20_001, 4) and (y < 0).sum() == 10_000 and (y > 0).sum() == 10_001
    error = float(((x.sum(axis=1) > 0) != (y > 0)).mean())
    assert abs(error - 0.0668) < 0.006  # Phi(-1.5), three standard errors
    assert float(jnp.abs(jnp.diff(y)).sum()) > 10_000  # in random order
    small, signs = two_gaussians(jax.random.key(1), 2, 1, dtype=jnp.float32)
    assert small.dtype == signs.dtype == jnp.float32 and sorted(signs.tolist()) == [-1, 1]
    for n, d in ((1, 2), (2, 0)):
        with pytest.raises(InputError, match="n >= 2 and d >= 1"):
            two_gaussians(jax.random.key(0), n, d)
