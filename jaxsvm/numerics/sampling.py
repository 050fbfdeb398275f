"""Random draws of samples: balanced between two classes, and in proportion to weights."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


def balanced_draw(
    key: jax.Array, y: Float[Array, " n"], eligible: Bool[Array, " n"], size: int
) -> tuple[Int[Array, " size"], Bool[Array, " size"]]:
    """Draw distinct eligible indices, half from each class (an unbalanced draw misses rare classes).

    Args:
        key: A random key.
        y: Signs, `(n,)`; of one sign where there are no classes.
        eligible: Which samples may be drawn, `(n,)`.
        size: How many, at most n.

    Returns:
        Indices `(size,)` int32 and which of them hold a sample `(size,)`: a class smaller than its half
        leaves places empty.
    """
    n = y.shape[0]
    noise = jnp.where(eligible, jax.random.gumbel(key, (n,), y.dtype), -jnp.inf)
    one_class = ~(jnp.any(eligible & (y > 0)) & jnp.any(eligible & (y < 0)))
    halves = []
    for sign, count in ((1, min(size // 2, n)), (-1, min(size - size // 2, n))):
        # With one class only, the two halves come from the two parities, so that they stay distinct.
        side = jnp.where(one_class, jnp.arange(n) % 2 == (sign > 0), y * sign > 0)
        scores, picked = lax.top_k(jnp.where(side, noise, -jnp.inf), count)
        halves.append((picked, scores > -jnp.inf))
    indices, valid = (jnp.concatenate(part) for part in zip(*halves, strict=True))
    return indices.astype(jnp.int32), valid


def systematic_draw(
    key: Array, p: Float[Array, " n"], size: int, y: Float[Array, " n"] | None = None
) -> Int[Array, " size"]:
    """Draws from p: one is drawn as ever, several systematically, a step of `1 / size` of the mass apart.

    Their mean is p in expectation, with less noise than that of independent draws. With signs y the classes stand one
    after the other: p with half of its mass in each then gives each half of an even number of draws. (Without that the
    classes' difference walks at random, and w with it along whatever all samples share.)

    Args:
        key: A random key.
        p: Not negative, `(n,)`, of any sum; what has none of it is never drawn.
        size: How many.
        y: Signs, `(n,)`; None: one class.
    """
    parts = [p] if y is None else [jnp.where(y > 0, p, 0), jnp.where(y > 0, 0, p)]
    total = jnp.cumsum(jnp.concatenate(parts))
    at = (jnp.arange(size) + jax.random.uniform(key, (), p.dtype)) / size * total[-1]
    index = jnp.minimum(jnp.searchsorted(total, at.astype(p.dtype), side="right"), len(total) - 1) % p.shape[0]
    return jnp.where(p[index] > 0, index, jnp.argmax(p)).astype(jnp.int32)
