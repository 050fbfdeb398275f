"""Extremes with their index against NumPy, what a random sample finds (T20), and balanced draws.

Systematic draws are tested where they are used, in `test_stochastic_batch_perceptron.py`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsvm.numerics import selection
from jaxsvm.numerics.sampling import Present, _scrambled, balanced_draw

SIZES = [1, 2, 63, 64, 65, 127, 128, 129, 200, 255, 256, 257, 258, 300, 5000, 10_007]
SEARCHES = {
    "argmin": (selection.argmin, selection._argmin_in_blocks, np.argmin),
    "argmax": (selection.argmax, None, np.argmax),
}


@functools.cache
def compiled(name, batched):
    search = SEARCHES[name][0]
    return jax.jit(jax.vmap(search) if batched else search)


def lanes(n):
    """Rows that are hard in one way each: ties, infinite entries, and the extremes at both ends."""
    rng = np.random.default_rng(n)
    plain = rng.normal(size=n)
    ties = rng.integers(0, 3, n).astype(float)
    ends = np.zeros(n)
    ends[-1], ends[0] = -1, 1
    last = np.zeros(n)
    last[n - 1] = 1
    mixed = plain.copy()
    mixed[rng.random(n) < 0.2] = np.inf
    mixed[rng.random(n) < 0.2] = -np.inf
    only_inf, only_minus_inf = np.full(n, np.inf), np.full(n, -np.inf)
    one_finite = only_inf.copy()
    one_finite[n // 2] = 3.0
    twice = rng.normal(size=n)
    twice[[n // 3, n - 1]] = twice.min() - 1  # a tie across blocks
    return np.stack(
        [plain, -plain, ties, ends, last, mixed, only_inf, only_minus_inf, one_finite, -one_finite, twice, -twice]
    )


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", SEARCHES)
def test_extremes_and_their_lowest_index_under_vmap(name, n):
    values = lanes(n)
    value, index = compiled(name, True)(jnp.asarray(values))
    want = SEARCHES[name][2](values, axis=1)
    np.testing.assert_array_equal(index, want)
    np.testing.assert_array_equal(value, np.take_along_axis(values, want[:, None], 1)[:, 0])
    assert index.dtype == jnp.int32 and value.dtype == jnp.float64


@pytest.mark.parametrize("n", [1, 65, 300, 10_007])
@pytest.mark.parametrize("name", SEARCHES)
def test_extremes_of_one_vector_in_float32(name, n):
    for lane in lanes(n).astype(np.float32):
        value, index = compiled(name, False)(jnp.asarray(lane))
        assert index.shape == () and value.dtype == jnp.float32
        assert int(index) == SEARCHES[name][2](lane) and float(value) == lane[int(index)]


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100, 129, 512, 1024, 1025, 3000])
def test_folds_see_every_place(n):
    places = np.unique(np.clip([0, 1, n // 2, n - 2, n - 1, 127, 128], 0, n - 1))
    values = np.zeros((len(places), n))
    values[np.arange(len(places)), places] = -1
    np.testing.assert_array_equal(jax.vmap(selection.smallest)(jnp.asarray(values)), -1)
    np.testing.assert_array_equal(jax.vmap(selection.largest)(jnp.asarray(-values)), 1)
    packed = jax.vmap(selection.largest_packed)(jnp.asarray(-values))
    np.testing.assert_array_equal(packed, places)


def test_nan_shows_in_the_value_and_the_index_stays_in_range():
    for n in (5, 300, 517):
        values = np.arange(float(n))
        values[n // 2] = np.nan
        for name in SEARCHES:
            value, index = compiled(name, False)(jnp.asarray(values))
            assert np.isnan(value) and 0 <= int(index) < n


def test_entry():
    values = jnp.arange(5.0)
    assert [float(selection.entry(values, jnp.int32(i))) for i in range(5)] == [0, 1, 2, 3, 4]


# --- draws


def test_the_best_of_59_random_draws_is_among_the_top_5_percent():
    """1 - 0.95^59 = 0.9515; drawn as `sampled` draws, with nine absent samples for each present one (a fold, a pair).

    The standard error is 0.0015.
    """
    n, r, repeats = 2000, 59, 20_000
    ranks = jax.random.permutation(jax.random.key(1), 10 * n)  # distinct; the best n are present
    present, scores = Present.of(ranks < n, 10 * n), ranks.astype(jnp.float32)

    @jax.jit
    @jax.vmap
    def is_top(key):
        best, _ = selection.argmin(scores[present.drawn(key, r)])
        return best < 0.05 * n

    frequency = float(is_top(jax.random.split(jax.random.key(20), repeats)).mean())
    assert 0.945 <= frequency <= 0.96, frequency
    assert abs(frequency - (1 - 0.95**r)) < 5 * np.sqrt(0.0485 * 0.9515 / repeats)


@functools.cache
def drawn(size):
    return jax.jit(jax.vmap(lambda key, y, eligible: balanced_draw(key, y, eligible, size), (0, None, None)))


def draws(y, eligible, size, seeds=200):
    keys = jax.random.split(jax.random.key(0), seeds)
    indices, valid = drawn(size)(keys, jnp.asarray(y, float), jnp.asarray(eligible))
    assert indices.shape == valid.shape == (seeds, size) and indices.dtype == jnp.int32 and valid.dtype == bool
    return np.asarray(indices), np.asarray(valid)


Y = np.where(np.arange(30) < 4, 1.0, -1.0)  # a rare class: 4 of 30
ELIGIBLE = np.arange(30) % 7 != 0  # without 0, 7, 14, 21, 28


@pytest.mark.parametrize("size", [1, 2, 5, 6, 20, 30])
def test_draws_are_distinct_eligible_and_half_from_each_class(size):
    indices, valid = draws(Y, ELIGIBLE, size)
    for row, ok in zip(indices, valid, strict=True):
        chosen = row[ok]
        assert len(np.unique(chosen)) == len(chosen)
        assert ELIGIBLE[chosen].all()
        assert (Y[chosen] > 0).sum() == min(size // 2, (ELIGIBLE & (Y > 0)).sum())
        assert (Y[chosen] < 0).sum() == min(size - size // 2, (ELIGIBLE & (Y < 0)).sum())


def test_draws_are_uniform_within_a_class():
    seeds = 3000
    indices, valid = draws(Y, ELIGIBLE, 6, seeds)
    counts = np.bincount(indices[valid], minlength=30) / seeds
    rare, common = ELIGIBLE & (Y > 0), ELIGIBLE & (Y < 0)
    assert (counts[~ELIGIBLE] == 0).all()
    np.testing.assert_allclose(counts[rare], 1)  # 3 of 3
    share = 3 / common.sum()
    np.testing.assert_allclose(counts[common], share, atol=5 * np.sqrt(share * (1 - share) / seeds))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_class_fills_both_halves_and_stays_distinct(sign):
    indices, valid = draws(np.full(30, sign), np.ones(30, bool), 7)
    assert valid.all()
    assert all(len(np.unique(row)) == 7 for row in indices)
    assert len(np.unique(indices)) == 30  # everybody gets a turn
    everyone, valid = draws(np.full(30, sign), np.ones(30, bool), 30)
    assert valid.all() and (np.sort(everyone, axis=1) == np.arange(30)).all()
    # A class whose samples are all out counts as absent.
    indices, valid = draws(Y * sign, Y > 0, 6)
    assert (Y[indices[valid]] > 0).all() and valid.sum(axis=1).min() >= 2


def test_nobody_eligible_and_one_sample():
    indices, valid = draws(Y, np.zeros(30, bool), 6)
    assert not valid.any() and (indices >= 0).all() and (indices < 30).all()
    indices, valid = draws(np.ones(1), np.ones(1, bool), 1)
    assert valid.all() and not indices.any()


def test_the_key_decides_the_draw_by_a_published_hash():
    """The finaliser of MurmurHash3, which is that of empty strings with these seeds."""

    def mixed(bits):
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            bits = (bits ^ bits >> shift) * factor % 2**32
        return bits ^ bits >> 16

    assert (mixed(1), mixed(2**32 - 1)) == (0x514E28B7, 0x81F16F39)
    places = range(30)
    for word in (7, 9):
        places = [mixed((place * 0x9E3779B9 + mixed(word + 1)) % 2**32) for place in places]
    np.testing.assert_array_equal(_scrambled(jnp.asarray([7, 9], jnp.uint32), 30), np.array(places) >> 8)
