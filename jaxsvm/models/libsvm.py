"""Read and write model files of LIBSVM.

LIBSVM's layout of several classes: support vectors lie class by class, each with k - 1 coefficients, and machine (i, j)
is positive for class i. Of two classes the label that comes first in a file of LIBSVM is positive; here it is
`classes[1]`, the greater one.
"""

import os
from itertools import combinations
from numbers import Integral
from typing import Any

import jax
import numpy as np

from jaxsvm.errors import DataError, InputError
from jaxsvm.gram.basis import KernelBasis
from jaxsvm.gram.build import gram
from jaxsvm.kernels import RBF, Kernel, Linear, Polynomial, Sigmoid
from jaxsvm.models.model import Model
from jaxsvm.points.rows import CSR
from jaxsvm.results.fit import Certificate

DENSE = 2**24
"""Numbers of support vectors up to which they are kept dense."""


CLASSIFIERS = ("c_svc", "nu_svc")


REGRESSORS = ("epsilon_svr", "nu_svr")


def from_libsvm(path: str | os.PathLike[str], *, features: int | None = None) -> Model:
    """Read a model file that LIBSVM's `svm-train` wrote.

    Args:
        path: The file: C-SVC or nu-SVC of any number of classes, epsilon-SVR or nu-SVR, or a one-class machine.
        features: How many columns points have, which the file does not say; None: up to the last one in which a support
            vector has an entry.

    Returns:
        The model; nothing is proved of it, so its certificate is an infinite gap. Probabilities are left out.

    Raises:
        InputError: Where `features` is no positive integer, or fewer than a support vector has.
        DataError: Where the file is no such model, its kernel is precomputed, or it knows one class alone.
    """
    if features is not None and not (isinstance(features, Integral) and features > 0):
        raise InputError(f"features is {features!r}: the number of columns, a positive integer, is needed.")
    name = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{name}: cannot be read as a LIBSVM model: {error}.") from None
    try:
        start = lines.index("SV")
        header = {key: value.split() for key, _, value in (line.partition(" ") for line in lines[:start])}
        kind, kernel = header["svm_type"][0], _libsvm_kernel(name, header)
        if kind in CLASSIFIERS and int(header["nr_class"][0]) < 2:
            raise DataError(f"{name}: the model knows one class alone, and tells nothing apart: train on two or more.")
        rho = np.array(header["rho"], float)
        rows = [line.split() for line in lines[start + 1 :] if line.strip()]
        width = int(header["nr_class"][0]) - 1 if kind in CLASSIFIERS else 1
        coef = np.array([row[:width] for row in rows], float).T
        x = _libsvm_points([row[width:] for row in rows], features)
        if not rows:
            raise ValueError("there are no support vectors")
        if len(rows) != int(header["total_sv"][0]):
            raise ValueError(f"{header['total_sv'][0]} support vectors are announced, {len(rows)} are there")
        if kind not in CLASSIFIERS:
            if kind not in (*REGRESSORS, "one_class"):
                raise ValueError(f"svm_type is {kind}")
            return _model(kernel, x, coef[0], -rho[0], (-1, 1) if kind == "one_class" else None)
        counts, labels = [int(n) for n in header["nr_sv"]], [int(label) for label in header["label"]]
        if sum(counts) != len(rows) or len(rho) != len(labels) * (len(labels) - 1) // 2:
            raise ValueError("counts of support vectors, labels and rho do not fit together")
    except (KeyError, ValueError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise DataError(f"{name}: not a whole LIBSVM model: {error}.") from None
    return _classifier(kernel, x, coef, rho, counts, labels)


def _classifier(kernel: Kernel, x: Any, coef: np.ndarray, rho: np.ndarray, counts: list[int], labels: list[int]) -> Any:
    """A model of classes in increasing order from machines of classes in the file's order."""
    k, of_class = len(labels), np.repeat(np.arange(len(labels)), counts)
    order = np.argsort(labels)
    place = {int(was): now for now, was in enumerate(order)}
    machines = list(combinations(range(k), 2))
    values, bias = np.zeros((len(of_class), len(machines))), np.zeros(len(machines))
    for (i, j), b in zip(machines, rho, strict=True):
        column = np.where(of_class == i, coef[j - 1], 0) + np.where(of_class == j, coef[i], 0)
        one, other = place[i], place[j]
        sign = 1.0 if one < other else -1.0
        at = machines.index((min(one, other), max(one, other)))
        values[:, at], bias[at] = sign * column, -sign * b
    classes = tuple(labels[was] for was in order)
    if k == 2:  # positive for the second here
        return _model(kernel, x, -values[:, 0], -bias[0], classes)
    return _model(kernel, x, values, bias, classes)


def _model(kernel: Kernel, x: Any, coef: np.ndarray, bias: Any, classes: tuple[Any, ...] | None) -> Model:
    unknown: Any = np.full(np.shape(bias), np.inf)
    with jax.enable_x64(True):
        basis, _ = gram(kernel, x).expansion(jax.numpy.zeros(x.shape[0]))
        parts = (coef, np.asarray(bias, float), np.ones(np.shape(bias)), Certificate(unknown, -unknown, unknown))
        return Model(basis, *jax.device_put(parts), classes=classes)


def _libsvm_kernel(name: str, header: dict[str, list[str]]) -> Kernel:
    kind = header["kernel_type"][0]
    gamma, coef0 = (float(header.get(key, ["0"])[0]) for key in ("gamma", "coef0"))
    if kind == "linear":
        return Linear()
    if kind == "rbf":
        return RBF(gamma)
    if kind == "sigmoid":
        return Sigmoid(gamma, coef0)
    if kind == "polynomial":
        return Polynomial(int(header["degree"][0]), gamma, coef0)
    raise DataError(f"{name}: the kernel is {kind!r}: linear, polynomial, rbf or sigmoid can be read.")


def _libsvm_points(rows: list[list[str]], features: int | None) -> Any:
    from scipy.sparse import csr_array

    pairs = [[token.split(":") for token in row] for row in rows]
    indptr = np.append(0, np.cumsum([len(row) for row in pairs]))
    indices = np.array([int(index) - 1 for row in pairs for index, _ in row], np.int32)
    data = np.array([float(value) for row in pairs for _, value in row])
    if len(indices) and indices.min() < 0:
        raise ValueError("indices count from 1")
    last = int(indices.max(initial=0)) + 1
    if features is not None and features < last:
        raise InputError(f"features is {features}, and a support vector has column {last}: take at least that many.")
    shape = (len(rows), last if features is None else int(features))
    x = csr_array((data, indices, indptr), shape=shape)
    return x.toarray() if shape[0] * shape[1] <= DENSE else x


def to_libsvm(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a model as a file that LIBSVM's `svm-predict` reads.

    Args:
        model: Of a linear, polynomial, RBF or sigmoid kernel, with integer labels or of regression. The format has no
            place for a scaling: points given to `svm-predict` have to be scaled as those of the training were.
        path: Where to.

    Raises:
        InputError: Where the format cannot hold the model.
    """
    if model.scaling is not None:
        raise InputError(
            "model has a scaling, which LIBSVM's format cannot hold: train on scaled points, and scale new ones too."
        )
    classes = model.classes
    if classes is not None and not all(float(label).is_integer() for label in _numbers(classes)):
        raise InputError(f"classes are {classes}: LIBSVM's labels are integers.")
    parts = KernelParts(model)
    lines = ["svm_type " + ("epsilon_svr" if classes is None else "c_svc"), *parts.kernel_lines()]
    k, coef, bias, order, counts = machine_layout(model)
    lines += [f"nr_class {k}", f"total_sv {len(order)}"]
    lines += ["rho " + " ".join(_text(-b) for b in bias)]
    if classes is not None:
        lines += ["label " + " ".join(str(int(float(label))) for label in classes)]
        lines += ["nr_sv " + " ".join(map(str, counts))]
    lines += ["SV"]
    for row in order:
        entries = (f"{j + 1}:{_text(value)}" for j, value in enumerate(parts.x[row]) if value)
        lines.append(" ".join([*(_text(value) for value in coef[:, row]), *entries]))
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


class KernelParts:
    """Kernel and support of a model as NumPy's, where other libraries have the kernel."""

    def __init__(self, model: Model) -> None:
        basis = model.basis
        names: dict[type[Kernel], str] = {Linear: "linear", RBF: "rbf", Polynomial: "poly", Sigmoid: "sigmoid"}
        kernel: Any = basis.kernel if isinstance(basis, KernelBasis) else None
        gamma = np.asarray(getattr(kernel, "gamma", 0.0), float)
        if type(kernel) not in names or gamma.size > 1:
            found = type(basis).__name__ if kernel is None else type(kernel).__name__
            raise InputError(
                f"model has {found}: linear, polynomial, RBF (of one gamma) and sigmoid kernels are known elsewhere."
            )
        self.name, shift = names[type(kernel)], np.asarray(basis.shift, float)
        self.parameters: dict[str, Any] = {}
        if not isinstance(kernel, Linear):
            self.parameters["gamma"] = float(gamma)
        if isinstance(kernel, Polynomial | Sigmoid):
            self.parameters["coef0"] = float(np.asarray(kernel.coef0))
        if isinstance(kernel, Polynomial):
            self.parameters["degree"] = int(kernel.degree)
        x = basis.x
        if isinstance(x, CSR):
            from scipy.sparse import csr_array

            x = csr_array(tuple(map(np.asarray, (x.data, x.indices, x.indptr))), shape=x.shape).toarray()
        self.x = np.asarray(x, float) + shift

    def kernel_lines(self) -> list[str]:
        """The kernel in LIBSVM's header."""
        kind = {"poly": "polynomial"}.get(self.name, self.name)
        keys = [key for key in ("degree", "gamma", "coef0") if key in self.parameters]
        return [f"kernel_type {kind}", *(f"{key} {_text(self.parameters[key])}" for key in keys)]


def machine_layout(model: Model) -> tuple[int, np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """Number of classes, coefficients `(k - 1, s)`, constants, the order of the support by class, and their counts."""
    coef, bias = np.asarray(model.coef, float), np.atleast_1d(np.asarray(model.bias, float))
    if model.classes is None:
        return 2, coef[None], bias, np.arange(len(coef)), [len(coef)]
    k = len(model.classes)
    if k == 2:  # positive for the first class there, for the second here
        coef, bias = -coef[:, None], -bias
    machines = list(combinations(range(k), 2))
    first = (coef != 0).argmax(axis=1)
    positive = coef[np.arange(len(coef)), first] > 0
    of_class = np.array([machines[at][0 if up else 1] for at, up in zip(first, positive, strict=True)])
    rows = np.zeros((k - 1, len(coef)))
    for at, (i, j) in enumerate(machines):
        rows[j - 1] += np.where(of_class == i, coef[:, at], 0)
        rows[i] += np.where(of_class == j, coef[:, at], 0)
    return k, rows, bias, np.argsort(of_class, kind="stable"), np.bincount(of_class, minlength=k).tolist()


def _numbers(classes: tuple[Any, ...]) -> list[float]:
    try:
        return [float(label) for label in classes]
    except ValueError:
        raise InputError(f"classes are {classes}: LIBSVM's labels are integers.") from None


def _text(value: Any) -> str:
    return repr(float(value)) if not isinstance(value, int) else str(value)
