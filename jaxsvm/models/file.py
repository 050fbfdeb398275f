"""A model and its file: one `.npz` of arrays and a JSON header, without compression (docs/model_file.md).

Nothing in a file is ever executed, and no more is read than the file is long. The
model that is made of a file must predict, by its shapes, and describe itself as the file does. A model is held to the
same before it is saved.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import zipfile
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.datasets.layout import Layout
from jaxsvm.datasets.reading import Preparation, from_json
from jaxsvm.datasets.scaling import Scaling
from jaxsvm.errors import DataError, InputError, require, require_finite
from jaxsvm.gram.basis import Basis, FourierBasis, KernelBasis, NystroemBasis
from jaxsvm.kernels import Precomputed
from jaxsvm.models.description import kernel_from_dict, kernel_to_dict
from jaxsvm.points.rows import CSR
from jaxsvm.results.fit import Certificate
from jaxsvm.runtime.arrays import checked, has_values, in_a_line
from jaxsvm.runtime.files import write_whole

FORMAT = "jaxsvm-model-5"
BASES = {"kernel": KernelBasis, "nystroem": NystroemBasis, "fourier": FourierBasis}


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
        parts = (self.coef, self.bias, self.certificate)
        if not has_values(parts):
            return in_a_line(self)
        task = "regression" if self.classes is None else f"classes {', '.join(map(str, self.classes))}"
        basis = self.basis
        kernel = basis.kernel if isinstance(basis, KernelBasis) else type(basis).__name__
        scaled = "" if self.scaling is None else "scaled "
        gap = float(np.max(np.asarray(self.certificate.relative_gap)))
        return (
            f"Model({task}: {np.shape(self.coef)[0]} coefficients of {kernel}, {basis.columns} {scaled}columns, "
            f"relative gap {gap:.1e})"
        )

    @checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one `.npz` file that holds arrays and JSON only: safe to load from anywhere.

        Raises:
            InputError: If the kernel is a user's function, or labels are objects, which no file can hold, or if
                coefficients are not finite.
            OSError: If the path cannot be written.
        """
        header, arrays = _described(self)
        try:
            _built(header, arrays)
        except InputError as fault:
            raise InputError(f"the model cannot be saved: {fault}") from None
        content = io.BytesIO()
        np.savez(content, header=np.asarray(json.dumps(header)), **arrays)  # pyright: ignore[reportArgumentType]
        write_whole(lambda file: file.write(content.getbuffer()), path)


@checked
def load_model(path: str | os.PathLike[str]) -> Model:
    """Read a model that `Model.save` wrote. Nothing in the file is ever executed.

    Args:
        path: The file.

    Returns:
        The model, in the dtype that it was saved in where x64 is on.

    Raises:
        DataError: If the file is missing, cut short or no sound model, with the fault.
    """
    name = os.fspath(path)
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
    except FileNotFoundError:
        raise DataError(f"{name}: there is no such file.") from None
    except InputError as fault:
        raise DataError(f"{name}: not a whole jaxsvm model: {fault}") from fault
    except Exception as error:  # a damaged archive raises many kinds of errors: EOF, CRC, a missing key
        fault = f"{type(error).__name__}: {str(error)[:120]}"
        raise DataError(
            f"{name}: not a whole jaxsvm model ({fault}); it may have been cut short. Save the model again."
        ) from error


def _described(model: Model) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a model's header, in JSON's types, and its arrays."""
    fields = {field.name: getattr(model.basis, field.name) for field in dataclasses.fields(model.basis)}
    kernel, x = fields.pop("kernel", None), fields.get("x")
    header = {
        "format": FORMAT,
        "basis": next(name for name, kind in BASES.items() if isinstance(model.basis, kind)),
        "kernel": None if kernel is None else kernel_to_dict(kernel),
        "near": fields.pop("near", False),
        "sparse_columns": x.d if isinstance(x, CSR) else None,
        "classes": [label.item() if isinstance(label, np.generic) else label for label in model.classes or ()] or None,
        "layout": None if model.layout is None else dataclasses.asdict(model.layout),
        "preparation": None if model.preparation is None else dataclasses.asdict(model.preparation),
        "sigmoids": model.sigmoids,
    }
    try:
        header = json.loads(json.dumps(header))  # as it will be read: lists for tuples
    except TypeError:
        raise InputError(f"classes are {model.classes}: a file holds numbers and text only.") from None
    if isinstance(x, CSR):
        fields |= {"data": x.data, "indices": x.indices, "indptr": x.indptr}
        del fields["x"]
    parts = {f"basis/{name}": value for name, value in fields.items()}
    parts |= {name: getattr(model, name) for name in ("coef", "bias", "R")}
    parts |= {f"certificate/{name}": value for name, value in model.certificate._asdict().items()}
    if model.scaling is not None:
        parts |= {"scaling/offset": model.scaling.offset, "scaling/factor": model.scaling.factor}
    arrays = {name: np.asarray(value) for name, value in parts.items()}
    whole = {name: value.astype(np.int32) for name, value in arrays.items() if value.dtype.kind == "i"}
    return header, arrays | whole


def _built(header: Any, arrays: dict[str, np.ndarray]) -> Model:
    """Make a model of a header and arrays; raise an InputError, or what its constructors raise, if they make none."""
    require(header["format"] == FORMAT, f"the format is {header['format']!r}: this version reads {FORMAT}.")
    require(header["basis"] in BASES, f"the basis is {str(header['basis'])[:80]}: one of {', '.join(BASES)} is needed.")
    kernel = None if header["kernel"] is None else kernel_from_dict(header["kernel"])
    numbers = ["basis/x"] if isinstance(kernel, Precomputed) else ["basis/indices", "basis/indptr"]  # of samples, say
    for name, values in arrays.items():
        dtypes = ("int32",) if name in numbers else ("float32", "float64")
        require(str(values.dtype) in dtypes, f"{name} is {values.dtype}: {' or '.join(dtypes)} is needed.")
        if not name.startswith("certificate/"):  # a gap may be infinite
            require_finite(name, values)
    placed = jax.device_put(arrays)
    fields = {name.removeprefix("basis/"): value for name, value in placed.items() if name.startswith("basis/")}
    if header["sparse_columns"] is not None:
        fields = {"shift": fields["shift"], "x": _sparse(header["sparse_columns"], arrays)}
    if kernel is not None:
        fields |= {"kernel": kernel, "near": bool(header["near"])}
    names = header["layout"] and header["layout"]["columns"]
    layout = header["layout"] and Layout(**{**header["layout"], "columns": names and tuple(map(str, names))})
    model = Model(
        basis=BASES[header["basis"]](**fields),
        **{name: placed[name] for name in ("coef", "bias", "R")},
        certificate=Certificate(*(placed[f"certificate/{name}"] for name in Certificate._fields)),
        scaling=Scaling(placed["scaling/offset"], placed["scaling/factor"]) if "scaling/offset" in placed else None,
        classes=header["classes"] and tuple(header["classes"]),
        layout=layout,
        preparation=header["preparation"] and from_json(header["preparation"]),
        sigmoids=header["sigmoids"] and tuple((float(slope), float(shift)) for slope, shift in header["sigmoids"]),
    )
    _require_sound(model)
    again, parts = _described(model)
    for name in {**again, **header}:
        require(again.get(name, "?") == header.get(name), f"{name} is {str(header.get(name))[:80]}: no model has that.")
    for name in arrays.keys() - parts.keys():
        raise InputError(f"the member {name[:60]!r} is no part of it.")
    return model


def _sparse(d: int, arrays: dict[str, np.ndarray]) -> CSR:
    """Return sparse points; SciPy refuses indices and rows that are none."""
    from scipy.sparse import csr_array

    data, indices, indptr = (arrays[f"basis/{name}"] for name in ("data", "indices", "indptr"))
    last = int(indptr[-1])  # a basis without entries holds one all the same
    rows = csr_array((data[:last], indices[:last], indptr), shape=(len(indptr) - 1, d))
    rows.check_format(full_check=True)
    return CSR.from_scipy(rows)


def _require_sound(model: Model) -> None:
    """Refuse parts of a model that do not fit together: shapes, labels, names of columns, sigmoids."""
    classes, layout, sigmoids, d = model.classes, model.layout, model.sigmoids, model.basis.columns
    if classes is not None:
        known = all(isinstance(c, str | int) or (isinstance(c, float) and math.isfinite(c)) for c in classes)
        distinct = known and len({*classes}) == len(classes) > 1
        require(distinct, f"the classes are {str([*classes])[:80]}: two different labels are needed, or more.")
    k = len(classes or "--")
    machines = () if k == 2 else (k * (k - 1) // 2,)
    for name, part in {"bias": model.bias, "R": model.R, **model.certificate._asdict()}.items():
        require(np.shape(part) == machines, f"{name} has shape {np.shape(part)}: {machines} is needed.")
    if isinstance(model.basis, KernelBasis) and d is None:
        require(bool((model.basis.x >= 0).all()), "basis/x has numbers of samples below 0.")
    require(d != 0, "it has no columns.")
    width = d or (1 if model.scaling is None else len(model.scaling.offset))
    x = jax.ShapeDtypeStruct((1, width), np.float32)
    try:
        values = jax.eval_shape(_predicted, model, x)
    except (TypeError, ValueError) as fault:  # JAX refuses shapes that do not fit
        raise InputError(f"its shapes do not fit together: {str(fault)[:120]}") from None
    require(
        values.shape == (1, *machines), f"coef has shape {model.coef.shape}: that of {machines} machines is needed."
    )
    if layout is not None:
        named = len(layout.columns or ())
        fits = layout.columns is None or d in (None, named)
        require(fits, f"{named} columns have names, and the basis has {d} columns.")
        placed = isinstance(layout.label, str | int | None) and layout.index_base in (None, 0, 1)
        require(placed, f"the label's place is {layout.label!r} and indices count from {layout.index_base!r}.")
    if model.preparation is not None:
        width = model.preparation.width
        require(d in (None, width), f"columns are prepared to {width}, and the basis has {d}.")
    if sigmoids is not None:
        sound = len(sigmoids) == np.size(model.bias) and classes is not None and np.isfinite(sigmoids).all()
        require(bool(sound), f"the sigmoids are {str(sigmoids)[:80]}: a slope and a shift for each machine are needed.")


def _predicted(model: Model, x: Any) -> Array:
    return model.basis.apply(x if model.scaling is None else model.scaling(x), model.coef)
