"""Exchange models with other libraries: LIBSVM's files, scikit-learn's SVC and SVR, ONNX."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsvm import __version__
from jaxsvm.datasets.labels import array_of
from jaxsvm.errors import InputError, require_package
from jaxsvm.gram.basis import FourierBasis, KernelBasis, NystroemBasis
from jaxsvm.kernels import RBF, Laplacian, Linear, Polynomial, Precomputed, Product, Scaled, Sigmoid, Sum
from jaxsvm.models.file import Model, scipy_rows
from jaxsvm.models.libsvm import (
    breaks_ties,
    from_libsvm,
    kernel_and_points,
    machine_layout,
    model_of,
    to_libsvm,
)
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.points.rows import CSR
from jaxsvm.runtime.arrays import transfers
from jaxsvm.runtime.files import write_whole

if TYPE_CHECKING:
    from onnx import ModelProto
    from sklearn.base import BaseEstimator
    from sklearn.pipeline import Pipeline
    from sklearn.svm import SVC, SVR, NuSVC, NuSVR, OneClassSVM

__all__ = ["from_libsvm", "to_libsvm", "to_onnx", "to_sklearn"]


def to_sklearn(model: Model | BaseEstimator) -> SVC | NuSVC | SVR | NuSVR | OneClassSVM | Pipeline:
    """Return scikit-learn's estimator that predicts as a model or a fitted estimator does, without jaxsvm or JAX.

    Args:
        model: A `Model` of a linear, polynomial, RBF or sigmoid kernel: it becomes an `SVC` or `SVR`; if it has a
            scaling, a pipeline with a `StandardScaler` first. If it has names of columns, frames are checked against
            them. Or a fitted `SVC`, `NuSVC`, `SVCPath`, `SVR`, `NuSVR` or `OneClassSVM` of `jaxsvm.estimators`, of
            these kernels; sigmoids of `probability=True` are not transferred.

    Raises:
        InputError: On another kernel, features in place of kernels, or an estimator without a counterpart.
    """
    require_package("sklearn", "to_sklearn")
    from sklearn import svm
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    fitted: Any = model
    model = model_of(fitted)
    kernel, parameters, points = kernel_and_points(model)
    name = getattr(fitted, "scikit_learn_class", "SVR" if model.classes is None else "SVC")
    classes = None if name == "OneClassSVM" else model.classes  # of one class -1 and 1 are no labels
    _, coef, bias, order, counts = machine_layout(dataclasses.replace(model, classes=classes))
    machine: Any = getattr(svm, name)()
    if fitted is not model:
        shared = machine.get_params().keys() - {"probability", "kernel"}
        parameters |= {key: value for key, value in fitted.get_params(deep=False).items() if key in shared}
    machine.set_params(kernel=kernel, **parameters)
    coef, flip = coef[:, order], -1.0 if len(classes or ()) == 2 else 1.0  # scikit-learn shows the other sign
    machine._sparse = not isinstance(points, np.ndarray)
    machine._dual_coef_, machine.dual_coef_ = (_stored(each, machine._sparse) for each in (coef, flip * coef))
    machine._intercept_, machine.intercept_, machine.offset_ = bias, flip * bias, -bias
    machine.support_vectors_, machine.shape_fit_, machine.n_features_in_ = points[order], points.shape, points.shape[1]
    # Of a model no training set is known: indices are among its support vectors.
    machine.support_ = getattr(fitted, "support_", np.arange(len(order), dtype=np.int32))[order]
    machine._n_support = np.array(counts if classes is not None else [len(order), 0], np.int32)
    machine._gamma = getattr(fitted, "_gamma", parameters.get("gamma", 0.0))
    machine.fit_status_, machine._probA, machine._probB = getattr(fitted, "fit_status_", 0), np.empty(0), np.empty(0)
    machine._effective_probability = False  # scikit-learn 1.9 reads it
    if classes is not None:
        machine.classes_, machine.class_weight_ = array_of(classes), np.ones(len(classes))
    scaler: Any = StandardScaler()
    if model.columns is not None:
        (machine if model.scaling is None else scaler).feature_names_in_ = np.asarray(model.columns, object)
    if model.scaling is None:
        return machine
    scaler.mean_ = np.asarray(model.scaling.offset, float)
    scaler.scale_ = 1 / np.asarray(model.scaling.factor, float)
    scaler.var_, scaler.n_features_in_, scaler.n_samples_seen_ = scaler.scale_**2, len(scaler.mean_), len(order)
    return make_pipeline(scaler, machine)


def _stored(coef: np.ndarray, sparse: bool) -> Any:
    """Return coefficients as scikit-learn keeps them: of sparse points as CSR, in which zeros are stored too."""
    if not sparse:
        return np.ascontiguousarray(coef)
    from scipy.sparse import csr_array

    k, s = coef.shape
    places = (np.tile(np.arange(s, dtype=np.int32), k), s * np.arange(k + 1, dtype=np.int32))
    return csr_array((coef.ravel(), *places), shape=coef.shape)


OPSET, IR_VERSION = 13, 7
"""Versions of ONNX of 2020: every runtime since then reads them, and they have all operators that are needed."""
MOST_BYTES = 2**31 - 2**20
"""Bytes of constants: ONNX limits a file to 2 GiB."""
LARGEST_EXPANDED_SQUARE = 1e5
"""Squared distances to the mean of the support, in the kernel's units, that are expanded."""

_double = functools.partial(np.asarray, dtype=np.float64)


@transfers
def to_onnx(model: Model | BaseEstimator, path: str | os.PathLike[str] | None = None) -> ModelProto:
    """Convert a model to an ONNX graph, which runtimes evaluate without jaxsvm.

    Its input is `x`, float32, `(n, d)` with n >= 1: points as `predict` takes them, since a scaling becomes part of the
    graph; kernel values against all training samples if the kernel is precomputed. Its outputs are those of `predict`
    and `decision_function`: `label (n,)` and `scores`, `(n,)` or one column per pair `(n, k (k - 1) / 2)`; of
    regression `values (n,)`; with `probability=True` also `probabilities (n, k)`, of `predict_proba`. Labels are text,
    integers, truth values or float64, as `classes` are; `break_ties=True` holds. Scores are computed in float64 and
    rounded to float32 at the end. All kernel values of a call are held at once, `(n, support)`: give many points in
    batches.

    Args:
        model: A model of any kernel of `jaxsvm.kernels`, sums and products of them too, or of features
            (`gram(..., rank=)`). Or a fitted estimator of `jaxsvm.estimators` or of scikit-learn, in a pipeline behind
            a `StandardScaler` too.
        path: The file to write, or None.

    Returns:
        The `onnx.ModelProto`. If the model has names of columns, they are in its metadata, as JSON.

    Raises:
        InputError: On a kernel that is a user's function; on sparse support vectors that are too wide to be made dense,
            unless the kernel is linear; on a model above 2 GiB.
        MissingPackageError: If onnx is not installed.
    """
    onnx, ties, model = require_package("onnx", "to_onnx"), breaks_ties(model), model_of(model)
    labels = None if model.classes is None else _labels(model.classes)  # before the work, since it may refuse
    graph, kinds = Graph(onnx), onnx.TensorProto
    x = graph("Cast", "x", to=kinds.DOUBLE)
    if model.scaling is not None:
        x = graph("Mul", graph("Sub", x, _double(model.scaling.offset)), _double(model.scaling.factor))
    decisions = _decisions(graph, model, x)
    shape = ["n", *np.shape(model.bias)]
    name = "values" if labels is None else "scores"
    graph("Cast", decisions, to=kinds.FLOAT, output=name)
    outputs = [onnx.helper.make_tensor_value_info(name, kinds.FLOAT, shape)]
    if labels is not None:
        graph("Gather", labels, _codes(graph, decisions, len(labels), ties), output="label")
        kind = onnx.numpy_helper.from_array(labels).data_type
        outputs = [onnx.helper.make_tensor_value_info("label", kind, ["n"]), *outputs]
        if model.sigmoids is not None:
            chances = _probabilities(graph, decisions, np.asarray(model.sigmoids), len(labels))
            graph("Cast", chances, to=kinds.FLOAT, output="probabilities")
            outputs += [onnx.helper.make_tensor_value_info("probabilities", kinds.FLOAT, ["n", len(labels)])]
    columns = model.basis.columns or "columns"  # precomputed kernel values may have any number of columns
    inputs = [onnx.helper.make_tensor_value_info("x", kinds.FLOAT, ["n", columns])]
    proto = onnx.helper.make_model(
        graph.proto(inputs, outputs),
        producer_name="jaxsvm",
        producer_version=__version__,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    if model.columns is not None:
        onnx.helper.set_model_props(proto, {"columns": json.dumps(model.columns)})
    if path is not None:
        write_whole(lambda file: file.write(proto.SerializeToString()), path)
    return proto


class Graph:
    """A sequence of operators. Values are referred to by name; arrays among an operator's inputs become constants."""

    def __init__(self, onnx: Any, prefix: str = "") -> None:
        self.onnx, self.prefix = onnx, prefix
        self.nodes, self.constants, self.bytes = [], [], 0

    def __call__(self, operator: str, *inputs: Any, output: str | None = None, **attributes: Any) -> str:
        """Add an operator.

        Inputs are names of values, or arrays.

        Returns:
            The name of its output.
        """
        names = [value if isinstance(value, str) else self._constant(value) for value in inputs]
        output = output or f"{self.prefix}{operator}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, names, [output], **attributes))
        return output

    def _constant(self, array: np.ndarray) -> str:
        """Add a constant and return its name."""
        self.bytes += array.nbytes
        if self.bytes > MOST_BYTES:
            raise InputError(
                f"model takes more than {MOST_BYTES / 2**30:.2f} GiB in float64, and a file of ONNX ends at 2 GiB: "
                "train with fewer support vectors, or with features, `gram(..., rank=)`."
            )
        name = f"{self.prefix}constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def proto(self, inputs: list[Any], outputs: list[Any]) -> Any:
        """Return the `onnx.GraphProto`."""
        name = f"{self.prefix}jaxsvm"
        return self.onnx.helper.make_graph(self.nodes, name, inputs, outputs, initializer=self.constants)


def _decisions(graph: Graph, model: Model, x: str) -> str:
    """Add the decision values of `decision_function`, `(n,)` or one column per pair; return their name."""
    basis, coef = model.basis, _double(model.coef)
    kernel = basis.kernel if isinstance(basis, KernelBasis | NystroemBasis) else None
    if isinstance(basis, FourierBasis):
        angles = graph("MatMul", graph("Sub", x, _double(basis.shift)), _double(basis.frequencies))
        values = graph("Cos", graph("Add", angles, _double(basis.phases)))
        coef = np.sqrt(2 / basis.size) * coef
    elif kernel is None:
        raise InputError(f"model has {type(basis).__name__}: kernels at points, or features of `gram`, are needed.")
    elif isinstance(basis, KernelBasis) and type(kernel) is Linear:  # weights, however many support vectors there are
        values, coef = x, _double((scipy_rows(basis.x) if isinstance(basis.x, CSR) else _double(basis.x)).T @ coef)
    elif type(kernel) is Precomputed:
        values = graph("Gather", x, np.asarray(basis.x, np.int64), axis=1)
    else:
        z = _dense(basis.x)
        if isinstance(basis, NystroemBasis):
            coef = _double(basis.whitening) @ coef
        if not len(z):  # a constant decision function: ONNX needs a point
            z, coef = np.zeros((1, z.shape[1])), np.zeros((1, *coef.shape[1:]))
        values = _kernel_values(graph, kernel, graph("Sub", x, _double(basis.shift)), z)
    return graph("Add", graph("MatMul", values, coef), _double(model.bias))


def _kernel_values(graph: Graph, kernel: Any, x: str, z: np.ndarray) -> str:
    """Add the kernel values `k(x_i, z_j)`, `(n, q)`; return their name."""
    kind = type(kernel)  # exactly: a user's subclass may be another function
    if kind in (Sum, Product):
        parts = [_kernel_values(graph, part, x, z) for part in (kernel.first, kernel.second)]
        return graph("Add" if kind is Sum else "Mul", *parts)
    if kind is Scaled:
        return graph("Mul", _kernel_values(graph, kernel.base, x, z), _double(kernel.factor))
    if kind is RBF:
        return graph("Exp", graph("Neg", _squared_distances(graph, x, z, _double(kernel.gamma))))
    if kind is Laplacian:
        return graph("Exp", graph("Neg", _by_rows(graph, x, z, _double(kernel.gamma), "Abs")))
    if kind not in (Linear, Polynomial, Sigmoid):
        raise InputError(
            f"model has the kernel {kind.__name__}, a function of your own, for which ONNX has no operators: train "
            "with a kernel of jaxsvm.kernels, or predict by jaxsvm."
        )
    products = graph("MatMul", x, z.T)
    if kind is not Linear:
        products = graph("Add", graph("Mul", products, _double(kernel.gamma)), _double(kernel.coef0))
    if kind is Polynomial:
        return graph("Pow", products, _double(kernel.degree))
    return graph("Tanh", products) if kind is Sigmoid else products


def _squared_distances(graph: Graph, x: str, z: np.ndarray, weights: np.ndarray) -> str:
    """Add `sum_k w_k (x_ik - z_jk)^2`, `(n, q)`; expanded about the mean of the support if that keeps the digits."""
    root, centre = np.sqrt(weights), z.mean(axis=0)
    moved = root * (z - centre)
    squares = (moved**2).sum(axis=1)
    if squares.max() > LARGEST_EXPANDED_SQUARE:
        return _by_rows(graph, x, z, weights, "Mul")
    x = graph("Mul", graph("Sub", x, centre), root)
    of_x = graph("ReduceSum", graph("Mul", x, x), np.array([1]), keepdims=1)
    expanded = graph("Add", graph("Add", of_x, squares), graph("MatMul", x, -2 * moved.T))
    return graph("Max", expanded, _double(0))


def _by_rows(graph: Graph, x: str, z: np.ndarray, weights: np.ndarray, size: str) -> str:
    """Add `sum_k w_k |x_ik - z_jk|` ("Abs"), or the sum of squares ("Mul"), `(n, q)`; return its name.

    Differences are taken for one point at a time: for all at once they would be an array `(n, q, d)`.
    """
    onnx, row = graph.onnx, Graph(graph.onnx, prefix=f"row_{len(graph.nodes)}_")
    d, double = z.shape[1], onnx.TensorProto.DOUBLE
    point, distances = f"{row.prefix}x", f"{row.prefix}distances"
    difference = row("Sub", z, point)
    sizes = row("Abs", difference) if size == "Abs" else row("Mul", difference, difference)
    row("MatMul", sizes, np.broadcast_to(weights, (d,)), output=distances)
    info = onnx.helper.make_tensor_value_info
    body = row.proto([info(point, double, [d])], [info(distances, double, [len(z)])])
    graph.bytes += row.bytes
    return graph("Scan", x, body=body, num_scan_inputs=1)


def _codes(graph: Graph, decisions: str, k: int, ties: bool) -> str:
    """Add the index of the class that decision values mean, `(n,)`, as `jaxsvm.predict` or `break_ties` has it."""
    kinds = graph.onnx.TensorProto
    if k == 2:
        return graph("Cast", graph("GreaterOrEqual", decisions, _double(0)), to=kinds.INT64)
    pairs = np.array(list(combinations(range(k), 2)))
    for_first, for_second = np.eye(k)[pairs[:, 0]], np.eye(k)[pairs[:, 1]]
    first = graph("Cast", graph("GreaterOrEqual" if ties else "Greater", decisions, _double(0)), to=kinds.DOUBLE)
    votes = graph("Add", graph("MatMul", first, for_first - for_second), for_second.sum(axis=0))
    if ties:  # the sum of a class's values, within 1/3: scikit-learn's `_ovr_decision_function`
        total = graph("MatMul", decisions, for_first - for_second)
        most = graph("Mul", graph("Add", graph("Abs", total), _double(1)), _double(3))
        votes = graph("Add", votes, graph("Div", total, most))
    return graph("ArgMax", votes, axis=1, keepdims=0)  # the first of equals


def _probabilities(graph: Graph, decisions: str, sigmoids: np.ndarray, k: int) -> str:
    """Add the probabilities of the classes, `(n, k)`, by Platt's sigmoids and, of more than two, pairwise coupling.

    The system of `estimators/probability.py` less its multiplier, `(Q + 1 1') p = 1` up to a factor, which is
    positive definite: k turns of Gauss and Jordan, without pivots, solve it.
    """
    exponents = graph("Add", graph("Mul", decisions, -sigmoids[:, 0].squeeze()), -sigmoids[:, 1].squeeze())
    p = graph("Clip", graph("Sigmoid", exponents), _double(1e-7), _double(1 - 1e-7))
    if k == 2:
        rest = graph("Sub", _double(1), p)
        return graph("Concat", *(graph("Unsqueeze", part, np.array([1])) for part in (rest, p)), axis=1)
    i, j = np.triu_indices(k, 1)
    above = np.zeros((len(i), k, k))
    above[range(len(i)), i, j] = 1
    signed, below = (above - above.swapaxes(1, 2)).reshape(-1, k * k), np.tril(np.ones((k, k)), -1).ravel()
    r = graph("Reshape", graph("Add", graph("MatMul", p, signed), below), np.array([-1, k, k]))
    squares = graph("ReduceSum", graph("Mul", r, r), np.array([1]), keepdims=1)
    Q = graph("Sub", graph("Mul", squares, np.eye(k)), graph("Mul", r, graph("Transpose", r, perm=[0, 2, 1])))
    ones = graph("Add", graph("Mul", squares, np.zeros((k, 1))), np.ones((k, 1)))
    M = graph("Concat", graph("Add", Q, np.ones((k, k))), ones, axis=2)
    for turn in range(k):
        own = np.array([turn])
        column, row = graph("Gather", M, own, axis=2), graph("Gather", M, own, axis=1)
        row = graph("Div", row, graph("Gather", row, own, axis=2))
        M = graph("Sub", M, graph("Mul", graph("Sub", column, np.eye(k)[:, own]), row))
    p = graph("Clip", graph("Squeeze", graph("Gather", M, np.array([k]), axis=2), np.array([2])), _double(0))
    return graph("Div", p, graph("ReduceSum", p, np.array([1]), keepdims=1))


def _labels(classes: tuple[Any, ...]) -> np.ndarray:
    labels = array_of(classes)
    kinds: dict[str, Any] = {"U": object, "i": np.int64, "u": np.uint64, "f": np.float64, "b": np.bool_}
    if labels.dtype.kind not in kinds:
        raise InputError(f"classes are {str(classes)[:80]}: ONNX's labels are text, numbers or truth values.")
    return labels.astype(kinds[labels.dtype.kind])


def _dense(x: Any) -> np.ndarray:
    """Return dense points; refuse sparse ones that would take too much."""
    if not isinstance(x, CSR):
        return _double(x)
    q, d = x.shape
    if 8 * q * d > SIZES.bytes_held:
        raise InputError(
            f"model has {q} sparse support vectors of {d} columns, and a graph of ONNX would hold all their zeros: up "
            f"to {SIZES.bytes_held // 8} numbers are made dense. Train with a linear kernel, of which only "
            "weights are written, or with fewer columns."
        )
    return _double(scipy_rows(x).toarray())
