"""The options of a path, checked once; the problems of its widths."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array

from jaxsvm.errors import InputError, is_concrete, require_finite
from jaxsvm.gram.widths import at_widths, require_width
from jaxsvm.loop.choice import exact_solver
from jaxsvm.path.coarse_to_fine.grid import CoarseToFine
from jaxsvm.path.reduction import NearMargin, Reduction
from jaxsvm.problems.contract import Parametric, require_problem
from jaxsvm.results.fit import Fit
from jaxsvm.runtime.checks import require_function, require_seconds, require_whole
from jaxsvm.screening.reference import require_screenable
from jaxsvm.screening.rules import Rule, Safe
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.validation import require_usable


@dataclasses.dataclass(frozen=True)
class PathOptions:
    """How to solve a path. `jaxsvm.solve_path` describes each option.

    Attributes:
        key: A random key for solvers that draw.
        solver: The user's solver, for warm chains; None chooses one.
        tol: The certified relative duality gap, unless the solver is the user's.
        reduction: Which samples a chain leaves out of the next problem at first; None for none.
        screen: Screening rule of a chain; None for none.
        lanes: How many chains run side by side in one compiled call; None for one chain on the host.
        max_seconds: Seconds after which nothing more begins.
        callback: Called with the place and the fit of each value.
    """

    key: Array
    solver: Solver | None = None
    tol: Any = 1e-4
    reduction: Reduction | None = None
    screen: Rule | None = None
    lanes: int | None = None
    max_seconds: float | None = None
    callback: Callable[[int, Fit], object] | None = None

    @property
    def chained(self) -> bool:
        """Return whether an option asks for warm chains."""
        return any(option is not None for option in (self.solver, self.reduction, self.screen, self.lanes))

    def require(self, problems: Sequence[Any], Cs: Any) -> None:
        """Check the options, problems and values of a path.

        Raises:
            InputError: On arguments that cannot be used.
        """
        if not problems:
            raise InputError("problem is an empty list: at least one problem is needed.")
        for problem in problems:
            require_problem(problem)
            if problem.parameter is None:
                raise InputError(f"problem is a {type(problem).__name__}: it has no C that a path could go along.")
        if len({problem.n for problem in problems}) > 1:
            raise InputError("the problems have different numbers of samples: solve them one after another.")
        checked_values(Cs, problems[0].kind)
        require_usable(CoarseToFine(tol=self.tol) if self.solver is None else self.solver)
        require_seconds(self.max_seconds)
        if self.lanes is not None:
            require_whole("lanes", self.lanes, 1)
            for name in ("max_seconds", "callback", "reduction", "screen"):
                if getattr(self, name) is not None:
                    raise InputError(
                        f"{name} is set and lanes is {self.lanes}: lanes are one compiled call, which cannot obey it; "
                        "leave `lanes` None."
                    )
        self._require_reduction(problems)
        self._require_rule(problems)

    def _require_reduction(self, problems: Sequence[Any]) -> None:
        if self.reduction is None:
            return
        arguments = ("old problem", "fit", "new problem")
        require_function("reduction", self.reduction, arguments, "a reduction, such as `NearMargin()`,")
        if not all(problem.restricts for problem in problems):
            raise InputError("reduction needs problems of `svm_problem`, `hinge_problem` or `box_problem`.")

    def _require_rule(self, problems: Sequence[Any]) -> None:
        if self.screen is None:
            return
        arguments = ("problem", "reference fit", "its C")
        require_function("screen", self.screen, arguments, "a rule of `jaxsvm.screening` or None")
        if isinstance(self.screen, (NearMargin, Safe)):
            raise InputError(f"screen is {self.screen!r}: a reduction, which is for `reduction=`; a rule is needed.")
        if self.reduction is not None:
            raise InputError("screen and reduction are both set: a chain has one reduction; leave one of them None.")
        for problem in problems:
            require_screenable(problem)


def checked_values(Cs: Any, kind: str = "") -> Any:
    """Check a list of positive values, or of nu of a "slack" problem, which may be 0; return it unchanged.

    Raises:
        InputError: On anything else.
    """
    if np.ndim(Cs) != 1 or np.shape(Cs)[0] == 0:
        raise InputError(f"Cs has shape {np.shape(Cs)}: a list of values, shape (k,) with k >= 1, is needed.")
    if is_concrete(Cs) and np.asarray(Cs).dtype.kind not in "iuf":
        raise InputError(f"Cs has dtype {np.asarray(Cs).dtype}: real numbers are needed.")
    require_finite("Cs", Cs)
    least = np.asarray(Cs).min() if is_concrete(Cs) else 1
    if least < 0 or least == 0 and kind != "slack":
        meant = "values of nu must not be negative" if kind == "slack" else "every value must be positive"
        raise InputError(f"Cs holds {float(least)}: {meant}.")
    return Cs


def require_widths(problem: Any, gammas: Any) -> None:
    """Refuse widths that are no list of positive numbers, or a problem whose kernel has none.

    Raises:
        InputError: Naming what was found.
    """
    if isinstance(problem, list | tuple):
        raise InputError("gammas is for one problem: solve several one after another.")
    require_width(problem.gram)
    try:
        checked_values(gammas)
    except InputError as error:
        raise InputError(str(error).replace("Cs", "gammas")) from None


def problems_at_widths(problem: Parametric, gammas: Any, options: PathOptions) -> Iterator[list[Parametric]]:
    """Yield the problem at each width, as a list of one; an operator lives as long as its path is solved."""
    solver = options.solver or exact_solver(problem, options.tol)
    stores = solver.stores(problem)
    for gram in at_widths(problem.gram, np.asarray(gammas, float).tolist(), stores):
        yield [problem.on(gram)]
