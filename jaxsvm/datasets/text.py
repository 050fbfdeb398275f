"""Readers of text: svmlight and CSV, fast first, and line by line where something is wrong."""

import csv
import io
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxsvm.datasets.refusal import as_number, decoded, label_column, need, refuse_line, shown
from jaxsvm.errors import DataError

BOM = b"\xef\xbb\xbf"  # what some editors write first
MISSING = ("", "?", "na", "n/a", "nan", "null", "none")  # what files write for nothing, in lower case
MAX_INDEX = 2**31 - 1  # columns are int32 everywhere


def read_svmlight(name: str, content: bytes, features: int | None) -> tuple[Any, np.ndarray, None]:
    """Points as a SciPy CSR array, labels, and no names.

    Raises:
        DataError: Where a line is not `label index:value ...`.
    """
    reader = need("sklearn.datasets", "scikit-learn", "svmlight")
    sparse = need("scipy.sparse", "scipy", "svmlight")
    content = content.removeprefix(BOM)
    if not any(line.split(b"#")[0].strip() for line in io.BytesIO(content)):
        raise DataError(f"{name}: the file holds comments only: it has no samples.")
    try:
        x, y = reader.load_svmlight_file(io.BytesIO(content), n_features=features)[:2]
        if not (np.isfinite(x.data).all() and np.isfinite(y).all()) or x.shape[1] > MAX_INDEX:
            raise ValueError("values that are not finite, or an index that is too large")
    except (ValueError, OverflowError) as error:
        _locate_svmlight(name, content, features)
        raise DataError(f"{name}: not a svmlight file: {error}.") from error
    if x.nnz == 0 and features is None:
        raise DataError(f"{name}: no line has a feature; svmlight lines look like '+1 3:0.5 7:1'.")
    x = sparse.csr_array(x)
    x.eliminate_zeros()
    return x, (y.astype(np.int64) if (y == np.rint(y)).all() and np.abs(y).max() < 2**53 else y), None


def _locate_svmlight(name: str, content: bytes, features: int | None) -> None:
    """Raise for the first line that is no svmlight; return where there is none."""
    text = decoded(name, content, "a text file of lines such as '+1 3:0.5 7:1'")
    lines = text.split("\n")
    largest, where, smallest = -1, 0, MAX_INDEX
    for number, line in enumerate(lines, 1):
        cut = number == len(lines) and bool(line)
        tokens = line.split("#", 1)[0].split()
        if not tokens:
            continue
        label = as_number(tokens[0])
        if label is None or not math.isfinite(label):
            expected = "a svmlight line starts with its label, a finite number, as in '+1 3:0.5 7:1'"
            refuse_line(name, number, f"the label is {shown(tokens[0])}", expected, cut=cut)
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
        refuse_line(
            name, where, f"the feature index is {largest}", f"features={features} was given, raise it or drop it"
        )


def _check_feature(name: str, line: int, token: str, last: int, cut: bool) -> int:
    match = re.fullmatch(r"([^:]*):([^:]*)", token)
    if match is None:
        refuse_line(name, line, f"found {shown(token)}", "a feature is written index:value, as in 3:0.5", cut=cut)
    index, value = match.groups()
    if not re.fullmatch(r"\+?[0-9]+", index):
        refuse_line(name, line, f"the index of {shown(token)} is no whole number >= 0", "write 3:0.5", cut=cut)
    if int(index) > MAX_INDEX:
        refuse_line(name, line, f"the feature index is {index}", f"indices go to {MAX_INDEX}")
    if int(index) <= last:
        expected = "the indices of a line ascend and occur once"
        refuse_line(name, line, f"feature index {int(index)} follows {last}", expected, cut=cut)
    number = as_number(value)
    if number is None:
        refuse_line(name, line, f"the value of {shown(token)} is no number", "write index:value, as in 3:0.5", cut=cut)
    if not math.isfinite(number):
        refuse_line(name, line, f"the value of {shown(token)} is not finite", "remove or impute it first")
    return int(index)


def read_csv(
    name: str, content: bytes, label: str | int | None, header: bool | None, bare: int | None
) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...] | None]:
    """Dense points, labels, and the names of the columns where the file has a header.

    There are no labels where `label` is False, or where there are just `bare` columns.

    Raises:
        DataError: Where a line has too few or too many fields, or a field is missing or no number.
    """
    pa_csv = need("pyarrow.csv", "pyarrow", "CSV")
    pa = need("pyarrow", "pyarrow", "CSV")
    text = decoded(name, content, "a text file of numbers and separators")
    first_line = next((line for line in io.StringIO(text) if line.strip()), "")
    delimiter = max(",;\t", key=first_line.count)
    line, first = next(_csv_rows(name, text, delimiter), (1, []))
    label = False if first and len(first) == bare else label
    named = _has_header(name, line, first, label) if header is None else header
    column = label_column(name, first if named else None, len(first), label)
    if named and "" in first:
        expected = "name it, or leave it out if it is the index that pandas writes (to_csv(index=False))"
        refuse_line(name, line, f"column {first.index('')} of the header has no name", expected)
    names = tuple(field for i, field in enumerate(first) if i != column) if named else None
    keys = [str(i) for i in range(len(first))]  # our own: a file may name two columns alike
    try:
        table = pa_csv.read_csv(
            io.BytesIO(content.removeprefix(BOM)),
            read_options=pa_csv.ReadOptions(
                column_names=keys, skip_rows=line if named else 0, block_size=max(1 << 20, 16 * len(first_line))
            ),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter),
            convert_options=pa_csv.ConvertOptions(
                column_types={key: pa.string() if i == column else pa.float64() for i, key in enumerate(keys)},
                null_values=[""],
            ),
        )
        features = [key for i, key in enumerate(keys) if i != column]
        x = np.empty((table.num_rows, len(features)))
        for j, key in enumerate(features):
            x[:, j] = table.column(key).to_numpy()
        labels = [] if column is None else [value.strip() for value in table.column(column).to_pylist()]
        if not np.isfinite(x).all() or {"", "nan"} & {label.lower() for label in set(labels)}:
            raise ValueError("missing values")  # the slow reader says where
    except (pa.ArrowInvalid, ValueError):
        x, labels = _read_csv_slowly(name, text, delimiter, column, first if named else None)
    if not len(x):
        raise DataError(f"{name}: there is no line below the header: it has no samples.")
    return x, None if column is None else _typed_labels(labels), names


def _csv_rows(name: str, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Line number (of a row's end) and stripped fields of every row that is not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        for row in reader:
            fields = [field.strip() for field in row]
            if any(fields) or len(fields) > 1:
                yield reader.line_num, fields
    except csv.Error as error:
        raise DataError(f"{name}, line {reader.line_num}: {error}; is a quotation mark left open?") from error


def _has_header(name: str, line: int, first: list[str], label: str | int | None) -> bool:
    if isinstance(label, str):
        return True
    column = None if label is False else (len(first) - 1 if label is None else label) % max(len(first), 1)
    if all(as_number(field) is None for field in first):
        return True
    features = [field for i, field in enumerate(first) if i != column]
    words = [field for field in features if as_number(field) is None and field.lower() not in MISSING]
    if words:
        expected = "say header=True if the line names the columns"
        refuse_line(name, line, f"the field {shown(words[0])} is no number, and others are", expected)
    return False


def _read_csv_slowly(
    name: str, text: str, delimiter: str, column: int | None, names: list[str] | None
) -> tuple[np.ndarray, list[str]]:
    """What the fast reader refused: numbers that only it cannot read, or the error that says where."""
    rows = _csv_rows(name, text, delimiter)
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
            refuse_line(name, line, f"found {len(fields)} fields", f"{width} are needed, as in the first line", cut=cut)
        if column is not None:
            labels.append(fields.pop(column))
            if labels[-1].lower() in ("", "nan"):
                found = f"the label (column {column}) is missing"
                refuse_line(name, line, found, "remove the line or fill it in", cut=cut)
        numbers = [as_number(field) for field in fields]
        for j, (number, field) in enumerate(zip(numbers, fields, strict=True)):
            if number is not None and math.isfinite(number):
                continue
            at = j + (column is not None and j >= column)
            where = f"column {at}" + (f" ({names[at]})" if names is not None else "")
            if field.lower() in MISSING:
                refuse_line(name, line, f"{where} is missing ({shown(field)})", "remove or impute it first", cut=cut)
            refuse_line(name, line, f"{where} is {shown(field)}", "a finite number is needed", cut=cut)
        values.append([number for number in numbers if number is not None])
    return np.asarray(values, float).reshape(len(values), -1), labels


def _typed_labels(labels: list[str]) -> np.ndarray:
    """Integers if all labels are, else floats, else the strings."""
    array = np.asarray(labels)
    if all(re.fullmatch(r"[+-]?[0-9]{1,15}", label) for label in np.unique(array).tolist()):
        return array.astype(np.int64)
    if all(as_number(label) is not None for label in np.unique(array).tolist()):
        return array.astype(np.float64)
    return array
