"""How points are made of a table's columns: missing values filled in, text turned into indicators.

scikit-learn learns the values and categories (`SimpleImputer`, `OneHotEncoder`); what it learnt is plain data, which a
model file holds, and NumPy applies it.
"""

import dataclasses
from typing import Any

import numpy as np

from jaxsvm.datasets.columns.table import Table
from jaxsvm.datasets.labels import Texts
from jaxsvm.datasets.layout import Layout, Wanted
from jaxsvm.datasets.refusal import advice_on, as_number, is_missing, shown
from jaxsvm.errors import DataError, InputError, require_package

IMPUTE = ("mean", "most_frequent")


@dataclasses.dataclass(frozen=True)
class Column:
    """What is done to one column.

    Attributes:
        key: Its name, or its place among the features of a file without a header.
        fill: The value that stands in for a missing one; None: a missing value is refused.
        categories: Its texts, an indicator each; None for a column of numbers.
    """

    key: str | int
    fill: float | str | None = None
    categories: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Preparation:
    """What is done to the columns of a table before its points are scaled.

    Attributes:
        columns: The feature columns, in order.
        dropped: The columns that are left out, by name or place.
        decimal: The decimal mark of the training file.
    """

    columns: tuple[Column, ...]
    dropped: tuple[str | int, ...] = ()
    decimal: str = "."

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

    def read(
        self, name: str, kind: str, layout: Layout | None, *, label: Any = None, optional: bool = True,
        drop: tuple[str, ...] = (), decimal: str | None = None, frame: Any = None,
    ) -> Table:  # fmt: skip
        """Read new rows as the training file's; see `Table` and `Wanted` for the arguments."""
        like = Layout(self.names, None if layout is None else layout.label)
        wanted = Wanted(label, optional, len(self.columns), like)
        mark = self.decimal if decimal is None else decimal
        return Table(name, kind, wanted, (*self.dropped, *drop), mark, forgiving=True, frame=frame)

    def __call__(self, table: Table) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return points `(n, d)`, and notes on texts that training has not seen."""
        parts, notes = [], []
        for place, column in enumerate(self.columns):
            if column.categories is None:
                values: Any = table.numbers(place, refuse=True)
                missing = np.isnan(values)
                _refuse_missing(table, place, missing, column.fill, "mean")
                parts.append(np.where(missing, 0.0 if column.fill is None else column.fill, values)[:, None])
                continue
            texts = table.texts(place)
            missing = _missing(texts)
            _refuse_missing(table, place, missing, column.fill, "most_frequent")
            filled = [str(column.fill) if is_missing(text) else text for text in texts.values]
            known = {text: code for code, text in enumerate(column.categories)}
            codes = np.asarray([known.get(text, -1) for text in filled], int)[texts.codes]
            parts.append((codes[:, None] == np.arange(len(known))).astype(float))
            strange = sorted({text for text in filled if text not in known})
            if strange:
                listed = ", ".join(map(shown, strange[:3])) + (", ..." if len(strange) > 3 else "")
                notes.append(
                    f"{table.title(place)}: {int((codes < 0).sum())} samples hold {listed}, which training has not "
                    "seen: they count as none of its categories"
                )
        return np.concatenate(parts, axis=1), tuple(notes)


def learn(table: Table, rows: np.ndarray, impute: str | None, one_hot: bool, decimal: str = ".") -> Preparation:
    """Learn what to do from the training samples of a table.

    Args:
        table: The table.
        rows: Indices of the training samples.
        impute: "mean" (of text the most frequent) or "most_frequent" in place of missing values; None refuses them.
        one_hot: Whether columns of text become an indicator for each text; else they are refused.
        decimal: The decimal mark of the file.
    """
    fills: dict[int, Any] = {}
    categories: dict[int, tuple[str, ...]] = {}
    numbers: dict[int, np.ndarray] = {}
    texts: dict[int, np.ndarray] = {}
    for place in range(len(table.keys)):
        values = table.numbers(place)
        if values is None:
            texts[place] = _text_column(table, place, rows, impute, one_hot)
        else:
            _refuse_missing(table, place, np.isnan(values), impute, "mean")
            numbers[place] = values[rows]
            if impute is not None and np.isnan(numbers[place]).all():
                raise DataError(
                    f"{table.name}: {table.title(place)} holds no value to learn from: leave it out (--drop)."
                )
    if not (numbers or texts):
        raise DataError(f"{table.name}: no column is left to be a feature.")
    fitted = _fitted(numbers, texts, impute)
    if impute is not None and numbers:
        fills |= dict(zip(numbers, fitted.named_transformers_["numbers"].statistics_.tolist(), strict=True))
    if texts:
        steps = fitted.named_transformers_["texts"]
        encoder = steps if impute is None else steps[-1]
        categories = {place: tuple(map(str, found)) for place, found in zip(texts, encoder.categories_, strict=True)}
        fills |= {} if impute is None else dict(zip(texts, map(str, steps[0].statistics_), strict=True))
    columns = (Column(key, fills.get(at), categories.get(at)) for at, key in enumerate(table.keys))
    return Preparation(tuple(columns), table.dropped, decimal)


def _fitted(numbers: dict[int, np.ndarray], texts: dict[int, np.ndarray], impute: str | None) -> Any:
    """Return a `ColumnTransformer` that is fitted to the columns: numbers first, then texts."""
    require_package("sklearn", "filling or encoding columns")
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    encoder: Any = OneHotEncoder(handle_unknown="ignore")
    frequent = SimpleImputer(strategy="most_frequent")
    number_step: Any = "passthrough" if impute is None else SimpleImputer(strategy=impute)
    text_step = encoder if impute is None else make_pipeline(frequent, encoder)
    d = len(numbers)
    steps = [("numbers", number_step, list(range(d))), ("texts", text_step, list(range(d, d + len(texts))))]
    columns = [column.astype(object) for column in (*numbers.values(), *texts.values())]
    return ColumnTransformer([step for step in steps if step[2]]).fit(np.stack(columns, axis=1))


def _text_column(table: Table, place: int, rows: np.ndarray, impute: str | None, one_hot: bool) -> np.ndarray:
    """Return the training samples of a column of text, NaN where it is missing; refuse what cannot be encoded."""
    texts = table.texts(place)
    missing = _missing(texts)
    values = np.asarray([np.nan if is_missing(text) else text for text in texts.values], object)
    wordy = np.asarray([as_number(text) is None for text in texts.values], bool)
    odd = wordy[texts.codes] & ~missing
    first = int((odd if odd.any() else ~missing).argmax())
    example = texts.values[texts.codes[first]]
    found = len({text for text in values[texts.codes[rows]].tolist() if isinstance(text, str)})
    advice = "" if one_hot else "encode text with --one-hot, or leave the column out (--drop)"
    known = advice_on(example, not one_hot or found > len(rows) / 2)
    if known is not None:
        advice = known
    elif one_hot and found > max(2, len(rows) / 2):
        many = f"the column holds {found} different texts in {len(rows)} samples, names rather than categories"
        advice = f"{many}: mend it, or leave it out (--drop)"
    elif one_hot and np.sum(~wordy) > 20 and odd.sum() < len(odd) / 2:  # no grades or codes
        numbers = f"the column holds {np.sum(~wordy)} different numbers, quantities rather than categories"
        advice = f"{numbers}: leave empty what is missing, or leave the column out (--drop)"
    if advice:
        table.refuse(place, first, f"is {shown(example)}", advice)
    _refuse_missing(table, place, missing, impute, "most_frequent")
    return values[texts.codes][rows]


def _missing(texts: Texts) -> np.ndarray:
    """Return which samples lack a text, `(n,)`."""
    return np.asarray([is_missing(text) for text in texts.values], bool)[texts.codes]


def _refuse_missing(table: Table, place: int, missing: np.ndarray, fill: Any, how: str) -> None:
    """Refuse missing values unless there is a value to fill in."""
    if fill is None and missing.any():
        others = int(missing.sum()) - 1
        more = f", as in {others} more" if others else ""
        advice = f"fill it in (in training: --impute {how}), or leave the samples or the column out"
        table.refuse(place, int(missing.argmax()), f"is missing{more}", advice)


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
