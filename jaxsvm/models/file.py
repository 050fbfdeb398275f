"""A model in a file: one `.npz` of arrays and JSON, looked at whole before anything of it is used.

What the file declares comes first: names, sizes and shapes of its members stand in the directory and the headers, and
are held against each other and against the size of the file before any array is read. Values come second. Nothing in
the file is ever executed.
"""

import io
import json
import math
import os
import zipfile
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from jaxsvm.datasets import Layout, Scaling
from jaxsvm.errors import DataError, InputError
from jaxsvm.models.checks import FORMAT, MEMBERS, Declared, require_sound, require_values
from jaxsvm.models.description import basis_from_arrays, basis_to_arrays
from jaxsvm.results.fit import Certificate

if TYPE_CHECKING:
    from jaxsvm.models.model import Model

MEMORY = 256 * 2**20
"""Bytes of arrays that any file may hold; a larger one may hold as many as its own size explains (`RATIO`)."""
RATIO = 100


def save_model(model: "Model", path: Any) -> None:
    """See `Model.save`."""
    header, arrays = _described(model)
    try:
        require_sound(header, {name: Declared(value.dtype, value.shape) for name, value in arrays.items()})
        require_values(header, arrays)
    except InputError as fault:
        raise InputError(f"the model cannot be saved: {fault}") from None
    content = io.BytesIO()
    arrays |= {"header": np.asarray(json.dumps(header))}
    np.savez_compressed(content, **arrays)  # pyright: ignore[reportArgumentType]
    if sum(value.nbytes for value in arrays.values()) > _limit(content.tell()) // 2:
        content = io.BytesIO()  # so regular that it would look like a trap: as it is
        np.savez(content, **arrays)  # pyright: ignore[reportArgumentType]
    with open(path, "wb") as file:
        file.write(content.getbuffer())


def _described(model: "Model") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header, in JSON's types, and the arrays."""
    description, parts = basis_to_arrays(model.basis)
    classes = model.classes
    if classes is not None:
        classes = [label.item() if isinstance(label, np.generic) else label for label in classes]
    header = {"format": FORMAT, "basis": description, "classes": classes, "layout": None}
    if model.layout is not None:
        header["layout"] = {
            "columns": model.layout.columns,
            "label": model.layout.label,
            "index_base": model.layout.index_base,
        }
    try:
        header = json.loads(json.dumps(header))  # as it comes back: lists for tuples
    except TypeError:
        raise InputError(f"classes are {model.classes}: a file holds numbers and text only.") from None
    arrays = {f"basis/{name}": np.asarray(value) for name, value in parts.items()}
    arrays |= {"coef": np.asarray(model.coef), "bias": np.asarray(model.bias), "R": np.asarray(model.R)}
    arrays |= {f"certificate/{name}": np.asarray(value) for name, value in model.certificate._asdict().items()}
    if model.scaling is not None:
        arrays["scaling/offset"] = np.asarray(model.scaling.offset)
        arrays["scaling/factor"] = np.asarray(model.scaling.factor)
    return header, arrays


def read_model(path: Any, memory: int | None) -> dict[str, Any]:
    """Read the fields of a `Model` from a file; see `jaxsvm.load_model`."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            return _read(archive, os.fstat(file.fileno()).st_size, memory)
    except FileNotFoundError:
        raise DataError(f"{name}: there is no such file.") from None
    except InputError as fault:
        raise DataError(f"{name}: not a whole jaxsvm model: {fault}") from fault
    except Exception as error:  # a damaged archive shows itself in many ways: EOF, CRC, a missing key
        raise DataError(
            f"{name}: not a whole jaxsvm model ({type(error).__name__}: {error}); it may have been cut short. Save the "
            "model again."
        ) from error


def _read(archive: zipfile.ZipFile, size: int, memory: int | None) -> dict[str, Any]:
    declared = _directory(archive, size, memory)
    header = json.loads(str(_array(archive, "header")))
    require_sound(header, {name: what for name, what in declared.items() if name != "header"})
    arrays = {name: _array(archive, name) for name in declared if name != "header"}
    require_values(header, arrays)
    placed = {name: jnp.asarray(_narrow(value)) for name, value in arrays.items()}
    basis = {name.removeprefix("basis/"): value for name, value in placed.items() if name.startswith("basis/")}
    scaling = Scaling(placed["scaling/offset"], placed["scaling/factor"]) if "scaling/offset" in placed else None
    layout = header.get("layout")
    if layout is not None:
        layout = Layout(layout["columns"] and tuple(layout["columns"]), layout["label"], layout["index_base"])
    return {
        "basis": basis_from_arrays(header["basis"], basis),
        "coef": placed["coef"],
        "bias": placed["bias"],
        "R": placed["R"],
        "certificate": Certificate(*(placed[f"certificate/{name}"] for name in Certificate._fields)),
        "scaling": scaling,
        "classes": header["classes"] and tuple(header["classes"]),
        "layout": layout,
    }


# --- what the file declares ------------------------------------------------------------------------------------------


def _limit(size: int) -> int:
    return max(MEMORY, RATIO * size)


def _directory(archive: zipfile.ZipFile, size: int, memory: int | None) -> dict[str, Declared]:
    """What the members say of themselves; nothing but their first bytes is read."""
    infos = archive.infolist()
    names = [info.filename.removesuffix(".npy") for info in infos]
    for info, name in zip(infos, names, strict=True):
        if name not in MEMBERS or name == info.filename:
            raise InputError(f"the member {info.filename[:60]!r} is no part of a model.")
        if names.count(name) > 1:
            raise InputError(f"the member {name!r} is there {names.count(name)} times.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(f"the member {name!r} is packed in another way than models are.")
    total, limit = sum(info.file_size for info in infos), _limit(size) if memory is None else memory
    if total > limit:
        raise InputError(
            f"its arrays would take {total:,} bytes, and {limit:,} are allowed for a file of {size:,}; for a file that "
            f"is trusted say load_model(path, memory={total})."
        )
    if "header" not in names:
        raise InputError("it has no header.")
    return {name: _declared(archive, info, name) for info, name in zip(infos, names, strict=True)}


def _declared(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Declared:
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise InputError(f"the member {name!r} is an array of version {version}.")
        shape, _, dtype = readers[version](file)
        if dtype.hasobject:
            raise InputError(f"{name} holds pickled objects, which are never loaded.")
        if min(shape, default=0) < 0 or file.tell() + math.prod(shape) * dtype.itemsize != info.file_size:
            raise InputError(f"{name} is of shape {shape} and {dtype}, which is not what its size says.")
    if name == "header" and (shape != () or dtype.kind != "U"):
        raise InputError(f"the header has shape {shape} and dtype {dtype}: text is needed.")
    return Declared(dtype, shape)


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        file.read(1)  # at its end the archive compares checksums
    return array


def _narrow(array: np.ndarray) -> np.ndarray:
    """Integers as int32, whose range has been looked at; floats as this machine writes them, 32 bits at least."""
    if array.dtype.kind in "iu":
        return array.astype(np.int32)
    return array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32)
