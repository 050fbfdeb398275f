"""Read a data set of any format in one call."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from jaxsvm.datasets.labels import joined
from jaxsvm.datasets.layout import Layout, Wanted, undamaged
from jaxsvm.datasets.preparation import IMPUTE, Preparation, Sheet, learn
from jaxsvm.datasets.scaling import Scaling
from jaxsvm.datasets.source import FORMATS, NO_FEATURE, TABLES, Source, based, files_of
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
    preparation: Preparation | None = None
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
            A file of another name, such as `a9a` or `a9a.t`, is svmlight if its first line looks like it. Also a
            directory of such files, a name with `*`, or a data frame (pandas, polars, whatever Arrow takes).
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
        sheet = Sheet.of(source)
        preparation = learn(sheet, np.arange(sheet.n), impute, one_hot, decimal)
        x, strange = preparation(sheet)
        y, layout, notes = sheet.y, preparation.layout(sheet.layout), sheet.first.notes + strange
    else:
        x, y, layout, notes = _together(source, kind)
    if features is not None and x.shape[1] != features:
        raise DataError(f"{name}: has {x.shape[1]} feature columns; features={features} was given.")
    x = x.astype(np.result_type(x.dtype, np.float32) if dtype is None else dtype, copy=False)
    scaling = None if scale is None else SCALES[scale](x)
    x = x if scaling is None else scaling(x)
    return Dataset(x, y, layout.columns, name, layout, notes, preparation, scaling)


def _together(source: Source, kind: str) -> tuple[Any, Any, Layout, tuple[str, ...]]:
    """Return all points and labels of a source; refuse the first row that is no sample."""
    xs, labels, layout, notes = [], [], None, ()
    for reader in source.readers():
        layout, notes = (reader.layout, reader.notes) if layout is None else (layout, notes)
        for piece in map(undamaged, reader.pieces()):
            if piece.x.shape[0]:
                xs.append(piece.x)
                labels.append(piece.label)
    if layout is None or not xs:
        raise DataError(f"{source.name}: the file is empty: it has no samples.")
    y = None if labels[0] is None else joined(source.name, labels)
    if not is_sparse(xs[0]):
        return np.concatenate(xs), y, layout, notes
    sparse = require_package("scipy.sparse", "sparse points")
    for x in xs:
        x.resize((x.shape[0], max(x.shape[1] for x in xs)))
    x = sparse.csr_array(sparse.vstack(xs, format="csr"))
    if x.nnz > MAX_INT32:
        raise DataError(f"{source.name}: holds {x.nnz} values: up to {MAX_INT32} can be counted; take it in parts.")
    if kind != "svmlight":
        return x, y, layout, notes
    x, layout, notes = _from_first_index(x, source)
    return x, y, layout, notes


def _from_first_index(x: Any, source: Source) -> tuple[Any, Layout, tuple[str, ...]]:
    """Return points of svmlight whose first column is the first index; it is known only when all are read."""
    wanted, lowest = source.wanted, int(x.indices.min(initial=1))
    features, training = wanted.features, wanted.like.index_base
    base = min(lowest, 1) if training is None else training
    base = base if wanted.zero_based is None else int(not wanted.zero_based)
    notes = ()
    if wanted.zero_based is None and training == 0 and lowest > 0:
        known = "indices are taken to count from 0, as in the training file, though no index is 0 here"
        notes = (f"{known} (--index-base 1 else)",)
    if x.nnz == 0 and features is None:
        raise DataError(f"{source.name}: {NO_FEATURE}.")
    if features is not None and x.shape[1] > features + base and wanted.like != Layout() and not notes:
        new, x = x.shape[1] - features - base, x[:, : features + base]
        notes = (f"the {new} features above {features - 1 + base}, which training has not seen, are left out",)
    return based(source.name, x, base, features), Layout(index_base=base), notes


def _check_arguments(
    label: Any, part: str, dtype: Any, format: str | None, decimal: str, impute: str | None, scale: str | None
) -> None:
    require(label is not True, "label is True: a column's name or index, an npz key, None or False (none) is needed.")
    if dtype is not None and not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        raise InputError(f"dtype is {jnp.dtype(dtype).name}: a floating one such as float32 is needed.")
    for name, given, choices in (
        ("part", part, ("train", "test")), ("format", format or "csv", FORMATS), ("decimal", decimal, (".", ",")),
        ("impute", impute or "mean", IMPUTE), ("scale", scale or "standardise", SCALES),
    ):  # fmt: skip
        require_one_of(name, given, choices)
