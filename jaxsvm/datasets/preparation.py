"""Make points of a table's columns: missing values filled in, text turned into indicators.

scikit-learn learns the values and categories (`SimpleImputer`, `OneHotEncoder`); what it learnt is plain data, which a
model file holds, and NumPy applies it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from jaxsvm.datasets.labels import Texts, as_number, has_decimal_comma, is_missing, joined, shown
from jaxsvm.datasets.layout import Faults, Layout, Wanted
from jaxsvm.datasets.source import Source
from jaxsvm.datasets.tables import ENCODE, FILL, Delimited, Typed, decoded, flat, floats_of, is_text, texts_of
from jaxsvm.datasets.text import told
from jaxsvm.errors import DataError, InputError, require_package

IMPUTE = ("mean", "most_frequent")


@dataclasses.dataclass(frozen=True)
class Sheet:
    """The feature columns of tables as they are written, one table below the other, and their labels."""

    first: Typed | Delimited  # the first table
    columns: list[Any]  # the feature columns, of Arrow
    y: np.ndarray | None  # labels `(n,)`, or None
    where: Callable[[int], str]  # names the place of a row

    @classmethod
    def of(cls, source: Source) -> "Sheet":
        """Read all tables of a source; refuse rows without a label."""
        tables, parts, labels, arrow = [], [], [], require_package("pyarrow", "reading tables")
        for table in source.readers():
            arrays, faults = table.whole(), Faults()
            if arrays and len(arrays[0]):
                labels.append(None if table.label is None else table.labels(arrays[table.label], faults))
                for row in sorted(faults)[:1]:
                    raise DataError(f"{table.where(row)}: {faults[row]}.")
                names = list(map(str, range(len(table.features))))
                parts.append(arrow.table([arrays[place] for place in table.features], names))
                tables.append(table)
        files = ", ".join(source.paths)
        if not tables:
            raise DataError(f"{files}: there is no line below the header: it has no samples.")
        with told(files):
            columns = arrow.concat_tables(parts, promote_options="permissive").combine_chunks().columns
        where = tables[0].where if len(tables) == 1 else lambda row: f"{files}, row {row} of all (from 0)"
        y = None if labels[0] is None else joined(files, labels)
        return cls(tables[0], decoded(columns), y, where)

    @property
    def keys(self) -> tuple[str | int, ...]:
        """Return the names of the feature columns, or their places in a file without a header."""
        table = self.first
        return tuple(table.features) if table.titles is None else tuple(table.titles[at] for at in table.features)

    @property
    def layout(self) -> Layout:
        """Return the names of the feature columns and the place of the labels."""
        return self.first.layout

    @property
    def n(self) -> int:
        """Return the number of samples."""
        return len(self.columns[0])

    def numbers(self, j: int) -> np.ndarray | None:
        """Return feature column `j` as floats, NaN where a value is missing; None if it holds text."""
        column, place = self.columns[j], self.first.features[j]
        if is_text(column.type):
            return None
        try:
            self.first.require(column, place)
        except ValueError as error:
            raise DataError(f"{self.first.name}: {error}.") from None
        values = floats_of(column)
        for row in np.flatnonzero(np.isnan(values) & flat(column.is_valid())).tolist():
            value = column[row].as_py()
            if value == value:  # NaN is not
                raise DataError(f"{self.where(row)}: {self.first.fault(value, place)}.")
        return values

    def refuse(self, j: int, row: int, issue: str) -> NoReturn:
        """Raise for one value."""
        raise DataError(f"{self.where(row)}: column {self.first.title(self.first.features[j])} {issue}.")

    def refuse_text(self, j: int, advice: str) -> NoReturn:
        """Raise for the first text of a column that is no number."""
        texts = texts_of(self.columns[j])
        wrong = np.asarray([as_number(text) is None and not is_missing(text) for text in texts.values], bool)
        row = int(wrong[texts.codes].argmax())
        text = texts.values[texts.codes[row]]
        if has_decimal_comma(text) or as_number(text) is not None:
            advice = "its decimal mark is another one: say decimal=, or --decimal"
        self.refuse(j, row, f"is {shown(text)}; {advice}")

    def refuse_missing(self, j: int, missing: np.ndarray, fill: Any) -> None:
        """Refuse missing values unless there is a value to fill in."""
        if fill is None and missing.any():
            others = int(missing.sum()) - 1
            self.refuse(j, int(missing.argmax()), f"is missing{f', as in {others} more' if others else ''}; {FILL}")


@dataclasses.dataclass(frozen=True)
class Column:
    """What is done to one column."""

    key: str | int  # its name, or its place among the features of a file without a header
    fill: float | str | None = None  # the value that stands in for a missing one; None: a missing value is refused
    categories: tuple[str, ...] | None = None  # its texts, an indicator each; None for a column of numbers


@dataclasses.dataclass(frozen=True)
class Preparation:
    """What is done to the columns of a table before its points are scaled."""

    columns: tuple[Column, ...]  # the feature columns, in order
    dropped: tuple[str | int, ...] = ()  # the columns that are left out, by name or place
    decimal: str = "."  # the decimal mark of the training file

    @property
    def names(self) -> tuple[str, ...] | None:
        """Return the names of the feature columns in the file; None if it has no header."""
        keys = tuple(column.key for column in self.columns)
        return None if any(isinstance(key, int) for key in keys) else keys  # pyright: ignore[reportReturnType]

    def layout(self, table: Layout) -> Layout:
        """Return the layout of the points: a name for each indicator."""
        if self.names is None:
            return table
        named = [
            [column.key] if column.categories is None else [f"{column.key}={text}" for text in column.categories]
            for column in self.columns
        ]
        return dataclasses.replace(table, columns=tuple(str(name) for names in named for name in names))

    @property
    def width(self) -> int:
        """Return the number of columns of the points."""
        return sum(1 if column.categories is None else len(column.categories) for column in self.columns)

    def read(self, source: Source, layout: Layout | None, drop: tuple[str, ...] = ()) -> Sheet:
        """Read new rows as the training file's, whose layout is given, without the columns to `drop`."""
        like = Layout(self.names, None if layout is None else layout.label)
        texts = tuple(column.key for column in self.columns if column.categories is not None)
        wanted = Wanted(optional=source.wanted.optional, like=like, drop=drop, absent=self.dropped, texts=texts)
        return Sheet.of(dataclasses.replace(source, features=len(self.columns), wanted=wanted))

    def of_frame(self, name: str, frame: Any, layout: Layout | None) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return the points of a frame, whose columns are as in the training file, and notes as those of a call."""
        return self(self.read(Source((name,), frame=frame, wanted=Wanted(optional=True)), layout))

    def __call__(self, sheet: Sheet) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return points `(n, d)`, and notes on texts that training has not seen."""
        parts, notes = [], []
        for j, column in enumerate(self.columns):
            if column.categories is None:
                values = sheet.numbers(j)
                if values is None:
                    sheet.refuse_text(j, "a number is needed, as in training")
                missing = np.isnan(values)
                sheet.refuse_missing(j, missing, column.fill)
                parts.append(np.where(missing, 0.0 if column.fill is None else column.fill, values)[:, None])
                continue
            texts = texts_of(sheet.columns[j])
            sheet.refuse_missing(j, _missing(texts), column.fill)
            filled = [str(column.fill) if is_missing(text) else text for text in texts.values]
            known = {text: code for code, text in enumerate(column.categories)}
            codes = np.asarray([known.get(text, -1) for text in filled], int)[texts.codes]
            parts.append((codes[:, None] == np.arange(len(known))).astype(float))
            strange = sorted({text for text in filled if text not in known})
            if strange:
                listed = ", ".join(map(shown, strange[:3])) + (", ..." if len(strange) > 3 else "")
                notes.append(
                    f"column {column.key!r}: {int((codes < 0).sum())} samples hold {listed}, which training has not "
                    "seen: they count as none of its categories"
                )
        return np.concatenate(parts, axis=1), tuple(notes)


def learn(sheet: Sheet, rows: np.ndarray, impute: str | None, one_hot: bool, decimal: str = ".") -> Preparation:
    """Learn what to do from the training samples of a table.

    Args:
        sheet: The table.
        rows: Indices of the training samples.
        impute: "mean" (of text the most frequent) or "most_frequent" in place of missing values; None refuses them.
        one_hot: Whether columns of text become an indicator for each text; else they are refused.
        decimal: The decimal mark of the file.
    """
    keys = sheet.keys
    if not keys:
        raise DataError(f"{sheet.first.name}: no column is left to be a feature.")
    twice = sorted({str(key) for key in keys if keys.count(key) > 1})
    if twice:
        advice = f"name them apart, or leave them all out (drop=, --drop {twice[0]})"
        raise DataError(f"{sheet.first.name}: has several columns {twice[0]!r}; {advice}.")
    columns = []
    for j, key in enumerate(keys):
        values = sheet.numbers(j)
        if values is None:
            columns.append(_of_text(sheet, j, key, rows, impute, one_hot))
            continue
        sheet.refuse_missing(j, np.isnan(values), impute)
        if impute is not None and np.isnan(values[rows]).all():
            sheet.refuse(j, 0, "holds no value to learn from; leave the column (drop=, --drop) out")
        columns.append(Column(key, None if impute is None else float(_frequent(values[rows], impute))))
    return Preparation(tuple(columns), sheet.first.dropped, decimal)


def _of_text(sheet: Sheet, j: int, key: str | int, rows: np.ndarray, impute: str | None, one_hot: bool) -> Column:
    """Return what to do with a column of text; refuse names, and quantities that are not all written as numbers."""
    if not one_hot:
        sheet.refuse_text(j, ENCODE)
    texts = texts_of(sheet.columns[j])
    missing = _missing(texts)
    numbers = np.asarray([as_number(text) is not None for text in texts.values], bool)[texts.codes]
    values = np.asarray(texts.values, object)[texts.codes[rows]]
    values[missing[rows]] = np.nan
    present = values[~missing[rows]]
    found, quantities = len(set(present.tolist())), len(np.unique(texts.codes[numbers]))
    if found > max(2, len(rows) / 2) or not len(present):
        many = f"the column holds {found} different texts in {len(rows)} samples, names rather than categories"
        sheet.refuse_text(j, f"{many}: mend it, or leave it out (drop=, --drop)")
    if quantities > 20 and numbers.sum() > len(numbers) / 2:
        many = f"the column holds {quantities} different numbers, quantities rather than categories"
        sheet.refuse_text(j, f"{many}: leave empty what is missing, or leave the column out (drop=, --drop)")
    sheet.refuse_missing(j, missing, impute)
    fill = None if impute is None else str(_frequent(values, "most_frequent"))
    encoder = require_package("sklearn.preprocessing", "encoding columns").OneHotEncoder()
    return Column(key, fill, tuple(map(str, encoder.fit(present[:, None]).categories_[0])))


def _frequent(values: np.ndarray, how: str) -> Any:
    """Return the value that stands in for missing ones of a column."""
    imputer = require_package("sklearn.impute", "filling in columns").SimpleImputer(strategy=how)
    return imputer.fit(values[:, None]).statistics_[0]


def _missing(texts: Texts) -> np.ndarray:
    """Return which samples lack a text, `(n,)`."""
    return np.asarray([is_missing(text) for text in texts.values], bool)[texts.codes]


def from_json(described: Any) -> Preparation:
    """Rebuild a preparation from its fields in JSON's types.

    Raises:
        InputError: If it is no sound description.
    """
    try:
        columns = tuple(_column(**column) for column in described["columns"])
        dropped, decimal = tuple(described["dropped"]), described["decimal"]
        if set(described) != {"columns", "dropped", "decimal"} or decimal not in (".", ",") or not columns:
            raise ValueError(f"it has {sorted(described)}, and a decimal mark {decimal!r}")
        if not all(isinstance(key, str | int) for key in (*dropped, *(column.key for column in columns))):
            raise ValueError("a column is neither a name nor a place")
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(f"the preparation of its columns is not sound: {str(error)[:120]}.") from None
    return Preparation(columns, dropped, decimal)


def _column(key: Any, fill: Any, categories: Any) -> Column:
    """Return a column; raise ValueError if its parts are of the wrong type."""
    of_text = categories is not None
    sound = not of_text or (isinstance(categories, list) and all(isinstance(text, str) for text in categories))
    kind = str if of_text else float | int
    if not sound or (of_text and len(set(categories)) < max(1, len(categories))):
        raise ValueError(f"categories of {key!r} are {categories}")
    if fill is not None and (
        isinstance(fill, bool) or not isinstance(fill, kind) or not (of_text or np.isfinite(fill))
    ):
        raise ValueError(f"the value of {key!r} to fill in is {fill!r}")
    return Column(key, fill, tuple(categories) if of_text else None)
