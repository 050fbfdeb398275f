"""Read a data set of any format in one call."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from jaxsvm.datasets.labels import as_number, is_missing, joined, shown
from jaxsvm.datasets.layout import UNSEEN, Layout, Piece, Wanted, undamaged
from jaxsvm.datasets.scaling import Scaling
from jaxsvm.datasets.source import FORMATS, TABLES, Source, files_of
from jaxsvm.datasets.tables import Column, floats_of, is_text, texts_of
from jaxsvm.errors import DataError, InputError, require, require_package, require_part
from jaxsvm.points.rows import DenseOrSparse, PointsLike, is_sparse
from jaxsvm.runtime.arrays import MAX_INT32, checked, in_a_line, require_one_of

SCALES = {"standardise": Scaling.standardise, "min-max": Scaling.min_max}


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
        preparation: What was done to the columns (`impute`, `one_hot`, `drop`), for the model; or None.
        scaling: How the points were scaled (`scale`), for the model; or None.
    """

    __repr__ = in_a_line

    x: DenseOrSparse
    y: np.ndarray | None
    feature_names: tuple[str, ...] | None
    source: str
    layout: Layout = Layout()
    notes: tuple[str, ...] = ()
    preparation: "Preparation | None" = None
    scaling: Scaling | None = None


@checked
def load(
    path: str | os.PathLike[str] | PointsLike, *, label: str | int | Literal[False] | None = None,
    label_optional: bool = False, dtype: DTypeLike | None = None, part: str = "train", features: int | None = None,
    header: bool | None = None, format: str | None = None, zero_based: bool | None = None, like: Layout | None = None,
    separator: str | None = None, decimal: str = ".", drop: str | Iterable[str | int] = (), impute: str | None = None,
    one_hot: bool = False, scale: str | None = None,
) -> Dataset:  # fmt: skip
    """Read a data set.

    Examples:
        >>> data = jaxsvm.datasets.load("train.csv", label="kind")
        >>> signs, classes = jaxsvm.datasets.two_classes(data.y)

    Args:
        path: A file: svmlight (`.svm`, `.svmlight`, `.libsvm`, `.txt`), CSV (`.csv`, `.tsv`), npz (keys `X` or
            `X_data`, `X_indices`, `X_indptr`, `X_shape`, and `y`), npy (rows of features and a label), Parquet
            (`.parquet`, `.pq`) or Feather (`.feather`, `.arrow`). The text formats may be compressed (`.gz`, `.bz2`).
            A file of another name, such as `a9a` or `a9a.t`, is read as svmlight. Also a directory of such files, a
            name with `*`, or a data frame (pandas, polars, whatever Arrow takes).
        label: The place of the labels: a column's name or index in a table (the last one by default), a key in npz
            (`y` by default, `yt` for the test part). False: there are none, every column is a feature and `y` is None;
            False drops the label that starts every svmlight line.
        label_optional: Whether labels may be absent, if `label` is None: a table of exactly `features` columns, or an
            npz file without the key of the labels, is then read as with `label=False`.
        dtype: Floating dtype of `x`; None: float64 for text, else the smallest float that holds the column types (at
            least float32).
        part: "train", or "test" for the arrays `Xt`, `yt` of an npz file.
        features: Required number of feature columns; None counts them. A svmlight file may have fewer, like a test
            file in which the last ones do not occur; with `like` it may also have more, which are left out with a note.
        header: Whether the first line of a CSV file holds names; None: if no field of it is a number, or the
            numbers count up by ones and its texts are not in the lines below (a note says so).
        format: "svmlight", "csv", "npz", "npy", "parquet" or "feather", for a file whose name does not tell.
        zero_based: Whether the indices of a svmlight file count from 0. None: as in the training file, if `like` is
            given; else from 0 if the index 0 occurs in the file, and from 1 if it does not.
        like: The layout of the training file (`dataset.layout`, `model.layout`). Columns that have names are put in its
            order; missing and unknown ones are refused. Labels are read from the same place.
        separator: What stands between the fields of a CSV file; None: the tab, semicolon or comma of its first line.
        decimal: The decimal mark of a CSV file, "." or ",".
        drop: Columns of a table to leave out, by name or by place from 0.
        impute: "mean" or "most_frequent" (of text always) fills in missing values; None refuses them.
        one_hot: Whether columns of text become an indicator for each text; else they are refused.
        scale: "standardise" or "min-max": how to scale the columns (`Scaling`).

    Raises:
        DataError: If the file is missing, unreadable, cut short or holds something else: the message names the file,
            the line if there is one, what was found and what to do.
        InputError: If arguments do not fit, or the package that reads the format is not installed.
    """
    _check_arguments(label, part, dtype, format, decimal, impute, scale)
    require_part("path", str(path) if isinstance(path, os.PathLike) else path, "__len__", "a file or frame is needed")
    paths, frame = (files_of(path), None) if isinstance(path, str | os.PathLike) else (("the frame",), path)
    name, drop = ", ".join(paths), (drop,) if isinstance(drop, str) else tuple(drop)
    wanted = Wanted(
        label, label_optional and label is None, features, zero_based, header, separator, decimal, part,
        Layout() if like is None else like, drop=drop,
    )  # fmt: skip
    source = Source(paths, wanted, format, frame)
    kind = source.kind(paths[0])
    for what, given, kinds in (
        ("part", part != "train", ("npz",)), ("zero_based", zero_based is not None, ("svmlight",)),
        ("drop, impute or one_hot", bool(drop) or impute is not None or one_hot, TABLES),
    ):  # fmt: skip
        if given and kind not in kinds:
            raise InputError(f"{what} is given: only {', '.join(kinds)} files have that, and {name} is {kind}.")
    if label is not None and label is not False and kind == "svmlight":
        raise InputError(f"label is {label!r}: svmlight lines start with their label; leave it out.")
    preparation = None
    if drop or impute is not None or one_hot:
        source = source.held()
        preparation = learn(source, slice(None), impute, one_hot, decimal)
        source = dataclasses.replace(source, columns=preparation.columns)
    data = together(source, dtype)
    if features is not None and data.x.shape[1] != features:
        raise DataError(f"{data.source}: has {data.x.shape[1]} feature columns; features={features} was given.")
    scaling = None if scale is None else SCALES[scale](data.x)
    x = data.x if scaling is None else scaling(data.x)
    return dataclasses.replace(data, x=x, preparation=preparation, scaling=scaling)


def together(source: Source, dtype: DTypeLike | None = None) -> Dataset:
    """Return all points and labels of a source; refuse the first row that is no sample."""
    pieces, layout, notes, unseen = [], None, (), Counter[Any]()
    for reader in source.readers():
        layout, notes = (reader.chosen.layout, reader.chosen.notes) if layout is None else (layout, notes)
        for piece in map(undamaged, reader.pieces(None)):
            pieces += [piece] if piece.x.shape[0] else []
            unseen.update(piece.unseen)
    if layout is None or not pieces:
        raise DataError(f"{source.name}: the file is empty: it has no samples.")
    y = None if pieces[0].label is None else joined(source.name, [piece.label for piece in pieces])
    if is_sparse(pieces[0].x):
        x, of_index, notes = _of_sparse(source, [piece.x for piece in pieces], notes)
        layout = layout if of_index is None else Layout(index_base=of_index)
    else:
        x = np.concatenate([piece.x for piece in pieces])
    if source.columns is not None and layout.columns is not None:
        names = tuple(name for column in source.columns for name in column.names)
        layout = dataclasses.replace(layout, columns=names)
    for key in dict.fromkeys(key for key, _ in unseen):
        texts = sorted(text for of, text in unseen if of == key)
        listed = ", ".join(map(shown, texts[:3])) + (", ..." if len(texts) > 3 else "")
        many = f"column {key!r}: {sum(unseen[key, text] for text in texts)} samples hold {listed}"
        notes += (f"{many}, {UNSEEN}: they count as none of its categories",)
    x = x.astype(np.result_type(x.dtype, np.float32) if dtype is None else dtype, copy=False)
    return Dataset(x, y, layout.columns, source.name, layout, notes)


def _of_sparse(source: Source, xs: list[Any], notes: tuple[str, ...]) -> tuple[Any, int | None, tuple[str, ...]]:
    """Return sparse points as one array; of svmlight with its first index, known when all are read, and notes on it."""
    for x in xs:
        x.resize((x.shape[0], max(x.shape[1] for x in xs)))
    x = require_package("scipy.sparse", "sparse points").vstack(xs, format="csr")
    if x.nnz > MAX_INT32:
        raise DataError(f"{source.name}: holds {x.nnz} values: up to {MAX_INT32} can be counted; take it in parts.")
    if source.kind(source.paths[0]) == "svmlight":
        lowest, highest = int(x.indices.min(initial=1)), int(x.indices.max(initial=-1))
        source, notes = source.with_first_index(lowest, highest)
    return source.based(Piece(x, None)).x, source.base, notes


def _check_arguments(
    label: Any, part: str, dtype: Any, format: str | None, decimal: str, impute: str | None, scale: str | None
) -> None:
    require(label is not True, "label is True: a column's name or index, an npz key, None or False (none) is needed.")
    if dtype is not None and not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        raise InputError(f"dtype is {jnp.dtype(dtype).name}: a floating one such as float32 is needed.")
    for name, given, choices in (
        ("part", part, ("train", "test")), ("format", format or "csv", FORMATS), ("decimal", decimal, (".", ",")),
        ("impute", impute or "mean", ("mean", "most_frequent")), ("scale", scale or "standardise", SCALES),
    ):  # fmt: skip
        require_one_of(name, given, choices)


@dataclasses.dataclass(frozen=True)
class Preparation:
    """What is done to the columns of a table before its points are scaled: plain data, which a model file holds."""

    columns: tuple[Column, ...]  # the feature columns, in order
    dropped: tuple[str | int, ...] = ()  # the columns that are left out, by name or place
    decimal: str = "."  # the decimal mark of the training file

    @property
    def names(self) -> tuple[str, ...] | None:
        """Return the names of the feature columns in the file; None if it has no header."""
        keys = tuple(column.key for column in self.columns)
        return None if any(isinstance(key, int) for key in keys) else keys  # pyright: ignore[reportReturnType]

    @property
    def width(self) -> int:
        """Return the number of columns of the points."""
        return sum(len(column.names) for column in self.columns)

    def read(
        self, source: Source, layout: Layout | None, drop: tuple[str, ...] = (), dtype: DTypeLike | None = None
    ) -> Dataset:
        """Read new rows as the training file's, whose layout is given, without the columns to `drop`."""
        like, d = Layout(self.names, None if layout is None else layout.label), len(self.columns)
        wanted = dataclasses.replace(source.wanted, features=d, like=like, drop=drop, absent=self.dropped)
        return together(dataclasses.replace(source, wanted=wanted, columns=self.columns), dtype)

    def of_frame(self, name: str, frame: Any, layout: Layout | None) -> Dataset:
        """Read a frame, whose columns are as in the training file."""
        return self.read(Source((name,), Wanted(optional=True), frame=frame), layout)


def learn(source: Source, rows: Any, impute: str | None, one_hot: bool, decimal: str) -> Preparation:
    """Learn what to do with tables that are held in memory from their training samples, whose indices `rows` has."""
    tables = list(source.readers())
    if not tables or not tables[0].chosen.features:
        raise DataError(f"{source.name}: there is no line below the header, or no column is left to be a feature.")
    columns = [
        _learnt(
            tables[0].keys[place],
            [batch.columns[table.chosen.features[j]] for table in tables for batch in table.batches(None)],
            *(rows, impute, one_hot, tables[0].decimal),
        )
        for j, place in enumerate(tables[0].chosen.features)
    ]
    return Preparation(tuple(columns), tables[0].chosen.dropped, decimal)


def _learnt(key: str | int, parts: list[Any], rows: Any, impute: str | None, one_hot: bool, mark: str | None) -> Column:
    """Learn what to do with a column: one of text, most rows of which have a text of their own or a number, is none."""
    if one_hot and any(is_text(str(part.type)) for part in parts):
        texts = texts_of(parts)
        codes, count = np.unique(texts.codes[rows], return_counts=True)
        often = {texts.values[code]: many for code, many in zip(codes.tolist(), count.tolist(), strict=True)}
        often = {text: often[text] for text in sorted(often) if not is_missing(text)}
        numbers = [text for text in often if mark is not None and as_number(text, mark) is not None]
        quantities = len(numbers) > 20 and sum(often[text] for text in numbers) > sum(often.values()) / 2
        if 0 < len(often) <= max(2, count.sum() / 2) and len(numbers) < len(often) and not quantities:
            return Column(key, None if impute is None else max(often, key=often.__getitem__), tuple(often))
    if impute is None:
        return Column(key)
    values = np.concatenate([floats_of(part, mark) for part in parts])[rows]
    found, count = np.unique(values := values[~np.isnan(values)], return_counts=True)
    if not len(values):
        return Column(key)
    return Column(key, float(values.mean() if impute == "mean" else found[count.argmax()]))
