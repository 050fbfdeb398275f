"""Numbers predicted over joins, by moments: scikit-learn's ridge on the formed rows, and DuckDB."""

import numpy as np
import pytest

import jaxsvm
from jaxsvm import relational
from jaxsvm.errors import InputError

duckdb = pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
linear_model = pytest.importorskip("sklearn.linear_model")


def schema(seed, n=120):
    """Sales of shops in towns, of which some are absent; weights of any table; missing numbers and levels."""
    rng = np.random.default_rng(seed)
    gone = lambda values: np.where(rng.random(len(values)) < 0.1, np.nan, values)  # noqa: E731
    f = {"k": rng.integers(0, 7, n), "x": gone(rng.normal(size=n)), "w": rng.choice([0, 0.5, 2], n)}
    f["kind"] = np.array(["u", "it's", None], object)[rng.integers(0, 3, n)]
    d = {"k": np.arange(12) % 6, "z": gone(rng.normal(size=12)), "l": np.arange(12) % 4, "v": rng.choice([1, 0.25], 12)}
    e = {"l": np.array([0, 1, 1, 2]), "u": rng.normal(size=4)}
    f["t"] = (3 * np.nan_to_num(f["x"]) + f["k"] + 0.1 * rng.normal(size=n)).round(int(rng.integers(0, 4)))
    optional = [[], ["d", "e"], ["e"]][seed % 3]
    options = {"missing": "impute", "optional": optional, "weights": [{}, {"f": "w"}, {"f": "w", "d": "v"}][seed % 3]}
    return {"f": f, "d": d, "e": e}, options


def formed(given, join, options):
    """Features by the names of the coefficients, numbers and weights of the joined rows, by DuckDB."""
    db = duckdb.connect()
    for name, table in given.items():
        arrow = {c: pa.array(v, from_pandas=True) for c, v in table.items()}
        db.register(name, pa.table(arrow))
    left = ["LEFT " * (name in join.schema.optional) for name in ("d", "e")]
    weight = " * ".join(["1.0", *(f"COALESCE({name}.{c}, 1)" for name, c in options["weights"].items())])
    rows = db.sql(f"""SELECT x, kind, z, u, t, {weight} AS weight
        FROM f {left[0]}JOIN d ON f.k = d.k {left[1]}JOIN e ON d.l = e.l""").fetchall()
    fills = {(t, c): b.fill[k] for t, b in zip(join.names, join.blocks, strict=True) for k, c in enumerate(b.names)}
    columns = {"f.x": 0, "d.z": 2, "e.u": 3}
    x = [
        np.array([fills[*name.split(".")] if row[k] is None else row[k] for row in rows]) for name, k in columns.items()
    ]
    columns = dict(zip(columns, x, strict=True))
    for level in ("u", "it's", None):
        called = "f.kind IS NULL" if level is None else f"f.kind={level}"
        columns[called] = np.array([float(row[1] == level) for row in rows])
    x = np.stack([columns[name] for name in join.feature_names if name != "(intercept)"], axis=1)
    return x, np.array([row[4] for row in rows]), np.array([row[5] for row in rows], float), rows, db


def r2(t, found, weight):
    return 1 - np.average((t - found) ** 2, weights=weight) / np.average(
        (t - np.average(t, weights=weight)) ** 2, weights=weight
    )


@pytest.mark.parametrize("seed", range(6))
def test_ridge_over_a_join_is_that_of_its_rows(seed):
    given, options = schema(seed)
    names = {"f": ["x", "kind"], "d": ["z"], "e": ["u"]}
    join = relational.Join(given, ("f", "t"), names, **options)
    x, t, weight, rows, db = formed(given, join, options)
    for lam in (1e-6, 0.01, 1.0):
        fit = relational.fit(join, lam, loss="squared_error", tol=1e-9)
        assert fit.status == jaxsvm.Status.CONVERGED and not len(fit.classes) and fit.loss == "squared_error"
        at = fit.join.feature_names.index("(intercept)")
        ones = np.insert(x, at, 1.0, axis=1)
        peer = linear_model.Ridge(alpha=lam * weight.sum(), fit_intercept=False, solver="cholesky")
        best = peer.fit(ones, t, sample_weight=weight).coef_
        F, ours = (np.average((t - ones @ b) ** 2, weights=weight) + lam * b @ b for b in (best, fit.beta))
        P, D, _ = map(float, fit.certificate)
        assert D <= F * (1 + 1e-12) and ours * (1 + 1e-12) >= F and ours <= P and P - D <= 1e-9 * F
        score = x @ fit.coef + fit.intercept
        assert fit.score(join) == pytest.approx(r2(t, score, weight), rel=1e-9)
    found = np.sort(db.sql(f"SELECT score FROM ({fit.to_sql()})").fetchnumpy()["score"])
    np.testing.assert_allclose(found, np.sort(score), atol=1e-11)
    columns = {c: [row[k] for row in rows] for c, k in (("x", 0), ("kind", 1), ("z", 2), ("u", 3))}
    np.testing.assert_allclose(fit.predict(columns), score, atol=1e-11)
    scaled = relational.fit(join, C=2.0, loss="squared_error", scale="standard", tol=1e-9)
    C = 1 / (2 * scaled.lam * weight.sum())
    assert pytest.approx(2.0) == C and scaled.score(join) >= fit.score(join) - 1e-9


def test_numbers_of_held_out_rows_and_of_a_file(tmp_path):
    given, options = schema(0)
    join = relational.Join(given, ("f", "t"), {"f": ["x", "kind"], "d": ["z"], "e": ["u"]}, **options)
    rest, held = join.hold_out(0.3, 0, "d")
    fits = relational.fit_path(rest, [1e-4, 0.1, 10.0], loss="squared_error")
    rows = relational.design(held)
    features, t = rows.x.toarray(), held.targets[rows.place[held.tree.label]]
    for fit in fits:
        assert fit.score(held) == pytest.approx(r2(t, features @ fit.coef + fit.intercept, rows.weight), rel=1e-9)
    fits[0].save(tmp_path / "model.json")
    kept = relational.load(tmp_path / "model.json")
    assert not len(kept.classes) and kept.score(held) == fits[0].score(held) and kept.to_sql() == fits[0].to_sql()


def test_a_join_of_a_trillion_rows():
    """Tables that share no key: means of the sum of independent parts are known."""
    rng = np.random.default_rng(0)
    n = 10_000
    a, b, c = rng.normal(size=(3, n))
    tables = {"a": {"x": a, "t": 2 * a + 0.3 * rng.normal(size=n)}, "b": {"z": b + 0.5}, "c": {"u": c}}
    join = relational.Join(tables, ("a", "t"))
    fit = relational.fit(join, 0.05, loss="squared_error", intercept=False, tol=1e-9)
    x, t = np.stack([a, b + 0.5, c]), tables["a"]["t"]
    S = np.outer(x.mean(axis=1), x.mean(axis=1))
    np.fill_diagonal(S, (x**2).mean(axis=1))
    m = x.mean(axis=1) * t.mean()
    m[0] = (a * t).mean()
    beta = np.linalg.solve(S + 0.05 * np.eye(3), m)
    assert join.size == 10**12
    np.testing.assert_allclose(fit.beta, beta, rtol=1e-8)
    P, D, _ = map(float, fit.certificate)
    assert (t**2).mean() - m @ beta + 1e-12 >= D and (t**2).mean() - m @ beta <= P + 1e-12
    errors = (t**2).mean() - 2 * beta @ m + beta @ S @ beta
    assert fit.score(join) == pytest.approx(1 - errors / t.var(), rel=1e-9)


@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_the_interval_holds_whatever_the_scale_of_the_numbers():
    """A fit that is nearly perfect, and numbers far from 0: the gap says what rounding leaves unknown."""
    rng = np.random.default_rng(0)
    f, d = {"k": np.arange(60) % 5, "x": rng.normal(size=60)}, {"k": np.arange(5), "z": rng.normal(size=5)}
    for far, noise, lam in ((0, 1e-7, 1e-12), (1e6, 1e-3, 1e-9), (1e8, 1.0, 1e-3), (0, 0, 1e-14)):
        f["t"] = 1.5 * f["x"] + d["z"][f["k"]] + far + noise * rng.normal(size=60)
        join = relational.Join({"f": f, "d": d}, ("f", "t"))
        fit = relational.fit(join, lam, loss="squared_error", tol=1e-6)
        x = np.stack([f["x"], np.ones(60), d["z"][f["k"]]], axis=1).astype(np.longdouble)
        root = np.concatenate([x / np.sqrt(np.longdouble(60)), np.sqrt(np.longdouble(lam)) * np.eye(3)])
        beta = np.zeros(3, np.longdouble)
        for _ in range(5):  # refined in long double
            left = np.append(f["t"] / np.sqrt(np.longdouble(60)), np.zeros(3)) - root @ beta
            beta = beta + np.linalg.lstsq(root.astype(float), left.astype(float), rcond=None)[0]
        F = float(((f["t"] - x @ beta) ** 2).mean() + lam * beta @ beta)
        P, D, gap = map(float, fit.certificate)
        assert D <= F <= P, (far, noise, D, F, P)
        assert fit.status != jaxsvm.Status.CONVERGED or gap <= 1e-6


def test_what_is_not_offered_is_refused_by_name():
    given, _ = schema(0)
    join = relational.Join(given, ("f", "t"), {"f": ["x"], "d": ["z"]}, missing="impute")
    texts = relational.Join({"f": {"x": np.arange(4.0), "y": ["u", "v", "u", "v"]}}, ("f", "y"))
    many = relational.Join({"f": {"x": np.arange(1200.0), "t": np.arange(1200.0)}}, ("f", "t"))
    one = relational.Join({"f": {"x": np.arange(4.0), "t": [0.0, 0.0, 1.0, 2.0]}}, ("f", "t"))
    fit, error = relational.fit(join, 0.1, loss="squared_error"), {"loss": "squared_error"}
    held = one.hold_out(0.25, 0)[1]
    for match, call in (
        ("label has .*'u', 'v'.*: numbers are needed", lambda: relational.fit(texts, 0.1, **error)),
        ("engine 'merge'", lambda: relational.fit(join, 0.1, engine="merge", **error)),
        ("class_weight 'balanced'", lambda: relational.fit(join, 0.1, class_weight="balanced", **error)),
        ("method is 'paper'", lambda: relational.fit(join, 0.1, method="paper", scale="max", **error)),
        ("label has 1200 values, above 1000", lambda: relational.fit(many, 0.1)),
        ("loss is 'epsilon_insensitive'", lambda: relational.fit(join, 0.1, loss="epsilon_insensitive")),
        ("predicts numbers", lambda: fit.to_sql(label="guess")), ("the model \\[\\]", lambda: fit.confusion(join)),
        ("predicts numbers, which have no margins", lambda: fit.margins([0.0])),
        ("one value of the label", lambda: relational.fit(one, 0.1, **error).score(held)),
    ):  # fmt: skip
        with pytest.raises(InputError, match=match):
            call()
    assert relational.fit(many, 0.1, **error).score(many) > 0.5
