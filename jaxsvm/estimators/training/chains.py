"""A hinge machine at many values of C, each from the one before: one compiled program for all of them, and all folds.

From one C to the next the whole point is scaled, which keeps the equality, the bounds and the products `K v`; where no
sample is at its bound it is the solution of every larger C, too, and stays. Pair steps go on from there until the
relative duality gap is small; LIBSVM's violation is not looked at. On digits and usps this takes a third of the steps
of as many fits, and a look where nothing changes any more.

A block of stored kernel values has no equal up to some thousand samples; beyond, each C is solved by working sets
(`jaxsvm.estimators.training.box`), from the same start.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsvm.estimators.training.box import NO_LIMIT, BoxData, solve_box, solve_in_features
from jaxsvm.estimators.training.kernel_values import KernelValues
from jaxsvm.gram.dense import DenseGram
from jaxsvm.results.judge import judged
from jaxsvm.solvers.working_set.block import double_steps, pair_steps

AT_ONCE = 3072
"""Samples of a machine that are one block: rows of more do not stay in the cache."""
BURST = 16
"""Steps between looks at the gap."""
SHARE = 0.9
"""Each value is solved to this share of the gap that is asked for: rounding and the next start profit."""
MOST_STEPS = 1000
"""Steps a sample at one value of C, after which working sets go on."""


class Chain(NamedTuple):
    """Fits of f folds at c values of C, as NumPy's.

    Attributes:
        coef: Coefficients of the decision function, `y a`, `(f, c, n)`.
        bias: Its constants, `(f, c)`.
        gap: Relative duality gaps, `(f, c)`.
        steps: Pair steps, `(f, c)`.
    """

    coef: np.ndarray
    bias: np.ndarray
    gap: np.ndarray
    steps: np.ndarray


def solve_chains(
    values: KernelValues, K: np.ndarray, y: np.ndarray, weight: np.ndarray, Cs: np.ndarray, bias: str, tol: float
) -> Chain:
    """Fits of the same samples with the weights of each fold; inside x64.

    Args:
        values: The kernel.
        K: Its values, `(n, n)`; of absent samples anything finite.
        y: Signs, `(n,)`.
        weight: Factors of C, `(f, n)`; 0: absent. Both signs are there in each fold.
        Cs: Increasing values of C, `(c,)`.
        bias: "free", "regularized" or "none".
        tol: The relative duality gap, > 0.
    """
    if len(y) <= AT_ONCE:
        found = _chains(K, y, weight, Cs, np.float64(tol), bias)
        found = Chain(*(np.array(part) for part in found))
    else:
        shape = (len(weight), len(Cs))
        found = Chain(np.zeros((*shape, len(y))), np.zeros(shape), np.full(shape, np.inf), np.zeros(shape, np.int32))
    if not (found.gap <= tol).all():
        _go_on(found, values.stored(K), y, weight, Cs, bias, tol)
    return found


def solve_chains_in_features(
    x: np.ndarray,
    operator: Callable[[], Any],
    y: np.ndarray,
    weight: np.ndarray,
    Cs: np.ndarray,
    bias: str,
    tol: float,
) -> Chain:
    """The same for a linear kernel of few features, each value by itself, which takes as long whatever C; inside x64.

    Args:
        x: The points, `(n, d)`; of absent samples anything finite.
        operator: Makes their Gram operator, where pair steps are needed besides.
        y: As for `solve_chains`.
        weight: As for `solve_chains`.
        Cs: As for `solve_chains`.
        bias: As for `solve_chains`.
        tol: As for `solve_chains`.
    """
    c, offset, shape = y if bias == "free" else None, float(bias == "regularized"), (len(weight), len(Cs))
    found = Chain(np.zeros((*shape, len(y))), np.zeros(shape), np.full(shape, np.inf), np.zeros(shape, np.int32))
    for fold, place in np.ndindex(shape):
        one = BoxData(y, np.ones(len(y)), Cs[place] * weight[fold], c, offset=offset)
        solved = solve_in_features(x, one, tol, lambda most, one=one: solve_box(operator(), one, tol, most))
        found.coef[fold, place], found.bias[fold, place] = solved.dual_coef, solved.bias
        found.gap[fold, place], found.steps[fold, place] = float(solved.certificate.relative_gap), solved.steps
    return found


def _go_on(
    found: Chain, gram: DenseGram, y: np.ndarray, weight: np.ndarray, Cs: np.ndarray, bias: str, tol: float
) -> None:
    """Where the gap is not below `tol`: working sets, from the value before."""
    c, offset = y if bias == "free" else None, float(bias == "regularized")
    for fold, place in zip(*np.nonzero(~(found.gap <= tol)), strict=True):
        upper, start = Cs[place] * weight[fold], np.zeros(len(y))
        if place:
            start = y * found.coef[fold, place - 1]
            full = (start >= Cs[place - 1] * weight[fold] * (1 - 1e-12)) & (weight[fold] > 0)
            start = np.minimum(start * (Cs[place] / Cs[place - 1] if full.any() else 1), upper)
        product = np.asarray(gram.K) @ (y * start) + offset * (y @ start)
        solved = solve_box(gram, BoxData(y, np.ones(len(y)), upper, c, 0.0, start, offset), tol, -1, product)
        found.coef[fold, place], found.bias[fold, place] = solved.dual_coef, solved.bias
        found.gap[fold, place], found.steps[fold, place] = float(solved.certificate.relative_gap), solved.steps


@functools.partial(jax.jit, static_argnames="bias")
def _chains(K: Array, y: Array, weight: Array, Cs: Array, tol: Array, bias: str) -> tuple[Array, ...]:
    """Coefficients, constants, gaps and steps."""
    K = K.astype(y.dtype) + (1.0 if bias == "regularized" else 0.0)
    free = bias == "free"
    steps_of = pair_steps if free else double_steps
    most = min(MOST_STEPS * len(y), NO_LIMIT)

    def look(v: Array, p: Array, upper: Array) -> tuple[Array, Array]:
        """The constant in the middle of the violating pair's, and the gap with it."""
        pull, end = y - p, y * upper
        top = jnp.where(v < jnp.maximum(end, 0), pull, -jnp.inf).max()
        bottom = jnp.where(v > jnp.minimum(end, 0), pull, jnp.inf).min()
        middle = jnp.where(jnp.isfinite(top - bottom), (top + bottom) / 2, 0) if free else jnp.zeros_like(top)
        quadratic, linear = v @ p, v @ y
        loss, dual = upper @ jnp.maximum(y * (pull - middle), 0), linear - quadratic / 2
        gap, error = loss + quadratic - linear, 64 * jnp.finfo(y.dtype).eps * (loss + quadratic + jnp.abs(linear))
        return middle, judged(dual + gap, dual, gap, jnp.abs(dual), rounding=error).relative_gap

    def of_fold(weight: Array) -> tuple[Array, ...]:
        def at(carry: tuple[Array, Array, Array], C: Array) -> Any:
            v, p, before = carry
            full = (weight > 0) & (y * v >= weight * before * (1 - 1e-12))
            grown = jnp.where(full.any(), C / before, 1)
            upper = C * weight
            low, high = jnp.minimum(y * upper, 0), jnp.maximum(y * upper, 0)
            v, p = jnp.clip(grown * v, low, high), grown * p

            def turn(carry: tuple[Array, ...]) -> tuple[Array, ...]:
                v, p, steps, _ = carry
                v, pull, more = steps_of(K, low, high, v, y - p, 0.0, BURST)
                return v, y - pull, steps + more, excess(v, y - pull)

            def excess(v: Array, p: Array) -> Array:
                # A solution without a sample at its bound is to answer all larger values, whose losses cost more.
                full = ((weight > 0) & (y * v >= upper)).any()
                return look(v, p, upper)[1] - SHARE * tol * jnp.where(full, 1, C / Cs[-1])

            start = (v, p, jnp.zeros((), jnp.int32), excess(v, p))
            v, p, steps, _ = lax.while_loop(lambda carry: (carry[3] > 0) & (carry[2] < most), turn, start)
            return (v, p, C), (v, steps)

        nothing = jnp.zeros_like(y)
        _, (coef, steps) = lax.scan(at, (nothing, nothing, Cs[0]), Cs)
        products = lax.dot_general(coef, K, (((1,), (0,)), ((), ())))  # from scratch, for the certificates
        middles, gaps = jax.vmap(look)(coef, products, Cs[:, None] * weight)
        constants = coef.sum(axis=1) if bias == "regularized" else middles
        return coef, constants, gaps, steps

    return lax.map(of_fold, weight)
