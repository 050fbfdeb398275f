"""Several classes: machines of two classes each, on one Gram operator, solved together.

One machine separates a class from the rest, or the two classes of a pair. All are problems of the same n samples, since
a pair leaves the other classes out by weights of 0. So their arrays stack, and `fit_many` solves them as lanes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError, is_concrete, require, require_part
from jaxsvm.gram.operators import Gram
from jaxsvm.loop.choice import first_choice
from jaxsvm.loop.differentiation import differentiable
from jaxsvm.loop.driver import Options, drive, fit
from jaxsvm.loop.interruption import Interruption, answering
from jaxsvm.loop.round import ready_together
from jaxsvm.loop.small import solve_many
from jaxsvm.path.chains import nothing, stacked
from jaxsvm.problems.contract import Problem
from jaxsvm.problems.padding import trimmed
from jaxsvm.problems.samples import checked
from jaxsvm.results.fit import Fit
from jaxsvm.runtime.arrays import computed, given_key, in_a_line, on_device, transfers
from jaxsvm.runtime.loops import host_drives
from jaxsvm.solvers.contract import Solver


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Machines:
    """m problems of two classes on one Gram operator. A pytree; build it with `one_versus_rest` or `one_versus_one`.

    `machines[i]` is problem i, and `list(machines)` goes into `solve_path`.

    Attributes:
        gram: The Gram operator of the n samples.
        lanes: The problems without it: each array has an axis of m first.
        classes: k, the number of classes; static.
        by_pairs: Whether each machine separates two classes, in LIBSVM's order (0, 1), (0, 2), ..., (1, 2), ...; else
            machine c separates class c from the rest; static.
    """

    __repr__ = in_a_line

    gram: Gram
    lanes: Problem
    classes: int = dataclasses.field(metadata={"static": True})
    by_pairs: bool = dataclasses.field(metadata={"static": True})

    def __len__(self) -> int:
        return self.classes * (self.classes - 1) // 2 if self.by_pairs else self.classes

    def __getitem__(self, i: int) -> Problem:
        if not -len(self) <= i < len(self):
            raise IndexError(f"there are {len(self)} machines: there is no number {i}")
        lane = jax.tree.map(lambda leaf: computed(lambda _, values: values[i], leaf), self.lanes)
        return dataclasses.replace(lane, gram=self.gram)

    def __iter__(self) -> Iterator[Problem]:
        return (self[i] for i in range(len(self)))


@transfers
def one_versus_rest(make: Callable[[Any], Problem], labels: ArrayLike, classes: int | None = None) -> Machines:
    """Build k problems on one Gram operator, each of one class against the rest.

    Examples:
        >>> machines = jaxsvm.one_versus_rest(partial(jaxsvm.hinge_problem, gram, C=10.0), codes)
        >>> jaxsvm.predict(jaxsvm.fit_many(machines), machines, x_new)

    Args:
        make: Builds the problem of signs `(n,)`, such as `partial(jaxsvm.hinge_problem, gram, C=10.0)`, with the Gram
            operator made outside.
        labels: Class codes 0 to k - 1, integers `(n,)`; `names, codes = np.unique(y, return_inverse=True)` makes them
            of any labels.
        classes: k; None: one more than the largest label. Inside `jit`, where labels are traced, it must be given.

    Returns:
        The machines, +1 for their class, for `fit_many`.

    Raises:
        InputError: On labels that are no codes of k >= 2 classes, or on a class without samples. Under tracing the
            status of such machines is INFEASIBLE instead.
    """
    return _machines(make, labels, classes, by_pairs=False)


@transfers
def one_versus_one(make: Callable[[Any], Problem], labels: ArrayLike, classes: int | None = None) -> Machines:
    """Build k (k - 1) / 2 problems on one Gram operator, one for each pair of classes.

    The arguments are those of `one_versus_rest`. Weights of samples of other classes than the pair's become 0.

    Returns:
        The machines, in LIBSVM's order of pairs, +1 for the first class of each, for `fit_many`.
    """
    return _machines(make, labels, classes, by_pairs=True)


def _checked(labels: Any, classes: int | None) -> tuple[Any, int]:
    """Return class codes, a NumPy array `(n,)` where they are concrete, and the number of classes."""
    codes = np.asarray(labels) if is_concrete(labels) else labels
    integral = codes.ndim == 1 and np.issubdtype(codes.dtype, np.integer)
    need = "class codes 0 to k - 1, integers (n,), are needed: `np.unique(labels, return_inverse=True)[1]` makes them."
    require(integral, f"labels is an array {codes.shape} of {codes.dtype}: {need}")
    if codes.dtype.itemsize < 4:
        codes = codes.astype(np.int32)  # which holds any k
    known = is_concrete(codes)
    require(classes is not None or known, "classes is None: give the number of classes inside jit, as in `classes=3`.")
    k = int(codes.max(initial=0)) + 1 if classes is None else classes
    require(k >= 2, f"classes is {k}: two or more are needed.")
    if known:
        found = np.unique(codes).tolist()
        whole = len(found) == k and [found[0], found[-1]] == [0, k - 1]
        need = f"samples of each class from 0 to {k - 1} are needed, and no others."
        require(whole, f"labels has the class codes {str(found)[:80]}: {need}")
    return codes, k


def _machines(make: Callable[[Any], Any], labels: Any, classes: int | None, by_pairs: bool) -> Machines:
    """Build the machines of signs `(m, n)`, of pairs among the samples that are present `(m, n)`."""
    codes, k = _checked(labels, classes)
    of_class, xp = codes[None, :] == np.arange(k, dtype=codes.dtype)[:, None], np if is_concrete(codes) else jnp
    first, second = (of_class[place] for place in np.triu_indices(k, 1)) if by_pairs else (of_class, ~of_class)
    signs, present = xp.where(first, 1, -1), first | second if by_pairs else None

    def built(signs: Any, present: Any) -> Any:
        problem = make(signs)
        require_part("make", problem, "weighted", "a function of signs that returns a problem is needed")
        return dataclasses.replace(problem if present is None else checked(problem.weighted(present)), gram=None)

    example = make(signs[0])
    if is_concrete(example, signs):
        parts = [built(*pair) for pair in zip(signs, [None] * len(signs) if present is None else present, strict=True)]
        lanes = jax.tree.map(lambda *leaves: on_device(np.stack([np.asarray(leaf) for leaf in leaves])), *parts)
    else:
        lanes = jax.vmap(built)(jnp.asarray(signs), None if present is None else jnp.asarray(present))
    if not is_concrete(codes):
        lanes = dataclasses.replace(lanes, feasible=lanes.feasible & ((codes >= 0) & (codes < k)).all())
    return Machines(example.gram, lanes, k, by_pairs)


@transfers
def fit_many(
    machines: Machines,
    solver: Solver | None = None,
    *,
    tol: ArrayLike | None = None,
    key: Array | None = None,
    max_seconds: float | None = None,
    callback: Callable[[int, Fit], Any] | None = None,
    interrupt: str = "return",
) -> Fit:
    """Solve all machines of several classes.

    Inside `jit`, `vmap` and `scan` they are lanes of one program. Of concrete ones a hinge of few samples is solved by
    one program, as the estimators' are, and others one after another, as `fit` solves each.

    Args:
        machines: From `one_versus_rest` or `one_versus_one`.
        solver: A solver's configuration; None chooses as `fit` does.
        tol: The relative duality gap of each, > 0, if no solver is named; None: 1e-4.
        key: A random key for solvers that draw; all machines use it.
        max_seconds: Begin no machine after about so many seconds, and end the running one.
        callback: Called after each machine with its number and its fit (concrete arrays only).
        interrupt: What Ctrl-C does: "return" returns what is certified, "raise" raises KeyboardInterrupt.

    Returns:
        A fit whose every field has an axis of machines first: `predict(fits, machines, x_new)`. Differentiable with
        respect to the machines. What Ctrl-C or the time limit left out is INTERRUPTED with an infinite gap.

    Raises:
        KeyboardInterrupt: As `interrupt` says.
    """
    require_part("machines", machines, "by_pairs", "`one_versus_rest` or `one_versus_one` makes them")
    if solver is not None and tol is not None:
        raise InputError("tol is for fits without a solver of their own: name it there, as in `WorkingSet(tol=1e-3)`.")
    given = (machines, solver, tol, key)
    concrete = is_concrete(given)
    constant = given if concrete else lax.stop_gradient(given)
    if host_drives(machines.gram, concrete=concrete) and is_concrete(constant):
        with answering(interrupt) as stop, stop.within(max_seconds):
            fits = _one_by_one(*constant, stop, callback)
        if concrete:
            return stacked(fits)
        pairs = zip(machines, fits, strict=True)  # traced for derivatives alone
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(differentiable(*pair) for pair in pairs))
    require(max_seconds is callback is None, "callback and max_seconds need concrete arrays, outside jit and vmap.")

    def solved(lane: Problem) -> Fit:
        return fit(dataclasses.replace(lane, gram=machines.gram), solver, tol=tol, key=key)

    lanes = jax.vmap(solved)
    return (jax.jit(lanes) if is_concrete(constant) else lanes)(machines.lanes)


def _one_by_one(machines: Machines, solver: Any, tol: Any, key: Any, stop: Interruption, callback: Any) -> list[Fit]:
    """Solve concrete machines in order, until Ctrl-C or the time limit."""
    key, tol = given_key(key), 1e-4 if tol is None else tol
    options, n = Options(may_change=solver is None), machines.gram.n
    solvers = [first_choice(problem, tol) if solver is None else solver for problem in machines]
    problems = ready_together(list(machines), solvers, until=lambda: stop.seen)

    def solved(given: tuple[Problem, Solver]) -> Fit:
        problem, each = given
        return trimmed(nothing(problem) if stop.seen else drive(problem, each, key, stop=stop, options=options), n)

    def ended(place: int, fitted: Fit) -> Fit:
        try:
            if callback is not None and not stop.seen:
                callback(place, fitted)
        except KeyboardInterrupt:
            stop.note()
        except BaseException:
            stop.came = True  # end the other threads
            raise
        return fitted

    given = list(zip(problems, solvers, strict=True))
    return solve_many(solved, given, ended)


def votes(decisions: Any, k: int) -> Int[Any, " m"]:
    """Return the class with the most votes of all pairs, the first of equals, `(m,)` integers below k.

    Decision values have one column per pair, `(m, k (k - 1) / 2)`, positive for its first class.
    """
    xp = np if is_concrete(decisions) else jnp
    count = [xp.zeros(decisions.shape[0], np.int32)] * k
    for column, (i, j) in enumerate(combinations(range(k), 2)):
        positive = (decisions[:, column] > 0).astype(np.int32)
        count[i], count[j] = count[i] + positive, count[j] + (1 - positive)
    return xp.stack(count, axis=1).argmax(axis=1)
