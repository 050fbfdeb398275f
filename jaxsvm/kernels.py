"""Kernels: functions of two points that are pytrees, so that their parameters are traced and differentiated.

`kernel(x, z)` takes two points, `kernel.matrix(X, Z)` two sets of them. `+`, `*` and scaling by a number compose:
`RBF(0.1) + 0.5 * Linear()`. Any function of two points becomes a kernel with `Function(f)`.
"""

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.sparse import floating

PRECISION = jax.lax.Precision.HIGHEST
"""Explicit, since GPUs and TPUs multiply in lower precision by default."""

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
    """Whether the kernel depends on `x - z` only: then points may be centred first, which spares digits."""

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Float[Array, ""]:
        """`k(x, z)` of two points `(d,)`."""
        return self.matrix(jnp.asarray(x)[None], jnp.asarray(z)[None])[0, 0]

    def matrix(self, x: Float[Array, "n d"], z: Float[Array, "m d"], *, centred: bool = False) -> Float[Array, "n m"]:
        """`k` of every pair, `(n, m)`; `centred` says that the caller has moved the points near the origin already."""
        raise TypeError(f"{type(self).__name__} defines no matrix")

    def diag(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """`k(x_i, x_i)`, `(n,)`."""
        return jax.vmap(self.__call__)(x, x)

    def rows(self, index: Int[Array, " t"], x: Float[Array, "n d"], squares: Float[Array, " n"]) -> Float[Array, "t n"]:
        """`matrix(x[index], x)` of a stationary kernel for centred points whose `|x_j|^2` are at hand."""
        del squares
        return self.matrix(x[index], x, centred=True)

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

    def matrix(self, x: Array, z: Array, *, centred: bool = False) -> Array:
        """`(n, m)`."""
        del centred
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

    def __post_init__(self) -> None:
        _require_positive("gamma", self.gamma)

    def matrix(self, x: Array, z: Array, *, centred: bool = False) -> Array:
        """`(n, m)`, by `|x|^2 + |z|^2 - 2 x.z` of centred points, clipped at 0."""
        if not centred:
            middle = z.mean(axis=0)
            x, z = x - middle, z - middle
        if jnp.ndim(self.gamma):  # weights go into the points, so that a matrix product is left
            root = jnp.sqrt(_per_feature(self.gamma, x))
            # The barrier keeps XLA on a CPU (jaxlib 0.10.2) from a fusion that returns wrong numbers for float32
            # points that a jitted function closes over.
            x, z = jax.lax.optimization_barrier((x * root, z * root))
            return jnp.exp(-_squared_distances(x, z))
        return jnp.exp(-_parameter(self.gamma, x) * _squared_distances(x, z))

    def rows(self, index: Array, x: Array, squares: Array) -> Array:
        """One pass over x, where `matrix` takes a second one for `|x_j|^2` (2.2 times as fast at n = 100,000)."""
        if jnp.ndim(self.gamma):
            return super().rows(index, x, squares)
        # In this order lanes of `vmap` are one wide product, which is twice as fast.
        expanded = squares[index][:, None] + squares - 2 * jnp.matmul(x[index], x.T, precision=PRECISION)
        return jnp.exp(-_parameter(self.gamma, x) * _clip(expanded))

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

    def __post_init__(self) -> None:
        _require_positive("gamma", self.gamma)

    def matrix(self, x: Array, z: Array, *, centred: bool = False) -> Array:
        """`(n, m)`, a feature at a time: no `(n, m, d)` array is formed."""
        del centred  # plain differences lose nothing
        gamma = _per_feature(self.gamma, x)

        @jax.checkpoint  # a derivative recomputes the differences instead of holding d matrices
        def add(total: Array, feature: tuple[Array, Array, Array]) -> tuple[Array, None]:
            x_k, z_k, gamma_k = feature
            return total + gamma_k * jnp.abs(x_k[:, None] - z_k), None

        zero = jnp.zeros((x.shape[0], z.shape[0]), gamma.dtype)
        distance, _ = jax.lax.scan(add, zero, (x.T, z.T, gamma))
        return jnp.exp(-distance)

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

    def __post_init__(self) -> None:
        if not isinstance(self.degree, int | np.integer) or self.degree < 1:
            raise InputError(f"degree is {self.degree!r}: a positive integer is needed.")
        _require_number("gamma", self.gamma)
        _require_positive("gamma", self.gamma)
        _require_number("coef0", self.coef0)
        if is_concrete(self.coef0) and np.any(np.asarray(self.coef0) < 0):
            raise InputError(f"coef0 is {self.coef0}: >= 0 is needed.")

    def matrix(self, x: Array, z: Array, *, centred: bool = False) -> Array:
        """`(n, m)`."""
        del centred
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

    def matrix(self, x: Array, z: Array, *, centred: bool = False) -> Array:
        """`(n, m)`."""
        del centred
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

    def matrix(self, x: Array, z: Array, *, centred: bool = False) -> Array:
        """`x[:, z]` for rows of kernel values `x (m, n)` and indices `z (q,)`."""
        del centred
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

    def matrix(self, x: Array, z: Array, *, centred: bool = False) -> Array:
        """`(n, m)`."""
        del centred
        return jax.vmap(lambda a: jax.vmap(lambda b: self.function(a, b))(z))(x)


@_pytree
@dataclasses.dataclass(frozen=True)
class Sum(Kernel):
    """`first + second`."""

    first: Kernel
    second: Kernel

    @property
    def stationary(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where both are."""
        return self.first.stationary and self.second.stationary

    def matrix(self, x: Array, z: Array, *, centred: bool = False) -> Array:
        """`(n, m)`."""
        return self.first.matrix(x, z, centred=centred) + self.second.matrix(x, z, centred=centred)

    def rows(self, index: Array, x: Array, squares: Array) -> Array:
        """`(t, n)`."""
        return self.first.rows(index, x, squares) + self.second.rows(index, x, squares)

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
    def stationary(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where both are."""
        return self.first.stationary and self.second.stationary

    def matrix(self, x: Array, z: Array, *, centred: bool = False) -> Array:
        """`(n, m)`."""
        return self.first.matrix(x, z, centred=centred) * self.second.matrix(x, z, centred=centred)

    def rows(self, index: Array, x: Array, squares: Array) -> Array:
        """`(t, n)`."""
        return self.first.rows(index, x, squares) * self.second.rows(index, x, squares)

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
    def stationary(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the base's."""
        return self.base.stationary

    def matrix(self, x: Array, z: Array, *, centred: bool = False) -> Array:
        """`(n, m)`."""
        return _parameter(self.factor, x) * self.base.matrix(x, z, centred=centred)

    def rows(self, index: Array, x: Array, squares: Array) -> Array:
        """`(t, n)`."""
        return _parameter(self.factor, x) * self.base.rows(index, x, squares)

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


def _inner(x: Array, z: Array) -> Array:
    return jnp.matmul(x, z.T, precision=PRECISION)


def _squared_distances(x: Array, z: Array) -> Array:
    return _clip((x * x).sum(axis=1)[:, None] + (z * z).sum(axis=1) - 2 * _inner(x, z))


def _clip(expanded: Array) -> Array:
    """Clipped at 0 in value only: both derivatives stay those of the expansion, which has no kink to clip."""
    return expanded + jax.lax.stop_gradient(jnp.maximum(-expanded, 0))


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
