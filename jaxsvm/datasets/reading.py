"""One call for all formats: what the file is, whether it can be opened, and who reads it."""

import bz2
import dataclasses
import gzip
import io
import os
import re
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from jaxsvm.datasets.layout import Layout, Wanted
from jaxsvm.datasets.refusal import AGAIN
from jaxsvm.datasets.tables import read_npz, read_parquet
from jaxsvm.datasets.text import read_csv, read_svmlight
from jaxsvm.errors import DataError, InputError

FORMATS = {
    "svmlight": (".svm", ".svmlight", ".libsvm", ".txt"),
    "csv": (".csv", ".tsv"),
    "npz": (".npz",),
    "parquet": (".parquet", ".pq"),
}
SVMLIGHT = rb"[^\s:,;]+([ \t]+[0-9]+:[^\s:,;]+)+"
"""A line of svmlight: LIBSVM's own files are called `a9a`, `a9a.t` or `mnist.scale`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Points and labels as a file holds them.

    Attributes:
        x: Points `(n, d)`: a float NumPy array, or a SciPy CSR array (svmlight, sparse npz).
        y: Labels `(n,)` as they are in the file: integers, floats, booleans or strings; `two_classes` makes signs. None
            where the points have no labels.
        feature_names: The `d` column names, or None where the file has none.
        source: The path that was read.
        layout: How the file holds its columns: `compact(..., layout=...)` remembers it, `load(..., like=...)` holds
            another file to it.
        notes: What was decided that one may want to know, in words.
    """

    x: Any
    y: np.ndarray | None
    feature_names: tuple[str, ...] | None
    source: str
    layout: Layout = Layout()
    notes: tuple[str, ...] = ()


def load(
    path: str | os.PathLike[str],
    *,
    label: str | int | Literal[False] | None = None,
    label_optional: bool = False,
    dtype: Any = None,
    part: str = "train",
    features: int | None = None,
    header: bool | None = None,
    format: str | None = None,
    zero_based: bool | None = None,
    like: Layout | None = None,
) -> Dataset:
    """Read a data set.

    Args:
        path: A file: svmlight (`.svm`, `.svmlight`, `.libsvm`, `.txt`), CSV (`.csv`, `.tsv`; separated by comma,
            semicolon or tab), npz (keys `X` or `X_data`, `X_indices`, `X_indptr`, `X_shape`, and `y`) or Parquet
            (`.parquet`, `.pq`). The text formats may be compressed (`.gz`, `.bz2`). A file of another name, such as
            `a9a` or `a9a.t`, is svmlight where its first line looks like it.
        label: Where the labels are: a column's name or index in CSV and Parquet (the last one by default), a key in npz
            (`y` by default, `yt` for the test part). False: there are none, every column is a feature and `y` is None;
            svmlight lines start with a label always, which False drops.
        label_optional: Whether labels may be absent, where `label` is None: a CSV or Parquet file of exactly `features`
            columns, or an npz file without the key of the labels, is then read as with `label=False`.
        dtype: Floating dtype of `x`; None keeps what the file holds: float64 for text, the smallest float that holds
            the column types otherwise (at least float32).
        part: "train", or "test" for the arrays `Xt`, `yt` of an npz file.
        features: Number of feature columns that there must be; None counts them. A svmlight file may have fewer, as
            a test file that lacks the last ones has.
        header: Whether the first line of a CSV file holds names. None finds out: it does if no field of it is a number.
        format: "svmlight", "csv", "npz" or "parquet", for a file whose name does not tell.
        zero_based: Whether the indices of a svmlight file count from 0. None: as in the training file, where `like` is
            given; else from 0 where the index 0 occurs in the file, and from 1 where it does not.
        like: The layout of the training file (`dataset.layout`, `model.layout`). Columns that have names are put in its
            order; missing and other ones are refused. The labels are looked for where they were there.

    Returns:
        The data set.

    Raises:
        DataError: Where the file is missing, unreadable, cut short or holds something else: the message names the file,
            the line where there is one, what was found and what to do.
        InputError: On arguments that do not fit, or where the package that reads the format is not installed.
    """
    name = os.fspath(path)
    _check_arguments(name, label, part, dtype, format)
    kind, compression = _format_of(name, format)
    if part != "train" and kind != "npz":
        raise InputError(f"part is {part!r}: only npz files have parts; give the test file's own path.")
    if zero_based is not None and kind != "svmlight":
        raise InputError(f"zero_based is {zero_based}: only svmlight files have indices to count.")
    if label is not None and label is not False and kind == "svmlight":
        raise InputError(f"label is {label!r}: svmlight lines start with their label; leave it out.")
    content = _decompressed(name, compression)
    if not content.strip():
        raise DataError(f"{name}: the file is empty: it has no samples.")
    wanted = Wanted(label, label_optional and label is None, features, Layout() if like is None else like)
    if kind == "svmlight":
        read = read_svmlight(name, content, wanted, None if zero_based is None else int(not zero_based))
    elif kind == "csv":
        read = read_csv(name, content, wanted, header)
    elif kind == "npz":
        read = read_npz(name, content, wanted, part)
    else:
        read = read_parquet(name, content, wanted)
    x = read.x
    if features is not None and x.shape[1] != features:
        raise DataError(f"{name}: has {x.shape[1]} feature columns; features={features} was given.")
    x = x.astype(np.result_type(x.dtype, np.float32) if dtype is None else dtype, copy=False)
    return Dataset(x, read.y, read.layout.columns, name, read.layout, read.notes)


def _check_arguments(name: str, label: Any, part: str, dtype: Any, format: str | None) -> None:
    if label is True:
        raise InputError("label is True: a column's name or index, an npz key, None or False (no labels) is needed.")
    if part not in ("train", "test"):
        raise InputError(f'part is {part!r}: "train" or "test" is needed.')
    if format is not None and format not in FORMATS:
        raise InputError(f"format is {format!r}: one of {', '.join(FORMATS)} is needed.")
    if dtype is not None and not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        raise InputError(f"dtype is {jnp.dtype(dtype).name}: a floating one such as float32 is needed.")
    if os.path.isdir(name):
        raise DataError(f"{name}: this is a directory; name one file in it.")
    if not os.path.exists(name):
        raise DataError(f"{name}: there is no such file (looked from {os.getcwd()}).")


def _format_of(name: str, format: str | None) -> tuple[str, str]:
    """Format and compression ("", ".gz" or ".bz2") by the ends of the name, or else by the first line of svmlight."""
    stem = Path(name.lower())
    compression = stem.suffix if stem.suffix in (".gz", ".bz2") else ""
    suffix = stem.with_suffix("").suffix if compression else stem.suffix
    if format is not None:
        return format, compression
    for kind, suffixes in FORMATS.items():
        if suffix in suffixes:
            return kind, compression
    content = _decompressed(name, compression)
    lines = (line.split(b"#")[0] for line in io.BytesIO(content))
    if re.fullmatch(SVMLIGHT, next((line for line in lines if line.strip()), b"").strip()):
        return "svmlight", compression
    known = ", ".join(suffix for suffixes in FORMATS.values() for suffix in suffixes)
    raise DataError(
        f"{name}: the format of {suffix!r} files is not known, and its first line is not svmlight's; known are "
        f"{known}, also with .gz or .bz2. "
        'Rename the file, or say what it is: load(path, format="csv").'
    )


def _decompressed(name: str, compression: str) -> bytes:
    try:
        raw = Path(name).read_bytes()
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror or error}.") from error
    if not compression or not raw:
        return raw
    try:
        return gzip.decompress(raw) if compression == ".gz" else bz2.decompress(raw)
    except Exception as error:  # EOF, CRC, a bad header: damage shows itself in many ways
        raise DataError(f"{name}: not a whole {compression} file ({error}){AGAIN}") from error
