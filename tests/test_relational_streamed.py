"""Joins whose tables stay in the database: the same rows, answers and refusals as in memory, in little of it."""

import signal
import subprocess
import sys

import numpy as np
import pytest

duckdb, random_joins = pytest.importorskip("duckdb"), pytest.importorskip("random_joins")

from jaxsvm import relational  # noqa: E402
from jaxsvm.errors import InputError  # noqa: E402
from jaxsvm.relational.schema.assembly import prepared  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")


def both(db, *args, **options):
    """The join in memory, and streamed; or what refuses each."""
    found = []
    for streamed in (False, True):
        try:
            found.append(relational.from_database(db, *args, streamed=streamed, **options))
        except InputError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(s, marks=pytest.mark.slow) for s in range(12, 150))])
def test_sums_over_a_streamed_join_are_those_of_the_join_in_memory(monkeypatch, seed):
    """Random schemas: keys of all types, NULLs, weights, categories, optional tables; rows formed, and never formed."""
    monkeypatch.setattr("jaxsvm.relational.schema.join.MOST_TIMES", 10 * (seed % 2))
    rng, db = np.random.default_rng(seed), duckdb.connect()
    schema = random_joins.build(db, rng)
    options = {"keys": schema.keys, "features": {n: list(of) for n, of in schema.features.items()}}
    options |= {"weights": schema.weights, "optional": schema.optional, "missing": schema.missing}
    held, streamed = both(db, schema.names, schema.label, **options)
    if isinstance(held, str):
        assert streamed == held
        return
    assert streamed.feature_names == held.feature_names and streamed.classes.tolist() == held.classes.tolist()
    assert streamed.notes == [note for note in held.notes if "different ones" not in note]
    np.testing.assert_allclose(streamed.size, held.size, rtol=1e-12)
    large = max(np.abs(block.X).max(initial=0) for block in held.blocks) > 1e6  # whose variance is rounding
    for scale in ("none", "max", "standard")[: 3 - large]:
        one, two = (prepared(join, scale, True, "balanced") for join in (held, streamed))
        size = one.means("square") ** 0.5 + 1e-300
        units = (one.size, size, size, np.outer(size, size), 1, size)
        for a, b, unit in zip(one.moments(), two.moments(), units, strict=True):
            np.testing.assert_allclose(b / unit, a / unit, rtol=1e-9, atol=2e-9)
        beta = rng.normal(size=one.d) / size.clip(1e-9) / one.d
        losses, sums = [], []
        for join, many in ((one, 0), (one, 128), (two, 128)):
            monkeypatch.setattr("jaxsvm.relational.schema.join.MANY_LEVELS", many)
            y, z, weight, x = join.histogram(join.linear(beta), 0.1, features=True)
            sums.append(x[np.lexsort((z, y))])
            np.testing.assert_allclose(weight @ z / one.size, one.means() @ beta, rtol=1e-6, atol=1e-9)
            np.testing.assert_allclose(x.sum(axis=0) / one.size / size, one.means() / size, rtol=1e-9, atol=2e-9)
            losses.append(weight @ np.maximum(1 - y * z, 0) / one.size)
        np.testing.assert_allclose(sums[0], sums[1], rtol=1e-9, atol=1e-12 * one.size)  # levels in columns or in rows
        assert abs(losses[-1] - losses[-2]) <= len(held.names) * 0.1**2 / 8 + 1e-12


@pytest.mark.parametrize("seed", range(6))
def test_streamed_joins_score_and_note_as_duckdb_does(seed):
    db = duckdb.connect()

    def read(*args, **options):
        return relational.from_database(db, *args, streamed=True, **options)

    random_joins.Names(lambda query: db.execute(query).fetchall(), read, "main", seed).judged()


def shop(db, n=20_000):
    """Sales of a thousand shops, with a category, and two labels by both tables."""
    db.execute("""CREATE TABLE shops AS SELECT i AS shop, sin(7.3 * i) AS size, 'r' || i % 5 AS region
        FROM range(1000) t(i)""")
    db.execute(f"""CREATE TABLE sales AS SELECT i * 7919 % 1100 AS shop, sin(i) AS amount, cos(i * i) AS price,
        CASE WHEN sin(i) + sin(7.3 * (i * 7919 % 1100)) + sin(1.7 * i * i) > .3 THEN 'back' ELSE 'kept' END AS status
        FROM range({n}) t(i)""")
    return ["sales", "shops"], ("sales", "status")


@pytest.mark.parametrize("times", [10, 0])
@pytest.mark.parametrize(
    "options", [{"scale": "standard"}, {"class_weight": "balanced"}, {"loss": "squared_hinge"}], ids=str
)
def test_a_streamed_fit_is_that_of_the_formed_join(monkeypatch, tmp_path, options, times):
    """From a connection and from a file; a path too; rows formed in the database, and never formed."""
    monkeypatch.setattr("jaxsvm.relational.schema.join.MOST_TIMES", times)
    with duckdb.connect(tmp_path / "shop.duckdb") as db:
        asked = shop(db)
        held, streamed = both(db, *asked)
        one, two = (relational.fit(join, 1e-3, tol=1e-6, **options) for join in (held, streamed))
        assert two.status.name == "CONVERGED" and two.engine.startswith("streamed: 18,180 rows")
        assert max(one.certificate.dual, two.certificate.dual) <= min(one.certificate.primal, two.certificate.primal)
        np.testing.assert_allclose(two.coef, one.coef, atol=5e-3)
        scored = db.sql(f"SELECT SUM(GREATEST(0, score)), COUNT(*) FROM ({two.to_sql()})").fetchall()[0]
        x = relational.design(held).x.toarray()
        np.testing.assert_allclose(scored, (np.maximum(x @ two.coef + two.intercept, 0).sum(), len(x)), rtol=1e-9)
    file = relational.from_database(tmp_path / "shop.duckdb", *asked, streamed=True)
    first, _ = relational.fit_path(file, [1e-3, 1e-2], tol=1e-6, **options)
    np.testing.assert_allclose(first.beta, two.beta, atol=2e-3)


def test_each_of_several_classes_is_fitted_against_the_rest():
    db = duckdb.connect()
    (names, _), region = shop(db), {"sales": ["amount", "price"], "shops": ["size"]}
    held, streamed = both(db, names, ("shops", "region"), features=region)
    one, two = (relational.fit(join, 1e-2, tol=1e-5) for join in (held, streamed))
    assert len(two.machines) == 5 and two.classes.tolist() == one.classes.tolist()
    for a, b in zip(one.machines, two.machines, strict=True):
        assert max(a.certificate.dual, b.certificate.dual) <= min(a.certificate.primal, b.certificate.primal)
        assert b.status.name == "CONVERGED"


def test_large_tables_are_streamed_by_themselves_and_huge_joins_are_counted(monkeypatch):
    db = duckdb.connect()
    asked, module = shop(db), "jaxsvm.relational.schema.join"
    assert "streamed" not in repr(relational.from_database(db, *asked))
    monkeypatch.setattr(f"{module}.LARGE", 20_000)
    join = relational.from_database(db, *asked)
    lost = "(sales: 1820 of 20000 rows join with nothing: their keys have no partner.)"
    assert repr(join) == f"Join of 18,180 rows of sales, shops, streamed from the database {lost}"
    monkeypatch.setattr(f"{module}.MOST_TIMES", 0.5)
    fit = relational.fit(relational.from_database(db, *asked), 1e-2)
    assert fit.status.name == "CONVERGED" and fit.engine == "streamed: 18,180 rows, counted by bins of their scores"


def test_what_a_streamed_join_cannot_do_is_refused_by_name(monkeypatch):
    db = duckdb.connect()
    join = relational.from_database(db, *shop(db), streamed=True)
    for call in (
        lambda: join.aggregate([]), lambda: join.hold_out(0.1, 0), lambda: relational.design(join),
        lambda: relational.sample(join, 9, 0), lambda: relational.fit(join, 1e-2, engine="merge"),
        lambda: relational.fit(join, 1e-2, method="averaged", scale="max"),
        lambda: relational.far_counts(join, np.zeros(join.d)),
    ):  # fmt: skip
        with pytest.raises(InputError, match="join is streamed from the database"):
            call()
    monkeypatch.setattr("jaxsvm.relational.schema.join.MOST_FEATURES", 8)
    with pytest.raises(InputError, match="tables have 8 features: a streamed join has fewer than 8"):
        relational.from_database(db, ["sales", "shops"], ("sales", "status"), streamed=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("DELETE FROM sales WHERE shop < 5", "tables make .* rows, and made 18180 before"),
        ("DROP TABLE shops", "the database refuses a query"),
    ],
)
def test_tables_that_change_between_passes_are_noticed(change, told):
    db = duckdb.connect()
    join = relational.from_database(db, *shop(db), streamed=True)
    db.execute(change)
    with pytest.raises(InputError, match=told):
        relational.fit(join, 1e-2)


def test_ctrl_c_within_a_query_returns_what_is_certified(monkeypatch):
    db, queries = duckdb.connect(), []
    join = relational.from_database(db, *shop(db), streamed=True)
    whole = type(join).histogram

    def histogram(self, *args, **options):
        queries.append(1)
        if len(queries) == 4:
            signal.raise_signal(signal.SIGINT)
        return whole(self, *args, **options)

    monkeypatch.setattr(type(join), "histogram", histogram)
    fit = relational.fit(join, 1e-4, tol=1e-12)
    assert fit.status.name == "INTERRUPTED" and len(queries) == 4
    assert db.sql("SELECT COUNT(*) FROM shops").fetchall() == [(1000,)]  # whose connection is free again


@pytest.mark.parametrize("times", [10, 0])
@pytest.mark.parametrize("optional", [[], ["shops"]], ids=str)
def test_a_streamed_join_is_scored_in_the_database(monkeypatch, optional, times):
    """Two labels, several, and numbers; NULLs, weights, a table that may be absent."""
    monkeypatch.setattr("jaxsvm.relational.schema.join.MOST_TIMES", times)
    db = duckdb.connect()
    names, label = shop(db, 3000)
    db.execute("ALTER TABLE sales ADD COLUMN w DOUBLE; UPDATE sales SET w = 1 + shop % 3")
    db.execute("UPDATE sales SET price = NULL WHERE shop % 7 = 1")
    options = {"optional": optional, "missing": "impute", "weights": {"sales": "w"}}
    held, streamed = both(db, names, label, **options)
    model = relational.fit(held, 1e-3)
    exact = 1e-12 if times else 0.01  # scores are blurred by a bin where rows are not formed
    np.testing.assert_allclose(model.confusion(streamed), model.confusion(held), rtol=exact, atol=exact * held.size)
    assert abs(model.score(streamed) - model.score(held)) <= exact
    at = [-1, 0, 0.5, 2]
    np.testing.assert_allclose(relational.fit(streamed, 1e-3).margins(at), model.margins(at), atol=0.02)
    features = {"sales": ["amount", "price"], "shops": ["size"]}
    held, streamed = both(db, names, ("sales", "amount"), features=features | {"sales": ["price"]}, **options)
    one, two = (relational.fit(join, 1e-3, loss="squared_error") for join in (held, streamed))
    np.testing.assert_allclose(two.coef, one.coef, atol=1e-10)
    assert two.status.name == "CONVERGED" and one.score(streamed) == pytest.approx(one.score(held), abs=1e-10)
    held, streamed = both(db, names, ("shops", "region"), features=features, weights={"sales": "w"}, missing="impute")
    model = relational.fit(held, 1e-2)
    if times:
        np.testing.assert_allclose(model.confusion(streamed), model.confusion(held), rtol=1e-12)
    else:
        with pytest.raises(InputError, match="too large to be formed"):
            model.score(streamed)


def test_numbers_that_a_model_has_no_mean_for_are_refused_in_the_database():
    db = duckdb.connect()
    names, label = shop(db, 3000)
    model = relational.fit(relational.from_database(db, names, label), 1e-2)
    db.execute("UPDATE sales SET price = NULL WHERE shop % 7 = 1")
    with pytest.raises(InputError, match="join has rows of sales without a number"):
        model.score(relational.from_database(db, names, label, missing="impute", streamed=True))


def test_levels_with_quotes_and_braces_are_levels():
    db = duckdb.connect()
    db.execute("""CREATE TABLE f AS SELECT i % 9 AS k, sin(i) AS x,
        (ARRAY['{0}', 'it''s', '{a', '%s', ''])[1 + i % 5] AS c, sin(i) + (i % 5 = 0)::INT > .3 AS y
        FROM range(400) t(i)""")
    db.execute("CREATE TABLE d AS SELECT i % 9 AS k, cos(i) AS z, ['{0}', '}'][1 + i % 2] AS e FROM range(40) t(i)")
    held, streamed = both(db, ["f", "d"], ("f", "y"))
    for a, b in zip(held.moments(), streamed.moments(), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-12)
    one, two = (relational.fit(join, 1e-2, engine="grid") for join in (held, streamed))
    assert max(one.certificate.dual, two.certificate.dual) <= min(one.certificate.primal, two.certificate.primal)


PEAK = """
import resource, sys
import duckdb, pyarrow
from jaxsvm import relational
used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, db = used(), duckdb.connect(sys.argv[1], config={"memory_limit": "200MB", "threads": 2})
db.execute("CREATE TABLE d AS SELECT i AS k, sin(7.3 * i) AS z FROM range(1000) t(i)")
db.execute('''CREATE TABLE f AS SELECT i % 1000 AS k, sin(i) AS a, cos(i * 0.7) AS b, sin(i * 1.3) AS c,
    sin(i) + sin(7.3 * (i % 1000)) + cos(3.1 * i) > 0 AS y FROM range(20_000_000) t(i)''')
fit = relational.fit(relational.from_database(db, ["f", "d"], ("f", "y")), 1e-3)
print(fit.status.name, fit.engine.split(":")[0], used() - before)
"""


@pytest.mark.slow
def test_twenty_million_rows_fit_in_512_mib(tmp_path):
    """A table of 800 MB in a fresh process: what it takes beyond its imports."""
    pytest.importorskip("resource")
    command = [sys.executable, "-c", PEAK, str(tmp_path / "large.duckdb")]
    status, engine, used = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-3:]
    assert (status, engine) == ("CONVERGED", "streamed") and float(used) < 512


def test_what_needs_the_tables_is_refused_by_name():
    db = duckdb.connect()
    db.sql("CREATE TABLE f AS SELECT i % 5 AS k, (i % 7) / 7 AS x, i % 2 = 0 AS y FROM range(70) AS t(i)")
    db.sql("CREATE TABLE d AS SELECT i AS k, i * 0.1 AS z FROM range(5) AS t(i)")
    join = relational.from_database(db, ["f", "d"], label=("f", "y"), streamed=True)
    for options in ({"method": "paper", "scale": "max"}, {"engine": "merge"}, {"engine": "sketch"}):
        with pytest.raises(InputError, match="join is streamed from the database"):
            relational.fit(join, 0.01, **options)
    with pytest.raises(InputError, match="join is streamed from the database|numbers are needed"):
        relational.fit(join, 0.01, loss="squared_error")


@pytest.mark.parametrize("times", [10, 0])
@pytest.mark.parametrize(
    "label",
    ["CASE WHEN i % 7 < 2 THEN NULL ELSE sin(i) > 0 END", "CASE WHEN i % 7 < 2 THEN 'none' ELSE 'ab'[1 + i % 2] END"],
)
def test_rows_without_weight_are_not_looked_at(monkeypatch, label, times):
    """Their numbers may be missing, NaN or infinite, and their labels those of nobody else."""
    monkeypatch.setattr("jaxsvm.relational.schema.join.MOST_TIMES", times)
    db = duckdb.connect()
    db.execute(f"""CREATE TABLE f AS SELECT i % 5 AS k, {label} AS y,
        CASE WHEN i % 7 < 2 THEN 0 ELSE 1 + i % 3 END AS w,
        CASE i % 14 WHEN 0 THEN 'NaN'::DOUBLE WHEN 1 THEN 'inf'::DOUBLE WHEN 7 THEN NULL ELSE sin(i) END AS x
        FROM range(60) t(i)""")
    db.execute("CREATE TABLE d AS SELECT i % 5 AS k, cos(i) AS z FROM range(10) t(i)")
    held, streamed = both(db, ["f", "d"], ("f", "y"), features={"f": ["x"], "d": ["z"]}, weights={"f": "w"})
    for a, b in zip(held.moments(), streamed.moments(), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-12)
    one, two = (relational.fit(join, 1e-2, class_weight="balanced") for join in (held, streamed))
    assert max(one.certificate.dual, two.certificate.dual) <= min(one.certificate.primal, two.certificate.primal)
    np.testing.assert_allclose(one.confusion(streamed), one.confusion(held), rtol=1e-12 if times else 0.1, atol=1e-9)


def test_a_streamed_join_without_features_has_no_scales():
    db = duckdb.connect()
    db.execute("CREATE TABLE f AS SELECT i % 3 AS k, i % 2 AS y FROM range(30) t(i)")
    join = relational.from_database(db, ["f"], ("f", "y"), features={}, streamed=True)
    assert prepared(join, "standard").d == 0 and prepared(join, "standard", True).d == 1
