"""Read a data set of any format in one call."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from jaxsvm.datasets.delimited import Delimited
from jaxsvm.datasets.labels import joined
from jaxsvm.datasets.layout import Layout, Place, Wanted
from jaxsvm.datasets.svmlight import Svmlight, index_base
from jaxsvm.datasets.tables import Npz, Parquet
from jaxsvm.datasets.text import compression_of, opened
from jaxsvm.errors import DataError, InputError
from jaxsvm.points.checks import is_sparse
from jaxsvm.points.rows import DenseOrSparse
from jaxsvm.runtime.arrays import in_a_line
from jaxsvm.runtime.checks import MAX_INT32, checked

FORMATS = {
    "svmlight": (".svm", ".svmlight", ".libsvm", ".txt"), "csv": (".csv", ".tsv"), "npz": (".npz",),
    "parquet": (".parquet", ".pq"),
}  # fmt: skip
SVMLIGHT = rb"[^\s:,;]+([ \t]+[0-9]+:[^\s:,;]+)+"
"""A line of svmlight, to recognise LIBSVM's own files: `a9a`, `a9a.t` or `mnist.scale`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Points and labels as a file holds them.

    Attributes:
        x: Points `(n, d)`: a float NumPy array, or a SciPy CSR array (svmlight, sparse npz).
        y: Labels `(n,)` as they are in the file: integers, floats, booleans or strings; `two_classes` makes signs. None
            if the points have no labels.
        feature_names: The `d` column names, or None if the file has none.
        source: The path that was read.
        layout: The file's columns: `compact(..., layout=...)` stores them, `load(..., like=...)` reads another file in
            the same way.
        notes: Descriptions of decisions that the caller may want to check.
    """

    __repr__ = in_a_line

    x: DenseOrSparse
    y: np.ndarray | None
    feature_names: tuple[str, ...] | None
    source: str
    layout: Layout = Layout()
    notes: tuple[str, ...] = ()


@checked
def load(
    path: str | os.PathLike[str], *, label: str | int | Literal[False] | None = None, label_optional: bool = False,
    dtype: DTypeLike | None = None, part: str = "train", features: int | None = None, header: bool | None = None,
    format: str | None = None, zero_based: bool | None = None, like: Layout | None = None,
) -> Dataset:  # fmt: skip
    """Read a data set.

    Examples:
        >>> data = jaxsvm.datasets.load("train.csv", label="kind")
        >>> signs, classes = jaxsvm.datasets.two_classes(data.y)

    Args:
        path: A file: svmlight (`.svm`, `.svmlight`, `.libsvm`, `.txt`), CSV (`.csv`, `.tsv`; separated by comma,
            semicolon or tab), npz (keys `X` or `X_data`, `X_indices`, `X_indptr`, `X_shape`, and `y`) or Parquet
            (`.parquet`, `.pq`). The text formats may be compressed (`.gz`, `.bz2`). A file of another name, such as
            `a9a` or `a9a.t`, is svmlight if its first line looks like it.
        label: The place of the labels: a column's name or index in CSV and Parquet (the last one by default), a key in
            npz (`y` by default, `yt` for the test part). False: there are none, every column is a feature and `y` is
            None; False drops the label that starts every svmlight line.
        label_optional: Whether labels may be absent, if `label` is None: a CSV or Parquet file of exactly `features`
            columns, or an npz file without the key of the labels, is then read as with `label=False`.
        dtype: Floating dtype of `x`; None: float64 for text, else the smallest float that holds the column types (at
            least float32).
        part: "train", or "test" for the arrays `Xt`, `yt` of an npz file.
        features: Required number of feature columns; None counts them. A svmlight file may have fewer, like a test
            file in which the last ones do not occur.
        header: Whether the first line of a CSV file holds names; None: if no field of it is a number, or the
            numbers count up by ones and its texts are not in the lines below (a note says so).
        format: "svmlight", "csv", "npz" or "parquet", for a file whose name does not tell.
        zero_based: Whether the indices of a svmlight file count from 0. None: as in the training file, if `like` is
            given; else from 0 if the index 0 occurs in the file, and from 1 if it does not.
        like: The layout of the training file (`dataset.layout`, `model.layout`). Columns that have names are put in its
            order; missing and unknown ones are refused. Labels are read from the same place.

    Raises:
        DataError: If the file is missing, unreadable, cut short or holds something else: the message names the file,
            the line if there is one, what was found and what to do.
        InputError: If arguments do not fit, or the package that reads the format is not installed.
    """
    name = os.fspath(path)
    _check_arguments(label, part, dtype, format)
    kind = kind_of(name, format)
    if part != "train" and kind != "npz":
        raise InputError(f"part is {part!r}: only npz files have parts; give the test file's own path.")
    if zero_based is not None and kind != "svmlight":
        raise InputError(f"zero_based is {zero_based}: only svmlight files have indices to count.")
    if label is not None and label is not False and kind == "svmlight":
        raise InputError(f"label is {label!r}: svmlight lines start with their label; leave it out.")
    wanted = Wanted(label, label_optional and label is None, features, Layout() if like is None else like)
    if kind == "svmlight":
        x, y, layout, notes = _load_svmlight(name, wanted, None if zero_based is None else int(not zero_based))
    else:
        reader = reader_of(name, kind, wanted, header, part=part)
        x, y = _together(name, reader)
        layout, notes = reader.layout, reader.notes
    if not x.shape[0]:
        raise DataError(f"{name}: there is no line below the header: it has no samples.")
    if features is not None and x.shape[1] != features:
        raise DataError(f"{name}: has {x.shape[1]} feature columns; features={features} was given.")
    x = x.astype(np.result_type(x.dtype, np.float32) if dtype is None else dtype, copy=False)
    return Dataset(x, y, layout.columns, name, layout, notes)


def reader_of(
    name: str, kind: str, wanted: Wanted, header: bool | None = None, base: int | None = None, d: int | None = None,
    part: str = "train",
) -> Any:  # fmt: skip
    """Return the reader of a file of some kind, which has `pieces`, a `layout` and `notes`.

    `header` is for CSV, `base` (the first index) and `d` (features) are for svmlight, `part` is for npz.
    """
    _refuse_blank(name)
    if kind == "svmlight":
        return Svmlight(name, base, d, wanted.label is not False)
    if kind == "csv":
        return Delimited(name, wanted, header)
    return Npz(name, wanted, part) if kind == "npz" else Parquet(name, wanted)


def _together(name: str, reader: Any) -> tuple[Any, Any]:
    """Return all the points and labels of a reader; raise BadRow at the first row that is no sample."""
    xs, labels, pieces = [], [], reader.pieces(Place())
    for piece in pieces:
        if piece.damaged:
            first, *others = piece.damaged
            more = [*others, *(row for later in pieces for row in later.damaged)] if first.lacks else []
            raise first.with_more(sum(row.lacks for row in more)) if first.lacks else first
        if piece.x.shape[0]:
            xs.append(piece.x)
            labels.append(piece.label)
    if not xs:
        return np.zeros((0, 1)), None
    return _stacked(xs), None if labels[0] is None else joined(name, labels)


def _stacked(xs: list[Any]) -> Any:
    if len(xs) == 1:
        return xs[0]
    if not is_sparse(xs[0]):
        return np.concatenate(xs)
    sparse = importlib.import_module("scipy.sparse")
    d = max(x.shape[1] for x in xs)
    for x in xs:
        x.resize((x.shape[0], d))
    return sparse.csr_array(sparse.vstack(xs, format="csr"))


def _load_svmlight(name: str, wanted: Wanted, base: int | None) -> tuple[Any, Any, Layout, tuple[str, ...]]:
    """Return points, labels, layout and notes; the first index is known only when all are read."""
    x, y = _together(name, reader_of(name, "svmlight", wanted))
    if not x.shape[0]:
        raise DataError(f"{name}: the file holds comments only: it has no samples.")
    base, notes = index_base(name, int(x.indices.min()) if x.nnz else None, base, wanted.like.index_base)
    d = max(x.shape[1] - base, 0) if x.nnz else 0
    if d > min(wanted.features or d, MAX_INT32):
        _together(name, reader_of(name, "svmlight", wanted, base=base, d=wanted.features or MAX_INT32))
    if x.nnz == 0 and wanted.features is None:
        raise DataError(f"{name}: no line has a feature; svmlight lines look like '+1 3:0.5 7:1'.")
    parts = (x.data, (x.indices - base).astype(np.int32), x.indptr.astype(np.int32))
    if x.nnz > MAX_INT32:
        raise DataError(f"{name}: holds {x.nnz} values: up to {MAX_INT32} can be counted; take it in parts.")
    x = type(x)(parts, shape=(x.shape[0], wanted.features or d))
    x.eliminate_zeros()
    return x, y, Layout(index_base=base), notes


def _check_arguments(label: Any, part: str, dtype: Any, format: str | None) -> None:
    if label is True:
        raise InputError("label is True: a column's name or index, an npz key, None or False (no labels) is needed.")
    if part not in ("train", "test"):
        raise InputError(f'part is {part!r}: "train" or "test" is needed.')
    if format is not None and format not in FORMATS:
        raise InputError(f"format is {format!r}: one of {', '.join(FORMATS)} is needed.")
    if dtype is not None and not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        raise InputError(f"dtype is {jnp.dtype(dtype).name}: a floating one such as float32 is needed.")


def kind_of(name: str, format: str | None) -> str:
    """Return the format by the end of a file's name, or else by the first line of svmlight; refuse what is no file."""
    if os.path.isdir(name):
        raise DataError(f"{name}: this is a directory; name one file in it.")
    if name != "-" and not os.path.exists(name):
        raise DataError(f"{name}: there is no such file (looked from {os.getcwd()}).")
    if not os.path.isfile(name):
        raise DataError(f"{name}: this is a pipe or a device, and files are read more than once; save it to a file.")
    stem = Path(name.lower())
    suffix = stem.with_suffix("").suffix if compression_of(name) else stem.suffix
    if format is not None:
        return format
    for kind, suffixes in FORMATS.items():
        if suffix in suffixes:
            return kind
    with opened(name) as file:
        lines = (line.split(b"#")[0] for line in file)
        first = next((line for line in lines if line.strip()), b"").strip()
    if re.fullmatch(SVMLIGHT, first):
        return "svmlight"
    known = ", ".join(suffix for suffixes in FORMATS.values() for suffix in suffixes)
    raise DataError(
        f"{name}: the format of {suffix!r} files is not known, and its first line is not svmlight's; known are "
        f"{known}, also with .gz or .bz2. Rename it if it is one of them (a table of text is .csv), unpack it (.zip, "
        '.xz), save it as one (a spreadsheet as CSV), or say what it is: load(path, format="csv").'
    )


def _refuse_blank(name: str) -> None:
    with opened(name) as file:
        while part := file.read(1 << 16):
            if part.strip():
                return
    raise DataError(f"{name}: the file is empty: it has no samples.")
