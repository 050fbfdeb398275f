"""A model's basis and kernel as JSON and named arrays, as a file holds them, and back."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.gram.basis import FourierBasis, KernelBasis, NystroemBasis
from jaxsvm.kernels import RBF, Kernel, Laplacian, Linear, Polynomial, Precomputed, Product, Scaled, Sigmoid, Sum
from jaxsvm.points.rows import CSR
from jaxsvm.runtime.checks import require_one_of

KERNELS = {
    cls.__name__: cls for cls in (Linear, RBF, Laplacian, Polynomial, Sigmoid, Precomputed, Sum, Product, Scaled)
}
"""The kernels that a file can hold, by name; a user's function is none of them."""

BASES = {"kernel": KernelBasis, "nystroem": NystroemBasis, "fourier": FourierBasis}
SCIKIT_LEARN_NAMES = {Linear: "linear", RBF: "rbf", Laplacian: "laplacian", Polynomial: "poly", Sigmoid: "sigmoid"}


def scikit_learn_kernel(kernel: Any) -> tuple[str, dict[str, Any]]:
    """Return scikit-learn's name and parameters of a kernel in `SCIKIT_LEARN_NAMES` that has a single gamma."""
    parameters: dict[str, Any] = {
        name: float(np.asarray(getattr(kernel, name))) for name in ("gamma", "coef0") if hasattr(kernel, name)
    }
    if isinstance(kernel, Polynomial):
        parameters["degree"] = int(kernel.degree)
    return SCIKIT_LEARN_NAMES[type(kernel)], parameters


def basis_to_arrays(basis: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Describe a basis by JSON's types and named arrays.

    Raises:
        InputError: If the kernel is a user's function.
    """
    description: dict[str, Any] = {"type": next(name for name, cls in BASES.items() if isinstance(basis, cls))}
    fields = {field.name: getattr(basis, field.name) for field in dataclasses.fields(basis)}
    if "kernel" in fields:
        description |= {"kernel": kernel_to_dict(fields.pop("kernel")), "near": fields.pop("near")}
    if isinstance(fields.get("x"), CSR):
        x = fields.pop("x")
        description["sparse"] = {"d": x.d, "width": x.width}
        fields |= {"data": x.data, "indices": x.indices, "indptr": x.indptr}
    return description, fields


def basis_from_arrays(description: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """Rebuild the basis that `basis_to_arrays` described."""
    fields: dict[str, Any] = {name: jnp.asarray(value) for name, value in arrays.items()}
    if "kernel" in description:
        fields["kernel"] = kernel_from_dict(description["kernel"])
        fields["near"] = bool(description.get("near", False))  # files of earlier versions lack it
    if "sparse" in description:
        parts = (fields.pop(name) for name in ("data", "indices", "indptr"))
        fields["x"] = CSR(*parts, **description["sparse"])
    return BASES[description["type"]](**fields)


def kernel_to_dict(kernel: Kernel) -> dict[str, Any]:
    """Describe a kernel by JSON's types.

    Raises:
        InputError: If the kernel is a user's function, which no file can hold.
    """
    name = type(kernel).__name__
    if name not in KERNELS:
        raise InputError(
            f"kernel {name} cannot be written to a file: save the fit's arrays and rebuild the kernel in code."
        )
    fields = {}
    for field in dataclasses.fields(kernel):  # pyright: ignore[reportArgumentType]  # every kernel is a dataclass
        value = getattr(kernel, field.name)
        fields[field.name] = kernel_to_dict(value) if isinstance(value, Kernel) else np.asarray(value).tolist()
    return {"kernel": name, **fields}


def kernel_from_dict(description: dict[str, Any]) -> Kernel:
    """Rebuild the kernel that `kernel_to_dict` described.

    Raises:
        InputError: If no kernel has the name.
    """
    fields = dict(description)
    name = fields.pop("kernel", None)
    require_one_of("kernel", name, KERNELS)
    return KERNELS[name](**{key: _field_from_json(value) for key, value in fields.items()})


def _field_from_json(value: Any) -> Any:
    """Rebuild a kernel's field: a kernel, an array or a number."""
    if isinstance(value, dict):
        return kernel_from_dict(value)
    return jnp.asarray(value) if isinstance(value, list) else value
