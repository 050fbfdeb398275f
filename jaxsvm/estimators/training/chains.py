"""Solve a hinge machine at many values of C and for all folds by one compiled program, each value from the one before.

From one C to the next the whole point is scaled, which keeps the equality, the bounds and the products `K v`. If no
sample is at its bound, the point is the solution of every larger C too, and stays. Pair steps continue from there until
the relative duality gap is small; LIBSVM's violation is not used. On digits and usps this takes a third of the steps of
as many fits, and one check where nothing changes any more.

Up to some thousand samples a block of stored kernel values is the fastest. Beyond, each C is solved by working sets
(`jaxsvm.estimators.training.box`), from the same start.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsvm.estimators.measured import MEASURED
from jaxsvm.estimators.training.box import Solved, hinge_data, solve_box, solve_in_features
from jaxsvm.estimators.training.kernel_values import KernelValues
from jaxsvm.gram.dense import DenseGram
from jaxsvm.loop.interruption import unless, until_halt, watching
from jaxsvm.loop.whole import solve_whole
from jaxsvm.results.judge import judged
from jaxsvm.solvers.contract import NEVER
from jaxsvm.solvers.working_set.block import double_steps, pair_steps


class Chain(NamedTuple):
    """Fits of f folds at c values of C, as NumPy arrays.

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

    @classmethod
    def unsolved(cls, weight: np.ndarray, Cs: np.ndarray) -> "Chain":  # noqa: N803
        """Return a chain whose gaps are infinite, for weights `(f, n)` and values `(c,)`."""
        shape, n = (len(weight), len(Cs)), weight.shape[1]
        return cls(np.zeros((*shape, n)), np.zeros(shape), np.full(shape, np.inf), np.zeros(shape, np.int32))

    def store(self, fold: int, place: int, solved: Solved) -> None:
        """Store the solution of a fold at a value."""
        self.coef[fold, place], self.bias[fold, place] = solved.dual_coef, solved.bias
        self.gap[fold, place], self.steps[fold, place] = float(solved.certificate.relative_gap), solved.steps


def solve_chains(
    values: KernelValues,
    K: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray,
    Cs: Any,
    bias: str,
    tol: float,
    x: Any = None,
) -> Chain:
    """Solve for the same samples with the weights of each fold; call it with x64 on.

    In the space of few features each value is solved by itself, in a time that C does not change.

    Args:
        values: The kernel.
        K: Its values, `(n, n)`; those of absent samples may be anything finite.
        y: Signs, `(n,)`.
        weight: Factors of C, `(f, n)`; 0 for an absent sample. Both signs are present in each fold.
        Cs: Increasing values of C, `(c,)`.
        bias: "free", "regularized" or "none".
        tol: The relative duality gap, > 0.
        x: The points, `(n, d)`, of a linear kernel of few features; else None.
    """
    with watching() as stop:
        chain = Chain.unsolved(weight, Cs)
        if x is not None:
            operator = functools.cache(lambda: values.stored(K))
            for fold, place in until_halt(np.ndindex(chain.gap.shape)):
                problem = hinge_data(y, Cs[place] * weight[fold], bias)
                by_pairs = functools.partial(lambda problem, most: solve_box(operator(), problem, tol, most), problem)
                chain.store(fold, place, solve_in_features(x, problem, tol, by_pairs))
            return chain
        if len(y) <= MEASURED.samples_of_one_block:
            for fold, shares in enumerate(weight):
                found = unless(lambda: stop.seen, _chain, K, y, shares, Cs, np.float64(tol), bias)
                stop.check()
                for part, solved in zip(chain, found, strict=True):
                    part[fold] = solved
        if not (chain.gap <= tol).all():
            _continue_by_sets(chain, values.stored(K), y, weight, Cs, bias, tol)
    return chain


def _continue_by_sets(
    chain: Chain, gram: DenseGram, y: np.ndarray, weight: np.ndarray, Cs: np.ndarray, bias: str, tol: float
) -> None:
    """Solve by working sets, from the value before, where the gap is above `tol`."""
    for fold, place in until_halt(np.argwhere(~(chain.gap <= tol))):
        upper, start = Cs[place] * weight[fold], np.zeros(len(y))
        if place:
            start = y * chain.coef[fold, place - 1]
            full = (start >= Cs[place - 1] * weight[fold] * (1 - 1e-12)) & (weight[fold] > 0)
            start = np.minimum(start * (Cs[place] / Cs[place - 1] if full.any() else 1), upper)
        problem = hinge_data(y, upper, bias)._replace(start=start)
        product = np.asarray(gram.K) @ (y * start) + problem.offset * (y @ start)
        chain.store(fold, place, solve_box(gram, problem, tol, -1, product))


@functools.partial(jax.jit, static_argnames="bias")
def _chain(K: Array, y: Array, weight: Array, Cs: Array, tol: Array, bias: str) -> tuple[Array, ...]:
    """Return coefficients, constants, gaps and steps of a fold."""
    K = K.astype(y.dtype) + (1.0 if bias == "regularized" else 0.0)
    free = bias == "free"
    steps_of = pair_steps if free else double_steps
    most = min(2 * MEASURED.steps_per_sample * len(y), NEVER)

    def assess(v: Array, p: Array, upper: Array) -> tuple[Array, Array]:
        """Return the constant in the middle of the bounds of the most violating pair, and the gap at it."""
        pull, end = y - p, y * upper
        top = jnp.where(v < jnp.maximum(end, 0), pull, -jnp.inf).max()
        bottom = jnp.where(v > jnp.minimum(end, 0), pull, jnp.inf).min()
        middle = jnp.where(jnp.isfinite(top - bottom), (top + bottom) / 2, 0) if free else jnp.zeros_like(top)
        quadratic, linear = v @ p, v @ y
        loss, dual = upper @ jnp.maximum(y * (pull - middle), 0), linear - quadratic / 2
        gap, error = loss + quadratic - linear, 64 * jnp.finfo(y.dtype).eps * (loss + quadratic + jnp.abs(linear))
        return middle, judged(dual + gap, dual, gap, jnp.abs(dual), rounding=error).relative_gap

    def at(carry: tuple[Array, Array, Array], C: Array) -> Any:
        v, p, before = carry
        full = (weight > 0) & (y * v >= weight * before * (1 - 1e-12))
        grown = jnp.where(full.any(), C / before, 1)
        upper = C * weight
        low, high = jnp.minimum(y * upper, 0), jnp.maximum(y * upper, 0)
        v, p = jnp.clip(grown * v, low, high), grown * p

        def round(state: tuple[Array, Array], left: Array) -> tuple[Any, Array, Array]:
            del left
            v, p = state
            v, pull, more = steps_of(K, low, high, v, y - p, 0.0, 16)  # 16 steps between checks of the gap
            return (v, y - pull), more, excess(v, y - pull)

        def excess(v: Array, p: Array) -> Array:
            # A solution without a sample at its bound serves all larger values, whose losses cost more. Solving to
            # 0.9 tol leaves room for rounding and improves the next start.
            full = ((weight > 0) & (y * v >= upper)).any()
            return assess(v, p, upper)[1] / (0.9 * tol * jnp.where(full, 1, C / Cs[-1]))

        (v, p), steps, _ = solve_whole(round, (v, p), most, excess(v, p))
        return (v, p, C), (v, steps)

    nothing = jnp.zeros_like(y)
    _, (coef, steps) = lax.scan(at, (nothing, nothing, Cs[0]), Cs)
    products = lax.dot_general(coef, K, (((1,), (0,)), ((), ())))  # computed afresh for the certificates
    middles, gaps = jax.vmap(assess)(coef, products, Cs[:, None] * weight)
    constants = coef.sum(axis=1) if bias == "regularized" else middles
    return coef, constants, gaps, steps
