"""Exchange models with other libraries: graphs of ONNX, which are made here, and LIBSVM's files."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsvm import __version__
from jaxsvm.datasets.labels import array_of
from jaxsvm.errors import InputError, require, require_package
from jaxsvm.gram.basis import FourierBasis, KernelBasis, NystroemBasis
from jaxsvm.kernels import RBF, Laplacian, Linear, Polynomial, Precomputed, Product, Scaled, Sigmoid, Sum
from jaxsvm.kernels.distances import LARGEST_EXPANDED_SQUARE
from jaxsvm.models.file import Model
from jaxsvm.models.libsvm import breaks_ties, from_libsvm, model_of, to_libsvm
from jaxsvm.points.rows import CSR, scipy_rows
from jaxsvm.runtime.arrays import transfers
from jaxsvm.runtime.files import write_whole

if TYPE_CHECKING:
    from onnx import ModelProto
    from sklearn.base import BaseEstimator

__all__ = ["from_libsvm", "to_libsvm", "to_onnx"]


LEAST_PROBABILITY = 1e-7  # LIBSVM's: coupling needs positive ones
OPSET = 13
"""Of 2020: every runtime since then reads it, and it has all operators that are needed."""
MOST_BYTES = 2**31 - 2**20
"""Bytes of support vectors: ONNX limits a file to 2 GiB."""

_double = functools.partial(np.asarray, dtype=np.float64)


@transfers
def to_onnx(model: Model | BaseEstimator, path: str | os.PathLike[str] | None = None) -> ModelProto:
    """Convert a model to an ONNX graph, which runtimes evaluate without jaxsvm.

    Its input is `x`, float32, `(n, d)` with n >= 1: points as `predict` takes them, since a scaling becomes part of the
    graph; kernel values against all training samples if the kernel is precomputed. Its outputs are those of `predict`
    and `decision_function`: `label (n,)` and `scores`, `(n,)` or one column per pair `(n, k (k - 1) / 2)`; of
    regression `values (n,)`; with `probability=True` also `probabilities (n, k)`, of `predict_proba`. Labels are text,
    integers, truth values or float64, as `classes` are; `break_ties=True` holds. Scores are computed in float64 and
    rounded to float32 at the end. All kernel values of a call are held at once, `(n, support)`, and of a Laplacian or a
    very narrow RBF kernel all differences, `(n, support, d)`: give many points in batches.

    Args:
        model: A model of any kernel of `jaxsvm.kernels`, sums and products of them too, or of features
            (`gram(..., rank=)`). Or a fitted estimator of `jaxsvm.estimators` or of scikit-learn, in a pipeline behind
            a `StandardScaler` too.
        path: The file to write, or None.

    Returns:
        The `onnx.ModelProto`. If the model has names of columns, they are in its metadata, as JSON.

    Raises:
        InputError: On a kernel that is a user's function; on support vectors that take more than 2 GiB in float64, with
            their zeros, unless the kernel is linear.
        MissingPackageError: If onnx is not installed.
    """
    onnx, ties, model = require_package("onnx", "to_onnx"), breaks_ties(model), model_of(model)
    labels = None if model.classes is None else _labels(model.classes)  # before the work, since it may refuse
    graph, kinds, outputs = Graph(onnx), onnx.TensorProto, []

    def declared(name: str, kind: int, *columns: Any) -> Any:
        return onnx.helper.make_tensor_value_info(name, kind, ["n", *columns])

    x = graph("Cast", "x", to=kinds.DOUBLE)
    if model.scaling is not None:
        x = graph("Mul", graph("Sub", x, _double(model.scaling.offset)), _double(model.scaling.factor))
    decisions = _decisions(graph, model, x)
    if labels is not None:
        graph("Gather", labels, _codes(graph, decisions, len(labels), ties), output="label")
        outputs.append(declared("label", onnx.helper.np_dtype_to_tensor_dtype(labels.dtype)))
    name = "values" if labels is None else "scores"
    graph("Cast", decisions, to=kinds.FLOAT, output=name)
    outputs.append(declared(name, kinds.FLOAT, *np.shape(model.bias)))
    if labels is not None and model.sigmoids is not None:
        chances = _probabilities(graph, decisions, np.asarray(model.sigmoids), len(labels))
        graph("Cast", chances, to=kinds.FLOAT, output="probabilities")
        outputs.append(declared("probabilities", kinds.FLOAT, len(labels)))
    inputs = [declared("x", kinds.FLOAT, model.basis.columns or "columns")]  # of kernel values there may be any number
    proto = onnx.helper.make_model_gen_version(
        onnx.helper.make_graph(graph.nodes, "jaxsvm", inputs, outputs),
        producer_name="jaxsvm",
        producer_version=__version__,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
    )
    if model.columns is not None:
        onnx.helper.set_model_props(proto, {"columns": json.dumps(model.columns)})
    if path is not None:
        write_whole(lambda file: file.write(proto.SerializeToString()), path)
    return proto


@dataclasses.dataclass
class Graph:
    """A sequence of operators. Values are referred to by name; arrays among an operator's inputs become constants."""

    onnx: Any
    nodes: list[Any] = dataclasses.field(default_factory=list)

    def __call__(self, operator: str, *inputs: Any, output: str | None = None, **attributes: Any) -> str:
        """Add an operator, whose inputs are names of values or arrays; return the name of its output."""
        tensor = self.onnx.numpy_helper.from_array
        names = [each if isinstance(each, str) else self("Constant", value=tensor(np.asarray(each))) for each in inputs]
        output = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, names, [output], **attributes))
        return output


def _decisions(graph: Graph, model: Model, x: str) -> str:
    """Add the decision values of `decision_function`, `(n,)` or one column per pair; return their name."""
    basis, coef = model.basis, _double(model.coef)
    kernel = basis.kernel
    if isinstance(basis, FourierBasis):
        angles = graph("MatMul", graph("Sub", x, _double(basis.shift)), _double(basis.frequencies))
        values = graph("Cos", graph("Add", angles, _double(basis.phases)))
        coef = np.sqrt(2 / basis.size) * coef
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
        return graph("Exp", graph("Neg", _by_differences(graph, x, z, _double(kernel.gamma), power=1)))
    if kind not in (Linear, Polynomial, Sigmoid):
        own = "a function of your own, for which ONNX has no operators"
        remedy = "train with a kernel of jaxsvm.kernels, or predict by jaxsvm."
        raise InputError(f"model has the kernel {kind.__name__}, {own}: {remedy}")
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
        return _by_differences(graph, x, z, weights, power=2)
    x = graph("Mul", graph("Sub", x, centre), root)
    of_x = graph("ReduceSum", graph("Mul", x, x), np.array([1]), keepdims=1)
    expanded = graph("Add", graph("Add", of_x, squares), graph("MatMul", x, -2 * moved.T))
    return graph("Max", expanded, _double(0))


def _by_differences(graph: Graph, x: str, z: np.ndarray, weights: np.ndarray, power: int) -> str:
    """Add `sum_k w_k |x_ik - z_jk|^power`, `(n, q)`, of all differences, `(n, q, d)`; return its name."""
    difference = graph("Sub", graph("Unsqueeze", x, np.array([1])), z)
    sizes = graph("Abs", difference) if power == 1 else graph("Mul", difference, difference)
    return graph("MatMul", sizes, np.broadcast_to(weights, z.shape[1]))


def _codes(graph: Graph, decisions: str, k: int, ties: bool) -> str:
    """Add the index of the class that decision values mean, `(n,)`, as `jaxsvm.predict` or `break_ties` has it."""
    kinds = graph.onnx.TensorProto
    if k == 2:
        return graph("Cast", graph("GreaterOrEqual", decisions, _double(0)), to=kinds.INT64)
    for_first, for_second = np.eye(k)[np.array(np.triu_indices(k, 1))]
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
    p = graph("Clip", graph("Sigmoid", exponents), _double(LEAST_PROBABILITY), _double(1 - LEAST_PROBABILITY))
    if k == 2:
        rest = graph("Sub", _double(1), p)
        return graph("Concat", *(graph("Unsqueeze", part, np.array([1])) for part in (rest, p)), axis=1)
    first, second = np.eye(k)[np.array(np.triu_indices(k, 1))]
    above = first[:, :, None] * second[:, None]
    signed, below = (above - above.swapaxes(1, 2)).reshape(-1, k * k), np.tril(np.ones((k, k)), -1).ravel()
    r = graph("Reshape", graph("Add", graph("MatMul", p, signed), below), np.array([-1, k, k]))
    squares = graph("ReduceSum", graph("Mul", r, r), np.array([1]), keepdims=1)
    Q = graph("Sub", graph("Mul", squares, np.eye(k)), graph("Mul", r, graph("Transpose", r, perm=[0, 2, 1])))
    M = graph("Add", graph("MatMul", Q, np.eye(k, k + 1)), np.ones((k, k + 1)))  # and the right-hand side
    for turn in range(k):
        own = np.array([turn])
        column, row = graph("Gather", M, own, axis=2), graph("Gather", M, own, axis=1)
        row = graph("Div", row, graph("Gather", row, own, axis=2))
        M = graph("Sub", M, graph("Mul", graph("Sub", column, np.eye(k)[:, own]), row))
    p = graph("Clip", graph("Gather", M, np.array(k), axis=2), _double(0))
    return graph("Div", p, graph("ReduceSum", p, np.array([1]), keepdims=1))


def _labels(classes: tuple[Any, ...]) -> np.ndarray:
    labels = array_of(classes)
    known = labels.dtype.kind in "Uiufb"
    require(known, f"classes are {str(classes)[:80]}: ONNX's labels are text, numbers or truth values.")
    return labels.astype(object) if labels.dtype.kind == "U" else labels


def _dense(x: Any) -> np.ndarray:
    kind = "sparse support vectors" if isinstance(x, CSR) else "support vectors"
    require(
        8 * x.shape[0] * x.shape[1] <= MOST_BYTES,
        f"model has {x.shape[0]} {kind} of {x.shape[1]} columns, of which a graph of ONNX holds every number, zeros "
        "too, in float64, and its file ends at 2 GiB: train with fewer, with features (`gram(..., rank=)`), or with a "
        "linear kernel, of which only weights are written.",
    )
    return _double(scipy_rows(x).toarray() if isinstance(x, CSR) else x)
