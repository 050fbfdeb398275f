"""Read tables with pyarrow: CSV, Parquet and Feather files, and data frames.

pyarrow finds the type of each column of CSV too; what it says of a broken file is passed on with the file's name. Of
columns that are no numbers only the labels are taken.
"""

import csv
import dataclasses
import decimal
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxsvm.datasets.labels import (
    EXACT,
    MISSING,
    WHOLE,
    Texts,
    as_number,
    coded,
    fault_of_label,
    fault_of_text,
    has_decimal_comma,
    is_missing,
    rounded,
    rounds,
    shown,
)
from jaxsvm.datasets.layout import Faults, Piece, Wanted, choose
from jaxsvm.datasets.text import Lines, opened, told
from jaxsvm.errors import DataError, require_package

FILL = 'fill it in (impute="mean", --impute mean), or leave the row or the column (drop=, --drop) out'
ENCODE = "a number is needed: encode text (one_hot=True, --one-hot), or leave the column out (drop=, --drop)"
NUMBERS = "numbers are needed: leave the column out (drop=, --drop)"
REMOVE = "remove the row or fill it in"


class Table:
    """The columns of a table.

    Attributes:
        name: The file.
        titles: The names of its columns, or None.
        features: The places of the feature columns, in order.
        label: The place of the labels, or None.
        dropped: The columns that are left out, by name or place.
        layout: The names of the feature columns and the place of the labels.
        notes: What was decided about the columns.
    """

    spells = False  # whether numbers are text too
    decimal = "."

    def __init__(self, name: str, titles: list[str] | None, width: int, wanted: Wanted, notes: tuple[str, ...]) -> None:
        """Find the columns; refuse others than in training."""
        self.name, self.titles, self.width = name, titles, width
        columns = choose(name, titles, width, wanted)
        self.features, self.label, self.dropped = columns.features, columns.label, columns.dropped
        self.layout, self.notes = columns.layout, (*notes, *columns.notes)
        self._guessed = wanted.label is None and wanted.like == Wanted.like and self.label is not None
        used = [*self.features, *([] if self.label is None else [self.label])]
        nameless = [place for place in used if titles is not None and titles[place] == ""]
        if nameless:
            advice = f"name it, or leave it out (--drop {nameless[0]}) if lines end in a separator too many"
            raise DataError(f"{name}: column {nameless[0]} of the header has no name: {advice}.")

    def title(self, place: int) -> str:
        """Return a column's name, or else its place, for messages."""
        return str(place) if self.titles is None else repr(self.titles[place])

    def parts(self, arrays: list[Any]) -> tuple[np.ndarray, Any, Faults]:
        """Return points and labels of some rows, and what is wrong with rows; refuse columns of other types.

        Raises:
            ValueError: If a column is not numeric, or labels cannot be told apart.
        """
        faults, columns = Faults(), []
        label = None if self.label is None else self.labels(arrays[self.label], faults)
        for place in self.features:
            column = arrays[place]
            self.require(column, place)
            values = floats_of(column)
            wrong = ~np.isfinite(values)
            faults.note(wrong, lambda row, column=column, place=place: self.fault(column[row].as_py(), place))
            columns.append(values)
        return np.stack(columns, axis=1), label, faults

    def require(self, column: Any, place: int) -> None:
        """Raise ValueError unless a column holds numbers, truth values or nothing."""
        if is_numeric(column.type):
            return
        if is_text(column.type):
            texts = [text for text in texts_of(column).values if not is_missing(text)]
            wrong = [text for text in texts if as_number(text) is None or self.decimal != "." and "." in text]
            raise ValueError(self.fault((wrong or texts or [None])[0], place))
        kind = "no UTF-8 text" if str(column.type) == "binary" else f"of type {column.type}"
        raise ValueError(f"column {self.title(place)} is {kind}; {NUMBERS}")

    def fault(self, value: Any, place: int) -> str:
        """Describe what is wrong with a value of a feature, and what to do."""
        where, text = f"column {self.title(place)} is", str(value).strip()
        if value is None or is_missing(text):
            return f"{where} missing; {FILL}"
        if isinstance(value, int | decimal.Decimal):
            advice = "an identifier is no feature: leave it out (drop=, --drop)"
            return f"{where} {value}, a whole number that float64 does not hold; {advice}"
        if not isinstance(value, str):
            return f"{where} {value}; a finite number is needed"
        if has_decimal_comma(text):
            return f'{where} {shown(text)}; a number with a decimal comma needs decimal="," (--decimal ,)'
        if as_number(text) is not None and self.spells:
            return f"{where} {shown(text)}; its decimal mark is not {self.decimal!r} (decimal=, --decimal)"
        hint = ""
        if self._guessed and self.label is not None:
            name, last = (place if self.titles is None else self.titles[place]), self.title(self.label)
            hint = f"; if it holds the labels, say so (label={name!r}, --label {name}): they were looked for in the "
            hint += f"last column, {last}"
        return f"{where} {shown(text)}; {ENCODE}{hint}"

    def labels(self, column: Any, faults: Faults) -> Any:
        """Return labels as they are: an array, or `Texts` of what may be numbers."""
        kind, where = str(column.type), f"the label (column {self.title(self.label or 0)})"
        decimal = kind.startswith("decimal")
        if is_numeric(column.type) and not decimal:
            missing = flat(column.is_null())
            array = np.zeros(len(column)) if kind == "null" else flat(column)
            faults.note(missing, lambda row: f"{where} is missing; {REMOVE}")
            if array.dtype.kind == "f":
                faults.note(~np.isfinite(array), lambda row: f"{where} is {array[row]}; {REMOVE}")
            return array
        if not (decimal or is_text(column.type)):
            raise ValueError(f"{where} is of type {kind}; numbers, booleans or text are needed")
        label = texts_of(column)
        if self.decimal == ",":
            written = [text.replace(",", ".") if has_decimal_comma(text) else text for text in label.values]
            label = Texts(written, label.codes)
        found = [(fault_of_label if self.spells or decimal else fault_of_text)(text) for text in label.values]
        wrong = np.asarray([fault is not None for fault in found], bool)[label.codes]
        faults.note(wrong, lambda row: f"{where} {found[label.codes[row]]}; {REMOVE}")
        return label if self.spells or decimal else np.asarray(label.values, dtype=str)[label.codes]


class Typed(Table):
    """A Parquet or Feather file, or a frame; the index that pandas writes as a column is left out."""

    def __init__(self, name: str, kind: str, wanted: Wanted, frame: Any = None) -> None:
        """Read the schema."""
        arrow = require_package("pyarrow", "reading tables")
        with told(name):
            if frame is None:
                sets = require_package("pyarrow.dataset", "reading tables")
                of_file: Any = kind
                if kind == "parquet":  # else a file of 200 MB takes 600 MiB
                    options = sets.ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)
                    of_file = sets.ParquetFileFormat(default_fragment_scan_options=options)
                self._source = sets.dataset(name, format=of_file)
            else:
                self._source = arrow.table(frame)
            schema = self._source.schema
            written = (schema.pandas_metadata or {}).get("index_columns", [])
        index = tuple(key for key in written if key in schema.names and key not in wanted.named)
        named = ", ".join(repr(key) for key in index if not key.startswith("__index_level_"))
        notes = (f"the index that pandas wrote as a column is left out{named and f' ({named})'}",) if index else ()
        wanted = dataclasses.replace(wanted, absent=(*wanted.absent, *index))
        super().__init__(name, list(map(str, schema.names)), len(schema.names), wanted, notes)

    def pieces(self, step: int | None = None) -> Iterator[Piece]:
        """Yield all rows, `step` a piece."""
        first = 0
        for batch in self._batches(step):
            if len(batch):
                yield self._piece(batch, first)
            first += len(batch)

    def _piece(self, batch: Any, first: int) -> Piece:
        try:
            x, label, faults = self.parts(decoded(batch.columns))
        except ValueError as error:
            raise DataError(f"{self.name}: {error}.") from None
        return faults.piece(x, label, lambda row: self.where(first + row))

    def where(self, row: int) -> str:
        """Name the place of a row."""
        return f"{self.name}, row {row} (from 0)"

    def _batches(self, step: int | None) -> Iterator[Any]:
        with told(self.name):
            if hasattr(self._source, "to_reader"):  # a frame
                yield from self._source.to_batches(step)
            else:
                yield from self._source.to_batches(**{} if step is None else {"batch_size": step, "batch_readahead": 1})

    def whole(self) -> list[Any]:
        """Return all columns, of Arrow, with the values of coded ones."""
        with told(self.name):
            source = self._source
            return decoded((source if hasattr(source, "to_reader") else source.to_table()).columns)


class Delimited(Table, Lines):
    """A CSV file; its first lines determine the separator, the names and the column of the labels."""

    spells = True

    def __init__(
        self, name: str, wanted: Wanted, header: bool | None = None, separator: str | None = None, decimal: str = "."
    ) -> None:
        """Read the first lines.

        Args:
            name: The file.
            wanted: The place of the labels, and the training file's columns.
            header: Whether the first line holds names; None: see `names_columns`.
            separator: What stands between the fields; None: a tab, a semicolon or a comma, whichever the first has.
            decimal: The decimal mark.
        """
        Lines.__init__(self, name)
        with opened(name) as file:
            text = io.TextIOWrapper(file, "utf-8-sig", errors="replace")
            lines = [(number, line) for number, line in zip(range(1, 1000), text, strict=False) if line.strip()][:16]
        head = [line for _, line in lines]
        bare = "".join(head[0].split('"')[::2])
        self.separator, self.decimal = separator or next((mark for mark in "\t;," if mark in bare), ","), decimal
        with told(name):
            rows = [list(map(str.strip, row)) for row in csv.reader(head, delimiter=self.separator)]
        first, below = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
        of_rows = header is not False and not any(map(_is_number, first)) and len(rows) > 1
        of_rows = of_rows and all(len(row) == len(first) + 1 and row[-1] for row in rows[1:])  # R's write.table
        named = header if header is not None else of_rows or names_columns([first, *below], wanted.named)
        if named is None:
            word = shown(next(field for field in first if not _is_number(field)))
            advice = "if the line names the columns, say so (header=True, --label NAME), if not, header=False"
            raise DataError(f"{name}, line {lines[0][0]}: {word} is no number, and other fields are; {advice}.")
        self.skip = lines[0][0] - (not named)
        titles, notes = [""] * of_rows + first if named else None, ()
        numbers = [title for title in first if named and header is None and _is_number(title)]
        if numbers and not wanted.named & set(first):
            listed = ", ".join(numbers[:3]) + (" and more" if len(numbers) > 3 else "")
            notes = (f"the first line is taken for the names of the columns, though it has numbers, {listed}",)
        if titles and titles[0] == "" and len(titles) > 2:
            notes += ("the first column has no name: it is left out as the names of the rows",)
            wanted = dataclasses.replace(wanted, absent=(*wanted.absent, 0))
        if any("\ufffd" in title for title in titles or ()):
            raise DataError(f"{name}, line {lines[0][0]}: no UTF-8 text; save the file as UTF-8 (iconv -t UTF-8).")
        self._texts = wanted.texts
        super().__init__(name, titles, len(first) + of_rows, wanted, notes)

    def parse(self, block: bytes, line: int) -> Piece:
        if not block:
            return Piece(np.zeros((0, len(self.features))), None if self.label is None else coded([]), [])
        x, label, faults = self.parts(self._arrays(block))
        lines = [number for number, text in enumerate(block.splitlines(), line) if text.strip()] if faults else []
        return faults.piece(x.astype(float), label, lambda row: f"{self.name}, line {lines[row]}")

    def _arrays(self, block: bytes, doubtful: Sequence[int] = ()) -> list[Any]:
        arrow, reader = (require_package(f"pyarrow{end}", "reading CSV files") for end in ("", ".csv"))
        names = [str(place) for place in range(self.width)]  # a file may name two columns alike
        places = [at for at in range(self.width) if at == self.label or self._key(at) in self._texts]
        missing = {form for text in MISSING for form in (text, text.upper(), text.capitalize())} | {"NaN", "NaT"}
        table = reader.read_csv(
            arrow.BufferReader(block),
            reader.ReadOptions(column_names=names, use_threads=False, block_size=len(block) + 1),
            reader.ParseOptions(delimiter=self.separator),
            reader.ConvertOptions(
                column_types=dict.fromkeys(map(str, (*places, *doubtful)), arrow.string()), null_values=list(missing),
                strings_can_be_null=True, true_values=[], false_values=[], decimal_point=self.decimal
            ),
        )  # fmt: skip
        arrays = [column.combine_chunks() for column in table.columns]
        compute = require_package("pyarrow.compute", "reading CSV files")
        for place, column in enumerate(arrays):
            if is_text(column.type) and compute.any(compute.match_substring(column, "\n")).as_py():
                where = f"column {self.title(place)} holds a line's end"
                raise ValueError(f"{where}; a quotation mark opens a field and closes it in the same line")
        if doubtful:
            return arrays
        numbers = [at for at in self.features if at not in places]
        # pyarrow rounds whole numbers above 2^53 and reads hexadecimal ones: both are read as they are written
        large = [at for at in numbers if str(arrays[at].type) == "double" and (abs(flat(arrays[at])) >= EXACT).any()]
        sixteen = b"0x" in block or b"0X" in block
        if again := [at for at in numbers if at in large or (sixteen and str(arrays[at].type) == "int64")]:
            written = self._arrays(block, again)
            arrays = [written[at] if at in again else column for at, column in enumerate(arrays)]
        return [self._numbers(a, at) if at in numbers and is_text(a.type) else a for at, a in enumerate(arrays)]

    def _numbers(self, column: Any, place: int) -> Any:
        """Return a column of text as numbers if each is one or missing; raise ValueError if float64 changes one."""
        mark = {} if self.decimal == "." else {ord("."): "x", ord(","): "."}
        texts, values = texts_of(column), []
        for written in texts.values:
            text = written.translate(mark)
            value = np.nan if is_missing(written) else as_number(text)
            if value is None:
                return column
            if rounds(text, value):
                raise ValueError(self.fault(decimal.Decimal(text), place))
            values.append(value)
        arrow = require_package("pyarrow", "reading CSV files")
        return arrow.array(np.asarray(values)[texts.codes], from_pandas=True)

    def _key(self, place: int) -> str | int:
        return place if self.titles is None else self.titles[place]

    def where(self, row: int) -> str:
        """Name the place of a row, by its line."""
        with opened(self.name) as file:
            lines = file.read().splitlines()[self.skip :]
        return f"{self.name}, line {[n for n, line in enumerate(lines, self.skip + 1) if line.strip()][row]}"

    def whole(self) -> list[Any]:
        """Return all columns, of Arrow."""
        with opened(self.name) as file:
            block = file.read().removeprefix(b"\xef\xbb\xbf")
        block = b"".join(block.splitlines(keepends=True)[self.skip :])
        with told(self.name):
            return self._arrays(block) if block.strip() else []


def decoded(columns: list[Any]) -> list[Any]:
    """Return columns without chunks, with the values of coded ones."""
    columns = [column.combine_chunks() if hasattr(column, "chunks") else column for column in columns]
    return [a.dictionary_decode() if str(a.type).startswith("dictionary") else a for a in columns]


def is_text(kind: Any) -> bool:
    """Return whether a type of Arrow is text."""
    return str(kind) in ("string", "large_string", "string_view")


def is_numeric(kind: Any) -> bool:
    """Return whether a type of Arrow is one of numbers or truth values, or of nothing."""
    kind = str(kind)
    return kind.startswith(("int", "uint", "halffloat", "float", "double", "bool", "decimal", "null"))


def flat(column: Any) -> np.ndarray:
    """Return an Arrow column of numbers or truth values as a NumPy array, 0 where a value is missing."""
    arrow, kind = require_package("pyarrow", "reading tables"), str(column.type)
    column = column.cast(arrow.uint8()) if kind == "bool" else column
    column = column.cast(arrow.float32()) if kind == "halffloat" else column
    column = column.fill_null(0) if column.null_count else column
    values: Any = np.from_dlpack(column)  # `to_numpy` imports pandas: 0.3 s
    return values.astype(bool) if kind == "bool" else values


def floats_of(column: Any) -> np.ndarray:
    """Return a column of numbers as floats, NaN where a value is missing, infinite or changes as float64."""
    kind = str(column.type)
    if kind == "null":
        return np.full(len(column), np.nan)
    raw = flat(column.cast("string").cast("float64") if kind.startswith("decimal") else column)
    changed = rounded(raw)
    if kind.startswith("decimal"):
        for at in np.flatnonzero(np.abs(raw) >= EXACT).tolist():
            changed[at] = rounds(str(column[at].as_py()), float(raw[at]))
    values = raw.astype(np.result_type(raw.dtype, np.float32))
    values[flat(column.is_null()) | changed | np.isinf(values)] = np.nan
    return values


def texts_of(column: Any) -> Texts:
    """Return a column as it is written, "" where a value is missing; truth values as pandas writes them."""
    compute = require_package("pyarrow.compute", "reading tables")
    written = compute.if_else(column, "True", "False") if str(column.type) == "bool" else column.cast("string")
    column = compute.utf8_trim_whitespace(compute.fill_null(written, "")).dictionary_encode()
    values, codes = coded(column.dictionary.to_pylist())
    return Texts(values, codes[flat(column.indices)])


def names_columns(rows: list[list[str]], known: set[str]) -> bool | None:
    """Return whether the first of some lines names the columns; None if it may or may not.

    A line without numbers does, unless all its texts come again below, and one with a name that is known. One with
    numbers does if they count up by ones, as those of pandas and years do, and its texts are not in the lines below:
    there are numbers or other texts.
    """
    first, below = rows[0], rows[1:]
    numbers = [field for field in first if _is_number(field)]
    texts = [at for at, field in enumerate(first) if not _is_number(field) and not is_missing(field)]
    beneath = [[row[at] for row in below if not is_missing(row[at])] for at in texts]
    fresh = [first[at] not in fields for at, fields in zip(texts, beneath, strict=True)]
    if known & set(first) or not numbers:
        return bool(known & set(first)) or any(fresh) or not texts
    counted = all(map(WHOLE.fullmatch, numbers))
    counted = counted and [int(field) - int(numbers[0]) for field in numbers] == list(range(len(numbers)))
    if any(fields and all(map(_is_number, fields)) for fields in beneath):
        return True if (counted and len(numbers) > 1) or len(texts) > len(numbers) else None
    if not counted or len(below) < 3:
        return False
    return len(numbers) > 1 and all(fresh) if texts else numbers[0] == "0" and len(numbers) > 1 + (first[0] != "")


def _is_number(field: str) -> bool:
    return as_number(field) is not None or has_decimal_comma(field)
