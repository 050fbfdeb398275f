"""Warm chains: each value of C from the solution of another.

alpha stays feasible and `s` moves by `alpha (1/C' - 1/C)`, so that no matrix-vector product is needed (spec 6.2).
Chains go one value after another on the host; as lanes on the host, which loads them and leaves out those that have
nothing left to do; as fixed lanes under tracing, where nobody can look.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.loop import advance, begin, certify, drive, due, earned_polish, finish, fit_compiled, warn_unless_converged
from jaxsvm.result import Fit, Status

CHUNKS = 4
"""Chunks of steps between two looks at the lanes: a lane that is done waits for the others as long as that."""

Build = Callable[[Any], Any]
Found = Callable[[int, Fit], Any] | None


def chain_on_host(build: Build, solver: Any, Cs: np.ndarray, key: Array, found: Found = None) -> Fit:
    """One warm chain in increasing order of C.

    Args:
        build: What makes the problem of a value.
        solver: A solver's configuration.
        Cs: The values, `(k,)`, in any order.
        key: A random key.
        found: Called with place and fit of each value.

    Returns:
        The fits, a leading axis of k, in the order of `Cs`. After Ctrl-C the values left get one chunk of steps each.
    """
    fits: dict[int, Fit] = {}
    warm, seconds = None, None
    for place in np.argsort(Cs, kind="stable").tolist():
        fitted = drive(build(Cs[place]), solver, key, warm, seconds)
        fits[place] = fitted
        seconds = 0.0 if fitted.status == Status.INTERRUPTED else None
        warm = (fitted.alpha, fitted.margins)
        if found is not None:
            found(place, fitted)
    return _in_order(fits)


def chains_in_lanes(build: Build, solver: Any, Cs: np.ndarray, key: Array, lanes: int, found: Found = None) -> Fit:
    """As many values at a time as there are lanes, each lane from the nearest value that is solved.

    A lane that ends loads its next value (its own share of the grid first, then another's); when none is left, lanes
    that still run move together into the next power of two, so that nothing is computed for those that ended.

    Args:
        build: As for `chain_on_host`; what the problems have in common (the Gram operator) is not copied.
        solver: As for `chain_on_host`.
        Cs: As for `chain_on_host`.
        key: As for `chain_on_host`.
        lanes: How many, >= 1.
        found: As for `chain_on_host`.

    Returns:
        As `chain_on_host`; after Ctrl-C the values left keep the point they would have started from.
    """
    lanes = min(lanes, len(Cs))
    shares = [part.tolist() for part in np.array_split(np.argsort(Cs, kind="stable"), lanes)]
    places = [share.pop(0) for share in shares]
    problems = [build(Cs[place]) for place in places]
    shape = _Shape.of(problems[0], build(Cs[places[0]]))
    own = _stack([shape.own(problem) for problem in problems])
    shared = shape.shared(problems[0])
    progress = _stack([_begin(problem, solver, key, None) for problem in problems])
    fits: dict[int, Fit] = {}

    def settle(lane: int) -> None:
        fits[places[lane]] = fitted = _finish(build(Cs[places[lane]]), solver, _lane(progress, lane))
        warn_unless_converged(fitted, solver)
        if found is not None:
            found(places[lane], fitted)

    def start(place: int) -> tuple[Any, Any]:
        nearest = min(fits, key=lambda other: abs(np.log(Cs[place] / Cs[other])))
        problem = build(Cs[place])
        return problem, _begin(problem, solver, key, (fits[nearest].alpha, fits[nearest].margins))

    running = set(range(lanes))
    try:
        while running:
            progress, wanted, earned = _advance(shared, own, solver, progress, shape)
            if np.asarray(wanted).any():
                progress = _certify(shared, own, solver, progress, shape, bool(np.asarray(earned & wanted).any()))
            codes = np.asarray(progress.status)
            for lane in [lane for lane in sorted(running) if codes[lane] != Status.RUNNING]:
                settle(lane)
                share = shares[lane] or max(shares, key=len)
                if not share:
                    running.remove(lane)
                    continue
                place = share.pop(0 if share is shares[lane] else -1)
                problem, fresh = start(place)
                own, progress = _load(own, shape.own(problem), lane), _load(progress, fresh, lane)
                places[lane] = place  # last, so that Ctrl-C never meets a value with another one's progress
            width = 1 << max(len(running) - 1, 0).bit_length()
            if running and width <= len(places) // 2:
                kept = (sorted(running) + [lane for lane in range(len(places)) if lane not in running])[:width]
                places = [places[lane] for lane in kept]
                own, progress = _gather(own, np.asarray(kept)), _gather(progress, np.asarray(kept))
                shares, running = [[] for _ in kept], set(range(len(running)))
    except KeyboardInterrupt:
        interrupted = jnp.asarray(int(Status.INTERRUPTED), jnp.int32)
        codes = progress.status
        progress = progress._replace(status=jnp.where(codes == Status.RUNNING, interrupted, codes))
        for lane in sorted(running):
            if places[lane] not in fits:
                settle(lane)
        for place in [place for place in range(len(Cs)) if place not in fits]:
            problem, fresh = start(place)
            fits[place] = _finish(problem, solver, fresh._replace(status=interrupted))
    return _in_order(fits)


def chains_traced(build: Build, solver: Any, Cs: Float[Array, " k"], key: Array, lanes: int) -> Fit:
    """Fixed lanes of one computation; each is a chain through neighbouring values in increasing order.

    Args:
        build: As for `chain_on_host`.
        solver: As for `chain_on_host`.
        Cs: As for `chain_on_host`.
        key: As for `chain_on_host`.
        lanes: How many, >= 1.

    Returns:
        As `chain_on_host`.
    """
    k = Cs.shape[0]
    lanes = min(lanes, k)
    length = -(-k // lanes)
    order = jnp.argsort(Cs)
    # Every chain is `length` long: the last one repeats its last value, which costs one certification.
    places = jnp.minimum(jnp.arange(lanes * length), k - 1).reshape(lanes, length)

    def chain(values: Float[Array, " length"]) -> Fit:
        first = fit_compiled(build(values[0]), solver, key)

        def link(warm: Any, C: Any) -> Any:
            fitted = fit_compiled(build(C), solver, key, warm)
            return (fitted.alpha, fitted.margins), fitted

        _, rest = lax.scan(link, (first.alpha, first.margins), values[1:])
        return jax.tree.map(lambda head, tail: jnp.concatenate([head[None], tail]), first, rest)

    chained = jax.vmap(chain)(Cs[order][places])
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:k], chained)
    inverse = jnp.argsort(order)
    return jax.tree.map(lambda leaf: leaf[inverse], flat)


class _Shape(tuple):
    """How a problem falls apart into what all lanes share and what each has of its own: hashable, so static.

    The tree of a problem, and for each leaf whether two problems of one maker hold the very same array.
    """

    @classmethod
    def of(cls, problem: Any, other: Any) -> "_Shape":
        leaves, tree = jax.tree.flatten(problem)
        return cls((tree, tuple(a is b for a, b in zip(leaves, jax.tree.leaves(other), strict=True))))

    def shared(self, problem: Any) -> list[Array]:
        return [leaf for leaf, common in zip(jax.tree.leaves(problem), self[1], strict=True) if common]

    def own(self, problem: Any) -> list[Array]:
        return [leaf for leaf, common in zip(jax.tree.leaves(problem), self[1], strict=True) if not common]

    def join(self, shared: list[Array], own: list[Array]) -> Any:
        pools = {True: iter(shared), False: iter(own)}
        return jax.tree.unflatten(self[0], [next(pools[common]) for common in self[1]])


@partial(jax.jit, static_argnames="shape")
def _advance(shared: Any, own: Any, solver: Any, progress: Any, shape: _Shape) -> tuple[Any, Array, Array]:
    """Some chunks in each lane, and which lanes wait for a certification, or have earned a polish."""

    def one(own: Any, progress: Any) -> tuple[Any, Array, Array]:
        progress = advance(shape.join(shared, own), solver, progress, CHUNKS)
        wanted = (progress.status == Status.RUNNING) & due(solver, progress)
        return progress, wanted, earned_polish(shape.join(shared, own), solver, progress)

    return jax.vmap(one)(own, progress)


@partial(jax.jit, static_argnames=("shape", "may_polish"))
def _certify(shared: Any, own: Any, solver: Any, progress: Any, shape: _Shape, may_polish: bool) -> Any:
    """Certificates for the lanes that wait for one; the products of all lanes are one."""

    def one(own: Any, progress: Any) -> Any:
        wanted = (progress.status == Status.RUNNING) & due(solver, progress)
        certified = certify(shape.join(shared, own), solver, progress, may_polish)
        return jax.tree.map(lambda new, old: jnp.where(wanted, new, old), certified, progress)

    return jax.vmap(one)(own, progress)


@jax.jit
def _load(lanes: Any, item: Any, lane: Any) -> Any:
    return jax.tree.map(lambda leaf, new: leaf.at[lane].set(new), lanes, item)


@jax.jit
def _gather(lanes: Any, kept: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[kept], lanes)


_begin = jax.jit(begin)
_finish = jax.jit(finish)


def _lane(lanes: Any, lane: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[lane], lanes)


def _stack(items: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *items)


def _in_order(fits: dict[int, Fit]) -> Fit:
    return _stack([fits[place] for place in range(len(fits))])
