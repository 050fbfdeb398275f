"""Read a data set of any format, which `tables.py` parses: all of it, or in pieces of rows, of files or of a frame.

Columns of the other files are put in the order of the first by name, or refused. Files without rows are passed over.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from jaxsvm.datasets.labels import (
    UNSEEN,
    Columns,
    Layout,
    Piece,
    Reader,
    Texts,
    Wanted,
    as_number,
    is_missing,
    joined,
    of_texts,
    shown,
)
from jaxsvm.datasets.scaling import Scaling
from jaxsvm.datasets.tables import Column, arrays, delimited, floats_of, is_text, opened, svmlight, texts_of, typed
from jaxsvm.errors import DataError, InputError, require, require_package, require_part
from jaxsvm.gram.measured import MEASURED
from jaxsvm.points.rows import DenseOrSparse, PointsLike, is_sparse
from jaxsvm.runtime.arrays import checked, in_a_line, require_one_of

FORMATS = {
    "csv": (".csv", ".tsv"), "npz": (".npz",), "npy": (".npy",), "parquet": (".parquet", ".pq"),
    "feather": (".feather", ".arrow", ".ipc"), "svmlight": (),
}  # fmt: skip
"""Formats by the ends of files' names; svmlight has any other."""
TABLES = ("csv", "parquet", "feather", "frame")
"""Formats whose columns may hold text, lack values, and be left out."""
MOST_NUMERALS = 20  # numbers that may be names of categories
SCALES = {"standardise": Scaling.standardise, "min-max": Scaling.min_max}


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Points and labels as a file holds them.

    Attributes:
        x: Points `(n, d)`, prepared and scaled already: a float NumPy array, or a SciPy CSR array (svmlight).
        y: Labels `(n,)` as they are in the file: integers, floats, booleans or strings; `two_classes` makes signs. None
            if the points have no labels.
        feature_names: The `d` column names, or None if the file has none.
        source: The path that was read.
        layout: The file's columns: `compact(..., layout=...)` stores them, `load(..., like=...)` reads another file in
            the same way.
        notes: Descriptions of decisions that the caller may want to check.
        preparation: What was done to the columns (`impute`, `one_hot`, `drop`, `decimal`), for the model; or None.
        scaling: How the points were scaled (`scale`), for the model; or None.
    """

    __repr__ = in_a_line

    x: DenseOrSparse
    y: np.ndarray | None
    feature_names: tuple[str, ...] | None
    source: str
    layout: Layout = Layout()
    notes: tuple[str, ...] = ()
    preparation: Preparation | None = None
    scaling: Scaling | None = None


@checked
def load(
    path: str | os.PathLike[str] | PointsLike, *, label: str | int | Literal[False] | None = None,
    label_optional: bool = False, dtype: DTypeLike | None = None, features: int | None = None,
    header: bool | None = None, format: str | None = None, zero_based: bool | None = None, like: object = None,
    separator: str | None = None, decimal: str = ".", drop: str | Iterable[str | int] = (), impute: str | None = None,
    one_hot: bool = False, scale: str | None = None,
) -> Dataset:  # fmt: skip
    """Read a data set.

    Examples:
        >>> data = jaxsvm.datasets.load("train.csv", label="kind")
        >>> signs, classes = jaxsvm.datasets.two_classes(data.y)

    Args:
        path: A file: svmlight (`.svm`, `.svmlight`, `.libsvm`, `.txt`), CSV (`.csv`, `.tsv`), npz (keys `X` and
            `y`), npy (rows of features and a label), Parquet (`.parquet`, `.pq`) or Feather (`.feather`, `.arrow`). The
            text formats may be compressed (`.gz`, `.bz2`). A file of another name, such as `a9a` or `a9a.t`, is read as
            svmlight. Also a directory of such files, a name with `*`, or a data frame (whatever Arrow takes).
        label: The place of the labels: a column's name or index in a table (the last one by default), a key in npz
            (`y` by default). False: none, every column is a feature, and svmlight's labels are left out.
        label_optional: Whether labels may be absent, if `label` is None: a table of exactly `features` columns, or an
            npz file without the key of the labels, is then read as with `label=False`.
        dtype: Floating dtype of `x`; None: float64 for text, else the smallest float of all columns, at least float32.
        features: Required number of feature columns; None counts them. A svmlight file may have fewer, like a test
            file in which the last ones do not occur; with `like` it may also have more, which are left out with a note.
        header: Whether the first line of a CSV file holds names; None: if no field of it is a number, or one is a name
            that `label`, `drop` or `like` has. A line that may be either is refused.
        format: "svmlight", "csv", "npz", "npy", "parquet" or "feather", for a file whose name does not tell.
        zero_based: Whether the indices of a svmlight file count from 0. None: as in the training file, if `like` is
            given; else from 0 if the index 0 occurs in the file, and from 1 if it does not.
        like: The training set, a model of it, or their layout: named columns are put in its order, missing and unknown
            ones are refused, labels are read from the same place. A preparation is made as there, but no scaling.
        separator: What stands between the fields of a CSV file; None: the tab, semicolon or comma of its first line.
        decimal: The decimal mark of a CSV file, "." or ",".
        drop: Columns of a table to leave out, by name or by place from 0.
        impute: "mean" or "most_frequent" (of text always) fills in missing values; None refuses them.
        one_hot: Whether columns of text become an indicator for each text; else they are refused.
        scale: "standardise" or "min-max" scales `x`; a model with this `scaling` takes points as in files, not `x`.

    Raises:
        DataError: If the file is missing, unreadable, cut short or holds something else: the message names the file,
            the line if there is one, what was found and what to do.
        InputError: If arguments do not fit, or the package that reads the format is not installed.
    """
    _check_arguments(label, dtype, format, decimal, impute, scale)
    require_part("path", str(path) if isinstance(path, os.PathLike) else path, "__len__", "a file or frame is needed")
    paths, frame = (files_of(path), None) if isinstance(path, str | os.PathLike) else (("the frame",), path)
    name, drop = ", ".join(paths), (drop,) if isinstance(drop, str) else tuple(drop)
    preparation, layout = getattr(like, "preparation", None), cast(Any, getattr(like, "layout", like))
    wanted = Wanted(
        label, label_optional and label is None, features, zero_based, header, separator, decimal,
        Layout() if layout is None else layout, drop=drop,
    )  # fmt: skip
    source = Source(paths, wanted, format, frame)
    kind = source.kind(paths[0])
    prepares = bool(drop) or impute is not None or one_hot or decimal != "."
    need, tables = f"files have that, and {name} is {kind}.", ", ".join(TABLES)
    require(zero_based is None or kind == "svmlight", f"zero_based is given: only svmlight {need}")
    require(not prepares or kind in TABLES, f"drop, decimal, impute or one_hot is given: only {tables} {need}")
    if label is not None and label is not False and kind == "svmlight":
        raise InputError(f"label is {label!r}: svmlight lines start with their label; leave it out.")
    if preparation is not None:
        require(not prepares, "drop, decimal, impute or one_hot is given: the preparation of `like` is made.")
        return dataclasses.replace(preparation.read(source, layout, dtype=dtype), preparation=preparation)
    if prepares:
        preparation = _learn(source, impute, one_hot)
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
        for piece in reader.pieces(None):
            pieces += [piece] if piece.x.shape[0] else []
            unseen.update(piece.unseen)
    if layout is None or not pieces:
        raise DataError(f"{source.name}: the file is empty: it has no samples.")
    y = None if pieces[0].label is None else joined([piece.label for piece in pieces])
    if is_sparse(pieces[0].x):
        x, index_base, notes = _of_svmlight(source, [piece.x for piece in pieces])
        layout = Layout(index_base=index_base)
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


def _of_svmlight(source: Source, xs: list[Any]) -> tuple[Any, int | None, tuple[str, ...]]:
    """Return sparse points as one array, with their first index, which is known when all are read, and notes on it."""
    for x in xs:
        x.resize((x.shape[0], max(x.shape[1] for x in xs)))
    x = require_package("scipy.sparse", "sparse points").vstack(xs, format="csr")
    source, notes = source.with_first_index(int(x.indices.min(initial=1)), int(x.indices.max(initial=-1)))
    return source.based(Piece(x, None)).x, source.base, notes


def _check_arguments(
    label: Any, dtype: Any, format: str | None, decimal: str, impute: str | None, scale: str | None
) -> None:
    require(label is not True, "label is True: a column's name or index, an npz key, None or False (none) is needed.")
    if dtype is not None and not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        raise InputError(f"dtype is {jnp.dtype(dtype).name}: a floating one such as float32 is needed.")
    for name, given, choices in (
        ("format", format or "csv", FORMATS), ("decimal", decimal, (".", ",")),
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


def _learn(source: Source, impute: str | None, one_hot: bool) -> Preparation:
    """Learn what to do with the columns of tables."""
    tables = list(source.readers())
    held = [[columns[at] for at in table.chosen.features] for table in tables for columns in table.batches(None)]
    if not held or not held[0]:
        raise DataError(f"{source.name}: it has no samples, or no column is left to be a feature.")
    columns = [
        _learnt(tables[0].keys[place], [part[j] for part in held], impute, one_hot, tables[0].decimal)
        for j, place in enumerate(tables[0].chosen.features)
    ]
    return Preparation(tuple(columns), tables[0].chosen.dropped, source.wanted.decimal)


def _learnt(key: str | int, parts: list[Any], impute: str | None, one_hot: bool, mark: str | None) -> Column:
    """Learn what to do with a column: one of text, most rows of which have a text of their own or a number, is none."""
    if one_hot and any(is_text(str(part.type)) for part in parts):
        texts = texts_of(parts)
        count = np.bincount(texts.codes).tolist()
        often = {text: many for text, many in sorted(zip(texts.values, count, strict=True)) if not is_missing(text)}
        numbers = [text for text in often if mark is not None and as_number(text, mark) is not None]
        quantities = len(numbers) > MOST_NUMERALS and sum(often[text] for text in numbers) > sum(often.values()) / 2
        if 0 < len(often) <= max(2, sum(count) / 2) and len(numbers) < len(often) and not quantities:
            return Column(key, None if impute is None else max(often, key=often.__getitem__), tuple(often))
    if impute is None:
        return Column(key)
    values = np.concatenate([floats_of(part, mark) for part in parts])
    found, count = np.unique(values := values[~np.isnan(values)], return_counts=True)
    if not len(values):
        return Column(key)
    return Column(key, float(values.mean() if impute == "mean" else found[count.argmax()]))


def files_of(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the files that one or more names stand for, in order: of a directory all, and `*` is as in a shell."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if wrong := [name for name in given if not isinstance(name, str | os.PathLike)]:
        raise InputError(f"paths holds {wrong[0]!r}: names of files are needed.")
    if not given:
        raise InputError("paths is empty: one file at least is needed.")
    files: list[str] = []
    for name in [os.fspath(name) for name in given]:
        found = glob.glob(os.path.join(glob.escape(name), "*") if os.path.isdir(name) else name)
        parts = [part for part in sorted(found) if os.path.basename(part)[0] not in "._"]  # Spark's and Dask's own
        if os.path.isdir(name) and not parts:
            raise DataError(f"{name}: there is no file in this directory.")
        files += [name] if os.path.isfile(name) else parts or [name]
    return tuple(files)


def kind_of(name: str, format: str | None = None) -> str:
    """Return the format by the end of a file's name; refuse what is no file."""
    if not os.path.exists(name):
        raise DataError(f"{name}: there is no such file{', and none that fits' if '*' in name else ''}.")
    if not os.path.isfile(name):
        what = "a directory" if os.path.isdir(name) else "a pipe or a device, and files are read more than once"
        raise DataError(f"{name}: this is {what}; name a file.")
    end = os.path.splitext(re.sub(r"\.(gz|bz2)$", "", name.lower()))[1]
    return format or next((kind for kind, ends in FORMATS.items() if end in ends), "svmlight")


@dataclasses.dataclass(frozen=True)
class Source:
    """Files of one kind of rows, or a frame."""

    paths: tuple[str, ...]
    wanted: Wanted = Wanted()  # what is asked of them
    format: str | None = None  # of files whose names do not tell
    frame: Any = None  # the frame, in place of files
    columns: tuple[Column, ...] | None = None  # what is done to the features of tables; None: nothing
    base: int | None = None  # the first index of svmlight files, once it is known

    @property
    def name(self) -> str:
        """Return the names of the files."""
        return ", ".join(self.paths)

    def kind(self, path: str) -> str:
        """Return the format of a file; refuse one that does not exist."""
        return "frame" if self.frame is not None else kind_of(path, self.format)

    def stamps(self) -> list[list[int]]:
        """Return the size and the time of change of each file, which tell whether it has changed."""
        for path in self.paths:
            self.kind(path)
        return [[(of := os.stat(path)).st_size, of.st_mtime_ns] for path in self.paths]

    def readers(self) -> Iterator[Any]:
        """Yield the reader of each file that has rows; refuse other columns than those of the first."""
        wanted, first = self.wanted, ""
        for path in self.paths:
            kind = self.kind(path)
            if kind != "frame" and _is_empty(path):
                continue
            if (kind == "svmlight") != (self.kind(self.paths[0]) == "svmlight"):
                raise DataError(f"{path}: this is {kind}, and {self.paths[0]} is not: files of one kind are needed.")
            if kind == "svmlight":
                rows = functools.partial(svmlight, path, self.wanted.label is not False)
                yield Reader(Columns([], None, (), Layout(), ()), rows)
                continue
            if kind in TABLES:
                reader = delimited(path, wanted) if kind == "csv" else typed(path, kind, wanted, self.frame)
                reader = dataclasses.replace(reader, columns=self.columns)
            else:
                reader = arrays(path, kind, wanted)
            width = len(reader.chosen.features)
            if wanted.features not in (None, width):
                given = f"{first} has {wanted.features}" if first else f"features={wanted.features} was given"
                raise DataError(f"{path}: has {width} feature columns; {given}.")
            if not first:
                wanted, first = dataclasses.replace(wanted, features=width), path
                if wanted.like == Layout():
                    wanted = dataclasses.replace(wanted, like=reader.chosen.layout, whose=path)
            yield reader

    def pieces(self) -> Iterator[Piece]:
        """Yield all rows, some at a time; svmlight's once d and the first index are known (`with_first_index`)."""
        for reader in self.readers():
            rows = max(1, MEASURED.bytes_per_block // (8 * max(len(reader.chosen.features), 1)))
            yield from map(self.based, reader.pieces(rows))

    def based(self, piece: Piece) -> Piece:
        """Return points of svmlight with d columns from the first index on, once it is known; others as they are."""
        d = self.wanted.features or 0
        if self.base is None:
            return piece
        of = (piece.x.data, (piece.x.indices - self.base).astype(np.int32), piece.x.indptr.astype(np.int32))
        x = type(piece.x)(of, shape=(piece.x.shape[0], max(piece.x.shape[1], d)))
        x.resize((x.shape[0], d))
        x.eliminate_zeros()
        return piece._replace(x=x)

    def with_first_index(self, lowest: int, highest: int) -> tuple[Source, tuple[str, ...]]:
        """Return svmlight files with d and the first index, of which the indices that occur tell, and notes."""
        wanted, name, notes = self.wanted, self.name, ()
        training, d, base = wanted.like.index_base, wanted.features, min(lowest, 1)
        if wanted.zero_based is not None:
            base = int(not wanted.zero_based)
        elif training is not None:
            base = training
            known = "indices are taken to count from 0, as in the training file, though no index is 0 here"
            notes = (f"{known} (--index-base 1 else)",) if base == 0 < lowest else ()
        if lowest < base:
            raise DataError(
                f"{name}: its indices count from 0 (the index 0 occurs); they were said to count from 1, or taken to "
                "do so in training: say zero_based=True (--index-base 0), in training too if those do."
            )
        found = highest + 1 - base
        if d is None and found <= 0:
            raise DataError(f"{name}: no line has a feature; svmlight lines look like '+1 3:0.5 7:1'.")
        if d is not None and found > d:
            if wanted.like == Layout() or notes:
                counted = "" if base else ", and indices count from 0"
                raise DataError(f"{name}: the feature index is {highest}{counted}, and features={d} was given.")
            notes = (f"the {found - d} features above {d - 1 + base}, {UNSEEN}, are left out",)
        wanted = dataclasses.replace(wanted, features=found if d is None else d)
        return dataclasses.replace(self, wanted=wanted, base=base), notes


def _is_empty(name: str) -> bool:
    with opened(name) as file:
        return not any(part.strip() for part in iter(lambda: file.read(1 << 16), b""))


class Scan(NamedTuple):
    """The result of a first pass over files."""

    source: Source  # with d, and the first index of svmlight files
    rows: int
    labels: dict[Any, Any]  # the label that a value in a piece stands for; none of targets of regression


def scan(source: Source, labelled: bool = True) -> Scan:
    """Read all rows once, count them, and collect labels of classes."""
    rows, d, lowest, highest = 0, 0, 1, -1
    texts: set[str] = set()
    values: set[Any] = set()
    for piece in source.pieces():
        rows, d = rows + piece.x.shape[0], max(d, piece.x.shape[1])
        if labelled:
            (texts if isinstance(piece.label, Texts) else values).update(different(piece.label)[0])
        if is_sparse(piece.x):
            lowest = min(lowest, int(piece.x.indices.min(initial=1)))
            highest = max(highest, int(piece.x.indices.max(initial=-1)))
    if not rows:
        raise DataError(f"{source.name}: no line is a sample.")
    written = sorted(texts)
    labels = dict(zip(written, of_texts(written).tolist(), strict=True)) | {value: value for value in values}
    if len({isinstance(label, str) for label in labels.values()}) > 1:
        raise DataError(f"{source.name}: labels are text in some files and numbers in others: write all of them alike.")
    found = dataclasses.replace(source, wanted=dataclasses.replace(source.wanted, features=d))
    if source.kind(source.paths[0]) == "svmlight":
        found, _ = source.with_first_index(lowest, highest)
    return Scan(found, rows, labels)


def different(label: Any) -> tuple[list[Any], np.ndarray]:
    """Return the different labels of a piece, and the code of each row."""
    if isinstance(label, Texts):
        return label.values, label.codes
    values, codes = np.unique(label, return_inverse=True)
    return values.tolist(), codes
