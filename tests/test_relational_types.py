"""Keys keep their identity, numbers their digits, categories their values, whatever type a column has; against SQL."""

import datetime
import decimal
import uuid

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsvm import relational
from jaxsvm.errors import InputError
from jaxsvm.relational.tables.columns import array_of

duckdb = pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
random_joins = pytest.importorskip("random_joins")


@pytest.fixture
def db():
    return duckdb.connect()


@pytest.mark.thorough
@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_random_schemas_of_random_types_are_those_of_sql_or_refused_by_name(seed):
    random_joins.judged(seed, forms=1)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_names_that_collide_missing_keys_and_nulls_score_as_sql_or_are_refused_by_name(db, seed):
    read = lambda *a, **options: relational.from_database(db, *a, **options)  # noqa: E731
    random_joins.Names(lambda query: db.execute(query).fetchall(), read, "main", seed).judged()


def fact_and_dimension(db, fact_type, dimension_type, values=("'small'", "'medium'", "'large'")):
    cases = f"CASE i % 3 WHEN 0 THEN {values[0]} WHEN 1 THEN {values[1]} ELSE {values[2]} END"
    db.execute(f"CREATE TABLE f AS SELECT CAST({cases} AS {fact_type}) k, CASE WHEN i % 3 = 0 THEN 1 ELSE -1 END y "
               "FROM range(90) t(i)")  # fmt: skip
    rows = ", ".join(f"(CAST({value} AS {dimension_type}), {float(value == values[0])}::DOUBLE)" for value in values)
    db.execute(f"CREATE TABLE d AS SELECT * FROM (VALUES {rows}) v(k, x)")
    return relational.from_database(db, ["f", "d"], ("f", "y"))


@pytest.mark.parametrize(
    ("fact", "dimension", "values"),
    [
        ("e1", "VARCHAR", ()), ("VARCHAR", "e1", ()), ("e1", "e2", ()), ("e1", "e1", ()),
        ("BIGINT", "HUGEINT", ("10", "9", "-1")), ("DECIMAL(9,2)", "SMALLINT", ("10", "9", "-1")),
        ("UBIGINT", "BIGINT", ("18", "9", "1")), ("HUGEINT", "DECIMAL(38,0)", ("18", "9", "1")),
        ("DATE", "TIMESTAMP", ("'2020-01-10'", "'2020-01-09'", "'1960-01-01'")),
        ("HUGEINT", "DECIMAL(9,2)", ("10", "9", "-1")), ("INTEGER", "DOUBLE", ("10", "9", "-1")),
        ("BLOB", "BLOB", ("'b'", "'a'", "'\\x00'")),
        ("TIME", "TIME", ("'10:00'", "'09:00'", "'11:00'")),
    ],
)  # fmt: skip
def test_keys_of_unlike_types_join_as_the_database_joins_them(db, fact, dimension, values):
    db.execute("CREATE TYPE e1 AS ENUM('small', 'medium', 'large')")
    db.execute("CREATE TYPE e2 AS ENUM('other', 'large', 'medium', 'small')")
    join = fact_and_dimension(db, fact, dimension, *([values] if values else []))
    count, mean = db.sql("SELECT COUNT(*), AVG(x * y) FROM f JOIN d ON f.k = d.k").fetchall()[0]
    assert join.size == count == 90 and mean > 0.33
    np.testing.assert_allclose(join.moments().label_mean, [mean], atol=1e-12)
    fit = relational.fit(join, 0.01)
    scores = db.sql(f"SELECT score, y FROM ({fit.to_sql()})").fetchnumpy()
    assert (np.sign(scores["score"]) == scores["y"]).all()


@pytest.mark.parametrize(
    ("one", "two", "value"),
    [
        ("VARCHAR", "INTEGER", "1"), ("BOOLEAN", "INTEGER", "1"), ("VARCHAR", "UUID", f"'{uuid.UUID(int=1)}'"),
        ("TIMESTAMP", "TIMESTAMPTZ", "'2020-01-01'"), ("BLOB", "VARCHAR", "'a'"), ("DECIMAL(9,2)", "DOUBLE", "1"),
        ("UHUGEINT", "HUGEINT", "1"), ("BIGINT", "DOUBLE", f"{2**53 + 2}"), ("INTEGER", "FLOAT", "1"),
    ],
)  # fmt: skip
def test_keys_without_an_exact_common_type_are_refused_by_name(db, one, two, value):
    with pytest.raises(InputError, match=r"keys join f\.k \(.*\), d\.k \("):
        fact_and_dimension(db, one, two, (value, value, value))


def test_texts_compared_without_case_join_their_like_as_the_database_does_or_are_refused(db):
    db.execute("""CREATE TABLE f AS SELECT i % 2 y, (ARRAY['a', 'A', 'b'])[1 + i % 3] k FROM range(12) t(i);
        CREATE TABLE d(k VARCHAR COLLATE NOCASE, x DOUBLE); INSERT INTO d VALUES ('A', 1), ('B', 2);
        CREATE TABLE g(k VARCHAR COLLATE NOCASE, y BIGINT); INSERT INTO g SELECT k, y FROM f""")
    with pytest.raises(InputError, match=r"keys join f\.k \(VARCHAR\), d\.k \(VARCHAR COLLATE NOCASE\)"):
        relational.from_database(db, ["f", "d"], ("f", "y"))
    assert relational.from_database(db, ["g", "d"], ("g", "y")).size == 12
    with pytest.raises(InputError, match=r"feature g\.k holds values of type VARCHAR COLLATE NOCASE"):
        relational.from_database(db, ["g"], ("g", "y"))


def test_tables_without_a_common_column_are_named(db):
    db.execute("CREATE TABLE f AS SELECT i % 2 y, i % 3 customer, i a FROM range(12) t(i)")
    db.execute("CREATE TABLE d AS SELECT i customer_id, i b, DATE '2020-01-01' c FROM range(3) t(i)")
    with pytest.raises(InputError, match=r"feature d.c holds dates.*features=\{table: \[columns\]\}"):
        relational.from_database(db, ["f", "d"], ("f", "y"))
    features = {"f": ["a"], "d": ["b"]}
    assert "f and d share no key" in repr(relational.from_database(db, ["f", "d"], ("f", "y"), features=features))
    keys = {("f", "d"): {"customer": "customer_id"}}
    join = relational.from_database(db, ["f", "d"], ("f", "y"), features=features, keys=keys)
    assert repr(join) == "Join of 12 rows: f (12 distinct rows, 1 features), d (3 distinct rows, 1 features)"


BIG = 10**18


def test_integer_keys_keep_all_their_digits():
    """With a NULL, beside unsigned ones, beyond 64 bits; floats that cannot tell them apart are refused."""
    pandas = pytest.importorskip("pandas")
    keys = [BIG + i % 4 for i in range(40)]
    d = {"k": np.array([BIG + i for i in range(4)]), "x": np.arange(4.0)}
    tables = [
        {"k": pa.array([*keys, None])}, {"k": pandas.array([*keys, None], "Int64")}, {"k": [*keys, None]},
        {"k": np.array([*keys, 0], np.uint64)}, {"k": pandas.Series([*keys, None], dtype=object)},
        {"k": pa.array([decimal.Decimal(k) for k in keys] + [None], pa.decimal128(38, 0))},
        {"k": [*(decimal.Decimal(k).scaleb(2).scaleb(-2) for k in keys), decimal.Decimal("NaN")]},
        {"k": [*map(decimal.Decimal, keys), decimal.Decimal(2**100)]},
    ]  # fmt: skip
    for table in tables:
        join = relational.Join({"f": table | {"y": np.arange(41) % 2}, "d": d}, ("f", "y"))
        assert join.size == 40
    with pytest.raises(InputError, match=r"keys join f\.k \(DOUBLE\), d\.k \(BIGINT\): no type.*Int64"):
        relational.Join({"f": {"k": np.array(keys, float), "y": np.arange(40) % 2}, "d": d}, ("f", "y"))


def test_values_of_a_key_are_equal_where_they_are_equal_and_only_there():
    """One dictionary over both columns: NaN of Arrow, -0.0, times of several units, what NumPy would round or strip."""
    pandas = pytest.importorskip("pandas")
    day, at = datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2)
    zone = datetime.timezone(datetime.timedelta(hours=5))
    unit = pandas.Timestamp("2020-01-02 00:00:00.000000001")
    cases = [
        (pa.array([float("nan"), 0.0, None]), pa.array([-0.0, float("nan"), 1.0]), [[1], [0], []]),
        (np.array([np.nan, 1.0]), np.array([np.nan, 1]), [[], [1]]),
        (np.array([0.1], np.float32), np.array([0.1]), [[]]),
        (np.array([1, 0]), np.array([1.0, np.nan]), [[0], []]),
        (pa.array([day, None]), [at, at + datetime.timedelta(microseconds=1)], [[0], []]),
        (np.array(["2020-01-02"], "M8[s]"), pa.array([unit, at], pa.timestamp("ns")), [[1]]),
        (pandas.Series([unit]), pandas.Series([unit, at]), [[0]]),
        (pandas.Series([at]).dt.tz_localize("UTC"), [at.replace(tzinfo=zone) + datetime.timedelta(hours=5)], [[0]]),
        (["a", "a\0", "a "], pa.array(["a", "A"]), [[0], [], []]),
        ([b"a", b"a\0"], pa.array([b"a\0"]), [[], [0]]),
        ([uuid.UUID(int=7)], pa.array([uuid.UUID(int=7).bytes], pa.uuid()), [[0]]),
        ([decimal.Decimal("1.50"), 2], pa.array([decimal.Decimal("1.5"), decimal.Decimal("2")]), [[0], [1]]),
        (pa.array(["x", None]).dictionary_encode(), pandas.Series(["y", "x"], dtype="category"), [[1], []]),
        ([True, None], pandas.array([True, False], "boolean"), [[0], []]),
        ([datetime.time(1)], pa.array([3_600_000], pa.time32("ms")), [[0]]),
    ]  # fmt: skip
    for one, two, equal in cases:
        assert pairs_of(one, two) == equal, (one, two)


def pairs_of(one, two):
    """For each value of a key, the places of those that it joins."""
    tables = {"f": {"k": one, "i": np.arange(len(one))}, "d": {"k": two, "j": np.arange(len(two))}, "L": {"y": [0, 1]}}
    try:
        x, _, _ = random_joins.formed_rows(relational.Join(tables, ("L", "y")))
    except InputError as error:
        assert "without rows" in str(error)
        x = np.zeros((0, 2))
    return [sorted({int(j) for k, j in x if k == i}) for i in range(len(one))]


@pytest.mark.parametrize(
    "values", [[1, "1"], [True, 1], [1, b"1"], [datetime.datetime(2020, 1, 1), datetime.datetime.now(datetime.UTC)],
               [2**53 + 1, 0.5], [2**64, 1], [decimal.Decimal("0.1"), 0.1], [decimal.Decimal("Infinity")], [2**200, 1],
               [datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1)]]
)  # fmt: skip
def test_a_column_that_mixes_kinds_is_refused_by_name(values):
    with pytest.raises(InputError, match="column t.c is no Arrow array"):
        array_of(values, "t.c")


def test_decimals_and_sums_are_numbers_and_nothing_is_a_category_unasked(db):
    """DECIMAL, HUGEINT and unsigned ones are numbers, rounded once; dates, UUIDs and blobs are refused by name."""
    db.execute("""CREATE TABLE f AS SELECT i k, i % 2 y, (i * 0.1)::DECIMAL(9,1) price, SUM(i::BIGINT) OVER () total,
        (i + 0.12345678901234567890123456789)::DECIMAL(38,29) fine,
        (170141183460469231731687303715884105728::UHUGEINT + i) u
        FROM range(1, 3) t(i)""")
    joins = [relational.from_database(db, ["f"], ("f", "y"), features={"f": ["price", "total", "fine", "u"]})]
    table = {"y": [1, 0], "price": [decimal.Decimal("0.1"), decimal.Decimal("0.2")], "total": [3, 3],
             "fine": [decimal.Decimal(f"{i}.12345678901234567890123456789") for i in (1, 2)],
             "u": [2.0**127] * 2}  # fmt: skip
    joins.append(relational.Join({"f": table}, ("f", "y")))
    joins.append(relational.Join({"f": pa.table({k: v for k, v in table.items() if k != "u"})}, ("f", "y")))
    for join in joins:
        assert join.feature_names == ["f.price", "f.total", "f.fine", "f.u"][: join.d]
        x = join.blocks[0].X[np.argsort(join.blocks[0].X[:, 0])]
        want = np.array([[0.1, 3.0, 1.1234567890123457, 2.0**127], [0.2, 3.0, 2.1234567890123457, 2.0**127]])
        np.testing.assert_array_equal(x, want[:, : join.d])
    kinds = {"DATE": "'2020-01-01'", "UUID": "uuid()", "BLOB": "'a'", "TIMESTAMPTZ": "now()", "INTERVAL": "'1 day'"}
    for kind, value in kinds.items():
        db.execute(f"CREATE OR REPLACE TABLE g AS SELECT i % 2 y, {value}::{kind} c FROM range(4) t(i)")
        with pytest.raises(InputError, match=r"feature g\.c holds"):
            relational.from_database(db, ["g"], ("g", "y"))
    with pytest.raises(InputError, match=r"feature g\.c holds dates"):
        relational.Join({"g": {"y": [0, 1], "c": [datetime.date(2020, 1, 1)] * 2}}, ("g", "y"))
    with pytest.raises(InputError, match=r"column f\.x is no Arrow array"):
        relational.Join({"f": {"y": [0, 1], "x": [10**400, 1]}}, ("f", "y"))
    with pytest.raises(InputError, match=r"categorical\['f'\] is \['z'\]"):
        relational.Join({"f": table}, ("f", "y"), categorical={"f": ["z"]})


def scored_alike(db, fit, rows):
    """Scores by `decision_function` of each form of the rows, which are those of `to_sql`."""
    db.register("rows_", rows)
    want = db.sql(fit.to_sql({"f": "rows_"})).fetchnumpy()["score"]
    want = np.ma.filled(want, np.nan).astype(float)
    frame = rows.to_pandas(integer_object_nulls=True)
    for form in (rows, frame, frame.convert_dtypes(), {c: rows.column(c).to_pylist() for c in rows.column_names}):
        np.testing.assert_allclose(fit.decision_function(form), want, rtol=0, atol=1e-12)
    return want


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["BOOLEAN", "INTEGER", "HUGEINT", "DATE", "TIMESTAMP", "VARCHAR"])
@pytest.mark.parametrize("in_training", [True, False])
def test_categories_score_alike_with_and_without_nulls(db, kind, in_training):
    """In training and scoring, in SQL and here: levels keep their type, and one that was not seen adds nothing."""
    values = {
        "BOOLEAN": ["true", "false"],
        "DATE": ["2020-01-01", "1969-12-31"],
        "TIMESTAMP": ["2020-01-01", "1969-12-31 23:59:59.5"],
    }.get(kind, ["1", "0"])
    rows = [(f"CAST('{values[i % 2]}' AS {kind})", 1 if i % 2 else -1) for i in range(20)]
    rows += [(f"CAST(NULL AS {kind})", 1)] * (3 if in_training else 0)
    listed = ", ".join(f"({c}, {y})" for c, y in rows)
    db.execute(f"CREATE TABLE f AS SELECT * FROM (VALUES {listed}) t(c, y)")
    options = {"categorical": {"f": ["c"]}, "missing": "impute"}
    asked = ("FROM f", "FROM f LIMIT 2", "(FROM f LIMIT 2) UNION ALL SELECT NULL, 1")
    tables = [db.sql(query).to_arrow_table() for query in asked]
    here = relational.Join({"f": tables[0]}, ("f", "y"), **options)
    for join in (relational.from_database(db, ["f"], ("f", "y"), **options), here):
        assert len(join.feature_names) == 2 + in_training and ("f.c IS NULL" in join.feature_names) == in_training
        fit = relational.fit(join, 0.01)
        scores, with_null = (scored_alike(db, fit, table) for table in tables[1:])
        assert scores[0] < 0 < scores[1]
        np.testing.assert_allclose(with_null[:2], scores, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["DECIMAL(5,2)", "DOUBLE"])
def test_numbers_whose_texts_differ_are_no_categories(db, kind):
    db.execute(f"CREATE TABLE f AS SELECT CAST(i % 3 AS {kind}) c, i % 2 y FROM range(9) t(i)")
    with pytest.raises(InputError, match=r"categorical\['f'\] names c, of type .*Int64"):
        relational.from_database(db, ["f"], ("f", "y"), categorical={"f": ["c"]})


def test_nanoseconds_of_a_category_are_told_apart_by_the_query(db):
    """Literals of TIMESTAMP have microseconds: all rows had the score of one level."""
    db.sql("CREATE TABLE f AS SELECT range % 2 AS y, make_timestamp_ns(range % 2) AS k FROM range(8)")
    fit = relational.fit(relational.from_database(db, ["f"], ("f", "y"), categorical={"f": ["k"]}), C=1.0)
    scores = db.sql(fit.to_sql()).fetchnumpy()["score"]
    np.testing.assert_allclose(scores, fit.decision_function(db.sql("FROM f").to_arrow_table()))
    assert len(np.unique(scores)) == 2


def test_a_text_that_says_missing_is_not_a_missing_one(db):
    rows = "('(missing)', 1), (NULL, -1), ('NULL', 1), ('it''s', -1)"
    db.execute(f"CREATE TABLE f AS SELECT * FROM (VALUES {rows}) t(c, y), range(5)")
    fit = relational.fit(relational.from_database(db, ["f"], ("f", "y"), features={"f": ["c"]}, missing="impute"), 0.01)
    scores = scored_alike(db, fit, db.sql("SELECT c, y FROM f").to_arrow_table())
    assert (np.sign(scores) == db.sql("SELECT y FROM f").fetchnumpy()["y"]).all()


def test_nullable_columns_of_pandas_and_of_polars_are_read_as_what_they_are():
    """Text, booleans, integers with NA, in features, keys and labels, as of a plain list."""
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    rng = np.random.default_rng(0)
    f = {"k": [1, 2, None, 3] * 10, "s": ["a", None, "b", "c"] * 10, "b": [True, None, False, True] * 10,
         "n": [0.5, None, 2.0, 7.0] * 10, "y": ["no", "yes"] * 20}  # fmt: skip
    d = {"k": [1, 2, 3], "z": rng.normal(size=3).tolist()}
    want = relational.Join({"f": f, "d": d}, ("f", "y"), missing="impute")
    plain = pandas.DataFrame(f)
    typed = plain.astype({"k": "Int64", "s": "string", "b": "boolean", "n": "Float64", "y": "category"})
    arrow = plain.convert_dtypes(dtype_backend="pyarrow")
    for frame in (plain, plain.convert_dtypes(), typed, arrow, polars.DataFrame(f), pa.table(f)):
        join = relational.Join({"f": frame, "d": d}, ("f", "y"), missing="impute")
        assert join.size == want.size == 30 and join.feature_names == want.feature_names
        assert join.classes.tolist() == ["no", "yes"]
        np.testing.assert_allclose(join.moments().second, want.moments().second, rtol=0, atol=1e-12)


def test_the_scoring_query_reads_what_the_join_was_made_from(db):
    db.execute(
        "CREATE TABLE o_train AS SELECT i % 3 k, i * 0.5 x, i % 2 y FROM range(9) t(i);"
        "CREATE TABLE o AS SELECT * FROM o_train LIMIT 2"
    )
    db.execute("CREATE TABLE d AS SELECT i k, i * i z FROM range(3) t(i)")
    fit = relational.fit(relational.from_database(db, {"o": "o_train", "d": "(SELECT * FROM d)"}, ("o", "y")), 0.1)
    assert len(db.sql(fit.to_sql()).fetchall()) == 9
    assert len(db.sql(fit.to_sql({"o": "o"})).fetchall()) == 2


def test_names_are_the_databases(db):
    """Quotes, blanks, names like ours, and in DuckDB names that differ in case alone; two of one name are refused."""
    db.execute("""CREATE TABLE "or""der" AS SELECT i % 4 AS "Key", i * 0.1 c0, i AS "n", i AS "e0_1",
        i % 2 AS "label ""y"
        FROM range(20) t(i);
        CREATE TABLE "Group" AS SELECT i AS "KEY", i * i AS k0 FROM range(3) t(i)""")
    join = relational.from_database(db, ['or"der', "Group"], ('or"der', 'label "y'))
    assert join.size == 15 and join.feature_names == ['or"der.c0', 'or"der.n', 'or"der.e0_1', "Group.k0"]
    fit = relational.fit(join, 0.1)
    x, _, _ = random_joins.formed_rows(fit.join)
    scores = np.sort(db.sql(fit.to_sql()).fetchnumpy()["score"])
    np.testing.assert_allclose(scores, np.sort(x @ fit.beta), rtol=0, atol=1e-12)
    pandas = pytest.importorskip("pandas")
    twice = pandas.DataFrame([[0, 1, 2], [1, 2, 3]], columns=["y", "x", "x"])
    with pytest.raises(InputError, match="2 columns x"):
        relational.Join({"t": twice}, ("t", "y"))
    numbered = pandas.DataFrame([[0, 1.5], [1, 2.5]], columns=[0, 1])
    assert relational.Join({"t": numbered}, ("t", "0")).feature_names == ["t.1"]


def test_self_joins_composite_keys_of_unlike_types_and_empty_tables(db):
    db.execute("""CREATE TYPE e AS ENUM('b', 'a');
        CREATE TABLE s AS SELECT (CASE i % 2 WHEN 0 THEN 'a' ELSE 'b' END)::e u, (i % 3)::UTINYINT v,
        i % 5 w, i * 0.5 x, i % 2 y
        FROM range(30) t(i);
        CREATE TABLE d AS SELECT * FROM (VALUES ('a', 0::DECIMAL(5,2), 1.5), ('b', 1, 2.5), ('b', 2, NULL)) t(p, q, z);
        CREATE TABLE none AS SELECT * FROM d WHERE FALSE""")
    keys = {("s", "d"): {"u": "p", "v": "q"}, ("s", "other"): ["w"]}
    join = relational.from_database(db, {"s": "s", "d": "d", "other": "s"}, ("s", "y"), keys=keys, missing="impute",
                                  features={"s": ["x"], "d": ["z"], "other": ["x"]})  # fmt: skip
    query = "FROM s JOIN d ON u = p AND v = q JOIN s o ON s.w = o.w"
    assert join.size == db.sql(f"SELECT COUNT(*) {query}").fetchall()[0][0] > 50
    mean = db.sql(f"SELECT AVG((2 * s.y - 1) * s.x), AVG((2 * s.y - 1) * o.x) {query}").fetchall()[0]
    np.testing.assert_allclose(join.moments().label_mean[[0, 2]], mean, rtol=0, atol=1e-12)
    with pytest.raises(InputError, match="without rows"):
        relational.from_database(db, ["s", "none"], ("s", "y"), keys={("s", "none"): {"u": "p"}})
    with pytest.raises(InputError, match="nothing is left of s"):
        relational.Join({"s": {"k": np.zeros(0), "y": np.zeros(0)}}, ("s", "y"))
