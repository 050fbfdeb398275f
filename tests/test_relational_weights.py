"""Joins with weights and with absent rows: DuckDB's formed join, and LIBLINEAR on it."""

from pathlib import Path

import numpy as np
import pytest

import jaxsvm
from jaxsvm import relational
from jaxsvm.errors import InputError
from jaxsvm.relational.gradient.engine import STEPS
from jaxsvm.relational.schema.assembly import prepared

duckdb, svm = pytest.importorskip("duckdb"), pytest.importorskip("sklearn.svm")


@pytest.fixture(scope="module")
def db():
    """Sales of shops in towns: weights of two tables, keys that repeat, keys that are missing or have no partner."""
    db = duckdb.connect()
    db.execute("""CREATE TABLE sale AS SELECT NULLIF(i % 9, 7) shop, (i * 37 % 101) / 50.0 - 1 AS x, i % 4 / 2.0 AS w,
            CASE WHEN (i * 37 % 101) + 20 * (i % 9) > 110 THEN 'yes' ELSE 'no' END AS late FROM range(120) t(i);
        CREATE TABLE shop AS SELECT i % 6 shop, NULLIF(i % 4, 3) town, sin(i) AS z, (i % 3) * 0.75 AS trust
            FROM range(14) t(i);
        CREATE TABLE town AS SELECT i AS town, cos(i) AS u, CASE WHEN i = 0 THEN 'sea' ELSE 'hill' END AS lies
            FROM range(2) t(i)""")
    return db


WEIGHTS = {"sale": "w", "shop": "trust"}


def least(x, y, weight, lam):
    """F* of rows with weights, `mean hinge + lam |beta|^2`, by LIBLINEAR."""
    peer = svm.LinearSVC(loss="hinge", C=1 / (2 * lam * weight.sum()), fit_intercept=False, tol=1e-9, max_iter=10**6)
    beta = peer.fit(x, y, sample_weight=weight).coef_[0]
    return np.average(np.maximum(1 - y * (x @ beta), 0), weights=weight) + lam * beta @ beta


@pytest.mark.parametrize("class_weight", [None, "balanced", {"no": 3.0}])
def test_weights_of_two_tables_multiply_and_add_up(db, class_weight):
    join = relational.from_database(db, ["sale", "shop"], ("sale", "late"), weights=WEIGHTS, features={
        "sale": ["x"], "shop": ["z"]})  # fmt: skip
    rows = db.sql("SELECT x, z, w * trust, late = 'yes' FROM sale JOIN shop USING (shop)").fetchnumpy()
    x, z, weight, late = (np.asarray(part, float) for part in rows.values())
    y, scaled, x = 2 * late - 1, prepared(join, class_weight=class_weight, intercept=True), np.stack([x, z], axis=1)
    factor = {"no": 3.0, "yes": 1.0} if isinstance(class_weight, dict) else {"no": 1.0, "yes": 1.0}
    if class_weight == "balanced":
        factor = {c: weight.sum() / (2 * weight[late == (c == "yes")].sum()) for c in factor}
    u = weight * np.where(late, factor["yes"], factor["no"])
    moments, lam = scaled.moments(), 0.01
    np.testing.assert_allclose([join.size, scaled.size], [weight.sum(), u.sum()], rtol=1e-12)
    np.testing.assert_allclose(moments.label_mean[[0, 2]], (u * y) @ x / u.sum(), atol=1e-12)
    x = np.insert(x, 1, 1, axis=1)  # the constant is one of the label's table
    F = least(x, y, u, lam)
    for engine in ("formed", "merge", "grid"):
        tol = {"formed": 1e-9, "merge": 1e-4, "grid": 5e-2}[engine]
        fit = relational.fit(join, lam, engine=engine, tol=tol, class_weight=class_weight)
        P, D, _ = map(float, fit.certificate)
        assert fit.status == jaxsvm.Status.CONVERGED and D - 1e-8 <= F <= P + 1e-8, (engine, D, F, P)
        ours = np.average(np.maximum(1 - y * (x @ fit.beta), 0), weights=u) + lam * fit.beta @ fit.beta
        assert F - 1e-8 <= ours <= P + 1e-9
    far = relational.far_counts(scaled, fit.beta, tau=0.3, engine="merge").counts[0][scaled.tree.label].sum()
    np.testing.assert_allclose(far, u[(y > 0) & (x @ fit.beta <= 0.3)].sum(), rtol=1e-9)
    assert len(db.sql(fit.to_sql()).fetchall()) == len(u)  # those of weight 0 too
    np.testing.assert_allclose(relational.design(scaled).weight.sum(), u.sum(), rtol=1e-12)
    assert relational.fit(join, C=0.5, class_weight=class_weight).lam == pytest.approx(1 / u.sum())


def test_weights_and_tables_in_memory_are_the_same(db):
    tables = {name: db.sql(f"FROM {name}").to_arrow_table() for name in ("sale", "shop")}
    features = {"sale": ["x"], "shop": ["z"]}
    one = relational.Join(tables, ("sale", "late"), features, weights=WEIGHTS)
    two = relational.from_database(db, list(tables), ("sale", "late"), features=features, weights=WEIGHTS)
    np.testing.assert_allclose(one.moments().second, two.moments().second, atol=1e-12)
    assert one.notes == two.notes and [note for note in one.notes if "nothing" in note] == [
        "sale: 13 of 120 rows join with nothing: a key is missing.",
        "sale: 27 of 120 rows join with nothing: their weight is 0.",
        "sale: 39 of 120 rows join with nothing: their keys have no partner.",
        "shop: 5 of 14 rows join with nothing: their weight is 0.",
    ]  # fmt: skip
    assert "(sale: 39 of 120 rows join with nothing: their keys have no partner.)" in repr(one)
    drawn = relational.sample(one, 20_000, 0)
    np.testing.assert_allclose(drawn.x.mean(axis=0), one.moments().mean, atol=0.02)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_weights_that_leave_a_label_without_rows_are_refused():
    """The rows of an optional table that weigh nothing are there: what joins them alone weighs nothing too."""
    tables = {"f": {"k": [0, 1, 1], "x": [1.0, 2.0, 3.0], "y": [0, 1, 1]}, "d": {"k": [0, 1], "w": [0.0, 2.0]}}
    options = {"weights": {"d": "w"}, "optional": ["d"], "missing": "impute"}
    with pytest.raises(InputError, match=r"make 0 and 4 rows \(or weights\) a label"):
        relational.Join(tables, ("f", "y"), **options)
    tables["d"]["w"] = [1e300, 1e300]
    with pytest.raises(InputError, match="inf rows"):
        relational.Join({**tables, "f": {**tables["f"], "v": [1e300] * 3}}, ("f", "y"), **(options | {
            "weights": {"d": "w", "f": "v"}}))  # fmt: skip


def test_weights_that_cannot_be_are_refused(db):
    def made(w, kind="DOUBLE", **options):
        db.execute(f"CREATE OR REPLACE TABLE f AS SELECT i % 2 y, i * 0.1 x, CAST({w} AS {kind}) w FROM range(9) t(i)")
        return relational.from_database(db, ["f"], ("f", "y"), **{"weights": {"f": "w"}, **options})

    half = made("0.5")
    assert half.size == 4.5 and half.feature_names == ["f.x"]
    for what, w in {"missing": "NULL", "negative": "-1", "nan": "'NaN'", "infinite": "'inf'"}.items():
        with pytest.raises(InputError, match=r"weights of f\.w are missing, negative or infinite in 9 rows"):
            made(w), what
    for match, make in (
        (r"weights names f\.w, of type VARCHAR", lambda: made("'a'", "VARCHAR")),
        ("weights: table f has no column q", lambda: made("1", weights={"f": "q"})),
        ("weights is 'w'", lambda: made("1", weights="w")),
        (
            r"f\.w is also the name of a column of d, so it would be a key",
            lambda: relational.Join({"f": {"w": [1, 1], "y": [0, 1]}, "d": {"w": [1]}}, ("f", "y"), weights={"f": "w"}),
        ),
        ("do keys match, and weigh", lambda: made("0")),
        ("whole numbers", lambda: relational.far_counts(half, np.ones(1), engine="sketch")),
        ("class_weight is", lambda: relational.fit(half, 0.1, class_weight={2: 1.0})),
        ("class_weight is", lambda: relational.fit(half, 0.1, class_weight={0: 0.0})),
        ("class_weight is", lambda: relational.fit(half, 0.1, class_weight="even")),
    ):
        with pytest.raises(InputError, match=match):
            make()


KEYS = {("sale", "shop"): "shop", ("shop", "town"): "town"}
FEATURES = {"sale": ["x"], "shop": ["z"], "town": ["u", "lies"]}


@pytest.mark.parametrize("optional", [["shop", "town"], ["shop"], ["town"]])
def test_rows_that_may_be_absent_are_those_of_left_join(db, optional):
    """What joins through an optional table alone may be absent too; means are those of the rows that are there."""
    options = {"features": FEATURES, "keys": KEYS, "optional": optional, "missing": "impute", "weights": WEIGHTS}
    join = relational.from_database(db, ["town", "sale", "shop"], ("sale", "late"), **options)
    how = ("LEFT " * ("shop" in optional), "LEFT ")
    tables = f"sale {how[0]}JOIN shop ON sale.shop = shop.shop {how[1]}JOIN town ON shop.town = town.town"
    rows = db.sql(f"SELECT x, z, u, lies, sale.w * COALESCE(trust, 1), late = 'yes' FROM {tables}").fetchall()
    assert set(join.schema.optional) == {"town", *optional} and sum(row[2] is None for row in rows) > 5
    fill = [block.fill for block in join.blocks]  # of rows that join, also with what is absent
    of = "AVG(z) FROM shop WHERE EXISTS (FROM sale WHERE sale.shop = shop.shop AND w > 0)"
    weighed = "" if "shop" in optional else " AND trust > 0"
    np.testing.assert_allclose(fill[2][0], db.sql(f"SELECT {of}{weighed}").fetchall()[0][0], rtol=1e-12)
    np.testing.assert_allclose(fill[0][0], db.sql("SELECT AVG(u) FROM town").fetchall()[0][0], rtol=1e-12)
    x = np.array([[fill[0][0] if u is None else u, lies == "hill", lies == "sea", lies is None, s,
                   fill[2][0] if z is None else z] for s, z, u, lies, _, _ in rows], float)  # fmt: skip
    weight, y = np.array([row[4] for row in rows], float), np.array([1.0 if row[5] else -1.0 for row in rows])
    assert join.feature_names == ["town.u", "town.lies=hill", "town.lies=sea", "town.lies IS NULL", "sale.x", "shop.z"]
    moments, p = join.moments(), weight / weight.sum()
    np.testing.assert_allclose([moments.size, *moments.mean], [weight.sum(), *p @ x], rtol=1e-11)
    np.testing.assert_allclose(moments.second, (p[:, None] * x).T @ x, atol=1e-12)
    F = least(x, y, weight, 0.01)
    for engine in ("formed", "merge"):
        fit = relational.fit(join, 0.01, engine=engine, intercept=False, tol=1e-4)
        P, D, _ = map(float, fit.certificate)
        assert fit.status == jaxsvm.Status.CONVERGED and D - 1e-8 <= F <= P + 1e-8
    scores = np.sort(x @ fit.coef + fit.intercept)
    found = np.sort(db.sql(f"SELECT score FROM ({fit.to_sql()})").fetchnumpy()["score"])
    np.testing.assert_allclose(found, scores, atol=1e-12)
    assert fit.to_sql().count("LEFT JOIN") == len(join.schema.optional)
    columns = zip(("x", "z", "u", "lies"), zip(*(row[:4] for row in rows), strict=True), strict=False)
    np.testing.assert_allclose(np.sort(fit.decision_function({c: list(of) for c, of in columns})), scores, atol=1e-12)
    assert all((rows == -1).any() == (name in join.schema.optional) for name, rows in zip(join.names, relational.Join(
        {name: db.sql(f"FROM {name}").to_arrow_table() for name in join.names}, ("sale", "late"), **options
    ).rows, strict=True))  # fmt: skip
    whose = {"shop": "sale", "town": "shop"}
    notes = [f"{whose[name]}: " in note and f"no partner in {name}: its features are missing" in note
             for note in join.notes for name in join.schema.optional]  # fmt: skip
    assert sum(notes) == len(join.schema.optional)


def test_a_key_of_three_tables_is_that_of_the_table_nearest_to_the_label():
    """The town of a shop that is absent is found by the sale's own key."""
    tables = {"sale": {"k": [0, 1, 2, 2], "y": [0, 1, 0, 1]}, "shop": {"k": [0], "z": [1.0]},
              "town": {"k": [0, 1], "u": [3.0, 5.0]}}  # fmt: skip
    join = relational.Join(tables, ("sale", "y"), optional=["shop", "town"], missing="impute")
    assert join.tree.outward == [(0, 1), (0, 2)] and join.size == 4
    fit = relational.fit(join, 0.1, intercept=False)
    np.testing.assert_allclose(np.sort(relational.design(join).x[:, 1]), [3.0, 4.0, 4.0, 5.0])
    assert join.notes == [
        "sale: 3 rows have no partner in shop: its features are missing there.",
        "sale: 2 rows have no partner in town: its features are missing there.",
    ]
    duck = duckdb.connect()
    for name, columns in tables.items():
        duck.register(name, jaxsvm.errors.require_package("pyarrow", "").table(columns))
    u, z = fit.coef[1], fit.coef[0]
    found = np.sort(duck.sql(f"SELECT score FROM ({fit.to_sql()})").fetchnumpy()["score"])
    np.testing.assert_allclose(found, np.sort([z + 3 * u, z + 5 * u, z + 4 * u, z + 4 * u]), atol=1e-12)


def test_tables_that_cannot_be_absent_are_refused(db):
    def made(optional, missing="impute", tables=("sale", "shop"), **options):
        return relational.from_database(db, tables, ("sale", "late"), missing=missing, optional=optional, **options)

    for match, make in (
        ("optional is 'sale'", lambda: made("sale")),
        ("missing 'refuse'", lambda: made(["shop"], "refuse")),
        (r"optional is \['tower'\]", lambda: made(["tower"])),
        (
            "town has no key",
            lambda: made(["town"], tables=("sale", "town")),
        ),
    ):
        with pytest.raises(InputError, match=match):
            make()


@pytest.mark.thorough
def test_flights_that_lack_a_plane_or_weather_are_kept():
    place = Path(__file__).resolve().parents[2] / "shared" / "data" / "relational" / "nycflights13"
    if not place.exists():
        pytest.skip(f"{place} is absent")
    db = duckdb.connect()
    db.execute(f"""CREATE TABLE flights AS
            SELECT dep_delay, origin, tailnum, time_hour, dest AS faa, arr_delay >= 15 AS late
            FROM read_csv('{place}/flights.csv.gz', nullstr=['NA', '']) WHERE arr_delay IS NOT NULL;
        CREATE TABLE planes AS SELECT tailnum, seats, engine FROM read_csv('{place}/planes.csv.gz', nullstr=['NA', '']);
        CREATE TABLE weather AS SELECT origin, time_hour, temp
            FROM read_csv('{place}/weather.csv.gz', nullstr=['NA', '']);
        CREATE TABLE airports AS SELECT faa, alt FROM read_csv('{place}/airports.csv.gz', nullstr=['NA', ''])""")
    tables, label = ["flights", "planes", "weather", "airports"], ("flights", "late")
    inner, left = (relational.from_database(db, tables, label, missing="impute", optional=optional)
                   for optional in ((), tables[1:]))  # fmt: skip
    assert (inner.size, left.size) == (271_594, 327_346)
    alone = db.sql("SELECT COUNT(*) FROM flights ANTI JOIN planes USING (tailnum)").fetchall()[0][0]
    assert alone > 40_000 and any(f"{alone} rows have no partner in planes" in note for note in left.notes), left.notes
    late = [(join.moments().label + 1) / 2 * join.size for join in (inner, left)]
    np.testing.assert_allclose(late, [66_787, 80_100], rtol=1e-12)


def weights_of_two_keys(big):
    """Rows of one key weigh big in one table and its inverse in the other, those of the other key about 1 in both."""
    r, key = np.random.default_rng(0), np.repeat([0, 1], 20)
    y = r.integers(0, 2, 40)
    one = {"k": key, "y": y, "p": r.standard_normal(40) + y, "w": np.where(key == 0, 1 / big, 1)}
    two = {"k": key, "q": r.standard_normal(40), "v": np.where(key == 0, big, r.random(40))}
    return relational.Join({"A": one, "B": two}, ("A", "y"), weights={"A": "w", "B": "v"})


def weights_of_a_chain(seed):
    """Weights of three tables range over 12, 16 and 6 decades."""
    r = np.random.default_rng(seed)
    a = {
        "k": r.integers(0, 4, 30),
        "p": r.standard_normal(30),
        "y": r.integers(0, 2, 30),
        "w": 10 ** r.uniform(-6, 6, 30),
    }
    b = {
        "k": r.integers(0, 6, 12),
        "l": r.integers(0, 4, 12),
        "q": r.standard_normal(12),
        "v": r.choice([0, 1e-8, 1, 1e8], 12),
    }
    d = {"l": r.integers(0, 6, 12), "s": r.standard_normal(12), "u": 10 ** r.uniform(-3, 3, 12)}
    return relational.Join({"A": a, "B": b, "D": d}, ("A", "y"), weights={"A": "w", "B": "v", "D": "u"},
                           optional=[[], ["B"], ["D"]][seed % 3], missing="impute")  # fmt: skip


MANY_DECADES = [*((weights_of_two_keys, big) for big in (1e4, 1e8, 1e10, 1e12, 1e14, 1e16)),
                *((weights_of_a_chain, seed) for seed in (4, 6, 11))]  # fmt: skip


@pytest.mark.parametrize(("made", "of"), MANY_DECADES)
def test_weights_of_many_decades_lose_no_digits_of_small_keys(made, of):
    fits = [relational.fit(made(of), 0.01, engine=engine, tol=1e-4) for engine in ("formed", "merge")]
    exact, merged = ((float(fit.certificate.dual), float(fit.certificate.primal)) for fit in fits)
    assert merged[0] <= exact[1] + 1e-9 and exact[0] <= merged[1] + 1e-9 and merged[1] - merged[0] < 3e-4
    for fit in fits:
        rows = relational.design(fit.join)
        score, share, counts = rows.y * (rows.x @ fit.beta), rows.weight / rows.weight.sum(), fit.join.counts()
        ours = share @ np.maximum(0, 1 - score) + 0.01 * fit.beta @ fit.beta
        assert exact[0] - 1e-9 <= ours <= fit.certificate.primal + 1e-9
        at = np.quantile(score, [0.1, 0.3, 0.5, 0.7, 0.9]) + 1e-7
        np.testing.assert_allclose(fit.margins(at), [share[score <= tau].sum() for tau in at], atol=1e-9)
        for ramp in (0.0, 0.3):  # through each row of each table, relative to all rows through it
            far = relational.far_counts(fit.join, fit.beta, tau=0.5, ramp=ramp, engine="merge")
            part = np.mean([score <= 0.5 + ramp * at for at in STEPS], axis=0)
            for found, place, many in zip(far.counts[0], rows.place, counts, strict=True):
                wanted = np.bincount(place, rows.weight * part * (rows.y > 0), minlength=len(many))
                np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9 * rows.weight.sum())
                assert (np.abs(found - wanted) <= 1e-9 * many).all()


@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
@pytest.mark.parametrize("seed", [5, 6, 7, 9, 11])
def test_merged_bounds_hold_where_scores_are_a_billion_ramps(seed):
    """A slope within the ramp, a difference of sums of scores, made the lower bound 1e-5 too high.

    Which of them end STALLED depends on the last digits of a JAX version; the bounds hold in any case.
    """
    join = weights_of_a_chain(seed)
    exact, merged = (relational.fit(join, C=1e-3, engine=engine, tol=1e-6) for engine in ("formed", "merge"))
    assert exact.status.name == "CONVERGED" and (merged.status.name == "CONVERGED" or seed not in (6, 9))
    assert merged.certificate.dual <= exact.certificate.primal * (1 + 1e-9)
    assert exact.certificate.dual <= merged.certificate.primal * (1 + 1e-9)


@pytest.mark.parametrize("order", [("fact", "opt", "c"), ("fact", "c", "opt"), ("opt", "c", "fact")])
def test_a_required_table_joins_before_optional_ones(order):
    """In any order of the tables: what shares a key with a required table stays required."""
    tables = {
        "fact": {"a": [1, 2, 3, 1], "y": [0, 1, 0, 1], "f": [1.0, 2.0, 3.0, 4.0]},
        "opt": {"a": [1, 2], "b": [5, 6], "o": [1.0, 2.0]},
        "c": {"a": [1, 2, 3], "b": [7, 6, 8], "g": [1.0, 2.0, 5.0]},
    }
    arrow = pytest.importorskip("pyarrow").table
    given = {name: arrow(tables[name]) for name in order}
    join = relational.Join(given, ("fact", "y"), optional=["opt"], missing="impute")
    rows = relational.design(join)
    names = [name for name in rows.names if name != "(intercept)"]
    found = np.asarray(rows.x)[:, [rows.names.index(f"{of}") for of in ("fact.f", "c.g", "opt.o")]]
    np.testing.assert_allclose(sorted(found.tolist()), [[1, 1, 2], [2, 2, 2], [3, 5, 2], [4, 1, 2]])
    assert set(join.schema.optional) == {"opt"} and len(names) == 3


@pytest.mark.parametrize("order", [("fact", "opt", "c", "e"), ("e", "c", "opt", "fact"), ("c", "fact", "e", "opt")])
def test_a_chain_behind_an_optional_table_is_optional(order):
    """What joins through an optional table alone may be absent, however many tables lie between."""
    tables = {
        "fact": {"a": [1, 2, 3, 1], "y": [0, 1, 0, 1], "f": [1.0, 2.0, 3.0, 4.0]},
        "opt": {"a": [1, 2], "b": [5, 6]},
        "c": {"b": [5, 6], "d": [7, 8]},
        "e": {"d": [7], "g": [2.0]},
    }
    arrow = pytest.importorskip("pyarrow").table
    join = relational.Join({name: arrow(tables[name]) for name in order}, ("fact", "y"), optional=["opt"],
                           missing="impute")  # fmt: skip
    rows = relational.design(join)
    assert set(join.schema.optional) == {"opt", "c", "e"} and rows.n == 4
    assert sorted(np.asarray(rows.x)[:, rows.names.index("fact.f")].tolist()) == [1, 2, 3, 4]


def test_optional_tables_hide_no_cycle_and_need_their_keys_in_one_table():
    arrow, k = pytest.importorskip("pyarrow").table, [0, 1, 1, 0]
    required = {"r": {"a": k, "b": k, "y": [0, 1, 0, 1]}, "s": {"b": k, "c": k}, "t": {"a": k, "c": k}}
    wide, apart = {"o": {"a": k, "b": k, "c": k, "x": k}}, {"o": {"a": k, "c": k, "x": k}}
    options = {"optional": ["o"], "missing": "impute"}
    with pytest.raises(jaxsvm.InputError, match="cyclic join of r, s, t"):
        relational.Join({name: arrow(of) for name, of in (required | wide).items()}, ("r", "y"), **options)
    chain = {name: arrow(of) for name, of in (required | apart).items() if name != "t"}
    with pytest.raises(jaxsvm.InputError, match="o joins by a, c, which no table before it has all of"):
        relational.Join(chain, ("r", "y"), **options)


@pytest.mark.parametrize(("engine", "seed"), [("formed", 3), ("merge", 7)])
@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_certificates_allow_for_the_rounding_of_scores_that_cancel(engine, seed):
    """Features of 1e8 whose sum is of size 1: F at the fit's point, in long double, is no larger than P."""
    rng = np.random.default_rng(seed)
    offset = rng.normal(size=4) * 10.0 ** rng.integers(4, 9)
    k, y = rng.integers(0, 4, 30), np.where(rng.random(30) < 0.5, 1, -1)
    x = offset[k] + y + 0.3 * rng.normal(size=30)
    join = relational.Join({"f": {"k": k, "x": x, "y": y}, "d": {"k": np.arange(4), "z": -offset}}, ("f", "y"))
    fit = relational.fit(join, 1e-3, engine=engine, tol=1e-9, max_steps=40, intercept=False)
    rows, beta = relational.design(fit.join), fit.beta.astype(np.longdouble)
    hinge = np.maximum(1 - rows.y * (rows.x.astype(np.longdouble) @ beta), 0)
    F = np.average(hinge, weights=rows.weight.astype(np.longdouble)) + np.longdouble(1e-3) * beta @ beta
    assert float(fit.certificate.dual) <= F <= float(fit.certificate.primal)
