"""How a solution moves with its problem: the implicit function theorem on the support, to every order.

On a support S that does not change, `beta = alpha / R` solves `Kt_SS beta_S = 1`, which is differentiated as a linear
system (`lax.custom_linear_solve`: Gould et al. 2016; Chapelle et al. 2002 for this SVM). `differentiable` gives the
derivatives of that solution to the values of a fit: whoever asks for none pays nothing. The optimal value needs no
system at the first order: by the envelope theorem its derivative is `-1/2 beta' dKt beta`.

The system is solved by conjugate gradients under the best preconditioner there is: a Cholesky factor of `Kt_SS` (stored
Gram, at most 4,096 samples; the iterations are then what is known as refinement), Woodbury's formula for a low-rank
Gram, and the same formula with Nystroem features and what they leave of the diagonal for all else, in O(n tile)
memory. A system that cannot be solved, or a fit without an answer, gives NaN: never a wrong derivative in silence.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.gram import DenseGram
from jaxsvm.low_rank import LowRankGram
from jaxsvm.problem import SquaredHingeProblem
from jaxsvm.result import Fit, Status

FACTOR_LIMIT = 4096
"""The largest support whose matrix is factored: 128 MiB in float64."""
SMALLEST = 256
LANDMARKS = 128
CG_STEPS = 1000
REFINEMENTS = 6
"""Iterations where the preconditioner is the inverse up to rounding."""
Apply = Callable[[Float[Array, " n"]], Float[Array, " n"]]


class Values(NamedTuple):
    """What moves of a `Fit`, by its names."""

    alpha: Float[Array, " n"]
    dual_coef: Float[Array, " n"]
    bias: Float[Array, ""]
    R: Float[Array, ""]
    margins: Float[Array, " n"]


def differentiable(problem: Any, fit: Fit) -> Fit:
    """The same fit, with the derivatives of the solution with respect to the problem.

    Args:
        problem: The problem, traced for derivatives or not.
        fit: A fit of it whose own derivatives, if any, are to be forgotten.

    Returns:
        A fit of equal values. The relative gap, status and counters have no derivative.
    """
    fit = lax.stop_gradient(fit)
    values, status = Values(fit.alpha, fit.dual_coef, fit.bias, fit.R, fit.margins), fit.status.code
    primal, dual = (_optimal_value(problem, values, status, side) for side in fit.certificate[:2])
    return Fit(
        **_differentiable(problem, values, status)._asdict(),
        certificate=fit.certificate._replace(primal=primal, dual=dual),
        status=fit.status,
        counters=fit.counters,
    )


def optimal_value(problem: Any, fit: Fit) -> Float[Array, ""]:
    """The dual objective of a fit, with the derivatives of the optimal value: no system for the first of them."""
    fit = lax.stop_gradient(fit)
    values = Values(fit.alpha, fit.dual_coef, fit.bias, fit.R, fit.margins)
    return _optimal_value(problem, values, fit.status.code, fit.certificate.dual)


@jax.custom_jvp
def _differentiable(problem: Any, values: Values, status: Array) -> Values:
    """The values; what `problem` is here for is the rule below."""
    del problem, status
    return values


@_differentiable.defjvp
def _move(primals: Any, tangents: Any) -> tuple[Values, Values]:
    """Tangents of the exact solution on the support of the values."""
    (problem, values, status), (dproblem, _, _) = primals, tangents
    _require_squared_hinge(problem)
    support = active_set(problem, values.margins, values.R)
    sizes, method = plan(problem, support)
    moved = _push(partial(on_support, sizes=sizes, method=method), support, problem, dproblem)
    # At the next order the values move too: they are taken from the function whose rule this is.
    return _differentiable(problem, values, status), jax.tree.map(partial(_answered, status), moved)


@jax.custom_jvp
def _optimal_value(problem: Any, values: Values, status: Array, value: Array) -> Array:
    """The value; what all else is here for is the rule below."""
    del problem, values, status
    return value


@_optimal_value.defjvp
def _envelope(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """`-1/2 beta' dKt beta`: that beta moves as well changes nothing at a maximum; at the next order it does."""
    (problem, values, status, value), (dproblem, *_) = primals, tangents
    _require_squared_hinge(problem)
    here = _differentiable(problem, values, status)
    moved = -_push(quadratic_form, here.alpha / here.R, problem, dproblem) / 2
    return _optimal_value(problem, values, status, value), _answered(status, moved)


def _answered(status: Array, tangent: Array) -> Array:
    """A tangent, or NaN where the fit holds no solution that could move."""
    failed = (status == Status.NOT_FINITE) | (status == Status.INFEASIBLE) | (status == Status.NOT_PSD)
    return tangent * jnp.where(failed, jnp.nan, 1)  # a product, so that NaN goes backward as well


def _push(function: Any, argument: Any, problem: Any, dproblem: Any) -> Any:
    """The tangent of `function(problem, argument)` in the direction `dproblem`."""
    return jax.jvp(lambda problem: function(problem, argument), (problem,), (dproblem,))[1]


def _require_squared_hinge(problem: Any) -> None:
    if not isinstance(problem, SquaredHingeProblem):
        raise InputError(
            f"problem is a {type(problem).__name__}: derivatives of a solution exist for squared-hinge problems only "
            "(svm_problem). Put `jax.lax.stop_gradient` around the fit if none are meant."
        )


def active_set(problem: SquaredHingeProblem, margins: Float[Array, " n"], R: Float[Array, ""]) -> Bool[Array, " n"]:
    """Samples inside the margin, `(n,)`: where alpha > 0 at the solution, and closer to that set than alpha before it.

    A first-order solver leaves crumbs of alpha on samples that have long left the support. An empty set, which no
    solution has, is all samples instead: through an empty one a NaN would go backward as 0.
    """
    inside = (problem.ridge > 0) & (margins < R)
    return lax.stop_gradient(inside | ~inside.any())


def quadratic_form(problem: SquaredHingeProblem, beta: Float[Array, " n"]) -> Float[Array, ""]:
    """`beta' Kt beta`, by tiles; its derivative with respect to the problem needs no n x n matrix of its own."""
    signed = lax.stop_gradient(problem.y) * beta
    return signed @ problem.gram.matvec(signed) + problem.offset * signed.sum() ** 2 + problem.ridge @ beta**2


@partial(jax.jit, static_argnames=("sizes", "method"))
def on_support(
    problem: SquaredHingeProblem, support: Bool[Array, " n"], *, sizes: tuple[int, ...], method: str
) -> Values:
    """The solution of `Kt_SS beta_S = 1` (with a free bias `Kt_SS beta_S + b y_S = 1`, `y . beta = 0`) as values.

    Args:
        problem: The problem; derivatives of any order flow from it, except from y.
        support: S, `(n,)`.
        sizes: As `plan` has it; static.
        method: As `plan` has it; static.

    Returns:
        The values; `alpha` may be negative where S is not the support of a solution.
    """
    y = lax.stop_gradient(problem.y)
    solve = solver(problem, support, sizes, method)
    beta, constant = solve(support.astype(problem.dtype)), jnp.zeros((), problem.dtype)
    if problem.free_bias:
        other = solve(jnp.where(support, y, 0))
        constant = (y @ beta) / (y @ other)
        beta = beta - constant * other
    R, coefficients = 1 / beta.sum(), y * beta
    bias = constant + problem.offset * coefficients.sum()
    margins = y * (problem.gram.matvec(coefficients) + bias) * R
    return Values(beta * R, coefficients, bias, R, margins)


def plan(problem: SquaredHingeProblem, support: Any) -> tuple[tuple[int, ...], str]:
    """How the system is solved: sizes of a factor to choose from, and "cholesky", "features" or "nystroem"."""
    if isinstance(problem.gram, LowRankGram):
        return (), "features"
    if not isinstance(problem.gram, DenseGram):  # a factor would break the promise of O(n tile) memory
        return (), "nystroem"
    sizes = factor_sizes(problem.n, support)
    return (sizes, "cholesky") if sizes[-1] <= FACTOR_LIMIT else ((), "nystroem")


def factor_sizes(n: int, support: Any) -> tuple[int, ...]:
    """Powers of two up to n; only the one that holds the support where that has values."""
    sizes = [SMALLEST]
    while sizes[-1] < n:
        sizes.append(2 * sizes[-1])
    sizes[-1] = n
    if is_concrete(support):
        count = int(support.sum())
        sizes = [next(size for size in sizes if count <= size)]
    return tuple(sizes)


# --- the linear system -----------------------------------------------------------------------------------------------


def solver(problem: SquaredHingeProblem, support: Bool[Array, " n"], sizes: tuple[int, ...], method: str) -> Apply:
    """`b -> x` with `Kt_SS x_S = b_S`, and `x = b` off S; differentiable in b and in the problem."""
    y = lax.stop_gradient(problem.y)

    def matvec(v: Array) -> Array:
        signed = jnp.where(support, y * v, 0)
        inside = y * (problem.gram.matvec(signed) + problem.offset * signed.sum()) + problem.ridge * v
        return jnp.where(support, inside, v)

    still = lax.stop_gradient(problem)

    def product(v: Array) -> Array:  # the same, at the price of the support; it is never differentiated
        signed = jnp.where(support, y * v, 0)
        inside = y * (still.gram.support_matvec(signed) + still.offset * signed.sum()) + still.ridge * v
        return jnp.where(support, inside, v)

    precondition = (
        _factor(still, support, sizes) if method == "cholesky" else _woodbury(still, support, method == "features")
    )
    steps = CG_STEPS if method == "nystroem" else REFINEMENTS

    def solve(_: Any, b: Array) -> Array:
        return conjugate_gradients(product, precondition, b, steps)

    return lambda b: lax.custom_linear_solve(matvec, b, solve, symmetric=True)


def conjugate_gradients(product: Apply, precondition: Apply, b: Float[Array, " n"], steps: int) -> Float[Array, " n"]:
    """Preconditioned conjugate gradients to the floor of the dtype; NaN where a thousandth of the digits is missing."""
    eps = jnp.finfo(b.dtype).eps
    start = precondition(b)
    scale = b @ start
    target = (16 * eps) ** 2 * scale

    def step(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        k, x, r, p, rq = carry
        Ap = product(p)
        curvature = p @ Ap
        t = jnp.where(curvature > 0, rq / jnp.where(curvature > 0, curvature, 1), 0)
        x, r = x + t * p, r - t * Ap
        q = precondition(r)
        after = r @ q
        return k + 1, x, r, q + after / jnp.where(rq > 0, rq, 1) * p, after

    def going(carry: tuple[Array, ...]) -> Array:
        return (carry[0] < steps) & (carry[4] > target)

    x = jnp.zeros_like(b)
    first = (jnp.zeros((), jnp.int32), x, b, start, scale)
    _, x, _, _, _ = lax.while_loop(going, step, first)
    rest = b - product(x)
    solved = rest @ precondition(rest) <= eps**0.8 * scale  # squared: 3e-7 of b in float64, 2e-3 in float32
    return jnp.where(solved | (scale == 0), x, jnp.nan)


def _factor(problem: SquaredHingeProblem, support: Bool[Array, " n"], sizes: tuple[int, ...]) -> Apply:
    """Solves with a Cholesky factor of `Kt_SS`, in the smallest of the sizes that holds S."""
    largest, count = sizes[-1], support.sum(dtype=jnp.int32)
    index = jnp.nonzero(support, size=largest, fill_value=0)[0]
    valid = jnp.arange(largest) < count
    L, below = jnp.eye(largest, dtype=problem.dtype), -1
    for size in sizes:
        here = (count > below) & (count <= size)
        compute = partial(_padded_factor, problem, index[:size], valid[:size])
        L, below = _once(here, compute, L), size

    def precondition(r: Array) -> Array:
        found = jax.scipy.linalg.cho_solve((L, True), jnp.where(valid, r[index], 0))
        return jnp.where(support, jnp.zeros_like(r).at[index].add(jnp.where(valid, found, 0)), r)

    return precondition


def _padded_factor(problem: SquaredHingeProblem, index: Array, valid: Array, L: Array) -> Array:
    size = index.shape[0]
    values = problem.gram.block(index, index).astype(problem.dtype) + problem.offset
    signs = jnp.where(valid, problem.y[index], 0)
    values = signs[:, None] * values * signs
    # What rounding may take from the smallest eigenvalue; the refinement takes the shift out again.
    floor = 2 * jnp.finfo(values.dtype).eps * jnp.sqrt(jnp.asarray(size, values.dtype)) * jnp.diagonal(values).max()
    values = values + jnp.diag(jnp.where(valid, problem.ridge[index] + floor, 1))
    return lax.dynamic_update_slice(L, jnp.linalg.cholesky(values), (0, 0))


def _once(condition: Array, compute: Any, value: Array) -> Array:
    """`compute(value)` under a condition: a loop of one turn at most, since under vmap a `cond` would always run."""
    turn = lambda carry: (jnp.asarray(False), compute(carry[1]))  # noqa: E731
    return lax.while_loop(lambda carry: carry[0], turn, (condition, value))[1]


def _woodbury(problem: SquaredHingeProblem, support: Bool[Array, " n"], exact: bool) -> Apply:
    """`(D + F F')^-1` on S, for features F of `Kt` and the rest D of its diagonal."""
    F = problem.gram.Z.astype(problem.dtype) if exact else _nystroem(problem, support)
    rest = 0 if exact else jnp.maximum(problem.gram.diag() - (F * F).sum(axis=1), 0)
    constant = jnp.full((problem.n, 1), problem.offset**0.5, F.dtype)
    F = jnp.where(support, problem.y, 0)[:, None] * jnp.concatenate([F, constant], axis=1)
    D = jnp.where(support, problem.ridge + rest, 1)
    scaled = F / D[:, None]
    inner = jnp.eye(F.shape[1], dtype=F.dtype) + jnp.matmul(F.T, scaled, precision=lax.Precision.HIGHEST)
    L = jnp.linalg.cholesky(inner)

    def precondition(r: Array) -> Array:
        return jnp.where(support, r / D - scaled @ jax.scipy.linalg.cho_solve((L, True), scaled.T @ r), r)

    return precondition


def _nystroem(problem: SquaredHingeProblem, support: Bool[Array, " n"]) -> Float[Array, "n r"]:
    """Features `F` with `F F' ~ K`, of samples that stand evenly in the support."""
    n, count = problem.n, support.sum(dtype=jnp.int32)
    landmarks = min(LANDMARKS, n)
    ranks = (jnp.arange(landmarks, dtype=jnp.int32) * count) // landmarks + 1
    index = jnp.clip(jnp.searchsorted(jnp.cumsum(support, dtype=jnp.int32), ranks), 0, n - 1)
    columns = problem.gram.rows(index).astype(problem.dtype)
    inner = columns[:, index]
    jitter = 8 * landmarks * jnp.finfo(inner.dtype).eps * jnp.trace(inner)
    L = jnp.linalg.cholesky(inner + jitter * jnp.eye(landmarks, dtype=inner.dtype))
    return jax.scipy.linalg.solve_triangular(L, columns, lower=True).T
