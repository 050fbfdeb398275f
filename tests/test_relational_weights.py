"""Joins with weights and with absent rows: DuckDB's formed join, and LIBLINEAR on it."""

import numpy as np
import pytest

import jaxsvm
from jaxsvm import relational
from jaxsvm.errors import InputError
from jaxsvm.relational.schema.join import prepared

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
    drawn = relational.sample(one, 20_000, 0)
    np.testing.assert_allclose(drawn.x.mean(axis=0), one.moments().mean, atol=0.02)


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
        ("do keys match, and weigh", lambda: made("0")),
        ("whole numbers", lambda: relational.far_counts(half, np.ones(1), engine="sketch")),
        ("class_weight is", lambda: relational.fit(half, 0.1, class_weight={2: 1.0})),
        ("class_weight is", lambda: relational.fit(half, 0.1, class_weight={0: 0.0})),
        ("class_weight is", lambda: relational.fit(half, 0.1, class_weight="even")),
    ):
        with pytest.raises(InputError, match=match):
            make()
