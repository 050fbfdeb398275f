"""Solve a machine at many values of C, one after another in a single program."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsvm.gram.operators import DenseGram
from jaxsvm.loop.interruption import unless, until_halt, watching
from jaxsvm.loop.many import ROUNDING_OF_ZERO, BoxData, at_once, box_problem_of, solve_box, solve_in_features
from jaxsvm.loop.measured import MEASURED
from jaxsvm.solvers.contract import NEVER


class Chain(NamedTuple):
    """Fits at c values of C, as NumPy arrays."""

    coef: np.ndarray  # coefficients of the decision function, `y a`, `(c, n)`
    bias: np.ndarray  # its constants, `(c,)`
    gap: np.ndarray  # relative duality gaps, `(c,)`


def solve_chain(gram: DenseGram, data: BoxData, Cs: np.ndarray, tol: float, x: Any = None) -> Chain:
    """Solve a machine (`data`, at C = 1, with both signs present) at increasing values of C; call it with x64 on.

    As C grows, coefficients at the upper bound stay there, and all others are scaled with it. What the one program of
    all values does not certify is solved again by itself, from the value before. Kernel values are stored. The points x
    are those of a linear kernel of few features: then each value is solved by itself.
    """
    c, n = len(Cs), len(data.y)
    chain = Chain(np.zeros((c, n)), np.zeros(c), np.full(c, np.inf))
    with watching() as stop:
        if x is None and n <= MEASURED.samples_of_one_block:
            found = unless(lambda: stop.seen, _chain, gram, data.arrays, Cs, np.float64(tol), data.form)
            stop.check()
            chain = Chain(*map(np.array, found))
        for place in until_halt(np.flatnonzero(~(chain.gap <= tol))):
            here, before = data._replace(upper=Cs[place] * data.upper), max(place - 1, 0)
            if x is not None:
                solved = solve_in_features(x, here, tol, functools.partial(solve_box, gram, here, tol))
            else:
                start = _grown(np, data.y * chain.coef[before], data.upper, Cs[before], Cs[place])
                solved = solve_box(gram, here._replace(start=np.asarray(start)), tol)
            chain.coef[place], chain.bias[place] = solved.dual_coef, solved.bias
            chain.gap[place] = float(solved.certificate.relative_gap)
    return chain


def _grown(xp: Any, a: Any, weight: Any, before: Any, C: Any) -> Any:
    """Return the start at C from a solution at a smaller value: scaled if a sample is at its bound, else as it is."""
    full = ((weight > 0) & (a >= before * weight * (1 - 1e-12))).any()
    return xp.minimum(a * xp.where(full, C / before, 1), C * weight)


@functools.partial(jax.jit, static_argnames="form")
def _chain(gram: DenseGram, arrays: Any, Cs: Array, tol: Array, form: tuple[str, float]) -> tuple[Array, ...]:
    """Return coefficients, constants and gaps at all values, `arrays` being those of C = 1."""
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
