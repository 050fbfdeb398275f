"""Compute order statistics of sums, and counts of sums, on NumPy arrays, for sketches.

Each function has two forms that agree. NumPy's sorts seven times as fast as XLA on a CPU and compiles nothing; the
jitted one is for accelerators. A compiled program has one shape, so its arguments are padded to classes of sizes
(`padded`): a tree of eleven tables needs a handful of programs.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsvm.relational.measured import MEASURED

Arrays3 = tuple[np.ndarray, np.ndarray, np.ndarray]


def sums_at_ranks(
    s: np.ndarray, w: np.ndarray, A: np.ndarray, a: np.ndarray, sketch: np.ndarray, rank: np.ndarray
) -> np.ndarray:
    """Return the least sums `s + A[sketch]`, with weights `w a[sketch]`, whose running weights reach ranks, `(R, k)`.

    Scores s, weights w and the row of A that each score is added to are `(R, M)`. Sketches A, ascending, and their
    weights a are `(G, K)`. A score +inf with weight 0 is padding. `rank`, `(R, k)`, is ascending, at most the sum of
    weights.
    """
    R, points = len(s), s.shape[1] * A.shape[1]
    if points > MEASURED.sums_per_row_sort:
        return np.stack([_between_cuts(s[r], w[r], A, a, sketch[r], rank[r]) for r in range(R)])
    value = (s[:, :, None] + A[sketch]).reshape(R, points)
    weight = (w[:, :, None] * a[sketch]).reshape(R, points)
    rows = np.arange(R)[:, None]
    order = np.argsort(value, axis=1) + points * rows
    running = np.cumsum(weight.ravel()[order], axis=1)
    below = np.searchsorted(keyed(rows, running).ravel(), keyed(rows, rank)) - points * rows
    place = np.minimum(below, points - 1)
    return value.ravel()[np.take_along_axis(order, place, axis=1)]


def _between_cuts(
    s: np.ndarray, w: np.ndarray, A: np.ndarray, a: np.ndarray, sketch: np.ndarray, rank: np.ndarray
) -> np.ndarray:
    """Compute `sums_at_ranks` of one row with too many sums for the memory: those between two cuts at a time.

    The sketches are sorted, so the sums between two cuts are a run of each. Cuts are quantiles of a sample of the sums.
    """
    K, rng = A.shape[1], np.random.default_rng(0)
    live = np.flatnonzero(w > 0)
    drawn = rng.choice(live, 4096)
    some = s[drawn] + A[sketch[drawn], rng.integers(0, K, len(drawn))]
    share = MEASURED.sums_per_row_sort / 2 / (len(s) * K)
    cuts = np.quantile(some[np.isfinite(some)], np.arange(share, 1, share))
    out, done, passed = np.full(len(rank), np.inf), 0, 0.0
    s, w, sketch = s[live], w[live], sketch[live]
    known, begin = keyed(np.arange(len(A))[:, None], A).ravel(), K * sketch
    for cut in np.append(cuts, np.inf):
        end = np.searchsorted(known, keyed(sketch, cut - s), side="right")
        many = end - begin
        which = np.repeat(np.arange(len(s)), many)
        place = np.arange(len(which)) - np.repeat(np.cumsum(many) - many - begin, many)
        begin = end
        if not len(which):
            continue
        value = s[which] + A.ravel()[place]
        order = np.argsort(value)
        running = passed + np.cumsum((w[which] * a.ravel()[place])[order])
        reached = int(np.searchsorted(rank, running[-1], side="right"))
        place = np.searchsorted(running, rank[done:reached])
        out[done:reached] = value[order[np.minimum(place, len(order) - 1)]]
        done, passed = max(done, reached), running[-1]
    out[done:] = out[done - 1] if done else np.inf  # ranks that rounding left beyond the last sum
    return out


def keyed(key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return complex numbers, which order by key and then by value."""
    out = np.empty(np.broadcast(key, value).shape, complex)
    out.real, out.imag = key, value
    return out


def far_sums(
    t: np.ndarray, A: np.ndarray, a: np.ndarray, rest: np.ndarray, B: np.ndarray, b: np.ndarray, last: np.ndarray
) -> Arrays3:
    """Return for each t the weight of the sums `A[rest] + B[last] <= t`, and their totals of `t - sum` and its square.

    Thresholds t, `(R,)`, are finite. Sketches A, `(G, K)`, and B, `(H, L)`, are ascending, with weights a and b; +inf
    with weight 0 is padding. `rest` and `last`, `(R,)`, are the rows of A and B of each threshold; `last` is ascending,
    within `MEASURED.keys_per_search`.
    """
    first, many = int(last[0]), int(last[-1] - last[0]) + 1
    B, b, key = B[first : first + many], b[first : first + many], (last - first)[:, None]
    live = b > 0
    if not live.any():
        return np.zeros(len(t)), np.zeros(len(t)), np.zeros(len(t))
    low, high = float(B[live].min()), float(B[live].max())
    left = t[:, None] - np.where(a > 0, A, 0)[rest]
    # An offset keeps the sketches apart in one ascending array; each lies within low - 1 and high + 1.
    apart = (high - low + 4) * np.arange(many)[:, None]
    known = (np.where(live, B, high + 1) + apart).ravel()
    place = np.searchsorted(known, np.clip(left, low - 1, high + 0.5) + apart[key[:, 0]], side="right")
    place += key  # each row begins with a sum over no entry
    none, share = np.zeros((many, 1)), a[rest]
    # Moments about the least score of B: sums of squares of small numbers keep their digits.
    finite, left = np.where(live, B - low, 0), left - low
    sums = [np.concatenate([none, np.cumsum(b * finite**k, axis=1)], axis=1).ravel()[place] for k in range(3)]
    room = left * sums[0] - sums[1]
    squares = left * (room - sums[1]) + sums[2]
    return tuple(np.einsum("rk,rk->r", share, part) for part in (sums[0], room, squares))  # pyright: ignore


def sums_at_ranks_compiled(
    s: np.ndarray, w: np.ndarray, A: np.ndarray, a: np.ndarray, sketch: np.ndarray, rank: np.ndarray
) -> np.ndarray:
    """Compute `sums_at_ranks` by the program of its class of sizes."""
    R, k = rank.shape
    s, sketch = padded(s, np.inf), padded(sketch, 0)
    with jax.enable_x64(True):  # counts need float64, whatever the caller's flag is
        out = _sums_at_ranks(s, padded(w, 0), padded(A, np.inf), padded(a, 0), sketch, padded(rank, 0))
    return np.asarray(out)[:R, :k]


def far_sums_compiled(
    t: np.ndarray, A: np.ndarray, a: np.ndarray, rest: np.ndarray, B: np.ndarray, b: np.ndarray, last: np.ndarray
) -> Arrays3:
    """Compute `far_sums` by the program of its class of sizes; `last` may be in any order."""
    A, B = (padded(np.where(c > 0, C, np.inf), np.inf) for C, c in ((A, a), (B, b)))
    with jax.enable_x64(True):
        parts = _far_sums(padded(t, 0), A, padded(a, 0), padded(rest, 0), B, padded(b, 0), padded(last, 0))
    far, room, squares = (np.asarray(part)[: len(t)] for part in parts)
    return far, room, squares


def padded(values: np.ndarray, fill: float) -> np.ndarray:
    """Pad each axis to a power of two, or to three quarters of one."""
    sizes = []
    for n in values.shape:
        power = 1 << max(n - 1, 0).bit_length()
        sizes.append(power * 3 // 4 if power >= 4 and n <= power * 3 // 4 else power)
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
