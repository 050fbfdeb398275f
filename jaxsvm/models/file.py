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
from jaxsvm.models.description import basis_from_arrays, basis_to_arrays
from jaxsvm.models.measured import MEASURED
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.results.fit import Certificate
from jaxsvm.runtime.checks import checked
from jaxsvm.runtime.files import write_whole

if TYPE_CHECKING:
    from jaxsvm.models.model import Model

from typing import NamedTuple

from jaxsvm.errors import require_finite
from jaxsvm.models.description import KERNELS, kernel_from_dict
from jaxsvm.runtime.checks import MAX_INT32

FORMAT = "jaxsvm-model-4"
FORMATS = ("jaxsvm-model-1", "jaxsvm-model-2", "jaxsvm-model-3", FORMAT)
"""The first has no layout; the second has two classes only; the third prepares no columns. docs/model_file.md
describes them."""
KINDS = {"floats": "f", "integers": "iu"}

COMMON = {"coef": "floats r", "bias": "floats", "R": "floats"}
COMMON |= {f"certificate/{name}": "floats" for name in Certificate._fields}
SCALED = {"scaling/offset": "floats d", "scaling/factor": "floats d"}
CSR = {"basis/data": "floats entries", "basis/indices": "integers entries", "basis/indptr": "integers r+1"}
BASES = {
    "kernel": {"basis/x": "floats r d", "basis/shift": "floats d"},
    "sparse": {**CSR, "basis/shift": "floats d"},
    "precomputed": {"basis/x": "integers r", "basis/shift": "floats 0"},
    "nystroem": {"basis/x": "floats q d", "basis/whitening": "floats q r", "basis/shift": "floats d"},
    "fourier": {"basis/frequencies": "floats d r", "basis/phases": "floats r", "basis/shift": "floats d"},
}
"""The members of each kind of basis: their type, and their shape in sizes that must agree."""
MEMBERS = {"header", *COMMON, *SCALED, *(name for members in BASES.values() for name in members)}
PARAMETERS = {name: tuple(field.name for field in dataclasses.fields(cls)) for name, cls in KERNELS.items()}


class Declared(NamedTuple):
    """The dtype and shape that a member of a file declares."""

    dtype: np.dtype
    shape: tuple[int, ...]


def require_sound(header: Any, declared: dict[str, Declared]) -> None:
    """Refuse a header, or members that are missing, unknown or of the wrong type or shape.

    Args:
        header: The header, in JSON's types.
        declared: All other members, by name.

    Raises:
        InputError: With the fault.
    """
    kind, sizes = _require_header(header)
    classes = header["classes"]
    outputs = "" if classes is None or len(classes) == 2 else " m"  # the axis of several decision functions
    common = {name: form + outputs for name, form in COMMON.items()}
    wanted = common | BASES[kind] | (SCALED if "scaling/offset" in declared else {})
    for name in wanted:
        require(name in declared, f"it has no {name}.")
    for name in sorted(set(declared) - set(wanted)):
        raise InputError(f"the member {name!r} is no part of a model of this kind.")
    if kind == "precomputed" and "scaling/offset" in declared:
        sizes["d"] = math.prod(declared["scaling/offset"].shape)  # no other member counts columns of kernel values
    for name, form in wanted.items():
        word, *axes = form.split()
        dtype, shape = declared[name]
        narrow = dtype.kind in KINDS[word] and dtype.itemsize <= 8
        require(narrow, f"{name} is {dtype}: {word} of up to 64 bits are needed.")
        for axis, length in zip(axes, shape, strict=False):
            sizes.setdefault(axis, length)  # the first member with an axis defines its length; "r" is that of `coef`
            sizes["r+1"] = sizes["r"] + 1
        needed = tuple(sizes.get(axis, -1) for axis in axes)
        shown = ", ".join("any" if size < 0 else str(size) for size in needed)
        require(shape == needed, f"{name} has shape {shape}, and ({shown}) is needed beside the others.")
    require(sizes.get("d", 1) > 0, "it has no columns.")
    d = None if kind == "precomputed" else sizes["d"]
    _require_layout(header.get("layout"), d)
    if header.get("preparation") is not None:
        width = from_json(header["preparation"]).width
        require(d in (None, width), f"columns are prepared to {width}, and the basis has {d}.")
    _require_sigmoids(header.get("sigmoids"), header["classes"])
    if kind != "fourier":
        _require_kernel(header["basis"]["kernel"], d)
        kernel_from_dict(header["basis"]["kernel"])  # raises on values that no kernel has


def _require_header(header: Any) -> tuple[str, dict[str, int]]:
    """Return the kind of basis, and the sizes that the header itself gives."""
    _require_keys("the header", header, {"format", "basis", "classes"}, {"layout", "preparation", "sigmoids"})
    version, basis = header["format"], header["basis"]
    require(version in FORMATS, f"the format is {version!r}, this version reads {' and '.join(FORMATS)}.")
    _require_classes(header["classes"])
    kind = basis.get("type") if isinstance(basis, dict) else None
    if kind not in ("kernel", "nystroem", "fourier"):
        raise InputError(f"the basis is {str(basis)[:80]}: one of type kernel, nystroem or fourier is needed.")
    needed = {"type"} if kind == "fourier" else {"type", "kernel"}
    allowed = {"kernel": {"sparse", "near"}, "nystroem": {"near"}, "fourier": set()}
    _require_keys("the basis", basis, needed, allowed[kind])
    near = basis.get("near", False)
    require(isinstance(near, bool), f"the basis has near = {near!r}: true or false is needed.")
    k = 2 if header["classes"] is None else len(header["classes"])
    sizes = {"0": 0, "m": k * (k - 1) // 2}
    if "sparse" in basis:
        return "sparse", sizes | {"d": _sparse_columns(basis["sparse"])}
    kernel = basis.get("kernel")
    precomputed = kind == "kernel" and isinstance(kernel, dict) and kernel.get("kernel") == "Precomputed"
    return ("precomputed" if precomputed else kind), sizes


def _require_classes(classes: Any) -> None:
    """Refuse classes that are not two or more different labels; None stands for regression."""
    if classes is None:
        return
    sound = isinstance(classes, list) and len(classes) > 1 and all(isinstance(c, str | int | float) for c in classes)
    finite = sound and all(math.isfinite(label) for label in classes if isinstance(label, float))
    distinct = finite and len(set(classes)) == len(classes)
    require(distinct, f"the classes are {str(classes)[:80]}: two different labels are needed, or more.")


def _sparse_columns(sparse: Any) -> int:
    """Return the number of columns of a sparse basis."""
    _require_keys("the sparse basis", sparse, {"d", "width"}, set())
    for key, value in sparse.items():
        counted = _is_count(value) and 1 <= value <= MAX_INT32
        require(counted, f"the sparse basis has {key} = {value!r}: from 1 to {MAX_INT32} is needed.")
    d, width = sparse["d"], sparse["width"]
    require(width <= d, f"the sparse basis has {width} entries in a row of {d} columns.")
    return sparse["d"]


def _require_keys(name: str, value: Any, needed: set[str], allowed: set[str]) -> None:
    """Refuse a value that is no dictionary, lacks a needed key or has a key that is not allowed."""
    if not isinstance(value, dict) or not needed <= set(value) <= needed | allowed:
        keys = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise InputError(f"{name} holds {str(keys)[:120]}: {', '.join(sorted(needed))} are needed.")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require_layout(layout: Any, d: int | None) -> None:
    """Refuse a layout whose names, label or index base are of the wrong kind; None: there is none."""
    if layout is None:
        return
    _require_keys("the layout", layout, {"columns", "label", "index_base"}, set())
    columns, label, base = layout["columns"], layout["label"], layout["index_base"]
    if columns is not None:
        if not isinstance(columns, list) or not all(isinstance(column, str) for column in columns):
            raise InputError(f"the columns are {str(columns)[:80]}: names are needed.")
        require(d in (None, len(columns)), f"{len(columns)} columns have names, and the basis has {d} columns.")
    placed = (label is None or isinstance(label, str) or _is_count(label)) and base in (None, 0, 1)
    require(placed, f"the label's place is {label!r} and indices count from {base!r}.")


def _require_sigmoids(sigmoids: Any, classes: Any) -> None:
    """Refuse anything but a pair of finite numbers for each machine; None: there are no probabilities."""
    if sigmoids is None:
        return
    k = len(classes or ())
    pairs = isinstance(sigmoids, list) and len(sigmoids) == k * (k - 1) // 2 > 0
    pairs = pairs and all(isinstance(pair, list) and len(pair) == 2 for pair in sigmoids)
    sound = pairs and all(isinstance(x, float | int) and math.isfinite(x) for pair in sigmoids for x in pair)
    require(sound, f"the sigmoids are {str(sigmoids)[:80]}: a slope and a shift for each machine are needed.")


def _require_kernel(kernel: Any, d: int | None, top: bool = True) -> None:
    """Refuse unknown kernels and parameters that are no numbers; the kernel's constructor checks their range.

    Args:
        kernel: The kernel in JSON's types.
        d: Columns of the points; None for kernel values.
        top: Whether it is the whole kernel, and not a part of a sum or product.
    """
    name = kernel.get("kernel") if isinstance(kernel, dict) else kernel
    if not isinstance(name, str) or name not in PARAMETERS or (name == "Precomputed" and (d is not None or not top)):
        allowed = ", ".join(known for known in PARAMETERS if known != "Precomputed")
        raise InputError(f"the kernel is {str(name)[:60]!r}: one of {allowed} is needed.")
    _require_keys(f"the kernel {name}", kernel, {"kernel", *PARAMETERS[name]}, set())
    for field in PARAMETERS[name]:
        value = kernel[field]
        if field in ("first", "second", "base"):
            _require_kernel(value, d, False)
            continue
        lengths = field == "gamma" and name in ("RBF", "Laplacian") and isinstance(value, list) and len(value) in (1, d)
        for number in value if lengths else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
                raise InputError(f"{field} of {name} is {str(value)[:60]}: finite, and one number or {d}, is needed.")


def require_values(header: Any, arrays: dict[str, np.ndarray]) -> None:
    """Refuse numbers that are not finite, and indices out of range.

    Raises:
        InputError: With the fault.
    """
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not name.startswith("certificate/"):  # a gap may be infinite
            require_finite(name, array)
    if "basis/indptr" in arrays:
        data, indices, indptr = (arrays[f"basis/{part}"] for part in ("data", "indices", "indptr"))
        lengths = np.diff(indptr.astype(np.int64))
        ascends = indptr[0] == 0 and (lengths >= 0).all() and indptr[-1] <= len(data)
        require(bool(ascends), f"basis/indptr does not ascend from 0 to the {len(data)} entries that there are.")
        sparse, longest = header["basis"]["sparse"], lengths.max(initial=0)
        require(longest <= sparse["width"], f"a row of the basis has {longest} entries; {sparse['width']} is said.")
        _require_range("basis/indices", indices, sparse["d"] - 1)
    elif arrays.get("basis/x", np.zeros(0)).dtype.kind in "iu":
        _require_range("basis/x", arrays["basis/x"], MAX_INT32)


def _require_range(name: str, indices: np.ndarray, last: int) -> None:
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) <= last:
        raise InputError(f"{name} go from {indices.min()} to {indices.max()}: from 0 to {last} is possible.")


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
    with archive.open(f"{name}.npy") as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        file.read(1)  # at its end the archive compares checksums
    return array


def _narrow(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "iu":
        return array.astype(np.int32)
    return array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32)
