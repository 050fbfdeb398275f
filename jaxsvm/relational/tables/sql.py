"""Scoring in the database: a fitted model as one query, and the same scores of joined rows here.

The query joins the tables as the join tree does and adds up, for each joined row, coefficients times numbers and the
coefficient of each category's level; a level that training did not see adds nothing, in SQL and here. A missing number
stands for its mean where training imputed, else the score is NULL. Numbers count as doubles, as in training.
"""

from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.tables.columns import Column, as_feature, numbers, shared_codes, shown
from jaxsvm.relational.tables.pushdown import compared, quoted
from jaxsvm.relational.tables.reading import column, column_names

DOUBLE = "DOUBLE PRECISION"


def to_sql(fit: Any, tables: dict[str, str] | None = None) -> str:
    """The query whose column `score` is the decision function of every row of the join (positive: `classes[1]`).

    Args:
        fit: A fitted model.
        tables: How the database calls a table, where that is not what the join was made from: any SQL that may stand in
            FROM, such as `main.sales` or `read_parquet('sales.parquet')`.

    Returns:
        `SELECT fact.*, score FROM ...`, standard SQL. In tables with equal rows each joined row comes once a copy.
    """
    join, names = fit.join, fit.join.names
    given, terms, at = {**fit.join.sources, **(tables or {})}, [_number(fit.intercept)], 0
    for name, block in zip(names, join.blocks, strict=True):
        where = quoted(name)
        real = [k for k, feature in enumerate(block.names) if feature]
        for k in real:
            value = compared(f"{where}.{quoted(block.names[k])}", DOUBLE)
            if not np.isnan(block.fill[k]):
                value = f"COALESCE(NULLIF({value}, CAST('NaN' AS {DOUBLE})), {_number(block.fill[k])})"
            terms.append(f"{_number(fit.coef[at])} * {value}")
            at += 1
        for category in block.categories:
            value, cases = f"{where}.{quoted(category.name)}", []
            for test in _tests(value, category.levels):
                cases.append(f"WHEN {test} THEN {_number(fit.coef[at])}")
                at += 1
            terms.append(f"CASE {' '.join(cases)} ELSE 0 END")
    hub = join.tree.label
    joined, clauses = {hub}, [f"{given.get(names[hub], quoted(names[hub]))} AS {quoted(names[hub])}"]
    while len(joined) < len(names):
        i, j = next((i, j) for i, j in join.tree.kid if i in joined and j not in joined)
        tests = [
            " = ".join(compared(f"{quoted(n)}.{quoted(owners[n])}", join.casts.get(key)) for n in (names[i], names[j]))
            for key, owners in join.keys.items()
            if names[i] in owners and names[j] in owners
        ]
        clauses.append(
            f"JOIN {given.get(names[j], quoted(names[j]))} AS {quoted(names[j])} ON {' AND '.join(tests) or 'TRUE'}"
        )
        joined.add(j)
    body = "\n    + ".join(terms)
    return f"SELECT {quoted(names[hub])}.*,\n    {body} AS score\nFROM " + "\n".join(clauses)


def decision_function(fit: Any, rows: Any) -> np.ndarray:
    """Scores of joined rows.

    Args:
        fit: A fitted model.
        rows: A table (pandas, polars, Arrow, dict of arrays) of joined rows; its columns are called as in their tables,
            or `table.column` where two tables have a name.

    Returns:
        `(k,)`; NaN where a number is missing that was never missing in training.

    Raises:
        InputError: On a feature that is absent, or whose values are of another kind than in training.
    """
    known, total, at = column_names(rows), None, 0
    for name, block in zip(fit.join.names, fit.join.blocks, strict=True):

        def of(feature: str, name: str = name) -> Column:
            wanted = f"{name}.{feature}" if f"{name}.{feature}" in known else feature
            if wanted not in known:
                raise InputError(f"rows has no column {feature} or {name}.{feature}: every feature is needed.")
            return as_feature(column("rows", rows, wanted))

        for k, feature in enumerate(block.names):
            if feature:
                part = of(feature)
                values = np.where(part.missing, block.fill[k], numbers(part, f"rows.{feature}"))
                total = (0.0 if total is None else total) + fit.coef[at] * values
                at += 1
        for category in block.categories:
            part, n = of(category.name), len(category.levels)
            found = _worth(category.levels, fit.coef[at : at + n], part, f"{name}.{category.name}")
            total, at = (0.0 if total is None else total) + found, at + n
    if total is None:
        raise InputError("the model has no features: every score is its intercept.")
    return total + fit.intercept


def _worth(levels: Column, coef: np.ndarray, part: Column, where: str) -> np.ndarray:
    """The coefficient of each row's level, 0 for one that training did not see, `(k,)`."""
    (of_level, of_row), distinct = shared_codes([levels, part], [f"{where} in training", "rows"])
    worth = np.zeros(len(distinct) + 1)  # the last one for missing: code -1
    worth[of_level] = coef
    return worth[of_row]


def _tests(value: str, levels: Column) -> list[str]:
    """For each level the condition that a column has it."""
    cast = {"text": "VARCHAR", "uuid": "VARCHAR", "float": DOUBLE}.get(levels.kind)
    tests = []
    for level, gone in zip(shown(levels).tolist(), levels.missing, strict=True):
        tests.append(f"{value} IS NULL" if gone else f"{compared(value, cast)} = {_literal(levels.kind, level)}")
    return tests


def _literal(kind: str, level: Any) -> str:
    if kind == "boolean":
        return "TRUE" if level else "FALSE"
    if kind in ("text", "uuid"):
        return "'" + level.replace("'", "''") + "'"
    if kind == "float":
        return _number(level)
    return f"{kind.upper()} '{level}'" if kind in ("date", "timestamp") else str(level)


def _number(value: Any) -> str:
    text = repr(float(value))
    return f"({text})" if "e" in text else f"({text}e0)"  # without an exponent a literal is a decimal
