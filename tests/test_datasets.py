"""Readers of files and frames: what they read, what they refuse by name, labels to the last digit; scaling."""

import bz2
import decimal
import gzip
import io
import re
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.datasets import dump_svmlight_file
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

from jaxsvm import designs
from jaxsvm.datasets import Layout, Scaling, load, reading, tables, two_classes
from jaxsvm.datasets.labels import joined
from jaxsvm.datasets.reading import Source, files_of, scan
from jaxsvm.errors import DataError, InputError
from jaxsvm.points.rows import CSR


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **{key: np.asarray(value) for key, value in arrays.items()})
    return file.getvalue()


def parquet(columns):
    file = io.BytesIO()
    pa.parquet.write_table(pa.table(columns), file)
    return file.getvalue()


def svmlight(x, y, **options):
    file = io.BytesIO()
    dump_svmlight_file(x, y, file, **options)
    return file.getvalue()


def write(folder, name, content):
    path = folder / name
    if isinstance(content, dict):
        content = npz(**content) if name.endswith("npz") else parquet(content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def dense(x):
    return x.toarray() if hasattr(x, "toarray") else x


# ------------------------------------------------------------------------------------------------- what is read

X, Y = [[1, 2.5], [3, 4]], [0, 1]
NAMED, UV = {"u": [1.0, 3.0], "v": [2.5, 4.0]}, ("u", "v")
ROWS_LEFT_OUT = "the first column has no name: it is left out as the names of the rows"
READ = {  # a file, its content, arguments, the labels, the names
    "a.csv": ("1,2.5,0\n3,4,1\n", {}, Y, None),
    "names.csv": ("u,v,y\n1,2.5,0\n3,4,1\n", {}, Y, UV),
    "told.csv": ("7,8,9\n1,2.5,0\n3,4,1\n", {"header": True}, Y, ("7", "8")),
    "mark.csv": ("\ufeffu, v, y\n\n +1, 2.5, small cat\n3, 4e0,dog\n   \n", {}, ["small cat", "dog"], UV),
    "old.csv": ("u,v,y\r1,2.5,0\r3,4,1\r", {}, Y, UV),
    "windows.csv": ('"u","v","y"\r\n"1","2.5","a, b"\r\n"3","4" ,"c ""d"""\r\n', {}, ["a, b", 'c "d"'], UV),
    "a.tsv": ("u\tv\ty\n1\t2.5\t0\n3\t4\t1\n", {}, Y, UV),
    "semi.csv": ("u;v;y\n1;2.5;0\n3;4;1\n", {}, Y, UV),
    "comma.csv": ("u;v;y\n1;2,5;0\n3;4,0;1\n", {"decimal": ","}, Y, UV),
    "bars.csv": ("u|v|y\n1|2.5|0\n3|4|1\n", {"separator": "|"}, Y, UV),
    "first.csv": ("y,u,v\nno,1,2.5\nyes,3,4\n", {"label": "y"}, ["no", "yes"], UV),
    "place.csv": ("no,1,2.5\nyes,3,4\n", {"label": 0}, ["no", "yes"], None),
    "r.csv": ('"u","v","y"\n"1",1,2.5,"a"\n"2",3,4,"b"\n', {}, ["a", "b"], UV),
    "pandas.csv": (",u,v,y\n0,1,2.5,0\n1,3,4,1\n", {}, Y, UV),
    # Labels that numbers would change or make equal stay text.
    "wide.csv": ("1,2.5,18446744073709551616\n3,4,1\n", {}, ["18446744073709551616", "1"], None),
    "point.csv": ("1,2.5,9007199254740993\n3,4,0.5\n", {}, ["9007199254740993", "0.5"], None),
    "codes.csv": ("1,2.5,01\n3,4,1\n", {}, ["01", "1"], None),
    "drop.csv": ("u,when,v,y\n1,2024-01-01,2.5,0\n3,2024-01-02,4,1\n", {"drop": "when"}, Y, UV),
    "a.csv.gz": (gzip.compress(b"1,2.5,0\n3,4,1\n"), {}, Y, None),
    "A.CSV.BZ2": (bz2.compress(b"1,2.5,0\n3,4,1\n"), {}, Y, None),
    "long.csv": ("u,v,y\n" + "1,2.5,0\n" * 300_000 + "3,4,1\n", {}, None, UV),
    "a.svm": ("0 1:1 2:2.5\n1 1:3 2:4\n", {}, Y, None),
    "zero.svm": ("0 0:1 1:2.5\n1 0:3 1:4\n", {}, Y, None),
    "protein.svm": ("0 1: 1 2:  2.5\n1 1:3 2: 4\n", {}, Y, None),
    "a9a": ("\ufeff# a comment\n+1 qid:3 1:1  2:2.5 # more\r\n\n-1 1:3 2:4", {"format": "svmlight"}, [1, -1], None),
    "a9a.t": ("# made by hand\n0 1:1 2:2.5\n1 1:3 2:4 # why\n", {}, Y, None),
    "halves.svm.bz2": (bz2.compress(b"0.5 1:1 2:2.5\n1.5 1:3 2:4\n"), {}, [0.5, 1.5], None),
    "a.npz": ({"X": X, "y": Y}, {}, Y, None),
    "bytes.npz": ({"X": X, "y": np.asarray([b"a", b"b"])}, {}, ["a", "b"], None),
    "key.npz": ({"X": X, "t": Y}, {"label": "t"}, Y, None),
    "a.parquet": (NAMED | {"y": ["a", "b"]}, {}, ["a", "b"], UV),
    "spelled.parquet": (NAMED | {"y": ["+1", "-1"]}, {}, ["+1", "-1"], UV),
    "coded.parquet": (NAMED | {"y": pa.array(["a", "b"]).dictionary_encode()}, {}, ["a", "b"], UV),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_what_is_read(tmp_path, name):
    content, options, labels, names = READ[name]
    data = load(write(tmp_path, name, content), **options)
    x = dense(data.x)
    if labels is None:  # more than one piece
        assert x.shape == (300_001, 2) and x[-1].tolist() == X[1] and data.y[-1] == 1
    else:
        assert x.tolist() == X and data.y.tolist() == labels
    assert data.feature_names == names and data.source == str(tmp_path / name)
    assert (ROWS_LEFT_OUT in data.notes) == (name in ("r.csv", "pandas.csv"))
    assert scipy.sparse.issparse(data.x) == (dense(data.x) is not data.x)


def test_frames_and_many_files(tmp_path):
    frame = pd.DataFrame(NAMED | {"y": ["a", "b"]}, pd.Index([17, 18], name="id"))
    for held in (frame, polars.from_pandas(frame), pa.table(frame)):
        data = load(held)
        assert data.x.tolist() == X and data.y.tolist() == ["a", "b"] and data.layout == Layout(UV, "y")
    frame.to_parquet(tmp_path / "a.parquet")
    data = load(tmp_path / "a.parquet")  # pandas' index was the last column, so it was taken for the labels
    assert data.layout == Layout(UV, "y") and "left out ('id')" in data.notes[0]
    frame[["u"]].to_parquet(tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet", label="id").y.tolist() == [17, 18]
    np.save(tmp_path / "a.npy", np.column_stack([X, Y]))
    assert load(tmp_path / "a.npy").x.tolist() == X and load(tmp_path / "a.npy").y.tolist() == Y
    parts = tmp_path / "parts"
    parts.mkdir()
    frame, nothing = frame.reset_index(drop=True), frame[:0]
    for number, part in enumerate((frame, nothing, frame[["y", "v", "u"]])):
        part.to_feather(parts / f"{number}.feather") if number == 2 else part.to_parquet(parts / f"{number}.parquet")
    (parts / "_SUCCESS").touch()
    for paths in (parts, str(parts / "*"), sorted(parts.glob("[0-9]*"))):
        if not isinstance(paths, list):
            assert load(paths).x.tolist() == X + X
        assert scan(Source(files_of(paths))).rows == 4
    with pytest.raises(DataError, match="no file in this directory"):
        (tmp_path / "none").mkdir()
        load(tmp_path / "none")


def test_types_of_points_and_points_without_labels(tmp_path):
    for dtype, expected in ((np.uint8, np.float32), (np.int16, np.float32), (np.int32, np.float64), (bool, np.float32)):
        path = write(tmp_path, "a.npz", {"X": np.eye(2).astype(dtype), "y": np.asarray(Y, np.int8)})
        assert load(path).x.dtype == expected and load(path).y.dtype == np.int64
    assert load(path, dtype=np.float64).x.dtype == np.float64
    small = {"a": np.asarray([1, 2], np.uint8), "b": [True, False], "c": pa.array([decimal.Decimal("1.5")] * 2)}
    assert load(write(tmp_path, "a.parquet", small | {"y": Y})).x.tolist() == [[1, 1, 1.5], [2, 0, 1.5]]
    for name, content in (("b.csv", "1,2.5\n3,4\n"), ("b.npz", {"X": X}), ("b.parquet", NAMED)):
        bare = write(tmp_path, name, content)
        for options in ({"label": False}, {"label": False, "features": 2}, {"label_optional": True, "features": 2}):
            data = load(bare, **options)
            assert dense(data.x).tolist() == X and data.y is None
        with pytest.raises(DataError, match=r"no labels 'y'|has 1 feature columns; features=2"):
            load(bare, features=2)
    lines = write(tmp_path, "a.svm", "1 1:2\n-1 2:3\n")
    assert load(lines, label_optional=True, features=7).y.tolist() == [1, -1] and load(lines, label=False).y is None
    with pytest.raises(DataError, match="no labels 'z'"):  # a key that is named must be there
        load(path, label="z", label_optional=True)


# ------------------------------------------------------------------------------------------------- labels and digits

EDGES = [0, 1, -1, 7, 2**53, 2**53 + 1, -(2**53) - 1, 10**16 + 1, 10**16 + 3, 2**63 - 1, 2**63, 2**64 - 1]
NUMBERS = [0.1, -2.5, 1e-300, 1e160, 2.0**53, 123456789.125, 5e-324]
WORDS = ["a", "b", "é", "x;y", 'q"q', "a,b", "True", "10", "NA", "null", "inf", "1e400", "", "nan"]


@st.composite
def labels(draw):
    """The values of a column in Python, and the same as pandas or Arrow holds them."""
    kind = draw(
        st.sampled_from(["int8", "int64", "uint64", "float64", "bool", "Int64", "string", "decimal", "category"])
    )
    whole = "int64" if kind == "decimal" else "uint64" if kind == "category" else kind.lower()
    if "int" in whole:
        low, high = np.iinfo(whole).min, np.iinfo(whole).max
        values = draw(
            st.lists(st.sampled_from([edge for edge in EDGES if low <= edge <= high]), min_size=2, max_size=6)
        )
        if kind == "decimal":
            values = [decimal.Decimal(value) for value in values]
            return values, pd.Series(values, dtype=pd.ArrowDtype(pa.decimal128(25, 0)))
        series = pd.Series(np.asarray(values, whole)).astype(kind)  # of a list pandas makes floats
        if kind == "Int64" and draw(st.booleans()):
            values, series[0] = [None, *values[1:]], pd.NA
        return values, series
    among = {"float64": NUMBERS, "bool": [True, False], "string": WORDS}[kind]
    values = draw(st.lists(st.sampled_from(among), min_size=2, max_size=6))
    return values, pd.Series(values, dtype=kind)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "svm"])
@settings(max_examples=25, deadline=None)
@given(column=labels())
def test_labels_are_read_as_they_are_or_refused(tmp_path_factory, kind, column):
    (values, series), path = column, tmp_path_factory.mktemp("identity") / f"data.{kind}"
    x = np.linspace(0.1, 7, len(values)) / 3
    if kind == "npz":
        array = series.to_numpy()
        array = array.astype(str) if array.dtype == object and isinstance(values[-1], str) else array
        if array.dtype == object:
            return
        np.savez(path, X=x[:, None], y=array)
    elif kind == "svm":
        lines = [f"{y} 1:{a!r}" for a, y in zip(x.tolist(), series.astype(object), strict=True)]
        path.write_text("\n".join(lines) + "\n")
    else:
        frame = pd.DataFrame({"x": x, "y": series})
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path, index=False)
    strange = [value for value in values if value is None or value in ("NA", "null", "inf", "1e400", "", "nan")]
    small = mock.patch.object(tables, "BYTES_PER_PIECE", 8)  # pieces of a line
    try:
        whole = load(path)
    except InputError as error:
        assert path.name in str(error) and (strange or kind == "svm"), error
        with small, pytest.raises(InputError, match="data"):
            scan(Source((str(path),)))
        return
    assert not strange
    expected = [str(value) for value in values] if kind == "csv" and isinstance(values[0], bool) else values
    if all(value == "10" for value in expected) and kind in ("csv", "svm"):
        expected = [10] * len(expected)
    assert whole.y.tolist() == expected and len(set(whole.y.tolist())) == len(set(expected))
    block = mock.patch.object(reading, "MEASURED", mock.Mock(bytes_per_block=16))
    with small, block:
        pieces = list(scan(Source((str(path),))).source.pieces())
    np.testing.assert_array_equal(joined([piece.label for piece in pieces]), whole.y)
    np.testing.assert_array_equal(np.concatenate([dense(piece.x) for piece in pieces])[:, 0], x)


def test_small_integers_and_unsigned_ones_do_not_wrap(tmp_path):
    path = write(tmp_path, "a.npz", {"X": np.eye(2, dtype=np.int8), "y": np.asarray([2**64 - 1, 0], np.uint64)})
    assert load(path).y.tolist() == [2**64 - 1, 0]
    assert set(scan(Source((str(path),))).labels.values()) == {0, 2**64 - 1}


# ------------------------------------------------------------------------------------------------- like another file

TRAINING = {"u": [1.0, 2.0], "answer": ["no", "yes"], "v": [3.0, 4.0], "w": [5.0, 6.0]}


def table(folder, name, columns):
    frame = pd.DataFrame(columns)
    content = io.BytesIO()
    frame.to_csv(content, index=False) if name.endswith("csv") else frame.to_parquet(content, index=False)
    return write(folder, name, content.getvalue())


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_in_another_order_are_put_in_order(tmp_path, kind):
    """As they came they gave an accuracy of 0.05."""
    layout = load(table(tmp_path, f"train.{kind}", TRAINING), label="answer").layout
    for order in ("u answer v w", "answer w v u", "w u answer v", "v w u answer"):
        names = order.split()
        path = table(tmp_path, f"new.{kind}", {name: TRAINING[name] for name in names})
        for options in ({}, {"label_optional": True}, {"label": "answer"}, {"label": names.index("answer")}):
            data = load(path, like=layout, features=3, **options)
            assert data.x.tolist() == [[1, 3, 5], [2, 4, 6]] and data.y.tolist() == ["no", "yes"]
            assert data.layout == layout
            moved = [name for name in names if name != "answer"] != ["u", "v", "w"]
            assert any("order of the training file" in note for note in data.notes) == moved
            found = "label" not in options and names[-1] != "answer"
            assert any("labels are in column 'answer'" in note for note in data.notes) == found
        bare = table(tmp_path, f"bare.{kind}", {name: TRAINING[name] for name in names if name != "answer"})
        for options in ({"label_optional": True, "features": 3}, {"label": False}):
            data = load(bare, like=layout, **options)
            assert data.x.tolist() == [[1, 3, 5], [2, 4, 6]] and data.y is None


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        ("u v answer", {}, "lacks the column 'w', which the training file had"),
        ("u v", {}, "lacks the column 'w'"),
        ("u v z", {}, "lacks the column 'w', which the training file had; has the column 'z', which .* had not"),
        ("u v w z", {}, "has the column 'z', which .* had not .*drop=, --drop z; .*; name the labels' column"),
        ("u v w z answer", {}, "has the column 'z'"),
        ("u v w answer", {"label": False}, "has the column 'answer', which the training file had not"),
        ("u v w answer", {"label": "u"}, "lacks the column 'u'.* has the column 'answer'"),
        ("u v w", {"label_optional": False}, "has the features of the training file and no other column"),
    ],
)
def test_missing_and_other_columns_are_named(tmp_path, names, options, said):
    path = table(tmp_path, "new.csv", {name: TRAINING.get(name, [7.0, 8.0]) for name in names.split()})
    with pytest.raises(DataError, match=rf"new\.csv: {said}"):
        load(path, like=Layout(("u", "v", "w"), "answer"), **({"label_optional": True, "features": 3} | options))


def test_columns_without_names_or_with_one_twice(tmp_path):
    layout = load(write(tmp_path, "first.csv", "no,1,3\nyes,2,4\n"), label=0).layout
    assert layout == Layout(None, 0)
    for content in ("yes,5,6\n", "answer,u,v\nyes,5,6\n"):  # the label is where it was
        data = load(write(tmp_path, "new.csv", content), like=layout, label_optional=True, features=2)
        assert data.x.tolist() == [[5, 6]] and data.y.tolist() == ["yes"] and "column" in data.notes[0]
    assert load(write(tmp_path, "a.csv", "5,6\n"), like=layout, label_optional=True, features=2).y is None
    named = Layout(("u", "v", "w"), "answer")
    assert load(write(tmp_path, "a.csv", "1,3,5\n"), like=named, label_optional=True, features=3).y is None
    with pytest.raises(InputError, match="label is 'answer': .* no header"):
        load(write(tmp_path, "a.csv", "1,0,3,5\n"), like=named, label_optional=True, features=3)
    assert load(tmp_path / "a.csv", like=named, label=1, features=3).x.tolist() == [[1, 3, 5]]
    twice = write(tmp_path, "a.csv", "a,a,b,y\n1,2,3,0\n")
    with pytest.raises(DataError, match="column 1 of the header has the name 'a' of another one: .*--drop 1"):
        load(twice)
    assert load(twice, drop=[1]).x.tolist() == [[1, 3]]


def test_keys_of_npz_are_remembered_where_they_were_asked_for(tmp_path):
    path = write(tmp_path, "a.npz", {"X": np.eye(2), "y": Y, "target": [5, 6]})
    layout = load(path, label="target").layout
    assert load(path).layout == Layout() and layout.label == "target"
    for options, y in (({"label_optional": True}, [5, 6]), ({"label": "y"}, Y)):
        assert load(path, like=layout, **options).y.tolist() == y
    assert load(write(tmp_path, "b.npz", {"X": np.eye(2), "y": Y}), like=layout).y.tolist() == Y


def test_where_svmlight_indices_start(tmp_path):
    """A test file read from elsewhere than the training file: 0.96 became 0.50."""
    zero = write(tmp_path, "zero.svm", "1 0:1 2:3\n-1 1:2\n")
    one = write(tmp_path, "one.svm", "1 1:1 3:3\n-1 2:2\n")
    lacking = write(tmp_path, "lacking.svm", "1 2:3\n-1 1:2\n")  # of zero's points, the first feature is always 0
    assert load(zero).layout == Layout(index_base=0) and load(one).layout == Layout(index_base=1)
    np.testing.assert_array_equal(load(zero).x.toarray(), load(one).x.toarray())
    data = load(lacking, features=3, like=load(zero).layout)
    assert data.x.toarray().tolist() == [[0, 0, 3], [0, 2, 0]] and "count from 0" in data.notes[0]
    assert load(lacking, features=3, like=load(zero).layout, zero_based=True).notes == ()
    assert load(lacking, features=3, zero_based=True).layout.index_base == 0
    assert load(lacking, features=3).x.toarray().tolist() == [[0, 3, 0], [2, 0, 0]]
    assert load(one, zero_based=True).x.shape == (2, 4)
    for path, like, options, said in (
        (zero, one, {"features": 3}, r"zero\.svm: its indices count from 0 .*--index-base 0"),
        (one, zero, {"features": 3}, "the feature index is 3, and indices count from 0, and features=3"),
        (zero, None, {"zero_based": False}, "the index 0 occurs"),
    ):
        with pytest.raises(DataError, match=said):
            load(path, like=None if like is None else load(like).layout, **options)
    assert load(zero, features=3, like=load(one).layout, zero_based=True).x.shape == (2, 3)


def test_features_that_training_has_not_seen_are_left_out(tmp_path):
    """As a word of a text that is new; the command refused the file."""
    train = load(write(tmp_path, "a.svm", "1 1:1 3:3\n-1 2:2\n"))
    data = load(write(tmp_path, "new.svm", "1 1:1 7:3\n-1 2:2\n"), like=train.layout, features=3)
    assert data.x.toarray().tolist() == [[1, 0, 0], [0, 2, 0]]
    assert "features above 3, which training has not seen" in data.notes[0]


# ------------------------------------------------------------------------------------------------- the first line


@pytest.mark.parametrize(
    ("head", "rows"),
    [
        ("0,1,target", "1.5,2,0 2.5,3,1 1.5,3,0"), ("0,1,target", "1.5,2,no 2.5,3,yes 1.5,3,no"),
        ("2019,2020,2021,kind", "1.5,2,7,0 2.5,3,7,1 1.5,3,8,0"), ("1,2,3", "1.5,2,0 2.5,3,1 1.5,3,0"),
        ("2019,2020,2021,kind", "1,2,3,a 4,5,6,b 7,8,9,a 2,3,1,b"), ("01,02,kind", "1,2,a 4,5,b 7,8,a 2,3,b"),
        ("0,1,2", "1.5,2,0 2.5,3,1 1.5,3,0"),
        ("2019,2020,2021,2022", "1.5,2,7,0 2.5,3,7,1 1.5,3,8,0"),
        ("age,2020,kind", "1.5,2,0 2.5,3,1 1.5,3,0"), ("age,2020,kind", "1.5,2,no 2.5,3,yes 1.5,3,no"),
    ],
)  # fmt: skip
def test_names_that_are_numbers_are_no_sample(tmp_path, head, rows):
    """As pandas numbers columns: the names were one more sample, of a class of its own."""
    names, path = tuple(head.split(",")), write(tmp_path, "a.csv", "\n".join([head, *rows.split(), ""]))
    with pytest.raises(DataError, match=f"line 1: '{', '.join(names)}' may be names of columns: say header=True"):
        load(path)
    for options in ({"header": True}, {"label": names[-1]}):
        if options.get("header") or not names[-1].isdigit():
            data = load(path, **options)
            assert data.x.shape == (len(rows.split()), len(names) - 1) and data.layout == Layout(names[:-1], names[-1])


@pytest.mark.parametrize(
    "rows",
    [
        "1,2,0 3,4,1 1,4,0 1,5,1", "0,1,p 1,0,p 0,0,q 1,1,q", "1,1,p 0,1,q 2,2,q 1,2,q", "0,2,4 1,2,3 1,2,4 1,1,1",
        "0,1,2 3,4,5", "0.5,1.5,2.5 1,2,3 1,2,3 1,3,3", "1,2,T 4,3,U 5,5,T 5,5,U",
    ],
)  # fmt: skip
def test_samples_are_no_names(tmp_path, rows):
    assert load(write(tmp_path, "a.csv", "\n".join([*rows.split(), ""]))).x.shape[0] == len(rows.split())


def test_a_name_goes_before_a_place(tmp_path):
    path = write(tmp_path, "a.csv", ",0,1,2\n0,5,6,7\n1,5,7,8\n2,5,6,7\n3,5,7,8\n")
    for label, columns, y in (("1", ("0", "2"), [6, 7, 6, 7]), ("3", ("0", "1"), [7, 8, 7, 8])):
        data = load(path, label=label, header=True)
        assert data.layout.columns == columns and data.y.tolist() == y


# ------------------------------------------------------------------------------------------------- what is refused

REFUSED = [  # a file, its content, what is said behind its name
    ("a.svm", "+1 1:2\n+1 1:2 3\n", ", line 2: need more than 1 value"),
    ("a.svm", "+1 1:2\n-1 1:3 2:", ", line 2: could not convert .* b''"),
    ("a.svm", "+1 1:2\n\n# note\n-1 1:x\n", ", line 4: could not convert .* b'x'"),
    ("a.svm", "yes 1:1\n", ", line 1: .*b'yes'"),
    ("a.svm", "+1 2:2 1:1\n", ", line 1: .*sorted and unique"),
    ("a.svm", "+1 2:2 2:1\n", ", line 1: .*sorted and unique"),
    ("a.svm", "+1 -2:2\n", ", line 1: Invalid index -2"),
    ("a.svm", "+1 1:2\n+1 1:nan\n", ", line 2: .*not finite"),
    ("a.svm", "nan 1:1\n", ", line 1: .*not finite"),
    ("a.svm", "+1 99999999999:2\n", ", line 1: .*too large"),
    ("a.svm", "1 1:2\n1_0 1:1\n", ", line 2: an underscore"),
    ("a.svm", b"+1 1:2\n-1 1:\xff\n", ", line 2: "),
    ("a.svm", "1 1:9007199254740993\n-1 1:1\n", ", line 1: .*float64 does not hold"),
    ("a.svm", "1 1:1\n18446744073709551616 1:1\n", ", line 2: a label is above 2.*write a table"),
    ("a.svm", "1\n-1\n", ": no line has a feature"),
    ("a.svm", "# only\n", ": .*no (samples|line has a feature)"),
    ("a.txt", "1,2,3\n4,5,6\n", r", line 1: .*b'1,2,3'.*\.csv"),
    ("a.csv", "a,b,y\n1,2,0\n\n1,0\n", ", line 4: .*Expected 3 columns, got 2"),
    ("a.csv", "1,2,0\n1,2,0,4\n", ", line 2: .*Expected 3 columns, got 4"),
    ("a.csv", "a,b,y\n1,2,0,\n3,4,1,\n", ", line 2: .*Expected 3 columns, got 4"),  # no names of rows
    ("a.csv", "a,b,y\n1,2,0\n1,,0\n", ", line 3: column 'b' is missing; .*impute=.*--impute mean"),
    ("a.csv", "1,2,0\n?,2,0\n", ", line 2: column 0 is missing"),
    ("a.csv", "1,2,0\nNaN,2,0\n", ", line 2: column 0 is missing"),
    ("a.csv", "a,b,y\n1,2,0\n,2,0\n1,2,1\nNA,?,1\n", r", line 3: column 'a' is missing"),
    ("a.csv", "1,2,0\n1,oops,0\n", ", line 2: column 1 is 'oops'; .*--one-hot"),
    ("a.csv", "1,2,0\n1,inf,0\n", ", line 2: column 1 is inf"),
    ("a.csv", "1,2,0\n1,1_0,0\n", ", line 2: column 1 is '1_0'"),
    ("a.csv", "1,5;2\n2;1\n", ", line 1: column 0 is '1,5'.*--decimal ,"),
    ("a.csv", "1,2,0\n1,2,\n", r", line 2: the label \(column 2\) is missing"),
    ("a.csv", "1,inf\n2,1\n", ", line 1: the label .* not finite"),
    ("a.csv", "9007199254740993,1\n1,0\n", ", line 1: column 0 .* float64 does not hold"),
    # pyarrow rounded these, read this one as 16, and wrote U+FFFD for what is no UTF-8, without a word.
    ("a.csv", "x,id,y\n1,18446744073709551000,0\n2,3,1\n", ", line 2: column 'id' .* float64 does not hold"),
    ("a.csv", "1,0.5,0\n1,9007199254740993,1\n", ", line 2: column 1 .* float64 does not hold"),
    ("a.csv", "1,0.5,0\n1,900719925474099301.0,1\n", ", line 2: column 1 .* float64 does not hold"),
    ("a.csv", "1,3,0\n1,0x10,1\n", ", line 2: column 1 is '0x10'"),
    ("a.csv", b"\xe4,y\n1,0\n2,1\n", ", line 1: no UTF-8"),
    ("a.parquet", {"a": [decimal.Decimal(2**53 + 1), decimal.Decimal(1)], "y": Y}, ", row 0 .* float64 does not hold"),
    ("a.csv", "1,oops,0\n1,2,0\n", ", line 1: '1, oops, 0' may be .*header=True"),
    ("a.csv", "red,yes\nblue,no\nred,yes\nblue,no\n", ", line 1: 'red, yes' may be .*header=True"),
    ("a.csv", "a,,y\n0,1,1\n", ": column 1 of the header has no name"),
    ("a.csv", b"1,2,0\n\xff,2,0\n", ": cannot be read: .*Row #2: .*invalid UTF8"),
    ("a.csv", "1\n2\n", ": has one column only"),
    ("a.csv", "a,b,y\n", ": .*no samples"),
    # A stray quotation mark lost the lines up to the next one, without a word.
    ("a.csv", 'a,y\n1,no\n2,"yes\n3,no\n4,no\n5,yes"\n6,no\n', ", line 3: a field holds a line's end; a quotation"),
    ("a.csv", 'a,y\r\n1,"0\r\n2,1\r\n3,0"\r\n', ", line 2: .*quotation"),
    ("a.csv", 'a,y\n"1,0\n2,1"\n', ", line 2: "),
    ("a.csv", "kind (text),u\nno,1\nyes,2\n", ", line 2: .*--label"),
    ("a.npz", {"Z": np.eye(2)}, ": has no labels 'y'; its keys are Z"),
    ("a.npz", {"y": np.ones(2)}, ": has no points"),
    ("a.npz", {"X": np.eye(2), "y": np.ones(3)}, r": X is float64 of shape \(2, 2\) and y is .* \(3,\)"),
    ("a.npz", {"X": np.ones(2), "y": np.ones(2)}, r": X is float64 of shape \(2,\)"),
    ("a.npz", {"X": [["a"], ["b"]], "y": Y}, ": .*numbers"),
    ("a.npz", {"X": np.eye(2) + 1j, "y": Y}, ": X is complex128"),
    ("a.npz", {"X": [[1], [np.nan]], "y": Y}, r", row 1 \(from 0\): column 0 of X is nan"),
    ("a.npz", {"X": [[1], [2**53 + 1]], "y": Y}, ", row 1 .* float64 holds"),
    ("a.npz", {"X": np.eye(2), "y": [1, np.nan]}, r", row 1 \(from 0\): the label \(y\) is nan"),
    ("a.npz", {"X": np.eye(2), "y": ["a", "NA"]}, r", row 1 .* the label \(y\) is missing"),
    ("a.npz", {"X": np.asarray([[1], [None]], object), "y": Y}, ": cannot be read: .*allow_pickle"),
    ("a.npz", {"X": np.zeros((0, 2)), "y": np.zeros(0)}, ": .*no samples"),
    ("a.npz", {"X_data": [1.0], "X_indices": [0], "y": [1]}, ": has no points, its keys are X_data.*sparse.load_npz"),
    ("a.parquet", {"a": pa.array([1.0, None]), "y": Y}, r", row 1 \(from 0\): column 'a' is missing; .*--impute"),
    ("a.parquet", {"a": [1.0, np.nan], "y": Y}, ", row 1 .*: column 'a' is missing"),
    ("a.parquet", {"a": [1.0, np.inf], "y": Y}, ", row 1 .*: column 'a' is inf"),
    ("a.parquet", {"a": pa.array([None, None]), "y": Y}, ", row 0 .*: column 'a' is missing"),
    ("a.parquet", {"a": ["u", "v"], "y": Y}, ", row 0 .*: column 'a' is 'u'; .*--one-hot.*--label"),
    ("a.parquet", {"a": ["1", "2"], "y": Y}, ", row 0 .*: column 'a' is '1'"),
    ("a.parquet", {"a": [[1], [2]], "y": Y}, ": column 'a' is of type list"),
    ("a.parquet", {"a": pa.array([0, 1], pa.date32()), "y": Y}, ": column 'a' is of type date32.*--drop"),
    ("a.parquet", {"a": [1, 2**53 + 1], "y": Y}, ", row 1 .* column 'a' .* float64 does not hold"),
    ("a.parquet", {"a": [1.0, 2.0], "y": pa.array([0, None])}, r", row 1 .* the label \(column 'y'\) is missing"),
    ("a.parquet", {"a": [1.0, 2.0], "y": ["a", "null"]}, r", row 1 .* the label \(column 'y'\) is missing"),
    ("a.parquet", {"y": Y}, ": has one column only"),
    ("a.parquet", {"a": pa.array([], pa.float64()), "y": pa.array([], pa.int8())}, ": .*no samples"),
    ("a.xlsx", "x", r", line 1: .*files of other formats are named so.*\.parquet"),
    ("a9a", "x", ", line 1: .*format="),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "read"), [((" ?", "3", "5 "), [4, 3, 5]), (("NA ", ".5", "1e20"), [5e19, 0.5, 1e20])]
)
def test_blanks_around_a_number_and_around_a_missing_one_are_none_of_it(tmp_path, cells, read):
    path = write(tmp_path, "a.csv", "".join(f"{cell}, {label}\n" for cell, label in zip(cells, "010", strict=True)))
    assert load(path, impute="mean").x.ravel().tolist() == read
    with pytest.raises(DataError, match="line 1: column 0 is missing"):
        load(path)


def test_nothing_is_read_behind_the_first_line_that_is_no_sample(tmp_path, monkeypatch):
    """A column of text took a millisecond a line to refuse."""
    parse, parsed = tables.parsed, []
    monkeypatch.setattr(tables, "parsed", lambda *block: parsed.append(0) or parse(*block))
    path = write(tmp_path, "a.svm", "0,red,1\n1,blue,0\n" * 1000)
    for read in (load, lambda path: scan(Source((str(path),)))):
        with pytest.raises(DataError, match="line "):
            read(path)
    assert len(parsed) < 60


@pytest.mark.parametrize(("name", "content", "said"), REFUSED)
def test_what_is_refused_by_all_readers(tmp_path, name, content, said):
    path = write(tmp_path, name, content)
    for read in (load, lambda path: scan(Source((str(path),)))):
        with pytest.raises(DataError) as caught:
            read(path)
        message = str(caught.value)
        if read is load or "samples" not in said:
            assert message.startswith(str(path)) and re.match(said, message.removeprefix(str(path))), message
        assert len(message) < len(str(path)) + 400


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("a.csv", {"label": "z"}, "no column of that name or place; it has a, b, y"),
        ("a.csv", {"label": 3}, "label is 3"),
        ("a.csv", {"label": -4}, "label is -4"),
        ("a.csv", {"label": "y", "header": False}, "no header"),
        ("a.csv", {"label": True}, "label is True"),
        ("a.csv", {"format": "arff"}, "one of csv, npz"),
        ("a.csv", {"dtype": np.int32}, "int32: a floating one"),
        ("a.csv", {"zero_based": True}, "only svmlight files"),
        ("a.csv", {"drop": "z"}, "drop is 'z'"),
        ("a.csv", {"drop": "y", "label": "y"}, "this column is left out"),
        ("a.csv", {"impute": "median"}, "impute is 'median'"),
        ("a.csv", {"decimal": ";"}, "decimal is ';'"),
        ("a.csv", {"features": 3}, "has 2 feature columns; features=3"),
        ("a.svm", {"label": 0}, "start with their label"),
        ("a.svm", {"one_hot": True}, "only csv, parquet, feather"),
        ("a.svm", {"features": 2}, "the feature index is 3, and features=2 was given"),
        ("a.npz", {"label": 0}, "no labels 0; its keys are X, y"),
        ("absent.csv", {}, "no such file"),
    ],
)
def test_bad_arguments(tmp_path, name, arguments, said):
    write(tmp_path, "a.csv", "a,b,y\n1,2,0\n")
    write(tmp_path, "a.svm", "1 1:1\n-1 3:1\n")
    write(tmp_path, "a.npz", {"X": X, "y": Y})
    with pytest.raises(InputError, match=said):
        load(tmp_path / name, **arguments)


@pytest.mark.parametrize("name", ["a.svm.gz", "a.csv.bz2", "a.npz", "a.parquet"])
def test_a_damaged_file(tmp_path, name):
    x, y = np.random.default_rng(0).normal(size=(200, 5)), np.arange(200) % 2
    rows = "".join(",".join(map(str, [*row, label])) + "\n" for row, label in zip(x, y, strict=True)).encode()
    whole = {
        "a.svm.gz": lambda: gzip.compress(svmlight(x, y)), "a.csv.bz2": lambda: bz2.compress(rows),
        "a.npz": lambda: npz(X=x, y=y), "a.parquet": lambda: parquet({"a": x[:, 0], "y": y}),
    }[name]()  # fmt: skip
    assert load(write(tmp_path, name, whole)).x.shape[0] == 200
    broken = bytearray(whole)
    broken[10 if name.endswith("gz") else -6] ^= 0xFF
    for size in (0.02, 0.5, 0.9, 1):
        for content in (whole[: min(int(len(whole) * size), len(whole) - 1)], bytes(broken), b"", b" \n \n"):
            if content != bytes(broken) or "bz2" not in name:
                with pytest.raises(DataError, match=re.escape(str(tmp_path / name))):
                    load(write(tmp_path, name, content))


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.dataset", None)
    with pytest.raises(InputError, match=r"pip install 'jaxsvm\[cli\]'"):
        load(write(tmp_path, "a.parquet", {"a": [1], "y": [2]}))


# ------------------------------------------------------------------------------------------------- many files


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_shards_are_held_to_the_columns_of_the_first(tmp_path, kind):
    first = str(table(tmp_path, f"first.{kind}", {"a": [1.0, 2.0], "b": [3.0, 4.0], "y": Y}))
    other = str(table(tmp_path, f"other.{kind}", {"y": [1, 0], "b": [7.0, 8.0], "a": [5.0, 6.0]}))
    pieces = list(Source((first, other)).pieces())
    assert np.concatenate([piece.x for piece in pieces]).tolist() == [[1, 3], [2, 4], [5, 7], [6, 8]]
    assert joined([piece.label for piece in pieces]).tolist() == [0, 1, 1, 0]
    stranger = str(table(tmp_path, f"stranger.{kind}", {"a": [1.0], "c": [2.0], "y": [1]}))
    with pytest.raises(DataError, match=r"stranger.* lacks the column 'b', which .*first.* had; has the column 'c'"):
        list(Source((first, stranger)).pieces())
    wide = str(write(tmp_path, "wide.npz", {"X": np.ones((2, 3)), "y": Y}))
    with pytest.raises(DataError, match=r"wide\.npz: has 3 feature columns; .*first.* has 2"):
        list(Source((first, wide)).pieces())
    texts = str(table(tmp_path, f"texts.{kind}", {"a": [1.0], "b": [2.0], "y": ["u"]}))
    if kind == "csv":  # all labels are text where one is
        assert designs.from_files((first, texts)).classes == ("0", "1", "u")
        return
    with pytest.raises(InputError, match="text in some files and numbers in others"):
        designs.from_files((first, texts))


def test_parts_without_rows_and_columns_of_nulls(tmp_path):
    """Spark and Dask write both after a filter."""
    for name, content in (
        ("e0.csv", "a,kind\n1,x\n2,y\n"), ("e1.csv", "a,kind\n"), ("e2.csv", ""), ("e3.csv", "a,kind\n3,x\n"),
        ("e0.svm", "1 1:1\n-1 2:1\n"), ("e1.svm", ""), ("e3.svm", "1 1:3\n"),
        ("e0.npz", {"X": np.eye(2), "y": Y}), ("e1.npz", {"X": np.zeros((0, 2)), "y": np.zeros(0, int)}),
        ("e3.npz", {"X": np.eye(1, 2), "y": [1]}),
        ("e0.parquet", {"a": [1, 2], "y": Y}), ("e1.parquet", {"a": pa.array([], "int64"), "y": pa.array([], "int64")}),
        ("e3.parquet", {"a": [3], "y": [1]}), ("n4.parquet", {"a": pa.array([None, None]), "y": Y}),
        ("n5.parquet", {"a": pa.array([], pa.null()), "y": pa.array([], pa.null())}),
    ):  # fmt: skip
        write(tmp_path, name, content)
    for kind in ("csv", "svm", "npz", "parquet"):
        assert scan(Source(files_of(str(tmp_path / f"e*.{kind}")))).rows == 3
    assert scan(Source(files_of(str(tmp_path / "[en][0135].parquet")))).rows == 3
    with pytest.raises(DataError, match=r"n4\.parquet, row 0 .*: column 'a' is missing"):
        scan(Source(files_of(str(tmp_path / "*.parquet"))))


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"b": pd.array([1, None] * 30, "Int64")}, {}, "row 1 .*: column 'b' is missing"),
        ({"c": "x"}, {}, "column 'c' is 'x'"),
        ({"c": pd.Timestamp("2024-01-01")}, {}, "column 'c' is of type timestamp"),
        ({}, {"weight": "w"}, "weight is 'w': a column is needed, one of .*'a', 'b', 'kind'"),
    ],
)
def test_frames_of_dask_are_refused_by_column(change, options, said):
    """NumPy's words for them were no help, and dates were nanoseconds."""
    dask, frames = pytest.importorskip("dask"), pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame({"a": np.arange(60.0), "b": 1, "kind": ["yes", "no"] * 30}).assign(**change)
    with dask.config.set(scheduler="sync"), pytest.raises(InputError, match=said):
        designs.from_dask(frames.from_pandas(frame, npartitions=3), label="kind", **options)


# ------------------------------------------------------------------------------------------------- prepared columns


def test_columns_are_filled_in_encoded_and_scaled(tmp_path):
    path = write(tmp_path, "a.csv", "age,colour,kind\n1,red,x\n,red,y\n3,blue,x\n5,,y\n")
    with pytest.raises(DataError, match=r"line 2: column 'colour' is 'red'.*one_hot=True.*--one-hot"):
        load(path)
    with pytest.raises(DataError, match=r"column 'age' is missing; fill it in \(impute=.mean., --impute mean\)"):
        load(path, one_hot=True)
    data = load(path, impute="mean", one_hot=True)
    assert data.x.tolist() == [[1, 0, 1], [3, 0, 1], [3, 1, 0], [5, 0, 1]]
    assert data.feature_names == ("age", "colour=blue", "colour=red") and data.preparation.width == 3
    scaled = load(path, impute="mean", one_hot=True, scale="min-max")
    np.testing.assert_allclose(scaled.x[:, 0], [0, 0.5, 0.5, 1])
    np.testing.assert_allclose(scaled.scaling(data.x), scaled.x)
    assert load(path, impute="most_frequent", one_hot=True).x[1, 0] == 1
    assert load(path, drop="age", impute="most_frequent", one_hot=True).x.shape == (4, 2)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([f"n{i}" for i in range(60)], "line 2: column 'c' is 'n0'; .*names and quantities are no categories"),
        (
            [*map(str, range(29)), *map(str, range(29)), "-", "-"],
            "line 60: .* is '-'; .*names and quantities are no categories",
        ),
        (['a "', "b"] * 30, None),
        ([9007199254740993, 2] * 30, "float64 does not hold"),
    ],
)
def test_what_is_no_category_is_refused(tmp_path, column, said):
    path = table(tmp_path, "a.csv", {"c": column, "y": Y * 30})
    if said is None:
        assert load(path, one_hot=True).x.shape == (60, 2)
    else:
        with pytest.raises(DataError, match=said):
            load(path, one_hot=True)


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
        (["a", "NA"], None, "first at index 1"),
        (np.asarray([1, pd.NA], object), None, "first at index 1"),
        (pd.Series([1, None], dtype="Int64"), None, "first at index 1"),
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


@settings(max_examples=25, deadline=None)
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
    for constructor in (Scaling.standardise, Scaling.min_max):
        with pytest.raises(InputError, match="outside jit"):
            jax.jit(constructor)(x)
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
