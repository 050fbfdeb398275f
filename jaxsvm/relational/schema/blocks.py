"""Store the features of a table: numbers as float64 columns, categories as codes, never as zeros and ones."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.tables.columns import NUMBERS, Column, distinct, numbers, python_values, require_role


class Category(NamedTuple):
    """A categorical feature, `levels[codes]`; each level has its own coefficient."""

    name: str  # name of its column
    codes: np.ndarray  # the level of each row, int32 `(n,)`
    levels: Column  # different values of the column, in order; a level for missing values, if there is one, is the last

    @property
    def names(self) -> list[str]:
        """Return the names of the levels, `column=level` or `column IS NULL`."""
        values = zip(python_values(self.levels), self.levels.missing, strict=True)
        return [f"{self.name} IS NULL" if gone else f"{self.name}={value}" for value, gone in values]


class Block(NamedTuple):
    """The features of a table."""

    X: np.ndarray  # its numbers, float64 `(n_i, p)`, scaled
    names: list[str | None]  # names of the columns of X; None is the constant
    mean: np.ndarray  # the number subtracted from each column, `(p,)`
    scale: np.ndarray  # the number each was divided by then, `(p,)`
    fill: np.ndarray  # the number that replaces a missing one, `(p,)`; NaN if missing numbers are refused
    categories: list[Category]  # its categorical features

    @property
    def d(self) -> int:
        """Return the number of coefficients."""
        return len(self.names) + sum(len(category.levels) for category in self.categories)

    def product(self, beta: np.ndarray) -> np.ndarray:
        """Return the score of each row, `(n_i,)`."""
        p = len(self.names)
        score, first = self.X @ beta[:p], p
        for _, codes, levels in self.categories:
            score = score + beta[first + codes]
            first += len(levels)
        return score

    def transposed(self, v: np.ndarray) -> np.ndarray:
        """Return `X' v`, `(d,)`."""
        parts = [self.X.T @ v]
        parts += [np.bincount(codes, v, minlength=len(levels)) for _, codes, levels in self.categories]
        return np.concatenate(parts)

    def absolute(self) -> "Block":
        """Return the block with the absolute values of its numbers."""
        return self._replace(X=np.abs(self.X))

    def take(self, rows: np.ndarray) -> "Block":
        """Select rows."""
        cut = [category._replace(codes=category.codes[rows]) for category in self.categories]
        return self._replace(X=self.X[rows], categories=cut)

    def columns(self, wanted: np.ndarray) -> np.ndarray:
        """Return some columns, of which a category has one for each level, `(n_i, k)`."""
        p = len(self.names)
        parts, first = [self.X[:, wanted[wanted < p]]], p
        for _, codes, levels in self.categories:
            inside = wanted[(wanted >= first) & (wanted < first + len(levels))] - first
            parts.append((codes[:, None] == inside).astype(float))
            first += len(levels)
        return np.concatenate(parts, axis=1)

    def dense(self, rows: np.ndarray) -> np.ndarray:
        """Return some rows with a column for each level, `(k, d)`."""
        return self.take(rows).columns(np.arange(self.d))


def block_of(table: str, weight: np.ndarray, parts: Mapping[str, Column], categorical: set[str], missing: str) -> Block:
    """Make the features of a table from their columns by name, and the multiplicities of its rows, `(n,)`.

    Raises:
        InputError: On columns that are no features, missing values that are refused, infinite numbers.
    """
    columns, names, fills, categories = [], [], [], []
    for name, part in parts.items():
        where, absent = f"{table}.{name}", part.missing
        require_role(part.kind, where, part.type, name in categorical)
        number = part.kind in NUMBERS and name not in categorical
        values = numbers(part, where) if number else np.zeros(len(part))
        if absent.any() and missing == "refuse":
            raise InputError(
                f"feature {where} is missing in {absent.sum()} of {len(part)} rows that join: choose "
                "missing='impute' or 'drop', or leave it out of features."
            )
        if not number:
            categories.append(_category(name, part, where))
            continue
        if np.isinf(values).any():
            raise InputError(f"feature {where} has infinite values: remove them or make them missing.")
        fill = np.nan
        if missing == "impute":
            fill = 0.0 if absent.all() else np.average(values[~absent], weights=weight[~absent])
        names.append(name)
        fills.append(fill)
        columns.append(np.where(absent, fill, values))
    X = np.stack(columns, axis=1) if columns else np.zeros((len(weight), 0))
    p = len(names)
    return Block(X, names, np.zeros(p), np.ones(p), np.array(fills), categories)


def _category(name: str, part: Column, where: str) -> Category:
    """Return the levels of a column: its values and, if any is missing, a last one for missing values."""
    known, code = distinct(part, where)
    if (code < 0).any():
        last = known.values[:1] if len(known) else np.zeros(1)
        known = known.changed(values=np.append(known.values, last), missing=np.append(known.missing, True))
        code = np.where(code < 0, len(known) - 1, code)
    return Category(name, code.astype(np.int32), known)
