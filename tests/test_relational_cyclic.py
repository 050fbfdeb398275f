"""Joins whose keys lead round cycles, against DuckDB; one of too many keys is refused before it is made."""

import re
from pathlib import Path

import numpy as np
import pytest

from jaxsvm import relational
from jaxsvm.errors import InputError

duckdb = pytest.importorskip("duckdb")


def cycle(db, m, rng, extra):
    """A cycle of m tables (m - 1, 0), (0, 1), ..., weights, a table that hangs on it; the keys and the join in SQL."""
    tables = [f"t{i}" for i in range(m)]
    for i, name in enumerate(tables):
        n = int(rng.integers(10, 40))
        db.execute(f"CREATE TABLE {name}(a INT, b {'DECIMAL(9, 1)' if i == 1 else 'INT'}, x DOUBLE, w DOUBLE, y INT)")
        db.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?, ?)", [
            [None if rng.random() < 0.1 else int(rng.integers(4)), int(rng.integers(4)), round(rng.normal(), 3),
             float(rng.choice([1, 2, 0.5])), int(rng.integers(2))] for _ in range(n)])  # fmt: skip
    keys = {(f"t{i}", f"t{(i + 1) % m}"): {"b": "a"} for i in range(m)}
    tests = [f"t{i}.b = t{(i + 1) % m}.a" for i in range(m)]
    if extra:  # a chord and a pendant
        db.execute("CREATE TABLE p AS SELECT i % 3 AS a, sin(i) AS x FROM range(8) t(i)")
        keys["t1", "p"] = {"b": "a"}
        tests, tables = [*tests, "t1.b = p.a"], [*tables, "p"]
    return tables, keys, f"FROM {', '.join(tables)} WHERE {' AND '.join(tests)}"


@pytest.mark.parametrize("seed", [pytest.param(k, marks=[pytest.mark.thorough] * (k > 5)) for k in range(12)])
def test_random_cycles_are_those_of_sql(seed):
    rng, db = np.random.default_rng(seed), duckdb.connect()
    tables, keys, sql = cycle(db, 3 + seed % 3, rng, seed % 2)
    hub, weights = tables[seed % 3], {"t0": "w", "t2": "w"}
    features = {name: ["x"] for name in tables}
    arrow = {name: db.sql(f"FROM {name}").to_arrow_table() for name in tables}
    listed = ", ".join(f"{name}.x" for name in tables)
    rows = np.array(db.sql(f"SELECT {listed}, t0.w * t2.w, 2 * {hub}.y - 1 {sql}").fetchall(), float)
    x, w, y = rows[:, :-2], rows[:, -2], rows[:, -1]
    options = {"features": features, "keys": keys, "weights": weights}
    for make in (lambda **o: relational.from_database(db, tables, (hub, "y"), **options, **o),
                 lambda **o: relational.Join(arrow, (hub, "y"), **options, **o)):  # fmt: skip
        with pytest.raises(InputError, match=r"cyclic join of t0.*allow cyclic=\d+") as refused:
            make()
        few = int(re.search(r"cyclic=(\d+)", str(refused.value))[1])
        with pytest.raises(InputError, match="break it"):
            make(cyclic=few - 1)
        join = make(cyclic=10_000)
        assert join.feature_names == [f"{name}.x" for name in tables]
        moments, p = join.moments(), w / w.sum()
        np.testing.assert_allclose([moments.size, *moments.mean], [w.sum(), *p @ x], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(moments.second, (p[:, None] * x).T @ x, atol=1e-11)
        np.testing.assert_allclose(moments.label_mean, (p * y) @ x, atol=1e-11)
        assert join.notes[0].startswith("The join is cyclic: ") and f"{few:,} different keys" in join.notes[0]
        beta = rng.normal(size=join.d)
        found, F = relational.pseudo_gradient(join, beta, 0.1, engine="merge"), p @ np.maximum(1 - y * (x @ beta), 0)
        np.testing.assert_allclose(found.objective, F + 0.1 * beta @ beta, rtol=1e-9)
        sign, z, weight, _ = join.histogram(join.linear(beta), 0.01)
        np.testing.assert_allclose(weight @ np.maximum(1 - sign * z, 0) / weight.sum(), F, rtol=1e-3)
        fit = relational.fit(join, 0.05, scale="standard")
        scores = np.sort(x @ fit.coef + fit.intercept)
        found = np.sort(db.sql(f"SELECT score FROM ({fit.to_sql()})").fetchnumpy()["score"])
        np.testing.assert_allclose(found, scores, atol=1e-11)
        given = {f"{name}.x": x[:, k] for k, name in enumerate(tables)}
        np.testing.assert_allclose(np.sort(fit.decision_function(given)), scores, atol=1e-11)


def test_triangles_of_a_graph():
    edges = np.unique(np.random.default_rng(0).integers(0, 300, (3_000, 2)), axis=0)
    tables = {name: {a: edges[:, 0], b: edges[:, 1]} for name, (a, b) in {"r": "ab", "s": "bc", "t": "ca"}.items()}
    tables["r"] |= {"y": edges.sum(axis=1) % 2, "x": edges[:, 0] / 300.0}
    with pytest.raises(InputError, match="28,769 different keys of r with s break it"):
        relational.Join(tables, ("r", "y"))
    assert relational.Join(tables, ("r", "y"), cyclic=28_769).size == 942


def test_tables_of_a_cycle_are_not_optional_but_others_are():
    db = duckdb.connect()
    tables, keys, sql = cycle(db, 3, np.random.default_rng(1), True)
    options = {"keys": keys, "features": {n: ["x"] for n in tables}, "missing": "impute", "cyclic": 10_000}
    join = relational.from_database(db, tables, ("t0", "y"), optional=["p"], **options)
    count = (
        sql.replace(", p WHERE", " WHERE")
        .replace(" AND t1.b = p.a", "")
        .replace("t1,", "t1 LEFT JOIN p ON t1.b = p.a,")
    )
    assert join.size == db.sql(f"SELECT COUNT(*) {count}").fetchall()[0][0]
    with pytest.raises(InputError, match=r"optional is \['t1'.*which no table before it has all of"):
        relational.from_database(db, tables, ("t0", "y"), optional=["t1"], **options)


def test_query_5_of_tpch():
    place = Path(__file__).resolve().parents[2] / "shared" / "data" / "relational" / "tpch_sf001"
    if not place.exists():
        pytest.skip(f"{place} is absent")
    names = {"lineitem": "l_orderkey, l_suppkey, l_quantity, l_returnflag = 'R' AS y",
             "orders": "o_orderkey, o_custkey",
             "customer": "c_custkey, c_nationkey", "supplier": "s_suppkey, s_nationkey, s_acctbal",
             "nation": "n_nationkey, n_regionkey"}  # fmt: skip
    db, (sample, *_) = duckdb.connect(), sorted(place.iterdir())
    read = {".gz": "read_csv", ".csv": "read_csv", ".parquet": "read_parquet"}[sample.suffix]
    for name, columns in names.items():
        file = next(path for path in place.iterdir() if path.name.startswith(f"{name}."))
        db.execute(f"CREATE TABLE {name} AS SELECT {columns} FROM {read}('{file}')")
    keys = {("lineitem", "orders"): {"l_orderkey": "o_orderkey"}, ("orders", "customer"): {"o_custkey": "c_custkey"},
            ("lineitem", "supplier"): {"l_suppkey": "s_suppkey"},
            ("customer", "nation"): {"c_nationkey": "n_nationkey"},
            ("supplier", "nation"): {"s_nationkey": "n_nationkey"}}  # fmt: skip
    features = {"lineitem": ["l_quantity"], "supplier": ["s_acctbal"]}
    join = relational.from_database(db, list(names), ("lineitem", "y"), keys=keys, features=features, cyclic=1e6)
    assert join.size == 2_333 and (1 + join.moments().label) / 2 * join.size == pytest.approx(586)
