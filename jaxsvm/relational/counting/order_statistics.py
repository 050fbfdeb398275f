"""The two computations that sketches are made of, on NumPy arrays: order statistics of sums, and counts of sums.

Each has two forms that agree: NumPy's, which sorts seven times as fast as XLA on a CPU and compiles nothing, and a
jitted one for accelerators. A compiled program has one shape, so its arguments are filled up to classes of sizes
(`padded`): a tree of eleven tables needs a handful of programs, not one of its own.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SLAB = 1 << 22
"""Sums of one row that are sorted at once, some 50 bytes each; of more, those between two cuts at a time."""
KEYS = 32
"""Keys whose sketches are searched as one array: an offset keeps them apart, at the price of log2 of it in digits."""


def sums_at_ranks(
    s: np.ndarray, w: np.ndarray, A: np.ndarray, a: np.ndarray, look: np.ndarray, rank: np.ndarray
) -> np.ndarray:
    """The least sums whose running weights reach some ranks.

    Args:
        s: Scores, `(R, M)`; +inf with the weight 0 for none.
        w: Weights, `(R, M)`.
        A: Sketches: ascending scores, `(G, K)`, +inf with the weight 0 for none.
        a: Their weights, `(G, K)`.
        look: Which sketch each score is added to, `(R, M)`.
        rank: `(R, k)`, ascending, at most the sum of weights.

    Returns:
        `(R, k)`: of the sums `s + A[look]`, with weights `w a[look]`.
    """
    R, points = len(s), s.shape[1] * A.shape[1]
    if points > SLAB:
        return np.stack([_by_slabs(s[r], w[r], A, a, look[r], rank[r]) for r in range(R)])
    value = (s[:, :, None] + A[look]).reshape(R, points)
    weight = (w[:, :, None] * a[look]).reshape(R, points)
    order = np.argsort(value, axis=1)
    order += points * np.arange(R)[:, None]
    running = np.cumsum(weight.ravel()[order], axis=1)
    place = np.minimum(_below(running, rank), points - 1)
    return value.ravel()[np.take_along_axis(order, place, axis=1)]


def _by_slabs(
    s: np.ndarray, w: np.ndarray, A: np.ndarray, a: np.ndarray, look: np.ndarray, rank: np.ndarray
) -> np.ndarray:
    """`sums_at_ranks` of one row whose sums are too many to hold: those between two cuts at a time, in ascending order.

    The sketches are sorted, so what lies between two cuts is a run of each; cuts are quantiles of some of the sums.
    """
    K, rng = A.shape[1], np.random.default_rng(0)
    live = np.flatnonzero(w > 0)
    drawn = rng.choice(live, 4096)
    some = s[drawn] + A[look[drawn], rng.integers(0, K, len(drawn))]
    share = SLAB / 2 / (len(s) * K)
    cuts = np.quantile(some[np.isfinite(some)], np.arange(share, 1, share))
    out, found, passed = np.full(len(rank), np.inf), 0, 0.0
    begin = np.zeros(len(live), np.int64)
    s, w, look = s[live], w[live], look[live]
    for cut in np.append(cuts, np.inf):
        low, high = begin.copy(), np.full_like(begin, K)
        for _ in range(K.bit_length()):
            middle = (low + high) // 2
            inside = (A[look, np.minimum(middle, K - 1)] <= cut - s) & (low < high)
            low, high = np.where(inside, middle + 1, low), np.where(inside, high, np.minimum(middle, high))
        many = low - begin
        which = np.repeat(np.arange(len(s)), many)
        column = np.arange(len(which)) - np.repeat(np.cumsum(many) - many - begin, many)
        begin = low
        if not len(which):
            continue
        value = s[which] + A[look[which], column]
        order = np.argsort(value)
        running = passed + np.cumsum((w[which] * a[look[which], column])[order])
        here = int(np.searchsorted(rank, running[-1], side="right"))
        place = np.searchsorted(running, rank[found:here])
        out[found:here] = value[order[np.minimum(place, len(order) - 1)]]
        found, passed = max(found, here), running[-1]
    out[found:] = out[found - 1] if found else np.inf  # ranks that rounding left beyond the last
    return out


def _below(running: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """How many entries of each ascending row are less than each of its ranks: bisection, all at once."""
    n = running.shape[1]
    low, first = np.zeros(rank.shape, np.int64), n * np.arange(len(running))[:, None]
    high, flat = np.full_like(low, n), running.ravel()
    for _ in range(n.bit_length()):
        middle = (low + high) // 2
        less = flat[np.minimum(middle, n - 1) + first] < rank
        less &= low < high
        low, high = np.where(less, middle + 1, low), np.where(less, high, middle)
    return low


def far_sums(
    t: np.ndarray, A: np.ndarray, a: np.ndarray, rest: np.ndarray, B: np.ndarray, b: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mass of sums `A[rest] + B[last]` that are at most t, and over them the sums of `t - sum` and its square.

    Args:
        t: Thresholds, finite, `(R,)`.
        A: Sketches `(G, K)`, ascending; +inf with the weight 0 for none.
        a: Their weights.
        rest: Which sketch each threshold has, `(R,)`.
        B: More sketches, `(H, L)`.
        b: Their weights.
        last: Which of those it has, `(R,)`, ascending, within `KEYS` of each other.

    Returns:
        `(R,)` each.
    """
    first, many = int(last[0]), int(last[-1] - last[0]) + 1
    B, b, key = B[first : first + many], b[first : first + many], (last - first)[:, None]
    live = b > 0
    if not live.any():
        return np.zeros(len(t)), np.zeros(len(t)), np.zeros(len(t))
    low, high = float(B[live].min()), float(B[live].max())
    left = t[:, None] - np.where(a > 0, A, 0)[rest]
    apart = (high - low + 4) * np.arange(many)[:, None]
    known = (np.where(live, B, high + 1) + apart).ravel()  # ascending: a sketch lies within low - 1 and high + 1
    place = np.searchsorted(known, np.clip(left, low - 1, high + 0.5) + apart[key[:, 0]], side="right")
    place += key  # a sum over no entry comes first in each row
    none, share = np.zeros((many, 1)), a[rest]
    # Moments about the least score of B: sums of squares of what is small keep their digits.
    finite, left = np.where(live, B - low, 0), left - low
    sums = [np.concatenate([none, np.cumsum(b * finite**k, axis=1)], axis=1).ravel()[place] for k in range(3)]
    room = left * sums[0] - sums[1]
    squares = left * (room - sums[1]) + sums[2]
    return tuple(np.einsum("rk,rk->r", share, part) for part in (sums[0], room, squares))  # pyright: ignore


# --- the same, compiled
# ------------------------------------------------------------------------------------------------


def sums_at_ranks_compiled(
    s: np.ndarray, w: np.ndarray, A: np.ndarray, a: np.ndarray, look: np.ndarray, rank: np.ndarray
) -> np.ndarray:
    """`sums_at_ranks` in a program for its class of sizes."""
    R, k = rank.shape
    s, look = padded(s, np.inf), padded(look, 0)
    with jax.enable_x64(True):  # counts need float64, whatever the caller's flag says
        out = _sums_at_ranks(s, padded(w, 0), padded(A, np.inf), padded(a, 0), look, padded(rank, 0))
    return np.asarray(out)[:R, :k]


def far_sums_compiled(
    t: np.ndarray, A: np.ndarray, a: np.ndarray, rest: np.ndarray, B: np.ndarray, b: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`far_sums` in a program for its class of sizes; `last` may be in any order."""
    ends = (padded(np.where(c > 0, C, np.inf), np.inf) for C, c in ((A, a), (B, b)))
    A, B = ends
    with jax.enable_x64(True):
        found = _far_sums(padded(t, 0), A, padded(a, 0), padded(rest, 0), B, padded(b, 0), padded(last, 0))
    far, room, squares = (np.asarray(part)[: len(t)] for part in found)
    return far, room, squares


def padded(values: np.ndarray, fill: float) -> np.ndarray:
    """Filled up to a power of two along each axis, or to three halves of one."""
    sizes = []
    for n in values.shape:
        whole = 1 << max(n - 1, 0).bit_length()
        sizes.append(whole * 3 // 4 if whole >= 4 and n <= whole * 3 // 4 else whole)
    out = np.full(sizes, fill, values.dtype)
    out[tuple(slice(n) for n in values.shape)] = values
    return out


@jax.jit
def _sums_at_ranks(s: Any, w: Any, A: Any, a: Any, look: Any, rank: Any) -> Any:
    value = (s[:, :, None] + A[look]).reshape(len(s), -1)
    weight = (w[:, :, None] * a[look]).reshape(len(s), -1)
    value, weight = jax.lax.sort((value, weight), num_keys=1, is_stable=False)
    place = jax.vmap(partial(jnp.searchsorted, side="left"))(jnp.cumsum(weight, axis=1), rank)
    return jnp.take_along_axis(value, jnp.minimum(place, value.shape[1] - 1), axis=1)


@jax.jit
def _far_sums(t: Any, A: Any, a: Any, rest: Any, B: Any, b: Any, last: Any) -> tuple[Any, Any, Any]:
    none = jnp.zeros((len(B), 1))
    finite = jnp.where(b > 0, B, 0)
    sums = [jnp.concatenate([none, jnp.cumsum(b * finite**k, axis=1)], axis=1) for k in range(3)]
    near, share = A[rest], a[rest]
    left = jnp.where(share > 0, t[:, None] - near, 0)
    low, high = jnp.zeros(left.shape, jnp.int32), jnp.full(left.shape, B.shape[1], jnp.int32)

    def halve(_: Any, ends: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = ends
        middle = (low + high) // 2
        inside = B[last[:, None], jnp.minimum(middle, B.shape[1] - 1)] <= left
        going = low < high
        return jnp.where(going & inside, middle + 1, low), jnp.where(going & ~inside, middle, high)

    k = jax.lax.fori_loop(0, B.shape[1].bit_length() + 1, halve, (low, high))[0]
    far, first, second = (part[last[:, None], k] for part in sums)
    room = left * far - first
    squares = left * (room - first) + second
    return (share * far).sum(axis=1), (share * room).sum(axis=1), (share * squares).sum(axis=1)
