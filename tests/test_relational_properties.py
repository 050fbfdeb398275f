"""What the paper and its corrected analysis promise of sketches: hardness, bounds, scale, other join trees."""

import dataclasses
import itertools
import time
import tracemalloc

import numpy as np
import pytest
from test_relational import PATH, beta_of, tables_of, truth

from jaxsvm import relational
from jaxsvm.relational.gradient.engine import MergeEngine
from jaxsvm.relational.gradient.sketch import SketchEngine


def relinked(tree, edges):
    kid_of = {i: kid for (i, _), kid in tree.kid.items()}
    count = next(iter(tree.count.values()))
    both = [(a, b) for i, j in edges for a, b in ((i, j), (j, i))]
    return dataclasses.replace(tree, kid={(a, b): kid_of[a] for a, b in both}, count=dict.fromkeys(both, count))


def knapsack(weights, limit, k):
    """The paper's gadget: the sum of Value over active rows is the count of subsets up to the limit, less k."""
    tables = {
        f"T{i}": {"Key": np.array([1, 1, 0]), f"E{i}": np.array([0, w / (limit + 0.5), 0])}
        for i, w in enumerate(weights)
    }
    # Labels are all +1; a row that adds nothing has the other one, since two are asked for.
    tables["V"] = {"Key": np.array([1, 0, 1]), "Value": np.array([1.0, -float(k), 0.0]), "y": np.array([1, 1, -1])}
    join = relational.Join(tables, ("V", "y"))
    beta = np.array([0.0 if "Value" in name else 1.0 for name in join.feature_names])
    return join, beta, join.feature_names.index("V.Value")


@pytest.mark.thorough
@pytest.mark.parametrize(("shape", "exponent"), [("path", 10), ("star", 18)])
def test_counting_knapsack_is_answered_by_an_interval(shape, exponent):
    """It holds the truth, and straddles 0 where the count is about k: nobody claims a sign. Far from k it is known."""
    weights, eps = np.random.default_rng(3).integers(1, 20, 10).tolist(), 0.1
    limit = sum(weights) // 2
    count = sum(sum(part) <= limit for size in range(11) for part in itertools.combinations(weights, size))
    for k, known in ((count - 1, False), (count, False), (count + 1, False), (2 * count, True)):
        join, beta, at = knapsack(weights, limit, k)
        edges = [(10, i) for i in range(10)] if shape == "star" else [(i, i + 1) for i in range(10)]
        engine = SketchEngine(relinked(join.tree, edges), eps)
        assert engine.exponent <= exponent  # some of the compressions stay exact
        lower, upper = (relational.pseudo_gradient(join, beta, 0.0, eps, mode=m, engine=engine)
                        for m in ("lower", "upper"))  # fmt: skip
        low, high = (-float(join.size) * end[at] for end in reversed(relational.gradient_interval(lower, upper)))
        assert low <= count - k <= high
        assert high + k <= (1 + eps) ** 2 * (low + k)
        assert (low * high > 0) == known
        assert known or low < 0 < high


def test_another_join_tree_stays_within_the_factor():
    tables, eps = tables_of(PATH, n=30, keys=2), 0.3
    tables["T2"] = {"a": tables["T2"]["b"], "xT20": tables["T2"]["xT20"]}
    tables["T1"].pop("b")
    join = relational.Join(tables, ("T1", "y"))
    beta = beta_of(join)
    counts, _, _, nearest = truth(join, beta)
    assert nearest > 1e-9
    for edges in ([(0, 1), (1, 2)], [(1, 0), (0, 2)], [(0, 2), (2, 1)]):
        engine = SketchEngine(relinked(join.tree, edges), eps)
        found = relational.far_counts(join, beta, engine=engine)
        for sign, table in itertools.product(range(2), range(3)):
            true, mid = counts[sign][table], found.counts[sign][table]
            assert (mid <= (1 + eps) * true + 1e-9).all() and (true <= (1 + eps) * mid + 1e-9).all()


def many_to_many(n, keys, seed=0):
    rng = np.random.default_rng(seed)
    tables = {name: {c: rng.integers(0, keys, n) for c in columns} | {f"x{name}": rng.uniform(-1, 1, n)}
              for name, columns in (("T0", "a"), ("T1", "ab"), ("T2", "b"))}  # fmt: skip
    tables["T1"]["y"] = np.where(tables["T1"]["xT1"] + 0.5 * rng.normal(size=n) > 0, 1, -1)
    return relational.Join(tables, ("T1", "y"))


@pytest.mark.slow  # the exact counts take some seconds
def test_a_join_of_2e10_rows_against_exact_counts():
    join = many_to_many(20_000, 20)
    assert 1.9e10 < join.size < 2.1e10
    beta = np.array([1.1, 2.0, -0.9])
    exact = relational.pseudo_gradient(join, beta, 0.01, engine=MergeEngine(join.tree))
    engine = SketchEngine(join.tree, 0.3)
    begun = time.process_time()
    mid = relational.pseudo_gradient(join, beta, 0.01, engine=engine)
    assert time.process_time() - begun < 10
    assert abs(mid.objective / exact.objective - 1) < 0.01
    lower, upper = (relational.pseudo_gradient(join, beta, 0.01, engine=engine, mode=m) for m in ("lower", "upper"))
    assert lower.objective <= exact.objective <= upper.objective
    g_low, g_high = relational.gradient_interval(lower, upper)
    g = exact.plus + exact.minus
    assert (g_low <= g).all() and (g <= g_high).all()
    tracemalloc.start()
    relational.pseudo_gradient(join, beta, 0.01, engine=SketchEngine(join.tree, 0.1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 30


@pytest.mark.slow  # timings
def test_the_cost_does_not_depend_on_the_size_of_the_join():
    seconds, memory, sizes = [], [], []
    for keys in (40, 4):
        join = many_to_many(4000, keys)
        beta, engine = np.array([1.1, 2.0, -0.9]), SketchEngine(join.tree, 0.3)
        times = []
        for _ in range(4):
            begun = time.process_time()
            relational.pseudo_gradient(join, beta, 0.01, engine=engine)
            times.append(time.process_time() - begun)
        tracemalloc.start()
        relational.pseudo_gradient(join, beta, 0.01, engine=engine)
        memory.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        seconds.append(min(times))
        sizes.append(float(join.size))
    assert sizes[1] > 95 * sizes[0]
    assert seconds[1] < 3 * seconds[0] and memory[1] < 3 * memory[0]
