"""The result of a fit over a join, which scores in the database, as one query, and joined rows in Python, alike.

The query joins the tables along the join tree. For each joined row it adds up coefficients times numbers, and the
coefficient of each category's level; a level that training did not see adds nothing, in SQL and in Python. A missing
number counts as its mean if training imputed, else the score is NULL. Numbers count as doubles, as in training.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.descent.steps import Descent
from jaxsvm.relational.schema.join import Join
from jaxsvm.relational.tables.columns import (
    CATEGORIES,
    DOUBLE,
    TableLike,
    column,
    declared,
    numbers,
    opened,
    present,
    python_values,
)
from jaxsvm.relational.tables.pushdown import common_type, compared, in_memory, quoted
from jaxsvm.results.fit import Certificate, StatusCode

if TYPE_CHECKING:
    import pyarrow as pa


@dataclasses.dataclass(frozen=True, eq=False)
class RelationalFit:
    """A linear SVM over a join.

    Attributes:
        coef: Coefficients of the unscaled features, `(d,)`, in the order of `feature_names`.
        intercept: The constant.
        beta: Coefficients of the scaled features and of the constant, in the order of `join.feature_names`: the
            argument of F.
        certificate: Primal, dual and relative gap of F.
        status: How the fit ended.
        steps: Number of evaluations.
        engine: The engine, and why it was chosen.
        seconds: Duration of the fit.
        history: `(k, 3)`: D, P and the estimate of F after each step; a step with a line search takes several
            evaluations.
        join: The scaled join.
        descent: Its rows and planes: `init` of a fit at another lam goes on from them.
        lam: The strength of the regulariser.
        feature_names: Names of `coef`.
        loss: "hinge" or "squared_hinge".
    """

    coef: np.ndarray
    intercept: float
    beta: np.ndarray
    certificate: Certificate
    status: StatusCode
    steps: int
    engine: str
    seconds: float
    history: np.ndarray
    join: Join
    descent: Descent
    lam: float
    feature_names: list[str]
    loss: str = "hinge"

    def to_sql(self, tables: dict[str, str] | None = None, score: str = "score") -> str:
        """Write the query whose column `score` is the decision function of every row of the join.

        Args:
            tables: The SQL that stands for a table in FROM, if not what the join was made from, such as `main.sales` or
                `read_parquet('sales.parquet')`.
            score: The name of that column.

        Raises:
            InputError: If the label's table has a column of that name, in capital letters or not.

        Returns:
            `SELECT fact.*, score FROM ...`, standard SQL; positive scores are of `classes[1]`. If tables have equal
            rows, each joined row comes once per copy.
        """
        join, names = self.join, self.join.names
        require_free(join, score)
        terms = [_number(self.intercept), *(_term(*feature) for feature in self._features())]
        sources = {name: quoted(name) for name in names} | self.join.sources | (tables or {})
        hub = join.tree.label
        joined, clauses = {hub}, [f"{sources[names[hub]]} AS {quoted(names[hub])}"]
        while len(joined) < len(names):
            i, j = next((i, j) for i, j in join.tree.kid if i in joined and j not in joined)
            pair = (names[i], names[j])
            tests = [
                " = ".join(compared(f"{quoted(n)}.{quoted(owners[n])}", join.casts.get(key)) for n in pair)
                for key, owners in join.keys.items()
                if set(pair) <= set(owners)
            ]
            clauses.append(f"JOIN {sources[names[j]]} AS {quoted(names[j])} ON {' AND '.join(tests) or 'TRUE'}")
            joined.add(j)
        body = "\n    + ".join(terms)
        return f"SELECT {quoted(names[hub])}.*,\n    {body} AS {quoted(score)}\nFROM " + "\n".join(clauses)

    def decision_function(self, rows: TableLike) -> np.ndarray:
        """Return the scores of joined rows.

        Args:
            rows: A table (pandas, polars, Arrow, dict of arrays) of joined rows. Its columns have their names in their
                tables, or are called `table.column` if two tables share a name that is no key.

        Returns:
            `(k,)`; NaN where a number is missing that was never missing in training.

        Raises:
            InputError: On a feature that is absent, that has values of another kind than in training, or whose column
                could be another column of the joined tables.
        """
        given = opened("rows", rows)
        terms, whole, plain = [], defaultdict(dict), defaultdict(dict)
        equal = {column: key for key, owners in self.join.keys.items() for column in owners.items()}  # those of a key
        for table, names in zip(self.join.names, self.join.named, strict=True):
            for name in names:
                whole[f"{table}.{name}"][table, name] = f"{table}.{name}"
                plain[name].setdefault(equal.get((table, name), (table, name)), f"{table}.{name}")
        for table, name, coef, part in self._features():
            wanted = f"{table}.{name}" if f"{table}.{name}" in given.names else name
            if wanted not in given.names:
                raise InputError(f"rows has no column {name} or {table}.{name}: every feature is needed.")
            same = (plain[wanted] if wanted == name else {}) | whole[wanted]
            if len(same) > 1:
                which = " or ".join(same.values())
                raise InputError(f"rows has a column {wanted}, which could be {which}: call each by its whole name.")
            values = column("rows", given, wanted)
            if isinstance(part, float):
                known = numbers(values, f"rows.{wanted}")
                terms.append(coef[0] * np.where(np.isnan(known), part, known))
            else:
                terms.append(_level_scores(part, coef, present(values), f"{table}.{name}"))
        if not terms:
            raise InputError("the model has no features: every score is its intercept.")
        return sum(terms[1:], terms[0]) + self.intercept

    def predict(self, rows: TableLike) -> np.ndarray:
        """Return the labels of joined rows, `(k,)`.

        Raises:
            InputError: On rows that `decision_function` refuses, or whose score is NaN: a number is missing.
        """
        scores = self.decision_function(rows)
        unknown = np.isnan(scores)
        if unknown.any():
            raise InputError(f"rows has {unknown.sum()} row(s) without a number, the first is row {unknown.argmax()}.")
        return self.join.classes[(scores >= 0).astype(int)]

    def _features(self) -> Iterator[tuple[str, str, Any, Any]]:
        """Yield table, name, coefficients, and the fill of a number or the levels of a category, of each feature."""
        at = 0
        for table, block in zip(self.join.names, self.join.blocks, strict=True):
            parts = [(n, 1, float(fill)) for n, fill in zip(block.names, block.fill, strict=True) if n is not None]
            parts += [(name, len(levels), levels) for name, levels in block.categories.items()]
            for name, many, part in parts:
                yield table, name, self.coef[at : at + many], part
                at += many

    def __repr__(self) -> str:
        P, D, gap = (float(part) for part in self.certificate)
        interval = f"F* in [{D:.6g}, {P:.6g}], gap {gap:.1e}"
        return f"RelationalFit({self.status.name}, {interval}, {self.steps} evaluations, {self.engine})"


def require_free(join: Join, score: str) -> None:
    """Refuse a name of the scores that a column of the label's table has: a query of it would read that column."""
    if not (isinstance(score, str) and score):
        raise InputError(f"score is {score!r}: the name of a column is needed.")
    table = join.names[join.tree.label]
    if score.lower() in map(str.lower, join.named[join.tree.label]):
        raise InputError(f"score is {score!r}, a column of {table} as well: give the scores another name.")


def _term(table: str, name: str, coef: Any, part: Any) -> str:
    """Write the summand of a feature."""
    value = f"{quoted(table)}.{quoted(name)}"
    if not isinstance(part, float):
        cases = [f"WHEN {test} THEN {_number(c)}" for test, c in zip(_tests(value, part), coef, strict=True)]
        return f"CASE {' '.join(cases)} ELSE 0 END"
    value = compared(value, DOUBLE)
    if not np.isnan(part):
        value = f"COALESCE(NULLIF({value}, CAST('NaN' AS {DOUBLE})), {_number(part)})"
    return f"{_number(coef[0])} * {value}"


def _level_scores(levels: pa.Array, coef: np.ndarray, part: pa.Array, where: str) -> np.ndarray:
    """Return the coefficient of each row's level, `(k,)`; 0 for a level that training did not see."""
    import pyarrow.compute as pc

    kinds = [declared(str(array.type), f"{name}.v") for name, array in (("levels", levels), ("part", part))]
    if kinds[1].kind == "uuid":  # levels are its texts
        kinds[1] = kinds[1]._replace(kind="text")
    if kinds[0].kind == kinds[1].kind and kinds[0].kind in CATEGORIES:
        place = pc.call_function("index_in", [part.cast(levels.type)], pc.SetLookupOptions(levels))
        return np.append(coef, 0.0)[place.fill_null(len(coef)).to_numpy()]
    tables = {"levels": {"v": levels, "coef": coef}, "part": {"v": part, "row": np.arange(len(part))}}
    with in_memory(tables) as ask:
        cast = common_type(ask, {f"{where} in training": ("levels", kinds[0]), "rows": ("part", kinds[1])})
        one, two = (compared(kind.sql, cast) for kind in kinds)
        joined = f"part LEFT JOIN levels ON {one} IS NOT DISTINCT FROM {two}"
        found = ask(f"SELECT COALESCE(coef, 0) AS score FROM {joined} ORDER BY row")
    return numbers(column("scores", found, "score"), where)


def _tests(value: str, levels: pa.Array) -> list[str]:
    kind = declared(str(levels.type)).kind
    typed = compared(value, {"text": "VARCHAR", "float": DOUBLE}.get(kind))
    return [f"{value} IS NULL" if c is None else f"{typed} = {_literal(kind, c)}" for c in python_values(levels)]


def _literal(kind: str, level: Any) -> str:
    """Write a level of a category as SQL."""
    if kind == "boolean":
        return "TRUE" if level else "FALSE"
    if kind == "text":
        return "'" + level.replace("'", "''") + "'"
    if kind == "float":
        return _number(level)
    precise = "_NS" if len(str(level)) > len("2020-01-01 00:00:00.000000") else ""  # DuckDB's alone
    return f"{kind.upper()}{precise} '{level}'" if kind in ("date", "timestamp") else str(level)


def _number(value: Any) -> str:
    """Write a double as SQL; a literal without an exponent would be a decimal."""
    text = repr(float(value))
    return f"({text})" if "e" in text else f"({text}e0)"
