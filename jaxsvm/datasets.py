"""Data sets: files into arrays, labels into signs, columns to one scale, and points to play with.

`load` reads svmlight, CSV, npz and Parquet files. It reads fast; what the fast reader refuses is read once more line by
line, slowly, so that the error can name the line. Nothing is dropped, filled in or guessed in silence.
"""

import bz2
import csv
import dataclasses
import gzip
import importlib
import io
import math
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.errors import DataError, InputError, is_concrete, require_finite

FORMATS = {
    "svmlight": (".svm", ".svmlight", ".libsvm", ".txt"),
    "csv": (".csv", ".tsv"),
    "npz": (".npz",),
    "parquet": (".parquet", ".pq"),
}
SHOWN = 40  # characters of a bad token that a message repeats
MAX_INDEX = 2**31 - 1  # columns are int32 everywhere


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Points and labels as a file holds them.

    Attributes:
        x: Points `(n, d)`: a float NumPy array, or a SciPy CSR array (svmlight, sparse npz).
        y: Labels `(n,)` as they are in the file: integers, floats, booleans or strings; `two_classes` makes signs of them.
        feature_names: The `d` column names, or None where the file has none.
        source: The path that was read.
    """

    x: Any
    y: np.ndarray
    feature_names: tuple[str, ...] | None
    source: str


def load(
    path: str | os.PathLike[str],
    *,
    label: str | int | None = None,
    dtype: Any = None,
    part: str = "train",
    features: int | None = None,
    header: bool | None = None,
    format: str | None = None,
) -> Dataset:
    """Read a data set.

    Args:
        path: A file: svmlight (`.svm`, `.svmlight`, `.libsvm`, `.txt`), CSV (`.csv`, `.tsv`; separated by comma, semicolon
            or tab), npz (keys `X` or `X_data`, `X_indices`, `X_indptr`, `X_shape`, and `y`) or Parquet. The text formats
            may be compressed (`.gz`, `.bz2`).
        label: Where the labels are: a column's name or index in CSV and Parquet (the last one by default), a key in npz
            (`y` by default, `yt` for the test part).
        dtype: Floating dtype of `x`; None keeps what the file holds: float64 for text, the smallest float that holds
            the column types otherwise (at least float32).
        part: "train", or "test" for the arrays `Xt`, `yt` of an npz file.
        features: Number of columns of a svmlight file, for a test file that lacks the last ones; None counts them.
        header: Whether the first line of a CSV file holds names. None finds out: it does if no field of it is a number.
        format: "svmlight", "csv", "npz" or "parquet", for a file whose name does not tell.

    Returns:
        The data set. svmlight columns count from 1, or from 0 where the index 0 occurs in the file.

    Raises:
        DataError: Where the file is missing, unreadable, cut short or holds something else: the message names the file,
            the line where there is one, what was found and what to do.
        InputError: On arguments that do not fit, or where the package that reads the format is not installed.
    """
    name = os.fspath(path)
    _check_arguments(name, part, dtype, format)
    kind, compression = _format_of(name, format)
    if part != "train" and kind != "npz":
        raise InputError(f"part is {part!r}: only npz files have parts; give the test file's own path.")
    content = _decompressed(name, compression)
    if not content.strip():
        raise DataError(f"{name}: the file is empty: it has no samples.")
    if kind == "svmlight":
        x, y, names = _read_svmlight(name, content, features)
    elif kind == "csv":
        x, y, names = _read_csv(name, content, label, header)
    elif kind == "npz":
        x, y, names = _read_npz(name, content, label, part)
    else:
        x, y, names = _read_parquet(name, content, label)
    x = x.astype(np.result_type(x.dtype, np.float32) if dtype is None else dtype, copy=False)
    return Dataset(x, y, names, name)


# ---------------------------------------------------------------------------------------------------------- files


def _check_arguments(name: str, part: str, dtype: Any, format: str | None) -> None:
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
    """Format and compression ("", ".gz" or ".bz2") by the ends of the name."""
    stem = Path(name.lower())
    compression = stem.suffix if stem.suffix in (".gz", ".bz2") else ""
    suffix = stem.with_suffix("").suffix if compression else stem.suffix
    if format is not None:
        return format, compression
    for kind, suffixes in FORMATS.items():
        if suffix in suffixes:
            return kind, compression
    known = ", ".join(suffix for suffixes in FORMATS.values() for suffix in suffixes)
    raise DataError(
        f"{name}: the format of {suffix!r} files is not known; known are {known}, the text formats also with .gz or .bz2. "
        'Rename the file, or say what it is: load(path, format="svmlight").'
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
    except (EOFError, OSError, ValueError, zlib.error) as error:
        raise DataError(f"{name}: not a whole {compression} file ({error}){_again()}") from error


def _again() -> str:
    return "; it may have been cut short: fetch or write it again."


def _need(module: str, package: str, purpose: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"reading {purpose} files needs {package}, which is not installed: pip install 'jaxsvm[cli]'"
        ) from error


def _text(name: str, content: bytes, expected: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(
            f"{name}, line {line}: byte {content[error.start]:#04x} is no UTF-8 text; {expected} is needed."
        ) from error


def _shown(token: str) -> str:
    return repr(token if len(token) <= SHOWN else token[:SHOWN] + "...")


def _refuse_line(name: str, line: int, found: str, expected: str, *, cut: bool = False) -> NoReturn:
    hint = " It is the last line and does not end in a newline: the file may have been cut short." if cut else ""
    raise DataError(f"{name}, line {line}: {found}; {expected}.{hint}")


def _number(token: str) -> float | None:
    """The number that a token spells, or None; Python's `1_000` is no number in a file."""
    if "_" in token:
        return None
    try:
        return float(token)
    except ValueError:
        return None


# ------------------------------------------------------------------------------------------------------- svmlight


def _read_svmlight(name: str, content: bytes, features: int | None) -> tuple[Any, np.ndarray, None]:
    reader = _need("sklearn.datasets", "scikit-learn", "svmlight")
    sparse = _need("scipy.sparse", "scipy", "svmlight")
    first = next((line for line in content.splitlines() if line.split(b"#")[0].strip()), b"")
    if not first:
        raise DataError(f"{name}: the file holds comments only: it has no samples.")
    try:
        x, y = reader.load_svmlight_file(io.BytesIO(content), n_features=features)[:2]
    except (ValueError, OverflowError) as error:
        _locate_svmlight(name, content, features)
        raise DataError(f"{name}: not a svmlight file: {error}.") from error
    if not (np.isfinite(x.data).all() and np.isfinite(y).all()) or x.shape[1] > MAX_INDEX:
        _locate_svmlight(name, content, features)
    if x.shape[1] == 0 and features is None:
        raise DataError(f"{name}: no line has a feature; svmlight lines look like '+1 3:0.5 7:1'.")
    x = sparse.csr_array(x)
    x.eliminate_zeros()
    return x, (y.astype(np.int64) if (y == np.rint(y)).all() and np.abs(y).max() < 2**53 else y), None


def _locate_svmlight(name: str, content: bytes, features: int | None) -> None:
    """Raise for the first line that is no svmlight; return where there is none."""
    text = _text(name, content, "a text file of lines such as '+1 3:0.5 7:1'")
    lines = text.split("\n")
    largest, where, smallest = -1, 0, MAX_INDEX
    for number, line in enumerate(lines, 1):
        cut = number == len(lines) and bool(line)
        tokens = line.split("#", 1)[0].split()
        if not tokens:
            continue
        label = _number(tokens[0])
        if label is None or not math.isfinite(label):
            expected = "a line starts with its label, a finite number, as in '+1 3:0.5 7:1'"
            _refuse_line(name, number, f"the label is {_shown(tokens[0])}", expected, cut=cut)
        last = -1
        for token in tokens[1:]:
            if token.startswith("qid:"):
                continue
            last = _check_feature(name, number, token, last, cut)
            smallest = min(smallest, last)
            if last > largest:
                largest, where = last, number
    columns = largest + (smallest == 0)  # an index 0 anywhere makes the file count from 0
    if features is not None and columns > features:
        _refuse_line(
            name, where, f"the feature index is {largest}", f"features={features} was given, raise it or drop it"
        )


def _check_feature(name: str, line: int, token: str, last: int, cut: bool) -> int:
    match = re.fullmatch(r"([^:]*):([^:]*)", token)
    if match is None:
        _refuse_line(name, line, f"found {_shown(token)}", "a feature is written index:value, as in 3:0.5", cut=cut)
    index, value = match.groups()
    if not re.fullmatch(r"\+?[0-9]+", index):
        _refuse_line(name, line, f"the index of {_shown(token)} is no whole number >= 0", "write 3:0.5", cut=cut)
    if int(index) > MAX_INDEX:
        _refuse_line(name, line, f"the feature index is {index}", f"indices go to {MAX_INDEX}")
    if int(index) <= last:
        expected = "the indices of a line ascend and occur once"
        _refuse_line(name, line, f"feature index {int(index)} follows {last}", expected, cut=cut)
    number = _number(value)
    if number is None:
        _refuse_line(
            name, line, f"the value of {_shown(token)} is no number", "write index:value, as in 3:0.5", cut=cut
        )
    if not math.isfinite(number):
        _refuse_line(name, line, f"the value of {_shown(token)} is not finite", "remove or impute it first")
    return int(index)


# ------------------------------------------------------------------------------------------------------------ CSV


def _read_csv(
    name: str, content: bytes, label: str | int | None, header: bool | None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...] | None]:
    pa_csv = _need("pyarrow.csv", "pyarrow", "CSV")
    pa = _need("pyarrow", "pyarrow", "CSV")
    text = _text(name, content, "a text file of numbers and separators")
    first_line = next(line for line in text.splitlines() if line.strip())
    delimiter = max(",;\t", key=first_line.count)
    line, first = next(_csv_rows(text, delimiter))
    named = _has_header(name, line, first, label) if header is None else header
    column = _label_column(name, first if named else None, len(first), label)
    if named and "" in first:
        expected = "name it, or leave it out if it is the index that pandas writes (to_csv(index=False))"
        _refuse_line(name, line, f"column {first.index('')} of the header has no name", expected)
    names = tuple(field for i, field in enumerate(first) if i != column) if named else None
    keys = [str(i) for i in range(len(first))]  # our own: a file may name two columns alike
    try:
        table = pa_csv.read_csv(
            io.BytesIO(content.removeprefix(b"\xef\xbb\xbf")),
            read_options=pa_csv.ReadOptions(
                column_names=keys, skip_rows=line if named else 0, block_size=max(1 << 20, 2 * len(first_line))
            ),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter),
            convert_options=pa_csv.ConvertOptions(
                column_types={key: pa.string() if i == column else pa.float64() for i, key in enumerate(keys)},
                null_values=[""],
            ),
        )
        x = np.empty((table.num_rows, len(keys) - 1))
        for j, key in enumerate(key for i, key in enumerate(keys) if i != column):
            x[:, j] = table.column(key).to_numpy()
        labels = [value.strip() for value in table.column(column).to_pylist()]
        if not np.isfinite(x).all() or "" in labels:
            raise ValueError("missing values")  # the slow reader says where
    except (pa.ArrowInvalid, ValueError):
        x, labels = _read_csv_slowly(name, text, delimiter, column, first if named else None)
    if not len(x):
        raise DataError(f"{name}: there is no line below the header: it has no samples.")
    return x, _typed_labels(labels), names


def _csv_rows(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Line number (of a row's end) and stripped fields of every row that is not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    for row in reader:
        fields = [field.strip() for field in row]
        if any(fields) or len(fields) > 1:
            yield reader.line_num, fields


def _has_header(name: str, line: int, first: list[str], label: str | int | None) -> bool:
    if isinstance(label, str):
        return True
    column = len(first) - 1 if label is None else label
    numeric = [_number(field) is not None for field in first]
    features = [is_number for i, is_number in enumerate(numeric) if i != column % len(first)]
    if not any(numeric):
        return True
    if (
        all(features)
        or any(is_number for is_number in features)
        and all(is_number or field in ("", "?", "NA", "N/A") for is_number, field in zip(numeric, first, strict=True))
    ):
        return False
    odd = first[numeric.index(False)]
    _refuse_line(
        name, line, f"the field {_shown(odd)} is no number, others are", "say header=True if the line names the columns"
    )


def _label_column(name: str, names: list[str] | None, width: int, label: str | int | None) -> int:
    """The label's column as an index from 0."""
    if width < 2:
        raise DataError(f"{name}: there is one column only; features and a label are needed, separated by , ; or tab.")
    if isinstance(label, str):
        if names is None:
            raise InputError(f"label is {label!r}, and {name} has no header: give the column's index.")
        if names.count(label) != 1:
            found = "no column" if label not in names else f"{names.count(label)} columns"
            shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise InputError(f"label is {label!r}: {name} has {found} of that name; it has {shown}.")
        return names.index(label)
    column = width - 1 if label is None else label
    if not -width <= column < width:
        raise InputError(f"label is {label}: {name} has {width} columns, so an index from 0 to {width - 1} is needed.")
    return column % width


def _read_csv_slowly(
    name: str, text: str, delimiter: str, column: int, names: list[str] | None
) -> tuple[np.ndarray, list[str]]:
    """What the fast reader refused: numbers that only it cannot read, or the error that says where."""
    rows = _csv_rows(text, delimiter)
    if names is not None:
        next(rows)
    values: list[list[float]] = []
    labels: list[str] = []
    lines = text.count("\n") + 1
    width = len(names) if names is not None else 0
    for line, fields in rows:
        cut = line == lines
        width = width or len(fields)
        if len(fields) != width:
            _refuse_line(
                name, line, f"found {len(fields)} fields", f"{width} are needed, as in the first line", cut=cut
            )
        labels.append(fields.pop(column))
        if not labels[-1] or labels[-1].lower() == "nan":
            _refuse_line(
                name, line, f"the label (column {column}) is missing", "remove the line or fill it in", cut=cut
            )
        numbers = [_number(field) for field in fields]
        for j, (number, field) in enumerate(zip(numbers, fields, strict=True)):
            if number is not None and math.isfinite(number):
                continue
            at = j + (j >= column)
            where = f"column {at}" + (f" ({names[at]})" if names is not None else "")
            if not field or field == "?" or field.lower() in ("na", "n/a", "nan", "null", "none"):
                _refuse_line(name, line, f"{where} is missing ({_shown(field)})", "remove or impute it first", cut=cut)
            _refuse_line(name, line, f"{where} is {_shown(field)}", "a finite number is needed", cut=cut)
        values.append([number for number in numbers if number is not None])
    return np.asarray(values, float).reshape(len(values), -1), labels


def _typed_labels(labels: list[str]) -> np.ndarray:
    """Integers if all labels are, else floats, else the strings."""
    array = np.asarray(labels)
    if all(re.fullmatch(r"[+-]?[0-9]{1,15}", label) for label in np.unique(array).tolist()):
        return array.astype(np.int64)
    if all(_number(label) is not None for label in np.unique(array).tolist()):
        return array.astype(np.float64)
    return array


# ------------------------------------------------------------------------------------------------ npz and Parquet


def _read_npz(name: str, content: bytes, label: str | int | None, part: str) -> tuple[Any, np.ndarray, None]:
    key_x, key_y = ("X", "y") if part == "train" else ("Xt", "yt")
    if isinstance(label, int):
        raise InputError(f"label is {label}: in an npz file it is a key, such as 'y'.")
    key_y = key_y if label is None else label
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files if key in (key_y, key_x) or key.startswith(f"{key_x}_")}
            keys = ", ".join(stored.files)
    except (OSError, EOFError, ValueError, KeyError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        if "allow_pickle" in str(error) and zipfile.is_zipfile(io.BytesIO(content)):
            raise DataError(f"{name}: holds pickled objects, which are never loaded; save numeric arrays.") from error
        raise DataError(f"{name}: not a whole npz file ({error}){_again()}") from error
    if key_y not in arrays:
        raise DataError(f"{name}: has no labels {key_y!r}; its keys are {keys}.")
    y = arrays[key_y]
    if key_x in arrays:
        x = arrays[key_x]
    elif all(f"{key_x}_{field}" in arrays for field in ("data", "indices", "indptr", "shape")):
        x = _csr_of_arrays(
            name, {field: arrays[f"{key_x}_{field}"] for field in ("data", "indices", "indptr", "shape")}
        )
    else:
        wanted = f"{key_x}, or {key_x}_data, {key_x}_indices, {key_x}_indptr and {key_x}_shape"
        raise DataError(f"{name}: has no points: {wanted} are needed; its keys are {keys}.")
    if x.ndim != 2 or y.shape != x.shape[:1] or not x.shape[0] or not x.shape[1]:
        raise DataError(
            f"{name}: {key_x} has shape {x.shape} and {key_y} {y.shape}; (n, d) and (n,) are needed, n, d >= 1."
        )
    if x.dtype.kind not in "biuf" or y.dtype.kind not in "biufUS":
        raise DataError(
            f"{name}: {key_x} is {x.dtype} and {key_y} {y.dtype}; numbers, and numbers or strings, are needed."
        )
    _refuse_not_finite(name, key_x, x.data if hasattr(x, "indptr") else x)
    _refuse_not_finite(name, key_y, y)
    return x, _wide_labels(y), None


def _csr_of_arrays(name: str, fields: dict[str, np.ndarray]) -> Any:
    sparse = _need("scipy.sparse", "scipy", "sparse npz")
    try:
        indices, indptr = fields["indices"].astype(np.int32), fields["indptr"].astype(np.int32)
        x = sparse.csr_array((fields["data"], indices, indptr), shape=tuple(fields["shape"].tolist()))
        x.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name}: the CSR arrays do not fit together ({error}); write them again.") from error
    x.sum_duplicates()
    return x


def _wide_labels(y: np.ndarray) -> np.ndarray:
    """Small integers become int64, so that arithmetic on labels cannot overflow; bytes become text."""
    if y.dtype.kind in "iu":
        return y.astype(np.int64)
    return y.astype(str) if y.dtype.kind == "S" else y


def _refuse_not_finite(name: str, key: str, values: np.ndarray) -> None:
    try:
        require_finite(key, values)
    except InputError as error:
        raise DataError(f"{name}: {error}") from error


def _read_parquet(name: str, content: bytes, label: str | int | None) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    pa = _need("pyarrow", "pyarrow", "Parquet")
    parquet = _need("pyarrow.parquet", "pyarrow", "Parquet")
    try:
        table = parquet.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{name}: not a whole Parquet file ({str(error).strip()}){_again()}") from error
    if not table.num_rows:
        raise DataError(f"{name}: the table has no rows: it has no samples.")
    column = _label_column(name, table.column_names, table.num_columns, label)
    columns = [_parquet_column(name, pa, table, i, i == column) for i in range(table.num_columns)]
    y = columns.pop(column)
    x = np.empty((table.num_rows, len(columns)), np.result_type(np.float32, *(values.dtype for values in columns)))
    for j, values in enumerate(columns):
        x[:, j] = values
    return x, _wide_labels(y), tuple(key for i, key in enumerate(table.column_names) if i != column)


def _parquet_column(name: str, pa: Any, table: Any, i: int, is_label: bool) -> np.ndarray:
    values, where = table.column(i), f"column {i} ({table.column_names[i]})"
    if values.null_count:
        row = values.is_null().to_numpy().argmax()
        raise DataError(f"{name}, row {row}: {where} is missing; remove or impute it first.")
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    kind = values.type
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if is_label and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return np.asarray(values.to_pylist(), dtype=str)
    if not numeric:
        allowed = "numbers, booleans or strings" if is_label else "numbers or booleans (encode it, or leave it out)"
        raise DataError(f"{name}: {where} is of type {kind}; {allowed} are needed.")
    array = values.to_numpy()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int((~np.isfinite(array)).argmax())
        raise DataError(f"{name}, row {row}: {where} is {array[row]}; remove or impute it first.")
    return array


# --------------------------------------------------------------------------------------------------------- labels


def two_classes(y: Any, positive: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Labels of two classes as signs.

    Args:
        y: Labels `(n,)`: integers, floats, booleans or strings.
        positive: The label that becomes +1, against all others; None for two classes in sorted order. A string that
            spells a number is that number where the labels are numbers (a command line has strings only).

    Returns:
        Signs `(n,)`, float64 in {-1, +1} (problems take them in the dtype of the points), and the classes `(2,)`:
        `classes[0]` is -1 and `classes[1]` is +1. Where `positive` stands against several others, the classes are the
        strings `"not 8"` and `"8"`.

    Raises:
        InputError: On labels that are missing, of one class only, of more than two without `positive`, or under tracing.
    """
    if not is_concrete(y):
        raise InputError("y is being traced: which classes there are is not known yet; call `two_classes` outside jit.")
    labels = np.asarray(y)
    if labels.ndim != 1 or not len(labels):
        raise InputError(f"y has shape {labels.shape}: one label a sample is needed, shape (n,) with n >= 1.")
    _refuse_missing_labels(labels)
    try:
        present, codes = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InputError(
            f"y mixes labels that have no order ({error}): use one type, all strings for example."
        ) from error
    shown = ", ".join(map(str, present[:6].tolist())) + (", ..." if len(present) > 6 else "")
    if len(present) < 2:
        raise InputError(f"y holds one class only, {shown}: two are needed to separate them.")
    if positive is None:
        if len(present) > 2:
            raise InputError(
                f"y holds {len(present)} classes ({shown}): two are needed; choose one against the rest, "
                f"positive={present[-1].item() if isinstance(present[-1], np.generic) else present[-1]!r} for example."
            )
        return np.where(codes == 1, 1.0, -1.0), present
    index = _index_of(positive, present)
    if index is None:
        raise InputError(f"positive is {positive!r}: y has no such label; it has {shown}.")
    signs = np.where(codes == index, 1.0, -1.0)
    if len(present) == 2:
        return signs, present[[1 - index, index]]
    return signs, np.asarray([f"not {present[index]}", f"{present[index]}"])


def _refuse_missing_labels(labels: np.ndarray) -> None:
    if labels.dtype.kind == "O":
        missing = np.asarray([label is None or label != label for label in labels.tolist()])  # NaN differs from itself
    elif labels.dtype.kind in "fc":
        missing = ~np.isfinite(labels)
    elif labels.dtype.kind in "biuUST":
        return
    else:
        raise InputError(f"y is of type {labels.dtype}: numbers, booleans or strings are needed.")
    if missing.any():
        raise InputError(
            f"y has {int(missing.sum())} label(s) that are missing or not finite, the first at index "
            f"{int(missing.argmax())}: remove those samples."
        )


def _index_of(positive: Any, present: np.ndarray) -> int | None:
    labels = present.tolist()
    if positive in labels:
        return labels.index(positive)
    if isinstance(positive, str):
        texts = [str(label) for label in labels]
        if positive in texts:
            return texts.index(positive)
        number = _number(positive) if present.dtype.kind in "iuf" else None
        return labels.index(number) if number in labels else None
    texts = [str(positive)] if present.dtype.kind in "UO" else []
    return next((labels.index(text) for text in texts if text in labels), None)


# -------------------------------------------------------------------------------------------------------- scaling


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """`(x - offset) * factor`, column by column: learnt from the training points, done to all later ones. A pytree.

    Sparse points (SciPy or `jaxsvm` CSR) are scaled and never shifted, since a shift would fill them: the constructors
    give them an offset of zero.

    Attributes:
        offset: `(d,)`.
        factor: `(d,)`; 1 for a constant column.
    """

    offset: Float[Array, " d"]
    factor: Float[Array, " d"]

    @classmethod
    def standardise(cls, x: Any) -> "Scaling":
        """Mean 0 and standard deviation 1 (over n); sparse columns keep their mean.

        Args:
            x: Points `(n, d)`: anything array-like, or CSR. NumPy and sparse points are summed in float64.

        Raises:
            InputError: On points that are not `(n, d)` or not finite.
        """
        x = _points(x)
        if _is_sparse(x):
            mean, _, _ = _sparse_moments(x)
            _, variance, constant = _sparse_moments(x)
            return cls(*_offset_and_factor(np.zeros_like(mean), np.sqrt(variance), constant, x.dtype))
        xp, accumulator = _namespace(x)
        mean = xp.mean(x, axis=0, dtype=accumulator)
        deviation = xp.std(x, axis=0, dtype=accumulator)
        return cls(*_offset_and_factor(mean, deviation, xp.max(x, axis=0) == xp.min(x, axis=0), x.dtype))

    @classmethod
    def min_max(cls, x: Any) -> "Scaling":
        """Columns to [0, 1]; sparse columns are divided by their largest absolute value, which gives [-1, 1].

        Args:
            x: Points `(n, d)`: anything array-like, or CSR.

        Raises:
            InputError: On points that are not `(n, d)` or not finite.
        """
        x = _points(x)
        if _is_sparse(x):
            largest = np.zeros(x.shape[1])
            np.maximum.at(largest, np.asarray(x.indices), np.abs(np.asarray(x.data, float)))
            return cls(*_offset_and_factor(np.zeros_like(largest), largest, largest == 0, x.dtype))
        xp, _ = _namespace(x)
        low, high = xp.min(x, axis=0), xp.max(x, axis=0)
        return cls(*_offset_and_factor(low, high - low, high == low, x.dtype))

    def __call__(self, x: Any) -> Any:
        """Scale points `(m, d)`; NumPy and SciPy in, the same out; may be traced for dense `x`.

        Raises:
            InputError: On another number of columns, or sparse points where the offset is not zero.
        """
        x = _points(x, check=False)
        d = self.offset.shape[0]
        if x.shape[1] != d:
            raise InputError(
                f"x has {x.shape[1]} columns: {d} are needed, as in the points that the scaling was made from."
            )
        offset, factor = self.offset.astype(x.dtype), self.factor.astype(x.dtype)
        if not _is_sparse(x):
            if isinstance(x, np.ndarray) and is_concrete(offset, factor):
                offset, factor = np.asarray(offset), np.asarray(factor)
            return (x - offset) * factor
        if is_concrete(self.offset) and np.asarray(self.offset).any():
            raise InputError(
                "x is sparse and the scaling shifts its columns, which would fill it: make the scaling from sparse points, "
                "or pass dense ones."
            )
        if dataclasses.is_dataclass(x):  # jaxsvm's CSR, a pytree
            return dataclasses.replace(x, data=x.data * factor[x.indices])  # pyright: ignore
        scaled = x.copy()
        scaled.data *= np.asarray(factor)[x.indices]
        return scaled


def _is_sparse(x: Any) -> bool:
    return hasattr(x, "indptr")


def _namespace(x: Any) -> tuple[Any, Any]:
    """Where to compute, and in what: NumPy sums down columns one by one, so float32 would lose digits."""
    return (jnp, x.dtype) if isinstance(x, jax.Array) else (np, np.float64)


def _points(x: Any, check: bool = True) -> Any:
    """Points as they came, but floating and `(n, d)`."""
    if not (_is_sparse(x) or isinstance(x, jax.Array)):
        x = x.tocsr() if hasattr(x, "tocsr") else np.asarray(x)
    if len(x.shape) != 2 or (check and 0 in x.shape):
        raise InputError(f"x has shape {x.shape}: points (n, d) are needed.")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        if x.dtype.kind not in "biu":
            raise InputError(f"x is of type {x.dtype}: numbers are needed.")
        x = x.astype(np.result_type(x.dtype, np.float32))
    if check:
        require_finite("x", x.data if _is_sparse(x) else x)
    return x


def _sparse_moments(x: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, variance and whether it is constant, of every column; the zeros that are not stored count too."""
    n, d = x.shape
    indices, data = np.asarray(x.indices), np.asarray(x.data, float)
    mean = np.bincount(indices, data, d) / n
    stored = np.bincount(indices, minlength=d)
    variance = (np.bincount(indices, (data - mean[indices]) ** 2, d) + (n - stored) * mean**2) / n
    low, high = np.where(stored < n, 0.0, np.inf), np.where(stored < n, 0.0, -np.inf)
    np.minimum.at(low, indices, data)
    np.maximum.at(high, indices, data)
    return mean, variance, low == high


def _offset_and_factor(offset: Any, spread: Any, constant: Any, dtype: Any) -> tuple[Array, Array]:
    """Offset and 1 / spread in JAX's dtype for `dtype`; 1 where there is no spread, or none that can be inverted."""
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    offset, spread = jnp.asarray(offset, dtype), jnp.asarray(spread, dtype)
    usable = ~jnp.asarray(constant) & (spread > jnp.finfo(dtype).tiny)
    return offset, jnp.where(usable, 1 / jnp.where(usable, spread, 1), 1)


# -------------------------------------------------------------------------------------------------------- points


def two_gaussians(
    key: Array, n: int, d: int, *, separation: float = 3.0, dtype: Any = float
) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """Two round Gaussian clouds, in random order: the smallest problem with a known answer.

    Args:
        key: A JAX random key.
        n: Number of points, at least 2; `n // 2` of them are negative.
        d: Number of columns.
        separation: Distance between the means, in standard deviations; they lie on the diagonal, opposite each other
            about the origin. The best possible error is `Phi(-separation / 2)`: 6.7 % at 3.
        dtype: Floating dtype; by default JAX's own.

    Returns:
        Points `(n, d)` and signs `(n,)`.

    Raises:
        InputError: On `n < 2` or `d < 1`.
    """
    if n < 2 or d < 1:
        raise InputError(f"n is {n} and d is {d}: n >= 2 and d >= 1 are needed.")
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    order, noise = jax.random.split(key)
    y = jax.random.permutation(order, jnp.where(jnp.arange(n) < n // 2, -1, 1)).astype(dtype)
    centre = jnp.asarray(separation, dtype) / (2 * math.sqrt(d))
    return y[:, None] * centre + jax.random.normal(noise, (n, d), dtype), y
