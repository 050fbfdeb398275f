"""jaxsvm: support vector machines that compile, vectorise, differentiate and prove their own answers.

A kernel makes a Gram operator, a Gram operator and labels make a problem, a solver turns a problem into a fit that
carries its own proof of quality:

    gram = jaxsvm.gram(RBF(gamma=0.1), x)
    problem = jaxsvm.svm_problem(gram, y, C=1.0)
    fit = jaxsvm.fit(problem, jaxsvm.FrankWolfe(tol=1e-4))
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxsvm import datasets, implicit, kernels, screening
from jaxsvm.ball import Ball, ball, is_coreset, meb_problem
from jaxsvm.cache import keep_programs
from jaxsvm.errors import ConvergenceError, ConvergenceWarning, DataError, InputError, PrecisionWarning
from jaxsvm.gram.build import gram
from jaxsvm.history import History
from jaxsvm.loop import fit
from jaxsvm.model import Model, compact, decision_function, predict
from jaxsvm.model_file import load_model
from jaxsvm.model_selection.cross_validation import C_grid, CrossValidation, cross_validate
from jaxsvm.path.solve import Path, solve_path
from jaxsvm.problems import slack
from jaxsvm.problems.box import box_problem, hinge_problem
from jaxsvm.problems.slack import slack_problem
from jaxsvm.problems.squared_hinge import svm_problem
from jaxsvm.problems.water_level import water_level, water_level_with_bias
from jaxsvm.result import Certificate, Fit, Status, check
from jaxsvm.solvers.core_vector_machine import CoreVectorMachine
from jaxsvm.solvers.dual_coordinate_ascent import SDCA
from jaxsvm.solvers.equivalent_hinge import EquivalentHinge
from jaxsvm.solvers.frank_wolfe import FrankWolfe
from jaxsvm.solvers.interior_point import InteriorPoint
from jaxsvm.solvers.newton import Newton
from jaxsvm.solvers.perceptron import Perceptron
from jaxsvm.solvers.sequential_minimal_optimization import SMO
from jaxsvm.solvers.stochastic_batch_perceptron import StochasticBatchPerceptron
from jaxsvm.solvers.working_set import WorkingSet
from jaxsvm.transforms.polished import polished
from jaxsvm.transforms.sampled import sampled
from jaxsvm.transforms.screened import screened

if TYPE_CHECKING:
    from jaxsvm import coresets, interchange, relational
    from jaxsvm.model_selection.tune import Tuned, tune
    from jaxsvm.solvers.ball_sgd import BallSGD
    from jaxsvm.solvers.pegasos import Pegasos

__version__ = "0.1.0"

_PACKAGES = ("coresets", "interchange", "relational")
_NAMES = {
    "BallSGD": "jaxsvm.solvers.ball_sgd",
    "Pegasos": "jaxsvm.solvers.pegasos",
    "Tuned": "jaxsvm.model_selection.tune",
    "tune": "jaxsvm.model_selection.tune",
}
"""What is imported where it is first asked for, with optax and SciPy: a third of the time that `import jaxsvm` adds to
jax's own."""


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"jaxsvm.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'jaxsvm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


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
    "History",
    "InputError",
    "InteriorPoint",
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
    "WorkingSet",
    "ball",
    "box_problem",
    "check",
    "compact",
    "coresets",
    "cross_validate",
    "datasets",
    "decision_function",
    "fit",
    "gram",
    "hinge_problem",
    "implicit",
    "interchange",
    "is_coreset",
    "keep_programs",
    "kernels",
    "load_model",
    "meb_problem",
    "polished",
    "predict",
    "relational",
    "sampled",
    "screened",
    "screening",
    "slack",
    "slack_problem",
    "solve_path",
    "svm_problem",
    "tune",
    "water_level",
    "water_level_with_bias",
]
