"""The features that a table owns: numbers as float64 columns, categories as codes, never as zeros and ones."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.tables.columns import NUMBERS, Column, distinct, numbers, require_role, shown


class Category(NamedTuple):
    """A categorical feature: `levels[codes]`; each level has its own coefficient.

    Attributes:
        name: Of its column.
        codes: The level of each row, int32 `(n,)`.
        levels: Different values of the column, in order; the last one is missing where that is a level of its own.
    """

    name: str
    codes: np.ndarray
    levels: Column

    @property
    def names(self) -> list[str]:
        """`column=level`, or `column IS NULL`, `(levels,)`."""
        values = zip(shown(self.levels), self.levels.missing, strict=True)
        return [f"{self.name} IS NULL" if gone else f"{self.name}={value}" for value, gone in values]


class Block(NamedTuple):
    """The features that a table owns.

    Attributes:
        X: Its numbers, float64 `(n_i, p)`, scaled.
        names: Of the columns of X.
        mean: What was taken off each column, `(p,)`.
        scale: By what each was divided then, `(p,)`.
        fill: What stands for a missing number, `(p,)`; NaN where missing numbers are refused.
        categories: Its categorical features.
    """

    X: np.ndarray
    names: list[str]
    mean: np.ndarray
    scale: np.ndarray
    fill: np.ndarray
    categories: list[Category]

    @property
    def d(self) -> int:
        """How many coefficients."""
        return len(self.names) + sum(len(category.levels) for category in self.categories)

    def product(self, beta: np.ndarray) -> np.ndarray:
        """The score of each row, `(n_i,)`."""
        p = len(self.names)
        score, first = self.X @ beta[:p], p
        for _, codes, levels in self.categories:
            score = score + beta[first + codes]
            first += len(levels)
        return score

    def transposed(self, v: np.ndarray) -> np.ndarray:
        """`X' v`, `(d,)`."""
        parts = [self.X.T @ v]
        parts += [np.bincount(codes, v, minlength=len(levels)) for _, codes, levels in self.categories]
        return np.concatenate(parts)

    def absolute(self) -> "Block":
        """The same with the sizes of the numbers."""
        return self._replace(X=np.abs(self.X))

    def dense(self, rows: np.ndarray) -> np.ndarray:
        """Some rows with a column for each level, `(k, d)`."""
        parts = [self.X[rows]]
        parts += [
            (codes[rows][:, None] == np.arange(len(levels))).astype(float) for _, codes, levels in self.categories
        ]
        return np.concatenate(parts, axis=1)


def block_of(table: str, weight: np.ndarray, parts: Mapping[str, Column], categorical: set[str], missing: str) -> Block:
    """The features of a table.

    Args:
        table: Its name.
        weight: How many equal rows each row stands for, `(n,)`.
        parts: The columns of its features, by name.
        categorical: Which numbers are categories.
        missing: As in `Join`.

    Raises:
        InputError: On columns that are no features, missing values where they are refused, infinite numbers.
    """
    found, names, fills, categories = [], [], [], []
    for name, part in parts.items():
        where = f"{table}.{name}"
        require_role(part.kind, where, part.type, name in categorical)
        number = part.kind in NUMBERS and name not in categorical
        values = numbers(part, where) if number else np.zeros(len(part))
        absent = part.missing
        if absent.any() and missing == "refuse":
            raise InputError(
                f"feature {where} is missing in {absent.sum()} of {len(part)} rows that join: choose "
                "missing='impute' or 'drop', or leave it out of features."
            )
        if number:
            if np.isinf(values).any():
                raise InputError(f"feature {where} has infinite values: remove them or make them missing.")
            fill = np.nan
            if missing == "impute":
                fill = 0.0 if absent.all() else np.average(values[~absent], weights=weight[~absent])
            names.append(name)
            fills.append(fill)
            found.append(np.where(absent, fill, values))
        else:
            categories.append(_category(name, part, where))
    X = np.stack(found, axis=1) if found else np.zeros((len(weight), 0))
    p = len(names)
    return Block(X, names, np.zeros(p), np.ones(p), np.array(fills), categories)


def _category(name: str, part: Column, where: str) -> Category:
    """The levels of a column: its values, and after them, where any is missing, that it is missing."""
    known, code = distinct(part, where)
    if (code < 0).any():
        last = known.values[:1] if len(known) else np.zeros(1)
        values = np.append(known.values, last)
        known = known.changed(values=values, missing=np.append(known.missing, True))
        code = np.where(code < 0, len(known) - 1, code)
    return Category(name, code.astype(np.int32), known)
