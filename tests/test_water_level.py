"""Water levels against a linear programme: the level, its residual, the p that proves it; float32."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracle_hinge as truth
import pytest

import jaxsvm
from jaxsvm import water_level, water_level_with_bias
from jaxsvm.problems.water_level import level_by_bisection

N = 12
both = pytest.mark.parametrize("bias", [False, True, "bisection"])


class Floors(NamedTuple):
    """Floors `c (k, n)` with signs, weights and volumes, and their levels by linear programming."""

    c: np.ndarray
    y: np.ndarray
    w: np.ndarray
    volume: np.ndarray
    level: np.ndarray
    level_with_bias: np.ndarray


@functools.cache
def floors(weighted=False, count=200):
    """Random floors: ties, constant ones, no volume and huge ones, one sample in a class; or weights with zeros."""
    rng = np.random.default_rng(int(weighted))
    c = rng.normal(size=(count, N)) * 10.0 ** rng.integers(-2, 3, (count, 1)) + rng.choice([0, 5, -100], (count, 1))
    c[::4] = rng.integers(-1, 3, c[::4].shape)  # ties
    c[::15] = rng.normal(size=(len(c[::15]), 1))  # constant
    volume = rng.choice([0.0, 1e-6, 0.1, 1.0, 4.0, 30.0, 1e4], count)
    y = np.where(np.arange(N) < rng.integers(1, N, (count, 1)), 1.0, -1.0)
    w = np.ones((count, N))
    if weighted:
        w = np.where(rng.random((count, N)) < 0.5, rng.integers(0, 4, (count, N)), rng.uniform(0.1, 2, (count, N)))
        w[:, [0, -1]] = 1.0  # a sample of each class
    rows = list(zip(c, y, w, volume, strict=True))
    level = np.array([truth.level_by_lp(c, v, weight=w)[0] for c, _, w, v in rows])
    with_bias = np.array([truth.level_by_lp(c, v, y, w)[0] for c, y, w, v in rows])
    return Floors(c, y, w, volume, level, with_bias)


@functools.cache
def compiled(bias):
    """Lanes of `(c, y, volume, weight)`."""

    def one(c, y, volume, weight):
        if bias == "bisection":
            return level_by_bisection(c, y, volume, weight)
        return water_level_with_bias(c, y, volume, weight=weight) if bias else water_level(c, volume, weight=weight)

    return jax.jit(jax.vmap(one))


def found(floors, bias=False):
    return jax.tree.map(np.asarray, compiled(bias)(floors.c, floors.y, floors.volume, floors.w))


def relative(a, b):
    return np.abs(np.asarray(a) - b) / np.maximum(1, np.abs(b))


def assert_valid(water, floors, bias=False):
    """The volume is spent; p proves the level from above."""
    c, scale = floors.c + floors.y * water.bias[:, None], 1 + np.abs(floors.c).max(axis=1)
    spent = np.where(floors.w > 0, floors.w * np.maximum(0, water.level[:, None] - c), 0).sum(axis=1)
    # 1e-10 (1 + V), for heights of the order 1: a rounding of a height counts n times.
    assert (np.abs(spent - floors.volume) <= 1e-10 * (1 + floors.volume) + 1e-14 * N * scale).all()
    p = water.p
    assert (p >= 0).all()
    assert (p[floors.w == 0] == 0).all()
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-14)
    highest = (p / np.where(floors.w > 0, floors.w, 1)).max(axis=1)
    bound = (p * floors.c).sum(axis=1) + floors.volume * highest
    assert relative(bound, water.level).max() <= 1e-10
    if bias:
        assert np.abs((p * floors.y).sum(axis=1)).max() <= 1e-12


# --- the level


@both
@pytest.mark.parametrize("weighted", [False, True])
def test_1_2_3_level_is_that_of_the_linear_programme(weighted, bias):
    here = floors(weighted)
    water = found(here, bias)
    assert relative(water.level, here.level_with_bias if bias else here.level).max() <= 1e-9
    assert_valid(water, here, bias)
    shifted = here._replace(c=here.c + here.y * water.bias[:, None])  # the same level at c + y b
    assert relative(found(shifted).level, water.level).max() <= 1e-10


def test_heavy_samples_do_not_swallow_the_slack_of_light_ones():
    here = floors()
    w = np.where(np.random.default_rng(1).random(here.c.shape) < 0.5, 1.0, 1e20)
    water = found(here._replace(w=w, volume=np.zeros(len(w))))
    assert relative(water.level, here.c.min(axis=1)).max() <= 1e-12


def test_1_golden_values_and_one_sample():
    golden = water_level(jnp.array([3.0, 1.0, 2.0]), 1.5)
    assert float(golden.level) == pytest.approx(2.25, rel=1e-15)
    np.testing.assert_allclose(golden.p, [0, 0.5, 0.5], atol=1e-15)
    for volume in (0.0, 1e-9, 2.0, 1e9):
        one = water_level(jnp.array([-0.5]), volume)
        assert float(one.level) == pytest.approx(volume - 0.5, rel=1e-15)
        assert float(one.p[0]) == 1.0


@pytest.mark.thorough
def test_the_derivative_of_a_level_is_its_p():
    for level in (water_level, lambda c, v: water_level_with_bias(c, np.array([1.0, -1.0, 1.0]), v)):
        slopes = jax.grad(lambda c, v, level=level: level(c, v).level, (0, 1))(jnp.array([3.0, 1.0, 2.0]), 1.5)
        water = level(np.array([3.0, 1.0, 2.0]), 1.5)
        np.testing.assert_allclose(slopes[0], water.p, atol=1e-15)
        assert float(slopes[1]) == pytest.approx(float(water.p.max()))


@pytest.mark.parametrize("bias", [True, "bisection"])
def test_the_bias_is_the_middle_of_the_best(bias):
    here = floors()
    water = found(here, bias)
    closed = [truth.level_with_bias_closed(*row)[1] for row in zip(here.c, here.y, here.volume, strict=True)]
    scale = 1 + np.abs(here.c).max(axis=1) + here.volume
    assert (np.abs(water.bias - closed) / scale).max() <= 1e-9


def attained(c, w, volume):
    order = np.argsort(c)
    heights, widths = c[order].astype(np.longdouble), w[order].astype(np.longdouble)
    rest = heights - heights[0]
    return heights[0] + ((np.cumsum(widths * rest) + np.longdouble(volume)) / np.cumsum(widths)).min()


@pytest.mark.parametrize("other", [1e20, 1e-20])
def test_the_bias_is_best_where_weights_lie_far_apart(other):
    here = floors()
    w = np.where(np.random.default_rng(1).random(here.c.shape) < 0.5, 1.0, other)
    here = here._replace(w=w, volume=here.volume * w.min(axis=1))
    water = found(here, bias=True)
    for row, (c, y, w, volume) in enumerate(zip(here.c, here.y, here.w, here.volume, strict=True)):
        reached = attained(c + y * water.bias[row], w, volume)
        # Concave in the bias: no step to either side is better.
        for step in (-1e-3, 1e-3, -1.0, 1.0):
            assert attained(c + y * (water.bias[row] + step), w, volume) - reached <= 1e-12 * (1 + abs(reached))


# --- float32 and transformations


@both
@pytest.mark.parametrize("lowest", [0.0, -0.7])
def test_a_tiny_volume_is_not_lost_in_float32(bias, lowest):
    """V = 4e-6 beside responses of the order 1; unshifted sums are 2 % off."""
    rng = np.random.default_rng(3)
    near = np.array([0, 2.0**-20, 2.0**-18, 0.5])  # above the lowest of each class: exact in float32
    c = np.concatenate([near, near, rng.uniform(0.5, 1, N - 8)])[None] + np.float32(lowest)
    y = np.where(np.arange(N) % 8 < 4, 1.0, -1.0)[None]
    c32, volume = c.astype(np.float32), np.float32(4e-6)
    exact = Floors(c32.astype(float), y, np.ones((1, N)), np.array([float(volume)]), np.zeros(1), np.zeros(1))
    wanted = found(exact, bias)
    water = compiled(bias)(c32, y.astype(np.float32), volume[None], np.ones((1, N), np.float32))
    assert water.level.dtype == water.p.dtype == water.bias.dtype == jnp.float32
    # The level itself has a float32's last place; what lies above the lowest is right to more than that where c_min = 0
    error = abs(float(water.level[0]) - float(wanted.level[0]))
    assert error <= max(np.spacing(np.float32(abs(wanted.level[0]))), 1e-6 * float(volume))
    np.testing.assert_allclose(water.p, wanted.p, atol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_lanes_are_single_levels_and_no_weights_are_ones(bias):
    here = floors()
    lanes = found(here, bias)
    for lane in (0, 1, 15, 33):
        c, y, volume = here.c[lane], here.y[lane], here.volume[lane]
        water = water_level_with_bias(c, y, volume) if bias else water_level(c, volume)
        for name in water._fields:
            np.testing.assert_allclose(getattr(water, name), getattr(lanes, name)[lane], rtol=1e-13, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1000, 60_000])
def test_large_floors_have_the_levels_of_closed_forms(n):
    rng = np.random.default_rng(7)
    c, y = rng.normal(size=n), np.where(rng.random(n) < 0.3, 1.0, -1.0)
    for volume in (0.0, 1e-3 * n, n, 100.0 * n):
        wanted, closed = truth.level_by_sorting(c, volume), truth.level_with_bias_closed(c, y, volume)
        water = water_level_with_bias(c, y, volume)
        assert float(water_level(c, volume).level) == pytest.approx(wanted, rel=1e-11, abs=1e-11)
        assert float(water.level) == pytest.approx(closed[0], rel=1e-11, abs=1e-11)
        assert abs(float(y @ np.asarray(water.p))) <= 1e-12


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_infinite_responses_stay_dry_in_any_float(dtype):
    """By hand: [0, 1] with 2 of water stand at 1.5; with a bias of -1/2 [0] and [-1] are level, and 1 reaches 0."""
    for wrap in (lambda function: function, jax.jit):
        water = wrap(water_level)(jnp.asarray([0, np.inf, 1], dtype), 2.0)
        assert float(water.level) == 1.5 and water.p.tolist() == [0.5, 0, 0.5] and water.level.dtype == jnp.float32
        c, y = jnp.asarray([0, np.inf, -1, 2], dtype), jnp.asarray([1, 1, -1, -1])
        water = wrap(water_level_with_bias)(c, y, 1.0)
        np.testing.assert_allclose([water.level, water.bias], [0, -0.5], atol=1e-6)
        assert water.p.tolist() == [0.5, 0, 0.5, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: water_level([1.0, 2.0 + 1j], 1.0), "c has dtype complex128"),
        (lambda: water_level(["a", "b"], 1.0), "c has dtype"),
        (lambda: water_level([1.0, 2.0], 1j), "volume has dtype complex128"),
        (lambda: water_level([1.0, 2.0], 1.0, weight=[1j, 1.0]), "weight has dtype complex128"),
        (lambda: water_level([1.0, 2.0], 1.0, weight=[np.inf, 1.0]), "weight has 1 value"),
        (lambda: water_level([1.0, 2.0], np.inf), "volume is inf"),
        (lambda: water_level([1.0, np.nan], 1.0), "c holds NaN"),
        (lambda: water_level([1.0, -np.inf], 1.0), "c holds NaN"),
        (lambda: water_level([np.inf, np.inf], 1.0), "c holds NaN"),
        (lambda: water_level_with_bias([1.0, np.inf], [1.0, -1.0], 1.0), "y has no sample of class -1"),
        (lambda: water_level([1.0, 2.0], -1.0), "volume is -1.0"),
        (lambda: water_level([1.0, 2.0], float("nan")), "volume is nan"),
        (lambda: water_level([1.0, 2.0], [1.0, 2.0]), "volume has shape"),
        (lambda: water_level([], 1.0), "c has shape"),
        (lambda: water_level([[1.0]], 1.0), "c has shape"),
        (lambda: water_level([1.0, 2.0], 1.0, weight=[1.0]), "weight has shape"),
        (lambda: water_level([1.0, 2.0], 1.0, weight=[1.0, -1.0]), "weight holds -1.0"),
        (lambda: water_level([1.0, 2.0], 1.0, weight=[0.0, 0.0]), "weight is zero everywhere"),
        (lambda: water_level_with_bias([1.0, 2.0], [1.0], 1.0), "y has shape"),
        (lambda: water_level_with_bias([1.0, 2.0], [1.0, 1.0], 1.0), "y has no sample of class -1"),
        (lambda: water_level_with_bias([1.0, 2.0], [1.0, 0.5], 1.0), "y holds"),
    ],
)
def test_bad_floors_are_refused(make, message):
    with pytest.raises(jaxsvm.InputError, match=message):
        make()
