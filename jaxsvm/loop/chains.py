"""Solve chains over C, of one machine in several folds: the values of a fold one after another in a single program."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsvm.gram.dense import DenseGram
from jaxsvm.loop.interruption import unless, until_halt, watching
from jaxsvm.loop.many import ROUNDING_OF_ZERO, at_once, box_problem_of, hinge_data, solve_box, solve_in_features
from jaxsvm.loop.measured import MEASURED
from jaxsvm.solvers.contract import NEVER


class Chain(NamedTuple):
    """Fits of f folds at c values of C, as NumPy arrays."""

    coef: np.ndarray  # coefficients of the decision function, `y a`, `(f, c, n)`
    bias: np.ndarray  # its constants, `(f, c)`
    gap: np.ndarray  # relative duality gaps, `(f, c)`


def solve_chains(
    gram: DenseGram, y: np.ndarray, weight: np.ndarray, Cs: np.ndarray, bias: str, tol: float, x: Any = None
) -> Chain:
    """Solve for the same samples with the weights of each fold; call it with x64 on.

    C grows: coefficients at the upper bound stay there, and all others are scaled with it. What a fold's one program
    does not certify is solved again by itself, from the value before.

    Args:
        gram: The stored kernel values; those of absent samples may be anything finite.
        y: Signs, `(n,)`.
        weight: Factors of C, `(f, n)`; 0 for an absent sample. Both signs are present in each fold.
        Cs: Increasing values of C, `(c,)`.
        bias: "free", "regularized" or "none".
        tol: The relative duality gap, > 0.
        x: The points, `(n, d)`, of a linear kernel of few features, each value of which is solved by itself; else None.
    """
    shape, n = (len(weight), len(Cs)), len(y)
    chain = Chain(np.zeros((*shape, n)), np.zeros(shape), np.full(shape, np.inf))
    with watching() as stop:
        for fold in range(len(weight) if x is None and n <= MEASURED.samples_of_one_block else 0):
            data = hinge_data(y, weight[fold], bias)
            found = unless(lambda: stop.seen, _chain, gram, data.arrays, Cs, np.float64(tol), data.form)
            stop.check()
            for part, values in zip(chain, found, strict=True):
                part[fold] = values
        for fold, place in until_halt(np.argwhere(~(chain.gap <= tol))):
            data = hinge_data(y, Cs[place] * weight[fold], bias)
            if x is not None:
                solved = solve_in_features(x, data, tol, functools.partial(solve_box, gram, data, tol))
            else:
                before = y * chain.coef[fold, max(place - 1, 0)]
                start = np.asarray(_grown(np, before, weight[fold], Cs[max(place - 1, 0)], Cs[place]))
                solved = solve_box(gram, data._replace(start=start), tol)
            chain.coef[fold, place], chain.bias[fold, place] = solved.dual_coef, solved.bias
            chain.gap[fold, place] = float(solved.certificate.relative_gap)
    return chain


def _grown(xp: Any, a: Any, weight: Any, before: Any, C: Any) -> Any:
    """Return the start at C from a solution at a smaller value: scaled if a sample is at its bound, else as it is."""
    full = ((weight > 0) & (a >= before * weight * (1 - 1e-12))).any()
    return xp.minimum(a * xp.where(full, C / before, 1), C * weight)


@functools.partial(jax.jit, static_argnames="form")
def _chain(gram: DenseGram, arrays: Any, Cs: Array, tol: Array, form: tuple[str, float]) -> tuple[Array, ...]:
    """Return coefficients, constants and gaps of a fold at all values, `arrays` being those of C = 1."""
    y, q, weight, e = arrays
    bounds = jnp.asarray((min(2 * MEASURED.steps_per_sample * len(y), NEVER), 0), jnp.int32)

    def at(carry: tuple[Array, Array, Array], C: Array) -> Any:
        a, s, before = carry
        grown = _grown(jnp, a, weight, before, C)
        problem = box_problem_of(gram, (y, q, C * weight, e), form)
        s = s * jnp.where((grown == a).all(), 1, C / before)
        a, s, *_ = at_once(problem, grown, s, tol, bounds, jnp.asarray(ROUNDING_OF_ZERO, y.dtype))
        result = problem.certified(a, s, a.dtype)
        return (a, s, C), (result.dual_coef, result.bias, result.certificate.relative_gap)

    return lax.scan(at, (jnp.zeros_like(y), jnp.zeros_like(y), Cs[0]), Cs)[1]
