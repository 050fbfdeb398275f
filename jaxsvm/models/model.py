"""Predict decision values and labels of new points, from a fit or from a model reduced to its support."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from jaxsvm.datasets.labels import UNSEEN, Layout, Wanted, array_of, choose
from jaxsvm.datasets.reading import Preparation
from jaxsvm.datasets.scaling import Scaling
from jaxsvm.errors import InputError, is_concrete, require, require_part, warn
from jaxsvm.gram import measured as gram
from jaxsvm.gram.basis import KernelBasis
from jaxsvm.models.file import Model, load_model
from jaxsvm.models.machines import Machines, votes
from jaxsvm.points.rows import PointsLike, is_sparse, scipy_rows, taken
from jaxsvm.problems.contract import Problem
from jaxsvm.results.fit import Fit, require_fit
from jaxsvm.runtime.arrays import transfers

__all__ = ["Model", "compact", "decision_function", "load_model", "predict"]


@transfers
def compact(
    fit: Fit,
    problem: Problem | Machines,
    *,
    scaling: Scaling | None = None,
    classes: Sequence[Any] | np.ndarray | None = (-1, 1),
    layout: Layout | None = None,
    preparation: Preparation | None = None,
) -> Model:
    """Make a model of a fit, from the samples whose `dual_coef` is not 0; nothing is compiled.

    For Pegasos and a perceptron with `init=` these are not those with a positive `alpha`; low-rank Grams keep features.

    Examples:
        >>> model = jaxsvm.compact(fit, problem)
        >>> model.save("model.npz")
        >>> jaxsvm.predict(jaxsvm.load_model("model.npz"), x_new)

    Args:
        fit: A single fit (of a path, take `path[i]`) with concrete values, since the model's size is a shape.
        problem: The problem that it solves; or the machines of all pairs of three or more classes (`one_versus_one`).
        scaling: The scaling of the features before training (`jaxsvm.datasets.Scaling`), or None.
        classes: The labels of the negative and the positive side; None for regression. Of machines the names of all
            classes, in sorted order, in place of their codes.
        layout: The columns of the training file (`dataset.layout`), or their names, `Layout(columns=(...))`, or None.
        preparation: What `load` did to them (`dataset.preparation`), for `load(new_file, like=model)` and frames.

    Raises:
        InputError: Under tracing, for a fit with lanes, machines of another kind, or equal classes.
    """
    require(is_concrete(fit, problem), "fit is being traced: its support has no size yet; call `compact` outside jit.")
    _require_fit_of(problem, fit)
    numbers = classes is None or not isinstance(problem, Machines) and problem.regression
    coefficients, classes = fit.dual_coef, None if numbers else tuple(np.asarray(classes, object).tolist())
    if isinstance(problem, Machines):
        coefficients, classes = coefficients.T, tuple(range(problem.classes)) if classes == (-1, 1) else classes
        if not problem.by_pairs or classes is None or len(classes) != problem.classes or problem.classes < 3:
            kind = "" if problem.by_pairs else ", each against the rest"
            need = "a model holds all pairs (`one_versus_one`) of three classes or more, and a name for each"
            has = f"problem has {problem.classes} classes{kind}, and classes is {classes}"
            raise InputError(f"{has}: {need}; keep the fit and its machines otherwise.")
    held = isinstance(scaling, Scaling | None) and isinstance(layout, Layout | None)
    require(held, f"scaling is {type(scaling)}, layout {type(layout)}: `Scaling` and `Layout` are needed, or None.")
    many = len(classes or ()) if isinstance(problem, Machines) else 2
    distinct = classes is None or len({*classes}) == len(classes) == many
    require(distinct, f"classes is {classes}: {many} different labels are needed, that of the negative side first.")
    basis, coef = _without_zeros(*problem.gram.expansion(coefficients))
    return Model(basis, coef, fit.bias, fit.R, fit.certificate, scaling, classes, layout, preparation)


def _without_zeros(basis: Any, coef: Array) -> tuple[Any, Array]:
    if not isinstance(basis, KernelBasis):  # features: the coefficients are a weight vector
        return basis, coef
    values = np.asarray(coef)
    kept = np.flatnonzero(values.reshape(len(values), -1).any(axis=1))
    with jax.enable_x64(True):  # placed in the dtype that they have
        x = jax.device_put(taken(jax.tree.map(np.asarray, basis.x), kept))
        return dataclasses.replace(basis, x=x), jax.device_put(values[kept])


@overload
def decision_function(model: Model, x_new: PointsLike, /, *, calibrated: bool = True) -> Float[Array, "m *k"]: ...
@overload
def decision_function(
    fit: Fit, problem: Problem | Machines, x_new: PointsLike, /, *, calibrated: bool = True
) -> Float[Array, "m *k"]: ...


@transfers
def decision_function(*arguments: Any, calibrated: bool = True) -> Float[Array, "m *k"]:
    """Compute decision values: `decision_function(model, x_new)` or `decision_function(fit, problem, x_new)`.

    Args:
        *arguments: A model, or a fit and its problem (of several classes the machines of `fit_many`); then the points
            `(m, d)`: dense, CSR or a data frame. The columns of a frame are put in the model's order if it has names
            (missing and unknown ones are errors). If the model has a preparation, a frame has the columns of the
            training file (labels may be absent), which are prepared; an array has points prepared already.
            For a precomputed kernel, the kernel values between new points and all training samples, `(m, n)`.
        calibrated: Whether values are in primal scale, margin 1; False gives the paper's `h`, R times as large.

    Returns:
        Values `(m,)`, positive on the side of +1; of several classes one column per pair, or per machine. Kernel values
        are those of the support; if a fit is traced, or on a mesh, of all samples. Rows are computed in blocks, for
        which sparse points become dense if the model shifts its columns.
    """
    if len(arguments) == 2 and isinstance(arguments[0], Model):
        model, x_new = arguments
        x_new = in_order(model.layout, model.preparation, x_new)
        if model.scaling is not None:
            offset = model.scaling.offset
            if is_sparse(x_new) and is_concrete(offset) and np.asarray(offset).any():  # they would not stay sparse
                rows = scipy_rows(x_new)
                size = max(1, gram.MEASURED.bytes_per_block // (8 * rows.shape[1]))
                blocks = (rows[start : start + size].toarray() for start in range(0, rows.shape[0], size))
                return jnp.concatenate([decision_function(model, block, calibrated=calibrated) for block in blocks])
            x_new = model.scaling(x_new)
    elif len(arguments) == 3 and isinstance(arguments[0], Fit) and hasattr(arguments[1], "gram"):
        fit, problem, x_new = arguments
        _require_fit_of(problem, fit)
        few = is_concrete(fit, problem) and problem.gram.spread is None
        coefficients = np.asarray(fit.dual_coef) if few else fit.dual_coef  # inside a `jit` of x_new too
        basis, coef = problem.gram.expansion(coefficients.T if isinstance(problem, Machines) else coefficients)
        basis, coefficients = _without_zeros(basis, coef) if few else (basis, coef)
        model = Model(basis, coefficients, fit.bias, fit.R, fit.certificate)
    else:
        kinds = ", ".join(type(argument).__name__ for argument in arguments)
        raise InputError(f"arguments are ({kinds}): (model, x_new) or (fit, problem, x_new) is needed.")
    several = (None,) * np.ndim(model.bias)  # an axis of points
    bias = model.bias.astype(jax.dtypes.canonicalize_dtype(model.bias.dtype))  # LIBSVM's is float64 without x64 too
    values = model.basis.apply(x_new, model.coef) + bias[several]
    return values if calibrated else values * model.R[several]


def in_order(layout: Layout | None, preparation: Preparation | None, x_new: Any) -> Any:
    """Prepare the columns of a frame as those of the training file, or put them in its order."""
    names = getattr(x_new, "column_names", getattr(x_new, "columns", None))  # the first of an Arrow table
    if layout is None or names is None or not all(isinstance(name, str) for name in names):
        return x_new
    if preparation is not None and (layout.columns == preparation.names or set(names) != set(layout.columns or ())):
        data = preparation.of_frame("x_new", x_new, layout)
        for note in data.notes:
            if UNSEEN in note:
                warn(f"x_new: {note}.")
        return data.x
    if layout.columns is None:
        return x_new
    order = choose("x_new", list(names), Wanted(label=False, like=layout)).features
    return np.asarray(x_new)[:, order]


def is_positive(values: Any) -> Any:
    """Return which decision values predict +1: those >= 0. Predictions and all scores use this rule."""
    return values >= 0


def is_right(margins: Any, y: Any) -> Any:
    """Return which margins `y f(x)` are correct by that rule: 0 is correct for +1 and wrong for -1."""
    return (margins > 0) | ((margins == 0) & (y > 0))


def _require_fit_of(problem: Any, fit: Fit) -> None:
    """Refuse a fit of other samples, or with lanes; a fit of machines must have a lane for each."""
    require_fit(fit)
    require_part("problem", problem, "gram", "the problem of the fit, or its machines, is needed")
    lanes = (len(problem),) if isinstance(problem, Machines) else ()
    if fit.alpha.shape[:-1] != lanes:
        has = f"fit has lanes {fit.alpha.shape[:-1]} (alpha of shape {fit.alpha.shape})"
        wanted = f"the {lanes[0]} machines need a lane each" if lanes else "take one of them, such as path[0]"
        raise InputError(f"{has}: {wanted}.")
    n, held = problem.gram.n, fit.dual_coef.shape[-1]
    require(held == n, f"fit is of {held} samples, and the problem has {n}: its own is needed.")


@overload
def predict(model: Model, x_new: PointsLike, /) -> Shaped[np.ndarray | Array, " m"]: ...
@overload
def predict(fit: Fit, problem: Problem | Machines, x_new: PointsLike, /) -> Shaped[np.ndarray | Array, " m"]: ...


@transfers
def predict(*arguments: Any) -> Shaped[np.ndarray | Array, " m"]:
    """Predict labels of new points: `predict(model, x_new)` or `predict(fit, problem, x_new)`.

    Args:
        *arguments: A model, or a fit and its problem (of several classes the machines of `fit_many`); then the points
            `(m, d)`, in the forms that `decision_function` takes.

    Returns:
        The model's classes, a NumPy array `(m,)`; for a fit, -1 and +1 as an array of its dtype; for machines class
        codes, integers. 0 counts as positive. Of several classes the votes of their pairs decide, or the largest value
        of one against the rest; regression predicts its values. Under tracing, NaN has the label NaN, or -1.

    Raises:
        InputError: If the arguments do not fit together, or a decision value is NaN.
    """
    values = decision_function(*arguments)
    if isinstance(arguments[0], Model):
        return labels_of(arguments[0], values)
    problem = arguments[1]
    if not isinstance(problem, Machines):
        return values if problem.regression else _signs(values)
    _require_known(values)
    values = np.asarray(values) if is_concrete(values) else values
    best = votes(values, problem.classes) if problem.by_pairs else values.argmax(axis=1)  # the first of equals
    return best if is_concrete(values) else jnp.where(jnp.isnan(values).any(axis=1), -1, best).astype(jnp.int32)


def labels_of(model: Model, values: Any) -> Any:
    """Return the predictions of a model for its decision values, `(m,)` or `(m, pairs)`; see `predict`."""
    classes = model.classes
    if classes is None:
        return values
    if classes == (-1, 1):
        return _signs(values)
    _require_known(values)
    values, k = np.asarray(values), len(classes)
    return array_of(classes)[votes(values, k) if k > 2 else is_positive(values).astype(int)]


def _signs(values: Any) -> Any:
    _require_known(values)
    return jnp.where(jnp.isnan(values), values, jnp.where(is_positive(values), 1, -1).astype(values.dtype))


def _require_known(values: Any) -> None:
    unknown = np.isnan(np.asarray(values)) if is_concrete(values) else np.zeros((0,), bool)
    if unknown.any():
        rows = np.flatnonzero(unknown.reshape(len(unknown), -1).any(axis=1))
        has = f"x_new has {len(rows)} point(s) whose decision value is NaN, the first in row {int(rows[0])}"
        raise InputError(f"{has}: kernel values overflow there. Scale the features, as in training, or take float64.")
