"""Kernels: functions of two points that are pytrees, so that their parameters are traced and differentiated.

`kernel(x, z)` takes two points, `kernel.matrix(X, Z)` two sets of them. `+`, `*` and scaling by a number compose:
`RBF(0.1) + 0.5 * Linear()`. Any function of two points becomes a kernel with `Function(f)`.
"""

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.numerics.distances import PRECISION, by_differences, squared_distances
from jaxsvm.points import CSR, floating, product

_Cls = TypeVar("_Cls")


def _pytree(cls: type[_Cls]) -> type[_Cls]:
    """Register a frozen dataclass as a pytree that is rebuilt without `__post_init__`.

    A gradient with respect to a kernel is a kernel as well, and its "gamma" may well be negative.
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

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


class Kernel:
    """What kernels share: one point against one other, and composition. Parameters are fields of the subclasses."""

    stationary = False
    """Whether the kernel depends on `x - z` only: then points may be moved first, which spares digits."""

    definite = False
    """Whether every matrix of the kernel is positive semidefinite, by what kind of function it is."""

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Float[Array, ""]:
        """`k(x, z)` of two points `(d,)`."""
        return self.matrix(jnp.asarray(x)[None], jnp.asarray(z)[None])[0, 0]

    def matrix(
        self,
        x: Float[Array, "n d"],
        z: Float[Array, "m d"],
        *,
        near: bool = False,
        same: Bool[Array, "n m"] | None = None,
        squares: tuple[Float[Array, " n"], Float[Array, " m"]] | None = None,
    ) -> Float[Array, "n m"]:
        """`k` of every pair, `(n, m)`.

        Args:
            x: Points.
            z: Other points.
            near: That the points are near the origin, as `jaxsvm.numerics.distances.place` found: then distances are
                expanded without a look at what that costs; static.
            same: Pairs that are one point, whose values the caller takes from `diag`.
            squares: `|x_i|^2` and `|z_j|^2`, where the caller has them.
        """
        raise TypeError(f"{type(self).__name__} defines no matrix")

    def reach(self, x: Any) -> Float[Array, " n"]:
        """How far points, dense or CSR, lie from the origin in widths of the kernel, `(n,)`; 0 where it has none."""
        return jnp.zeros((x.shape[0],), x.dtype)

    def diag(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """`k(x_i, x_i)`, `(n,)`."""
        return jax.vmap(self.__call__)(x, x)

    def __add__(self, other: Any) -> "Kernel":
        return Sum(self, as_kernel(other))

    def __mul__(self, other: Any) -> "Kernel":
        return Product(self, as_kernel(other)) if callable(other) else Scaled(self, other)

    __radd__ = __add__
    __rmul__ = __mul__


@_pytree
@dataclasses.dataclass(frozen=True)
class Linear(Kernel):
    """`x . z`."""

    definite = True

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        """`(n, m)`."""
        del how
        return _inner(x, z)

    def diag(self, x: Array) -> Array:
        """`(n,)`."""
        return (x * x).sum(axis=1)


@_pytree
@dataclasses.dataclass(frozen=True)
class RBF(Kernel):
    """`exp(-sum_k gamma_k (x_k - z_k)^2)`.

    Attributes:
        gamma: Positive, `()`, or one a feature `(d,)` (automatic relevance determination).
    """

    gamma: Any
    stationary = True

    definite = True

    def __post_init__(self) -> None:
        _require_positive("gamma", self.gamma)

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        """`(n, m)`; see `jaxsvm.numerics.distances` for what the entries are worth."""
        return jnp.exp(-squared_distances(_floats(x), _floats(z), _weights(self.gamma, x), **how))

    def reach(self, x: Any) -> Array:
        """`sqrt(sum_k gamma_k x_k^2)`, `(n,)`."""
        return jnp.sqrt(_feature_sums(x, jnp.square, _per_feature(self.gamma, x)))

    def diag(self, x: Array) -> Array:
        """Ones, `(n,)`."""
        return jnp.ones(x.shape[0], floating(x.dtype))


@_pytree
@dataclasses.dataclass(frozen=True)
class Laplacian(Kernel):
    """`exp(-sum_k gamma_k |x_k - z_k|)`.

    Attributes:
        gamma: Positive, `()` or `(d,)`.
    """

    gamma: Any
    stationary = True

    definite = True

    def __post_init__(self) -> None:
        _require_positive("gamma", self.gamma)

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        """`(n, m)`, by differences."""
        del how
        return jnp.exp(-by_differences(_floats(x), _floats(z), _weights(self.gamma, x), jnp.abs))

    def reach(self, x: Any) -> Array:
        """`sum_k gamma_k |x_k|`, `(n,)`."""
        return _feature_sums(x, jnp.abs, _per_feature(self.gamma, x))

    def diag(self, x: Array) -> Array:
        """Ones, `(n,)`."""
        return jnp.ones(x.shape[0], floating(x.dtype))


@_pytree
@dataclasses.dataclass(frozen=True)
class Polynomial(Kernel):
    """`(gamma x . z + coef0) ** degree`; homogeneous where `coef0` is 0.

    Attributes:
        degree: A positive integer; static.
        gamma: Scale of the inner product, `()`.
        coef0: Constant, >= 0, `()`.
    """

    degree: int = dataclasses.field(default=3, metadata={"static": True})
    gamma: Any = 1.0
    coef0: Any = 1.0

    definite = True

    def __post_init__(self) -> None:
        if not isinstance(self.degree, int | np.integer) or self.degree < 1:
            raise InputError(f"degree is {self.degree!r}: a positive integer is needed.")
        _require_number("gamma", self.gamma)
        _require_positive("gamma", self.gamma)
        _require_number("coef0", self.coef0)
        if is_concrete(self.coef0) and np.any(np.asarray(self.coef0) < 0):
            raise InputError(f"coef0 is {self.coef0}: >= 0 is needed.")

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        """`(n, m)`."""
        del how
        return (_parameter(self.gamma, x) * _inner(x, z) + _parameter(self.coef0, x)) ** self.degree

    def diag(self, x: Array) -> Array:
        """`(n,)`."""
        squares = (x * x).sum(axis=1)
        return (_parameter(self.gamma, x) * squares + _parameter(self.coef0, x)) ** self.degree


@_pytree
@dataclasses.dataclass(frozen=True)
class Sigmoid(Kernel):
    """`tanh(gamma x . z + coef0)`: positive semidefinite for few parameters only; a fit says NOT_PSD where it shows.

    Attributes:
        gamma: Scale of the inner product, `()`.
        coef0: Constant, `()`.
    """

    gamma: Any = 1.0
    coef0: Any = 0.0

    def __post_init__(self) -> None:
        _require_number("gamma", self.gamma)
        _require_number("coef0", self.coef0)

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        """`(n, m)`."""
        del how
        return jnp.tanh(_parameter(self.gamma, x) * _inner(x, z) + _parameter(self.coef0, x))

    def diag(self, x: Array) -> Array:
        """`(n,)`."""
        squares = (x * x).sum(axis=1)
        return jnp.tanh(_parameter(self.gamma, x) * squares + _parameter(self.coef0, x))


@_pytree
@dataclasses.dataclass(frozen=True)
class Precomputed(Kernel):
    """Kernel values computed elsewhere: `gram(Precomputed(), K)`.

    Training points are their own indices; new points are rows of kernel values against all training points.
    """

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        """`x[:, z]` for rows of kernel values `x (m, n)` and indices `z (q,)`."""
        del how
        return x[:, z]


@_pytree
@dataclasses.dataclass(frozen=True)
class Function(Kernel):
    """Any function of two points.

    Attributes:
        function: `f(x, z) -> ()` of two points `(d,)`. The arguments of a `jax.tree_util.Partial` are differentiable.
    """

    function: Any

    def __post_init__(self) -> None:
        if callable(self.function) and not isinstance(self.function, jax.tree_util.Partial):
            object.__setattr__(self, "function", jax.tree_util.Partial(self.function))

    def __call__(self, x: Array, z: Array) -> Array:
        """The function itself."""
        return self.function(x, z)

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        """`(n, m)`."""
        del how
        return jax.vmap(lambda a: jax.vmap(lambda b: self.function(a, b))(z))(x)


@_pytree
@dataclasses.dataclass(frozen=True)
class Sum(Kernel):
    """`first + second`."""

    first: Kernel
    second: Kernel

    @property
    def definite(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where both are."""
        return self.first.definite and self.second.definite

    @property
    def stationary(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where both are."""
        return self.first.stationary and self.second.stationary

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        """`(n, m)`."""
        return self.first.matrix(x, z, **how) + self.second.matrix(x, z, **how)

    def reach(self, x: Any) -> Array:
        """The larger of both."""
        return jnp.maximum(self.first.reach(x), self.second.reach(x))

    def diag(self, x: Array) -> Array:
        """`(n,)`."""
        return self.first.diag(x) + self.second.diag(x)


@_pytree
@dataclasses.dataclass(frozen=True)
class Product(Kernel):
    """`first * second`, element by element."""

    first: Kernel
    second: Kernel

    @property
    def definite(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where both are."""
        return self.first.definite and self.second.definite

    @property
    def stationary(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where both are."""
        return self.first.stationary and self.second.stationary

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        """`(n, m)`."""
        return self.first.matrix(x, z, **how) * self.second.matrix(x, z, **how)

    def reach(self, x: Any) -> Array:
        """The larger of both."""
        return jnp.maximum(self.first.reach(x), self.second.reach(x))

    def diag(self, x: Array) -> Array:
        """`(n,)`."""
        return self.first.diag(x) * self.second.diag(x)


@_pytree
@dataclasses.dataclass(frozen=True)
class Scaled(Kernel):
    """`factor * base`, factor > 0."""

    base: Kernel
    factor: Any

    def __post_init__(self) -> None:
        _require_number("factor", self.factor)
        _require_positive("factor", self.factor)

    @property
    def definite(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the base."""
        return self.base.definite

    @property
    def stationary(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the base's."""
        return self.base.stationary

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        """`(n, m)`."""
        return _parameter(self.factor, x) * self.base.matrix(x, z, **how)

    def reach(self, x: Any) -> Array:
        """The base's."""
        return self.base.reach(x)

    def diag(self, x: Array) -> Array:
        """`(n,)`."""
        return _parameter(self.factor, x) * self.base.diag(x)


def as_kernel(kernel: Any) -> Kernel:
    """A kernel as it is, or a function of two points as `Function`.

    Raises:
        InputError: On anything else.
    """
    if isinstance(kernel, Kernel):
        return kernel
    if callable(kernel):
        return Function(kernel)
    raise InputError(f"kernel is {kernel!r}: a kernel of jaxsvm.kernels or a function of two points is needed.")


# --- describing a kernel in a file -----------------------------------------------------------------------------------

_SIMPLE = {cls.__name__: cls for cls in (Linear, RBF, Laplacian, Polynomial, Sigmoid, Precomputed)}
_COMPOSED = {cls.__name__: cls for cls in (Sum, Product, Scaled)}


def kernel_to_dict(kernel: Kernel) -> dict[str, Any]:
    """A description in JSON's types.

    Raises:
        InputError: For a user's function, which no file can hold.
    """
    name = type(kernel).__name__
    if name not in _SIMPLE and name not in _COMPOSED:
        raise InputError(
            f"kernel {name} cannot be written to a file: save the fit's arrays and rebuild the kernel in code."
        )
    fields = {}
    for field in dataclasses.fields(kernel):  # pyright: ignore[reportArgumentType]  # every kernel is a dataclass
        value = getattr(kernel, field.name)
        fields[field.name] = kernel_to_dict(value) if isinstance(value, Kernel) else np.asarray(value).tolist()
    return {"kernel": name, **fields}


def kernel_from_dict(description: dict[str, Any]) -> Kernel:
    """What `kernel_to_dict` described.

    Raises:
        InputError: On a name that no kernel has.
    """
    fields = dict(description)
    name = fields.pop("kernel", None)
    cls = (_SIMPLE | _COMPOSED).get(name)
    if cls is None:
        raise InputError(f"kernel is {name!r}: one of {', '.join(_SIMPLE | _COMPOSED)} is needed.")
    return cls(**{key: _field_from_json(value) for key, value in fields.items()})


def _field_from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return kernel_from_dict(value)
    return jnp.asarray(value) if isinstance(value, list) else value


# --- shared pieces ---------------------------------------------------------------------------------------------------


def _parameter(value: Any, x: Array) -> Array:
    """A parameter in the dtype of the points; beside integer points it stays a float."""
    return jnp.asarray(value, floating(x.dtype))


def _per_feature(gamma: Any, x: Array) -> Array:
    values, d = _parameter(gamma, x), x.shape[1]
    if values.shape not in ((), (1,), (d,)):
        raise InputError(f"gamma has shape {values.shape}: one number, or one a feature ({d},), is needed.")
    return jnp.broadcast_to(values, (d,))


def _weights(gamma: Any, x: Array) -> Array:
    """One number, or one a feature."""
    return _per_feature(gamma, x) if jnp.ndim(gamma) else _parameter(gamma, x)


def _inner(x: Array, z: Array) -> Array:
    return jnp.matmul(x, z.T, precision=PRECISION)


def _floats(x: Array) -> Array:
    return x.astype(floating(x.dtype))


def _feature_sums(x: Any, size: Any, weights: Float[Array, " d"]) -> Float[Array, " n"]:
    """`sum_k weights_k size(x_k)` of each row."""
    sizes = dataclasses.replace(x, data=size(x.data)) if isinstance(x, CSR) else size(x)
    return product(sizes, weights)


def _require_number(name: str, value: Any) -> None:
    """One finite number: an array would be broadcast over pairs of points without a word."""
    if value is None or isinstance(value, str) or jnp.ndim(value):
        found = f"has shape {jnp.shape(value)}" if not (value is None or isinstance(value, str)) else f"is {value!r}"
        raise InputError(f"{name} {found}: one number is needed.")
    if is_concrete(value) and not np.isfinite(np.asarray(value, np.float64)):
        raise InputError(f"{name} is {value}: a finite number is needed.")


def _require_positive(name: str, value: Any) -> None:
    if value is None or isinstance(value, str):
        raise InputError(f"{name} is {value!r}: a positive number is needed (`resolve_gamma` turns words into one).")
    if isinstance(value, float | int | list | tuple | np.ndarray | np.generic | jax.Array) and is_concrete(value):
        values = np.asarray(value)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise InputError(f"{name} is {value}: positive and finite is needed.")
