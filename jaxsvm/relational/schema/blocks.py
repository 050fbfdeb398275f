"""Store the features of a table: numbers as float64 columns, categories as codes, never as zeros and ones."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.tables.arrow import levels_of, numbers, present, python_values
from jaxsvm.relational.tables.sql_types import NUMBERS, Declared

if TYPE_CHECKING:
    import pyarrow as pa


class Category(NamedTuple):
    """A categorical feature, `levels[codes]`; each level has its own coefficient."""

    name: str  # name of its column
    codes: np.ndarray  # the level of each row, int32 `(n,)`
    levels: pa.Array  # different values of the column, in order; the one for missing values, if there is one, is last

    @property
    def names(self) -> list[str]:
        """Return the names of the levels, `column=level` or `column IS NULL`."""
        values = python_values(self.levels)
        return [f"{self.name} IS NULL" if value is None else f"{self.name}={value}" for value in values]


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

    def absolute(self) -> Block:
        """Return the block with the absolute values of its numbers."""
        return self._replace(X=np.abs(self.X))

    def take(self, rows: np.ndarray) -> Block:
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


def block_of(
    table: str,
    weight: np.ndarray,
    parts: Mapping[str, tuple[Declared, pa.Array]],
    categorical: Container[str],
    missing: str,
) -> Block:
    """Make the features of a table from their columns by name, and the multiplicities of its rows, `(n,)`.

    Raises:
        InputError: On missing values that are refused, and infinite numbers.
    """
    columns, names, fills, categories = [], [], [], []
    for name, (kind, given) in parts.items():
        where, number = f"{table}.{name}", kind.kind in NUMBERS and name not in categorical
        array = present(given)
        absent = array.is_null().to_numpy(zero_copy_only=False)
        if absent.any() and missing != "impute":
            raise InputError(
                f"feature {where} is missing in {weight[absent].sum():.0f} of {weight.sum():.0f} rows that join: "
                "choose missing='impute' or 'drop', or leave it out of features."
            )
        if not number:
            known, code = levels_of(array)
            categories.append(Category(name, code, known))
            continue
        values, fill = numbers(array, where), np.nan
        if np.isinf(values).any():
            raise InputError(f"feature {where} has infinite values: remove them or make them missing.")
        if missing == "impute":
            fill = 0.0 if absent.all() else np.average(values[~absent], weights=weight[~absent])
        names.append(name)
        fills.append(fill)
        columns.append(np.where(absent, fill, values))
    X = np.stack(columns, axis=1) if columns else np.zeros((len(weight), 0))
    p = len(names)
    return Block(X, names, np.zeros(p), np.ones(p), np.array(fills), categories)
