"""Readers of text: svmlight and CSV, fast first, and line by line where something is wrong."""

import csv
import io
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxsvm.datasets.layout import Layout, Read, Wanted
from jaxsvm.datasets.refusal import as_number, decoded, label_column, label_hint, need, refuse_line, shown
from jaxsvm.errors import DataError

BOM = b"\xef\xbb\xbf"  # what some editors write first
MISSING = ("", "?", "na", "n/a", "nan", "null", "none")  # what files write for nothing, in lower case
MAX_INDEX = 2**31 - 1  # columns are int32 everywhere


def read_svmlight(name: str, content: bytes, wanted: Wanted, base: int | None) -> Read:
    """Points as a SciPy CSR array, and labels, which `label=False` drops.

    Args:
        name: The file's name.
        content: The file.
        wanted: What is asked for.
        base: What indices count from, 0 or 1; None: as in the training file, or 0 where the index 0 occurs and else 1.

    Raises:
        DataError: Where a line is not `label index:value ...`, or where indices count from elsewhere than those of the
            training file.
    """
    reader = need("sklearn.datasets", "scikit-learn", "svmlight")
    sparse = need("scipy.sparse", "scipy", "svmlight")
    content = content.removeprefix(BOM)
    if not any(line.split(b"#")[0].strip() for line in io.BytesIO(content)):
        raise DataError(f"{name}: the file holds comments only: it has no samples.")
    try:
        x, y = reader.load_svmlight_file(io.BytesIO(content), zero_based=True)[:2]
        lowest = int(x.indices.min()) if x.nnz else None
        base, notes = _index_base(name, lowest, base, wanted.like.index_base)
        d = max(x.shape[1] - base, 0)
        if not (np.isfinite(x.data).all() and np.isfinite(y).all()) or d > min(wanted.features or d, MAX_INDEX):
            raise ValueError("values that are not finite, or an index that is too large")
    except (ValueError, OverflowError) as error:
        if isinstance(error, DataError):
            raise
        _locate_svmlight(name, content, wanted.features, base)
        raise DataError(f"{name}: not a svmlight file: {error}.") from error
    if x.nnz == 0 and wanted.features is None:
        raise DataError(f"{name}: no line has a feature; svmlight lines look like '+1 3:0.5 7:1'.")
    x = sparse.csr_array((x.data, x.indices - base, x.indptr), shape=(x.shape[0], wanted.features or d))
    x.eliminate_zeros()
    y = None if wanted.label is False else y.astype(np.int64) if (y == np.rint(y)).all() and abs(y).max() < 2**53 else y
    return Read(x, y, Layout(index_base=base), notes)


def _index_base(name: str, lowest: int | None, base: int | None, training: int | None) -> tuple[int, tuple[str, ...]]:
    """What the indices count from, and what is to be said of it."""
    if base == 1 and lowest == 0:
        raise DataError(
            f"{name}: the index 0 occurs, so its indices count from 0: leave zero_based=False (--index-base 1) out."
        )
    if base is not None:
        return base, ()
    if training == 1 and lowest == 0:
        raise DataError(
            f"{name}: its indices count from 0 (the index 0 occurs), those of the training file were taken to count "
            "from 1. If so, say zero_based=True (--index-base 0) here; if both count from 0, fit again with it."
        )
    if training is None:
        return (0 if lowest == 0 else 1), ()
    guessed = training == 0 and lowest not in (0, None)
    note = "indices are taken to count from 0, as in the training file, though no index is 0 here (--index-base 1 else)"
    return training, (note,) if guessed else ()


def _locate_svmlight(name: str, content: bytes, features: int | None, base: int | None) -> None:
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
    base = (smallest > 0) if base is None else base  # an index 0 anywhere makes the file count from 0
    if features is not None and largest + 1 - base > features:
        found = f"the feature index is {largest}" + ("" if base else ", and indices count from 0")
        refuse_line(name, where, found, f"features={features} was given, raise it or drop it")


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


def read_csv(name: str, content: bytes, wanted: Wanted, header: bool | None) -> Read:
    """Dense points, labels, and the names of the columns where the file has a header.

    Raises:
        DataError: Where a line has too few or too many fields, a field is missing or no number, a quotation mark stands
            where it must not, or the columns are not those of the training file.
    """
    text = decoded(name, content, "a text file of numbers and separators")
    first_line = next((line for line in io.StringIO(text) if line.strip()), "")
    delimiter = max(",;\t", key=first_line.count)
    _refuse_stray_quotes(name, text, delimiter)
    line, first = next(_csv_rows(name, text, delimiter), (1, []))
    named = _has_header(name, line, first, wanted.place(len(first))) if header is None else header
    titles = first if named else None
    place = wanted.label_in(name, titles, len(first))
    head = _Head(delimiter, line if named else 0, len(first), titles, 16 * len(first_line), place is None)
    column = label_column(name, titles, len(first), place)
    if named and "" in first:
        expected = "name it, or leave it out if it is the index that pandas writes (to_csv(index=False))"
        refuse_line(name, line, f"column {first.index('')} of the header has no name", expected)
    names = tuple(field for i, field in enumerate(first) if i != column) if named else None
    order = wanted.order(name, names)
    x, labels = _csv_values(name, content, text, head, column)
    if not len(x):
        raise DataError(f"{name}: there is no line below the header: it has no samples.")
    key = None if column is None else first[column] if named else column
    notes = wanted.notes(key, column == len(first) - 1, order is not None)
    if order is not None:
        x, names = x[:, order], wanted.like.columns
    return Read(x, None if column is None else _typed_labels(labels), Layout(names, key), notes)


class _Head(NamedTuple):
    """What the first line tells."""

    delimiter: str
    skipped: int  # lines, the header's among them
    width: int
    names: list[str] | None
    block: int  # bytes that hold a line for sure
    unsaid: bool  # whether the labels are in the last column because nobody said where


def _csv_values(name: str, content: bytes, text: str, head: _Head, column: int | None) -> tuple[np.ndarray, list[str]]:
    """Features and labels: by the fast reader, or by the slow one where that refuses."""
    pa_csv = need("pyarrow.csv", "pyarrow", "CSV")
    pa = need("pyarrow", "pyarrow", "CSV")
    keys = [str(i) for i in range(head.width)]  # our own: a file may name two columns alike
    try:
        table = pa_csv.read_csv(
            io.BytesIO(content.removeprefix(BOM)),
            read_options=pa_csv.ReadOptions(
                column_names=keys, skip_rows=head.skipped, block_size=max(1 << 20, head.block)
            ),
            parse_options=pa_csv.ParseOptions(delimiter=head.delimiter),
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
        return _read_csv_slowly(name, text, head, column)
    return x, labels


def _refuse_stray_quotes(name: str, text: str, delimiter: str) -> None:
    """A mark left open swallows the lines up to the next one: fields are quoted whole, in one line, or not at all."""
    if '"' not in text:
        return
    field = f'(?:"[^"]*(?:""[^"]*)*" *|[^"{delimiter}]*)'
    sound = re.compile(f"{field}(?:{delimiter}{field})*")
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        content = line.rstrip("\n")
        if '"' in content and not sound.fullmatch(content):
            stray = content[max(0, content.index('"') - 10) :]
            expected = 'a quotation mark opens a field and closes it in the same line, as in "small, cat"'
            refuse_line(name, number, f"a stray quotation mark in {shown(stray)}", expected)


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
    column = None if label is False else (len(first) - 1 if label is None else int(label)) % max(len(first), 1)
    if all(as_number(field) is None for field in first):
        return True
    features = [field for i, field in enumerate(first) if i != column]
    words = [field for field in features if as_number(field) is None and field.lower() not in MISSING]
    if words:
        expected = "say header=True if the line names the columns"
        refuse_line(name, line, f"the field {shown(words[0])} is no number, and others are", expected)
    return False


def _read_csv_slowly(name: str, text: str, head: _Head, column: int | None) -> tuple[np.ndarray, list[str]]:
    """What the fast reader refused: numbers that only it cannot read, or the error that says where."""
    names = head.names
    rows = _csv_rows(name, text, head.delimiter)
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
                more = sum(_lacks(row, column) for _, row in rows)
                others = f", and {more} more line(s) lack a value" if more else ""
                refuse_line(
                    name, line, f"{where} is missing ({shown(field)}){others}", "remove or impute it first", cut=cut
                )
            hint = ""
            if head.unsaid and number is None and column is not None:
                hint = label_hint(*((at, column) if names is None else (names[at], names[column])))
            refuse_line(name, line, f"{where} is {shown(field)}", f"a finite number is needed{hint}", cut=cut)
        values.append([number for number in numbers if number is not None])
    return np.asarray(values, float).reshape(len(values), -1), labels


def _lacks(fields: list[str], column: int | None) -> bool:
    """Whether a line lacks a value of a feature."""
    return any(field.lower() in MISSING for at, field in enumerate(fields) if at != column)


def _typed_labels(labels: list[str]) -> np.ndarray:
    """Integers if all labels are, else floats, else the strings."""
    array = np.asarray(labels)
    if all(re.fullmatch(r"[+-]?[0-9]{1,15}", label) for label in np.unique(array).tolist()):
        return array.astype(np.int64)
    if all(as_number(label) is not None for label in np.unique(array).tolist()):
        return array.astype(np.float64)
    return array
