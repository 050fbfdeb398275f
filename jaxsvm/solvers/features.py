"""The squared-hinge primal in the space of its features, `w (d,)`: no kernel matrix, O(n d) a product.

With `slack_i = 1 - y_i h(x_i)` and `beta_i = C_i max(0, slack_i)` the gradient is `g = w - X' (y beta)` and, where the
active set `slack > 0` is constant, the Hessian is `I + X_S' C_S X_S`. The constant is one more entry of w, regularised
or not. Of g comes the duality gap for nothing: `P(w) - D(beta) = |g|^2 / 2`.

The Hessian is the most expensive part of a step (n d^2 against n d). Where n is much larger than d, a part of the
samples knows it well enough: the steps take as many tiles of rows as they need to go on shrinking the gap (subsampled
Newton: Byrd, Chin, Neveitt, Nocedal 2011), and gradients always take all; what the part does not know of the Hessian
the steps learn, by the secant pairs of L-BFGS with it as their metric. For large d conjugate gradients need products
only; L-BFGS (Liu and Nocedal 1989) is there to compare.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.gram.low_rank import LowRankGram
from jaxsvm.kernels import Linear
from jaxsvm.numerics.line_search import hinge_minimum
from jaxsvm.points import CSR, dense_rows, product, transposed_product

TILE = 2048
"""Rows of a Hessian tile: 2,048 x 50 in float64 stay in a core's cache."""
START_ROWS = 16
"""A start is solved on every 16th row."""
START_STEPS = 10
HISTORY = 10
"""Pairs that L-BFGS keeps."""
CG_STEPS = 500
SLOPE_LEFT = 1e-2
"""A line search ends where this much of the first derivative is left."""


def feature_matrix(problem: Any) -> Any:
    """`X (n, d)` with `K = X X'`, dense or CSR, where there is one with d < n; else None."""
    gram = problem.gram
    if isinstance(gram, LowRankGram):
        x = gram.Z
    elif isinstance(getattr(gram, "kernel", None), Linear):
        x = gram.x
    else:
        return None
    return x if x.shape[1] < problem.n else None


@dataclasses.dataclass(frozen=True)
class Primal:
    """The primal problem in w.

    Attributes:
        x: The features, `(n, d)`, dense or CSR.
        y: Signs, `(n,)`.
        C: Costs, `(n,)`; 0 for absent samples.
        constant: Whether w has a last entry for the constant.
        free: Whether that entry is unregularised.
    """

    x: Any
    y: Float[Array, " n"]
    C: Float[Array, " n"]
    constant: bool
    free: bool

    @property
    def size(self) -> int:
        """Entries of w."""
        return self.x.shape[1] + self.constant

    @property
    def penalty(self) -> Float[Array, " size"]:
        """Curvature of the regulariser: 1, or 0 for a free constant."""
        ones = jnp.ones((self.size,), self.y.dtype)
        return ones.at[-1].set(0) if self.free else ones

    def product(self, w: Float[Array, " size"]) -> Float[Array, " n"]:
        """`X w`, the constant included."""
        values = product(self.x, w[: self.x.shape[1]])
        return values + w[-1] if self.constant else values

    def transposed(self, v: Float[Array, " n"]) -> Float[Array, " size"]:
        """`X' v`, the constant included."""
        sums = transposed_product(self.x, v)
        return jnp.append(sums, v.sum()) if self.constant else sums

    @property
    def tiles(self) -> int:
        """Tiles of rows."""
        return -(-len(self.y) // min(TILE, len(self.y)))

    def hessian(self, D: Float[Array, " n"], tiles: Any) -> Float[Array, "size size"]:
        """`diag(penalty) + X' D X`, estimated from `tiles` (traced) tiles, which are spread over the rows."""
        constant = jnp.ones((len(self.y), int(self.constant)), D.dtype)
        total = weighted_squares(self.x, constant, D, tiles, _coprime(self.tiles))
        share = jnp.asarray(tiles, D.dtype) / self.tiles
        return total / share + jnp.diag(self.penalty)

    def curve(self, D: Float[Array, " n"], v: Float[Array, " size"]) -> Float[Array, " size"]:
        """The Hessian times v."""
        return self.penalty * v + self.transposed(D * self.product(v))


class Iterate(NamedTuple):
    """A point of the primal, and what was found there.

    Attributes:
        w: The weight vector, the constant last, `(size,)`.
        slack: `1 - y_i h(x_i)`, `(n,)`.
        gradient: Of the primal at w, `(size,)`.
        value: The primal, `()`.
        gap: What the certificate of its dual point would say, about, `()`.
    """

    w: Float[Array, " size"]
    slack: Float[Array, " n"]
    gradient: Float[Array, " size"]
    value: Float[Array, ""]
    gap: Float[Array, ""]


class History(NamedTuple):
    """Of L-BFGS: steps and changes of the gradient, oldest first, `(HISTORY, size)`; zeros where there are none yet."""

    steps: Float[Array, "h size"]
    changes: Float[Array, "h size"]


def iterate_at(primal: Primal, w: Float[Array, " size"], slack: Float[Array, " n"]) -> Iterate:
    """Value and gradient at w, with its slack."""
    beta = primal.C * jnp.maximum(slack, 0)
    gradient = primal.penalty * w - primal.transposed(primal.y * beta)
    value = (w @ (primal.penalty * w) + beta @ jnp.maximum(slack, 0)) / 2
    return Iterate(w, slack, gradient, value, jnp.asarray(jnp.inf, w.dtype))


def move(primal: Primal, here: Iterate, direction: Float[Array, " size"], reach: float) -> Iterate:
    """The lowest point along a direction, up to `reach` times its length; `here` where nothing is lower."""
    change = -primal.y * primal.product(direction)
    regular = primal.penalty * direction
    enough = SLOPE_LEFT * jnp.abs(here.gradient @ direction)
    t = hinge_minimum(here.slack, change, primal.C, here.w @ regular, direction @ regular, (0.0, reach), 1.0, enough)
    there = iterate_at(primal, here.w + t * direction, here.slack + t * change)
    # Where steps end in rounding, the gradient still tells a better point.
    rounding = 8 * jnp.finfo(t.dtype).eps * here.value
    nearer = (there.value <= here.value + rounding) & (there.gradient @ there.gradient < here.gradient @ here.gradient)
    lower = (there.value < here.value) | nearer
    return jax.tree.map(lambda new, old: jnp.where(lower, new, old), there, here)


def newton_move(
    primal: Primal, here: Iterate, tiles: Any, history: History
) -> tuple[Iterate, History, Bool[Array, ""]]:
    """One Newton step with a Hessian of so many tiles and, where those are not all, secant pairs.

    Returns:
        The next point, the pairs, and whether the direction was finite.
    """
    H = primal.hessian(jnp.where(here.slack > 0, primal.C, 0), tiles)
    # Unit diagonal: features of different scales cost no digits.
    diagonal = jnp.diagonal(H)
    scale = 1 / jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1))
    jitter = 4 * primal.size * jnp.finfo(H.dtype).eps
    scaled = H * scale * scale[:, None] + jitter * jnp.eye(primal.size, dtype=H.dtype)
    factor = jax.scipy.linalg.cho_factor(scaled, lower=True)

    def solve(q: Array) -> Array:
        return scale * jax.scipy.linalg.cho_solve(factor, scale * q)

    known = jax.tree.map(lambda pairs: jnp.where(tiles < primal.tiles, pairs, 0), history)
    direction = _two_loop(here.gradient, known, solve)
    finite = jnp.all(jnp.isfinite(direction))
    there = move(primal, here, jnp.where(finite, direction, 0), 4.0)
    there = there._replace(gap=_gap(there, H @ there.gradient))
    return there, _push(known, here, there), finite


def cg_move(primal: Primal, here: Iterate) -> tuple[Iterate, Bool[Array, ""]]:
    """One Newton step by conjugate gradients with a diagonal preconditioner."""
    D = jnp.where(here.slack > 0, primal.C, 0)
    diagonal = primal.penalty + _squares(primal, D)
    inverse = 1 / jnp.where(diagonal > 0, diagonal, 1)
    # Steps are solved the better the nearer they are (Dembo, Eisenstat, Steihaug 1982).
    forcing = jnp.clip(jnp.sqrt(here.gap), 1e-10, 0.1) ** 2
    target = forcing * (here.gradient @ (inverse * here.gradient))

    def step(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        k, v, r, p, rz = carry
        Hp = primal.curve(D, p)
        t = rz / jnp.maximum(p @ Hp, jnp.finfo(rz.dtype).tiny)
        v, r = v + t * p, r - t * Hp
        z = inverse * r
        rz_next = r @ z
        return k + 1, v, r, z + rz_next / jnp.where(rz > 0, rz, 1) * p, rz_next

    r = -here.gradient
    start = (jnp.zeros((), jnp.int32), jnp.zeros_like(r), r, inverse * r, r @ (inverse * r))
    _, v, _, _, _ = lax.while_loop(lambda carry: (carry[0] < CG_STEPS) & (carry[-1] > target), step, start)
    finite = jnp.all(jnp.isfinite(v))
    there = move(primal, here, jnp.where(finite, v, 0), 4.0)
    return there._replace(gap=_gap(there, primal.curve(D, there.gradient))), finite


def lbfgs_move(primal: Primal, here: Iterate, history: History) -> tuple[Iterate, History, Bool[Array, ""]]:
    """One step along the two-loop direction, to the exact minimum along it; and whether that was finite."""
    step, change = history.steps[-1], history.changes[-1]
    product = step @ change
    curvature = jnp.where(product > 0, change @ change / jnp.where(product > 0, product, 1), 1 + primal.C.sum())
    direction = _two_loop(here.gradient, history, lambda q: q / curvature)
    finite = jnp.all(jnp.isfinite(direction))
    there = move(primal, here, jnp.where(finite, direction, 0), 1e4)
    return there._replace(gap=_gap(there, curvature * there.gradient)), _push(history, here, there), finite


def _two_loop(gradient: Float[Array, " size"], history: History, solve: Any) -> Float[Array, " size"]:
    """The L-BFGS direction, with `solve` for the inverse of the metric that it starts from."""
    steps, changes = history
    products = (steps * changes).sum(axis=1)
    rho = jnp.where(products > 0, 1 / jnp.where(products > 0, products, 1), 0)
    q, shares = gradient, []
    for k in reversed(range(HISTORY)):
        shares.append(rho[k] * (steps[k] @ q))
        q = q - shares[-1] * changes[k]
    r = solve(q)
    for k, share in zip(range(HISTORY), reversed(shares), strict=True):
        r = r + (share - rho[k] * (changes[k] @ r)) * steps[k]
    return -r


def _push(history: History, here: Iterate, there: Iterate) -> History:
    """The history with one pair more; empty where the step found nothing lower, to start afresh."""
    pushed = History(
        jnp.concatenate([history.steps[1:], (there.w - here.w)[None]]),
        jnp.concatenate([history.changes[1:], (there.gradient - here.gradient)[None]]),
    )
    moved = jnp.any(there.w != here.w)
    return jax.tree.map(lambda pairs: jnp.where(moved, pairs, 0), pushed)


def no_history(primal: Primal) -> History:
    """No pairs."""
    pairs = jnp.zeros((HISTORY, primal.size), primal.y.dtype)
    return History(pairs, pairs)


def subsample_start(primal: Primal) -> Float[Array, " size"]:
    """The solution on every 16th row, where those are many for so few features; else 0."""
    n = len(primal.y)
    w = jnp.zeros((primal.size,), primal.y.dtype)
    if n < START_ROWS * 16 * primal.size:
        return w
    index = jnp.arange(0, n, START_ROWS, dtype=jnp.int32)
    C = primal.C[index]
    scale = primal.C.sum() / jnp.where(C.sum() > 0, C.sum(), 1)
    part = Primal(dense_rows(primal.x, index), primal.y[index], scale * C, primal.constant, primal.free)

    def step(carry: tuple[Array, Iterate, Array]) -> tuple[Array, Iterate, Array]:
        k, here, _ = carry
        there, _, _ = newton_move(part, here, part.tiles, no_history(part))
        return k + 1, there, here.value - there.value <= 1e-3 * there.value

    first = iterate_at(part, w, jnp.where(part.C > 0, 1.0, 0.0).astype(w.dtype))
    start = (jnp.zeros((), jnp.int32), first, jnp.asarray(False))
    return lax.while_loop(lambda carry: ~carry[2] & (carry[0] < START_STEPS), step, start)[1].w


def weighted_squares(
    x: Any, more: Float[Array, "n p"], weight: Float[Array, " n"], tiles: Any, stride: int = 1
) -> Float[Array, "dp dp"]:
    """`H' diag(weight) H` for `H = (X, more)`, of `tiles` (traced) tiles of rows, `stride` apart in a circle."""
    n, tile = weight.shape[0], min(TILE, weight.shape[0])

    def add(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        turn, total = carry
        k = (turn * stride) % -(-n // tile)
        start = jnp.minimum(k * tile, n - tile)
        index = start + jnp.arange(tile, dtype=jnp.int32)
        rows = x.rows(index) if isinstance(x, CSR) else lax.dynamic_slice_in_dim(x, start, tile)
        rows = jnp.concatenate([rows.astype(weight.dtype), lax.dynamic_slice_in_dim(more, start, tile)], axis=1)
        # The last tile overlaps its neighbour: a row counts once.
        here = jnp.where(index >= k * tile, lax.dynamic_slice_in_dim(weight, start, tile), 0)
        return turn + 1, total + jnp.matmul((rows * here[:, None]).T, rows, precision=lax.Precision.HIGHEST)

    size = x.shape[1] + more.shape[1]
    start = (jnp.zeros((), jnp.int32), jnp.zeros((size, size), weight.dtype))
    return lax.while_loop(lambda carry: carry[0] < tiles, add, start)[1]


def _gap(there: Iterate, curved: Float[Array, " size"]) -> Float[Array, ""]:
    """The relative gap between `P(w - g)` and the dual value of its beta, to second order: `g' H g / 2 P`."""
    return there.gradient @ curved / (2 * jnp.maximum(there.value, jnp.finfo(curved.dtype).tiny))


def _squares(primal: Primal, D: Float[Array, " n"]) -> Float[Array, " size"]:
    """The diagonal of `X' D X`."""
    x = primal.x
    squared = dataclasses.replace(x, data=x.data**2) if isinstance(x, CSR) else x**2
    return dataclasses.replace(primal, x=squared).transposed(D)


def _coprime(count: int) -> int:
    """A step through `count` tiles that visits each once, and the first few far from each other."""
    from math import gcd

    step = max(1, round(0.618 * count))
    while gcd(step, count) != 1:
        step += 1
    return step
