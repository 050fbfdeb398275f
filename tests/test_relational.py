"""Joins that are never formed, against the join itself."""

import itertools

import numpy as np
import pytest
from random_joins import formed_rows

from jaxsvm.relational import Join, far_counts, pseudo_gradient
from jaxsvm.relational.gradient.sketch import SketchEngine, rank_grid
from jaxsvm.relational.schema.assembly import ears, join_tree

PATH, HUB, CROSS = "path", "hub", "cross"
GOLDEN = {
    "T0": {"a": np.array([0, 0, 1]), "x0": np.array([0.5, -1, 0.25])},
    "T1": {
        "a": np.array([0, 0, 1, 1]),
        "b": np.array([0, 1, 1, 2]),
        "x1": np.array([1, -0.5, 0.75, 0.2]),
        "y": np.array([1, -1, 1, -1]),
    },
    "T2": {"b": np.array([0, 1, 1]), "x2": np.array([-0.4, 1, 0.6])},
}


def tables_of(shape, n=24, keys=4, seed=0):
    """Tables with several rows a key, duplicates, rows that join with nothing, a category, a constant of 1."""
    rng = np.random.default_rng(seed)
    owners = {PATH: {"T0": "a", "T1": "ab", "T2": "b"}, CROSS: {"T0": "a", "T1": "a", "T2": ""}}
    owners[HUB] = {"T0": "abc", "T1": "a", "T2": "b", "T3": "cd", "T4": "d"}
    tables = {}
    for name, columns in owners[shape].items():
        rows = n if columns else 3
        table = {key: rng.integers(0, keys + 1, rows) for key in columns}
        table |= {f"x{name}{k}": np.round(rng.normal(size=rows), 1) for k in range(2)}
        if name == "T1":
            table["y"] = rng.integers(0, 2, rows) * 2 - 1
            table["kind"] = np.array(["red", "green", "blue"])[rng.integers(0, 3, rows)]
        same = rng.integers(0, rows, 3)
        tables[name] = {key: np.concatenate([values, values[same]]) for key, values in table.items()}
    return tables


def join_of(shape, **options):
    return Join(tables_of(shape, **options), ("T1", "y"))


def truth(join, beta, guard=0.0, tau=1.0):
    """Counts, mean slack and gradient of the hinge from the materialised join; which rows are too near to tell."""
    x, y, rows = formed_rows(join)
    slack = tau - y * (x @ beta) - guard * np.abs(x) @ np.abs(beta)
    counts = [
        [
            np.bincount(index[(y == sign) & (slack >= 0)], minlength=len(w))
            for index, w in zip(rows, join.tree.weight, strict=True)
        ]
        for sign in (1, -1)
    ]
    return counts, np.maximum(slack, 0).mean(), -(x * (y * (slack >= 0))[:, None]).mean(axis=0), np.abs(slack).min()


def beta_of(join, seed=1, size=0.7):
    return size * np.random.default_rng(seed).normal(size=join.d)


def test_golden_example():
    join = Join(GOLDEN, ("T1", "y"))
    beta = np.array([1, 1.5, -0.5])
    assert join.size == 8
    assert [out.tolist() for out in join.counts()] == [[3, 3, 2], [2, 4, 2], [2, 3, 3]]
    np.testing.assert_allclose(join.moments().absolute, [0.625, 0.6875, 0.7], rtol=1e-12)
    for engine, mode in [("merge", "mid"), *(("sketch", mode) for mode in ("lower", "upper", "mid"))]:
        found = pseudo_gradient(join, beta, 0.1, engine=engine, mode=mode)
        assert [c.tolist() for c in found.counts.counts[0]] == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
        assert [c.tolist() for c in found.counts.counts[1]] == [[2, 0, 0], [0, 2, 0], [0, 1, 1]]
        np.testing.assert_allclose(found.objective, 0.490625, rtol=1e-12)
        np.testing.assert_allclose(found.gradient, [0.41875, -0.04375, 0.025], rtol=1e-12)
        guarded = pseudo_gradient(join, beta, 0.1, 0.2, guard=True, engine=engine, mode=mode)
        np.testing.assert_allclose(guarded.objective, 0.3675, rtol=1e-12)
        np.testing.assert_allclose(guarded.gradient, [0.2625, 0.2375, -0.025], rtol=1e-12)


def test_ear_removal_and_spanning_trees_agree_on_what_is_acyclic():
    rng = np.random.default_rng(0)
    cyclic = 0
    for _ in range(500):
        m, columns = rng.integers(2, 7), "abcdef"[: rng.integers(2, 7)]
        tables = [frozenset(c for c in columns if rng.random() < 0.5) for _ in range(m)]
        weights = sorted(((len(tables[i] & tables[j]), i, j) for i in range(m) for j in range(i)), reverse=True)
        parent, total = list(range(m)), 0
        for weight, i, j in weights:
            if parent[i] != parent[j]:
                parent = [parent[i] if p == parent[j] else p for p in parent]
                total += weight
        needed = sum(max(sum(c in t for t in tables) - 1, 0) for c in columns)
        assert (total == needed) == (len(ears(tables)[0]) == 1)
        if len(ears(tables)[0]) > 1:
            cyclic += 1
            continue
        edges = join_tree("uvwxyz"[: len(tables)], tables, 0, set())
        for c in columns:  # the tables of each column are connected
            inside = {i for i in range(m) if c in tables[i]}
            assert sum(i in inside and j in inside for i, j in edges) == max(len(inside) - 1, 0)
    assert cyclic > 50


def test_a_tree_of_many_tables_on_one_key_is_a_path():
    edges = join_tree([f"t{i}" for i in range(40)], [frozenset("k")] * 40, 0, set())
    assert len(edges) == 39 and np.bincount(np.array(edges).ravel()).max() == 2


@pytest.mark.parametrize("shape", [PATH, HUB, CROSS])
def test_counts_and_moments(shape):
    join = join_of(shape, n=12)
    x, y, rows = formed_rows(join)
    assert join.size == len(x) > 100
    for out, index, weight in zip(join.counts(), rows, join.tree.weight, strict=True):
        np.testing.assert_array_equal(out, np.bincount(index, minlength=len(weight)))
    found = join.moments()
    np.testing.assert_allclose(found.mean, x.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.absolute, np.abs(x).mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.second, x.T @ x / len(x), atol=1e-12)
    np.testing.assert_allclose(found.label_mean, (x * y[:, None]).mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.label, y.mean(), atol=1e-12)


def test_integer_ranks_keep_their_factor():
    for eps in (0.01, 0.1, 0.37, 1.0):
        grid = rank_grid(eps, 5000)
        n = np.arange(1, 5001)
        below = grid[np.searchsorted(grid, n, side="right") - 1]
        assert (n / below >= 1).all() and (n / below <= 1 + eps + 1e-12).all()


@pytest.mark.parametrize(
    ("shape", "eps"),
    [
        (PATH, 0.5),
        (HUB, 0.2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((PATH, 0.05), (HUB, 0.5), (CROSS, 0.2))),
    ],
)
def test_sketches_keep_every_count_within_their_factor(shape, eps):
    join = join_of(shape, n=60 if shape == PATH else 14, keys=2)
    engine = SketchEngine(join.tree, eps)
    for seed, guard in itertools.product(range(3), (0.0, eps)):
        beta = beta_of(join, seed)
        counts, hinge, gradient, nearest = truth(join, beta, guard)
        assert nearest > 1e-9
        found = {
            mode: far_counts(join, beta, guard=guard, mode=mode, engine=engine) for mode in ("lower", "upper", "mid")
        }
        for sign, table in itertools.product(range(2), range(len(join.names))):
            true = counts[sign][table]
            low, high, mid = (found[mode].counts[sign][table] for mode in ("lower", "upper", "mid"))
            assert (low <= true * (1 + 1e-9)).all() and (low >= true / (1 + eps) * (1 - 1e-9)).all()
            assert (high >= true * (1 - 1e-9)).all() and (high <= true * (1 + eps) * (1 + 1e-9)).all()
            assert (mid >= true / (1 + eps) * (1 - 1e-9)).all() and (mid <= true * (1 + eps) * (1 + 1e-9)).all()
            assert ((true == 0) == (mid == 0)).all()
        losses = {mode: sum(far.slack) / join.size for mode, far in found.items()}
        assert hinge / (1 + eps) - 1e-9 <= losses["lower"] <= hinge + 1e-9
        assert hinge - 1e-9 <= losses["upper"] <= (1 + eps) * hinge + 1e-9


@pytest.mark.parametrize("shape", [PATH, HUB, CROSS])
def test_exact_engines(shape):
    join = join_of(shape, n=14)
    for seed, guard in itertools.product(range(3), (0.0, 0.3)):
        beta = beta_of(join, seed)
        counts, hinge, gradient, _ = truth(join, beta, guard)
        found = pseudo_gradient(join, beta, 0.0, guard=guard, engine="merge")
        for sign, table in itertools.product(range(2), range(len(join.names))):
            np.testing.assert_allclose(found.counts.counts[sign][table], counts[sign][table], atol=1e-9)
        np.testing.assert_allclose(found.objective, hinge, rtol=1e-12)
        np.testing.assert_allclose(found.gradient, gradient, atol=1e-12)


@pytest.mark.parametrize("shape", [PATH, HUB, CROSS])
def test_the_grid_bounds_the_hinge_and_its_planes_support_it(shape):
    join = join_of(shape, n=14)
    N = float(join.size)
    for width, seed in itertools.product((0.5, 0.05), range(3)):
        beta = beta_of(join, seed)
        _, hinge, _, _ = truth(join, beta)
        y, z, weight, x = join.histogram(join.linear(beta), width, features=True)
        wanted = np.array([1, join.means() @ beta, *join.means()])
        np.testing.assert_allclose([weight.sum() / N, weight @ z / N, *x.sum(axis=0) / N], wanted, rtol=1e-9, atol=1e-7)
        loss = weight @ np.maximum(1 - y * z, 0) / N
        assert hinge - 1e-12 <= loss <= hinge + len(join.names) * width**2 / 8
        far = np.clip((1 - y * z) / width + 0.5, 0, 1)  # a weight of each row, whatever the width
        for other in range(5):
            there = beta_of(join, 100 + other)
            assert truth(join, there)[1] >= (far @ weight - (far * y) @ x @ there) / N - 1e-12


def test_the_pseudo_gradient_is_the_gradient_at_perturbed_data():
    """Lemma 7 of the paper, with the perturbed join written out."""
    join, eps = join_of(PATH, n=40, keys=2), 0.3
    beta = beta_of(join)
    x, y, rows = formed_rows(join)
    found = pseudo_gradient(join, beta, 0.1, eps, guard=True, mode="lower")
    exact, _, _, _ = truth(join, beta, eps)
    far = 1 - y * (x @ beta) - eps * np.abs(x) @ np.abs(beta) >= 0
    factors = []
    for table, block in enumerate(join.blocks):
        per_sign = [c / np.maximum(t, 1) for c, t in zip([c[table] for c in found.counts.counts],
                                                         [t[table] for t in exact], strict=True)]  # fmt: skip
        of_row = np.where(y > 0, per_sign[0][rows[table]], per_sign[1][rows[table]])
        factors.append(np.repeat(of_row[:, None], block.d, axis=1))
    factor = np.concatenate(factors, axis=1)
    assert (np.abs(factor[far] - 1) <= eps).all()
    away = np.where((y[:, None] * beta * x) >= 0, 1 + eps, 1 - eps)  # the least slack that a perturbation can give
    moved = x * np.where(far[:, None], factor, away)
    slack = 1 - y * (moved @ beta)
    assert (slack[far] >= -1e-12).all() and (slack[~far] < 0).all()
    gradient = -(moved * (y * (slack >= 0))[:, None]).mean(axis=0) + 0.2 * beta
    np.testing.assert_allclose(found.gradient, gradient, atol=1e-12)


def test_the_inexact_subgradient_inequality():
    join, eps, lam = join_of(PATH, n=40, keys=2), 0.3, 0.01
    A = join.moments().absolute
    for guard, seed in itertools.product((False, True), range(4)):
        beta, other = beta_of(join, seed), beta_of(join, seed + 10)
        g = pseudo_gradient(join, beta, lam, eps, guard=guard, mode="lower").gradient
        F, F_other = (truth(join, b)[1] + lam * b @ b for b in (beta, other))
        step = other - beta
        error = eps * A @ (guard * np.abs(beta) + np.abs(step))
        assert F_other >= F + g @ step + lam * step @ step - error - 1e-9


def test_star_of_unique_keys_is_exact():
    rng = np.random.default_rng(0)
    n = 50
    tables = {
        "fact": {
            "p": rng.integers(0, 9, n),
            "q": rng.integers(0, 7, n),
            "x": rng.normal(size=n),
            "y": np.arange(n) % 2,
        },
        "P": {"p": np.arange(9), "u": rng.normal(size=9)},
        "Q": {"q": np.arange(7), "v": rng.normal(size=7)},
    }
    join = Join(tables, ("fact", "y"))
    engine = SketchEngine(join.tree, 0.5)
    assert [len(engine.grid[name]) for name in ("1>0", "2>0")] == [1, 1]
    beta = beta_of(join)
    counts = far_counts(join, beta, engine=engine).counts
    true, _, _, _ = truth(join, beta)
    for sign in range(2):
        np.testing.assert_array_equal(counts[sign][0], true[sign][0])
        assert set(counts[sign][0]) <= {0, 1}
    assert join.tree.simplified.m == 1
