"""Prediction: decision values and labels, from a fit or from a model cut down to its support, in blocks of rows."""

import dataclasses
from itertools import combinations
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.gram.basis import BLOCK_BYTES, KernelBasis
from jaxsvm.models.file import read_model, save_model
from jaxsvm.points.checks import is_sparse
from jaxsvm.points.rows import CSR, taken
from jaxsvm.results.fit import Certificate, Fit, has_values
from jaxsvm.runtime.transfers import transfers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Model:
    """A decision function on its own: what remains of a fit for prediction. A pytree; build it with `compact`.

    Of k > 2 classes it is the m = k (k - 1) / 2 decision functions of all pairs on one basis, in LIBSVM's order:
    (0, 1), (0, 2), ..., (1, 2), ..., each positive for the first class of its pair.

    Attributes:
        basis: Functions of a point: kernels at the support, or features.
        coef: Their coefficients in primal scale, `(q,)`; of several classes `(q, m)`.
        bias: The constant, `()`; of several classes `(m,)`.
        R: The scale of the paper's `h`, shaped as `bias`.
        certificate: That of the fit, each value shaped as `bias`.
        scaling: What was done to the features before training, to be done to new ones too, or None.
        classes: The labels, as NumPy scalars' text or numbers: of the negative and the positive side, or of k > 2
            classes in sorted order; None for regression, whose decision values are its predictions. Static.
        layout: How the training file held its columns (`jaxsvm.datasets.Layout`), for files of new points, or None;
            static.
    """

    basis: Any
    coef: Float[Array, "q *m"]
    bias: Float[Array, "*m"]
    R: Float[Array, "*m"]
    certificate: Certificate
    scaling: Any = None
    classes: tuple[Any, ...] | None = dataclasses.field(default=(-1, 1), metadata={"static": True})
    layout: Any = dataclasses.field(default=None, metadata={"static": True})

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The names of the columns, in the order that new points must have; None where they are not known."""
        return None if self.layout is None else self.layout.columns

    def __repr__(self) -> str:
        """In a line: what it tells apart, by what, and what is proved of it; its parts where they have no values."""
        parts = (self.coef, self.bias, self.certificate)
        if not has_values(parts):
            return f"Model(basis={self.basis!r}, coef={self.coef!r}, classes={self.classes!r})"
        task = "regression" if self.classes is None else f"classes {', '.join(map(str, self.classes))}"
        basis = self.basis
        kernel = basis.kernel if isinstance(basis, KernelBasis) else type(basis).__name__
        scaled = "" if self.scaling is None else "scaled "
        gap = float(np.max(np.asarray(self.certificate.relative_gap)))
        return (
            f"Model({task}: {np.shape(self.coef)[0]} coefficients of {kernel}, {basis.columns} {scaled}columns, "
            f"relative gap {gap:.1e})"
        )

    def save(self, path: Any) -> None:
        """Write the model to one `.npz` file that holds arrays and JSON only: safe to load from anywhere.

        Raises:
            InputError: Where the kernel is a user's function, or labels are objects, which no file can hold, or
                where coefficients are not finite.
            OSError: Where the path cannot be written.
        """
        save_model(self, path)


def load_model(path: Any, *, memory: int | None = None) -> Model:
    """Read what `Model.save` wrote. Nothing in the file is ever executed.

    Args:
        path: The file.
        memory: Bytes that its arrays may take. None: 256 MiB, or a hundred times the size of the file.

    Raises:
        DataError: Where the file is missing, cut short, no model, or a model that cannot be: with what was found.
    """
    return Model(**read_model(path, memory))


@transfers
def compact(
    fit: Fit, problem: Any, *, scaling: Any = None, classes: tuple[Any, Any] | None = (-1, 1), layout: Any = None
) -> Model:
    """Cut a fit down to the samples whose `dual_coef` is not 0, on the host: no size compiles anything.

    These need not be the samples with a positive `alpha`: Pegasos and the perceptron with `init=` have coefficients
    beside their duals. A low-rank Gram keeps its features, whatever the support.

    Args:
        fit: A single fit (of a path, take `path[i]`) with concrete values, since the model's size is a shape.
        problem: The problem that it solves.
        scaling: What was done to the features before training (`jaxsvm.datasets.Scaling`), or None.
        classes: The labels of the negative and the positive side; None for regression.
        layout: How the training file held its columns (`dataset.layout`), for `load(new_file, like=model.layout)`; or
            None. `Layout(columns=(...))` says names alone.

    Returns:
        The model: `decision_function(model, x_new)`.

    Raises:
        InputError: Under tracing, or for a fit with lanes.
    """
    if not is_concrete(fit, problem):
        raise InputError("fit is being traced: the support's size is not known yet; call `compact` outside jit.")
    _require_one(fit)
    basis, coef = _without_zeros(*problem.gram.expansion(fit.dual_coef))
    return Model(basis, coef, fit.bias, fit.R, fit.certificate, scaling, classes, layout)


def _without_zeros(basis: Any, coef: Array) -> tuple[Any, Array]:
    """The kernels at samples whose coefficient is not 0, gathered by NumPy: JAX would compile it for every size."""
    if not isinstance(basis, KernelBasis):  # features: the coefficients are a weight vector
        return basis, coef
    values = np.asarray(coef)
    kept = np.flatnonzero(values)
    with jax.enable_x64(True):  # placed in the dtype that they have
        x = jax.device_put(taken(jax.tree.map(np.asarray, basis.x), kept))
        return dataclasses.replace(basis, x=x), jax.device_put(values[kept])


@overload
def decision_function(model: Model, x_new: Any, /, *, calibrated: bool = True) -> Float[Array, " m"]: ...
@overload
def decision_function(fit: Fit, problem: Any, x_new: Any, /, *, calibrated: bool = True) -> Float[Array, " m"]: ...


@transfers
def decision_function(*arguments: Any, calibrated: bool = True) -> Float[Array, " m"]:
    """Decision values of new points: `decision_function(model, x_new)` or `decision_function(fit, problem, x_new)`.

    Args:
        *arguments: A model, or a fit and its problem; then the points `(m, d)`, dense, CSR, or a frame: where a model
            knows the names of its columns, those of a frame are put in its order, and missing or other ones refused.
            For a precomputed kernel, the kernel values between new points and all training samples, `(m, n)`.
        calibrated: Whether values are in primal scale, margin 1; False gives the paper's `h`, which is R times as large
            (docs/mathematics.md, The dual, on the simplex).

    Returns:
        Values `(m,)`, positive on the side of +1; of a model of several classes a column a pair. Rows are taken in
        blocks: a million of them need no m x n memory. Sparse points become dense, a block at a time, where the model
        shifts its columns.

    Raises:
        InputError: On arguments that do not fit together.
    """
    if len(arguments) == 2 and isinstance(arguments[0], Model):
        model, x_new = arguments
        x_new = _in_order(model, x_new)
        if model.scaling is not None and is_sparse(x_new) and _shifts(model.scaling):
            return _of_dense_blocks(model, x_new, calibrated)
        x_new = x_new if model.scaling is None else model.scaling(x_new)
    elif len(arguments) == 3 and isinstance(arguments[0], Fit) and hasattr(arguments[1], "gram"):
        fit, problem, x_new = arguments
        _require_one(fit)
        basis, coefficients = problem.gram.expansion(fit.dual_coef)
        model = Model(basis, coefficients, fit.bias, fit.R, fit.certificate)
    else:
        kinds = ", ".join(type(argument).__name__ for argument in arguments)
        raise InputError(f"arguments are ({kinds}): (model, x_new) or (fit, problem, x_new) is needed.")
    values = model.basis.apply(x_new, model.coef) + model.bias
    return values if calibrated else values * model.R


def _in_order(model: Model, x_new: Any) -> Any:
    """Points whose columns are in the order of the model's, where both have names; others as they are."""
    names = getattr(x_new, "columns", None)
    if model.columns is None or names is None or not all(isinstance(name, str) for name in names):
        return x_new
    from jaxsvm.datasets.layout import Wanted  # which readers of files hold them to as well

    order = Wanted(like=model.layout).order("x_new", tuple(names))
    return x_new if order is None else np.asarray(x_new)[:, order]


def _shifts(scaling: Any) -> bool:
    """Whether a scaling moves zeros, so that sparse points would not stay sparse."""
    return is_concrete(scaling.offset) and bool(np.asarray(scaling.offset).any())


def _of_dense_blocks(model: Model, x_new: Any, calibrated: bool) -> Array:
    """Decision values of sparse points that are made dense some rows at a time; by NumPy, for concrete points."""
    rows = _scipy_of(x_new)
    size = max(1, BLOCK_BYTES // (8 * rows.shape[1]))
    blocks = (rows[start : start + size].toarray() for start in range(0, rows.shape[0], size))
    return jnp.concatenate([decision_function(model, block, calibrated=calibrated) for block in blocks])


def _scipy_of(x: Any) -> Any:
    from scipy.sparse import csr_array  # whoever has sparse points has SciPy, or can have it

    if isinstance(x, CSR):
        return csr_array(tuple(map(np.asarray, (x.data, x.indices, x.indptr))), shape=x.shape)
    return csr_array(x)


def votes(decisions: np.ndarray, k: int) -> np.ndarray:
    """The class with the most votes of all pairs, the first of equals, `(m,)` integers below k.

    Args:
        decisions: A column a pair, `(m, k (k - 1) / 2)`, positive for its first class.
        k: How many classes.
    """
    count = np.zeros((len(decisions), k), int)
    for place, (one, other) in enumerate(combinations(range(k), 2)):
        first = decisions[:, place] > 0
        count[:, one] += first
        count[:, other] += ~first
    return count.argmax(axis=1)


def is_positive(values: Any) -> Any:
    """Which decision values predict +1: from 0 on. The one rule, of predictions and of every score."""
    return values >= 0


def is_right(margins: Any, y: Any) -> Any:
    """Which margins `y f(x)` are on the right side by that rule: 0 is right for +1 and wrong for -1."""
    return (margins > 0) | ((margins == 0) & (y > 0))


def _require_one(fit: Fit) -> None:
    if fit.alpha.ndim != 1:
        raise InputError(f"fit has lanes (alpha of shape {fit.alpha.shape}): take one of them, such as path[0].")


@transfers
def predict(*arguments: Any) -> Any:
    """Labels of new points: `predict(model, x_new)` or `predict(fit, problem, x_new)`; as `decision_function`.

    Returns:
        The model's classes, a NumPy array `(m,)`; for a fit, -1 and +1 as an array of its dtype. A value of 0 counts
        as positive. Several classes are told by votes of their pairs; a model of regression predicts its values. Under
        tracing a value that is NaN, of kernel values that overflow, has the label NaN.

    Raises:
        InputError: On arguments that do not fit together, and where a value that decides is NaN.
    """
    values = decision_function(*arguments)
    return labels_of(arguments[0], values) if isinstance(arguments[0], Model) else _signs(values)


def labels_of(model: Model, values: Any) -> Any:
    """What a model predicts where its decision values are these, `(m,)` or `(m, pairs)`: see `predict`."""
    classes = model.classes
    if classes is None:
        return values
    if classes == (-1, 1):
        return _signs(values)
    _require_known(values)
    if len(classes) > 2:
        return np.asarray(classes)[votes(np.asarray(values), len(classes))]
    return np.asarray(classes)[np.asarray(is_positive(values)).astype(int)]


def _signs(values: Any) -> Any:
    _require_known(values)
    return jnp.where(jnp.isnan(values), values, jnp.where(is_positive(values), 1, -1).astype(values.dtype))


def _require_known(values: Any) -> None:
    """Refuse concrete decision values of NaN, which are on neither side."""
    unknown = np.isnan(np.asarray(values)) if is_concrete(values) else np.zeros((0,), bool)
    if unknown.any():
        rows = np.flatnonzero(unknown.reshape(len(unknown), -1).any(axis=1))
        raise InputError(
            f"x_new has {len(rows)} point(s) whose decision value is NaN, the first in row {int(rows[0])}: kernel "
            "values overflow there. Scale the features, as in training, or take float64."
        )
