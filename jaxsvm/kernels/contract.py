"""The contract of kernels and of their parameters, and kernels made of others, or of any function of two points."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxsvm.errors import InputError, is_concrete, of_a_user
from jaxsvm.points.rows import Points
from jaxsvm.runtime.arrays import Number, floating, in_a_line, is_numeric, require_finite_number, transfers

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
        named = tuple((jax.tree_util.GetAttrKey(name), getattr(kernel, name)) for name in data)
        return named, tuple(getattr(kernel, name) for name in static)

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
    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls


def parameter(value: Any, x: Points) -> Array:
    """Convert a parameter to the dtype of the points; to a float for integer points."""
    return jnp.asarray(value, floating(x.dtype))


def floats(x: Array) -> Array:
    """Convert points to the dtype that kernel values have: products of small integers overflow."""
    return jnp.asarray(x, floating(x.dtype))


def require_number(name: str, value: Any, least: float = -math.inf) -> None:
    """Refuse anything but one finite number, traced or not: an array would be broadcast over pairs of points."""
    if is_concrete(value) or np.ndim(value):
        require_finite_number(name, value, least)


def require_positive(name: str, value: Any) -> None:
    """Refuse numbers, one or several, that are not positive and finite."""
    if not is_numeric(value):
        raise InputError(
            f"{name} is {value!r}: a positive number is needed; `jaxsvm.kernels.width.resolve_gamma(word, x)` turns "
            "words into one."
        )
    if isinstance(value, float | int | list | tuple | np.ndarray | np.generic | jax.Array) and is_concrete(value):
        values = np.asarray(value)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise InputError(f"{name} is {value}: positive and finite is needed.")


class Known(TypedDict, total=False):
    """What the caller of `Kernel.matrix` knows of the points."""

    near: bool
    same: Bool[Array, "n m"] | None
    squares: tuple[Float[Array, " n"], Float[Array, " m"]] | None


def _of_points(values: Callable[..., Array]) -> Callable[..., Array]:
    """Refuse what are no points of the same columns; values of no points are empty."""

    @functools.wraps(values)
    def checked(kernel: Any, x: Array, *z: Array, **how: Any) -> Array:
        z = (*z, how.pop("z")) if "z" in how else z
        if not all(map(is_numeric, (x, *z))):
            raise InputError("x or z holds no real numbers: points (n, d) are needed.")
        shapes = [jnp.shape(points) for points in (x, *z)]
        if any(len(shape) != 2 or shape[1] != shapes[0][-1] for shape in shapes):
            found = f"x has the shape {shapes[0]}" + "".join(f" and z {shape}" for shape in shapes[1:])
            raise InputError(f"{found}: points (n, d) are needed{', of as many columns' if z else ''}.")
        sizes = tuple(shape[0] for shape in shapes)
        return values(kernel, x, *z, **how) if min(sizes) else jnp.zeros(sizes, floats(jnp.asarray(x)).dtype)

    return checked


class Kernel:
    """The base of all kernels: evaluation at two points, and composition. Subclasses hold parameters as fields."""

    stationary = False
    """Whether the kernel depends on `x - z` only; points may then be moved first, which keeps digits."""

    definite = False
    """Whether every matrix of the kernel is known to be positive semidefinite."""

    linear = False
    """Whether the kernel is `x . z` itself; products then need no kernel values."""

    def __init_subclass__(cls, of_indices: bool = False, **options: Any) -> None:
        """Make `matrix` and `diag` of every kernel check their points."""
        super().__init_subclass__(**options)
        for name in {"matrix", "diag"} & vars(cls).keys() if not of_indices else ():
            setattr(cls, name, _of_points(vars(cls)[name]))

    @property
    def moves_freely(self) -> bool:
        """Return whether `k(x, x) + k(z, z) - 2 k(x, z)` depends on `x - z` only; distances then need no origin."""
        return self.stationary or self.linear

    @transfers
    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Float[Array, ""]:
        """Compute `k(x, z)` of two points `(d,)`."""
        if jnp.ndim(x) != 1 or jnp.shape(x) != jnp.shape(z):
            raise InputError(f"x and z have the shapes {jnp.shape(x)} and {jnp.shape(z)}: two points (d,) are needed.")
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
        """Compute `k` of every pair, `(n, m)`.

        Args:
            x: Points.
            z: Other points.
            near: Whether `jaxsvm.kernels.distances.place` found all points near the origin: distances are then expanded
                without a check of their digits; static.
            same: Pairs of identical points, whose values the caller takes from `diag`.
            squares: `|x_i|^2` and `|z_j|^2`, if known.
        """
        raise TypeError(f"{type(self).__name__} defines no matrix")

    def reach(self, x: Points) -> Float[Array, " n"]:
        """Return how far points, dense or CSR, lie from the origin in widths of the kernel, `(n,)`; 0 without one."""
        return jnp.zeros((x.shape[0],), x.dtype)

    @_of_points
    @transfers
    def diag(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Compute `k(x_i, x_i)`, `(n,)`."""
        return jax.vmap(self.__call__)(x, x)

    def frequencies(self, key: Array, d: int, rank: int, dtype: DTypeLike) -> Float[Array, "d rank"]:
        """Draw frequencies of random Fourier features, `(d, rank)`, from the kernel's spectral measure.

        Source: Rahimi and Recht 2007.

        Raises:
            InputError: If the spectral measure is not known.
        """
        raise InputError(f"kernel is {type(self).__name__}: random Fourier features exist for RBF and Laplacian here.")

    def __add__(self, other: "KernelLike") -> "Kernel":
        return Sum(self, as_kernel(other))

    def __mul__(self, other: "KernelLike | Number") -> "Kernel":
        return Product(self, as_kernel(other)) if callable(other) else Scaled(self, other)

    __radd__ = __add__
    __rmul__ = __mul__


KernelLike = Kernel | Callable[[Array, Array], Array]
"""A kernel, or a function of two points `(d,)` that returns a number `()`."""


@pytree
@dataclasses.dataclass(frozen=True)
class Precomputed(Kernel, of_indices=True):
    """Kernel values computed elsewhere: `gram(Precomputed(), K)`.

    Training points are their own indices; new points are rows of kernel values against all training points.
    """

    @transfers
    def matrix(self, x: Array, z: Array, **how: Unpack[Known]) -> Array:
        """Select `x[:, z]` from rows of kernel values `x (m, n)` by indices `z (q,)`."""
        del how
        return x[:, z]


@pytree
@dataclasses.dataclass(frozen=True)
class Function(Kernel):
    """Any function of two points.

    Attributes:
        function: `f(x, z) -> ()` of two points `(d,)`. The arguments of a `jax.tree_util.Partial` are differentiable.
    """

    function: Callable[[Array, Array], Array]

    def __post_init__(self) -> None:
        if callable(self.function) and not isinstance(self.function, jax.tree_util.Partial):
            object.__setattr__(self, "function", jax.tree_util.Partial(self.function))

    def __call__(self, x: Array, z: Array) -> Array:
        """Call the function."""
        return self._value(floats(jnp.asarray(x)), floats(jnp.asarray(z)))

    def _value(self, x: Array, z: Array) -> Array:
        value = of_a_user(self.function, x, z)
        if jnp.shape(value) != ():
            raise InputError(f"the kernel function returns shape {jnp.shape(value)} for two points: () is needed.")
        return value

    @transfers
    def matrix(self, x: Array, z: Array, **how: Unpack[Known]) -> Array:
        del how
        x, z = floats(x), floats(z)
        return jax.vmap(lambda a: jax.vmap(lambda b: self._value(a, b))(z))(x)


@dataclasses.dataclass(frozen=True)
class _Pair(Kernel):
    """A kernel that combines the values of two others: definite if both are, stationary if both are."""

    first: Kernel
    second: Kernel

    def _join(self, first: Array, second: Array) -> Array:
        raise NotImplementedError

    @property
    def definite(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.first.definite and self.second.definite

    @property
    def stationary(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.first.stationary and self.second.stationary

    @transfers
    def matrix(self, x: Array, z: Array, **how: Unpack[Known]) -> Array:
        return self._join(self.first.matrix(x, z, **how), self.second.matrix(x, z, **how))

    @transfers
    def diag(self, x: Array) -> Array:
        return self._join(self.first.diag(x), self.second.diag(x))

    def reach(self, x: Points) -> Array:
        return jnp.maximum(self.first.reach(x), self.second.reach(x))


@pytree
@dataclasses.dataclass(frozen=True)
class Sum(_Pair):
    """`first + second`."""

    @property
    def moves_freely(self) -> bool:
        return self.first.moves_freely and self.second.moves_freely

    def _join(self, first: Array, second: Array) -> Array:
        return first + second


@pytree
@dataclasses.dataclass(frozen=True)
class Product(_Pair):
    """`first * second`, element by element."""

    def _join(self, first: Array, second: Array) -> Array:
        return first * second


@pytree
@dataclasses.dataclass(frozen=True)
class Scaled(Kernel):
    """`factor * base`, factor > 0."""

    base: Kernel
    factor: Number

    def __post_init__(self) -> None:
        require_number("factor", self.factor)
        require_positive("factor", self.factor)

    @property
    def definite(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.base.definite

    @property
    def stationary(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.base.stationary

    @property
    def moves_freely(self) -> bool:
        return self.base.moves_freely

    @transfers
    def matrix(self, x: Array, z: Array, **how: Unpack[Known]) -> Array:
        return parameter(self.factor, x) * self.base.matrix(x, z, **how)

    def reach(self, x: Points) -> Array:
        return self.base.reach(x)

    @transfers
    def diag(self, x: Array) -> Array:
        return parameter(self.factor, x) * self.base.diag(x)


def as_kernel(kernel: Kernel | Callable[[Any, Any], Any]) -> Kernel:
    """Return a kernel as it is, and wrap a function of two points in `Function`.

    Raises:
        InputError: On anything else.
    """
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, type) and issubclass(kernel, Kernel):  # callable, but not a function of two points
        raise InputError(f"kernel is the class {kernel.__name__}: a kernel is needed, such as RBF(gamma=0.5).")
    if callable(kernel):
        return Function(kernel)
    shape = getattr(kernel, "shape", None)
    shown = repr(kernel) if shape is None else f"an array of shape {tuple(shape)}"
    raise InputError(
        f"kernel is {shown}: a kernel of jaxsvm.kernels or a function of two points is needed, before the points."
    )
