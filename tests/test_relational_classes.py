"""Several classes over joins, scores of joins that are never formed, and rows of a table that are held out."""

import json

import numpy as np
import pytest
from test_relational_weights import least

import jaxsvm
from jaxsvm import relational
from jaxsvm.errors import InputError
from jaxsvm.relational.descent.rows import Scorer, Term

duckdb = pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
random_joins = pytest.importorskip("random_joins")

LABELS = ("it's", "no", "yes")


def tables(labels=LABELS, n=160):
    """Sales of shops, of which some have no key or partner; weights of both."""
    rng = np.random.default_rng(0)
    k, x = rng.integers(0, 7, n), rng.normal(size=n)
    z, kind = rng.normal(size=12).round(2), np.array(["u", "v", None], object)[rng.integers(0, 3, n)]
    code = np.digitize(x + np.arange(7)[k] / 3 + 0.4 * rng.normal(size=n), [0.6, 1.4])
    f = {"k": k, "x": x, "kind": kind, "y": np.array(labels)[np.minimum(code, len(labels) - 1)], "w": k % 3 / 2}
    return {"f": f, "d": {"k": np.arange(12) % 6, "z": z, "v": 1 + np.arange(12) % 2 / 4}}


OPTIONS = {"missing": "impute", "weights": {"f": "w", "d": "v"}}


def formed(given):
    """Features with a constant, labels and weights of the joined rows, by DuckDB."""
    db = duckdb.connect()
    for name, table in given.items():
        db.register(name, pa.table(table))
    rows = db.sql("SELECT x, kind, z, y, w * v AS weight FROM f JOIN d USING (k)").fetchnumpy()
    x, z, weight, y = (np.asarray(rows[name]) for name in ("x", "z", "weight", "y"))
    kind = np.array([None if value is np.ma.masked or value is None else value for value in rows["kind"]], object)
    levels = [np.array([value == level for value in kind], float) for level in ("u", "v", None)]
    return np.stack([x, np.ones(len(x)), *levels, z], axis=1), y, weight, {"x": x, "kind": kind, "z": z}


@pytest.mark.parametrize("class_weight", [None, "balanced", {"no": 3.0}])
def test_each_class_is_certified_against_the_rest(class_weight):
    given, lam = tables(), 0.01
    join, (x, y, weight, rows) = relational.Join(given, ("f", "y"), **OPTIONS), formed(given)
    factor = dict.fromkeys(LABELS, 1.0) | (class_weight if isinstance(class_weight, dict) else {})
    if class_weight == "balanced":
        factor = {c: weight.sum() / (3 * weight[y == c].sum()) for c in LABELS}
    u = weight * np.array([factor[c] for c in y])
    optima = [least(x, np.where(y == c, 1.0, -1.0), u, lam) for c in LABELS]
    for engine in ("formed", "merge", "grid"):
        tol = {"formed": 1e-9, "merge": 5e-4, "grid": 5e-2}[engine]
        fit = relational.fit(join, lam, engine=engine, tol=tol, class_weight=class_weight)
        assert fit.classes.tolist() == list(LABELS) and fit.beta.shape == (3, 6) and fit.coef.shape == (3, 5)
        assert (np.asarray(fit.status.code) == jaxsvm.Status.CONVERGED).all()
        for c, F, beta, P, D, machine in zip(LABELS, optima, fit.beta, *fit.certificate[:2], fit.machines, strict=True):
            assert D - 1e-8 <= F <= P + 1e-8, (engine, c, D, F, P)
            ours = np.average(np.maximum(1 - np.where(y == c, 1, -1) * (x @ beta), 0), weights=u) + lam * beta @ beta
            assert F - 1e-8 <= ours <= P + 1e-9
            assert machine.classes.tolist() == [f"not {c}", c] and machine.certificate.primal == P
        scores = x @ fit.beta.T
        np.testing.assert_allclose(fit.decision_function(rows), scores, atol=1e-11)
        predicted = np.array(LABELS)[scores.argmax(axis=1)]
        assert list(fit.predict(rows)) == list(predicted)
        counts = [[weight[(y == a) & (predicted == b)].sum() for b in LABELS] for a in LABELS]
        np.testing.assert_allclose(fit.confusion(join), counts, atol=1e-9)
        assert fit.score(join) == pytest.approx(weight[y == predicted].sum() / weight.sum(), rel=1e-12)
        two = join.against("no")
        ours = [[weight[((y == "no") == a) & ((scores[:, 1] >= 0) == b)].sum() for b in (0, 1)] for a in (0, 1)]
        np.testing.assert_allclose(fit.machines[1].confusion(two), ours, atol=1e-9)
    assert relational.fit(join, C=0.5).lam == pytest.approx(1 / weight.sum())
    assert relational.design(join).classes == LABELS
    of_rows = jaxsvm.designs.fit(relational.design(join), C=1.0, bias="none")
    fit = relational.fit(join, C=1.0, intercept=False)
    np.testing.assert_allclose(fit.lam * 2 * of_rows.certificate.primal, fit.certificate.primal, rtol=1e-3)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_random_schemas_of_several_classes_score_as_sql_or_are_refused_by_name(seed):
    db = duckdb.connect()
    read = lambda *a, **options: relational.from_database(db, *a, **options)  # noqa: E731
    labels = [("a", "b", "c d"), ("no", "1", "NULL", "yes")][seed % 2]
    random_joins.Names(lambda query: db.execute(query).fetchall(), read, "main", seed, labels).judged()


@pytest.mark.parametrize(
    "labels", [("x", "it's", 'q"'), (1, 2, 3), (0.5, 1.25, 2.0), (-np.inf, 0.5, np.inf), (False, True)]
)
def test_labels_of_the_query_and_of_a_file_keep_their_types(tmp_path, labels):
    given = tables(labels)
    given["f"]["x"][:9] = np.nan
    join = relational.Join(given, ("f", "y"), {"f": ["x"], "d": ["z"]}, missing="impute", optional=["d"])
    fit = relational.fit(join, 0.01)
    fit.save(tmp_path / "model.json")
    kept, content = relational.load(tmp_path / "model.json"), json.loads((tmp_path / "model.json").read_text())
    assert kept.classes.tolist() == fit.classes.tolist() and content["format"] == "jaxsvm-relational-1"
    assert kept.to_sql(label="ours") == fit.to_sql(label="ours") and kept.score(join) == fit.score(join)
    db = duckdb.connect()
    for name, table in given.items():
        db.register(name, pa.table(table))
    query = fit.to_sql(score="s", label="ours")
    rows = db.sql(f"SELECT * EXCLUDE (k, x, kind, y, w) FROM ({query})").fetchall()
    scores = np.array([row[:-1] for row in rows], float)
    wanted = scores.argmax(axis=1) if len(labels) > 2 else (scores[:, 0] >= 0).astype(int)
    assert [row[-1] for row in rows] == fit.classes[wanted].tolist()
    assert {type(row[-1]) for row in rows} == {type(labels[0])}
    for name in ("s_0" if len(labels) > 2 else "s", "X"):
        with pytest.raises(InputError, match=f"score is '{name}', a column of f as well"):
            fit.to_sql(score="s", label=name)


def test_a_row_without_a_number_has_no_label():
    given = {"f": {"x": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 2, 1]}}
    fit = relational.fit(relational.Join(given, ("f", "y")), 0.01)
    db = duckdb.connect()
    for values in ("(NULL::DOUBLE), ('NaN'::DOUBLE), (1.5)", "('NaN'::DOUBLE), (1.5)"):
        db.execute(f"CREATE OR REPLACE TABLE f AS SELECT * FROM (VALUES {values}) v(x)")
        for scored in (fit, fit.machines[0]):
            labels = dict(db.sql(f"SELECT x, c FROM ({scored.to_sql(label='c')})").fetchall())
            assert labels[1.5] is not None and [c for x, c in labels.items() if x != 1.5] == [None] * (len(labels) - 1)
    holes = relational.Join({"f": {"x": [1.0, np.nan, 2.0], "y": [0, 1, 2]}}, ("f", "y"), missing="impute")
    with pytest.raises(InputError, match="rows of f without a number"):
        fit.score(holes)


# --- scores of joins -------------------------------------------------------------------------------------------------


def grid_of_ties(m, seed, weights):
    """Tables on one or two keys whose numbers are small integers, so that many scores are exactly 0."""
    rng = np.random.default_rng(seed)
    keys, given = {"t0": "ab", "t1": "a", "t2": "b"}, {}
    for name in [f"t{i}" for i in range(m)]:
        given[name] = {k: rng.integers(0, 4, 30) for k in keys[name]} | {f"x{name}": rng.integers(-2, 3, 30)}
    given["t0"]["y"] = rng.integers(0, 2, 30)
    if weights:
        given["t1"]["w"] = rng.choice([0, 1, 0.25, 3], 30)
    return given, {"t1": "w"} if weights else None


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("m", [2, 3])
def test_ties_are_counted_as_in_the_formed_join(m, weights):
    for seed in range(5):
        given, columns = grid_of_ties(m, seed, weights)
        join = relational.Join(given, ("t0", "y"), weights=columns)
        terms = [Term(f"t{i}", f"xt{i}", "number", [float(c)]) for i, c in enumerate([1, -2, 1][:m])]
        model = Scorer(terms, 0.0, join.classes, join.schema)
        rows = relational.design(join)
        names = [rows.names.index(f"{term.table}.{term.name}") for term in terms]
        score = np.asarray(rows.x)[:, names] @ [term.coef[0] for term in terms]
        assert (score == 0).sum() >= 5
        wanted = [[rows.weight[(rows.y == sign) & ((score >= 0) == p)].sum() for p in (0, 1)] for sign in (-1, 1)]
        np.testing.assert_array_equal(model.confusion(join), wanted)
        assert model.score(join) == (wanted[0][0] + wanted[1][1]) / join.size
        for scale in ("standard", "max"):  # a scaled join is scored by its unscaled numbers
            scaled = relational.fit(join, 0.1, scale=scale, tol=0.5).join
            np.testing.assert_array_equal(model.confusion(scaled), wanted)


def test_missing_numbers_of_another_join_count_as_those_of_training():
    """Its own means, levels that training did not see, columns that the model does not know, absent rows."""
    given = tables()
    fit = relational.fit(relational.Join(given, ("f", "y"), missing="impute", optional=["d"]), 0.01, scale="standard")
    rng = np.random.default_rng(1)
    f = {name: values[::-1][:40].copy() for name, values in given["f"].items()}
    f["x"][::3], f["kind"][::4], f["more"] = np.nan, "new", rng.normal(size=40)
    d = {"k": np.arange(4), "z": [np.nan, 1.0, 2.0, 3.0], "v": np.ones(4)}
    other = relational.Join({"d": d, "f": f}, ("f", "y"), missing="impute", optional=["d"])
    db = duckdb.connect()
    db.register("f", pa.table(f | {"x": pa.array(f["x"], from_pandas=True)}))
    db.register("d", pa.table(d | {"z": pa.array(d["z"], from_pandas=True)}))
    rows = db.sql(f"SELECT y, ours FROM ({fit.to_sql(label='ours')})").fetchall()
    wanted = [[sum(row == (a, b) for row in rows) for b in LABELS] for a in LABELS]
    assert sum(map(sum, wanted)) == other.size
    np.testing.assert_array_equal(fit.confusion(other), wanted)


def test_joins_that_cannot_be_scored_are_refused_by_name():
    given = tables()
    join = relational.Join(given, ("f", "y"), missing="impute")
    fit, two = relational.fit(join, 0.1), join.against("no")
    other = relational.Join({**given, "f": given["f"] | {"kind": np.arange(160.0)}}, ("f", "y"))
    alone = relational.Join({"f": given["f"]}, ("f", "y"), missing="impute")
    for match, call in (
        ("join is a list", lambda: fit.score([])),
        (r"no feature d\.z that is a number", lambda: fit.score(alone)),
        (r"no feature f\.kind that is a text", lambda: fit.score(other)),
        ("the labels .*, the model", lambda: fit.score(two)),
        ("the labels .*, the model", lambda: fit.machines[0].score(join)),
        ("several labels: counts are of two", lambda: fit.margins([0.0])),
        ("several labels: counts are of two", lambda: relational.far_counts(join, np.zeros(join.d))),
        ("label is 'nobody': one of it's, no, yes", lambda: join.against("nobody")),
        ("3 labels", lambda: relational.stability(join, 0.1)),
        ("class_weight is .* of .*'no', 'yes'", lambda: relational.fit(join, 0.1, class_weight={"maybe": 1.0})),
        ("engine is 'exact'", lambda: relational.fit(two, 0.1).score(two, "exact")),
    ):  # fmt: skip
        with pytest.raises(InputError, match=match):
            call()
    assert relational.fit(two, 0.1, tol=1e-6).certificate.primal == pytest.approx(
        relational.fit(join, 0.1, tol=1e-6).certificate.primal[1], rel=1e-6
    )


# --- rows of a table that are held out -------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [None, "f", "d"])
@pytest.mark.parametrize("labels", [LABELS, ("no", "yes")])
def test_held_out_rows_of_a_table_and_the_rest_are_the_whole(table, labels):
    given = tables(labels)
    join = relational.Join(given, ("f", "y"), **OPTIONS)
    rest, held = join.hold_out(0.3, 1, table)
    name = table or "f"
    i = join.names.index(name)
    ours = [{*part.rows[i][part.counts()[i] > 0].tolist()} for part in (rest, held)]
    live = {*join.rows[i][join.counts()[i] > 0].tolist()}
    assert not ours[0] & ours[1] and ours[0] | ours[1] == live and len(ours[1]) == round(0.3 * len(live))
    for part, rows in zip((rest, held), ours, strict=True):
        fewer = given | {name: {c: np.asarray(v)[sorted(rows)] for c, v in given[name].items()}}
        x, y, weight, _ = formed(fewer)
        assert part.size == pytest.approx(weight.sum(), rel=1e-12)
        moments, p = part.moments(), weight / weight.sum()
        np.testing.assert_allclose(
            moments.second, (p[:, None] * x[:, [0, 2, 3, 4, 5]]).T @ x[:, [0, 2, 3, 4, 5]], atol=1e-12
        )
        fit = relational.fit(rest, 0.01, engine="merge", tol=5e-4)
        scores = x @ np.atleast_2d(fit.beta).T
        found = scores.argmax(axis=1) if len(labels) > 2 else (scores[:, 0] >= 0).astype(int)
        right = np.array(sorted(labels))[found] == y
        assert fit.score(part) == pytest.approx(weight[right].sum() / weight.sum(), rel=1e-9)
        if part is rest and len(labels) == 2:
            F = least(x, np.where(y == "yes", 1.0, -1.0), weight, 0.01)
            assert float(fit.certificate.dual) - 1e-8 <= F <= float(fit.certificate.primal) + 1e-8
    fits = relational.fit_path(rest, [0.001, 0.1])
    assert [fit.lam for fit in fits] == [0.001, 0.1] and all(0 <= fit.score(held) <= 1 for fit in fits)
    assert join.size == pytest.approx(rest.size + held.size) and join.hold_out(0.3, 1, table)[1].size == held.size


def test_held_out_rows_are_no_part_of_a_scale():
    given = {"f": {"x": np.append(np.arange(19.0) / 19, 50.0), "y": (np.arange(20) < 2).astype(int)}}
    join = relational.Join(given, ("f", "y"))
    parts = [join.hold_out(0.1, key) for key in range(40)]
    rest = next(rest for rest, held in parts if held.counts()[0][join.blocks[0].X[:, 0] == 50.0] > 0)
    fit = relational.fit(rest, 0.1, scale="max", method="paper", engine="merge", tol=0.5)
    assert fit.status == jaxsvm.Status.CONVERGED


@pytest.mark.parametrize("m", [1, 2, 3])
def test_a_label_without_held_out_rows_is_counted_as_none(m):
    given, _ = grid_of_ties(3, 0, False)
    given = {f"t{i}": given[f"t{i}"] for i in range(m)}
    given["t0"]["y"] = (np.arange(30) < 2).astype(int)  # two rows of +1
    join, engines = relational.Join(given, ("t0", "y")), ("merge", "grid", "sketch")
    held = next(
        part for part in (join.hold_out(0.1, key)[1] for key in range(9)) if not part.counts()[0][part.codes == 1].any()
    )
    model = Scorer([Term("t0", "xt0", "number", [1.0])], 0.25, join.classes, join.schema)
    x, weight = join.blocks[0].X[:, 0], held.counts()[0]
    wanted = [[weight[(x < 0)].sum(), weight[x >= 0].sum()], [0, 0]]
    for engine in engines:
        np.testing.assert_allclose(model.confusion(held, engine), wanted, rtol=0.11, err_msg=engine)


def test_rows_that_cannot_be_held_out_are_refused():
    given = tables()
    join = relational.Join(given, ("f", "y"), missing="impute", optional=["d"])
    rare = relational.Join({"f": {"x": np.arange(9.0), "y": [0, 0, 0, 0, 0, 0, 0, 0, 1]}}, ("f", "y"))
    for match, call in (
        ("table 'd'.* one of f ", lambda: join.hold_out(0.2, 0, "d")),
        ("table 'g'", lambda: join.hold_out(0.2, 0, "g")),
        ("fraction is 1", lambda: join.hold_out(1.0, 0)), ("fraction is 'a'", lambda: join.hold_out("a", 0)),
        ("fraction is nan", lambda: join.hold_out(float("nan"), 0)), ("key is 0.5", lambda: join.hold_out(0.2, 0.5)),
        ("fraction is 0.99: it is 9 of the 9 rows of f", lambda: rare.hold_out(0.99, 0)),
        ("no rows of one of its labels", lambda: relational.fit(rare.hold_out(0.9, 0)[0], 0.1)),
    ):  # fmt: skip
        with pytest.raises(InputError, match=match):
            call()


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_numbers_are_predicted_from_the_rows_of_a_join():
    given = tables()
    given["f"]["t"] = (3 * given["f"]["x"] + given["f"]["k"]).round(1)
    join = relational.Join(given, ("f", "t"), {"f": ["x"], "d": ["z"]}, weights={"d": "v"})
    rows = relational.design(join, regression=True)
    assert rows.classes is None and sorted(set(rows.y)) == sorted({*join.classes.tolist()})
    fit = jaxsvm.designs.fit(rows, C=1.0, loss="epsilon_insensitive", epsilon=0.1, bias="none", tol=1e-6)
    w, x = fit.coef, np.asarray(rows.x)
    value = w @ w / 2 + rows.weight @ np.maximum(np.abs(rows.y - x @ w) - 0.1, 0)
    assert float(fit.certificate.primal) == pytest.approx(value, rel=1e-9) and fit.certificate.relative_gap <= 1e-6
    svr = pytest.importorskip("sklearn.svm").LinearSVR(
        epsilon=0.1, C=1.0, fit_intercept=False, tol=1e-10, max_iter=10**6
    )
    svr.fit(x, rows.y, sample_weight=rows.weight)
    peer = svr.coef_ @ svr.coef_ / 2 + rows.weight @ np.maximum(np.abs(rows.y - x @ svr.coef_) - 0.1, 0)
    assert float(fit.certificate.dual) <= peer * (1 + 1e-9)
    of_texts = relational.Join(given, ("f", "y"), {"f": ["x"], "d": ["z"]})
    many = relational.Join({"f": {"x": np.arange(1200.0), "t": np.arange(1200.0)}}, ("f", "t"))
    held = join.hold_out(0.5, 0)[1]  # numbers that come once are on one side
    assert relational.design(held, regression=True).weight.sum() == held.size
    for match, call in (
        ("label has .*'no', 'yes'.*: numbers are needed", lambda: relational.design(of_texts, regression=True)),
        ("label has 1200 values, above 1000: .*squared_error", lambda: relational.fit(many, 0.1)),
    ):
        with pytest.raises(InputError, match=match):
            call()
