"""Choose a join tree, and make features and signs of labels of the tables, reduced by the database.

A join is a hypergraph: its key attributes are the vertices, its tables the edges. It is acyclic if in some tree over
the tables those of each attribute are connected; then one pass over it counts the join. GYO (Graham; Yu and Ozsoyoglu
1979) removes ears, each an edge of the tree, until one table is left, or the cyclic core.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array  # jax depends on SciPy

from jaxsvm.errors import InputError, require, require_part
from jaxsvm.relational.schema.tree import Tree
from jaxsvm.relational.tables import pushdown as sql
from jaxsvm.relational.tables.columns import CATEGORIES_BY_REQUEST, NUMBERS, levels_of, numbers, present

if TYPE_CHECKING:
    import pyarrow as pa


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """The features of a table: numbers, and then an indicator for each level of each category."""

    X: np.ndarray  # its numbers, float64 `(n_i, p)`, scaled
    names: list[str | None]  # names of the columns of X; None is the constant
    mean: np.ndarray  # the number subtracted from each column, `(p,)`
    scale: np.ndarray  # the number each was divided by then, `(p,)`
    fill: np.ndarray  # the number that replaces a missing one, `(p,)`; NaN if missing numbers are refused
    absent: np.ndarray  # which numbers were missing, `(n_i, p)`, the constant's apart
    codes: np.ndarray  # which indicators are 1, one of each category, int32 `(n_i, c)`
    categories: dict[str, list[str | None]]  # by column its levels, in order; the missing one, if any, is last
    kinds: dict[str, str]  # by column of a category the kind of its values

    @property
    def d(self) -> int:
        """Return the number of coefficients."""
        return len(self.names) + sum(map(len, self.categories.values()))

    @cached_property
    def sparse(self) -> csr_array:
        """Return all features, `(n_i, d)`."""
        p, (n, c) = len(self.names), self.codes.shape
        values = np.append(self.X, np.ones((n, c)), axis=1).ravel()
        places = np.append(np.tile(np.arange(p), (n, 1)), p + self.codes, axis=1).ravel()
        return csr_array((values, places, (p + c) * np.arange(n + 1)), shape=(n, self.d))

    @property
    def matrix(self) -> Any:
        """Return all features, `(n_i, d)`: an array if all are numbers."""
        return self.sparse if self.categories else self.X


def block_of(
    table: str, copies: np.ndarray, parts: Mapping[str, pa.Array], kinds: dict[str, str], missing: str
) -> Block:  # fmt: skip
    """Make the features of a table from their columns by name, the kinds of categories, and copies of rows, `(n,)`."""
    columns, names, fills, gone, codes, categories = [], [], [], [], [], {}
    for name, given in parts.items():
        where, array = f"{table}.{name}", present(given)
        absent = array.is_null().to_numpy(zero_copy_only=False)
        if absent.any() and missing != "impute":
            raise InputError(
                f"feature {where} is missing in {copies[absent].sum():.0f} of {copies.sum():.0f} rows that join: "
                "choose missing='impute', remove them (`dropna`; WHERE ... IS NOT NULL), or leave it out of features."
            )
        if name in kinds:
            known, code = levels_of(array)
            codes.append(code + sum(map(len, categories.values())))
            categories[name] = known.to_pylist()
            continue
        values, fill = numbers(array, where), np.nan
        if np.isinf(values).any():
            raise InputError(f"feature {where} has infinite values: remove them or make them missing.")
        if missing == "impute":
            fill = 0.0 if absent.all() else np.average(values[~absent], weights=copies[~absent])
        names.append(name)
        fills.append(fill)
        gone.append(absent)
        columns.append(np.where(absent, fill, values))
    X, absent, places = (np.reshape(part, (len(part), len(copies))).T for part in (columns, gone, codes))
    p, fill, places = len(names), np.array(fills), places.astype(np.int32)
    return Block(X, names, np.zeros(p), np.ones(p), fill, absent.astype(bool), places, categories, kinds)


def prepared(
    join: Any, scale: str = "none", intercept: bool = False, class_weight: Mapping[Any, float] | str | None = None
) -> Any:
    """Scale the features of a join, add a constant one to the label's table, and weight its labels.

    "max" scales by the largest absolute value of a feature among rows that join, as in the paper, "standard" to mean 0
    and variance 1 over them; levels of categories stay 0 and 1. The constant is regularised like the others.
    """
    require_part("join", join, "blocks", "a `relational.Join` is needed")
    require(scale in ("none", "max", "standard"), f"scale is {scale!r}: one of none, max, standard is needed.")
    out, zeros = join, [np.zeros(len(block.names)) for block in join.blocks]

    def means(form: str) -> list[np.ndarray]:
        return [part[: len(zero)] for part, zero in zip(out.split(out.means(form)), zeros, strict=True)]

    if scale == "max":
        out = _moved(out, zeros, out.largest())
    elif scale == "standard":
        out = _moved(out, first := means("value"), zeros)
        pairs = zip(means("square"), first, strict=True)
        out = _moved(out, zeros, [np.where(v > 1e-24 * m * m, v, 0) ** 0.5 for v, m in pairs])  # less is rounding
    if intercept and not out.constant:
        out, hub = copy.copy(out), out.tree.label
        of, one = out.blocks[hub], np.ones((len(out.blocks[hub].X), 1))
        ends = {"mean": np.append(of.mean, 0.0), "scale": np.append(of.scale, 1.0), "fill": np.append(of.fill, np.nan)}
        block = dataclasses.replace(of, X=np.append(of.X, one, axis=1), names=[*of.names, None], **ends)
        out.blocks, out.constant = [block if i == hub else other for i, other in enumerate(out.blocks)], True
    if class_weight is not None:
        sums = np.bincount(join.codes, join.counts()[join.tree.label])
        out = out.weighted(join.tree.label, _factors(join.classes.tolist(), class_weight, sums)[join.codes])
    return out


def _moved(join: Any, means: list[np.ndarray], sizes: list[np.ndarray]) -> Any:
    """Return the join with its numbers shifted and divided, but by no size of 0, and not the constant."""
    out, blocks = copy.copy(join), []
    for given, m, s in zip(join.blocks, means, sizes, strict=True):
        number = np.array([name is not None for name in given.names], bool)
        mean, size = np.where(number, m, 0.0), np.where(number & (s > 0), s, 1.0)
        # Numbers may have been scaled before, `x = mean + scale X`: combine both.
        moved = {"X": (given.X - mean) / size, "mean": given.mean + given.scale * mean, "scale": given.scale * size}
        blocks.append(dataclasses.replace(given, **moved))
    out.blocks = blocks
    return out


def _factors(classes: list[Any], class_weight: Mapping[Any, float] | str, sums: np.ndarray) -> np.ndarray:
    """Return the factors of the labels, `(k,)`, given the sums of weights of each, `(k,)`."""
    if class_weight == "balanced":
        return sums.sum() / (len(sums) * sums)
    known = isinstance(class_weight, Mapping) and set(class_weight) <= set(classes)
    if not known or not all(np.isfinite(factor) and factor > 0 for factor in class_weight.values()):  # pyright: ignore
        raise InputError(f"class_weight is {class_weight!r}: 'balanced', or factors above 0 of {classes}, are needed.")
    return np.array([class_weight.get(c, 1.0) for c in classes], float)  # pyright: ignore


def arranged(plan: sql.Plan, named: dict[str, list[str]], sources: dict[str, str]) -> tuple[sql.Plan, Any, list[str]]:
    """Find the join tree, of keys round a cycle with a table of them; return the plan with it, a `Schema` and notes.

    `named` are the columns of each table, `sources` what a scoring query reads; `plan.roles.optional` is completed.
    """
    check_types(plan)
    (label, _), keys, optional, casts, notes = plan.roles.label, plan.roles.keys, plan.roles.optional, {}, []
    for key, owners in plan.roles.keys.items():
        columns = {f"{name}.{c}": (f"{plan.sources[name]} AS t", plan.columns[name][c]) for name, c in owners.items()}
        cast = sql.common_type(plan.database, columns)
        casts |= {} if cast is None else {key: cast}
    while True:
        names, tables = list(plan.sources), [frozenset(plan.roles.shared(name, name)) for name in plan.sources]
        inner = required(names, tables, hub := names.index(label), optional)
        if len(core := ears([tables[k] for k in inner])[0]) == 1:
            break
        plan, said = sql.keyed_by_two(plan, casts, [names[inner[i]] for i in core])
        notes.append(said)
    plan = plan._replace(edges=[(names[i], names[j]) for i, j in join_tree(names, tables, hub, optional)])
    apart = [pair for pair in plan.edges if not plan.roles.shared(*pair)]
    notes += [f"{one} and {two} share no key: every row of one joins every row of the other." for one, two in apart]
    order = [label, *(name for _, name in plan.edges if name in named)]
    return plan, sql.Schema(named, label, order, keys, sorted(optional), sources, casts), notes


def assembled(plan: sql.Plan, casts: Mapping[str, str], notes: list[str]) -> tuple[Any, ...]:
    """Return `tree`, `blocks`, `codes`, `classes` and `rows` of a `Join`, of an arranged plan; add to the notes."""
    names, (ask, wanted) = list(plan.sources), sql.queries(plan, casts)
    edges, hub = [link[:2] for link in plan.links], names.index(plan.roles.label[0])
    tables = list(map(ask, wanted))
    weights, many, blocks, rows = [], [], [], []
    for name, table in zip(names, tables, strict=True):
        many.append(numbers(table["n"], name))
        weights.append(np.where(many[-1] > 0, numbers(table["w"], name), 1.0))  # an absent row has none
        notes += _losses(plan, name, many[-1].sum(), (many[-1] > 0).sum())
        rows.append(np.arange(len(many[-1])) if not plan.own else table["first"].to_numpy())
    codes, classes = _coded(plan, tables[hub][f"c{hub}_{len(plan.roles.features[names[hub]])}"], many[hub])
    for i, (name, table, copies) in enumerate(zip(names, tables, many, strict=True)):
        parts = {c: table[f"c{i}_{k}"] for k, c in enumerate(plan.roles.features[name])}
        kinds = {c: plan.columns[name][c].kind for c in parts if plan.is_category(name, c)}
        blocks.append(block_of(name, copies, parts, kinds, plan.roles.missing))
    kid, count = {}, {}
    for i, j in edges:
        for a, b in ((i, j), (j, i)):
            kid[a, b] = numbers(tables[a][f"e{i}_{j}"], names[a]).astype(np.int64) - 1
        if not np.array_equal(np.unique(kid[i, j]), np.unique(kid[j, i])):
            raise InputError(
                f"tables {names[i]} and {names[j]} have different keys among the rows that join: a table changed "
                "between two queries, or its columns of a key have different collations."
            )
        count[i, j] = count[j, i] = int(kid[i, j].max()) + 1
        notes += _alone(names[i], names[j], many[i][np.isin(kid[i, j], kid[j, i][many[j] == 0])].sum())
    members = [{i: np.arange(len(weight))} for i, weight in enumerate(weights)]
    return Tree(weights, kid, count, hub, _signs(codes, classes), members), blocks, codes, classes, rows


def described(plan: sql.Plan, casts: Mapping[str, str], notes: list[str]) -> tuple[Any, ...]:
    """Sum up a join in the database; add to its notes.

    Return a tree of the different labels, with their weights; blocks without rows; `codes` and `classes`; the labels as
    texts; the numbers of rows of the join, and of its tables that join. Levels and means are of rows that join.
    """
    names, ask, blocks, rows = list(plan.sources), sql.queries(plan, casts)[0], [], 0
    for i, name in enumerate(names):
        kept = ask(f"SELECT COUNT(first) AS n FROM down{i}")["n"][0].as_py()
        notes += _losses(plan, name, kept, kept)
        rows += kept
        fills, empty, categories, kinds = [], {}, {}, {}
        for k, c in enumerate(plan.roles.features[name]):
            value = by = f"c{i}_{k}"
            if plan.is_category(name, c):
                kinds[c] = plan.columns[name][c].kind
            else:  # the mean and, of missing ones, NULL
                of, end = (f"CAST({part} AS {sql.DOUBLE})" for part in (value, "'Infinity'"))
                of = f"NULLIF({of}, CAST('NaN' AS {sql.DOUBLE}))"
                value, by = f"CASE WHEN MAX(ABS({of})) = {end} THEN {end} ELSE AVG({of}) END", f"{of} IS NULL"
            found = ask(f"SELECT {value} AS c, COUNT(first) AS n FROM down{i} GROUP BY {by}")
            one = block_of(name, numbers(found["n"], c), {c: found["c"]}, kinds, plan.roles.missing)
            fills, categories, empty[c] = [*fills, *one.fill], categories | one.categories, found["c"][:0]
        block = block_of(name, np.zeros(0), empty, kinds, plan.roles.missing)
        blocks.append(dataclasses.replace(block, fill=np.array(fills), categories=categories))
    for near, name in [pair for pair in plan.edges if pair[1] in plan.roles.optional]:
        notes += _alone(near, name, ask(f"SELECT COUNT(first) AS n FROM alone{names.index(name)}")["n"][0].as_py())
    hub, nodes = names.index(plan.roles.label[0]), sql.nodes_of(plan, casts)
    label = f"c{hub}_{len(plan.roles.features[names[hub]])}"
    y = sql.compared(label, "VARCHAR")
    found = ask(f"SELECT {label} AS c, {y} AS y, COUNT(first) AS n FROM down{hub} GROUP BY {label}, {y} ORDER BY y")
    weights, counts = (sql.totals(nodes, [], [()], y, weight=weight) for weight in ("COALESCE(w, 1)", "1e0"))
    sums = dict(zip(weights["y"].to_pylist(), numbers(weights["s0"], "w"), strict=True))
    w = np.array([sums.get(y, 0.0) for y in found["y"].to_pylist()])
    codes, classes = _coded(plan, found["c"], numbers(found["n"], label))
    tree = Tree([w] * len(names), {}, {}, hub, _signs(codes, classes), [{}] * len(names))
    return tree, blocks, codes, classes, found["y"], int(numbers(counts["s0"], "n").sum()), rows


def _signs(codes: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return 2.0 * codes - 1 if len(classes) == 2 else np.full(len(codes), np.nan)


def _alone(near: str, name: str, rows: float) -> list[str]:
    return [f"{near}: {rows:.0f} rows have no partner in {name}: its features are missing there."] if rows else []


def check_types(plan: sql.Plan) -> None:
    """Refuse a label, weights, and features that are neither numbers nor categories, by their types."""
    columns, roles = plan.columns, plan.roles
    for table, name in roles.weights.items():
        if columns[table][name].kind not in NUMBERS:
            raise InputError(f"weights names {table}.{name}, of type {columns[table][name].name}: cast it to a number.")
    table, name = roles.label
    if columns[table][name].kind == "other":
        raise InputError(f"label {table}.{name} is {columns[table][name].name}: cast it to a text or a number.")
    for table, c in [(table, c) for table, chosen in roles.features.items() for c in chosen]:
        kind, on_request, asked = columns[table][c].kind, CATEGORIES_BY_REQUEST, c in roles.categorical.get(table, ())
        if kind in (on_request if asked else (*NUMBERS, *sql.CATEGORIES)):
            continue
        if kind in NUMBERS:
            raise InputError(
                f"categorical[{table!r}] names {c}, of type {columns[table][c].name}: cast it to integers (pandas: "
                "`.astype('Int64')`) or texts, which say the same everywhere."
            )
        described = {"date": "dates", "timestamp": "timestamps", "uuid": "UUIDs"}
        values = described.get(kind, f"values of type {columns[table][c].name}")
        raise InputError(
            f"feature {table}.{c} holds {values}, which are neither numbers nor categories: give numbers (a year, an "
            "hour, days since a day) instead, leave it out (`features={table: [columns]}` names all that count)"
            f"{', or name it in categorical' if kind in on_request else ''}."
        )


def _losses(plan: sql.Plan, name: str, kept: int, different: int) -> list[str]:
    """Return the notes on the rows of a table that are no part of the join, and on those that are equal."""
    less, nothing = plan.without(name)
    wrong = f"NOT COALESCE({plan.weight(name)} BETWEEN 0 AND 1e300, FALSE)"
    tests = ("TRUE", less, f"{nothing} AND NOT ({less})", wrong)
    counts = ", ".join(f"COUNT(CASE WHEN {test} THEN 1 END) AS c{k}" for k, test in enumerate(tests))
    counted = plan.database.ask(f"SELECT {counts} FROM {plan.sources[name]} AS t")
    total, keyless, zero, wrong = (int(part[0].as_py()) for part in counted.values())
    if wrong:
        raise InputError(
            f"weights of {name}.{plan.roles.weights[name]} are missing, negative or infinite in {wrong} rows: numbers "
            "of at least 0 are needed."
        )
    if not kept and name not in plan.roles.optional:
        raise InputError(f"tables make a join without rows (nothing is left of {name}): do keys match, and weigh?")
    lost = {"a key is missing": keyless, "their weight is 0": zero}
    lost["their keys have no partner"] = total - sum(lost.values()) - kept
    notes = [f"{name}: {n:.0f} of {total} rows join with nothing: {why}." for why, n in lost.items() if n > 0]
    return notes + ([f"{name}: {kept:.0f} rows are {different} different ones."] if different < kept else [])


def _coded(plan: sql.Plan, target: Any, copies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the class of each label by its number, `(n,)`, and the classes: two, or several."""
    name, positive = ".".join(plan.roles.label), plan.roles.positive
    known, code = levels_of(target)
    if known.null_count:
        many = copies[code == len(known) - 1].sum()
        raise InputError(f"label {name} is missing in {many:.0f} rows: remove them (`dropna`; WHERE ... IS NOT NULL).")
    whole = str(known.type).startswith("decimal") and not known.type.scale
    values: Any = list(map(int, known.to_pylist())) if whole else known.to_pylist()
    classes = np.array(values) if type(values[0]) in (str, bool, int, float) else np.array(values, object)
    if positive is not None:
        if isinstance(positive, str) and positive not in values:  # as a command gives it
            positive = next((value for value in values if str(value).lower() == positive.lower()), positive)
        if positive not in values:
            raise InputError(f"positive is {positive!r}: the label has {', '.join(map(str, values[:10]))}.")
        code = (code == values.index(positive)).astype(int)
        negative = [c for c in values if c != positive]
        classes = np.array([negative[0] if len(negative) == 1 else f"not {positive}", positive], object)
    if len(classes) < 2:
        raise InputError(f"label {name} has 1 values among rows that join ({classes[0]}): two or more are needed.")
    return code, classes


def ears(tables: Sequence[frozenset[str]], label: int = -1) -> tuple[list[int], list[tuple[int, int]]]:
    """Remove tables, given by their keys, whose keys that others have are all in one of those; never `label`.

    Return what is left, a table or the cyclic core, and the edges of a join tree from there outwards. Among
    possible ones those of small degrees: a node's messages cost a product for each neighbour beyond the second.
    """
    alive, degree, edges = set(range(len(tables))), [0] * len(tables), []
    while True:
        many = Counter(key for k in alive for key in tables[k])
        found = []
        for i in alive - {label}:
            shared = {key for key in tables[i] if many[key] > 1}
            found += [(degree[w], -degree[i], w != label, -i, w) for w in alive - {i} if shared <= tables[w]]
        if not found:
            return sorted(alive), edges[::-1]
        *_, last, w = min(found)
        i = -last
        edges.append((w, i))
        degree[i], degree[w] = degree[i] + 1, degree[w] + 1
        alive.remove(i)


def required(names: Sequence[str], tables: Sequence[frozenset[str]], label: int, optional: set[str]) -> list[int]:
    """Return the tables without which no row joins: not optional ones, and none that joins through those alone."""
    inner = [k for k, name in enumerate(names) if name not in optional]
    near = far = tables[label]  # keys that lead to the label's table, without optional tables and with them
    for _ in tables:
        near = near.union(*(tables[k] for k in inner if tables[k] & near))
        far = far.union(*(of for of in tables if of & far))
    return [k for k in inner if tables[k] & near or not tables[k] & far]


def join_tree(
    names: Sequence[str], tables: Sequence[frozenset[str]], label: int, optional: set[str]
) -> list[tuple[int, int]]:
    """Return the edges of a join tree, `m - 1` pairs of a table and one further from the label's, in this order.

    Rows of optional tables may be absent: they join after the required ones, in their order, by the keys that they
    share with those before. `optional` takes up the tables that join through them alone.
    """
    placed = required(names, tables, label, optional)
    edges = [(placed[i], placed[j]) for i, j in ears([tables[k] for k in placed], placed.index(label))[1]]
    while waiting := [k for k in range(len(tables)) if k not in placed]:
        before = frozenset().union(*(tables[k] for k in placed))
        j = next((k for k in waiting if tables[k] & before), waiting[0])
        met = tables[j] & before
        i = next((k for k in placed if met and met <= tables[k]), None)
        if i is None:
            by = f"joins by {', '.join(sorted(met))}, which no table before it has all of" if met else "has no key"
            raise InputError(f"optional is {sorted(optional)}: {names[j]} {by}; a view of these tables would.")
        edges.append((i, j))
        placed.append(j)
        optional.add(names[j])
    return edges
