"""Labels and numbers keep their identity from any source: right to the last digit, or refused by name, everywhere."""

import dataclasses
import decimal
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsvm import coresets
from jaxsvm.datasets import load, text, two_classes
from jaxsvm.datasets.labels import joined
from jaxsvm.datasets.shards import source as shards
from jaxsvm.datasets.shards.source import Source, scan
from jaxsvm.errors import DataError, InputError

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
parquet = pytest.importorskip("pyarrow.parquet")

REFUSED = (DataError, InputError)
EDGES = [0, 1, -1, 7, 2**53, 2**53 + 1, -(2**53) - 1, 10**16 + 1, 10**16 + 3, 2**63 - 1, 2**63, 2**64 - 1]
NUMBERS = [0.1, -2.5, 1e-300, 1e160, 2.0**53, 123456789.125, 5e-324]
WORDS = ["a", "b", "é", "x;y", 'q"q', "a,b", "True", "10", "NA", "null", "inf", "1e400", "", "nan"]


def _integers(name):
    low, high = np.iinfo(name).min, np.iinfo(name).max
    return st.lists(st.sampled_from([edge for edge in EDGES if low <= edge <= high]), min_size=2, max_size=6)


@st.composite
def labels(draw):
    """A kind of column, its values in Python, and the same as pandas or Arrow holds them."""
    kind = draw(
        st.sampled_from(
            ["int8", "int32", "int64", "uint64", "float64", "float32", "bool", "text", "Int64", "UInt64", "string",
             "boolean", "decimal", "dictionary", "categorical"]
        )
    )  # fmt: skip
    if kind in ("int8", "int32", "int64", "uint64"):
        values = draw(_integers(kind))
        return kind, values, pd.Series(np.asarray(values, kind))
    if kind in ("float64", "float32"):
        among = NUMBERS if kind == "float64" else [0.1, -2.5, 1e-30, 2.0**53, 123456789.0]
        values = np.asarray(draw(st.lists(st.sampled_from(among), min_size=2, max_size=6)), kind)
        return kind, values.tolist(), pd.Series(values)
    if kind in ("bool", "boolean"):
        values = draw(
            st.lists(st.sampled_from([True, False, None] if kind == "boolean" else [True, False]), min_size=2)
        )
        return kind, values[:6], pd.Series(values[:6], dtype=kind)
    if kind in ("Int64", "UInt64"):
        values = draw(_integers(kind.lower()))
        series = pd.Series(np.asarray(values, kind.lower())).astype(kind)  # of a list pandas makes floats
        if draw(st.booleans()):
            values, series[0] = [None, *values[1:]], pd.NA
        return kind, values, series
    if kind == "decimal":
        values = [decimal.Decimal(value) for value in draw(_integers("int64"))]
        return kind, values, pd.Series(values, dtype=pd.ArrowDtype(pa.decimal128(25, 0)))
    if kind == "dictionary":
        values = draw(_integers("uint64"))
        return kind, values, pd.Series(values, dtype="uint64").astype("category")
    values = draw(st.lists(st.sampled_from(WORDS), min_size=2, max_size=6))
    return kind, values, pd.Series(values, dtype={"text": object, "categorical": "category"}.get(kind, "string"))


def _written(folder, kind, x, column):
    """The file, or None where its format cannot hold the column."""
    path = folder / f"data.{kind}"
    if kind == "npz":
        array = column.to_numpy()
        if array.dtype == object and all(isinstance(value, str) for value in array):
            array = array.astype(str)
        if array.dtype == object:
            return None
        np.savez(path, X=x[:, None], y=array)
    elif kind == "svm":
        lines = [f"{y} 1:{a!r}" for a, y in zip(x.tolist(), column.astype(object), strict=True)]
        path.write_text("\n".join(lines) + "\n")
    else:
        frame = pd.DataFrame({"x": x, "y": column})
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path, index=False)
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "svm"])
@settings(max_examples=25, deadline=None)
@given(column=labels())
def test_labels_are_read_as_they_are_or_refused(tmp_path_factory, kind, column):
    what, values, series = column
    x = np.linspace(0.1, 7, len(values)) / 3
    path = _written(tmp_path_factory.mktemp("identity"), kind, x, series)
    if path is None:
        return
    strange = [value for value in values if value is None or value in ("NA", "null", "inf", "1e400", "", "nan")]
    sizes = dataclasses.replace(text.MEASURED, bytes_per_text_piece=8)  # pieces of a line
    small = mock.patch.object(text, "MEASURED", sizes)
    try:
        whole = load(path)
    except REFUSED as error:
        assert path.name in str(error)
        with small, pytest.raises(REFUSED, match="data"):
            for piece in Source((str(path),)).found_out().pieces():
                for row in piece.damaged:
                    raise row from error
                joined("data", [piece.label])
            raise DataError("data: refused together only") from error
        wide = kind in ("csv", "svm") and any(isinstance(value, int) and abs(value) > 2**53 for value in values)
        assert strange or kind == "svm" or wide, error
        return
    assert not strange
    expected = [str(value) for value in values] if kind == "csv" and what in ("bool", "boolean") else values
    if what == "float32" and kind == "csv":  # as NumPy writes it
        expected = [float(str(np.float32(value))) for value in values]
    if all(isinstance(value, str) and value == "10" for value in expected) and kind in ("csv", "svm"):
        expected = [10] * len(expected)
    assert whole.y.tolist() == expected
    assert len(set(whole.y.tolist())) == len(set(expected))
    with small, mock.patch.object(shards, "MEASURED", dataclasses.replace(shards.MEASURED, bytes_per_block=16)):
        pieces = list(Source((str(path),)).found_out().pieces())
    np.testing.assert_array_equal(joined("data", [piece.label for piece in pieces]), whole.y)
    points = [piece.x.toarray() if hasattr(piece.x, "toarray") else piece.x for piece in pieces]
    np.testing.assert_array_equal(np.concatenate(points), whole.x.toarray() if kind == "svm" else whole.x)
    np.testing.assert_array_equal(np.concatenate(points)[:, 0], x)


CSR = {"X_data": np.ones(3), "X_indices": [0, 1, 1], "X_indptr": [0, 1, 2, 3], "X_shape": [3, 2], "y": [0, 1, 1]}
REFUSALS = [
    ("a.csv", "1,inf\n2,1\n", "line 1: the label .* not finite"),
    ("a.csv", "1,1e400\n2,1\n", "line 1: the label .* not finite"),
    ("a.csv", "1,x\n2,NA\n", "line 2: the label .* is missing"),
    ("a.csv", "1,<NA>\n2,1\n", "line 1: the label .* is missing"),
    ("a.csv", "1,18446744073709551616\n2,1\n", "line 1: .*64 bits"),
    ("a.csv", "1,9007199254740993\n2,0.5\n", "float64 does not hold"),
    ("a.csv", "1,01\n2,1\n", "are one number"),
    ("a.csv", "1,5;1\n2,5;-1\n", "line 1: its fields may be divided by commas or by semicolons"),
    ("a.csv", "1,5;2,25;1\n2,5;1;-1\n", "line 1: column 0 is '1,5'.* decimal points"),
    ("a.csv", "9007199254740993,1\n1,0\n", "line 1: column 0 .* float64 does not hold"),
    ("a.csv", "1_000,1\n1,0\n", "line 1: .*'1_000'"),
    ("a.svm", "1 1:2\n1_0 1:1\n", "line 2: the label is '1_0'"),
    ("a.svm", "1 1_0:2\n-1 1:1\n", "line 1: the index of '1_0:2'"),
    ("a.svm", "1 1:1_000\n-1 1:1\n", "line 1: the value of '1:1_000'"),
    ("a.svm", "-1 1:1\n1 2:3:77\n", "line 2: found '2:3:77'"),
    ("a.svm", "1 1:2\n-1 1:1 qid:3\n", "line 2: found 'qid:3'"),
    ("a.svm", "1 1:9007199254740993\n-1 1:1\n", "line 1: the value .* float64 does not hold"),
    ("a.npz", {"X": np.eye(2) + 1j, "y": [0, 1]}, "complex128"),
    ("a.npz", {"X": np.asarray([["1"], ["2"]]), "y": [0, 1]}, "numbers"),
    ("a.npz", {"X": np.eye(3), "y": [0, 1]}, r"shape \(3, 3\) and y \(2,\)"),
    ("a.npz", {"X": np.eye(2), "y": [0, np.nan]}, r"row 1 .* the label \(y\) is nan"),
    ("a.npz", {"X": np.eye(2), "y": ["a", "NA"]}, r"row 1 .* the label \(y\) is missing"),
    ("a.npz", {"X": np.asarray([[1], [2**53 + 1]]), "y": [0, 1]}, "row 1 .* float64 does not hold"),
    ("a.npz", CSR | {"X_indices": [0, 1, 2]}, "indices go from 0 to 2"),
    ("a.npz", CSR | {"X_indices": [0, 1, 2**32 + 1]}, "indices go from"),
    ("a.npz", CSR | {"X_indptr": [0, 3, 2, 3]}, "do not fit together"),
    ("a.npz", CSR | {"X_indptr": [0, 1, 2, 9]}, "indptr go from"),
    ("a.parquet", {"x": [1.0, 2.0], "y": pa.array([0, None])}, r"row 1 .* column 1 \(y\) is missing"),
    ("a.parquet", {"x": [1.0, 2.0], "y": pa.array(["a", None])}, r"row 1 .* column 1 \(y\) is missing"),
    ("a.parquet", {"x": [1.0, 2.0], "y": ["a", "null"]}, r"row 1 .* column 1 \(y\) is missing"),
    ("a.parquet", {"x": ["1", "2"], "y": [0, 1]}, r"column 0 \(x\) is of type string"),
    ("a.parquet", {"x": [1, 2**53 + 1], "y": [0, 1]}, r"row 1 .* column 0 \(x\) .* float64 does not hold"),
]


def _put(path, content):
    if path.suffix == ".npz":
        np.savez(path, **{key: np.asarray(value) for key, value in content.items()})
    elif path.suffix == ".parquet":
        parquet.write_table(pa.table(content), path)
    else:
        path.write_text(content)
    return path


@pytest.mark.parametrize(("name", "content", "found"), REFUSALS)
def test_all_readers_refuse_alike(tmp_path, name, content, found):
    path = _put(tmp_path / name, content)
    for read in (load, lambda path: scan(Source((str(path),)))):
        with pytest.raises(DataError, match=found) as caught:
            read(path)
        assert str(caught.value).startswith(str(path))


def test_rows_that_are_no_samples_are_skipped_and_never_a_class(tmp_path):
    for name, content in (
        ("a.npz", {"X": np.arange(8.0).reshape(4, 2), "y": [1, np.nan, -1, 1]}),
        ("a.parquet", {"x": [1.0, 2, 3, 4], "y": pa.array([1, None, -1, 1])}),
        ("a.csv", "1,1\n2,NA\n3,-1\n4,1\n"),
    ):
        found = scan(Source((str(_put(tmp_path / name, content)),)), damaged="skip")
        assert found.rows == 3 and found.damaged == 1 and found.labels == [-1, 1]


def test_small_integers_and_unsigned_ones_do_not_wrap(tmp_path):
    twice = {"X_data": np.asarray([100, 100], np.int8), "X_indices": [0, 0], "X_indptr": [0, 2, 2], "X_shape": [2, 1]}
    path = _put(tmp_path / "a.npz", twice | {"y": np.asarray([2**64 - 1, 0], np.uint64)})
    data = load(path)
    assert data.x.toarray().tolist() == [[200], [0]] and data.y.tolist() == [2**64 - 1, 0]
    assert scan(Source((str(path),))).labels == [0, 2**64 - 1]
    truth = load(_put(tmp_path / "b.npz", twice | {"X_data": np.asarray([True, True]), "y": [0, 1]}))
    assert truth.x.toarray().tolist() == [[2], [0]]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_shards_are_held_to_the_columns_of_the_first(tmp_path, kind):
    def put(name, **columns):
        path = tmp_path / f"{name}.{kind}"
        frame = pd.DataFrame(columns)
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path, index=False)
        return str(path)

    first = put("first", a=[1.0, 2.0], b=[3.0, 4.0], y=[0, 1])
    other = put("other", y=[1, 0], b=[7.0, 8.0], a=[5.0, 6.0])
    pieces = list(Source((first, other)).pieces())
    assert np.concatenate([piece.x for piece in pieces]).tolist() == [[1, 3], [2, 4], [5, 7], [6, 8]]
    assert joined("", [piece.label for piece in pieces]).tolist() == [0, 1, 1, 0]
    resumed = list(Source((first, other)).pieces(pieces[0].after._replace(file=1, offset=0, line=0)))
    assert resumed[0].x.tolist() == [[5, 7], [6, 8]]
    stranger = put("stranger", a=[1.0], c=[2.0], y=[1])
    with pytest.raises(DataError, match=r"stranger.* lacks the column 'b', which .*first.* had; has the column 'c'"):
        list(Source((first, stranger)).pieces())
    np.savez(tmp_path / "wide.npz", X=np.ones((2, 3)), y=[0, 1])
    with pytest.raises(DataError, match=r"wide\.npz: has 3 feature columns; .*first.* has 2"):
        list(Source((first, str(tmp_path / "wide.npz"))).pieces())
    texts = put("texts", a=[1.0], b=[2.0], y=["u"])
    found = "text in some files and numbers in others" if kind == "parquet" else "has 3 labels"
    with pytest.raises((DataError, InputError), match=found):
        coresets.from_files((first, texts), 1.0, 10)


@pytest.mark.parametrize(
    "y", [["a", "NA"], ["", "a"], [1, None], np.asarray([1, pd.NA], object), pd.Series([1, None], dtype="Int64")]
)
def test_missing_labels_in_memory_are_refused(y):
    with pytest.raises(InputError, match="missing or not finite"):
        two_classes(y)
