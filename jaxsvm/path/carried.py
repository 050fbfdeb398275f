"""From one C to the next along a path of hinge problems: the compiled parts of `jaxsvm.path.screened`.

A point keeps `p = Qa` in twice the precision, as bits; each part takes it on by the kernel rows of what changes.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxsvm.gram.contract import Gram
from jaxsvm.numerics.masks import every
from jaxsvm.numerics.precision import bits_of, double, in_double, of_bits, rounded, widened
from jaxsvm.problems.box import BoxProblem
from jaxsvm.results.fit import Counters, Fit, Status
from jaxsvm.results.judge import narrowed
from jaxsvm.runtime.loops import fori_loop, while_loop
from jaxsvm.runtime.once import once
from jaxsvm.runtime.programs import Program
from jaxsvm.screening.reference import reference_fit
from jaxsvm.screening.rules import Screening
from jaxsvm.solvers.box.sequential_minimal_optimization import SMO, State
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.stopping import stop_excess
from jaxsvm.solvers.working_set import WorkingSet
from jaxsvm.solvers.working_set.members import ends

CLAIM = 0.9
"""What is claimed without a certificate must be this far below what is asked for."""
TIGHTER = 0.5
"""A problem is solved to this share of the gap that is asked for: the better a solution, the more it says of the next
one, and the more values of C it answers itself."""
TURN = 32
"""Steps between two looks at the gap."""
MOST_PER_SAMPLE, LEAST_STEPS, MOST_STEPS = 10, 10_000, 50_000
"""Steps, a sample, at least and at the most, after which the whole problem's solver had better go on."""
ROUNDED = 1e-14
"""Share of a value below which a change of it is one of rounding, in float64."""
SMALL = 1024
"""Samples up to which steps go along whole rows; of more working sets are solved."""
MOST_SETS, PIECE = 100, 600_000
"""Working sets after which a value of C is solved as a fit of its own; and those of a piece, times samples: Ctrl-C is
looked for between pieces, of less than a second each."""
DRIFT = 2.0
"""Products are taken from scratch where rounding may have grown to so many times `sqrt(n)` roundings of their terms."""


class Point(NamedTuple):
    """A solution, and what it says of other values of C.

    Attributes:
        a: Its dual point, `(n,)`, as it is returned.
        products: `p = Qa` in twice the precision, as bits (`jaxsvm.numerics.precision.bits_of`).
        C: Of its problem, `()`.
        drift: What has been added up in `products`, `sum |Q_i| |terms|` as if all rows were as long as `a` has them,
            `()`: rounding grows with it, and with every factor of C that `a` does not follow.
        w: Two rows: coefficients of a longer w, whose margins leave no loss, and `a`, `(2, n)`; or None.
        w_products: Of both rows, as bits.
        reach: The largest C whose answer it is, too, `()`.
        lengthened: The gap of the longer w over what is asked for, `()`; at whatever C, since it has no loss.
    """

    a: Float[Array, " n"]
    products: UInt32[Array, "n *two"]
    C: Float[Array, ""]
    drift: Float[Array, ""]
    w: Any
    w_products: Any
    reach: Float[Array, ""]
    lengthened: Float[Array, ""]


class Look(NamedTuple):
    """What a rule leaves over of the next problem.

    Attributes:
        kept: Samples whose values are still to be found, `(n,)`.
        start: Where these start, and what the others have, `(n,)`.
        there: Where the products are, in twice the precision, as bits: `rho a` of what is kept, of others their values.
        products: `Q` times that, as bits.
        drift: Of the products, see `Point`, `()`.
        dual: The dual objective there, `()`.
        counts: How many are kept, how many of them start between their bounds, and how many kernel rows were taken,
            `(3,)`.
    """

    kept: Bool[Array, " n"]
    start: Float[Array, " n"]
    there: UInt32[Array, "n *two"]
    products: UInt32[Array, "n *two"]
    drift: Float[Array, ""]
    dual: Float[Array, ""]
    counts: Int[Array, " 3"]


def sets_at_once(size: int) -> int:
    """Working sets of a piece; a shape says it, so that answers do not depend on a clock."""
    return min(max(PIECE // size, 1), MOST_SETS // 2)


def _lengths(problem: BoxProblem) -> Float[Array, " n"]:
    """`|phi_i|`."""
    return jnp.sqrt(jnp.maximum(problem.diagonal, 0))


def _differ(a: Array, b: Array) -> Bool[Array, " n"]:
    """Where two values differ by more than rounding: of themselves, since a bound may be larger by ten decades."""
    return jnp.abs(a - b) > ROUNDED * jnp.maximum(jnp.abs(a), jnp.abs(b))


@Program
def products_of(problem: BoxProblem, a: Array) -> UInt32[Array, "n *two"]:
    """`Qa` from scratch in twice the precision, as bits."""
    return in_double(lambda problem, a: bits_of(widened(problem).matvec(a.astype(double(a.dtype)))))(problem, a)


@Program
def first_point(problem: BoxProblem, solver: Solver) -> Point:
    """Where a chain begins: below `C_min = 1 / max_i (Q w)_i` of bounds `C w` all samples are at their bounds.

    That is the solution; from further up, 0 is as good a start as any.
    """

    @in_double
    def start(problem: BoxProblem) -> tuple[Array, Array]:
        wide = widened(problem)
        if wide.c is not None:  # all at their bounds is off the equality
            return jnp.zeros_like(problem.upper), bits_of(jnp.zeros_like(wide.upper))
        s = wide.matvec(wide.upper)
        inside = every((s <= wide.targets) | ~wide.present)
        return jnp.where(inside, wide.upper, 0).astype(problem.dtype), bits_of(jnp.where(inside, s, 0))

    return point_of.function(problem, solver, *start(problem))


@Program
def point_of(problem: BoxProblem, solver: Solver, a: Array, products: Array) -> Point:
    """A solution whose products are at hand."""
    reach, lengthened = in_double(_reach)(problem, solver, a, products)
    drift = a @ _lengths(problem)
    return Point(a, products, problem.C, drift, None, None, reach, lengthened)


def _reach(problem: BoxProblem, solver: Solver, a: Array, products: Array) -> tuple[Array, Array]:
    """How far a solution reaches: its gap grows with C by what its losses cost; and that of a w without a loss."""
    wide = widened(problem)
    a, p = a.astype(wide.dtype), of_bits(products)
    margins = wide.margins(a, p)
    loss = jnp.where(wide.present, jnp.maximum(wide.targets - margins, 0), 0)
    dual = a @ (wide.targets - p / 2)
    gap = (wide.upper - a) @ loss + a @ jnp.maximum(margins - wide.targets, 0)
    cost = wide.upper @ loss / wide.C
    room = CLAIM * solver.tol * dual - gap
    reach = jnp.where(room > 0, wide.C + room / jnp.maximum(cost, 1e-300), 0)
    length = _length(wide, margins)
    lengthened = (length**2 * (a @ p) / 2 - dual) / dual / solver.tol
    return reach.astype(problem.dtype), lengthened.astype(problem.dtype)


def _length(wide: BoxProblem, margins: Array) -> Array:
    """The factor of w, and of its bias, that leaves no sample a loss; infinite where none does."""
    scale = jnp.where(wide.targets > 0, wide.targets, 1)
    ratio = jnp.where(wide.present & (wide.targets > 0), margins / scale, jnp.inf)
    least = ratio.min()
    return jnp.where(least > 0, 1 / jnp.where(least > 0, least, 1), jnp.inf)


@Program
def longer(problem: BoxProblem, point: Point) -> dict[str, Any]:
    """A w so long that no margin leaves a loss, its coefficients rounded, and its products."""

    @in_double
    def lengthen(problem: BoxProblem, point: Point) -> tuple[Array, Array]:
        wide, p = widened(problem), of_bits(point.products)
        spare = 4 * jnp.finfo(problem.dtype).eps
        a = point.a.astype(wide.dtype)
        w = rounded(_length(wide, wide.margins(a, p)) * (1 + spare) * a, problem.dtype)
        return w.astype(problem.dtype), bits_of(jnp.stack([wide.matvec(w), p]))

    w, products = lengthen(problem, point)
    everywhere = jnp.asarray(jnp.inf, problem.dtype)
    return {"w": jnp.stack([w, point.a]), "w_products": products, "reach": everywhere}


@Program
def as_reference(problem: BoxProblem, point: Point) -> Fit:
    """The point as rules see it: its own w, however it was answered."""
    p = in_double(lambda products: of_bits(products).astype(problem.dtype))(point.products)
    return reference_fit(problem, point.a, p)


@Program
def look_ahead(problem: BoxProblem, point: Point, found: Screening | None) -> Look:
    """What is left to be found, and the products where it starts, from few kernel rows."""

    @in_double
    def look(problem: BoxProblem, point: Point, found: Screening | None) -> Look:
        wide, narrow = widened(problem), problem.dtype
        a, p = point.a.astype(wide.dtype), of_bits(point.products)
        rho = wide.C / point.C.astype(wide.dtype)
        none = jnp.zeros_like(wide.present)
        inactive, at_bound = (none, none) if found is None else (found.inactive, found.at_bound)
        known, fixed = inactive | at_bound, jnp.where(at_bound, wide.upper, 0)
        # What is at its bound stays there: one rounding of the factor is no change.
        moved = known & _differ(fixed, rho * a)
        there = jnp.where(moved, fixed, rho * a)
        start = jnp.where(known, fixed, jnp.minimum(rho * a, wide.upper)).astype(narrow)
        q = rho * p
        if found is not None:
            q = q + wide.signed.few_rows_matvec(jnp.where(moved, fixed - rho * a, 0))
        kept = wide.present & ~known
        free = kept & (start > 0) & (start < problem.upper)
        return Look(
            kept=kept,
            start=start,
            there=bits_of(there),
            products=bits_of(q),
            drift=(rho * point.drift + jnp.abs(there) @ _lengths(wide)).astype(narrow),
            dual=(there @ (wide.targets - q / 2)).astype(narrow),
            counts=jnp.stack([kept.sum(), free.sum(), moved.sum()]).astype(jnp.int32),
        )

    return look(problem, point, found)


@Program
def solved(
    problem: BoxProblem, solver: Solver, look: Look, samples: Array | None, gram: Gram, sets: WorkingSet
) -> tuple[Float[Array, " m"], Int[Array, ""], Int[Array, " 2"], Bool[Array, ""]]:
    """The values of what is kept, all others where they are; steps, kernel values asked for, in limbs; and the end.

    Its gap is that of the whole problem: the others have none.

    Args:
        problem: The whole problem.
        solver: Whose `tol` the whole is to meet.
        look: Where it starts.
        samples: Whose values are looked for, `(m,)`; None: of all, of which those that are not kept stand still.
        gram: The Gram operator of these, stored.
        sets: Working sets, for more than `SMALL` samples.
    """
    names = ("y", "q", "upper", "diagonal") + (() if problem.c is None else ("c",))
    fields = {name: getattr(problem, name) for name in names}
    whole = {**fields, "kept": look.kept, "start": look.start}
    there = {"there": look.there, "products": look.products}
    if samples is not None:
        whole, there = jax.tree.map(lambda leaf: leaf[samples], (whole, there))
    kept, start = whole.pop("kept"), whole.pop("start")
    # Who is known has no room to move, and weighs on the others through their products alone.
    view = dataclasses.replace(problem, gram=gram, **{**whole, "upper": jnp.where(kept, whole["upper"], 0)}, mask=None)

    def products_at(view: Any, there: Any, a: Array) -> Array:
        wide = widened(view)
        a, before = a.astype(wide.dtype), of_bits(there["there"])
        change, moved = a - before, kept & _differ(a, before)
        # Of a change: its own digits are enough, and stored values as they are.
        small = view.signed.few_rows_matvec(jnp.where(moved, change, 0).astype(view.dtype))
        return bits_of(of_bits(there["products"]) + small)

    def narrow(bits: Array) -> Array:
        return in_double(lambda bits: of_bits(bits).astype(view.dtype))(bits)

    x, p = narrow(there["there"]), narrow(there["products"])

    def gap_of(state: Any) -> Array:
        pull = view.q - state.s
        if view.c is not None:  # of a bias in the middle of what violates: no sorting
            pull = pull - view.c * sum(ends(view, state.a, state.s)) / 2
        return (view.upper - state.a) @ jnp.maximum(pull, 0) + state.a @ jnp.maximum(-pull, 0)

    def lacks(state: Any) -> Array:
        # The dual objective where the state is; from where it started that may be decades away, or 0.
        dual = look.dual + jnp.where(kept, state.a - x, 0) @ (view.q - (p + state.s) / 2)
        return gap_of(state) > TIGHTER * solver.tol * dual

    a = jnp.where(kept, start, 0)
    if len(a) <= SMALL:
        state, steps = _by_steps(view, there, products_at, lacks, a)
    else:
        state, steps = _by_sets(view, sets, in_double(products_at)(view, there, a), lacks, a)
    return state.a, steps, state.counters.evaluations, ~lacks(state)


@Program
def filled_in(look: Look, samples: Array | None, inside: Array) -> Array:
    """The whole point: what is kept, of some samples or of all, as it was found, and the others where they are."""
    found = inside if samples is None else look.start.at[samples].set(inside)
    return jnp.where(look.kept, found, look.start)


def _by_steps(view: Any, there: Any, products_at: Any, lacks: Any, a: Array) -> tuple[Any, Int[Array, ""]]:
    """Steps of sequential minimal optimisation along whole rows; what is claimed is looked at with exact products."""

    def exact(state: Any) -> Any:
        return state._replace(s=in_double(like_s)(view, there, state.a))

    def like_s(view: Any, there: Any, a: Array) -> Array:
        return of_bits(products_at(view, there, a)).astype(view.dtype)

    def turn(state: Any) -> Any:
        state = fori_loop(0, TURN, lambda _, state: SMO().step(view, state), state)
        return once(~lacks(state), exact, state)

    s = in_double(lambda bits: of_bits(bits).astype(a.dtype))(there["products"])  # but for the rounding of a
    state = State(a, s, jnp.zeros((), a.dtype), jnp.asarray(False), Counters.zero())
    limit = min(max(MOST_PER_SAMPLE * len(a), LEAST_STEPS), MOST_STEPS)
    state = while_loop(lambda state: lacks(state) & (state.counters.steps < limit), turn, state)
    return state, state.counters.steps


def _by_sets(view: Any, sets: WorkingSet, products: Array, lacks: Any, a: Array) -> tuple[Any, Int[Array, ""]]:
    """Working sets of the samples that violate, with exact products from the start."""
    s = in_double(lambda bits: of_bits(bits).astype(a.dtype))(products)
    exact = products if a.dtype != jnp.float64 else None
    state = sets.begun(view, {"a": a, "s": s, "exact": exact})
    state = while_loop(
        lambda state: lacks(state) & (state.counters.steps < jnp.minimum(sets_at_once(len(a)), sets.max_steps)),
        lambda s: sets.step(view, s),
        state,
    )
    return state, state.counters.toward


@Program
def joined(
    problem: BoxProblem, solver: Solver, look: Look, samples: Array | None, inside: Array
) -> tuple[Point, Array]:
    """The whole problem's point, of which nothing is certified yet, and how many kernel rows were taken."""
    point = filled_in.function(look, samples, inside)

    @in_double
    def join(problem: BoxProblem, solver: Solver, look: Look, point: Array) -> Any:
        wide = widened(problem)
        a, there = point.astype(wide.dtype), of_bits(look.there)
        moved = _differ(a, there)
        change = jnp.where(moved, a - there, 0)
        s = of_bits(look.products) + wide.signed.few_rows_matvec(change)
        # Rounding that was multiplied by every factor of C is not what a certificate makes room for.
        fresh, drift = a @ _lengths(wide), look.drift + jnp.abs(change) @ _lengths(wide)
        lost = drift > DRIFT * problem.n**0.5 * fresh
        s, drift = once(lost, lambda _: (wide.matvec(a), fresh), (s, drift))
        products = bits_of(s)
        count = jnp.where(lost, problem.n, moved.sum()).astype(jnp.int32)
        ends = _reach(problem, solver, point, products)
        return products, drift.astype(problem.dtype), count, *ends

    products, drift, moved, reach, lengthened = join(problem, solver, look, point)
    return Point(point, products, problem.C, drift, None, None, reach, lengthened), moved


@Program
def certified(
    problem: BoxProblem, solver: Solver, point: Array, products: Array, done: Int[Array, " 4"]
) -> tuple[Fit, Float[Array, ""]]:
    """A point of one row or two, whose products are at hand, as a certified fit, and the stop rule's excess.

    Args:
        problem: The whole problem.
        solver: Whose stop rule it is.
        point: The dual point, `(n,)`; or w and it, `(2, n)`.
        products: Of each row, as bits.
        done: Steps, kernel evaluations in two limbs, and the bit of what took the steps: one array is put on the device
            for all counters, where one for each took a third of a path of n = 569.
    """

    @in_double
    def certify(problem: BoxProblem, solver: Solver, point: Array, products: Array) -> Any:
        wide = widened(problem)
        point, s = point.astype(wide.dtype), of_bits(products)
        answer = wide.certified(point, s, problem.dtype)
        excess = stop_excess(wide, solver, point, s, answer.certificate)
        narrow = jax.tree.map(lambda leaf: leaf.astype(problem.dtype), answer)
        certificate = narrowed(answer.certificate, problem.dtype)
        return narrow._replace(certificate=certificate), excess.astype(problem.dtype)

    answer, excess = certify(problem, solver, point, products)
    return answer.fit(jnp.asarray(Status.CONVERGED, jnp.int32), counted(done)), excess


def counted(done: Any) -> Counters:
    """Return counters of steps, kernel evaluations in two limbs, and the bit of what took the steps, `(4,)`."""
    return Counters.zero()._replace(steps=done[0], evaluations=done[1:3], solvers=done[3])
