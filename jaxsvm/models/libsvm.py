"""Models of fitted estimators, ours and scikit-learn's, and of LIBSVM's files: all have LIBSVM's layout.

LIBSVM orders the support vectors of k classes by class, and gives each k - 1 coefficients. Its machine (i, j) is
positive for class i. Of two classes, the label that comes first in a file of LIBSVM is positive; here it is
`classes[1]`, the greater label.
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from numbers import Integral
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxsvm.datasets import Layout, Scaling
from jaxsvm.errors import DataError, InputError, require, warn
from jaxsvm.gram.basis import KernelBasis
from jaxsvm.gram.build import gram
from jaxsvm.kernels import RBF, Kernel, Laplacian, Linear, Polynomial, Sigmoid
from jaxsvm.models.file import Model, scipy_rows
from jaxsvm.numerics.measured import MEASURED
from jaxsvm.points.rows import CSR
from jaxsvm.results.fit import Certificate
from jaxsvm.runtime.arrays import checked, transfers
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
    return next(kind for kind, known in SCIKIT_LEARN_NAMES.items() if name in (known, kind.__name__.lower()))


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


KERNELS = {"linear": "linear", "polynomial": "poly", "rbf": "rbf", "sigmoid": "sigmoid"}
"""Of LIBSVM's names of kernels scikit-learn's."""
CLASSIFIERS = ("c_svc", "nu_svc")
OTHERS = ("epsilon_svr", "nu_svr", "one_class")


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
        InputError: If `features` is no positive integer, or less than a support vector needs.
        DataError: If the file is no such model (LIBLINEAR's are none), its kernel is precomputed, or it has one class.
    """
    require(zero_based in (None, True, False), f"zero_based is {zero_based!r}: True, False or None is needed.")
    if features is not None and not (isinstance(features, Integral) and features > 0):
        raise InputError(f"features is {features!r}: the number of columns, a positive integer, is needed.")
    name = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{name}: cannot be read as a LIBSVM model: {error}.") from None
    try:
        return _parsed(name, lines, features, zero_based)
    except InputError:
        raise
    except (KeyError, ValueError, IndexError) as error:
        raise DataError(f"{name}: not a whole LIBSVM model: {error}.") from None


def _parsed(name: str, lines: list[str], features: int | None, zero_based: bool | None) -> Model:
    """Return the model in a file's lines; raise KeyError, ValueError or IndexError if they are no whole model."""
    if lines and lines[0].startswith("solver_type "):
        raise DataError(
            f"{name}: a model of LIBLINEAR, which has weights and no support vectors: train it by LIBSVM's `svm-train "
            "-t 0`, or by `jaxsvm.designs.fit` or `jaxsvm.estimators.LinearSVC`."
        )
    if "SV" not in lines:
        raise ValueError("the line 'SV', below which its support vectors stand, is absent")
    start = lines.index("SV")
    header = {key: value.split() for key, _, value in (line.partition(" ") for line in lines[:start])}
    kind, kernel = header["svm_type"][0], header["kernel_type"][0]
    if kernel not in KERNELS:
        raise DataError(f"{name}: the kernel is {kernel!r}: linear, polynomial, rbf or sigmoid can be read.")
    gamma, coef0, degree = (float(header.get(key, ["0"])[0]) for key in ("gamma", "coef0", "degree"))
    kernel = named_kernel(KERNELS[kernel], gamma, coef0, int(degree))
    k = int(header["nr_class"][0]) if kind in CLASSIFIERS else 2
    if k < 2:
        raise DataError(f"{name}: the model knows one class alone, and tells nothing apart: train on two or more.")
    rows = [line.split() for line in lines[start + 1 :] if line.strip()]
    if not rows:
        raise ValueError("there are no support vectors")
    if len(rows) != int(header["total_sv"][0]):
        raise ValueError(f"{header['total_sv'][0]} support vectors are announced, {len(rows)} are there")
    coef = np.array([row[: k - 1] for row in rows], float).T
    x, layout = _parsed_points([row[k - 1 :] for row in rows], features, zero_based)
    rho = np.array(header["rho"], float)
    if kind not in CLASSIFIERS:
        if kind not in OTHERS:
            raise ValueError(f"svm_type is {kind}")
        return assembled(kernel, x, coef[0], -rho[0], (-1, 1) if kind == "one_class" else None, layout=layout)
    counts, labels = [int(n) for n in header["nr_sv"]], [int(label) for label in header["label"]]
    pairs = list(combinations(range(len(labels)), 2))
    if sum(counts) != len(rows) or len(rho) != len(pairs):
        raise ValueError("counts of support vectors, labels and rho do not fit together")
    sigmoids = [header.get(key, []) for key in ("probA", "probB")]
    if [*map(len, sigmoids)] not in ([0, 0], [len(rho)] * 2):
        raise ValueError("probA, probB and rho do not fit together")
    # The same machines with the classes in increasing order; of two classes positive for the second.
    order = np.argsort(labels).tolist()
    at = [pairs.index((min(pair), max(pair))) for pair in combinations(order, 2)]
    sign = np.array([1.0 if i < j else -1.0 for i, j in combinations(order, 2)]) * (1 if k > 2 else -1)
    values, bias = sign * columns_of_pairs(coef, counts)[:, at], -sign * rho[at]
    values, bias = (values, bias) if k > 2 else (values[:, 0], bias[0])
    model = assembled(kernel, x, values, bias, tuple(labels[place] for place in order), layout=layout)
    if not sigmoids[0]:
        return model
    slopes, shifts = np.array(sigmoids, float)[:, at]
    return dataclasses.replace(model, sigmoids=tuple(zip(slopes.tolist(), (sign * shifts).tolist(), strict=True)))


def _parsed_points(rows: list[list[str]], features: int | None, zero_based: bool | None) -> tuple[Any, Layout]:
    """Return the support vectors, dense if they are small enough, and the layout of the rows they were trained on."""
    from scipy.sparse import csr_array
    from sklearn.datasets import load_svmlight_file

    content = "\n".join(" ".join(["0", *row]) for row in rows).encode()
    x: Any = load_svmlight_file(io.BytesIO(content), zero_based=True)[0]  # pyright: ignore[reportArgumentType]
    least = int(x.indices.min(initial=1))
    base = 1 if least and not zero_based else 0
    if least == 0 and zero_based is False:
        raise ValueError("the index 0 occurs, and indices count from 1")
    last = max(x.shape[1] - base, 1)
    if features is not None and features < last:
        raise InputError(f"features is {features}, and a support vector has column {last}: take at least that many.")
    shape = (len(rows), last if features is None else int(features))
    x = csr_array((x.data, x.indices - base, x.indptr), shape=shape)
    return x.toarray() if 8 * shape[0] * shape[1] <= MEASURED.bytes_held else x, Layout(index_base=base)


@checked
def to_libsvm(
    model: Model | BaseEstimator, path: str | os.PathLike[str], *, classes: Sequence[int] | None = None
) -> None:
    """Write a model as a file that LIBSVM's `svm-predict` reads.

    Args:
        model: A model, or a fitted estimator of ours or of scikit-learn, of a linear, polynomial, RBF or sigmoid
            kernel, with integer labels or of regression; with its probabilities (`svm-predict -b 1`). Indices count
            from 0 if those of the training file did. The format cannot hold a scaling: points given to `svm-predict`
            must be scaled as those of the training were. Nor can it hold `break_ties=True`, which a warning says.
        path: The file to write.
        classes: Integers in place of the model's labels, in their order; None: the labels themselves.

    Raises:
        InputError: If the format cannot hold the model.
    """
    ties, model = breaks_ties(model), model_of(model)
    if ties:
        warn("break_ties is True, which LIBSVM's format does not hold: svm-predict gives ties of votes to the first.")
    if classes is not None:
        if model.classes is None or len(classes) != len(model.classes) or None in map(_whole, classes):
            raise InputError(f"classes is {classes!r}: an integer for each of the labels {model.classes} is needed.")
        model = dataclasses.replace(model, classes=tuple(classes))
    classes, faults = model.classes, []
    whole = [_whole(label) for label in classes or ()]
    if model.scaling is not None:
        faults.append(
            "a scaling, which LIBSVM's format does not hold (pass the last step of a pipeline, `pipeline[-1]`, or "
            "`dataclasses.replace(model, scaling=None)`, and give svm-predict scaled points)"
        )
    if len({*whole} - {None}) < len(whole):
        named = ", ".join(map(str, classes or ()))[:80]
        numbers = tuple(range(len(whole)))
        faults.append(f"the classes {named}, where LIBSVM's format holds different integers (pass classes={numbers})")
    if faults:
        raise InputError(f"model has {'; and '.join(faults)}.")
    kernel, parameters, points = kernel_and_points(model)
    kind = next(theirs for theirs, name in KERNELS.items() if name == kernel)
    lines = ["svm_type " + ("epsilon_svr" if classes is None else "c_svc"), f"kernel_type {kind}"]
    lines += [f"{key} {parameters[key]!r}" for key in ("degree", "gamma", "coef0") if key in parameters]
    k, coef, bias, order, counts = machine_layout(model)
    lines += [f"nr_class {k}", f"total_sv {len(order)}", f"rho {_numbers(-bias)}"]
    if classes is not None:
        lines += ["label " + " ".join(map(str, whole)), "nr_sv " + " ".join(map(str, counts))]
    if model.sigmoids is not None:
        slopes, shifts = np.array(model.sigmoids).T
        lines += [f"probA {_numbers(slopes)}", f"probB {_numbers(-shifts if k == 2 else shifts)}"]
    lines += ["SV"]
    base = 0 if model.layout is not None and model.layout.index_base == 0 else 1
    dense = points if isinstance(points, np.ndarray) else points.toarray()
    for at, row in enumerate(order):  # an index 0 in the first row, be its value 0, tells that indices count from 0
        entries = (f"{j + base}:{float(v)!r}" for j, v in enumerate(dense[row]) if v or j + base + at == 0)
        lines.append(" ".join([_numbers(coef[:, row]), *entries]))
    write_whole(lambda file: file.write(("\n".join(lines) + "\n").encode()), path)


def kernel_and_points(model: Model) -> tuple[str, dict[str, Any], Any]:
    """Return scikit-learn's name and parameters of a model's kernel, and the support vectors `(s, d)`, sparse as kept.

    Raises:
        InputError: If LIBSVM and scikit-learn do not have the kernel.
    """
    basis: Any = model.basis
    kernel = basis.kernel if isinstance(basis, KernelBasis) else None
    shared = type(kernel) in SCIKIT_LEARN_NAMES and not isinstance(kernel, Laplacian)
    if not shared or np.size(getattr(kernel, "gamma", 0.0)) > 1:
        kind = type(basis).__name__ if kernel is None else type(kernel).__name__
        raise InputError(
            f"model has {kind}: linear, polynomial, RBF (of one gamma) and sigmoid kernels are known elsewhere."
        )
    x, shift = basis.x, np.asarray(basis.shift, float)[None]
    if isinstance(x, CSR):
        from scipy.sparse import csr_array

        points = scipy_rows(x) + csr_array(np.ones((x.shape[0], 1))) @ csr_array(shift)
        points.sort_indices()
    else:
        points = np.asarray(x, float) + shift
    return *scikit_learn_kernel(kernel), points


def machine_layout(model: Model) -> tuple[int, np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """Return LIBSVM's layout of a model.

    Returns:
        The number of classes, coefficients `(k - 1, s)`, constants, the order of the support vectors by class, and how
        many each class has.
    """
    coef, bias = np.asarray(model.coef, float), np.atleast_1d(np.asarray(model.bias, float))
    if model.classes is None:
        return 2, coef[None], bias, np.arange(len(coef)), [len(coef)]
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
    return k, rows, bias, np.argsort(of_class, kind="stable"), np.bincount(of_class, minlength=k).tolist()


def _whole(label: Any) -> int | None:
    """Return a label as an integer, text such as "2.0" too; None if it is none."""
    try:
        number = Fraction(label)
    except (TypeError, ValueError, OverflowError):
        return None
    return number.numerator if number.denominator == 1 else None


def _numbers(values: np.ndarray) -> str:
    return " ".join(repr(float(value)) for value in values)
