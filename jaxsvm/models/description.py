"""Kernels in JSON's types, as a model file holds them, and back; their names in scikit-learn."""

import dataclasses
from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.kernels import RBF, Kernel, Laplacian, Linear, Polynomial, Precomputed, Product, Scaled, Sigmoid, Sum
from jaxsvm.runtime.arrays import require_one_of

KERNELS = {
    cls.__name__: cls for cls in (Linear, RBF, Laplacian, Polynomial, Sigmoid, Precomputed, Sum, Product, Scaled)
}
"""The kernels that a file can hold, by name; a user's function is none of them."""

SCIKIT_LEARN_NAMES = {Linear: "linear", RBF: "rbf", Laplacian: "laplacian", Polynomial: "poly", Sigmoid: "sigmoid"}


def scikit_learn_kernel(kernel: Any) -> tuple[str, dict[str, Any]]:
    """Return scikit-learn's name and parameters of a kernel in `SCIKIT_LEARN_NAMES` that has a single gamma."""
    parameters: dict[str, Any] = {
        name: float(np.asarray(getattr(kernel, name))) for name in ("gamma", "coef0") if hasattr(kernel, name)
    }
    if isinstance(kernel, Polynomial):
        parameters["degree"] = int(kernel.degree)
    return SCIKIT_LEARN_NAMES[type(kernel)], parameters


def named_kernel(name: str, gamma: Any, coef0: Any, degree: int) -> Kernel:
    """Return the kernel of scikit-learn's name, with those of the parameters that it has."""
    kind: Any = next(kind for kind, known in SCIKIT_LEARN_NAMES.items() if known == name)
    values = {"gamma": gamma, "coef0": coef0, "degree": degree}
    return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind)})


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
    return KERNELS[name](**{key: value if key == "degree" else _from_json(value) for key, value in fields.items()})


def _from_json(value: Any) -> Any:
    """Rebuild a kernel's field: a kernel, an array or a number."""
    if isinstance(value, dict):
        return kernel_from_dict(value)
    return np.asarray(value) if isinstance(value, list) else float(value) if type(value) is int else value
