"""A model as a graph of ONNX's operators: what `jaxsvm.interchange.to_onnx` writes.

Of the standard domain alone. `SVMClassifier` and `SVMRegressor` of `ai.onnx.ml` have four kernels, one gamma and no
scaling, and compute in float32, where large coefficients that cancel leave nothing. Here a graph computes in float64:
it says what `decision_function` says of float64 points.
"""

import importlib
import json
import os
from itertools import combinations
from typing import Any

import jax
import numpy as np

from jaxsvm import __version__
from jaxsvm.errors import InputError
from jaxsvm.gram.basis import FourierBasis, KernelBasis, NystroemBasis
from jaxsvm.kernels import RBF, Laplacian, Linear, Polynomial, Precomputed, Product, Scaled, Sigmoid, Sum
from jaxsvm.models.model import Model
from jaxsvm.points.rows import Rows

OPSET, IR_VERSION = 13, 7
"""Of 2020, though newer ones exist: they have all that is needed, and every runtime since then reads them."""
LARGEST = 2**31 - 2**20
"""Bytes of constants: a file of ONNX ends at 2 GiB."""
DENSE = 2**24
"""Numbers of sparse support vectors up to which they are made dense: a graph has no sparse ones."""
FAR = 1e5
"""Squares of the support's distances to its mean, in the kernel's units, up to which an expanded square in float64
costs 1e-10 of a kernel value."""


def model_proto(model: Model) -> Any:
    """An `onnx.ModelProto`; see `jaxsvm.interchange.to_onnx`.

    Raises:
        InputError: Where onnx is missing, or has no operators for the model.
    """
    try:
        onnx: Any = importlib.import_module("onnx")
    except ImportError as error:
        raise InputError("to_onnx needs onnx, which is not installed: pip install 'jaxsvm[onnx]'") from error
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
        graph("Gather", labels, _codes(graph, decisions, len(labels)), output="label")
        kind = onnx.numpy_helper.from_array(labels).data_type
        outputs = [onnx.helper.make_tensor_value_info("label", kind, ["n"]), *outputs]
    columns = model.basis.columns or "columns"  # of kernel values computed elsewhere there may be any number
    inputs = [onnx.helper.make_tensor_value_info("x", kinds.FLOAT, ["n", columns])]
    found = onnx.helper.make_model(
        graph.proto(inputs, outputs),
        producer_name="jaxsvm",
        producer_version=__version__,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    if model.columns is not None:
        onnx.helper.set_model_props(found, {"columns": json.dumps(model.columns)})
    return found


class Graph:
    """Operators one after another; a value goes by its name, and arrays among an operator's inputs are constants."""

    def __init__(self, onnx: Any, prefix: str = "") -> None:
        self.onnx, self.prefix = onnx, prefix
        self.nodes, self.constants, self.bytes = [], [], 0

    def __call__(self, operator: str, *inputs: Any, output: str | None = None, **attributes: Any) -> str:
        """Add an operator.

        Args:
            operator: Its name in ONNX.
            *inputs: Names of values, or arrays.
            output: What its output is to be called; None: any name.
            **attributes: As ONNX has them.

        Returns:
            The name of its output.
        """
        names = [one if isinstance(one, str) else self._constant(one) for one in inputs]
        output = output or f"{self.prefix}{operator}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, names, [output], **attributes))
        return output

    def _constant(self, array: np.ndarray) -> str:
        self.bytes += array.nbytes
        if self.bytes > LARGEST:
            raise InputError(
                f"model takes more than {LARGEST / 2**30:.2f} GiB in float64, and a file of ONNX ends at 2 GiB: train "
                "with fewer support vectors, or with features, `gram(..., rank=)`."
            )
        name = f"{self.prefix}constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def proto(self, inputs: list[Any], outputs: list[Any]) -> Any:
        """The `onnx.GraphProto`."""
        name = f"{self.prefix}jaxsvm"
        return self.onnx.helper.make_graph(self.nodes, name, inputs, outputs, initializer=self.constants)


def _decisions(graph: Graph, model: Model, x: str) -> str:
    """Decision values, `(n,)` or a column a pair, as `decision_function` has them."""
    basis, coef = model.basis, _double(model.coef)
    kernel = basis.kernel if isinstance(basis, KernelBasis | NystroemBasis) else None
    if isinstance(basis, FourierBasis):
        angles = graph("MatMul", graph("Sub", x, _double(basis.shift)), _double(basis.frequencies))
        values = graph("Cos", graph("Add", angles, _double(basis.phases)))
        coef = np.sqrt(2 / basis.size) * coef
    elif kernel is None:
        raise InputError(f"model has {type(basis).__name__}: kernels at points, or features of `gram`, are needed.")
    elif isinstance(basis, KernelBasis) and type(kernel) is Linear:  # weights, however many support vectors there are
        values, coef = x, _weights(basis.x, coef)
    elif type(kernel) is Precomputed:
        values = graph("Gather", x, np.asarray(basis.x, np.int64), axis=1)
    else:
        z = _dense(basis.x)
        if isinstance(basis, NystroemBasis):
            coef = _double(basis.whitening) @ coef
        if not len(z):  # a constant: of what is not there, nothing
            z, coef = np.zeros((1, z.shape[1])), np.zeros((1, *coef.shape[1:]))
        values = _kernel_values(graph, kernel, graph("Sub", x, _double(basis.shift)), z)
    return graph("Add", graph("MatMul", values, coef), _double(model.bias))


def _kernel_values(graph: Graph, kernel: Any, x: str, z: np.ndarray) -> str:
    """`k(x_i, z_j)`, `(n, q)`."""
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
    """`sum_k w_k (x_ik - z_jk)^2`, `(n, q)`: expanded, about the mean of the support, where that keeps the digits."""
    root, centre = np.sqrt(weights), z.mean(axis=0)
    moved = root * (z - centre)
    squares = (moved**2).sum(axis=1)
    if squares.max() > FAR:
        return _by_rows(graph, x, z, weights, "Mul")
    x = graph("Mul", graph("Sub", x, centre), root)
    of_x = graph("ReduceSum", graph("Mul", x, x), np.array([1]), keepdims=1)
    expanded = graph("Add", graph("Add", of_x, squares), graph("MatMul", x, -2 * moved.T))
    return graph("Max", expanded, _double(0))


def _by_rows(graph: Graph, x: str, z: np.ndarray, weights: np.ndarray, size: str) -> str:
    """`sum_k w_k |x_ik - z_jk|` ("Abs") or of squares ("Mul"), `(n, q)`.

    By differences, for one point at a time: for all at once they would be an array `(n, q, d)`.
    """
    onnx, row = graph.onnx, Graph(graph.onnx, prefix=f"row_{len(graph.nodes)}_")
    d, double = z.shape[1], onnx.TensorProto.DOUBLE
    point, found = f"{row.prefix}x", f"{row.prefix}distances"
    difference = row("Sub", z, point)
    sizes = row("Abs", difference) if size == "Abs" else row("Mul", difference, difference)
    row("MatMul", sizes, np.broadcast_to(weights, (d,)), output=found)
    info = onnx.helper.make_tensor_value_info
    body = row.proto([info(point, double, [d])], [info(found, double, [len(z)])])
    graph.bytes += row.bytes
    return graph("Scan", x, body=body, num_scan_inputs=1)


def _codes(graph: Graph, decisions: str, k: int) -> str:
    """Which class, `(n,)` from 0 on, as `jaxsvm.predict` tells it from decision values."""
    kinds = graph.onnx.TensorProto
    if k == 2:
        return graph("Cast", graph("GreaterOrEqual", decisions, _double(0)), to=kinds.INT64)
    pairs = np.array(list(combinations(range(k), 2)))
    for_first, for_second = np.eye(k)[pairs[:, 0]], np.eye(k)[pairs[:, 1]]
    first = graph("Cast", graph("Greater", decisions, _double(0)), to=kinds.DOUBLE)
    votes = graph("Add", graph("MatMul", first, for_first - for_second), for_second.sum(axis=0))
    return graph("ArgMax", votes, axis=1, keepdims=0)  # the first of equals


def _labels(classes: tuple[Any, ...]) -> np.ndarray:
    """The labels in a type that tensors of ONNX have."""
    labels = np.asarray(classes)
    kinds: dict[str, Any] = {"U": object, "i": np.int64, "u": np.int64, "f": np.float64, "b": np.bool_}
    if labels.dtype.kind not in kinds:
        raise InputError(f"classes are {str(classes)[:80]}: ONNX's labels are text, numbers or truth values.")
    return labels.astype(kinds[labels.dtype.kind])


def _weights(x: Any, coef: np.ndarray) -> np.ndarray:
    """`X' coef`, `(d,)` or `(d, pairs)`; of sparse points without making them dense."""
    if not isinstance(x, Rows):
        return _double(x).T @ coef
    with jax.enable_x64(True):
        return _double(x.transposed_dot(jax.device_put(coef)))


def _dense(x: Any) -> np.ndarray:
    if not isinstance(x, Rows):
        return _double(x)
    q, d = x.shape
    if q * d > DENSE:
        raise InputError(
            f"model has {q} sparse support vectors of {d} columns, and a graph of ONNX would hold all their zeros: up "
            f"to {DENSE} numbers are made dense. Train with a linear kernel, of which only weights are written, or "
            "with fewer columns."
        )
    with jax.enable_x64(True):
        return _double(x.rows(jax.numpy.arange(q)))


def _double(values: Any) -> np.ndarray:
    return np.asarray(values, np.float64)


def to_onnx(model: Model, path: str | os.PathLike[str] | None = None) -> Any:
    """A model as a graph of ONNX, which runtimes evaluate without jaxsvm. `pip install "jaxsvm[onnx]"`.

    Its input is `x`, float32, `(n, d)` with n >= 1: points as `predict` takes them, since a scaling becomes part of the
    graph; kernel values against all training samples where the kernel is precomputed. Its outputs are those of
    `predict` and `decision_function`: `label (n,)` and `scores`, `(n,)` or a column a pair `(n, k (k - 1) / 2)`; of
    regression `values (n,)`. Labels are text, integers, truth values or float64, as `classes` are. Scores are computed
    in float64 and rounded to float32 at the end. All kernel values of a call are held at once, `(n, support)`: give
    many points in batches.

    Args:
        model: Of any kernel of `jaxsvm.kernels`, sums and products of them too, or of features (`gram(..., rank=)`).
        path: Where to write it to, or None.

    Returns:
        The `onnx.ModelProto`. Where the model knows the names of the columns, they are in its metadata, as JSON.

    Raises:
        InputError: Where onnx is not installed; on a kernel that is a user's function; on sparse support vectors that
            are too wide to be made dense, unless the kernel is linear; on a model above 2 GiB.
    """
    found = model_proto(model)
    if path is not None:
        with open(path, "wb") as file:
            file.write(found.SerializeToString())
    return found
