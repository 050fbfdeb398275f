"""Scoring in the database: a fitted model as one query, and the same scores of joined rows here.

The query joins the tables as the join tree does and adds up, for each joined row, coefficients times numbers and the
coefficient of each category's level; a level that training did not see adds nothing, in SQL and here. A missing number
stands for its mean where training imputed, else the score is NULL.
"""

from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.database import quoted
from jaxsvm.relational.tables import column, column_names

MISSING = "(missing)"


def to_sql(fit: Any, tables: dict[str, str] | None = None) -> str:
    """The query whose column `score` is the decision function of every row of the join (positive: `classes[1]`).

    Args:
        fit: A fitted model.
        tables: How the database calls a table, where that is not the name it has in the join: any SQL that may stand in
            FROM, such as `main.sales` or `read_parquet('sales.parquet')`.

    Returns:
        `SELECT fact.*, score FROM ...`, standard SQL. In tables with equal rows each joined row comes once a copy.
    """
    join, names = fit.join, fit.join.names
    given, terms, at = tables or {}, [_number(fit.intercept)], 0
    for name, block in zip(names, join.blocks, strict=True):
        where = quoted(name)
        real = [k for k, feature in enumerate(block.names) if feature]
        for k in real:
            value = f"{where}.{quoted(block.names[k])}"
            value = value if np.isnan(block.fill[k]) else f"COALESCE({value}, {_number(block.fill[k])})"
            terms.append(f"{_number(fit.coef[at])} * {value}")
            at += 1
        for category in block.categories:
            value = f"{where}.{quoted(category.name)}"
            cases = []
            for level in category.levels:
                test = f"{value} IS NULL" if level == MISSING else f"{value} = {_literal(level)}"
                cases.append(f"WHEN {test} THEN {_number(fit.coef[at])}")
                at += 1
            terms.append(f"CASE {' '.join(cases)} ELSE 0 END")
    hub = join.tree.label
    joined, clauses = {hub}, [f"{given.get(names[hub], quoted(names[hub]))} AS {quoted(names[hub])}"]
    while len(joined) < len(names):
        i, j = next((i, j) for i, j in join.tree.kid if i in joined and j not in joined)
        both = [owners for owners in join.keys.values() if names[i] in owners and names[j] in owners]
        tests = [" = ".join(f"{quoted(n)}.{quoted(owners[n])}" for n in (names[i], names[j])) for owners in both]
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
        rows: A table (pandas, Arrow, dict of arrays) of joined rows; its columns are called as in their tables, or
            `table.column` where two tables have a name.

    Returns:
        `(k,)`; NaN where a number is missing that was never missing in training.
    """
    known, total, at = column_names(rows), None, 0
    for name, block in zip(fit.join.names, fit.join.blocks, strict=True):

        def of(feature: str, name: str = name) -> Any:
            wanted = f"{name}.{feature}" if f"{name}.{feature}" in known else feature
            if wanted not in known:
                raise InputError(f"rows has no column {feature} or {name}.{feature}: every feature is needed.")
            return column("rows", rows, wanted)

        for k, feature in enumerate(block.names):
            if feature:
                part = of(feature)
                values = np.where(part.missing, block.fill[k], np.where(part.missing, 0, part.values).astype(float))
                total = (0.0 if total is None else total) + fit.coef[at] * values
                at += 1
        for category in block.categories:
            part, n = of(category.name), len(category.levels)
            text = np.where(part.missing, MISSING, part.values.astype(str)) if part.missing.any() else part.values
            place = np.clip(np.searchsorted(category.levels, text), 0, n - 1)
            found = fit.coef[at : at + n][place] * (category.levels[place] == text)
            total, at = (0.0 if total is None else total) + found, at + n
    if total is None:
        raise InputError("the model has no features: every score is its intercept.")
    return total + fit.intercept


def _number(value: Any) -> str:
    return f"({float(value)!r})"


def _literal(value: Any) -> str:
    if isinstance(value, np.bool_ | bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value.item() if hasattr(value, "item") else value)
