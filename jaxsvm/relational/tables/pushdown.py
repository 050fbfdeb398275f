"""Write the SQL queries that reduce the tables of a join inside their database; see `schema/database.py`."""

from typing import NamedTuple

from jaxsvm.relational.tables.keys import Attributes
from jaxsvm.relational.tables.sql_types import DOUBLE, Declared


class Plan(NamedTuple):
    """The description of a join in a database."""

    sources: dict[str, str]  # the SQL that stands for each table in FROM
    columns: dict[str, dict[str, Declared]]  # the declared type of each column of each table
    keys: Attributes  # the attributes of the join
    casts: dict[str, str]  # the type in which attributes are compared, if it is not their own
    features: dict[str, list[str]]  # the features of each table
    label: tuple[str, str]  # the table and column of the label
    edges: list[tuple[int, int]]  # the edges of the join tree
    missing: str  # "refuse", "impute" or "drop"


def queries(plan: Plan) -> list[str]:
    """Write one query per table: features and label as c0, c1, ..., keys as `edge_name`, multiplicities as n.

    The subqueries output only names made by this function, so a name of the user cannot collide with one.
    """
    names, near = list(plan.sources), {i: [] for i in range(len(plan.sources))}
    for i, j in plan.edges:
        near[i].append(j)
        near[j].append(i)
    order, parent = [names.index(plan.label[0])], {names.index(plan.label[0]): -1}
    for i in order:
        for j in near[i]:
            if j != parent[i]:
                parent[j] = i
                order.append(j)
    steps = [f"base{i} AS ({_base(plan, name)})" for i, name in enumerate(names)]

    def shared(i: int, j: int) -> list[str]:
        return [f"k{a}" for a, owners in enumerate(plan.keys.values()) if names[i] in owners and names[j] in owners]

    for i in reversed(order):
        below = [(f"up{j}", shared(i, j)) for j in near[i] if j != parent[i]]
        steps.append(f"up{i} AS ({_semijoin(f'base{i}', below)})")
    for i in order:
        above = [(f"down{parent[i]}", shared(i, parent[i]))] if parent[i] >= 0 else []
        steps.append(f"down{i} AS ({_semijoin(f'up{i}', above)})")
    out = []
    for i, name in enumerate(names):
        inner = [f"c{k}" for k in range(len(_fetched(plan, name)))]
        group = inner + [edge_name(i, j) for j in near[i]]
        for j in near[i]:
            by = ", ".join(shared(i, j))
            inner.append(f"DENSE_RANK() OVER (ORDER BY {by}) AS {edge_name(i, j)}" if by else f"1 AS {edge_name(i, j)}")
        query = f"SELECT {', '.join([*group, 'COUNT(*) AS n'])} FROM (SELECT {', '.join(inner) or '1'} FROM down{i})"
        query = f"WITH {', '.join(steps)} {query} AS reduced"
        out.append(query + (f" GROUP BY {', '.join(group)}" if group else ""))
    return out


def _semijoin(table: str, others: list[tuple[str, list[str]]]) -> str:
    tests = []
    for other, keys in others:
        equal = " AND ".join(f"b.{key} = a.{key}" for key in keys) or "TRUE"
        tests.append(f"EXISTS (SELECT 1 FROM {other} AS b WHERE {equal})")
    return f"SELECT * FROM {table} AS a" + (f" WHERE {' AND '.join(tests)}" if tests else "")


def edge_name(i: int, j: int) -> str:
    """Return the column name of the key numbers of an edge, the same at both of its ends."""
    return f"e{min(i, j)}_{max(i, j)}"


def _fetched(plan: Plan, name: str) -> list[str]:
    """Return the columns of a table that are fetched: features, and the label."""
    return [*plan.features[name], *([plan.label[1]] if name == plan.label[0] else [])]


def losses(plan: Plan, name: str) -> str:
    """Count the rows of a table, as n, those with a missing key, and of the others those that a missing value drops."""
    keys = [f"t.{quoted(owners[name])} IS NULL" for owners in plan.keys.values() if name in owners]
    values = [f"t.{quoted(c)} IS NULL" for c in _fetched(plan, name)] if plan.missing == "drop" else []
    keyless, dropped = (" OR ".join(tests) or "FALSE" for tests in (keys, values))
    counts = f"COUNT(CASE WHEN {keyless} THEN 1 END) AS keyless"
    counts += f", COUNT(CASE WHEN NOT ({keyless}) AND ({dropped}) THEN 1 END) AS dropped"
    return f"SELECT COUNT(*) AS n, {counts} FROM {plan.sources[name]} AS t"


def _base(plan: Plan, name: str) -> str:
    """Select the keys, features and label of a table; rows with a missing key are left out."""
    kept, needed = [], []
    for a, (attribute, owners) in enumerate(plan.keys.items()):
        if name in owners:
            kept.append(f"{compared(f't.{quoted(owners[name])}', plan.casts.get(attribute))} AS k{a}")
            needed.append(owners[name])
    for k, c in enumerate(_fetched(plan, name)):
        kind, value = plan.columns[name][c], f"t.{quoted(c)}"
        # Enumerations and padded texts as their texts; drivers round REAL to decimals, and Arrow has no UHUGEINT.
        double = kind.narrow or kind.name == "UHUGEINT"
        cast = "VARCHAR" if kind.kind == "text" else DOUBLE if double else None
        kept.append(f"{compared(value, cast)} AS c{k}")
        needed += [c] if plan.missing == "drop" else []
    tests = " AND ".join(f"t.{quoted(c)} IS NOT NULL" for c in dict.fromkeys(needed)) or "TRUE"
    return f"SELECT {', '.join(kept) or '1 AS nothing'} FROM {plan.sources[name]} AS t WHERE {tests}"


def compared(value: str, cast: str | None) -> str:
    """Cast a value to another type, if there is one."""
    return value if cast is None else f"CAST({value} AS {cast})"


def quoted(name: str) -> str:
    """Quote a name as standard SQL does."""
    return '"' + name.replace('"', '""') + '"'
