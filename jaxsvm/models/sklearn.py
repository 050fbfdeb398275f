"""Turn a model or a fitted estimator into scikit-learn's own SVC or SVR."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsvm.datasets.labels import array_of
from jaxsvm.errors import InputError, require_package
from jaxsvm.models.fitted import tell_of_preparation
from jaxsvm.models.libsvm import kernel_and_points, machine_layout
from jaxsvm.models.model import Model

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator
    from sklearn.pipeline import Pipeline
    from sklearn.svm import SVC, SVR, NuSVC, NuSVR, OneClassSVM


def to_sklearn(model: Model | BaseEstimator) -> SVC | NuSVC | SVR | NuSVR | OneClassSVM | Pipeline:
    """Return scikit-learn's estimator that predicts as a model or a fitted estimator does, without jaxsvm or JAX.

    Args:
        model: A `Model` of a linear, polynomial, RBF or sigmoid kernel: it becomes an `SVC` or `SVR`; if it has a
            scaling, a pipeline with a `StandardScaler` first. If it has names of columns, frames are checked against
            them. Or a fitted `SVC`, `NuSVC`, `SVCPath`, `SVR`, `NuSVR` or `OneClassSVM` of `jaxsvm.estimators`, of
            these kernels or a precomputed one; sigmoids of `probability=True` are not transferred.

    Raises:
        InputError: On another kernel, features in place of kernels, or an estimator without a counterpart.
    """
    if not isinstance(model, Model):
        return _of_estimator(model)
    tell_of_preparation(model)
    require_package("sklearn", "to_sklearn")
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC, SVR

    kernel, parameters, points = kernel_and_points(model)
    _, coef, bias, order, counts = machine_layout(model)
    machine: Any = (SVR if model.classes is None else SVC)(kernel=kernel, **parameters)
    machine.support_vectors_ = np.ascontiguousarray(points[order])
    machine.support_ = np.arange(len(order), dtype=np.int32)  # among these support vectors: no training set is known
    machine._n_support = np.array(counts if model.classes is not None else [len(order), 0], np.int32)
    machine._dual_coef_, machine._intercept_ = np.ascontiguousarray(coef[:, order]), np.array(bias)
    flip = -1.0 if len(model.classes or ()) == 2 else 1.0  # scikit-learn shows the other sign
    machine.dual_coef_, machine.intercept_ = flip * machine._dual_coef_, flip * machine._intercept_
    machine._probA = machine._probB = np.empty(0)
    machine._gamma, machine._sparse = parameters.get("gamma", 0.0), False
    machine.fit_status_, machine.shape_fit_, machine.n_features_in_ = 0, points.shape, points.shape[1]
    if model.classes is not None:
        machine.classes_ = array_of(model.classes)
        machine.class_weight_ = np.ones(len(model.classes))
    scaler: Any = StandardScaler()
    if model.columns is not None:
        (machine if model.scaling is None else scaler).feature_names_in_ = np.asarray(model.columns, object)
    if model.scaling is None:
        return machine
    scaler.mean_ = np.asarray(model.scaling.offset, float)
    scaler.scale_ = 1 / np.asarray(model.scaling.factor, float)
    scaler.var_, scaler.n_features_in_, scaler.n_samples_seen_ = scaler.scale_**2, len(scaler.mean_), len(order)
    return make_pipeline(scaler, machine)


def _of_estimator(estimator: Any) -> Any:
    """Convert a fitted estimator of ours to the scikit-learn estimator of the same name."""
    require_package("sklearn", "to_sklearn")
    from sklearn import svm
    from sklearn.utils.validation import check_is_fitted

    theirs = getattr(svm, getattr(estimator, "scikit_learn_class", ""), None)
    if theirs is None:
        raise InputError(
            f"model is a {type(estimator).__name__}: a `jaxsvm.Model`, or a fitted SVC, NuSVC, SVCPath, SVR, NuSVR or "
            "OneClassSVM of `jaxsvm.estimators` is needed. (Of a linear machine, `coef_` and `intercept_` say all.)"
        )
    check_is_fitted(estimator)
    if estimator.kernel not in ("linear", "poly", "rbf", "sigmoid", "precomputed"):
        raise InputError(f"kernel is {estimator.kernel!r}: scikit-learn's by name alone can be handed on.")
    classes = getattr(estimator, "classes_", ())
    if len(classes) > 2 and estimator.multi_class != "ovo":
        raise InputError(f"multi_class is {estimator.multi_class!r}: scikit-learn's machines are those of all pairs.")
    machine: Any = theirs()
    shared = estimator.get_params().keys() & machine.get_params().keys() - {"probability"}
    machine.set_params(**{name: getattr(estimator, name) for name in shared})
    copied = ("support_", "support_vectors_", "_n_support", "intercept_", "fit_status_", "shape_fit_", "n_features_in_")
    copied += ("n_iter_", "_gamma", "_sparse", "classes_", "class_weight_", "feature_names_in_", "offset_")
    for name in copied:
        if hasattr(estimator, name):
            setattr(machine, name, getattr(estimator, name))
    coef, flip = estimator.dual_coef_, -1.0 if len(classes) == 2 else 1.0
    coef = np.ascontiguousarray(coef.toarray() if estimator._sparse else coef)
    machine.dual_coef_, machine._dual_coef_ = _as_stored(coef, estimator), _as_stored(flip * coef, estimator)
    machine._intercept_ = flip * estimator.intercept_
    machine._probA = machine._probB = np.empty(0)
    machine._effective_probability = False  # scikit-learn 1.9 reads it
    return machine


def _as_stored(coef: np.ndarray, estimator: Any) -> Any:
    """Return coefficients as scikit-learn keeps them: of sparse points as CSR in which zeros are stored too."""
    if not estimator._sparse:
        return coef
    from scipy.sparse import csr_array

    k, s = coef.shape
    return csr_array((coef.ravel(), np.tile(np.arange(s, dtype=np.int32), k), s * np.arange(k + 1, dtype=np.int32)))
