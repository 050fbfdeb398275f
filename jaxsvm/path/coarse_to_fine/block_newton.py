"""Newton for many squared-hinge problems of one Gram operator at once: each product `K @ V` serves all of them.

A lane is one problem: a value of C, a fold (by its weights) or a class (by its signs). In primal scale, with
coefficients `c`, margins `f = B c`, `B_ij = y_i y_j (K_ij + offset)`, a lane minimises

    P(c) = 1/2 c' B c + 1/2 sum_i C_i max(0, 1 - f_i)^2.

Semismooth Newton (Mangasarian 2002; Chapelle 2007): on the support `S = {f < 1}` solve `(B_SS + diag(1/C_S)) x_S = 1`,
and step toward x by an exact line search on the piecewise quadratic P, which needs no product. Conjugate gradients
solve the system for all lanes in lockstep; the preconditioner is `Z Z' + diag(1 / C_i + rest_i)` on the support, with
Nystroem features Z and `rest = diag(K - Z Z')`: that diagonal is what keeps float32 going at C > 10, since the tail
of a kernel's spectrum lies about it and not at 0 (16 iterations where `Z Z' + 1 / C` alone stalls).

A round costs one product for samples that leave the support, one for each iteration of conjugate gradients, and one
that certifies the dual point `max(c, 0)` from scratch.

It is fast if C times the kernel's diagonal is about 1 or less: a round then gains four decades. For larger C the
support is nearly degenerate, full steps leave it again, and pair steps are faster.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.gram.contract import Gram
from jaxsvm.gram.signed import SignedGram
from jaxsvm.numerics.line_search import hinge_minimum
from jaxsvm.numerics.linear import nystroem
from jaxsvm.numerics.linear.elimination import Factor, factored
from jaxsvm.numerics.masks import some
from jaxsvm.numerics.products import diagonal, matmul
from jaxsvm.results.fit import counted_by_name
from jaxsvm.runtime.loops import cond, while_loop


@counted_by_name
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockNewton:
    """Configuration of the block method.

    Attributes:
        tol: The certified relative gap at which a lane ends, > 0.
        max_rounds: Newton rounds of a lane before pair steps take over, >= 1.
        max_products: Conjugate gradient iterations a round, >= 1.
        forcing: Factor in (0, 1) by which the residual's energy falls in a round's conjugate gradients, unless `tol`
            needs less.
        rank: Features of the preconditioner, >= 1; static.
        lanes: Problems side by side, >= 1; static.
    """

    bit = 14
    inside = None
    tol: Any = 1e-4
    max_rounds: Any = 10
    max_products: Any = 40
    forcing: Any = 1e-3
    rank: int = dataclasses.field(default=128, metadata={"static": True})
    lanes: int = dataclasses.field(default=16, metadata={"static": True})

    @property
    def inner_tol(self) -> Any:
        """Return the gap asked of lanes, combinations and working sets: below `tol`, since rounding adds to it."""
        return 0.95 * self.tol


class Preconditioner(NamedTuple):
    """`K + offset ~ Z Z' + diag(rest)`.

    Attributes:
        Z: Features and the constant, `(n, r + 1)`.
        rest: The rest of the diagonal, `(n,)`.
    """

    Z: Float[Array, "n r"]
    rest: Float[Array, " n"]


def preconditioner(gram: Gram, offset: float, rank: int, key: Array) -> Preconditioner:
    """Return Nystroem features from `2 rank` random landmarks, or the features of a low-rank Gram operator."""
    n = gram.n
    if gram.rank is not None and gram.rank <= 2 * rank:
        Z, rest = gram.design, jnp.zeros((n,), gram.design.dtype)
    else:
        landmarks = jax.random.permutation(key, n)[: min(2 * rank, n)].astype(jnp.int32)
        rows = gram.rows(landmarks)
        inner = rows[:, landmarks]
        chosen = nystroem.pivots(lambda i: inner[i], diagonal(inner), min(rank, len(landmarks)))
        Z = nystroem.features(rows[chosen], landmarks[chosen])
        rest = nystroem.unexplained(gram.diag(), Z)
    return Preconditioner(jnp.concatenate([Z, jnp.full((n, 1), offset, Z.dtype)], axis=1), rest)


def newton_round(
    gram: Gram, offset: float, P: Preconditioner, y: Array, ridge: Array, c: Array, f: Array, solver: BlockNewton
) -> tuple[Array, Array, Int[Array, ""]]:
    """Move each lane toward its Newton point, by conjugate gradients and an exact line search.

    Args:
        gram: The Gram operator.
        offset: 1.0 with a regularised bias, 0.0 without.
        P: Its preconditioner.
        y: Signs, `(n, L)`, or `(n, 1)` if all lanes share them.
        ridge: `1 / C_i`, `(n, L)`; 0 for an absent sample.
        c: Coefficients in primal scale, `(n, L)`.
        f: Their margins, `(n, L)`.
        solver: The configuration.

    Returns:
        Coefficients and margins after the step, and the number of products.
    """
    present = ridge > 0
    support = present & (f < 1)
    dropped = jnp.where(support, 0, -c)
    nothing = jnp.zeros_like(c)
    df = cond(some(dropped != 0), lambda: SignedGram(gram, y, offset).matvec(dropped), lambda: nothing)
    target, f_target, products = _conjugate_gradients(gram, offset, P, y, ridge, support, c + dropped, f + df, solver)
    dc, df = target - c, f_target - f
    C = jnp.where(present, 1 / jnp.where(present, ridge, 1), 0)
    room = jnp.where(present, jnp.maximum(1 - f, 0), 0)
    primal = (c * f + C * room * room).sum(axis=0) / 2
    slope = ((c - C * room) * df).sum(axis=0)
    # At most four times the way to the Newton point.
    search = jax.vmap(partial(hinge_minimum, bracket=(0.0, 4.0), start=1.0), in_axes=(1, 1, 1, 0, 0))
    t = jnp.where(slope < 0, search(1 - f, -df, C, (c * df).sum(axis=0), (dc * df).sum(axis=0)), 0)
    # A slope below 1,000 roundings of P says nothing: only the support is left to settle, by whole steps.
    t = jnp.where(jnp.abs(slope) < 1e3 * jnp.finfo(f.dtype).eps * primal, 1, t)
    t = jnp.where(jnp.isfinite(t) & jnp.all(jnp.isfinite(f_target), axis=0), t, 0)
    moves = t > 0
    return jnp.where(moves, c + t * dc, c), jnp.where(moves, f + t * df, f), products + 1


def _conjugate_gradients(
    gram: Gram,
    offset: float,
    P: Preconditioner,
    y: Array,
    ridge: Array,
    support: Array,
    x: Array,
    f: Array,
    solver: BlockNewton,
) -> tuple[Array, Array, Array]:
    """Solve `(B_SS + diag(ridge)) x_S = 1` by conjugate gradients from x and its margins f; return both."""
    precondition = _factored(P, y, jnp.where(support, 1 / (ridge + P.rest[:, None] + (~support)), 0))
    r = jnp.where(support, 1 - f - ridge * x, 0)
    z = precondition(r)
    energy = (r * z).sum(axis=0)
    # The relative gap can still fall by the energy r' A^-1 r, in units of sum x.
    enough = jnp.maximum(0.05 * solver.tol * jnp.abs(x.sum(axis=0)), solver.forcing * energy)

    def unfinished(carry: tuple[Array, ...]) -> Array:
        k, energy = carry[0], carry[-1]
        return (k < solver.max_products) & some(energy > enough)

    def iterate(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        k, x, f, r, p, energy = carry
        Bp = SignedGram(gram, y, offset).matvec(p)
        Ap = jnp.where(support, Bp + ridge * p, 0)
        curvature = (p * Ap).sum(axis=0)
        usable = (curvature > 0) & (energy > 0.01 * enough)
        step = jnp.where(usable, energy / jnp.where(usable, curvature, 1), 0)
        r = r - step * Ap
        z = precondition(r)
        next_energy = jnp.where(usable, jnp.maximum((r * z).sum(axis=0), 0), energy)
        x, f = x + step * p, f + step * Bp
        p = z + jnp.where(usable, next_energy / jnp.where(usable, energy, 1), 0) * p
        return k + 1, x, f, r, p, next_energy

    start = (jnp.zeros((), jnp.int32), x, f, r, z, energy)
    k, x, f, *_ = while_loop(unfinished, iterate, start)
    return x, f, k


def _factored(P: Preconditioner, y: Array, weight: Array) -> Any:
    """Return `r -> (Y Z Z' Y + diag(1 / weight))^-1 r` of each lane, on positive weights, by Woodbury."""
    Z = P.Z

    # One after another: on a CPU these sizes take a third of the time of a batch.
    factors = lax.map(lambda w: factored(matmul(Z.T, w[:, None] * Z) + jnp.eye(Z.shape[1], dtype=Z.dtype)), weight.T)

    def apply(r: Array) -> Array:
        u = weight * r
        inner = matmul(Z.T, y * u)
        solved = jax.vmap(Factor.solve)(factors, inner.T).T
        return u - weight * y * matmul(Z, solved)

    return apply
