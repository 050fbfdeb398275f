"""jaxsvm: support vector machines that compile, vectorise, differentiate and prove their own answers.

A kernel makes a Gram operator, a Gram operator and labels make a problem, a solver turns a problem into a fit that
carries its own proof of quality:

    gram = jaxsvm.gram(RBF(gamma=0.1), x)
    problem = jaxsvm.svm_problem(gram, y, C=1.0)
    fit = jaxsvm.fit(problem, jaxsvm.FrankWolfe(tol=1e-4))
"""

__version__ = "0.1.0"

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from jaxsvm.runtime import startup  # noqa: F401 (before JAX is imported)

# isort: split
from jaxsvm import datasets, kernels, screening
from jaxsvm.errors import (
    ConvergenceError,
    ConvergenceWarning,
    DataError,
    InputError,
    MissingPackageError,
    PrecisionWarning,
)
from jaxsvm.gram.build import gram
from jaxsvm.loop import implicit
from jaxsvm.loop.driver import fit
from jaxsvm.model_selection.cross_validation import C_grid, CrossValidation, WidthValidation, cross_validate
from jaxsvm.models import interchange
from jaxsvm.models.enclosing_ball import Ball, ball, is_coreset
from jaxsvm.models.machines import Machines, fit_many, one_versus_one, one_versus_rest
from jaxsvm.models.model import Model, compact, decision_function, load_model, predict
from jaxsvm.path.solve import Path, solve_path
from jaxsvm.problems import slack
from jaxsvm.problems.ball import meb_problem
from jaxsvm.problems.box import box_problem, hinge_problem
from jaxsvm.problems.machines import nu_problem, one_class_problem, svr_problem
from jaxsvm.problems.padding import shard_rows
from jaxsvm.problems.slack import slack_problem
from jaxsvm.problems.squared_hinge import svm_problem
from jaxsvm.problems.water_level import water_level, water_level_with_bias
from jaxsvm.results.fit import Certificate, Fit, History, Status, check
from jaxsvm.runtime.executables import keep_programs
from jaxsvm.runtime.loops import shard_lanes
from jaxsvm.solvers.around.equivalent_hinge import EquivalentHinge
from jaxsvm.solvers.around.on_simplex import polished, sampled
from jaxsvm.solvers.box.interior_point import InteriorPoint
from jaxsvm.solvers.box.sequential_minimal_optimization import SMO
from jaxsvm.solvers.box.single_samples import SDCA, Perceptron
from jaxsvm.solvers.simplex.core_vector_machine import CoreVectorMachine
from jaxsvm.solvers.simplex.frank_wolfe import FrankWolfe
from jaxsvm.solvers.simplex.newton import Newton
from jaxsvm.solvers.stochastic.stochastic_batch_perceptron import HeldOut, StochasticBatchPerceptron
from jaxsvm.solvers.working_set import WorkingSet

if TYPE_CHECKING:
    from jaxsvm import coresets, designs, estimators, plots, relational  # noqa: F401
    from jaxsvm.model_selection.tune import Tuned, tune
    from jaxsvm.solvers.stochastic.pegasos import BallSGD, Pegasos

_MODULES = ("coresets", "designs", "estimators", "plots", "relational")
_NAMES = {
    "BallSGD": "jaxsvm.solvers.stochastic.pegasos",
    "Pegasos": "jaxsvm.solvers.stochastic.pegasos",
    "Tuned": "jaxsvm.model_selection.tune",
    "tune": "jaxsvm.model_selection.tune",
}
"""What is imported where it is first asked for, with optax and SciPy: a third of the time that `import jaxsvm` adds to
jax's own."""
_ROOMS = {
    "estimators": ("SVC", "SVR", "CoresetSVC", "LinearSVC", "NuSVC", "NuSVR", "OneClassSVM",
                   "PegasosClassifier", "SBPClassifier", "SVCPath"),
    "kernels": kernels.__all__, "datasets": datasets.__all__, "screening": screening.__all__,
}  # fmt: skip
"""Names that are looked for here and stand in a room."""
for _module in (implicit, interchange, slack):  # `import jaxsvm.slack`: each lies in another room
    sys.modules[f"jaxsvm.{_module.__name__.rpartition('.')[2]}"] = _module


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"jaxsvm.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    found = next((f": `jaxsvm.{room}.{name}` is meant" for room, names in _ROOMS.items() if name in names), "")
    raise AttributeError(f"module 'jaxsvm' has no attribute {name!r}{found}")


def __dir__() -> list[str]:
    """Return the public names; scikit-learn's interface if it can be imported (`help` looks at each)."""
    return sorted({*__all__, *_MODULES} - (set() if importlib.util.find_spec("sklearn") else {"estimators"}))


__all__ = [
    "Ball",
    "BallSGD",
    "C_grid",
    "Certificate",
    "ConvergenceError",
    "ConvergenceWarning",
    "CoreVectorMachine",
    "CrossValidation",
    "DataError",
    "EquivalentHinge",
    "Fit",
    "FrankWolfe",
    "HeldOut",
    "History",
    "InputError",
    "InteriorPoint",
    "Machines",
    "MissingPackageError",
    "Model",
    "Newton",
    "Path",
    "Pegasos",
    "Perceptron",
    "PrecisionWarning",
    "SDCA",
    "SMO",
    "Status",
    "StochasticBatchPerceptron",
    "Tuned",
    "WidthValidation",
    "WorkingSet",
    "ball",
    "box_problem",
    "check",
    "compact",
    "coresets",
    "cross_validate",
    "datasets",
    "decision_function",
    "designs",
    "fit",
    "fit_many",
    "gram",
    "hinge_problem",
    "implicit",
    "interchange",
    "is_coreset",
    "keep_programs",
    "kernels",
    "load_model",
    "meb_problem",
    "nu_problem",
    "one_class_problem",
    "one_versus_one",
    "one_versus_rest",
    "polished",
    "predict",
    "relational",
    "sampled",
    "screening",
    "shard_lanes",
    "shard_rows",
    "slack",
    "slack_problem",
    "solve_path",
    "svm_problem",
    "svr_problem",
    "tune",
    "water_level",
    "water_level_with_bias",
]
