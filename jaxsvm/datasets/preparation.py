"""Learn what is done to the columns of tables: missing values filled in, text turned into indicators.

What is learnt is plain data, which a model file holds; `Table.piece` applies it.
"""

import dataclasses
from collections import Counter
from typing import Any

import numpy as np

from jaxsvm.datasets.labels import as_number, is_missing, joined, shown
from jaxsvm.datasets.layout import Layout, Wanted, undamaged
from jaxsvm.datasets.source import Source
from jaxsvm.datasets.tables import Batch, Column, Table, floats_of, is_text, texts_of
from jaxsvm.errors import DataError, require

IMPUTE = ("mean", "most_frequent")


@dataclasses.dataclass(frozen=True)
class Sheet:
    """Tables as they are written, one below the other, and their labels."""

    name: str  # the files
    rows: list[tuple[Table, Batch]]  # of each file, some at a time
    y: np.ndarray | None  # labels `(n,)`, or None

    @classmethod
    def of(cls, source: Source) -> "Sheet":
        """Read all tables of a source; refuse rows without a label."""
        rows = [(table, batch) for table in source.readers() for batch in table.batches()]
        if not rows:
            raise DataError(f"{source.name}: there is no line below the header: it has no samples.")
        labels = [undamaged(table.piece(batch, (), {})).label for table, batch in rows]
        return cls(source.name, rows, None if labels[0] is None else joined(source.name, labels))

    @property
    def first(self) -> Table:
        """Return the first table."""
        return self.rows[0][0]

    @property
    def layout(self) -> Layout:
        """Return the names of the feature columns and the place of the labels."""
        return self.first.layout

    @property
    def n(self) -> int:
        """Return the number of samples."""
        return sum(len(batch.columns[0]) for _, batch in self.rows)

    def columns(self, j: int) -> list[Any]:
        """Return feature column `j`, of Arrow, in parts."""
        return [batch.columns[table.features[j]] for table, batch in self.rows]


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
        wanted = dataclasses.replace(
            source.wanted, features=len(self.columns), like=like, drop=drop, absent=self.dropped
        )
        return Sheet.of(dataclasses.replace(source, wanted=wanted))

    def of_frame(self, name: str, frame: Any, layout: Layout | None) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return the points of a frame, whose columns are as in the training file, and notes as those of a call."""
        return self(self.read(Source((name,), Wanted(optional=True), frame=frame), layout))

    def __call__(self, sheet: Sheet) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return points `(n, d)`, and notes on texts that training has not seen."""
        unseen = dict[Any, Counter[str]]()
        x = np.concatenate([undamaged(table.piece(batch, self.columns, unseen)).x for table, batch in sheet.rows])
        notes = []
        for key, texts in unseen.items():
            listed = ", ".join(map(shown, sorted(texts)[:3])) + (", ..." if len(texts) > 3 else "")
            notes.append(
                f"column {key!r}: {texts.total()} samples hold {listed}, which training has not seen: they count as "
                "none of its categories"
            )
        return x, tuple(notes)


def learn(sheet: Sheet, rows: np.ndarray, impute: str | None, one_hot: bool, decimal: str = ".") -> Preparation:
    """Learn what to do from the training samples of a table.

    Args:
        sheet: The table.
        rows: Indices of the training samples.
        impute: "mean" (of text the most frequent) or "most_frequent" in place of missing values; None refuses them.
        one_hot: Whether columns of text become an indicator for each text; else, and where most rows have a text of
            their own or most texts are numbers, a column is taken for one of numbers, whose texts are refused.
        decimal: The decimal mark of the file.
    """
    keys = sheet.first.keys
    if not keys:
        raise DataError(f"{sheet.name}: no column is left to be a feature.")
    twice = sorted({str(key) for key in keys if keys.count(key) > 1})
    if twice:
        advice = f"name them apart, or leave them all out (drop=, --drop {twice[0]})"
        raise DataError(f"{sheet.name}: has several columns {twice[0]!r}; {advice}.")
    columns, mark = [], sheet.first.decimal
    for j, key in enumerate(keys):
        parts = sheet.columns(j)
        if one_hot and any(is_text(str(part.type)) for part in parts):
            texts = texts_of(parts)
            written = [text for text in texts.values if not is_missing(text)]
            numbers = [] if mark is None else [text for text in written if as_number(text, mark) is not None]
            present = np.asarray(texts.values)[texts.codes[rows]]
            present = present[~np.asarray([is_missing(text) for text in texts.values], bool)[texts.codes[rows]]]
            found = np.unique(present)
            quantities = len(numbers) > 20 and np.isin(present, numbers).mean() > 0.5
            if 0 < len(found) <= max(2, len(rows) / 2) and len(numbers) < len(written) and not quantities:
                fill = None if impute is None else str(_typical(present, "most_frequent"))
                columns.append(Column(key, fill, tuple(map(str, found))))
                continue
        numbers = [] if impute is None else [floats_of(part, mark) for part in parts]
        values = np.concatenate([np.zeros(0), *numbers])[rows if numbers else []]
        values = values[~np.isnan(values)]
        columns.append(Column(key, float(_typical(values, impute)) if len(values) else None))
    return Preparation(tuple(columns), sheet.first.dropped, decimal)


def _typical(values: np.ndarray, how: str | None) -> Any:
    """Return the value that stands in for missing ones of a column."""
    if how == "mean":
        return values.mean()
    found, count = np.unique(values, return_counts=True)
    return found[count.argmax()]


def from_json(described: Any) -> Preparation:
    """Rebuild a preparation from its fields in JSON's types.

    Raises:
        InputError: If it is no sound description.
    """
    columns = []
    for column in described["columns"]:
        fill, texts = column["fill"], column["categories"]
        sound = fill is None or (isinstance(fill, str) if texts else bool(np.isfinite(fill)))
        require(sound, f"{fill!r} is no value to fill in in column {column['key']!r}.")
        columns.append(Column(column["key"], fill, texts and tuple(map(str, texts))))
    return Preparation(tuple(columns), tuple(described["dropped"]), described["decimal"])
