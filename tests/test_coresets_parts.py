"""Coresets of data that change."""

import numpy as np
import pytest

from jaxsvm import coresets
from jaxsvm.coresets.summary import solution
from jaxsvm.errors import InputError


def points(n, seed=0, d=2):
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.3, 1.0, -1.0)
    return rng.normal(size=(n, d)) + y[:, None], y


def same(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("x", "y", "weight"))


def test_a_dynamic_coreset_follows_its_data_at_the_price_of_a_path():
    x, y = points(700)
    tree = coresets.DynamicCoreset(1.0, 24, 0, clusters=4)
    names = tree.insert(x, y)
    small = tree.coreset()
    assert len(tree) == 700 and len(small) == 24
    best = solution(x, y, 1.0)
    F = 0.5 * best[0] @ best[0] + np.maximum(0, 1 - y * (x @ best[0] + best[1])).sum()
    assert 0.4 * F < small.info["lower"] <= F * (1 + 1e-9)
    before, height = tree.reduces, 6
    tree.delete(names[5])
    tree.coreset()
    assert tree.reduces - before <= height
    before = tree.reduces
    tree.insert(x[:1], y[:1])
    tree.coreset()
    assert tree.reduces - before <= height
    before = tree.reduces
    assert same(tree.coreset(), tree.coreset()) and tree.reduces == before


@pytest.mark.slow
def test_deleted_points_are_gone_and_others_are_what_counts():
    x, y = points(300)
    tree = coresets.DynamicCoreset(1.0, 48, 0, clusters=4)
    names = tree.insert(x, y)
    far = tree.insert(np.full((200, 2), 50.0), -np.ones(200))
    tree.coreset()
    tree.delete(far)
    tree.delete(names[:100])
    tree.delete(names[100:120])
    weight = np.repeat([1.0, 5.0], 10)
    fresh = tree.insert(x[100:120], np.append(-y[100:110], y[110:120]), weight)
    small = tree.coreset()
    assert small.x.max() < 10 and small.info["n"] == 200
    y = y.copy()
    y[100:110] *= -1
    u = np.ones(300)
    u[110:120] = 5
    data = x[100:], y[100:], u[100:]
    assert coresets.evaluate(small, data).excess < 0.5
    tree.delete(names[140:])
    few = tree.coreset()  # fewer than a node: exact
    w, b = solution(*[part[:40] for part in data[:2]], 1.0, data[2][:40])
    np.testing.assert_allclose(few.solution()[0], w, atol=1e-4)
    with pytest.raises(InputError, match="is not there"):
        tree.delete(names[0])
    tree.delete(np.append(fresh, names[120:140]))
    with pytest.raises(InputError, match="no points"):
        tree.coreset()


def test_changes_of_points_that_are_none_are_refused():
    x, y = points(60)
    dynamic = coresets.DynamicCoreset(1.0, 24)
    ids = dynamic.insert(x, y)
    wrong = [
        lambda: dynamic.delete([True]), lambda: dynamic.delete([0.0]), lambda: dynamic.delete([ids[:2]]),
        lambda: dynamic.delete(["0"]), lambda: dynamic.delete([99]),
    ]  # fmt: skip
    for change in wrong:
        with pytest.raises(InputError):
            change()
    dynamic.delete([])
    assert len(dynamic) == 60
