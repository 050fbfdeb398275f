"""Models of fitted estimators, ours and scikit-learn's, and of LIBSVM's files: all have LIBSVM's layout.

LIBSVM orders the support vectors of k classes by class, and gives each k - 1 coefficients. Its machine (i, j) is
positive for class i. Of two classes, the label that comes first in a file of LIBSVM is positive; here it is
`classes[1]`, the greater label.
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxsvm.datasets import Layout, Scaling
from jaxsvm.errors import DataError, require, warn
from jaxsvm.gram.basis import KernelBasis
from jaxsvm.gram.build import gram
from jaxsvm.kernels import RBF, Kernel, Laplacian, Linear, Polynomial, Sigmoid
from jaxsvm.models.file import Model
from jaxsvm.numerics.measured import MEASURED
from jaxsvm.points.rows import CSR, scipy_rows
from jaxsvm.results.fit import Certificate
from jaxsvm.runtime.arrays import checked, require_whole, transfers
from jaxsvm.runtime.files import write_whole

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


SCIKIT_LEARN_NAMES = {Linear: "linear", RBF: "rbf", Laplacian: "laplacian", Polynomial: "poly", Sigmoid: "sigmoid"}


def scikit_learn_kernel(kernel: Any) -> tuple[str, dict[str, Any]]:
    """Return scikit-learn's name and parameters of a kernel in `SCIKIT_LEARN_NAMES` that has a single gamma."""
    parameters: dict[str, Any] = {
        name: float(np.asarray(getattr(kernel, name))) for name in ("gamma", "coef0") if hasattr(kernel, name)
    }
    if isinstance(kernel, Polynomial):
        parameters["degree"] = int(kernel.degree)
    return SCIKIT_LEARN_NAMES[type(kernel)], parameters


def kernel_class(name: str) -> Any:
    """Return the class of a kernel by scikit-learn's name, or by its own in lower case ("polynomial")."""
    found = [kind for kind, known in SCIKIT_LEARN_NAMES.items() if name in (known, kind.__name__.lower())]
    names = ", ".join(SCIKIT_LEARN_NAMES.values())
    require(len(found) == 1, f"kernel is {name!r}: a model needs points, and a kernel of {names}.")
    return found[0]


def named_kernel(name: str, gamma: Any, coef0: Any, degree: int) -> Kernel:
    """Return the kernel of scikit-learn's name, with those of the parameters that it has."""
    kind, values = kernel_class(name), {"gamma": gamma, "coef0": coef0, "degree": degree}
    return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind)})


def model_of(fitted: Any) -> Model:
    """Return the model of a fitted estimator; a model as it is.

    Args:
        fitted: A `jaxsvm.Model`; a fitted `SVC`, `NuSVC`, `SVR`, `NuSVR` or `OneClassSVM`, or `SVCPath`, of
            `jaxsvm.estimators` or of scikit-learn; or a pipeline of a `StandardScaler` and one of these.

    Raises:
        InputError: On anything else, an estimator that is not fitted, and a precomputed or callable kernel.
    """
    if isinstance(fitted, Model):
        if fitted.preparation is not None:
            need = f"it takes points that are prepared, of {fitted.preparation.width} columns"
            warn(f"The model's preparation of columns (text, missing values) is no part of what is written: {need}.")
        return fitted
    steps = getattr(fitted, "steps", None)  # of a fit a number
    if isinstance(steps, list) and len(steps) == 2 and type(fitted[0]).__name__ == "StandardScaler":
        scaler, zero = fitted[0], np.zeros(fitted[0].n_features_in_)
        shift, scale = scaler.mean_ if scaler.with_mean else zero, scaler.scale_ if scaler.with_std else zero + 1
        with jax.enable_x64(True):
            scaling = Scaling(*jax.device_put((shift, 1 / scale)))
        return dataclasses.replace(model_of(fitted[1]), scaling=scaling, layout=_layout(scaler))
    known = all(hasattr(fitted, name) for name in ("dual_coef_", "support_vectors_", "n_support_", "intercept_"))
    need = "a `jaxsvm.Model`, a fitted SVC, NuSVC, SVR, NuSVR or OneClassSVM, or a pipeline of a StandardScaler and one"
    require(known, f"model is a {type(fitted).__name__}: {need} of them is needed.")
    certificate, bias, coef = getattr(fitted, "certificate_", None), fitted.intercept_, fitted.dual_coef_
    coef = coef.toarray() if hasattr(coef, "toarray") else coef
    pairs = getattr(fitted, "multi_class", "ovo")
    require(len(bias) == 1 or pairs == "ovo", f"multi_class is {pairs!r}: a model holds the machines of all pairs.")
    coef = coef.T if len(bias) == 1 else columns_of_pairs(coef, fitted.n_support_)
    classes = (-1, 1) if hasattr(fitted, "offset_") else getattr(fitted, "classes_", None)  # one class has none
    classes, sigmoids = None if classes is None else tuple(np.asarray(classes).tolist()), None
    if np.size(getattr(fitted, "_probA", ())):
        flip = -1.0 if len(bias) == 1 and certificate is None else 1.0  # scikit-learn's is of the first class
        sigmoids = fitted._probA, flip * fitted._probB
    kernel, x = fitted.kernel, fitted.support_vectors_
    if not isinstance(kernel, Kernel):
        kernel = named_kernel(kernel, getattr(fitted, "_gamma", None), fitted.coef0, int(fitted.degree))
    return assembled(kernel, x, coef, bias, classes, sigmoids, certificate, _layout(fitted))


def breaks_ties(fitted: Any) -> bool:
    """Return whether decision values break ties of votes of a fitted estimator, the last of a pipeline or by itself."""
    last = fitted[-1] if isinstance(getattr(fitted, "steps", None), list) else fitted
    return bool(getattr(last, "break_ties", False)) and len(getattr(last, "classes_", ())) > 2


def _layout(fitted: Any) -> Layout | None:
    names = getattr(fitted, "feature_names_in_", None)
    return None if names is None else Layout(tuple(map(str, names)))


def columns_of_pairs(coef: np.ndarray, counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Convert LIBSVM's coefficients `(k - 1, s)` to `(s, pairs)`, for support vectors by class, `counts` of each."""
    of_class, machines = np.repeat(np.arange(len(counts)), counts), list(combinations(range(len(counts)), 2))
    columns = [np.where(of_class == i, coef[j - 1], 0) + np.where(of_class == j, coef[i], 0) for i, j in machines]
    return np.stack(columns, axis=1)


@transfers
def assembled(
    kernel: Kernel, x: Any, coef: np.ndarray, bias: np.ndarray, classes: tuple[Any, ...] | None, sigmoids: Any = None,
    certificate: Certificate | None = None, layout: Layout | None = None,
) -> Model:  # fmt: skip
    """Build a model of support vectors and machines, in float64; without a certificate nothing is proved of it.

    Coefficients are `(s, m)`, constants and both parts of the sigmoids `(m,)`; a single machine's lose their axis.
    """
    if len(bias) == 1:
        coef, bias = coef[:, 0], bias[0]
    if not len(coef):  # a basis has a point
        x, coef = np.zeros((1, x.shape[1])), np.zeros((1, *np.shape(bias)))
    unknown: Any = np.full(np.shape(bias), np.inf)
    proof = Certificate(unknown, -unknown, unknown) if certificate is None else certificate
    with jax.enable_x64(True):
        basis, _ = gram(kernel, x).expansion(jax.numpy.zeros(x.shape[0]))
        proof = jax.tree.map(lambda part: np.reshape(part, np.shape(bias)), proof)
        parts = jax.device_put((np.asarray(coef), np.asarray(bias, float), np.ones(np.shape(bias)), proof))
    pairs = None if sigmoids is None else tuple(map(tuple, np.transpose(sigmoids).tolist()))
    return Model(basis, *parts, classes=classes, layout=layout, sigmoids=pairs)


KERNELS = (Linear, Polynomial, RBF, Sigmoid)
"""LIBSVM's, by their names in lower case."""
CLASSIFIERS, OTHERS = ("c_svc", "nu_svc"), ("epsilon_svr", "nu_svr", "one_class")
HEADER: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("degree", "nr_class", "total_sv", "label", "nr_sv"), int),
    **dict.fromkeys(("gamma", "coef0", "rho", "probA", "probB"), float),
}
"""What the lines of a header hold; the others hold text."""


@checked
def from_libsvm(path: str | os.PathLike[str], *, features: int | None = None, zero_based: bool | None = None) -> Model:
    """Read a model file that LIBSVM's `svm-train` wrote.

    Args:
        path: The file: C-SVC or nu-SVC of any number of classes, epsilon-SVR or nu-SVR, or a one-class machine.
        features: Number of columns of a point, which the file does not give; None: up to the last one in which a
            support vector has an entry.
        zero_based: Whether indices count from 0, as of a model of rows that do; None: if the index 0 occurs.

    Returns:
        The model, with its probabilities if it has them. Its certificate has an infinite gap, since nothing is proved.

    Raises:
        DataError: If the file is no such model (LIBLINEAR's are none), its kernel is precomputed, it has one class, or
            its support vectors have more columns than `features`.
    """
    if features is not None:
        require_whole("features", features, 1)
    try:
        with open(path, encoding="utf-8") as file:
            return _parsed(file.read().splitlines(), features, zero_based)
    except (OSError, KeyError, ValueError, IndexError) as error:
        raise DataError(f"{os.fspath(path)}: not a whole LIBSVM model: {str(error).rstrip('.')}.") from None


def _parsed(lines: list[str], features: int | None, zero_based: bool | None) -> Model:
    """Return the model in a file's lines; raise KeyError, ValueError or IndexError if they are no whole model."""
    need = "below which its support vectors stand. A model of LIBLINEAR has none: train it by LIBSVM's `svm-train -t 0`"
    require("SV" in lines, f"there is no line 'SV', {need}, or by `jaxsvm.estimators.LinearSVC`")
    start = lines.index("SV")
    fields = {key: values.split() for key, _, values in (line.partition(" ") for line in lines[:start])}
    header = {key: [*map(HEADER.get(key, str), values)] for key, values in fields.items()}
    rows = [line.split() for line in lines[start + 1 :] if line.strip()]
    kind, kernel, k, announced = (header[key][0] for key in ("svm_type", "kernel_type", "nr_class", "total_sv"))
    require(kind in (*CLASSIFIERS, *OTHERS), f"svm_type is {kind}")
    require(k > 1, "it knows one class alone, and tells nothing apart: train on two or more")
    require(len(rows) == announced > 0, f"{announced} support vectors are announced, {len(rows)} are there")
    labels, counts = (header["label"], header["nr_sv"]) if kind in CLASSIFIERS else ([1, -1], [len(rows), 0])
    whole = len({*labels}) == len(counts) == k and sum(counts) == len(rows) and len(header["rho"]) == k * (k - 1) // 2
    require(whole, "counts of support vectors, labels and rho do not fit together")
    sigmoids: Any = [header[key] for key in ("probA", "probB") if key in header and kind in CLASSIFIERS]
    fitting = [*map(len, sigmoids)] in ([], [len(header["rho"])] * 2)
    require(fitting, "probA, probB and rho do not fit together")
    # The same machines with the classes in increasing order; of two classes positive for the second.
    order, pairs = np.argsort(labels).tolist(), list(combinations(range(k), 2))
    at = [pairs.index((min(pair), max(pair))) for pair in combinations(order, 2)]
    sign = np.array([1.0 if i < j else -1.0 for i, j in combinations(order, 2)]) * (1 if k > 2 else -1)
    coef = columns_of_pairs(np.array([row[: k - 1] for row in rows], float).T, counts)
    x, layout = _parsed_points([row[k - 1 :] for row in rows], features, zero_based)
    kernel = named_kernel(kernel, *(header.get(key, [0])[0] for key in ("gamma", "coef0", "degree")))
    bias, classes = -sign * np.array(header["rho"])[at], tuple(labels[place] for place in order)
    classes = None if kind in ("epsilon_svr", "nu_svr") else classes
    sigmoids = np.array(sigmoids)[:, at] * [np.ones(len(at)), sign] if sigmoids else None
    return assembled(kernel, x, sign * coef[:, at], bias, classes, sigmoids, layout=layout)


def _parsed_points(rows: list[list[str]], features: int | None, zero_based: bool | None) -> tuple[Any, Layout]:
    """Return the support vectors, dense if they are small enough, and the layout of the rows they were trained on."""
    from scipy.sparse import csr_array
    from sklearn.datasets import load_svmlight_file

    if zero_based is None:
        zero_based = any(row and row[0].startswith("0:") for row in rows)
    content: Any = io.BytesIO("\n".join(" ".join(["0", *row]) for row in rows).encode())
    how: Any = {"n_features": features, "zero_based": bool(zero_based)}
    x: Any = csr_array(load_svmlight_file(content, **how)[0])
    small = 8 * x.shape[0] * x.shape[1] <= MEASURED.bytes_held
    return x.toarray() if small else x, Layout(index_base=0 if zero_based else 1)


@checked
def to_libsvm(model: Model | BaseEstimator, path: str | os.PathLike[str]) -> None:
    """Write a model as a file that LIBSVM's `svm-predict` reads.

    Args:
        model: A model, or a fitted estimator of ours or of scikit-learn, of a linear, polynomial, RBF or sigmoid
            kernel, with integer labels or of regression; with its probabilities (`svm-predict -b 1`). Indices count
            from 0 if those of the training file did. The format cannot hold a scaling: points given to `svm-predict`
            must be scaled as those of the training were. Nor can it hold `break_ties=True`, which a warning says.
        path: The file to write.

    Raises:
        InputError: If the format cannot hold the model.
    """
    if breaks_ties(model):
        warn("break_ties is True, which LIBSVM's format does not hold: svm-predict gives ties of votes to the first.")
    model = model_of(model)
    labels = [int(name) for name in model.classes or () if isinstance(name, int | float | np.integer) and name % 1 == 0]
    _require_writable(model, len({*labels}))
    basis: Any = model.basis
    coef, bias, of_class = _machines_of_classes(model)
    header: dict[str, Any] = {
        "svm_type": ["epsilon_svr" if model.classes is None else "c_svc"],
        "kernel_type": [type(basis.kernel).__name__.lower()],
        **{name: [value] for name, value in scikit_learn_kernel(basis.kernel)[1].items()},
        "nr_class": [len(coef) + 1], "total_sv": [len(of_class)], "rho": (-bias).tolist(),
    }  # fmt: skip
    if model.classes is not None:
        header |= {"label": labels, "nr_sv": np.bincount(of_class, minlength=len(labels)).tolist()}
    if model.sigmoids is not None:
        slopes, shifts = np.array(model.sigmoids).T
        header |= {"probA": slopes.tolist(), "probB": (-shifts if len(labels) == 2 else shifts).tolist()}
    lines = [*(" ".join([key, *map(str, values)]) for key, values in header.items()), "SV"]
    base = 0 if model.layout is not None and model.layout.index_base == 0 else 1
    points = scipy_rows(basis.x).toarray() if isinstance(basis.x, CSR) else np.asarray(basis.x, float)
    points = points + np.asarray(basis.shift, float)
    for at, row in enumerate(np.argsort(of_class, kind="stable")):
        # An index 0 in the first row, be its value 0, tells that indices count from 0.
        entries = (f"{j + base}:{v}" for j, v in enumerate(points[row].tolist()) if v or j + base + at == 0)
        lines.append(" ".join([*map(str, coef[:, row].tolist()), *entries]))
    write_whole(lambda file: file.write(("\n".join(lines) + "\n").encode()), path)


def _require_writable(model: Model, integers: int) -> None:
    """Refuse a model that LIBSVM's format cannot hold, by all that it lacks; so many labels are different integers."""
    faults, basis, classes = [], model.basis, model.classes or ()
    kernel = basis.kernel if isinstance(basis, KernelBasis) else None
    if type(kernel) not in KERNELS or np.size(getattr(kernel, "gamma", 0.0)) > 1:
        kind = type(basis).__name__ if kernel is None else type(kernel).__name__
        faults.append(f"{kind}, where LIBSVM knows linear, polynomial, RBF (of one gamma) and sigmoid kernels")
    if model.scaling is not None:
        instead = "pass the last step of a pipeline, `pipeline[-1]`, or `dataclasses.replace(model, scaling=None)`"
        faults.append(f"a scaling, which LIBSVM's format does not hold ({instead}, and give svm-predict scaled points)")
    if integers < len(classes):
        named, others = ", ".join(map(str, classes))[:80], tuple(range(len(classes)))
        remedy = f"fit an estimator on integers, or `dataclasses.replace(model, classes={others})`"
        faults.append(f"the classes {named}, where LIBSVM's format holds different integers ({remedy})")
    require(not faults, f"model has {'; and '.join(faults)}.")


def _machines_of_classes(model: Model) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a model's coefficients in LIBSVM's layout `(k - 1, s)`, its constants, and the class of each vector."""
    coef, bias = np.asarray(model.coef, float), np.atleast_1d(np.asarray(model.bias, float))
    if model.classes is None:
        return coef[None], bias, np.zeros(len(coef), int)
    k = len(model.classes)
    if k == 2:  # positive for the first class there, for the second here
        coef, bias = -coef[:, None], -bias
    machines = list(combinations(range(k), 2))
    # The class that all machines of a vector share; its sign decides for one machine: a nu-SVC may have turned them.
    first, second = np.eye(k)[np.array(machines).T]
    of_class = (k * (coef != 0) @ (first + second) + (coef > 0) @ first + (coef < 0) @ second).argmax(axis=1)
    rows = np.zeros((k - 1, len(coef)))
    for at, (i, j) in enumerate(machines):
        rows[j - 1] += np.where(of_class == i, coef[:, at], 0)
        rows[i] += np.where(of_class == j, coef[:, at], 0)
    return rows, bias, of_class
