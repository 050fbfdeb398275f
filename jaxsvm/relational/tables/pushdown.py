"""The queries that reduce the tables of a join where they lie; see `database.py`."""

from typing import NamedTuple

from jaxsvm.relational.tables.keys import Attributes
from jaxsvm.relational.tables.sql_types import Declared


class Plan(NamedTuple):
    """What is asked of the database.

    Attributes:
        sources: What stands for each table in FROM.
        columns: The declared type of each column of each table.
        found: The attributes of the join.
        casts: In which type attributes are compared, where that is not their own.
        wanted: The features of each table.
        label: The table and column of the label.
        edges: Of the join tree.
        missing: As in `Join`.
    """

    sources: dict[str, str]
    columns: dict[str, dict[str, Declared]]
    found: Attributes
    casts: dict[str, str]
    wanted: dict[str, list[str]]
    label: tuple[str, str]
    edges: list[tuple[int, int]]
    missing: str


def queries(plan: Plan) -> list[str]:
    """For each table its query: features and label as c0, c1, ..., keys as `edge_name`, multiplicities as n.

    No name of the user's is an output of a subquery, so that none can be taken for one of ours.
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

    def semijoin(one: str, others: list[tuple[str, list[str]]]) -> str:
        tests = []
        for other, both in others:
            equal = " AND ".join(f"b.{key} = a.{key}" for key in both) or "TRUE"
            tests.append(f"EXISTS (SELECT 1 FROM {other} AS b WHERE {equal})")
        return f"SELECT * FROM {one} AS a" + (f" WHERE {' AND '.join(tests)}" if tests else "")

    def both(i: int, j: int) -> list[str]:
        return [f"k{a}" for a, owners in enumerate(plan.found.values()) if names[i] in owners and names[j] in owners]

    for i in reversed(order):
        steps.append(f"up{i} AS ({semijoin(f'base{i}', [(f'up{j}', both(i, j)) for j in near[i] if j != parent[i]])})")
    for i in order:
        above = [(f"down{parent[i]}", both(i, parent[i]))] if parent[i] >= 0 else []
        steps.append(f"down{i} AS ({semijoin(f'up{i}', above)})")
    out = []
    for i, name in enumerate(names):
        inner = [f"c{k}" for k in range(len(chosen(plan, name)))]
        group = inner + [edge_name(i, j) for j in near[i]]
        for j in near[i]:
            by = ", ".join(both(i, j))
            inner.append(f"DENSE_RANK() OVER (ORDER BY {by}) AS {edge_name(i, j)}" if by else f"1 AS {edge_name(i, j)}")
        query = f"SELECT {', '.join([*group, 'COUNT(*) AS n'])} FROM (SELECT {', '.join(inner) or '1'} FROM down{i})"
        query = f"WITH {', '.join(steps)} {query} AS reduced"
        out.append(query + (f" GROUP BY {', '.join(group)}" if group else ""))
    return out


def edge_name(i: int, j: int) -> str:
    """What the numbers of the keys of an edge are called, at both of its ends."""
    return f"e{min(i, j)}_{max(i, j)}"


def chosen(plan: Plan, name: str) -> list[str]:
    """The columns of a table that come over."""
    return [*plan.wanted[name], *([plan.label[1]] if name == plan.label[0] else [])]


def _base(plan: Plan, name: str) -> str:
    """A table's keys that may join, its features and label."""
    kept, needed = [], []
    for a, (attribute, owners) in enumerate(plan.found.items()):
        if name in owners:
            kept.append(f"{compared(f't.{quoted(owners[name])}', plan.casts.get(attribute))} AS k{a}")
            needed.append(owners[name])
    for k, c in enumerate(chosen(plan, name)):
        kind, value = plan.columns[name][c], f"t.{quoted(c)}"
        # Enumerations and padded texts as what they say; drivers round REAL to decimals, and Arrow has no UHUGEINT.
        double = kind.narrow or kind.name == "UHUGEINT"
        cast = "VARCHAR" if kind.kind == "text" else "DOUBLE PRECISION" if double else None
        kept.append(f"{compared(value, cast)} AS c{k}")
        needed += [c] if plan.missing == "drop" else []
    tests = " AND ".join(f"t.{quoted(c)} IS NOT NULL" for c in dict.fromkeys(needed)) or "TRUE"
    return f"SELECT {', '.join(kept) or '1 AS nothing'} FROM {plan.sources[name]} AS t WHERE {tests}"


def compared(value: str, cast: str | None) -> str:
    """A value in another type, where there is one."""
    return value if cast is None else f"CAST({value} AS {cast})"


def quoted(name: str) -> str:
    """A name as standard SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'
