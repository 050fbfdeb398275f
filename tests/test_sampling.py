"""Balanced draws. Systematic ones are tested where they are used, in `test_stochastic_batch_perceptron.py`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsvm.numerics.sampling import _scrambled, balanced_draw


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
