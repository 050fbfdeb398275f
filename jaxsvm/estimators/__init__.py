"""Provide scikit-learn estimators: its names, parameters, attributes and signs, with jaxsvm's solvers and certificates.

They hold NumPy arrays only, pickle, clone, and run in pipelines and grid searches. Data sets of similar size share
their compiled programs. Install by `pip install ".[sklearn]"` in a checkout.
"""

# ruff: noqa: E402 - an import below would fail without saying what to install

from jaxsvm.errors import require_package

require_package("sklearn", "jaxsvm.estimators")

from jaxsvm.estimators.classifier import SVC, NuSVC
from jaxsvm.estimators.linear import CoresetSVC, LinearSVC
from jaxsvm.estimators.path import SVCPath
from jaxsvm.estimators.regression import SVR, NuSVR, OneClassSVM
from jaxsvm.estimators.stochastic import PegasosClassifier, SBPClassifier

__all__ = [
    "SVC",
    "SVR",
    "CoresetSVC",
    "LinearSVC",
    "NuSVC",
    "NuSVR",
    "OneClassSVM",
    "PegasosClassifier",
    "SBPClassifier",
    "SVCPath",
]
