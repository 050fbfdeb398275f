"""Solutions along a path of hinge problems, with their products: what they prove of other values of C.

Their products are float64, whatever the caller's flag: `jaxsvm.path.carried_chain` updates them from one C to the next
by the kernel rows of the samples that change.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsvm.loop.measured import MEASURED as LOOP
from jaxsvm.numerics.masks import every
from jaxsvm.numerics.precision import double, in_double, rounded, widened
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.contract import Restrictable
from jaxsvm.results.fit import Answer, Counters, Fit
from jaxsvm.results.judge import concluded, in_dtype
from jaxsvm.results.status import Status
from jaxsvm.runtime.programs import Program
from jaxsvm.screening.reference import reference_fit
from jaxsvm.solvers.contract import Solver, stop_excess


class CarriedPoint(NamedTuple):
    """A solution, and what it proves of other values of C."""

    a: Float[Array, " n"]  # its dual point, as it is returned
    products: Float[Array, " n"]  # `p = Qa`, float64
    C: Float[Array, ""]  # C of its problem
    # bound on the sizes of all terms that were added up in `products`: the rounding of `products` is proportional to it
    drift: Float[Array, ""]
    w: Any  # two rows: coefficients of a w scaled up until no sample has a loss, and `a`, `(2, n)`; or None
    w_products: Any  # products of both rows, float64
    valid_up_to: Float[Array, ""]  # largest C at which this point still meets `tol`
    scaled_gap: Float[Array, ""]  # gap / tol of w scaled up until no sample has a loss; independent of C


def lengths(problem: BoxProblem) -> Float[Array, " n"]:
    """Return `|phi_i|`."""
    return jnp.sqrt(jnp.maximum(problem.diagonal, 0))


@Program
def products_of(problem: Restrictable, a: Array) -> Float[Array, " n"]:
    """Compute `Qa` from scratch, in float64."""
    return in_double(lambda problem, a: widened(problem).matvec(a.astype(double(a.dtype))))(problem, a)


@Program
def first_point(problem: BoxProblem, solver: Solver) -> CarriedPoint:
    """Return the point at which a chain begins.

    For bounds `C w` with C below `1 / max_i (Q w)_i` it is the solution: all samples are at their bounds. Above, it
    is 0.
    """

    @in_double
    def start(problem: BoxProblem) -> tuple[Array, Array]:
        wide = widened(problem)
        if wide.c is not None:  # all samples at their bounds violate the equality
            return jnp.zeros_like(problem.upper), jnp.zeros_like(wide.upper)
        upper = rounded(wide.upper, problem.dtype)  # products of what is returned: their error grows with C
        s = wide.matvec(upper)
        inside = every((s <= wide.targets) | ~wide.present)
        return jnp.where(inside, upper, 0).astype(problem.dtype), jnp.where(inside, s, 0)

    return point_of.function(problem, solver, *start(problem))


@Program
def point_of(problem: BoxProblem, solver: Solver, a: Array, products: Array) -> CarriedPoint:
    """Return the point of a solution and its products."""
    valid_up_to, scaled_gap = in_double(validity)(problem, solver, a, products)
    return CarriedPoint(a, products, problem.C, a @ lengths(problem), None, None, valid_up_to, scaled_gap)


def validity(problem: BoxProblem, solver: Solver, a: Array, p: Array) -> tuple[Array, Array]:
    """Return the largest C at which a solution is still certified, and its gap / tol once no sample has a loss.

    At C' > C the gap is `gap + (C' - C) loss`: `valid_up_to` is where that reaches `tol * dual`.
    """
    wide = widened(problem)
    a = a.astype(wide.dtype)
    margins = wide.margins(a, p)
    loss = jnp.where(wide.present, jnp.maximum(wide.targets - margins, 0), 0)
    dual = a @ (wide.targets - p / 2)
    gap = (wide.upper - a) @ loss + a @ jnp.maximum(margins - wide.targets, 0)
    cost = wide.upper @ loss / wide.C
    room = LOOP.credible_share * solver.tol * dual - gap
    valid_up_to = jnp.where(room > 0, wide.C + room / jnp.maximum(cost, 1e-300), 0)
    scale = _scale_without_loss(wide, margins)
    scaled_gap = (scale**2 * (a @ p) / 2 - dual) / dual / solver.tol
    return valid_up_to.astype(problem.dtype), scaled_gap.astype(problem.dtype)


def _scale_without_loss(wide: BoxProblem, margins: Array) -> Array:
    """Return the factor of w and its bias that leaves no sample a loss; infinite if none does."""
    scale = jnp.where(wide.targets > 0, wide.targets, 1)
    ratio = jnp.where(wide.present & (wide.targets > 0), margins / scale, jnp.inf)
    least = ratio.min()
    return jnp.where(least > 0, 1 / jnp.where(least > 0, least, 1), jnp.inf)


@Program
def scaled_up(problem: BoxProblem, point: CarriedPoint) -> dict[str, Any]:
    """Return the fields of a point whose w is scaled up until no sample has a loss: rounded, and with its products."""

    @in_double
    def lengthen(problem: BoxProblem, point: CarriedPoint) -> tuple[Array, Array]:
        wide, p = widened(problem), point.products
        spare = 64 * jnp.finfo(problem.dtype).eps  # products of the result are rounded again
        a = point.a.astype(wide.dtype)
        w = rounded(_scale_without_loss(wide, wide.margins(a, p)) * (1 + spare) * a, problem.dtype)
        return w.astype(problem.dtype), jnp.stack([wide.matvec(w), p])

    w, products = lengthen(problem, point)
    everywhere = jnp.asarray(jnp.inf, problem.dtype)
    return {"w": jnp.stack([w, point.a]), "w_products": products, "valid_up_to": everywhere}


@Program
def as_reference(problem: BoxProblem, point: CarriedPoint) -> Fit:
    """Convert the point to the fit that screening rules expect: with its own w, also if it was scaled up."""
    return reference_fit(problem, point.a, narrow(point.products, problem.dtype))


@in_double
def assessed(problem: Restrictable, solver: Solver, point: Array, s: Array) -> tuple[Answer, Array]:
    """Certify a point by its products, float64; return also the stop rule's excess."""
    wide = widened(problem)
    point = point.astype(wide.dtype)
    answer = wide.certified(point, s, problem.dtype)
    excess = stop_excess(wide, solver, point, s, answer.certificate)
    return in_dtype(answer, problem.dtype), excess.astype(problem.dtype)


@Program
def certified(problem: BoxProblem, solver: Solver, point: Array, products: Array, work: Int[Array, " 4"]) -> Fit:
    """Certify a point by its products; return its fit, RUNNING if its gap is above the solver's `tol`.

    Args:
        problem: The whole problem, whose matrix is known to be positive semidefinite: else no chain has a point.
        solver: The solver, for its `tol`.
        point: The dual point, `(n,)`; or w and it, `(2, n)`.
        products: The products of each row, float64.
        work: Steps, kernel evaluations in two limbs, and the bit of the solver that took the steps. Putting one array
            for each counter on the device took a third of a path of n = 569.
    """
    answer, _ = assessed(problem, solver, point, products)
    return concluded(answer, solver.tol, counters_of(work), definite=True, otherwise=Status.RUNNING)


def counters_of(work: Any) -> Counters:
    """Return counters of steps, kernel evaluations in two limbs, and the bit of the solver, `(4,)`."""
    return Counters.zero()._replace(steps=work[0], evaluations=work[1:3], solvers=work[3])


def narrow(values: Array, dtype: Any) -> Array:
    """Round float64 numbers of a program whose caller may have x64 off."""
    return in_double(lambda values: values.astype(dtype))(values)
