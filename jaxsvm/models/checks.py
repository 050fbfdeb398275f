"""Checks of a model file's contents: its header, its members, their shapes and their values.

They run before a file is loaded and before a model is saved, so that every saved model can be loaded.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.datasets.columns.preparation import from_json
from jaxsvm.errors import InputError, require, require_finite
from jaxsvm.models.description import KERNELS, kernel_from_dict
from jaxsvm.results.fit import Certificate
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
    """Return whether a value is an integer, and no truth value."""
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
    """Refuse indices outside 0, ..., last."""
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) <= last:
        raise InputError(f"{name} go from {indices.min()} to {indices.max()}: from 0 to {last} is possible.")
