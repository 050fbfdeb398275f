"""Random joins of random types, judged by DuckDB: rows, moments and scores, or a refusal that names a table.

What is compared with is SQL alone: the join by the database's own `=`, its rows as text or double, and NumPy.
"""

import dataclasses
import tempfile

import numpy as np

from jaxsvm import relational
from jaxsvm.errors import InputError
from jaxsvm.relational.schema.join import Streamed

BIG = 2**53
WORDS = ["a", "A", "a ", "(missing)", "NULL", "", "it's", 'q"q', "ä", "nan", "1", "01", "True", "%s", "z"]
FAMILIES = {
    "integer": (["TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "HUGEINT",
                 "DECIMAL(9,0)", "DECIMAL(18,3)", "DECIMAL(30,2)", "DOUBLE", "FLOAT"], list(range(6))),
    "large": (["BIGINT", "UBIGINT", "HUGEINT", "DECIMAL(38,0)", "DECIMAL(30,5)", "DOUBLE"],
              [BIG + k for k in range(6)]),
    "huge": (["HUGEINT", "DECIMAL(38,0)"], [2**70 + k for k in range(5)]),
    "signed": (["SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "DECIMAL(6,1)", "DOUBLE"], list(range(-3, 3))),
    "decimal": (["DECIMAL(9,2)", "DECIMAL(18,4)", "DECIMAL(38,10)", "DOUBLE"], ["0.10", "0.2", "-1.25", "3", "7.5"]),
    "float": (["DOUBLE", "FLOAT"], ["0.1", "-0.0", "0.0", "NaN", "0.5", "-2.25"]),
    "text": (["VARCHAR", "ENUM"], WORDS),
    "boolean": (["BOOLEAN"], ["true", "false"]),
    "mixed": (["VARCHAR", "INTEGER", "BOOLEAN", "BIGINT"], ["1", "0"]),
    "date": (["DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_NS", "TIMESTAMPTZ"],
             ["2020-01-01", "2020-01-02", "1969-12-31", "1999-05-05"]),
    "timestamp": (["TIMESTAMP", "TIMESTAMP_NS"], ["2020-01-01 00:00:00.000001", "2020-01-01", "1969-12-31 23:59:59.5"]),
    "zoned": (["TIMESTAMPTZ"], ["2020-01-01 00:00:00+00", "2020-01-01 01:00:00+01", "2020-03-01 12:00:00+05"]),
    "uuid": (["UUID", "UUID", "VARCHAR"], [f"0000000{k}-0000-4000-8000-00000000000a" for k in range(5)]),
    "blob": (["BLOB", "BLOB", "VARCHAR"], ["a", "\\x00", "\\x00\\x00", "b"]),
    "time": (["TIME"], ["00:00:01", "23:59:59.25", "12:00:00"]),
}  # fmt: skip
"""Types that may meet in a key, and values as SQL writes them."""
NUMBERS = ("integer", "large", "huge", "signed", "decimal", "float")
FORMS = ["arrow", "polars", "pandas", "pandas-arrow", "pandas-nullable", "python"]


@dataclasses.dataclass
class Schema:
    """A database of random tables, and how they join."""

    names: list[str]
    keys: dict
    label: tuple[str, str]
    features: dict[str, dict[str, str]]
    missing: str
    weights: dict[str, str]
    optional: list[str]


def formed_rows(join):
    """All rows of a join of whole weights, equal ones once per copy, or drawn ones: features, signs, table rows."""
    rows = join if isinstance(join, relational.Design) else relational.design(join)
    copies = np.repeat(np.arange(rows.n), rows.weight.astype(int))
    x = rows.x if isinstance(rows.x, np.ndarray) else rows.x.toarray()
    return x[copies], rows.y[copies], [place[copies] for place in rows.place]


def build(db, rng) -> Schema:
    """Tables of random types in a database."""
    m = int(rng.integers(2, 5))
    names = list(rng.permutation(["t", "T two", "order", 'q"t', "c0"])[:m])
    n = {name: int(rng.integers(8, 40)) for name in names}
    cells = {name: {} for name in names}
    keys, features = {}, {name: {} for name in names}
    for child in range(1, m):
        parent = int(rng.integers(0, child)) if rng.random() < 0.5 else 0
        pair, columns = (names[parent], names[child]), {}
        for part in range(1 + (rng.random() < 0.3)):
            family = str(rng.choice([f for f in FAMILIES if f != "mixed" or rng.random() < 0.3]))
            own = [f"k{child}{part}{side}" if rng.random() < 0.5 else f"k{child}{part}" for side in "lr"]
            same = str(rng.choice(FAMILIES[family][0])) if rng.random() < 0.4 else None
            for name, column in zip(pair, own, strict=True):
                cells[name][column] = random_column(db, rng, family, n[name], rng.choice([0, 0.1]), same)
            columns[own[0]] = own[1]
        keys[pair] = columns
    missing = str(rng.choice(["impute", "refuse"], p=[0.6, 0.4]))
    gone = 0 if missing == "refuse" else 0.15
    for name in names:
        for part in range(int(rng.integers(0, 3))):
            family = str(rng.choice([*NUMBERS, "text", "boolean"]))
            column = str(rng.choice(["x", "Group", "n", 'f"', "e0_1", "k0", "copies"])) + str(part)
            features[name][column] = family
            cells[name][column] = random_column(db, rng, family, n[name], gone)
    hub = str(rng.choice(names))
    kind, *two = [("VARCHAR", "no", "yes"), ("BOOLEAN", "false", "true"), ("HUGEINT", "0", "1"), ("ENUM", "z", "a"),
                  ("DECIMAL(3,1)", "-1", "1"), ("DOUBLE", "0", "1")][int(rng.integers(6))]  # fmt: skip
    cells[hub]["y"] = (declare(db, kind, two, rng), [two[k] for k in rng.integers(0, 2, n[hub])])
    if not any(features.values()):
        features[hub]["x9"] = "integer"
        cells[hub]["x9"] = random_column(db, rng, "integer", n[hub], gone)
    more, weights = rng.spawn(1)[0], {}
    for name in names:
        if more.random() < 0.3:
            weights[name] = str(more.choice(["w", "Weight"]))
            kind = str(more.choice(["INTEGER", "DOUBLE", "DECIMAL(8,3)"]))
            values = [0, 1, 1, 2, 3] if kind == "INTEGER" else [0, 1, 0.25, 2.5, 0.375]
            cells[name][weights[name]] = (kind, more.choice(values, n[name]).tolist())
    for name in names:
        columns = ", ".join(f"{quoted(c)} {kind}" for c, (kind, _) in cells[name].items())
        db.execute(f"CREATE TABLE {quoted(name)} ({columns})")
        rows = zip(*(values for _, values in cells[name].values()), strict=True)
        kinds = [kind for kind, _ in cells[name].values()]
        listed = ", ".join("(" + ", ".join(cell(v, k) for v, k in zip(row, kinds, strict=True)) + ")" for row in rows)
        db.execute(f"INSERT INTO {quoted(name)} VALUES {listed}")
    # A table of which a row may be absent: FROM leads from the label's table outwards.
    optional = [str(n) for n in names if n != hub and missing == "impute" and more.random() < 0.5]
    return Schema(names, keys, (hub, "y"), features, missing, weights, optional)


def random_column(db, rng, family, n, gone, kind=None):
    """A type and its cells, as SQL writes them; None is NULL."""
    kinds, values = FAMILIES[family]
    kind = kind or str(rng.choice(kinds))
    values = [v for v in values if not (str(v).startswith("-") and kind.startswith("U"))]
    if kind == "TINYINT" or kind.startswith("DECIMAL(6"):
        values = [v for v in values if abs(int(v)) < 100]
    if family == "blob" and kind == "VARCHAR":
        values = ["a", "b"]
    kind = declare(db, kind, values, rng)
    return kind, [None if rng.random() < gone else values[int(rng.integers(len(values)))] for _ in range(n)]


def declare(db, kind, values, rng):
    if kind != "ENUM":
        return kind
    name = f"e{int(rng.integers(1 << 60))}"
    texts = ", ".join("'" + str(v).replace("'", "''") + "'" for v in rng.permutation(list(map(str, values))))
    db.execute(f"CREATE TYPE {name} AS ENUM({texts})")
    return name


def cell(value, kind):
    return "NULL" if value is None else f"CAST('{str(value).replace(chr(39), chr(39) * 2)}' AS {kind})"


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def from_clause(db, schema, nan_is_null):
    """The join in SQL, by the database's own equality; NaN is NULL in forms of tables that have no NULL of floats."""

    def key(name, column):
        value = f"{quoted(name)}.{quoted(column)}"
        floating = str(db.sql(f"SELECT {value} FROM {quoted(name)}").types[0]) in ("DOUBLE", "FLOAT")
        return f"NULLIF({value}, 'NaN')" if nan_is_null and floating else value

    clauses, reached, left, waiting = [quoted(schema.label[0])], [schema.label[0]], set(), dict(schema.keys)
    while waiting:
        pair = next(pair for pair in waiting if len(set(pair) & set(reached)) == 1)
        (a, b), columns = pair, waiting.pop(pair)
        tests = " AND ".join(f"{key(a, x)} = {key(b, y)}" for x, y in columns.items())
        before, new = (a, b) if a in reached else (b, a)
        left |= {new} if new in schema.optional or before in left else set()
        clauses.append(f"{'LEFT ' * (new in left)}JOIN {quoted(new)} ON {tests}")
        reached.append(new)
    return " ".join(clauses)


def truth(db, schema, nan_is_null):
    """Which features, and the joined rows by SQL: each feature as text, the weight, the label as text."""
    names, hub = schema.names, schema.label[0]
    chosen = [(name, c) for name in names for c in schema.features[name]]

    def text(name, column):  # a FLOAT is the double that it is, not the shortest decimal that rounds to it
        value = f"{quoted(name)}.{quoted(column)}"
        narrow = str(db.sql(f"SELECT {value} FROM {quoted(name)}").types[0]) == "FLOAT"
        return f"CAST({f'CAST({value} AS DOUBLE)' if narrow else value} AS VARCHAR)"

    weight = " * ".join(
        ["1", *(f"COALESCE(CAST({quoted(n)}.{quoted(w)} AS DOUBLE), 1)" for n, w in schema.weights.items())]
    )
    listed = ", ".join([*(text(n, c) for n, c in chosen), weight, text(hub, "y")])
    rows = db.sql(f"SELECT {listed} FROM {from_clause(db, schema, nan_is_null)}").fetchall()
    return chosen, rows


def expected(schema, chosen, rows, fills):
    """Columns by the names of features, labels, and weights, of rows as text; none of levels of weight 0."""
    out, weight = {}, np.array([float(row[-2]) for row in rows])
    for k, (name, c) in enumerate(chosen):
        values = [row[k] for row in rows]
        if schema.features[name][c] in NUMBERS:
            fill = fills.get((name, c), np.nan)
            out[f"{name}.{c}"] = np.array([fill if v in (None, "nan") else float(v) for v in values])
            continue
        for level in dict.fromkeys(v for v, w in zip(values, weight, strict=True) if w > 0):
            called = f"{name}.{c} IS NULL" if level is None else f"{name}.{c}={level}"
            out[called] = np.array([float(v == level) for v in values])
    return out, [row[-1] for row in rows], weight


def held(db, name, form):
    """A table in another form."""
    arrow = db.sql(f"SELECT * FROM {quoted(name)}").to_arrow_table()
    if form == "arrow":
        return arrow
    if form == "polars":
        import polars

        return polars.from_arrow(arrow)
    if form == "python":
        return {c: arrow.column(c).to_pylist() for c in arrow.column_names}
    import pandas

    if form == "pandas-arrow":
        return arrow.to_pandas(types_mapper=pandas.ArrowDtype)
    if form == "pandas":
        return arrow.to_pandas(integer_object_nulls=True)
    import pyarrow

    kinds = {pyarrow.bool_(): pandas.BooleanDtype(), pyarrow.string(): pandas.StringDtype()}
    names = [f"{sign}{bits}" for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)] + ["Float32", "Float64"]
    kinds |= {getattr(pyarrow, name.lower())(): getattr(pandas, f"{name}Dtype")() for name in names}
    return arrow.to_pandas(types_mapper=kinds.get, integer_object_nulls=True)


def agree(join, want, label, weight, source):
    """Whether rows and moments are those of SQL, to 1e-12 of the size of each feature."""
    np.testing.assert_allclose(join.size, weight.sum(), rtol=1e-12 * bool((weight % 1).any()), err_msg=source)
    names, moments = join.feature_names, join.moments()
    extra = set(names) - set(want)  # levels of rows of weight 0
    assert set(want) <= set(names) and (not extra or (join.schema.optional and not weight.all())), (
        source,
        names,
        list(want),
    )
    want = want | dict.fromkeys(extra, np.zeros(len(label)))
    x = np.stack([want[name] for name in names], axis=1)
    live, y = weight > 0, signs(join, label)
    size = np.abs(x[live]).max(axis=0)
    size = np.where(size > 0, size, 1.0)
    u = np.where(live[:, None], x / size, 0).astype(np.longdouble)  # so many rows add up to 1e-12 of rounding
    p = weight.astype(np.longdouble) / weight.sum(dtype=np.longdouble)
    for found, wanted in (
        (moments.mean / size, p @ u),
        (moments.label_mean / size, (p * y) @ u),
        (moments.second / np.outer(size, size), (p[:, None] * u).T @ u),
        (moments.label, p @ y),
    ):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12, err_msg=source)
    return x, y


def signs(join, label):
    """Labels as texts of SQL, which writes booleans in small letters and numbers in its own way."""
    positive = join.classes[1]
    try:
        return np.where([float(v) == float(positive) for v in label], 1.0, -1.0)
    except ValueError:
        return np.where(
            [v == (positive if isinstance(positive, str) else str(positive).lower()) for v in label], 1.0, -1.0
        )


def judged(seed: int, forms: int = 2) -> dict[str, str]:
    """For each form of the tables of a random schema "equal" or "refused: ..."; else an AssertionError."""
    import duckdb

    rng, db, out = np.random.default_rng(seed), duckdb.connect(), {}
    schema = build(db, rng)
    options = {
        "keys": schema.keys,
        "features": {n: list(f) for n, f in schema.features.items()},
        "missing": schema.missing,
        "weights": schema.weights,
        "optional": schema.optional,
    }
    for form in ["duckdb", *rng.choice(FORMS, forms, replace=False)]:
        nan_is_null = form in ("pandas", "pandas-nullable", "python")
        try:
            if form == "duckdb":
                join = relational.from_database(db, schema.names, schema.label, **options)
            else:
                join = relational.Join({name: held(db, name, form) for name in schema.names}, schema.label, **options)
        except InputError as error:
            out[form] = refusal(db, schema, str(error), nan_is_null, form)
            continue
        chosen, rows = truth(db, schema, nan_is_null)
        fills = {(t, c): b.fill[k] for t, b in zip(join.names, join.blocks, strict=True) for k, c in enumerate(b.names)}
        x, _ = agree(join, *expected(schema, chosen, rows, fills), f"{seed} {form}")
        out[form] = "equal"
        fit = relational.fit(join, 0.1, engine="formed", scale="standard", max_steps=3, tol=0.5)
        scores = np.sort(x @ fit.coef + fit.intercept)
        near = 1e-12 * np.nanmax(1 + np.abs(x) @ np.abs(fit.coef) + abs(fit.intercept))
        if not nan_is_null:
            found = db.sql(f"SELECT score FROM ({fit.to_sql()}) AS scored").fetchnumpy()["score"]
            found = np.sort(np.ma.filled(found, np.nan).astype(float))
            np.testing.assert_allclose(found, scores, rtol=0, atol=near, err_msg=f"{seed} {form} to_sql")
        rows = joined(db, schema, nan_is_null)
        here = np.sort(fit.decision_function(rows))
        assert_kept(fit, rows)
        np.testing.assert_allclose(here, scores, rtol=0, atol=near, err_msg=f"{seed} {form} decision_function")
    return out


def assert_kept(fit, rows):
    """A file keeps what scores: here and as a query; labels that JSON does not hold are refused by name."""
    with tempfile.TemporaryDirectory() as place:
        path = f"{place}/model.json"
        try:
            fit.save(path)
        except InputError as error:
            assert "which JSON does not hold" in str(error) and type(fit.classes.tolist()[0]) not in (str, int, bool)
            return
        kept = relational.load(path)
    assert kept.to_sql(score="s9") == fit.to_sql(score="s9") and kept.classes.tolist() == fit.classes.tolist()
    np.testing.assert_array_equal(kept.decision_function(rows), fit.decision_function(rows))


def joined(db, schema, nan_is_null):
    listed = [f"{quoted(n)}.{quoted(c)} AS {quoted(f'{n}.{c}')}" for n in schema.names for c in schema.features[n]]
    return db.sql(f"SELECT {', '.join(listed)} FROM {from_clause(db, schema, nan_is_null)}").to_arrow_table()


def refusal(db, schema, text, nan_is_null, form):
    """What was refused, once it is sure that it was right to: by name, and not where SQL has an answer of one type."""
    assert any(name in text for name in schema.names), (form, text)
    if "without rows" in text or "values among rows" in text or "is missing in" in text:
        try:
            _, rows = truth(db, schema, nan_is_null)
        except Exception:  # SQL has no answer either
            return "refused: SQL too"
        rows = [row for row in rows if row[-2] > 0]
        if "without rows" in text:
            assert not rows, (form, text, len(rows))
        elif "values among" in text:
            assert len({row[-1] for row in rows}) < 2, (form, text)
        return f"refused: {'no rows' if 'without' in text else 'one label' if 'values' in text else 'missing'}"
    assert "keys join" in text, (form, text)
    return "refused: keys of types without an exact common one"


# --- names that collide, columns without a name, missing keys and NULLs ----------------------------------------------

NAMES = ["x", "score", "Score", "SCORE", "d.x", "f.x", "svm", "X", "(intercept)", "f", "n", "c0"]


class Names:
    """Random tables in a database, whose columns share names with each other, with tables and with the score.

    Args:
        run: Runs a statement and returns its rows.
        read: `from_database` with the connection.
        schema: The schema of the tables.
        labels: The labels, two or more.
    """

    def __init__(self, run, read, schema, seed, labels=("no", "yes")):
        self.run, self.rng, self.read = run, np.random.default_rng(seed), read
        rng, m = self.rng, int(self.rng.integers(2, 4))
        self.names = ["f", *rng.choice(["d", "e", "score", "T w"], m - 1, replace=False).tolist()]
        self.sources = {name: f"{schema}.{quoted(name)}" for name in self.names}
        more = np.random.default_rng([seed, 1])
        self.missing = str(more.choice(["impute", "refuse"]))
        filled = self.missing == "impute"
        self.optional = [str(name) for name in self.names[1:] if filled and more.random() < 0.5]
        self.weights = {name: "w" for name in self.names if more.random() < 0.4}
        self.features, self.keys, self.data = {}, {}, {}
        gone = float(rng.choice([0, 0.2]))
        for i, name in enumerate(self.names):
            many = int(rng.integers(6, 30))
            chosen = {str(c).lower(): str(c) for c in rng.choice(NAMES, int(rng.integers(1, 4)), replace=False)}
            self.features[name] = {c: bool(rng.random() < 0.7) for c in chosen.values()}  # whether it is a number
            cells = {"rid": list(range(many))}
            for c, number in self.features[name].items():
                values = rng.normal(size=many).round(3).tolist() if number else rng.choice(["a", "b"], many).tolist()
                cells[c] = [None if rng.random() < gone else value for value in values]
            for key in ["k0", "k1"][: m - 1] if i == 0 else ["id"]:
                cells[key] = [None if rng.random() < 0.15 else int(rng.integers(6)) for _ in range(many)]
            if name in self.weights:
                cells["w"] = more.choice([0.0, 1.0, 2.0, 0.5] if filled and i == 0 else [1.0, 2.0, 0.5], many).tolist()
            if i == 0:
                cells["y"] = rng.choice(labels, many).tolist()
            elif rng.random() < 0.1:
                cells["y"] = [1.0] * many
            self.data[name] = cells
            if i:
                self.keys["f", name] = {f"k{i - 1}": "id"}
            kinds = {c: "BIGINT" if c in ("rid", "id", "k0", "k1") else "TEXT" if isinstance(
                next((v for v in values if v is not None), 0.0), str) else "DOUBLE PRECISION"
                for c, values in cells.items()}  # fmt: skip
            run(f"CREATE TABLE {self.sources[name]} ({', '.join(f'{quoted(c)} {kind}' for c, kind in kinds.items())})")
            rows = zip(*cells.values(), strict=True)
            listed = ", ".join("(" + ", ".join("NULL" if v is None else repr(v) for v in row) + ")" for row in rows)
            run(f"INSERT INTO {self.sources[name]} VALUES {listed}")

    def joined(self):
        """The joined rows by SQL: the number of the row of each table, every feature, the label; their weights."""
        chosen = [(n, c) for n in self.names for c in self.features[n]]
        tables = " ".join(
            f"{'LEFT ' * (b in self.optional)}JOIN {self.sources[b]} AS {quoted(b)} "
            f"ON {quoted(a)}.{quoted(x)} = {quoted(b)}.{quoted(y)}"
            for (a, b), columns in self.keys.items()
            for x, y in columns.items()
        )
        listed = ", ".join(
            f"{quoted(n)}.{quoted(c)}" for n, c in [*((n, "rid") for n in self.names), *chosen, ("f", "y")]
        )
        weight = " * ".join(["1", *(f"COALESCE({quoted(name)}.w, 1)" for name in self.weights)])
        rows = self.run(f'SELECT {listed}, {weight} FROM {self.sources["f"]} AS "f" {tables}')
        return chosen, [row[:-1] for row in rows], np.array([float(row[-1]) for row in rows])

    def notes(self, rows):
        """What must be said of rows that take no part."""
        out = []
        for i, name in enumerate(self.names):
            cells = self.data[name]
            needed = [f"k{k}" for k, d in enumerate(self.names[1:]) if d not in self.optional] if i == 0 else ["id"]
            lacks = [any(cells[k][r] is None for k in needed) for r in cells["rid"]]
            zero = [cells["w"][r] == 0 and not lacks[r] for r in cells["rid"]] if "w" in cells else []
            total = len(lacks)
            alone = total - sum(lacks) - sum(zero) - len({row[i] for row in rows} - {None})
            why = {"a key is missing": sum(lacks), "their weight is 0": sum(zero), "their keys have no partner": alone}
            out += [f"{name}: {n} of {total} rows join with nothing: {said}." for said, n in why.items() if n]
        for i, name in enumerate(self.names):
            alone = len({row[0] for row in rows if row[i] is None})
            said = f"f: {alone} rows have no partner in {name}: its features are missing there."
            out += [said] * (alone > 0)
        return out

    def judged(self):
        """What each form of the tables gave; an AssertionError if a score or a note is wrong."""
        chosen, rows, weight = self.joined()
        live = [row for row, w in zip(rows, weight, strict=True) if w > 0]
        options = {"keys": self.keys, "missing": self.missing, "weights": self.weights, "optional": self.optional}
        wanted = {n: list(columns) for n, columns in self.features.items()}
        nameless = {n: dict(cells) for n, cells in self.data.items()}
        one = str(self.rng.choice(self.names))
        nameless[one][""] = list(range(len(nameless[one]["rid"])))
        out = {}
        for form, make in {
            "database": lambda: self.read(self.sources, ("f", "y"), features=wanted, **options),
            "python": lambda: relational.Join(self.data, ("f", "y"), wanted, **options),
            "nameless": lambda: relational.Join(nameless, ("f", "y"), wanted, **options),
            "nameless feature": lambda: relational.Join(nameless, ("f", "y"), **options),
        }.items():
            try:
                join = make()
            except InputError as error:
                out[form] = self.refused(form, str(error), live)
                continue
            assert form != "nameless feature", "a column without a name was taken"
            assert join.size == weight.sum(), (form, join.size, weight.sum())
            said = [note for note in join.notes if "different ones" not in note]
            assert said == self.notes(live), (form, said, self.notes(live))
            out[form] = self.scored(join, chosen, rows, weight)
        return out

    def refused(self, form, text, rows):
        """Whether it was right to refuse, by name."""
        if "no name" in text:
            assert form == "nameless feature", (form, text)
            return "refused: no name"
        if form == "nameless feature":
            return "refused: before"
        if "without rows" in text:
            assert not rows, (form, text)
        elif "values among" in text:
            assert len({row[-1] for row in rows}) < 2, (form, text)
        else:
            assert "is missing in" in text and self.missing == "refuse" and any(None in row for row in rows), (
                form,
                text,
            )
        return f"refused: {'no rows' if not rows else 'missing' if 'is missing' in text else 'one label'}"

    def scored(self, join, chosen, rows, weight):
        """Compare the scores of SQL and of Python with those of the formed join; rows of plain names too."""
        fit = relational.fit(join, 0.1, engine="formed", scale="standard", max_steps=3, tol=0.5)
        coef, m = dict(zip(fit.feature_names, np.atleast_2d(fit.coef).T[:, :, None], strict=True)), len(self.names)
        fills = {(t, c): b.fill[k] for t, b in zip(join.names, join.blocks, strict=True) for k, c in enumerate(b.names)}
        want = np.tile(np.reshape(fit.intercept, (-1, 1)), len(rows))
        columns = {}
        for k, (t, c) in enumerate(chosen):
            values = columns[f"{t}.{c}"] = [row[m + k] for row in rows]
            if self.features[t][c]:
                want += coef[f"{t}.{c}"] * np.array([fills[t, c] if v is None else v for v in values])
            else:
                called = [f"{t}.{c} IS NULL" if v is None else f"{t}.{c}={v}" for v in values]
                zero = np.zeros((len(want), 1))  # of levels of weight 0
                want += np.concatenate([coef.get(name, zero) for name in called], axis=1)
        near = {"rtol": 0, "atol": 1e-11 * (1 + np.abs(fit.coef).sum())}
        several, here = len(want) > 1, fit.decision_function(columns)
        np.testing.assert_allclose(here, want.T if several else want[0], **near)
        found = here.argmax(axis=1) if several else (here >= 0).astype(int)
        assert list(fit.predict(columns)) == list(join.classes[found])
        edge = np.sort(want, axis=0)[-1] - np.sort(want, axis=0)[-2] if several else np.abs(want[0])
        wanted, known = np.zeros((len(join.classes),) * 2), join.classes.tolist()
        for row, at, w in zip(rows, found, weight, strict=True):
            if w > 0:  # the label of others may be unknown
                wanted[known.index(row[-1]), at] += w
        streamed = isinstance(join, Streamed)  # of which nothing is counted
        off = 0 if streamed else np.abs(fit.confusion(join) - wanted).sum() / 2
        assert off <= weight[edge < near["atol"]].sum() + 1e-9 * weight.sum(), (off, wanted)
        name, of_classes = "score", [f"_{k}" for k in range(len(want))] if several else [""]
        if not several and any(c.lower() == "score" for c in self.data["f"]):
            try:
                fit.to_sql(self.sources)
                raise AssertionError("a score that a column hides")
            except InputError as error:
                assert "score" in str(error) and "of f " in str(error)
            name = "our score"
        listed = ", ".join(quoted(name + of) for of in of_classes)
        query = fit.to_sql(self.sources, name, "our label")
        scored = self.run(f'SELECT {listed}, "our label" FROM ({query}) AS scored')
        for k, values in enumerate(want):
            np.testing.assert_allclose(np.sort([float(row[k]) for row in scored]), np.sort(values), **near)
        for row in scored:
            assert row[-1] == join.classes[np.argmax(row[:-1]) if several else int(row[0] >= 0)], row
        plain = {}  # as `pandas.merge(suffixes=("", "_right"))` names them
        for (_, c), values in zip(chosen, columns.values(), strict=True):
            plain[c if c not in plain else f"{c}_right"] = values
        try:
            np.testing.assert_allclose(fit.decision_function(plain), want.T if several else want[0], **near)
        except InputError as error:
            # A key is one column, whichever table's: one of texts may stand where training read numbers.
            assert any(said in str(error) for said in ("could be", "no column", "numbers are needed", "never equal")), (
                error
            )
            return "equal; plain names refused"
        return "equal"
