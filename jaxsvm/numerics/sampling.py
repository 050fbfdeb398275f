"""Draw samples at random: uniformly, balanced between two classes, or in proportion to weights."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


class Present(NamedTuple):
    """The samples that may be drawn uniformly: those present, which come first in an order of all."""

    order: Int[Array, " n"]  # all samples, `(n,)` int32
    number: Int[Array, ""]  # how many are present, int32 `()`

    @staticmethod
    def of(mask: Bool[Array, " n"] | None, n: int) -> "Present":
        """Return the n samples, or those of a mask, in their order."""
        if mask is None:
            return Present(jnp.arange(n, dtype=jnp.int32), jnp.asarray(n, jnp.int32))
        return Present(jnp.argsort(~mask, stable=True).astype(jnp.int32), mask.sum(dtype=jnp.int32))

    def drawn(self, key: Array, size: int) -> Int[Array, " size"]:
        """Draw with replacement."""
        return self.order[jax.random.randint(key, (size,), 0, jnp.maximum(self.number, 1), jnp.int32)]

    def shuffled(self, key: Array) -> "Present":
        """Return the samples with those present in a random order."""
        noise = jax.random.uniform(key, self.order.shape, jnp.float32)
        places = jnp.arange(len(self.order), dtype=jnp.int32)
        return self._replace(order=self.order[jnp.argsort(jnp.where(places < self.number, noise, 2))])


def balanced_draw(
    key: jax.Array, y: Float[Array, " n"], eligible: Bool[Array, " n"], size: int
) -> tuple[Int[Array, " size"], Bool[Array, " size"]]:
    """Draw distinct eligible indices, half from each class (an unbalanced draw misses rare classes).

    All signs are equal if there are no classes. `size` is at most n. Also returns which indices hold a sample: a class
    with too few samples leaves places empty.
    """
    n = y.shape[0]
    noise = jnp.where(eligible, _scrambled(key, n), -1)
    one_class = ~((eligible & (y > 0)).any() & (eligible & (y < 0)).any())
    halves = []
    for sign, count in ((1, min(size // 2, n)), (-1, min(size - size // 2, n))):
        # With only one class the two halves come from even and odd places, so that they stay distinct.
        side = jnp.where(one_class, jnp.arange(n) % 2 == int(sign > 0), y * sign > 0)
        scores, picked = lax.top_k(jnp.where(side, noise, -1), count)
        halves.append((picked, scores >= 0))
    indices, valid = (jnp.concatenate(part) for part in zip(*halves, strict=True))
    return indices.astype(jnp.int32), valid


def _scrambled(key: Array, n: int) -> Float[Array, " n"]:
    """Return a pseudorandom integer in [0, 2**24) for each place: the order of a draw without replacement.

    It is the finaliser of MurmurHash3 (Appleby 2011), applied twice to key and place. `jax.random` for n places takes
    0.3 s to compile.
    """

    def mixed(bits: Array) -> Array:
        bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
        bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
        return bits ^ (bits >> 16)

    words = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    bits = jnp.arange(n, dtype=jnp.uint32)
    for word in words.reshape(-1).astype(jnp.uint32):
        bits = mixed(bits * jnp.uint32(0x9E3779B9) + mixed(word + jnp.uint32(1)))
    return (bits >> 8).astype(jnp.float32)


def systematic_draw(
    key: Array, p: Float[Array, " n"], size: int, y: Float[Array, " n"] | None = None
) -> Int[Array, " size"]:
    """Draw indices in proportion to p by systematic sampling: equally spaced in the cumulated mass, `1 / size` apart.

    The mean of the draws is p in expectation, with less noise than independent draws have. With signs y the classes are
    cumulated one after the other: if each holds half of the mass, each gets half of an even number of draws. (Otherwise
    the difference of the classes walks at random, and w with it along whatever all samples share.) The weights p have
    any sum; a sample of weight 0 is never drawn.
    """
    parts = [p] if y is None else [jnp.where(y > 0, p, 0), jnp.where(y > 0, 0, p)]
    total = jnp.cumsum(jnp.concatenate(parts))
    at = (jnp.arange(size, dtype=p.dtype) + jax.random.uniform(key, (), p.dtype)) / size * total[-1]
    index = jnp.minimum(jnp.searchsorted(total, at.astype(p.dtype), side="right"), len(total) - 1) % p.shape[0]
    return jnp.where(p[index] > 0, index, jnp.argmax(p)).astype(jnp.int32)
