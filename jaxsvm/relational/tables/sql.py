"""Score in the database: write a fitted model as one query, and compute the same scores of joined rows in Python.

The query joins the tables along the join tree. For each joined row it adds up coefficients times numbers, and the
coefficient of each category's level; a level that training did not see adds nothing, in SQL and in Python. A missing
number counts as its mean if training imputed, else the score is NULL. Numbers count as doubles, as in training.
"""

from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.tables.columns import Column, as_feature, numbers, python_values, shared_codes
from jaxsvm.relational.tables.pushdown import compared, quoted
from jaxsvm.relational.tables.reading import column, column_names
from jaxsvm.relational.tables.sql_types import DOUBLE


def to_sql(fit: Any, tables: dict[str, str] | None = None) -> str:
    """Write the query whose column `score` is the decision function of every row of the join (positive: `classes[1]`).

    Args:
        fit: A fitted model.
        tables: The SQL that stands for a table in FROM, if not what the join was made from, such as `main.sales` or
            `read_parquet('sales.parquet')`.

    Returns:
        `SELECT fact.*, score FROM ...`, standard SQL. If tables have equal rows, each joined row comes once a copy.
    """
    join, names = fit.join, fit.join.names
    terms = _terms(fit)
    sources = {name: quoted(name) for name in names} | fit.join.sources | (tables or {})
    hub = join.tree.label
    joined, clauses = {hub}, [f"{sources[names[hub]]} AS {quoted(names[hub])}"]
    while len(joined) < len(names):
        i, j = next((i, j) for i, j in join.tree.kid if i in joined and j not in joined)
        tests = [
            " = ".join(compared(f"{quoted(n)}.{quoted(owners[n])}", join.casts.get(key)) for n in (names[i], names[j]))
            for key, owners in join.keys.items()
            if names[i] in owners and names[j] in owners
        ]
        clauses.append(f"JOIN {sources[names[j]]} AS {quoted(names[j])} ON {' AND '.join(tests) or 'TRUE'}")
        joined.add(j)
    body = "\n    + ".join(terms)
    return f"SELECT {quoted(names[hub])}.*,\n    {body} AS score\nFROM " + "\n".join(clauses)


def _terms(fit: Any) -> list[str]:
    """Write the summands of the score: the intercept, then one a number and one a category."""
    terms, coef = [_number(fit.intercept)], iter(fit.coef)
    for name, block in zip(fit.join.names, fit.join.blocks, strict=True):
        for feature, fill in zip(block.names, block.fill, strict=True):
            if feature:
                value = compared(f"{quoted(name)}.{quoted(feature)}", DOUBLE)
                if not np.isnan(fill):
                    value = f"COALESCE(NULLIF({value}, CAST('NaN' AS {DOUBLE})), {_number(fill)})"
                terms.append(f"{_number(next(coef))} * {value}")
        for category in block.categories:
            tests = _tests(f"{quoted(name)}.{quoted(category.name)}", category.levels)
            cases = [f"WHEN {test} THEN {_number(next(coef))}" for test in tests]
            terms.append(f"CASE {' '.join(cases)} ELSE 0 END")
    return terms


def decision_function(fit: Any, rows: Any) -> np.ndarray:
    """Return the scores of joined rows.

    Args:
        fit: A fitted model.
        rows: A table (pandas, polars, Arrow, dict of arrays) of joined rows. Its columns have their names in their
            tables, or are called `table.column` if two tables share a name.

    Returns:
        `(k,)`; NaN where a number is missing that was never missing in training.

    Raises:
        InputError: On a feature that is absent, or has values of another kind than in training.
    """
    known, terms, at = column_names(rows), [], 0
    for name, block in zip(fit.join.names, fit.join.blocks, strict=True):

        def read(feature: str, name: str = name) -> Column:
            wanted = f"{name}.{feature}" if f"{name}.{feature}" in known else feature
            if wanted not in known:
                raise InputError(f"rows has no column {feature} or {name}.{feature}: every feature is needed.")
            return as_feature(column("rows", rows, wanted))

        for feature, fill in zip(block.names, block.fill, strict=True):
            if feature:
                part = read(feature)
                values = np.where(part.missing, fill, numbers(part, f"rows.{feature}"))
                terms.append(fit.coef[at] * values)
                at += 1
        for category in block.categories:
            coef = fit.coef[at : at + len(category.levels)]
            terms.append(_level_scores(category.levels, coef, read(category.name), f"{name}.{category.name}"))
            at += len(coef)
    if not terms:
        raise InputError("the model has no features: every score is its intercept.")
    return sum(terms, 0.0) + fit.intercept


def _level_scores(levels: Column, coef: np.ndarray, part: Column, where: str) -> np.ndarray:
    """Return the coefficient of each row's level, `(k,)`; 0 for a level that training did not see."""
    (of_level, of_row), values = shared_codes([levels, part], [f"{where} in training", "rows"])
    scores = np.zeros(len(values) + 1)  # the last one is for missing values: code -1
    scores[of_level] = coef
    return scores[of_row]


def _tests(value: str, levels: Column) -> list[str]:
    """Write for each level the condition that a column has it."""
    cast = {"text": "VARCHAR", "uuid": "VARCHAR", "float": DOUBLE}.get(levels.kind)
    tests = []
    for level, gone in zip(python_values(levels).tolist(), levels.missing, strict=True):
        tests.append(f"{value} IS NULL" if gone else f"{compared(value, cast)} = {_literal(levels.kind, level)}")
    return tests


def _literal(kind: str, level: Any) -> str:
    """Write a level of a category as SQL."""
    if kind == "boolean":
        return "TRUE" if level else "FALSE"
    if kind in ("text", "uuid"):
        return "'" + level.replace("'", "''") + "'"
    if kind == "float":
        return _number(level)
    return f"{kind.upper()} '{level}'" if kind in ("date", "timestamp") else str(level)


def _number(value: Any) -> str:
    """Write a double as SQL; a literal without an exponent would be a decimal."""
    text = repr(float(value))
    return f"({text})" if "e" in text else f"({text}e0)"
