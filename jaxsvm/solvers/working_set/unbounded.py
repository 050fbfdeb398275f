"""Working-set steps without upper bounds (the squared hinge): blocks also scale the weights of each class.

Nearly all samples inside the margin have a positive weight, and blocks of them alone push the constant back and forth
(hundreds of sets at n = 10,000). So a block has two more variables: a factor for each class, by which the weights
outside the set are multiplied. Their rows are the classes' parts of the product, which are carried. These nearly cancel
(at C = 100 they are 1e5, their sum is about 1), so they are carried in twice the precision: in float32, sets at large C
did not end.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.numerics.precision import bits_of, double, in_double, of_bits, rounded, widened
from jaxsvm.numerics.products import matmul, weighted_rows
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.working_set.block import Steps
from jaxsvm.solvers.working_set.members import RowCache, is_negative_along

SIGNS = (1, -1)


def begun(problem: SquaredHingeProblem, beta: Array) -> dict[str, Any]:
    """Compute the classes' parts of the product of weights, and their sum with the ridge."""

    def compute(problem: SquaredHingeProblem, beta: Array) -> dict[str, Array]:
        wide = widened(problem)
        return _sums(wide, beta, _products(wide, beta.astype(wide.dtype), None))

    return in_double(compute)(problem, beta)


def pair_of_classes(problem: SquaredHingeProblem) -> dict[str, Any]:
    """Start with equal weights on a sample of each class, in the scale that maximizes the dual objective.

    The products cost two kernel rows, and compile in a fraction of the time of any other start.
    """

    def compute(problem: SquaredHingeProblem, rows: Array, pair: Array, exists: Array) -> dict[str, Array]:
        wide = widened(problem)
        signs = jnp.where(exists, jnp.asarray(SIGNS, wide.dtype), 0)
        products = jnp.outer(signs, wide.y) * (rows.astype(wide.dtype) + wide.offset)
        curvature = (
            jnp.where(exists[None, :], products[:, pair], 0).sum() + jnp.where(exists, wide.ridge[pair], 0).sum()
        )
        total = exists.sum(dtype=wide.dtype)
        scale = jnp.where(curvature > 0, total / jnp.where(curvature > 0, curvature, 1), 1)
        weight = rounded(scale, problem.dtype)
        beta = jnp.zeros_like(wide.y).at[pair].set(jnp.where(exists, weight, 0))
        return _sums(wide, beta.astype(problem.dtype), weight * products)

    pairs = [lax.top_k((problem.present & (problem.y == sign)).astype(jnp.float32), 1) for sign in SIGNS]
    exists = jnp.concatenate([value for value, _ in pairs]) > 0
    pair = jnp.concatenate([place for _, place in pairs]).astype(jnp.int32)
    return in_double(compute)(problem, problem.gram.rows(pair), pair, exists)


def scaled(alpha: Array, s: Array) -> Array:
    """Return weights in the scale that maximizes the dual objective `1'b - 1/2 b'Kt b`, from their products `s`."""
    curvature = alpha @ s
    return alpha * jnp.where(curvature > 0, alpha.sum() / jnp.where(curvature > 0, curvature, 1), 1)


def moved(
    problem: SquaredHingeProblem, state: Any, K: Array, rows: Array, slots: Array, members: Array, solve: Steps
) -> tuple[dict[str, Any], Array, Array]:
    """Solve for set and scales, with the members' kernel rows `rows[slots]` and the kernel values K between members.

    Returns:
        Changed fields of the state, the number of steps, and whether a curvature was negative.
    """
    H, gradient, low, high, units = in_double(_block)(problem, state.a, state.exact, K, members)
    violation = jnp.where((low < 0) | (gradient > 0), jnp.abs(gradient), 0).max()
    limit = MEASURED.steps_per_member * len(low)
    move, _, steps = solve(H, low, high, jnp.zeros_like(low), gradient, MEASURED.gradient_left * violation, limit)
    placed = in_double(_with_moves)(problem, state.a, state.exact, move, low, units, (rows, slots, members))
    return placed, steps, is_negative_along(H, move)


def _block(problem: SquaredHingeProblem, a: Array, exact: Array, K: Array, members: Array) -> tuple[Array, ...]:
    """Form the problem of the moves of set and scales: its matrix, gradient and bounds, and the scales' units.

    Everything is computed in twice the precision, and the block solves for differences. A scale is measured in units in
    which its own curvature is 1.
    """
    wide, parts = widened(problem), of_bits(exact)
    place, valid, beta, y = jnp.minimum(members, problem.n - 1), members < problem.n, a.astype(parts.dtype), wide.y
    old, ridge, y_set = jnp.where(valid, beta[place], 0), wide.ridge[place], y[place]
    B = jnp.outer(y_set, y_set) * (K.astype(parts.dtype) + wide.offset)
    rest = beta.at[members].set(0, mode="drop")
    inside = [jnp.where(y_set == sign, old, 0) for sign in SIGNS]
    outside = [jnp.where(y == sign, rest, 0) for sign in SIGNS]
    g = [parts[k][place] - matmul(B, inside[k]) for k in range(2)]

    def between(a: int, b: int) -> Array:
        """Return `rest_a' B rest_b`, without rows of the rest."""
        return outside[a] @ parts[b] - inside[b] @ g[a]

    across = (between(0, 1) + between(1, 0)) / 2
    own = jnp.stack([between(k, k) + wide.ridge @ outside[k] ** 2 for k in range(2)])
    # Stored weights are rounded, each by itself, so no move may rely on a smaller curvature (16 roundings).
    eps = jnp.finfo(a.dtype).eps
    doubt = jnp.stack([jnp.linalg.norm(outside[k] * parts[k]) for k in range(2)])
    totals = jnp.stack([outside[k].sum() for k in range(2)])
    pull = jnp.concatenate([
        wide.targets[place] - parts.sum(axis=0)[place] - ridge * old,
        totals - jnp.stack([outside[k] @ parts.sum(axis=0) + wide.ridge @ outside[k] ** 2 for k in range(2)]),
    ])  # fmt: skip
    units = jnp.sqrt(jnp.maximum(own, 0) + 16 * eps * doubt)
    exists = jnp.concatenate([valid, (totals > 0) & (units > 0)])
    units = jnp.where(exists[-2:], units, 1)
    sides = jnp.stack(g, axis=1) / units[None, :]
    corner = jnp.stack([jnp.stack([units[0] ** 2, across]), jnp.stack([across, units[1] ** 2])])
    H = jnp.block([[B + jnp.diag(ridge), sides], [sides.T, corner / units[:, None] / units[None, :]]])
    H = jnp.where(exists[:, None] & exists[None, :], H, jnp.eye(len(exists), dtype=H.dtype))
    pull = jnp.where(exists, pull / jnp.concatenate([jnp.ones_like(old), units]), 0)
    low = jnp.where(exists, -jnp.concatenate([old, units]), 0)
    high = jnp.where(exists, jnp.inf, 0)
    return tuple(value.astype(a.dtype) for value in (H, pull, low, high, units))


def _with_moves(
    problem: SquaredHingeProblem, a: Array, exact: Array, move: Array, low: Array, units: Array, fetched: Any
) -> dict[str, Array]:
    """Return the sums after the moves of the block; weights that reach their bound are 0."""
    (rows, slots, members), wide, parts = fetched, widened(problem), of_bits(exact)
    place, valid = jnp.minimum(members, problem.n - 1), members < problem.n
    y_set = wide.y[place]
    old = jnp.where(valid, a[place], 0)
    new = jnp.where(move == low, 0, jnp.concatenate([old, units]) + move)
    factors = jnp.where(move[-2:] == low[-2:], 0, 1 + move[-2:].astype(parts.dtype) / units.astype(parts.dtype))
    new = jnp.maximum(new[:-2], 0)
    rest = a.at[members].set(0, mode="drop").astype(parts.dtype)
    after = (rest * jnp.where(wide.y > 0, factors[0], factors[1])).astype(a.dtype).at[members].set(new, mode="drop")
    from_class = jnp.where(y_set > 0, factors[0], factors[1])
    change = jnp.where(valid, new.astype(parts.dtype) - from_class * old.astype(parts.dtype), 0)
    of_class = jnp.stack([jnp.where(y_set == sign, change, 0) for sign in SIGNS])
    moved = lax.map(lambda v: _signed_rows(wide, v, rows, slots, place), of_class)
    return _sums(wide, after, factors[:, None] * parts + moved)


def refreshed(problem: SquaredHingeProblem, state: Any) -> dict[str, Any]:
    """Recompute all sums, with the cached rows; in narrower dtypes keep the carried sums, which are more exact."""
    beta = rounded(jnp.maximum(state.a.astype(problem.dtype), 0), state.a.dtype)
    if problem.dtype != double(problem.dtype):
        return {"a": beta, "s": state.s, "R": problem.objective(beta, state.s)}
    return _sums(problem, beta, _products(problem, beta, state.cache))


def _sums(wide: SquaredHingeProblem, beta: Array, parts: Array) -> dict[str, Array]:
    """Return the state's fields from weights and their products, in the dtype of the weights; inside `in_double`."""
    s = parts.sum(axis=0) + wide.ridge * beta
    R = wide.objective(beta.astype(parts.dtype), s)
    return {"a": beta, "exact": bits_of(parts), "s": s.astype(beta.dtype), "R": R.astype(beta.dtype)}


def _products(problem: SquaredHingeProblem, beta: Array, cache: RowCache | None) -> Float[Array, "2 n"]:
    of_class = jnp.stack([jnp.where(problem.y == sign, beta, 0) for sign in SIGNS])
    return lax.map(lambda v: _product(problem, v, cache), of_class)  # compiled once for both


def _product(problem: SquaredHingeProblem, v: Array, cache: RowCache | None) -> Float[Array, " n"]:
    """Return `B v` from cached rows where they exist, and from computed rows for the other samples."""
    if cache is None or not len(cache.owner) or problem.gram.design is not None:
        return problem.signed.support_matvec(v)
    place = jnp.minimum(cache.owner, problem.n - 1)
    inside = jnp.where(cache.owner < problem.n, v[place], 0)
    rest = problem.signed.support_matvec(v.at[cache.owner].set(0, mode="drop"))
    return rest + _signed_rows(problem, inside, cache.rows, None, place)


def _signed_rows(problem: SquaredHingeProblem, v: Array, rows: Array, slots: Any, place: Array) -> Float[Array, " n"]:
    signed = problem.y[place] * v
    return problem.y * (weighted_rows(signed, rows, slots) + problem.offset * signed.sum())
