"""Parameters of kernels: leaves of a pytree, converted to the dtype of the points, checked for their range."""

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.points.rows import Points
from jaxsvm.runtime.arrays import floating, in_a_line
from jaxsvm.runtime.checks import is_numeric

_Cls = TypeVar("_Cls")


def pytree(cls: type[_Cls]) -> type[_Cls]:
    """Register a frozen dataclass as a pytree that is rebuilt without `__post_init__`.

    A gradient with respect to a kernel is a kernel too, and its "gamma" may be negative. Parameters that are NumPy
    arrays are copied: the caller may change them later.
    """
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    data = [field.name for field in fields if not field.metadata.get("static")]
    static = [field.name for field in fields if field.metadata.get("static")]

    def flatten(kernel: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(kernel, name) for name in data), tuple(getattr(kernel, name) for name in static)

    def flatten_with_keys(kernel: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        values, aux = flatten(kernel)
        return tuple((jax.tree_util.GetAttrKey(name), value) for name, value in zip(data, values, strict=True)), aux

    def unflatten(aux: tuple[Any, ...], values: Any) -> Any:
        kernel = object.__new__(cls)
        for name, value in (*zip(data, values, strict=True), *zip(static, aux, strict=True)):
            object.__setattr__(kernel, name, value)
        return kernel

    check = getattr(cls, "__post_init__", lambda kernel: None)

    def owned(kernel: Any) -> None:
        for name in data:
            value = getattr(kernel, name)
            if isinstance(value, np.ndarray):
                object.__setattr__(kernel, name, value.copy())
        check(kernel)

    cls.__post_init__ = owned  # pyright: ignore[reportAttributeAccessIssue]
    cls.__repr__ = in_a_line
    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def parameter(value: Any, x: Points) -> Array:
    """Convert a parameter to the dtype of the points; to a float for integer points."""
    return jnp.asarray(value, floating(x.dtype))


def floats(x: Array) -> Array:
    """Convert points to the dtype that kernel values have: products of small integers overflow."""
    return jnp.asarray(x, floating(x.dtype))


def require_number(name: str, value: Any) -> None:
    """Refuse anything but one finite number: an array would be broadcast over pairs of points.

    Raises:
        InputError: The message names the parameter.
    """
    if not is_numeric(value):
        raise InputError(f"{name} is {value!r}: one number is needed.")
    if jnp.ndim(value):
        raise InputError(f"{name} has shape {jnp.shape(value)}: one number is needed.")
    if is_concrete(value) and not np.isfinite(np.asarray(value, np.float64)):
        raise InputError(f"{name} is {value}: a finite number is needed.")


def require_positive(name: str, value: Any) -> None:
    """Refuse numbers, one or several, that are not positive and finite.

    Raises:
        InputError: The message names the parameter.
    """
    if not is_numeric(value):
        raise InputError(
            f"{name} is {value!r}: a positive number is needed; `jaxsvm.kernels.width.resolve_gamma(word, x)` turns "
            "words into one."
        )
    if isinstance(value, float | int | list | tuple | np.ndarray | np.generic | jax.Array) and is_concrete(value):
        values = np.asarray(value)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise InputError(f"{name} is {value}: positive and finite is needed.")
