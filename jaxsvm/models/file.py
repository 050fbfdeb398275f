"""A model in a file: one `.npz` of arrays and JSON, checked whole before anything of it is used.

The names, sizes and shapes that the directory and the members' headers declare are checked first, against each other
and against the size of the file, before any array is read. Values are checked next. Nothing in the file is ever
executed.
"""

import dataclasses
import io
import json
import math
import os
import zipfile
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxsvm.datasets import Layout, Scaling
from jaxsvm.datasets.columns.preparation import from_json
from jaxsvm.errors import DataError, InputError, require
from jaxsvm.models.checks import FORMAT, MEMBERS, Declared, require_sound, require_values
from jaxsvm.models.description import basis_from_arrays, basis_to_arrays
from jaxsvm.models.measured import MEASURED
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.results.fit import Certificate
from jaxsvm.runtime.checks import checked
from jaxsvm.runtime.files import write_whole

if TYPE_CHECKING:
    from jaxsvm.models.model import Model


@checked
def save_model(model: "Model", path: str | os.PathLike[str]) -> None:
    """Write a model to a file; see `Model.save`."""
    header, arrays = _described(model)
    try:
        require_sound(header, {name: Declared(value.dtype, value.shape) for name, value in arrays.items()})
        require_values(header, arrays)
    except InputError as fault:
        raise InputError(f"the model cannot be saved: {fault}") from None
    content = io.BytesIO()
    arrays |= {"header": np.asarray(json.dumps(header))}
    np.savez_compressed(content, **arrays)  # pyright: ignore[reportArgumentType]
    if sum(value.nbytes for value in arrays.values()) > _most_bytes(content.tell()) // 2:
        content = io.BytesIO()  # arrays so regular that their compressed file would be refused: not compressed
        np.savez(content, **arrays)  # pyright: ignore[reportArgumentType]
    write_whole(lambda file: file.write(content.getbuffer()), path)


def _described(model: "Model") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a model's header, in JSON's types, and its arrays."""
    description, parts = basis_to_arrays(model.basis)
    classes = model.classes
    if classes is not None:
        classes = [label.item() if isinstance(label, np.generic) else label for label in classes]
    layout = model.layout
    if layout is not None:
        layout = {"columns": layout.columns, "label": layout.label, "index_base": layout.index_base}
    header = {"format": FORMAT, "basis": description, "classes": classes, "layout": layout}
    if model.preparation is not None:
        header["preparation"] = dataclasses.asdict(model.preparation)
    if model.sigmoids is not None:
        header["sigmoids"] = model.sigmoids
    try:
        header = json.loads(json.dumps(header))  # as it will be read: lists for tuples
    except TypeError:
        raise InputError(f"classes are {model.classes}: a file holds numbers and text only.") from None
    arrays = {f"basis/{name}": value for name, value in parts.items()}
    arrays |= {"coef": model.coef, "bias": model.bias, "R": model.R}
    arrays |= {f"certificate/{name}": value for name, value in model.certificate._asdict().items()}
    if model.scaling is not None:
        arrays |= {"scaling/offset": model.scaling.offset, "scaling/factor": model.scaling.factor}
    return header, {name: np.asarray(value) for name, value in arrays.items()}


@checked
def read_model(path: str | os.PathLike[str], memory: int | None) -> dict[str, Any]:
    """Read the fields of a `Model` from a file; see `jaxsvm.load_model`."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            return _read(archive, os.fstat(file.fileno()).st_size, memory)
    except FileNotFoundError:
        raise DataError(f"{name}: there is no such file.") from None
    except InputError as fault:
        raise DataError(f"{name}: not a whole jaxsvm model: {fault}") from fault
    except Exception as error:  # a damaged archive raises many kinds of errors: EOF, CRC, a missing key
        raise DataError(
            f"{name}: not a whole jaxsvm model ({type(error).__name__}: {error}); it may have been cut short. Save the "
            "model again."
        ) from error


def _read(archive: zipfile.ZipFile, size: int, memory: int | None) -> dict[str, Any]:
    """Read and check an archive of `size` bytes."""
    declared = _directory(archive, size, memory)
    header = json.loads(str(_array(archive, "header")))
    require_sound(header, {name: member for name, member in declared.items() if name != "header"})
    arrays = {name: _array(archive, name) for name in declared if name != "header"}
    require_values(header, arrays)
    placed = jax.device_put({name: _narrow(value) for name, value in arrays.items()})
    basis = {name.removeprefix("basis/"): value for name, value in placed.items() if name.startswith("basis/")}
    layout = header.get("layout")
    if layout is not None:
        layout = Layout(layout["columns"] and tuple(layout["columns"]), layout["label"], layout["index_base"])
    return {
        "basis": basis_from_arrays(header["basis"], basis),
        **{name: placed[name] for name in ("coef", "bias", "R")},
        "certificate": Certificate(*(placed[f"certificate/{name}"] for name in Certificate._fields)),
        "scaling": Scaling(placed["scaling/offset"], placed["scaling/factor"]) if "scaling/offset" in placed else None,
        "classes": header["classes"] and tuple(header["classes"]),
        "layout": layout,
        "preparation": header.get("preparation") and from_json(header["preparation"]),
        "sigmoids": header.get("sigmoids") and tuple(map(tuple, header["sigmoids"])),
    }


def _most_bytes(size: int) -> int:
    """Return the bytes of arrays that a file of that size may unpack to."""
    return max(SIZES.bytes_held, MEASURED.bytes_per_byte_of_file * size)


def _directory(archive: zipfile.ZipFile, size: int, memory: int | None) -> dict[str, Declared]:
    """Return the dtype and shape that each member declares; read nothing but the first bytes of each."""
    infos = archive.infolist()
    names = [info.filename.removesuffix(".npy") for info in infos]
    for info, name in zip(infos, names, strict=True):
        known = name in MEMBERS and name != info.filename
        require(known, f"the member {info.filename[:60]!r} is no part of a model.")
        require(names.count(name) == 1, f"the member {name!r} is there {names.count(name)} times.")
        packed = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        require(packed, f"the member {name!r} is packed in another way than models are.")
    total, limit = sum(info.file_size for info in infos), _most_bytes(size) if memory is None else memory
    require(
        total <= limit,
        f"its arrays would take {total:,} bytes, and {limit:,} are allowed for a file of {size:,}; for a file that is "
        f"trusted say load_model(path, memory={total}).",
    )
    require("header" in names, "it has no header.")
    return {name: _declared(archive, info, name) for info, name in zip(infos, names, strict=True)}


def _declared(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Declared:
    """Return the dtype and shape of one member, which must explain its size."""
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        require(version in readers, f"the member {name!r} is an array of version {version}.")
        shape, _, dtype = readers[version](file)
        require(not dtype.hasobject, f"{name} holds pickled objects, which are never loaded.")
        whole = min(shape, default=0) >= 0 and file.tell() + math.prod(shape) * dtype.itemsize == info.file_size
        require(whole, f"{name} is of shape {shape} and {dtype}, which is not what its size says.")
    text = name != "header" or (shape == () and dtype.kind == "U")
    require(text, f"the header has shape {shape} and dtype {dtype}: text is needed.")
    return Declared(dtype, shape)


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Read one member."""
    with archive.open(f"{name}.npy") as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        file.read(1)  # at its end the archive compares checksums
    return array


def _narrow(array: np.ndarray) -> np.ndarray:
    """Convert integers, whose range is checked, to int32, and floats to this machine's float32 or float64."""
    if array.dtype.kind in "iu":
        return array.astype(np.int32)
    return array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32)
