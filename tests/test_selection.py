"""Extremes with their index against NumPy, and what a random sample finds (T20)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsvm.numerics import selection
from jaxsvm.numerics.sampling import Present

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


# --- T20


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
