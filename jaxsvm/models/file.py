"""A model and its file: one `.npz` of arrays and a JSON header, without compression (docs/model_file.md).

Nothing in a file is ever executed, and no more is read than the file is long. The
model that is made of a file must predict, by its shapes, and describe itself as the file does. A model is held to the
same before it is saved.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import math
import os
import zipfile
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.datasets import Layout, Scaling
from jaxsvm.datasets.reading import Preparation
from jaxsvm.datasets.tables import Column
from jaxsvm.errors import DataError, InputError, require, require_finite
from jaxsvm.gram.basis import Basis, FourierBasis, KernelBasis, NystroemBasis
from jaxsvm.kernels import RBF, Laplacian, Linear, Polynomial, Precomputed, Product, Scaled, Sigmoid, Sum
from jaxsvm.points.rows import CSR, scipy_rows
from jaxsvm.results.fit import Certificate
from jaxsvm.runtime.arrays import checked, has_values, in_a_line
from jaxsvm.runtime.files import write_arrays

FORMAT = "jaxsvm-model-6"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Model:
    """The part of a fit that predicts: a decision function. A pytree; build it with `compact`.

    Of k > 2 classes it is the m = k (k - 1) / 2 decision functions of all pairs on one basis, in LIBSVM's order:
    (0, 1), (0, 2), ..., (1, 2), ..., each positive for the first class of its pair.

    Attributes:
        basis: Functions of a point: kernels at the support, or features.
        coef: Their coefficients in primal scale, `(q,)`; of several classes `(q, m)`.
        bias: The constant, `()`; of several classes `(m,)`.
        R: The scale of the paper's `h`, shaped as `bias`.
        certificate: The certificate of the fit, each value shaped as `bias`.
        scaling: The scaling of the features before training, which new points get too, or None.
        classes: The labels, as text or numbers: of the negative and the positive side, or of k > 2 classes in sorted
            order; None for regression, whose decision values are its predictions. Static.
        layout: The columns of the training file (`jaxsvm.datasets.Layout`), for files of new points, or None; static.
        preparation: What is done to the columns of a file or a frame to make points of them, or None; static.
        sigmoids: Slope and shift of each machine's map from decision values to probabilities, or None; static.
    """

    basis: Basis
    coef: Float[Array, "q *m"]
    bias: Float[Array, "*m"]
    R: Float[Array, "*m"]
    certificate: Certificate
    scaling: Scaling | None = None
    classes: tuple[Any, ...] | None = dataclasses.field(default=(-1, 1), metadata={"static": True})
    layout: Layout | None = dataclasses.field(default=None, metadata={"static": True})
    preparation: Preparation | None = dataclasses.field(default=None, metadata={"static": True})
    sigmoids: tuple[tuple[float, float], ...] | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Return the names of the columns, in the order that new points must have; None if unknown."""
        return None if self.layout is None else self.layout.columns

    def __repr__(self) -> str:
        """Show the task, the kernel and the gap in one line; the parts instead if they are traced."""
        if not has_values((self.coef, self.bias, self.certificate)):
            return in_a_line(self)
        task = "regression" if self.classes is None else f"classes {', '.join(map(str, self.classes))}"
        basis = self.basis
        kernel = basis.kernel if isinstance(basis, KernelBasis) else type(basis).__name__
        scaled = "" if self.scaling is None else "scaled "
        gap = float(np.max(np.asarray(self.certificate.relative_gap)))
        size = f"{np.shape(self.coef)[0]} coefficients of {kernel}, {basis.columns} {scaled}columns"
        return f"Model({task}: {size}, relative gap {gap:.1e})"

    @checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one `.npz` file that holds arrays and JSON only: safe to load from anywhere.

        Raises:
            InputError: If the kernel is a user's function, or labels are objects, which no file can hold, or if
                coefficients are not finite.
            OSError: If the path cannot be written.
        """
        arrays: dict[str, np.ndarray] = {}
        whole = jax.tree.map(lambda leaf: leaf if type(leaf) in (int, float) else np.asarray(leaf), self)
        try:
            header = json.dumps({"format": FORMAT, "model": _described(whole, "", arrays)})
            _built(json.loads(header), arrays)
        except InputError as fault:
            raise InputError(f"the model cannot be saved: {fault}") from None
        write_arrays(path, {"header": np.asarray(header), **arrays})


KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (Linear, RBF, Laplacian, Polynomial, Sigmoid, Precomputed, Sum, Product, Scaled)
    + (KernelBasis, NystroemBasis, FourierBasis, CSR, Model, Certificate, Scaling, Layout, Preparation, Column)
}
"""What a file can hold, by name; a user's kernel is none of them."""


@checked
def load_model(path: str | os.PathLike[str]) -> Model:
    """Read a model that `Model.save` wrote. Nothing in the file is ever executed.

    Returns:
        The model, in the dtype that it was saved in where x64 is on.

    Raises:
        DataError: If the file is missing, cut short or no sound model, with the fault.
    """
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            members, size = archive.infolist(), os.fstat(file.fileno()).st_size
            stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
            require(stored and sum(member.file_size for member in members) <= size, "packed, as older formats were.")
            names = [member.filename.removesuffix(".npy") for member in members]
            require(len({*names}) == len(names), f"one of the members {str(sorted(names))[:80]} is there twice.")
            contents = [io.BytesIO(archive.read(member)) for member in members]
        arrays = {n: np.lib.format.read_array(c, allow_pickle=False) for n, c in zip(names, contents, strict=True)}
        return _built(json.loads(str(arrays.pop("header"))), arrays)
    except Exception as error:  # a damaged archive raises many kinds of errors: EOF, CRC, a missing key
        fault = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {str(error)[:120]}"
        fault = f"not a whole jaxsvm model: {fault.rstrip('.')}. Save the model again."
        fault = "there is no such file." if isinstance(error, FileNotFoundError) else fault
        raise DataError(f"{os.fspath(path)}: {fault}") from error


def _described(part: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
    """Describe a part of a model by JSON's types; its arrays go into `arrays`, by their place."""
    if type(part) in KINDS.values():
        inside = {name: getattr(part, name) for name in inspect.signature(type(part)).parameters}
        described = {name: _described(value, f"{place}/{name}".lstrip("/"), arrays) for name, value in inside.items()}
        return {"kind": type(part).__name__, **described}
    if isinstance(part, tuple):
        return [_described(value, f"{place}/{at}", arrays) for at, value in enumerate(part)]
    if isinstance(part, np.ndarray | jax.Array):
        values = np.asarray(part)
        arrays[place] = values.astype(np.int32) if values.dtype.kind == "i" else values
        return {"array": place}
    part = part.item() if isinstance(part, np.generic) else part
    held = part is None or isinstance(part, str | int) or (isinstance(part, float) and math.isfinite(part))
    require(held, f"{place} is {str(part)[:80]}, which no file can hold: arrays, finite numbers and text can.")
    return part


def _rebuilt(described: Any, arrays: Any) -> Any:
    if isinstance(described, list):
        return tuple(_rebuilt(part, arrays) for part in described)
    if not isinstance(described, dict):
        return described
    if "array" in described:
        return arrays[described["array"]]
    inside = {name: _rebuilt(part, arrays) for name, part in described.items() if name != "kind"}
    return KINDS[described["kind"]](**inside)


def _built(header: Any, arrays: dict[str, np.ndarray]) -> Model:
    """Make a model of a header and arrays; raise an InputError, or what its constructors raise, if they make none."""
    require(header["format"] == FORMAT, f"the format is {header['format']!r}: this version reads {FORMAT}.")
    model = _rebuilt(header["model"], jax.device_put(arrays))
    numbers = ["basis/x"] if model.basis.columns is None else ["basis/x/indices", "basis/x/indptr"]
    for name, values in arrays.items():
        dtypes = ("int32",) if name in numbers else ("float32", "float64")
        require(str(values.dtype) in dtypes, f"{name} is {values.dtype}: {' or '.join(dtypes)} is needed.")
        if not name.startswith("certificate/"):  # a gap may be infinite
            require_finite(name, values)
    _require_sound(model)
    again: dict[str, np.ndarray] = {}
    same = _described(model, "", again) == header["model"] and again.keys() == arrays.keys()
    require(same, f"its header or its members ({', '.join(arrays)[:80]}) say more than the model does, or less.")
    return model


def _require_sound(model: Model) -> None:
    """Refuse parts of a model that do not fit together: shapes, sparse rows, labels, names of columns, sigmoids."""
    layout, sigmoids, d = model.layout, model.sigmoids, model.basis.columns
    classes: Any = ("no", "yes") if model.classes is None else model.classes
    known = isinstance(classes, tuple) and all(isinstance(label, str | int | float) for label in classes)
    distinct = known and len({*classes}) == len(classes) > 1
    require(distinct, f"the classes are {str([*classes])[:80]}: two different labels are needed, or more.")
    x: Any = getattr(model.basis, "x", None)
    require(d is not None or bool((x >= 0).all()), "basis/x has numbers of samples below 0.")
    near = getattr(model.basis, "near", False)
    require(d != 0 and isinstance(near, bool), f"it has no columns, or near, {near}, is no truth value.")
    if isinstance(x, CSR):  # SciPy refuses indices and rows that are none
        rows = scipy_rows(x)
        rows.check_format(full_check=True)
        most = int(np.diff(rows.indptr).max(initial=1))
        require(most <= x.width <= max(x.d, 1), f"width is {x.width}, and its rows have up to {most} entries.")
    new = jax.ShapeDtypeStruct((1, d or (1 if model.scaling is None else len(model.scaling.offset))), np.float32)
    try:
        value = jax.eval_shape(_of_a_point, model, new)
    except (TypeError, ValueError) as fault:  # JAX refuses shapes that do not fit
        raise InputError(f"its shapes do not fit together: {str(fault)[:120]}") from None
    machines = () if len(classes) == 2 else (math.comb(len(classes), 2),)
    parts = {"bias": model.bias, "R": model.R, "a decision value": value, **model.certificate._asdict()}
    for name, part in parts.items():
        require(np.shape(part) == machines, f"{name} has shape {np.shape(part)}: {machines} is needed.")
    names, label, base = (None, None, None) if layout is None else (layout.columns, layout.label, layout.index_base)
    named = names is None or (all(isinstance(name, str) for name in names) and d in (None, len(names)))
    require(named, f"{len(names or ())} columns have names, and the basis has {d} columns.")
    placed = isinstance(label, str | int | None) and base in (None, 0, 1)
    require(placed, f"the label's place is {label!r} and indices count from {base!r}.")
    width = None if model.preparation is None else model.preparation.width
    require(width is None or d in (None, width), f"columns are prepared to {width}, and the basis has {d}.")
    sound = sigmoids is None or (model.classes is not None and np.shape(sigmoids) == (np.size(model.bias), 2))
    require(sound, f"the sigmoids are {str(sigmoids)[:80]}: a slope and a shift for each machine are needed.")


def _of_a_point(model: Model, x: Any) -> Array:
    return model.basis.apply(x if model.scaling is None else model.scaling(x), model.coef)[0]
