"""Fits over joins: their certificates against the optimum of the materialised join; samples, databases, errors."""

import json

import numpy as np
import pytest
from random_joins import formed_rows
from test_relational import GOLDEN, HUB, PATH, beta_of, join_of, tables_of, truth

import jaxsvm
from jaxsvm import relational
from jaxsvm.designs.descent import Lane
from jaxsvm.errors import InputError
from jaxsvm.numerics.hinge_program import simplex_maximum
from jaxsvm.relational.descent.steps import Formed
from jaxsvm.relational.schema.assembly import prepared


def optimum(join, lam):
    """F* of the materialised join from below and above: a primal-dual interior point in NumPy with Woodbury's formula.

    `max mean(a) - |Z' a / N|^2 / (4 lam)` over `a` in [0, 1], where Z has the rows `y x`.
    """
    x, y, _ = formed_rows(join)
    Z, N = x * y[:, None], len(y)
    V = Z / (N * np.sqrt(2 * lam))
    a, low, high = np.full(N, 0.5), -np.inf, np.inf
    under = over = np.full(N, 1 / N)
    for _ in range(100):
        mean = Z.T @ a / N
        beta = mean / (2 * lam)
        low = max(low, a.mean() - mean @ mean / (4 * lam))
        high = min(high, np.maximum(1 - Z @ beta, 0).mean() + lam * beta @ beta)
        if high - low < 1e-9:
            break
        t = 0.1 * (under @ a + over @ (1 - a)) / (2 * N)
        D = under / a + over / (1 - a)
        w = (1 / N - V @ (V.T @ a) + t / a - t / (1 - a)) / D
        da = w - V / D[:, None] @ np.linalg.solve(np.eye(V.shape[1]) + V.T @ (V / D[:, None]), V.T @ w)
        du, do = t / a - under - under / a * da, t / (1 - a) - over + over / (1 - a) * da
        ends = ((a, da), (1 - a, -da), (under, du), (over, do))
        step = min(1.0, *(0.99 / max(np.max(-d / v), 1e-300) for v, d in ends))
        a, under, over = a + step * da, under + step * du, over + step * do
    assert high - low < 1e-6
    return low, high


def test_golden_optimum():
    fit = relational.fit(relational.Join(GOLDEN, ("T1", "y")), 0.1, intercept=False, tol=1e-8)
    assert fit.status == jaxsvm.Status.CONVERGED
    np.testing.assert_allclose(fit.coef, [0.0727273, 1.5272727, -0.2727273], atol=1e-4)
    np.testing.assert_allclose(float(fit.certificate.primal), 0.2684959, atol=1e-7)


@pytest.mark.parametrize(
    ("shape", "engine"),
    [
        *((PATH, engine) for engine in ("formed", "grid")),
        *(pytest.param(HUB, engine, marks=pytest.mark.thorough) for engine in ("formed", "grid")),
        (PATH, "merge"),
        pytest.param(HUB, "merge", marks=pytest.mark.slow),  # two hundred small programs of planes
    ],
)
def test_the_interval_holds_the_optimum(shape, engine):
    join = prepared(join_of(shape, n=12), "none", True)
    for lam in (0.1, 0.003):
        low, high = optimum(join, lam)
        # Few rows are corners, and a grid blurs them: "auto" looks at each of them instead.
        tol = {"formed": 1e-3, "merge": 5e-3, "grid": 5e-2}[engine]
        fit = relational.fit(join, lam, engine=engine, intercept=False, tol=tol)
        D, P = float(fit.certificate.dual), float(fit.certificate.primal)
        assert high + 1e-9 >= D and low - 1e-9 <= P
        assert fit.status == jaxsvm.Status.CONVERGED and tol * D >= P - D
        _, hinge, _, _ = truth(join, fit.beta)
        assert hinge + lam * fit.beta @ fit.beta <= P + 1e-12


def test_a_ramp_on_a_grid_narrows_to_its_bins():
    """Far scores make bins wide: a ramp that stays some bins wide loses much more than the grid's blur."""
    rng, n = np.random.default_rng(2), 1000
    tables = {t: {"k": rng.integers(0, 20, n), t + "0": rng.standard_t(2, n)} for t in "ab"}
    tables["a"]["y"] = np.where(np.tanh(tables["a"]["a0"]) + 0.5 * rng.normal(size=n) > 0, 1, -1)
    fit = relational.fit(relational.Join(tables, ("a", "y")), 0.1, engine="grid", scale="standard", max_steps=10)
    assert fit.status == jaxsvm.Status.CONVERGED


def test_the_squared_hinge_as_a_fit():
    """Against Newton's method on the materialised join: the interval holds its optimum, and is small."""
    join, tol = prepared(join_of(PATH, n=24), "max", True), 1e-6
    x, y, _ = formed_rows(join)
    for lam in (0.1, 0.003):
        beta = np.zeros(join.d)
        for _ in range(30):
            slack = np.maximum(1 - y * (x @ beta), 0)
            H = 2 * x[slack > 0].T @ x[slack > 0] / len(y) + 2 * lam * np.eye(join.d)
            beta = beta - np.linalg.solve(H, 2 * lam * beta - 2 * x.T @ (y * slack) / len(y))
        best = (np.maximum(1 - y * (x @ beta), 0) ** 2).mean() + lam * beta @ beta
        fit = relational.fit(join, lam, loss="squared_hinge", intercept=False, tol=tol, max_steps=60)
        D, P = float(fit.certificate.dual), float(fit.certificate.primal)
        assert fit.status == jaxsvm.Status.CONVERGED and D - 1e-9 <= best <= P + 1e-9 and tol * D >= P - D
        F = (np.maximum(1 - y * (x @ fit.beta), 0) ** 2).mean() + lam * fit.beta @ fit.beta
        assert best - 1e-9 <= F <= P + 1e-9
    for engine in ("merge", "sketch"):
        with pytest.raises(InputError, match=f"engine is '{engine}', which counts rows"):
            relational.fit(join, 0.1, engine=engine, loss="squared_hinge")
    by_bins = relational.fit(join, 0.1, engine="grid", loss="squared_hinge", tol=1e-4, intercept=False)
    exact = relational.fit(join, 0.1, loss="squared_hinge", tol=1e-6, intercept=False).certificate
    assert by_bins.status == jaxsvm.Status.CONVERGED
    assert by_bins.certificate.dual <= exact.primal and exact.dual <= by_bins.certificate.primal


def test_a_stable_instance():
    """lam >= d: every row is active under every perturbation, and the optimum is known; the paper's mode finds it."""
    rng = np.random.default_rng(0)
    tables = tables_of(PATH, n=30)
    for table in tables.values():
        for c in [c for c in table if c.startswith("x")]:
            table[c] = rng.uniform(-1, 1, len(table[c]))
        table.pop("kind", None)
    join = relational.Join(tables, ("T1", "y"))
    lam = float(join.d)
    mean = join.moments().label_mean
    best = 1 - mean @ mean / (4 * lam)
    for method in ("bundle", "paper"):
        fit = relational.fit(join, lam, 0.0125, method=method, intercept=False, max_steps=60, tol=1e-6)
        assert float(fit.certificate.primal) <= best * (1 + (1e-3 if method != "paper" else 0.27))
        assert float(fit.certificate.dual) <= best + 1e-12


@pytest.mark.parametrize("delta", [0.1, 1.0])
def test_a_computed_stability_holds_for_perturbations_that_know_the_optimum(delta):
    """Definition 12 of the paper by the perturbed rows themselves, and the third condition that its proof needs."""
    from sklearn.svm import LinearSVC

    lam, rng = 0.05, np.random.default_rng(0)
    alpha, gamma, eps, steps = relational.stability(join_of(PATH, n=12), lam, delta)
    x, y, _ = formed_rows(prepared(join_of(PATH, n=12), "max", True))
    assert alpha > 1e-3 * delta and eps == min(alpha, delta / 8) and steps > 1e6

    def solve(x):
        peer = LinearSVC(loss="hinge", C=1 / (2 * lam * len(y)), fit_intercept=False, tol=1e-8, max_iter=10**5)
        return peer.fit(x, y).coef_[0]

    known = np.sign(y[:, None] * x * solve(x))
    sets = [x * (1 + alpha * signs) for signs in (known, -known, rng.choice([-1, 1], x.shape), 0 * x)]
    points = [solve(of) for of in sets]
    near = [point + rng.normal(size=point.size) * rng.random() for point in points for _ in range(200)]
    F = np.array([[np.maximum(1 - y * (of @ b), 0).mean() + lam * b @ b for b in points + near] for of in sets])
    least = F.diagonal()
    assert (F[:, :4] <= (1 + delta) * least[:, None]).all() and least.max() <= (1 + delta / 8) * least.min()
    within = (1 + 2 * delta) * least[:, None] >= F
    assert within[:, 4:].any() and ((1 + gamma) * least[:, None] >= F)[:, within.any(axis=0)].all()
    with pytest.raises(InputError, match="delta is 2"):
        relational.stability(join_of(PATH), lam, 2.0)


@pytest.mark.parametrize("shape", [PATH, HUB])
def test_aggregates_in_three_semirings_are_those_of_the_joined_rows(shape):
    join = join_of(shape, n=12)
    x, y, rows = formed_rows(join)
    beta, rng = beta_of(join), np.random.default_rng(0)
    scores = [block.matrix @ part for block, part in zip(join.blocks, join.split(beta), strict=True)]
    scores[join.tree.label] = np.where(join.tree.y > 0, scores[join.tree.label], np.inf)  # of the label +1
    least = join.aggregate(scores, np.minimum, np.add)
    total = np.where(y > 0, x @ beta, np.inf)
    factors = [rng.normal(size=len(of)) for of in join.rows]
    counted = [f * w for f, w in zip(factors, join.tree.weight, strict=True)]
    product = np.prod([f[of] for f, of in zip(factors, rows, strict=True)], axis=0)
    most = join.aggregate([np.abs(f) for f in factors], np.maximum, np.multiply)
    sums = join.aggregate(counted)
    for t, of in enumerate(rows):
        for r in range(len(join.rows[t])):
            np.testing.assert_allclose(least[t][r], total[of == r].min(), atol=1e-12)
            np.testing.assert_allclose(most[t][r], np.abs(product[of == r]).max(), rtol=1e-12)
        np.testing.assert_allclose(sums[t], np.bincount(of, product), rtol=1e-9, atol=1e-12)
    with pytest.raises(InputError, match="a vector for each table"):
        join.aggregate(factors[1:])


def test_margins_of_a_whole_join():
    fit = relational.fit(join_of(PATH), 0.1, scale="standard")
    x, y, _ = formed_rows(fit.join)
    at = np.linspace(-2, 3, 7)
    share = [(y * (x @ fit.beta) <= tau).mean() for tau in at]
    np.testing.assert_allclose(fit.margins(at), share, atol=1e-12)
    assert np.ptp(share) > 0.5


@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_the_averaged_method_is_that_of_theorem_1():
    """Its steps in NumPy on the joined rows."""
    lam, steps = 0.05, 12
    join = prepared(join_of(PATH, n=12), "max", True)
    x, y, _ = formed_rows(join)
    points = [np.zeros(join.d)]
    for t in range(1, steps):
        slope = 2 * lam * points[-1] - (y * (y * (x @ points[-1]) <= 1)) @ x / len(y)
        after = points[-1] - slope / (8 * lam * np.sqrt(join.d * t))
        points.append(after * min(1, np.sqrt(join.d) / (2 * lam) / np.linalg.norm(after)))
    options = {"engine": "merge", "intercept": False, "max_steps": steps, "tol": 1e-12}
    fit = relational.fit(join, lam, method="averaged", **options)
    np.testing.assert_allclose(fit.beta, np.mean(points, axis=0), atol=1e-12)
    F = np.maximum(1 - y * (x @ fit.beta), 0).mean() + lam * fit.beta @ fit.beta
    np.testing.assert_allclose(float(fit.certificate.primal), F, rtol=1e-9)


@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_the_papers_method_ends_after_the_steps_of_its_theorem():
    lam, delta = 1_000.0, 1.0
    join = prepared(join_of(PATH, n=12), "max", True)
    alpha, gamma, eps, _ = relational.stability(join, lam, delta, scale="none", intercept=False)
    options = {"method": "paper", "intercept": False, "tol": 1e-300}
    fit = relational.fit(join, lam, engine="sketch", delta=delta, alpha=alpha, **options)
    least = fit.history[:, 2].min()
    T = (256 * join.d**1.5 / (lam * delta * least)) ** 2
    assert T <= fit.steps < T + 1 and fit.status == jaxsvm.Status.STALLED and fit.descent.eps == eps
    assert float(fit.certificate.primal) <= (1 + gamma) * optimum(join, lam)[1]
    for wrong in ({"delta": 2.0, "method": "paper"}, {"delta": 0.5}):
        with pytest.raises(InputError, match="delta is"):
            relational.fit(join, lam, **wrong)


def test_a_path():
    join = join_of(PATH)
    fits = relational.fit_path(join, [0.01, 0.1, 0.03], tol=1e-3)
    for lam, fit in zip([0.01, 0.1, 0.03], fits, strict=True):
        alone = relational.fit(join, lam, tol=1e-3)
        assert fit.lam == lam and fit.status == jaxsvm.Status.CONVERGED
        np.testing.assert_allclose(float(fit.certificate.primal), float(alone.certificate.primal), rtol=2e-3)


@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_a_path_that_is_stopped_begins_no_further_fit():
    join, steps = join_of(PATH), []

    def callback(step, low, high):
        steps.append(step)
        if steps.count(1) == 2:  # of the second fit
            raise KeyboardInterrupt

    fits = relational.fit_path(join, iter([0.1, 0.01, 0.03]), tol=1e-6, callback=callback)
    assert [fit.lam for fit in fits] == [0.1, 0.01] and steps.count(1) == 2
    assert [fit.status.name for fit in fits] == ["CONVERGED", "INTERRUPTED"]


def test_standard_numbers_have_mean_0_and_variance_1_over_the_join():
    join = prepared(join_of(HUB, n=12), "standard", True)
    x, _, _ = formed_rows(join)
    real = [k for k, name in enumerate(join.feature_names) if "=" not in name and name != "(intercept)"]
    np.testing.assert_allclose(x[:, real].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(x[:, real].std(axis=0), 1, atol=1e-12)


def test_scaling_twice_is_scaling_once():
    """A fit's join can be fitted again: what was scaled is not scaled by the same numbers once more."""
    join = join_of(PATH)
    once = relational.fit(join, 0.01, scale="max", tol=1e-5)
    for scale in ("none", "max"):
        again = relational.fit(once.join, 0.01, scale=scale, tol=1e-5)
        np.testing.assert_allclose(float(again.certificate.primal), float(once.certificate.primal), rtol=1e-4)
        assert again.join.d == once.join.d
        np.testing.assert_allclose(again.join.blocks[1].scale, once.join.blocks[1].scale)
    block = prepared(prepared(join, "max", True), "standard", True).blocks[1]
    back = block.X * block.scale + block.mean
    np.testing.assert_allclose(back[:, :-1], join.blocks[1].X, atol=1e-12)
    assert (back[:, -1] == 1).all()


def test_many_levels_and_few_corners_are_solved_in_a_few_steps():
    """Levels by the hundred in two tables, drawn rows of which would know too little; and three rows of corners."""
    rng, n, many = np.random.default_rng(0), 3000, 300
    worth = rng.normal(size=many)
    level = rng.integers(0, many, n)
    f = {"k": rng.integers(0, 60, n), "x": rng.normal(size=n), "c": level.astype(str)}
    f["y"] = np.where(f["x"] + worth[level] + 0.5 * rng.normal(size=n) > 0, 1, -1)
    tables = {"f": f, "d": {"k": np.arange(60), "b": (np.arange(60) % 40).astype(str), "z": rng.normal(size=60)}}
    corners = {"f": {"c": list("aabbc") * 4, "y": [1, 1, -1, -1, 1] * 4}}
    for join, lam in ((relational.Join(tables, ("f", "y")), 1e-4), (relational.Join(corners, ("f", "y")), 0.01)):
        fit = relational.fit(join, lam, tol=1e-6, max_steps=40)
        assert fit.status == jaxsvm.Status.CONVERGED
        low, high = (float(part) for part in (fit.certificate.dual, fit.certificate.primal))
        x, y, _ = formed_rows(fit.join)
        slack = 1 - y * (x @ fit.beta)
        np.testing.assert_allclose(np.maximum(slack, 0).mean() + lam * fit.beta @ fit.beta, high, rtol=1e-12)
        assert low <= high <= low * (1 + 1e-6)
        smooth = relational.fit(join, lam, tol=1e-6, max_steps=40, loss="squared_hinge")
        assert smooth.status == jaxsvm.Status.CONVERGED


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("loss", "engine"),
    [("hinge", "formed"), ("hinge", "grid"), ("hinge", "merge"), ("squared_hinge", "formed")],
)
@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_a_fit_that_is_stopped_early_is_no_worse_than_nothing(loss, engine):
    for seed in range(3 if engine == "formed" else 1):
        join = join_of(PATH, n=20, seed=seed)
        for steps in (1, 2, 3, 5):
            fit = relational.fit(join, 1e-6, 0.01, engine, loss=loss, max_steps=steps, tol=1e-9)
            assert fit.certificate.dual <= fit.certificate.primal <= 1
            x, y, _ = formed_rows(fit.join)
            each = np.maximum(1 - y * (x @ fit.beta), 0) ** (1 + (loss != "hinge"))
            F = each.mean() + 1e-6 * fit.beta @ fit.beta
            assert fit.certificate.primal * (1 + 1e-9) >= F


@pytest.mark.parametrize("largest", [1000, 0])
@pytest.mark.parametrize("categories", [True, False])
def test_systems_of_formed_rows_are_those_of_the_materialised_ones(monkeypatch, largest, categories):
    monkeypatch.setattr("jaxsvm.relational.descent.steps.LARGEST_SYSTEM", largest)
    tables = tables_of(HUB, n=12)
    if not categories:
        del tables["T1"]["kind"]
    join = prepared(relational.Join(tables, ("T1", "y")), "max", True)
    x, y, rows = formed_rows(join)
    found, rng = Formed(join.features(rows), y, np.ones(len(x))), np.random.default_rng(0)
    assert isinstance(found.X, np.ndarray) == (not categories)
    np.testing.assert_array_equal(found.X if not categories else found.X.toarray(), x)
    s, b = rng.uniform(size=len(x)), rng.normal(size=join.d)
    want = np.linalg.solve(np.eye(join.d) + (x.T * s) @ x, b)
    np.testing.assert_allclose(found.solved(s, np.append(b, 0))[:-1], want, rtol=0, atol=1e-8)


def test_two_large_categories_are_solved_by_products_with_their_rows():
    """Two categories of 1,100 levels: no dense system of that order is formed."""
    rng, n, many = np.random.default_rng(0), 3000, 1100
    a, b, w = rng.integers(0, many, n), rng.integers(0, many, n), rng.normal(size=many)
    f = {"a": a.astype(str), "b": b.astype(str), "y": np.where(w[a] + 0.3 * rng.normal(size=n) > 0, 1, -1)}
    fit = relational.fit(relational.Join({"f": f}, ("f", "y")), C=1.0)
    assert fit.status == jaxsvm.Status.CONVERGED and fit.steps < 30
    x, y, _ = formed_rows(fit.join)
    F = np.maximum(0, 1 - y * (x @ fit.beta)).mean() + fit.lam * fit.beta @ fit.beta
    np.testing.assert_allclose(F, float(fit.certificate.primal), rtol=1e-9)


def test_a_rare_label_of_a_large_join_is_counted_by_merges():
    """20 of 2,000 facts are positive, each in 1,000 of 2e6 rows: "auto" looks at pairs of tables, not at rows."""
    rng, n = np.random.default_rng(0), 2000
    tables = {"f": {"k": np.zeros(n, int), "x": rng.normal(size=n), "y": np.where(np.arange(n) < 20, 1, -1)},
              "d": {"k": np.zeros(1000, int), "z": rng.normal(size=1000)}}  # fmt: skip
    fit = relational.fit(relational.Join(tables, ("f", "y")), 1e-4, max_steps=20)
    assert fit.status == jaxsvm.Status.CONVERGED and fit.engine.startswith("merge")


def test_samples_are_uniform():
    join = relational.Join(tables_of(PATH, n=7, keys=2), ("T1", "y"))
    draws = 40_000
    rows = relational.sample(join, draws, 0).place
    _, _, all_rows = formed_rows(join)
    size = [len(w) for w in join.tree.weight]
    counted = np.bincount(np.ravel_multi_index(rows, size), minlength=np.prod(size))
    copies = np.bincount(np.ravel_multi_index(all_rows, size), minlength=np.prod(size))
    assert (counted[copies == 0] == 0).all()
    expected = draws * copies[copies > 0] / join.size
    chi2 = ((counted[copies > 0] - expected) ** 2 / expected).sum()
    cells = (copies > 0).sum() - 1
    assert abs(chi2 - cells) <= 5 * np.sqrt(2 * cells)


def test_simplex_maximum():
    rng = np.random.default_rng(0)
    g, n = rng.normal(size=(12, 4)), rng.uniform(size=12)
    H = g @ g.T
    w = simplex_maximum(n, H)
    slope = n - H @ w
    assert abs(w.sum() - 1) < 1e-12 and (w >= 0).all()
    assert slope.max() - slope @ w < 1e-9


# --- databases -------------------------------------------------------------------------------------------------------


def shop(db):
    """A snowflake with composite and differently named keys, missing values, rows that join with nothing."""
    rng = np.random.default_rng(0)
    pa = pytest.importorskip("pyarrow")
    n = 400
    sales = {
        "shop": rng.integers(0, 12, n), "year": 2000 + rng.integers(0, 2, n), "day": rng.integers(0, 9, n),
        "amount": np.round(rng.normal(size=n), 1), "returned": np.array(["no", "yes"])[rng.integers(0, 2, n)],
    }  # fmt: skip
    shops = {"id": np.arange(10), "city": np.array(list("aabbccdde'")), "size": rng.normal(size=10)}
    days = {"year": np.repeat([2000, 2001], 8), "day": np.tile(np.arange(8), 2), "rain": rng.uniform(size=16)}
    promos = {"year": rng.integers(2000, 2002, 6), "day": rng.integers(0, 8, 6), "price": rng.normal(size=6)}
    tables = {"sales": sales, "shops": shops, "days": days, "promos": promos}
    for name, table in tables.items():
        db.register(f"{name}_", pa.table(table))
        db.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_")
    db.execute("UPDATE shops SET size = NULL WHERE id = 3")
    keys = {("sales", "shops"): {"shop": "id"}, ("sales", "days"): ["year", "day"], ("days", "promos"): ["year", "day"]}
    return list(tables), {"keys": keys, "missing": "impute"}


def test_files_and_data_frames(tmp_path):
    """Files are read by DuckDB: as tables in FROM, or to Arrow."""
    duckdb, pandas = pytest.importorskip("duckdb"), pytest.importorskip("pandas")
    tables = tables_of(PATH)
    frames = {name: pandas.DataFrame(table) for name, table in tables.items()}
    sources = {name: f"read_csv('{tmp_path / name}.csv')" for name in frames}
    for name, frame in frames.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    one = relational.Join(tables, ("T1", "y"))
    others = [relational.Join(frames, ("T1", "y")), relational.from_database(duckdb.connect(), sources, ("T1", "y"))]
    read = {name: duckdb.sql(f"FROM {source}").to_arrow_table() for name, source in sources.items()}
    for two in [*others, relational.Join(read, ("T1", "y"))]:
        assert one.size == two.size and sorted(one.feature_names) == sorted(two.feature_names)
        np.testing.assert_allclose(one.moments().second, two.moments().second, atol=1e-12)


def test_the_command(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    testing = pytest.importorskip("typer.testing")
    from jaxsvm.cli import app

    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as db:
        shop(db)
    arguments = ["relational", "--database", str(path), "--fact", "sales", "--label", "returned", "--missing", "impute",
                 "--key", "sales.shop=shops.id", "--lam", "0.01", "--sql", str(tmp_path / "score.sql")]  # fmt: skip
    arguments += ["--json", "--score", "SHOP"]  # a column of sales
    result = testing.CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and "score is 'SHOP'" in result.output and not (tmp_path / "score.sql").exists()
    arguments[-1] = "svm"
    result = testing.CliRunner().invoke(app, [*arguments, "--sql", str(tmp_path / "nowhere" / "score.sql")])
    assert result.exit_code == 2 and "--sql" in result.output and "--out" not in result.output
    result = testing.CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert '"status": "CONVERGED"' in result.stdout
    squared = testing.CliRunner().invoke(app, [*arguments, "--loss", "squared_hinge"])
    assert squared.exit_code == 0 and '"loss": "squared_hinge"' in squared.stdout
    assert testing.CliRunner().invoke(app, [*arguments, "--loss", "logistic"]).exit_code == 2
    with duckdb.connect(str(path)) as db:
        assert len(db.sql(f"SELECT svm FROM ({(tmp_path / 'score.sql').read_text()})").fetchall()) > 100
    assert testing.CliRunner().invoke(app, [*arguments, "--key", "sales.shop=nowhere.id"]).exit_code == 2
    more = testing.CliRunner().invoke(app, [*arguments, "--optional", "shops", "--weight", "days.rain", "--key",
                                            "sales.year=days.year", "--key", "sales.day=days.day"])  # fmt: skip
    with duckdb.connect(str(path)) as db:
        joined = "sales LEFT JOIN shops ON shop = id JOIN days USING (year, day)"
        ((rows,),) = db.sql(f"SELECT SUM(rain) FROM {joined}").fetchall()
    assert more.exit_code == 0 and json.loads(more.stdout)["rows_of_the_join"] == pytest.approx(rows), more.output
    wrong = testing.CliRunner().invoke(app, [a if a != "returned" else "day" for a in arguments])
    assert wrong.exit_code == 2 and "--positive is missing: --label has 9 values" in wrong.output, wrong.output
    wrong = testing.CliRunner().invoke(app, [*arguments, "--weight", "rain"])
    assert wrong.exit_code == 2 and "weights" in wrong.output


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_errors_say_what_to_do():
    tables = tables_of(PATH)
    cyclic = {**tables, "T4": {"c": np.arange(3), "a": np.arange(3)}}
    cyclic["T2"] = {**tables["T2"], "c": np.arange(len(tables["T2"]["b"]))}
    never = {**tables, "T2": {"b": np.array([99]), "z": np.array([1.0])}}
    holes = {**tables, "T2": {**tables["T2"], "xT20": np.where(np.arange(len(tables["T2"]["b"])) % 2, np.nan, 1.0)}}
    texts = {**tables, "T2": {"b": np.array(["0", "1"]), "z": np.zeros(2)}}
    cases = [
        (r"cyclic join of .*allow cyclic=\d+", lambda: relational.Join(cyclic, ("T1", "y"))),
        ("without rows", lambda: relational.Join(never, ("T1", "y"))),
        ("T2.xT20 is missing in", lambda: relational.Join(holes, ("T1", "y"))),
        ("different kinds", lambda: relational.Join(texts, ("T1", "y"))),
        ("label is", lambda: relational.Join(tables, ("T9", "y"))),
        ("no column z", lambda: relational.Join(tables, ("T1", "z"))),
        ("1 values among", lambda: relational.Join({"f": {"x": [1.0, 2.0], "y": [3, 3]}}, ("f", "y"))),
        ("name one of them", lambda: relational.Join(tables, ("T1", "y"), {"T0": ["a"], "T1": ["a"]})),
        ("keys has", lambda: relational.Join(tables, ("T1", "y"), keys={("T0", "T7"): "a"})),
        ("engine is .*formed", lambda: relational.fit(join_of(PATH), 0.1, engine="magic")),
        ("give one of the two", lambda: relational.fit(join_of(PATH), 0.1, C=1.0)),
        ("loss is", lambda: relational.fit(join_of(PATH), 0.1, loss="logistic")),
        ("lam is", lambda: relational.fit(join_of(PATH), -1.0)),
        ("beta has shape", lambda: relational.pseudo_gradient(join_of(PATH), np.zeros(2), 0.1)),
        ("join is a NoneType", lambda: relational.fit(None, 0.1)),
        ("engine is 3", lambda: relational.fit(join_of(PATH), 0.1, engine=3)),
        ("scale is 'none'", lambda: relational.fit(join_of(PATH), 0.1, method="paper")),
        ("lams is", lambda: relational.fit_path(join_of(PATH), 0.1)),
        ("key is -1", lambda: relational.sample(join_of(PATH), 3, -1)),
        ("lam is -1", lambda: relational.pseudo_gradient(join_of(PATH), beta_of(join_of(PATH)), -1)),
        ("mode is", lambda: relational.far_counts(join_of(PATH), beta_of(join_of(PATH)), mode="lowr")),
        ("guard is", lambda: relational.far_counts(join_of(PATH), beta_of(join_of(PATH)), guard=-1.0)),
        ("tau is", lambda: relational.far_counts(join_of(PATH), beta_of(join_of(PATH)), tau=np.nan)),
        ("categorical is", lambda: relational.Join(tables, ("T1", "y"), categorical={"T1": "kind"})),
        ("features is", lambda: relational.Join(tables, ("T1", "y"), features=["kind"])),
        ("missing is 'drop'", lambda: relational.Join(holes, ("T1", "y"), missing="drop")),
        (r"tables\['T0'\] is a str", lambda: relational.Join({**tables, "T0": "T0.csv"}, ("T1", "y"))),
        ("tables is a list", lambda: relational.Join(list(tables.values()), ("T1", "y"))),
        (
            "also the name of a column of T2",
            lambda: relational.Join({**tables, "T2": {**tables["T2"], "y": tables["T2"]["b"]}}, ("T1", "y")),
        ),
        ("column 0 of the header has no name", lambda: relational.Join({"f": {"": [1], "y": [0]}}, ("f", "y"))),
        ("columns of 1, 2 rows", lambda: relational.Join({"f": {"x": [1], "y": [0, 1]}}, ("f", "y"))),
        ("eps is", lambda: relational.far_counts(join_of(PATH), beta_of(join_of(PATH)), 3.0, engine="sketch")),
    ]
    for text, call in cases:
        with pytest.raises(InputError, match=text):
            call()
    assert relational.Join(tables, ("T1", "kind"), positive="red").classes.tolist() == ["not red", "red"]


# --- names, and rows that take no part -------------------------------------------------------------------------------


def two_of_one_name():
    rng = np.random.default_rng(0)
    f = {"k": rng.integers(0, 5, 60), "x": rng.normal(size=60), "y": np.arange(60) % 2}
    d = {"id": np.arange(5), "x": 3 * rng.normal(size=5)}
    join = relational.Join({"f": f, "d": d}, ("f", "y"), keys={("f", "d"): {"k": "id"}})
    return relational.fit(join, 0.01), {"f.x": f["x"], "d.x": d["x"][f["k"]]}


def test_rows_whose_columns_could_be_of_two_features_are_refused():
    fit, whole = two_of_one_name()
    x = np.stack(list(whole.values()), axis=1)
    np.testing.assert_allclose(fit.decision_function(whole), x @ fit.coef + fit.intercept, rtol=0, atol=1e-12)
    for rows in ({"x": whole["f.x"], "x_d": whole["d.x"]}, {"f.x": whole["f.x"], "x": whole["d.x"]}):
        with pytest.raises(InputError, match=r"column x, which could be f\.x or d\.x"):
            fit.decision_function(rows)
    f = {"k": np.arange(6) % 3, "d.x": np.arange(6.0), "y": np.arange(6) % 2}  # a plain name that is a whole one
    fit = relational.fit(relational.Join({"f": f, "d": {"k": np.arange(3), "x": np.ones(3)}}, ("f", "y")), 0.1)
    with pytest.raises(InputError, match=r"could be f\.d\.x or d\.x"):
        fit.decision_function({"d.x": np.ones(2)})
    fit.decision_function({"f.d.x": np.ones(2), "d.x": np.ones(2)})


@pytest.mark.parametrize("name", ["x", "y", "k"])
def test_a_plain_name_of_a_column_that_is_no_feature_is_refused(name):
    """After `pandas.merge(suffixes=("", "_d"))` an unused column, the label or a key of f stands for d's feature."""
    rng = np.random.default_rng(0)
    f = {"k": rng.integers(0, 5, 30), "x": rng.normal(size=30), "w": rng.normal(size=30), "y": np.arange(30) % 2}
    d = {"id": np.arange(5), name: rng.normal(size=5)}
    keys, features = {("f", "d"): {"k": "id"}}, {"f": ["w"], "d": [name]}
    fit = relational.fit(relational.Join({"f": f, "d": d}, ("f", "y"), keys=keys, features=features), 0.1)
    with pytest.raises(InputError, match=rf"column {name}, which could be f\.{name} or d\.{name}"):
        fit.decision_function(f | {"d_": d[name][f["k"]]})
    whole = fit.decision_function(f | {f"d.{name}": d[name][f["k"]]})
    np.testing.assert_allclose(whole, fit.coef @ [f["w"], d[name][f["k"]]] + fit.intercept, atol=1e-12)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ({"f.x": [1.0, np.nan], "d.x": [0.0, 0.0]}, "1 row.* without a number, the first is row 1"),
        ({"f.x": [1.0], "d.x": [0.0, 0.0]}, "columns of 1, 2 rows"), ({"f.x": 1.0, "d.x": 0.0}, "one value"),
        (np.zeros((2, 2)), "rows is a ndarray"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_predicted_are_refused(rows, text):
    with pytest.raises(InputError, match=text):
        two_of_one_name()[0].predict(rows)


# --- the course of a fit ---------------------------------------------------------------------------------------------


def sales_clicks_visits(n=(300, 200, 120), keys=6):
    """Three tables on one key, many to many: more rows than interior points take, of smooth scores."""
    rng = np.random.default_rng(0)
    k, u = [rng.integers(0, keys, many) for many in n], rng.normal(size=keys)
    f = {"k": k[0], "amount": rng.exponential(size=n[0]), "hour": rng.integers(0, 24, n[0])}
    f["late"] = f["amount"] + 0.1 * f["hour"] + u[k[0]] + rng.normal(size=n[0]) > 2.2
    tables = {
        "f": f,
        "c": {"k": k[1], "price": rng.exponential(size=n[1])},
        "v": {"k": k[2], "d": rng.normal(size=n[2])},
    }
    return relational.Join(tables, ("f", "late"))


def test_a_penalty_of_one_on_many_rows_is_certified_in_few_passes():
    join = sales_clicks_visits()
    fit = relational.fit(join, C=1.0, scale="standard")
    assert join.size > 1 << 17 and fit.engine.startswith("merge") and fit.steps <= 20
    assert fit.status == jaxsvm.Status.CONVERGED
    rows = relational.fit(join, C=1.0, scale="standard", engine="formed")
    assert rows.status == jaxsvm.Status.CONVERGED and rows.steps <= 20
    assert max(fit.certificate.dual, rows.certificate.dual) <= min(fit.certificate.primal, rows.certificate.primal)


def test_levels_that_add_up_to_the_constant_are_no_singular_system():
    r = np.random.default_rng(1)
    table = {"y": r.integers(0, 2, 40), "b": r.random(40) < 0.5, "a": r.integers(0, 3, 40).astype(float)}
    fit = relational.fit(relational.Join({"t": table}, ("t", "y")), C=1e3, engine="merge")
    assert fit.status == jaxsvm.Status.CONVERGED


def test_a_category_that_decides_the_label_leaves_a_ramp():
    """Most rows that a fit begins with lie at the margin: a ramp of width 0 took 40 evaluations and more."""
    rng, n = np.random.default_rng(0), 5_000
    level, key = rng.integers(0, 6, n), np.arange(2_500) % 125
    label = np.where(rng.random(n) < 0.03, level >= 3, level < 3)
    sales = {"key": rng.integers(0, 125, n), "kind": np.array(list("abcdef"))[level], "y": label.astype(int)}
    shops = {"key": key, "area": rng.choice(["u", "v", "w"], 2_500), "z": rng.normal(size=2_500)}
    join = relational.Join({"sales": sales, "shops": shops}, ("sales", "y"))
    fit = relational.fit(join, 1e-4, engine="formed", scale="standard", max_steps=10)
    assert fit.status == jaxsvm.Status.CONVERGED


def test_a_fit_without_a_certificate_says_so():
    join = sales_clicks_visits((60, 30, 20), 3)
    with pytest.warns(jaxsvm.ConvergenceWarning, match="1 of 1 fits over a join ended as MAX_STEPS.*relational.design"):
        relational.fit(join, 1e-3, max_steps=1)
    with pytest.warns(jaxsvm.ConvergenceWarning) as said:
        relational.fit_path(join, [1e-3, 1e-4], max_steps=1)
    assert len(said) == 1 and "2 of 2" in str(said[0].message)


@pytest.mark.parametrize("engine", ["merge", "sketch"])
@pytest.mark.parametrize("steps", [25, 1])
@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_steps_take_exactly_as_many_evaluations_and_seek_few_bounds(monkeypatch, engine, steps):
    calls, bound = [], Lane.raise_bound
    monkeypatch.setattr(Lane, "raise_bound", lambda lane: calls.append(1) or bound(lane))
    fit = relational.fit(
        join_of(PATH, n=12), 0.01, 0.1, engine, method="paper", scale="max", max_steps=steps, tol=1e-12
    )
    assert fit.steps == steps and len(calls) <= steps // 10 + 1
    D, P = float(fit.certificate.dual), float(fit.certificate.primal)
    x, y, _ = formed_rows(fit.join)
    F = np.maximum(0, 1 - y * (x @ fit.beta)).mean() + 0.01 * fit.beta @ fit.beta
    low, _ = optimum(fit.join, 0.01)
    assert low + 1e-8 >= D and F <= P + 1e-12 and P < 1.5


def test_a_bound_is_no_worse_than_that_of_its_best_plane():
    """Separable rows at a large C: the optimum is 3e-5, and the planes' entries are of the order of 1 / lam."""
    rng = np.random.default_rng(0)
    k, x, z = rng.integers(0, 5, 60), rng.normal(size=60), rng.normal(size=5)
    tables = {"f": {"k": k, "x": x, "y": np.where(x + z[k] > 0, 1, -1)}, "d": {"k": np.arange(5), "z": z}}
    for C in (1e5, 1e6):
        fit = relational.fit(relational.Join(tables, ("f", "y")), C=C, loss="squared_hinge", max_steps=60)
        lane = fit.descent.lane
        alone, H = lane.s - (lane.pull**2).sum(axis=1) / 2, lane.pull @ lane.pull.T
        assert fit.status == jaxsvm.Status.CONVERGED and fit.steps < 30
        assert alone.max() * (1 - 1e-9) <= lane.D
        w = simplex_maximum(lane.s, H)
        assert w @ lane.s - w @ H @ w / 2 >= alone.max() * (1 - 1e-9)
