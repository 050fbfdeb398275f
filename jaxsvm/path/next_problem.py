"""Solve the next problem of a hinge path, from the point of the one before.

`next_start` scales the point to the next C and leaves out the samples that a rule knows, `solve_kept` solves for the
others, and `joined` returns the point of the whole problem. Products follow by the kernel rows of the samples that
change.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxsvm.gram.contract import Gram
from jaxsvm.loop.many import solve_whole
from jaxsvm.numerics.precision import bits_of, in_double, of_bits, widened
from jaxsvm.path.carried import Point, lengths, validity
from jaxsvm.path.measured import MEASURED
from jaxsvm.problems.box import BoxProblem
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.loops import fori_loop, once
from jaxsvm.runtime.programs import Program
from jaxsvm.screening.rules import Screening
from jaxsvm.solvers.box.sequential_minimal_optimization import SMO, State
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.working_set import WorkingSet
from jaxsvm.solvers.working_set.members import ends


class NextStart(NamedTuple):
    """The start of the next problem, and the samples that a rule leaves undecided.

    Attributes:
        kept: Undecided samples, `(n,)`.
        start: Their start, and the values of the others, `(n,)`.
        base: The point of the products, in twice the precision, as bits: `factor a` of undecided samples, of others
            their values.
        products: `Q base`, as bits.
        drift: Drift of the products (`Point`), `()`.
        dual: The dual objective at `base`, `()`.
        counts: How many samples are undecided, how many of them start between their bounds, and how many kernel rows
            were computed, `(3,)`.
    """

    kept: Bool[Array, " n"]
    start: Float[Array, " n"]
    base: UInt32[Array, "n *two"]
    products: UInt32[Array, "n *two"]
    drift: Float[Array, ""]
    dual: Float[Array, ""]
    counts: Int[Array, " 3"]


def sets_at_once(size: int) -> int:
    """Return the number of working sets in a compiled piece; it depends on the size alone, so that results repeat.

    Ctrl-C is checked between pieces. A piece has at most half of the 100 sets of a value.
    """
    return min(max(MEASURED.samples_times_sets_of_a_piece // size, 1), 50)


def _differ(a: Array, b: Array) -> Bool[Array, " n"]:
    """Return where two values differ by more than their own rounding; bounds may be larger by ten decades."""
    return jnp.abs(a - b) > 1e-14 * jnp.maximum(jnp.abs(a), jnp.abs(b))


@Program
def next_start(problem: BoxProblem, point: Point, known: Screening | None) -> NextStart:
    """Scale a point to the next problem and fix the samples that a rule knows; this takes few kernel rows.

    The factor is the ratio of the Cs, or the factor with the largest dual objective if that is smaller: without losses
    a solution does not depend on C.
    """

    @in_double
    def scale(problem: BoxProblem, point: Point, known: Screening | None) -> NextStart:
        wide, narrow = widened(problem), problem.dtype
        a, p = point.a.astype(wide.dtype), of_bits(point.products)
        best = (wide.targets @ a) / jnp.maximum(a @ p, jnp.finfo(wide.dtype).tiny)
        factor = jnp.minimum(wide.C / point.C.astype(wide.dtype), jnp.maximum(best, 1))
        none = jnp.zeros_like(wide.present)
        inactive, at_bound = (none, none) if known is None else (known.inactive, known.at_bound)
        decided, fixed = inactive | at_bound, jnp.where(at_bound, wide.upper, 0)
        # A sample at its bound stays at its bound: one rounding of the factor is no change, nor room to move.
        moved = decided & _differ(fixed, factor * a)
        base = jnp.where(moved, fixed, factor * a)
        inside = _differ(wide.upper, factor * a) & (factor * a < wide.upper)
        start = jnp.where(decided, fixed, jnp.where(inside, factor * a, wide.upper)).astype(narrow)
        q = factor * p
        if known is not None:
            q = q + wide.signed.few_rows_matvec(jnp.where(moved, fixed - factor * a, 0))
        kept = wide.present & ~decided
        free = kept & (start > 0) & (start < problem.upper)
        return NextStart(
            kept=kept,
            start=start,
            base=bits_of(base),
            products=bits_of(q),
            drift=(factor * point.drift + jnp.abs(base) @ lengths(wide)).astype(narrow),
            dual=(base @ (wide.targets - q / 2)).astype(narrow),
            counts=jnp.stack([kept.sum(), free.sum(), moved.sum()]).astype(jnp.int32),
        )

    return scale(problem, point, known)


@Program
def solve_kept(
    problem: BoxProblem, solver: Solver, begin: NextStart, samples: Array | None, gram: Gram, sets: WorkingSet
) -> tuple[Float[Array, " m"], Int[Array, ""], Int[Array, " 2"], Bool[Array, ""]]:
    """Solve for the undecided samples, with all others at their values.

    It ends at half of `tol`: the better a solution, the more it says of the next one, and the more values of C it
    solves. The gap is that of the whole problem, to which the other samples add nothing.

    Args:
        problem: The whole problem.
        solver: The solver whose `tol` the whole problem is to meet.
        begin: The start.
        samples: Samples to solve for, `(m,)`; None: all, of which the decided ones stay as they are.
        gram: The Gram operator of these samples, stored.
        sets: Working sets, for more than `MEASURED.samples_of_short_rows` samples.

    Returns:
        The values, the steps, the kernel evaluations in limbs, and whether it ended.
    """
    names = ("y", "q", "weights", "squares") + (() if problem.c is None else ("c",))
    fields = {name: getattr(problem, name) for name in names}
    whole = {**fields, "kept": begin.kept, "start": begin.start}
    at = {"base": begin.base, "products": begin.products}
    if samples is not None:
        whole, at = jax.tree.map(lambda leaf: leaf[samples], (whole, at))
    kept, start, weight = (whole.pop(name) for name in ("kept", "start", "weights"))
    # Decided samples have no room to move, and act on the others through their products alone.
    view = dataclasses.replace(problem, gram=gram, weight=jnp.where(kept, weight, 0), **whole)

    def products_at(view: Any, at: Any, a: Array) -> Array:
        wide = widened(view)
        a, before = a.astype(wide.dtype), of_bits(at["base"])
        change, moved = a - before, kept & _differ(a, before)
        # For a change the data's precision and the stored values suffice.
        small = view.signed.few_rows_matvec(jnp.where(moved, change, 0).astype(view.dtype))
        return bits_of(of_bits(at["products"]) + small)

    x, p = _narrow(at["base"], view.dtype), _narrow(at["products"], view.dtype)

    def gap_of(state: Any) -> Array:
        pull = view.q - state.s
        if view.c is not None:  # with a bias in the middle of the violations: no sorting
            pull = pull - view.c * sum(ends(view, state.a, state.s)) / 2
        return (view.upper - state.a) @ jnp.maximum(pull, 0) + state.a @ jnp.maximum(-pull, 0)

    def excess(state: Any) -> Array:
        # The dual objective at the state; that of the start may be decades away, or 0.
        dual = begin.dual + jnp.where(kept, state.a - x, 0) @ (view.q - (p + state.s) / 2)
        return _over(gap_of(state), 0.5 * solver.tol * dual)

    a = jnp.where(kept, start, 0)
    if len(a) <= MEASURED.samples_of_short_rows:
        state, steps, last = _by_steps(view, at, products_at, excess, a)
    else:
        state, _, last = _by_sets(view, sets, in_double(products_at)(view, at, a), excess, a)
        steps = state.counters.toward
    return state.a, steps, state.counters.evaluations, ~(last > 1)


def _over(value: Array, threshold: Array) -> Array:
    """Return a value over its threshold, which may be 0 or negative: then 0 or infinite."""
    return jnp.where(value > threshold, jnp.where(threshold > 0, value / threshold, jnp.inf), 0)


def _narrow(bits: Array, dtype: Any) -> Array:
    return in_double(lambda bits: of_bits(bits).astype(dtype))(bits)


@Program
def filled_in(begin: NextStart, samples: Array | None, inside: Array) -> Array:
    """Return the whole point: undecided samples at their new values, the others as they were."""
    values = inside if samples is None else begin.start.at[samples].set(inside)
    return jnp.where(begin.kept, values, begin.start)


def _by_steps(view: Any, at: Any, products_at: Any, excess: Any, a: Array) -> tuple[Any, Array, Array]:
    """Solve by pair steps along whole rows; a running gap that seems small is checked with exact products.

    The gap is computed every 32 steps. After 10 steps per sample, from 10,000 to 50,000, a fit of the whole problem is
    faster.
    """

    def exact(state: Any) -> Any:
        return state._replace(s=in_double(sums)(view, at, state.a))

    def sums(view: Any, at: Any, a: Array) -> Array:
        return of_bits(products_at(view, at, a)).astype(view.dtype)

    def round(before: State, left: Array) -> tuple[State, Array, Array]:
        del left
        state = fori_loop(0, 32, lambda _, state: SMO().step(view, state), before)
        state = once(excess(state) <= 1, exact, state)
        return state, state.counters.steps - before.counters.steps, excess(state)

    s = _narrow(at["products"], a.dtype)  # but for the rounding of a
    state = State(a, s, jnp.zeros((), a.dtype), jnp.asarray(False), Counters.zero())
    return solve_whole(round, state, min(max(10 * len(a), 10_000), 50_000), excess(state))


def _by_sets(view: Any, sets: WorkingSet, products: Array, excess: Any, a: Array) -> tuple[Any, Array, Array]:
    """Solve by working sets of the samples that violate, with exact products from the start."""
    s = _narrow(products, a.dtype)
    exact = products if a.dtype != jnp.float64 else None

    def round(before: Any, left: Array) -> tuple[Any, Array, Array]:
        del left
        state = sets.step(view, before)
        return state, state.counters.steps - before.counters.steps, excess(state)

    state = sets.begun(view, {"a": a, "s": s, "exact": exact})
    return solve_whole(round, state, jnp.minimum(sets_at_once(len(a)), sets.max_steps), excess(state))


@Program
def joined(
    problem: BoxProblem, solver: Solver, begin: NextStart, samples: Array | None, inside: Array
) -> tuple[Point, Array]:
    """Return the whole problem's point, not yet certified, and how many kernel rows were computed.

    Products are computed from scratch once rounding may have grown to `2 sqrt(n)` roundings of their terms.
    """
    point = filled_in.function(begin, samples, inside)

    @in_double
    def join(problem: BoxProblem, solver: Solver, begin: NextStart, point: Array) -> Any:
        wide = widened(problem)
        a, base = point.astype(wide.dtype), of_bits(begin.base)
        moved = _differ(a, base)
        change = jnp.where(moved, a - base, 0)
        s = of_bits(begin.products) + wide.signed.few_rows_matvec(change)
        # A certificate makes no room for rounding that was multiplied by every factor of C.
        fresh, drift = a @ lengths(wide), begin.drift + jnp.abs(change) @ lengths(wide)
        lost = drift > 2.0 * problem.n**0.5 * fresh
        s, drift = once(lost, lambda _: (wide.matvec(a), fresh), (s, drift))
        products = bits_of(s)
        count = jnp.where(lost, problem.n, moved.sum()).astype(jnp.int32)
        return products, drift.astype(problem.dtype), count, *validity(problem, solver, point, products)

    products, drift, moved, *valid = join(problem, solver, begin, point)
    return Point(point, products, problem.C, drift, None, None, *valid), moved
