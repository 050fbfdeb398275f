"""Pad problems with absent samples: a problem of n samples is solved as one of few sizes, which share programs.

A sample of weight 0 is exactly absent: it enters no sum, and steps never take it. So 1,000 and 1,010 samples are both
padded to 1,024, and the second n compiles nothing. Drivers pad problems and cut results by NumPy, which compiles
nothing either. Absent samples are copies of the first one, so that no kernel meets a point that its user did not give.

Nothing is padded under tracing, where the user's program has one size; with stored kernel values, whose copy costs more
than programs; with CSR points, whose number of entries is a size of its own. What is spread over a mesh is always
padded: `shard_rows` gives each device the same number of points, and drivers lay out the vectors in the same way.
"""

import dataclasses
from typing import Any, TypeVar, cast

from jax.sharding import Mesh

from jaxsvm.errors import is_concrete
from jaxsvm.gram.operators import Gram
from jaxsvm.gram.spread import SpreadGram, spread_over
from jaxsvm.numerics.sizes import size_class
from jaxsvm.problems.ball import BallProblem
from jaxsvm.problems.contract import Problem, require_problem
from jaxsvm.problems.samples import OfSamples
from jaxsvm.results.fit import Fit
from jaxsvm.runtime.arrays import checked, computed, lengthened
from jaxsvm.runtime.loops import Spread

P = TypeVar("P", bound=Problem)
S = TypeVar("S", bound=OfSamples)


def padded(problem: P, gram: Gram | None = None) -> P:
    """Return a problem padded to its size class, on `gram` if another problem has it already; or as it is."""
    if isinstance(problem.gram, SpreadGram):
        return _on_mesh(problem, gram)
    return _padded(problem, gram) if isinstance(problem, OfSamples) and is_concrete(problem) else problem


@checked
def shard_rows(problem: P, mesh: Mesh, axis: str | None = None) -> P:
    """Return the same problem with its points, or its stored kernel values, laid out over the devices of a mesh.

    `fit`, `solve_path`, `fit_many` and `cross_validate` take it as they take any problem, inside `jit` and `vmap` too;
    answers have the caller's n entries. Each device computes with its own rows; a step of a solver moves a few numbers
    and the chosen rows. `docs/mesh.md` says how each solver does it.

    Args:
        problem: A problem of dense points, features or a given kernel matrix; or machines of several classes. Any n:
            absent samples fill up the devices' shares.
        mesh: The devices: a `jax.sharding.Mesh`, of one or several processes.
        axis: The axis of the mesh along which samples lie; None: the first one.

    Raises:
        InputError: On sparse points, or a mesh without such an axis.
    """
    if not hasattr(problem, "gram"):
        require_problem(problem)
    spread = Spread.over(mesh, axis)
    operators = {"gram", getattr(problem, "operator", "gram")}
    laid_out: Any = {name: spread_over(getattr(problem, name), spread) for name in operators}
    # Vectors of n entries are on every device: for one that XLA may lay out unevenly, jax 0.9 has no name.
    rest = spread.placed(dataclasses.replace(cast(Any, problem), **dict.fromkeys(operators)))
    return dataclasses.replace(rest, **laid_out)


def _on_mesh(problem: Any, gram: Gram | None) -> Any:
    """Return a problem of `shard_rows` with its `whole` operators, and its vectors padded and laid out like these."""
    held: SpreadGram = getattr(problem, problem.operator)
    points: Any = problem.gram
    size = held.whole.n
    spread = cast(Spread, held.spread)
    operators = {"gram": points.whole, problem.operator: held.whole if gram is None else gram}
    return dataclasses.replace(problem, **spread.placed(_lengthened(problem, size), size), **operators)


def _lengthened(problem: Any, size: int) -> dict[str, Any]:
    """Return the vectors of a problem with absent samples up to a size."""
    ball = isinstance(problem, BallProblem)
    names = ("squares",) if ball else problem.vectors
    vectors = {name: vector for name in names if (vector := getattr(problem, name)) is not None}
    absent = {"mask": problem.present} if ball else {"weight": problem.weights}
    return lengthened(vectors, size) | lengthened(absent, size, 0)


def _padded(problem: S, gram: Gram | None) -> S:
    size = size_class(problem.n)
    if size == problem.n and problem.weight is not None and gram is None:
        return problem
    gram = problem.gram.lengthened(size) if gram is None else gram
    if gram is None:
        return problem
    return dataclasses.replace(problem, gram=gram, **_lengthened(problem, size))


def trimmed(fit: Fit, n: int) -> Fit:
    """Cut a fit, or fits with leading axes, to n samples."""
    size = fit.alpha.shape[-1]
    if size == n:
        return fit
    long = {name: getattr(fit, name) for name in ("alpha", "dual_coef", "margins")}
    return dataclasses.replace(fit, **computed(lambda _, long: {name: of[..., :n] for name, of in long.items()}, long))
