"""Make models of fitted estimators: of `jaxsvm.estimators`, and of scikit-learn, which have the same attributes."""

import dataclasses
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import jax
import numpy as np

from jaxsvm.datasets import Layout, Scaling
from jaxsvm.errors import InputError, warn
from jaxsvm.gram.build import gram
from jaxsvm.kernels import Kernel
from jaxsvm.models.description import SCIKIT_LEARN_NAMES, named_kernel
from jaxsvm.models.model import Model
from jaxsvm.results.fit import Certificate
from jaxsvm.runtime.arrays import transfers


def model_of(fitted: Any) -> Model:
    """Return the model of a fitted estimator; a model as it is.

    Args:
        fitted: A `jaxsvm.Model`; a fitted `SVC`, `NuSVC`, `SVR`, `NuSVR` or `OneClassSVM`, or `SVCPath`, of
            `jaxsvm.estimators` or of scikit-learn; or a pipeline of a `StandardScaler` and one of these.

    Raises:
        InputError: On anything else, an estimator that is not fitted, and a precomputed or callable kernel.
    """
    if isinstance(fitted, Model):
        tell_of_preparation(fitted)
        return fitted
    steps = getattr(fitted, "steps", ())  # of a fit a number
    steps = [step for _, step in steps] if isinstance(steps, list) else []
    if len(steps) == 2 and type(steps[0]).__name__ == "StandardScaler":
        shift, scale = steps[0].mean_ if steps[0].with_mean else 0.0, steps[0].scale_ if steps[0].with_std else 1.0
        width = steps[0].n_features_in_
        with jax.enable_x64(True):
            parts = jax.device_put((np.broadcast_to(shift, width), np.broadcast_to(1 / scale, width)))
            return dataclasses.replace(model_of(steps[1]), scaling=Scaling(*parts), layout=_layout(steps[0]))
    if not all(hasattr(fitted, name) for name in ("dual_coef_", "support_vectors_", "n_support_", "intercept_")):
        raise InputError(
            f"model is a {type(fitted).__name__}: a `jaxsvm.Model`, a fitted SVC, NuSVC, SVR, NuSVR or OneClassSVM, or "
            "a pipeline of a StandardScaler and one of them is needed."
        )
    classes = getattr(fitted, "classes_", None)
    certificate = getattr(fitted, "certificate_", None)
    coef, bias = fitted.dual_coef_, fitted.intercept_
    coef = coef.toarray() if hasattr(coef, "toarray") else coef
    if classes is None or len(classes) == 2:
        classes = (-1, 1) if hasattr(fitted, "offset_") else classes  # one class has no `classes_`
        coef, bias = coef[0], bias[0]
        certificate = jax.tree.map(lambda part: np.reshape(part, ()), certificate)
    elif getattr(fitted, "multi_class", "ovo") != "ovo":
        raise InputError(f"multi_class is {fitted.multi_class!r}: a model holds the machines of all pairs.")
    else:
        coef = columns_of_pairs(coef, fitted.n_support_)
    known = None if classes is None else tuple(np.asarray(classes).tolist())
    model = assembled(_kernel(fitted), fitted.support_vectors_, coef, bias, known, certificate, _layout(fitted))
    if not np.size(getattr(fitted, "_probA", ())):
        return model
    flip = -1.0 if known is not None and len(known) == 2 and certificate is None else 1.0  # theirs is of the first
    return dataclasses.replace(
        model, sigmoids=tuple((float(a), flip * float(b)) for a, b in zip(fitted._probA, fitted._probB, strict=True))
    )


def breaks_ties(fitted: Any) -> bool:
    """Return whether decision values break ties of votes of a fitted estimator, the last of a pipeline or by itself."""
    steps = getattr(fitted, "steps", None)
    last = steps[-1][1] if isinstance(steps, list) and steps else fitted
    return bool(getattr(last, "break_ties", False)) and len(getattr(last, "classes_", ())) > 2


def tell_of_preparation(model: Model) -> None:
    """Warn that a model written in another format does not prepare columns."""
    if model.preparation is not None:
        warn(
            "The model's preparation of columns (text, missing values) is no part of what is written: it takes points "
            f"that are prepared{'' if model.columns is None else f', of the columns {model.columns}'}."
        )


def _layout(fitted: Any) -> Layout | None:
    names = getattr(fitted, "feature_names_in_", None)
    return None if names is None else Layout(tuple(map(str, names)))


def _kernel(fitted: Any) -> Kernel:
    """Return the kernel that the parameters of an estimator name."""
    if isinstance(fitted.kernel, Kernel):
        return fitted.kernel
    names = [*SCIKIT_LEARN_NAMES.values()]
    if not (isinstance(fitted.kernel, str) and fitted.kernel in names):
        raise InputError(f"kernel is {fitted.kernel!r}: a model needs points, and a kernel of {', '.join(names)}.")
    return named_kernel(fitted.kernel, getattr(fitted, "_gamma", None), fitted.coef0, int(fitted.degree))


def columns_of_pairs(coef: np.ndarray, counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Convert LIBSVM's coefficients `(k - 1, s)` to `(s, pairs)`, for support vectors by class, `counts` of each."""
    of_class, machines = np.repeat(np.arange(len(counts)), counts), list(combinations(range(len(counts)), 2))
    columns = [np.where(of_class == i, coef[j - 1], 0) + np.where(of_class == j, coef[i], 0) for i, j in machines]
    return np.stack(columns, axis=1)


@transfers
def assembled(
    kernel: Kernel, x: Any, coef: np.ndarray, bias: Any, classes: tuple[Any, ...] | None,
    certificate: Certificate | None = None, layout: Layout | None = None,
) -> Model:  # fmt: skip
    """Build a model of support vectors and coefficients, in float64; without a certificate nothing is proved of it."""
    unknown: Any = np.full(np.shape(bias), np.inf)
    if not len(coef):  # a basis has a point
        x, coef = np.zeros((1, x.shape[1])), np.zeros((1, *np.shape(bias)))
    with jax.enable_x64(True):
        basis, _ = gram(kernel, x).expansion(jax.numpy.zeros(x.shape[0]))
        proof = Certificate(unknown, -unknown, unknown) if certificate is None else certificate
        parts = jax.device_put((np.asarray(coef), np.asarray(bias, float), np.ones(np.shape(bias)), proof))
        return Model(basis, *parts, classes=classes, layout=layout)
