"""Check arguments; move arrays between NumPy and JAX, lengthen, shorten and show them, without compiling programs.

Each check raises an InputError that names the argument, what was found, and what is needed; traced values pass.
`checked` reads annotations: what no other check looks at must at least be of the kind that the signature says.
"""

import contextlib
import dataclasses
import functools
import inspect
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import take_current_trace

from jaxsvm.errors import InputError, is_concrete

MAX_INT32 = 2**31 - 1
TINY = 1e-300  # divisors of float64 that may be 0 are at least this: `0 / TINY` is 0
with jax.ensure_compile_time_eval(), take_current_trace() as _trace:
    EVALUATING = type(_trace)  # the current trace of calls around which no program is traced
_F = TypeVar("_F", bound=Callable[..., Any])


def require_positive(name: str, value: Any, or_zero: bool = False) -> None:
    """Refuse anything but one positive finite number, or 0 if that may be."""
    if not (_is_number(value) and (0 < float(value) < math.inf or or_zero and float(value) == 0)):
        sign = "finite number, not negative," if or_zero else "positive finite number"
        raise InputError(f"{name} is {_shown(value)}: one {sign} is needed.")


def require_finite_number(name: str, value: Any, least: float = 0.0) -> None:
    """Refuse anything but one finite number from `least` on."""
    if not (_is_number(value) and math.isfinite(value) and float(value) >= least):
        at_least = "" if least == -math.inf else f" >= {least:g}"
        raise InputError(f"{name} is {_shown(value)}: one finite number{at_least} is needed.")


def require_whole(name: str, value: Any, least: int) -> None:
    """Refuse anything but one integer from `least` to the largest int32."""
    whole = type(value) is int or np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iu"
    if not (whole and least <= int(value) <= MAX_INT32):
        raise InputError(f"{name} is {_shown(value)}: an integer from {least} to {MAX_INT32} is needed.")


def require_one_of(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse a value that is not among the choices."""
    if value not in choices:
        raise InputError(f"{name} is {value!r}: one of {', '.join(choices)} is needed.")


def require_function(name: str, value: Any, arguments: tuple[str, ...], what: str) -> None:
    """Refuse a value that cannot be called with these arguments; classes are refused too."""
    takes = callable(value) and not isinstance(value, type)
    if takes:
        try:
            inspect.signature(value).bind(*arguments)
        except TypeError:
            takes = False
        except ValueError:  # it has no signature to inspect
            pass
    if not takes:
        raise InputError(f"{name} is {value!r}: {what} is needed, called with ({', '.join(arguments)}).")


def require_seconds(max_seconds: Any) -> None:
    """Refuse a time limit that is neither None nor a number of seconds >= 0."""
    if max_seconds is not None and not (_is_number(max_seconds) and float(max_seconds) >= 0):
        raise InputError(f"max_seconds is {_shown(max_seconds)}: at least 0 seconds are needed, or None for no limit.")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) or _is_single(value) and np.asarray(value).dtype.kind != "b"


def _shown(value: Any) -> str:
    if getattr(value, "ndim", 0):
        return f"an array of shape {np.shape(value)}"
    return str(value)[:80] if not isinstance(value, str) else repr(value[:80])


def is_numeric(value: Any) -> bool:
    """Return whether a value is real numbers: an array, what becomes one, or a traced one."""
    if isinstance(value, jax.Array | int | float | np.number) or hasattr(value, "nnz") or hasattr(value, "indptr"):
        return not np.iscomplexobj(value)
    try:
        array = np.asarray(value)
        array = array.astype(float) if array.dtype == object and value is not None else array
    except (TypeError, ValueError):  # ragged lists, objects
        return False
    return array.dtype.kind == "b" or any(jnp.issubdtype(array.dtype, kind) for kind in (np.integer, np.floating))


def _is_single(value: Any) -> bool:
    return is_numeric(value) and np.ndim(value) == 0


def _has(*parts: str) -> Callable[[Any], bool]:
    return lambda value: not isinstance(value, type | str) and all(hasattr(value, part) for part in parts)


def _of(*classes: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, classes)


Kind = tuple[Callable[[Any], bool], str]
NUMBERS, NONE = (is_numeric, "a real number, or an array of them,"), (lambda value: value is None, "None")
LABELS: Kind = (lambda value: np.ndim(value) > 0 and not np.iscomplexobj(value), "one entry a sample")
"""Arrays that may hold text."""
KINDS: dict[str, Kind] = {
    **dict.fromkeys(("ArrayLike", "Number", "Count", "number", "integer", "Float"), NUMBERS),
    **dict.fromkeys(("Array", "ndarray"), (lambda value: hasattr(value, "dtype") and is_numeric(value), "an array")),
    **dict.fromkeys(("Sequence", "tuple"), (_has("__len__"), "several")),
    "float": (_is_single, "a number"),
    "int": (lambda value: _is_single(value) and (not is_concrete(value) or float(value).is_integer()), "an integer"),
    "PointsLike": (lambda value: hasattr(value, "columns") or is_numeric(value), "an array of real numbers"),
    "str": (_of(str), "text"),
    "PathLike": (_of(os.PathLike), "a path"),
    "bool": (_of(bool, np.bool_), "True or False"),
    "Literal": (_of(bool, str), "False"),
    "None": NONE,
    "Callable": (callable, "a function"),
    "Solver": (_has("stores"), "a solver"),
    "Gram": (_has("matvec", "diag"), "a Gram operator (`jaxsvm.gram(kernel, x)`)"),
    "Kernel": (_has("matrix"), "a kernel, such as RBF(gamma=0.5)"),
    "Fit": (_has("dual_coef", "certificate"), "a fit"),
    "DesignFit": (_has("coef", "certificate"), "a fit of a design"),
    "Model": (_has("basis", "coef"), "a model (`compact(fit, problem)`)"),
    "Iterable": (_has("__iter__"), "several"),
    "Mapping": (_has("items"), "a mapping of names"),
    "DTypeLike": (lambda value: np.dtype(value) is not None, "a dtype"),
    "GradientTransformation": (_has("init", "update"), "an optimiser of optax"),
    "Axes": (_has("plot"), "axes of matplotlib"),
    "Mesh": (_has("axis_names", "devices"), "a mesh (`jax.make_mesh`)"),
    "Layout": (_has("columns", "index_base"), "a layout (`dataset.layout`)"),
    "Scaling": (_has("offset", "factor"), "a scaling (`jaxsvm.datasets.Scaling`)"),
}
"""What parts of an annotation ask of a value. A union with a part that is not here is not checked."""


def _holds(test: Callable[[Any], bool], value: Any) -> bool:
    try:
        return bool(test(value))
    except (TypeError, ValueError):  # ragged lists have no shape, objects no dtype
        return False


def _kinds_of(name: str, annotation: Any) -> list[Kind]:
    """Return the kinds that an argument's annotation admits; none if a part of it is not known."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    while "[" in text:  # from within
        text = re.sub(r"\[[^\[\]]*\]", "", text)
    parts = sorted({part.strip().rpartition(".")[2] for part in text.split("|")})
    of_labels = {"ArrayLike": LABELS, "None": NONE} if name in ("y", "labels", "groups") else KINDS
    return [of_labels[part] for part in parts] if of_labels.keys() >= {*parts} and name != "return" else []


def checked(function: _F) -> _F:
    """Wrap a function so that an InputError names the argument of another kind than its annotation, where one fails.

    Where the function refuses such an argument by itself, its own words are raised. Text and complex numbers, of which
    NumPy makes real ones, are refused in any case.
    """
    parameters = inspect.signature(function).parameters
    names = [name for name, parameter in parameters.items() if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD]
    annotations = getattr(function, "__annotations__", {})  # a partial has none
    known = {name: kinds for name, text in annotations.items() if (kinds := _kinds_of(name, text))}

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        for name, value in (*zip(names, arguments, strict=False), *named.items()):
            if name in known and not any(_holds(test, value) for test, _ in known[name]):
                break  # of another kind
        else:
            return function(*arguments, **named)
        error = None
        try:
            result = function(*arguments, **named)
        except InputError:
            raise
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as raised:  # about this argument
            error, result = raised, None
        if error is None and not isinstance(value, str) and not _holds(np.iscomplexobj, value):
            return result  # it serves all the same
        need = " or ".join(dict.fromkeys(what for _, what in known[name]))
        raise InputError(f"{name} is {_shown(value)}: {need} is needed.") from error

    return cast(_F, call)


Number = float | np.number | jax.Array
"""A real number, `()`: of Python, NumPy or JAX, traced or not."""
Count = int | np.integer | jax.Array
"""A whole number, `()`, traced or not."""


def lengthened(values: Any, size: int, fill: Any = None) -> Any:
    """Append entries along the first axis of an array, or of each in a tree; concrete results stay on their device.

    `fill` None repeats the first entry, of which there must be one.
    """

    def longer(xp: Any, leaf: Any) -> Any:
        more = leaf[:1] if fill is None else xp.full_like(leaf[:1], fill)
        return xp.concatenate([leaf, xp.broadcast_to(more, (size - len(leaf), *leaf.shape[1:]))])

    same = all(
        len(leaf) == size and isinstance(leaf, jax.Array) and is_concrete(leaf) for leaf in jax.tree.leaves(values)
    )
    return values if same else computed(lambda xp, values: jax.tree.map(functools.partial(longer, xp), values), values)


def zero_filled(values: np.ndarray, size: int) -> np.ndarray:
    """Append zeros along the first axis of a NumPy array, up to `size` entries."""
    return np.concatenate([values, np.zeros((size - len(values), *values.shape[1:]), values.dtype)])


def may_be_padded(values: Any) -> bool:
    """Return whether an array lies on one device; arrays spread over several devices keep their size."""
    return not isinstance(values, jax.Array) or len(values.sharding.device_set) == 1


def is_tracing() -> bool:
    """Return whether a program is being traced around this call, even if none of its arguments is."""
    with take_current_trace() as trace:
        return type(trace) is not EVALUATING


def on_device(values: Any, like: Any = None) -> Any:
    """Put NumPy arrays, a tree of them, on a device in their own dtypes; `jnp.array` would compile one for every size.

    Nothing may change them later: their memory may be shared. The result is placed `like` an array that was placed
    explicitly; one on several devices gives its placement to arrays of its own shape.
    """
    placed = getattr(like, "committed", False)
    placed = placed and (
        may_be_padded(like) or all(np.shape(leaf) == np.shape(like) for leaf in jax.tree.leaves(values))
    )
    traced = is_tracing()
    with jax.enable_x64(True), jax.ensure_compile_time_eval():  # in a user's program too
        arrays = jax.device_put(values, like.sharding if placed else None)
        if traced and all(leaf.is_fully_addressable for leaf in jax.tree.leaves(arrays)):
            jax.device_get(arrays)  # constants: JAX would read them when it lowers, where the user may forbid transfers
        return arrays


def computed(function: Callable[..., Any], *values: Any) -> Any:
    """Return `function(numpy, *values)` of concrete values, which compiles no program; else `function(jax.numpy, ...)`.

    Values and result, arrays or trees of them, lie where the first array does.
    """
    if not is_concrete(values):
        return function(jnp, *values)
    result = function(np, *jax.tree.map(np.asarray, values))
    return on_device(jax.tree.map(np.asarray, result), jax.tree.leaves(values)[0])


def filled(like: Any, value: Any, dtype: Any = None) -> Any:
    """Return an array of the shape, dtype and placement of another one, filled with a number `()`."""
    if not is_concrete(like, value):  # full_like of jax 0.9 casts twice in a shard_map
        return jnp.broadcast_to(jnp.asarray(value, dtype or like.dtype), like.shape)
    return on_device(np.full_like(np.asarray(like), np.asarray(value), dtype), like)


def owned(values: Any, dtype: Any) -> Any:
    """Convert a caller's values to a JAX array of a dtype; NumPy memory, which the caller may change, is copied."""
    if isinstance(values, jax.Array) or not is_concrete(values):
        return jnp.asarray(values, dtype)
    return on_device(np.array(values, dtype))


def given_key(key: Any) -> jax.Array:
    """Return a random key; of None that of seed 0, for which `jax.random.key` would compile two programs."""
    return jax.random.wrap_key_data(cast(Any, np.zeros(2, np.uint32)), impl="threefry2x32") if key is None else key


def floating(dtype: Any) -> Any:
    """Return the dtype to compute in: float32 or float64 (only with x64 on); JAX's default float for integers.

    Shorter floats (float16, bfloat16, 8 bits) become float32, which holds each of their values: sums and certificates
    in 8 or 11 bits prove nothing. Longer ones become float64.
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        return jax.dtypes.canonicalize_dtype(float)
    return jax.dtypes.canonicalize_dtype(np.float32 if jnp.dtype(dtype).itemsize <= 4 else np.float64)


def memory() -> int | None:
    """Return the bytes of memory that this process may use; None if that is not known."""
    known = []
    with contextlib.suppress(OSError, ValueError, AttributeError):
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            known.append(int(Path(file).read_text()))
    return min(known, default=None)


def device_memory() -> int | None:
    """Return the bytes of memory of the first device of this process; None if that is not known."""
    if jax.default_backend() == "cpu":
        return memory()
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def require_memory(needed: int, what: str, instead: str, most: int | None) -> None:
    """Refuse, before it starts, what does not fit in memory.

    `what` takes the bytes, `instead` is what to do. Nothing is refused if the memory, `most`, is unknown (None).
    """
    if most is not None and needed > most:
        raise InputError(f"{what} take {needed / 2**30:.3g} GiB, and there are {most / 2**30:.3g}: {instead}.")


@contextlib.contextmanager
def promoting() -> Iterator[None]:
    """Accept implicit promotion of ranks and dtypes inside: a caller's flags against it are for the caller's code.

    Also a decorator: of rules that JAX calls long after a public function has returned (derivatives, batching).
    """
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def tangent_of(function: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
    """Return the tangent of `function(*primals)`; what does not move, a `SymbolicZero`, is not differentiated."""
    leaves, tree = jax.tree.flatten(primals)
    moving = {k: leaf for k, leaf in enumerate(jax.tree.leaves(tangents)) if not isinstance(leaf, SymbolicZero)}

    def of_moving(*values: Any) -> Any:
        moved = dict(zip(moving, values, strict=True))
        return function(*tree.unflatten([moved.get(k, leaf) for k, leaf in enumerate(leaves)]))

    return jax.jvp(of_moving, tuple(leaves[k] for k in moving), tuple(moving.values()))[1]


def automatic_context(*arguments: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which the Explicit axes of a mesh that a user has set (`jax.set_mesh`) are Auto.

    It changes nothing where an argument is traced with Explicit axes: `in_automatic_axes` of `loops.py` handles these.
    """
    around = jax.sharding.get_abstract_mesh()
    if not around.explicit_axes or any(explicit_axes(leaf) for leaf in jax.tree.leaves(arguments)):
        return contextlib.nullcontext()
    automatic = dict.fromkeys(around.explicit_axes, jax.sharding.AxisType.Auto)
    return jax.sharding.use_abstract_mesh(around.update_axis_types(automatic))


def explicit_axes(leaf: Any) -> tuple[str, ...]:
    """Return the names of the Explicit axes of an array's mesh."""
    if not isinstance(leaf, jax.Array):
        return ()
    sharding = getattr(jax.typeof(leaf), "sharding", None)
    return () if sharding is None else sharding.mesh.explicit_axes


def transfers(function: _F) -> _F:
    """Wrap a public function so that it may move its arguments to the device and read results back.

    Inside, transfers and promotions are allowed, and NaN and infinity mean what its documentation says, whatever JAX's
    flags say outside. It refuses arguments of another kind than their annotation (`checked`), and to run in a forked
    child of a process that had computed (`require_own_process`). A mesh that is set has Auto axes inside.
    """
    function = checked(function)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        require_own_process()
        with (
            jax.transfer_guard("allow"), promoting(), jax.debug_nans(False), jax.debug_infs(False),
            automatic_context(arguments, named),
        ):  # fmt: skip
            return function(*arguments, **named)

    return cast(_F, call)


LONGEST = 250  # characters of a part's own line that are shown


def in_a_line(self: Any, **first: Any) -> str:
    """Return `Class(field=value, ...)`: the `__repr__` of dataclasses and named tuples that hold arrays.

    A field that is left at its default of None or False is left out; `first` is shown before the fields.
    """
    if dataclasses.is_dataclass(self):
        defaults = {field.name: field.default for field in dataclasses.fields(self) if field.repr}
    else:
        defaults = {name: self._field_defaults.get(name, dataclasses.MISSING) for name in self._fields}
    values = {name: getattr(self, name) for name in defaults}
    absent = {name for name, value in values.items() if value is defaults[name] and value in (None, False)}
    shown = first | {name: value for name, value in values.items() if name not in absent}
    return f"{type(self).__name__}({', '.join(f'{name}={summary(value)}' for name, value in shown.items())})"


def has_values(tree: Any) -> bool:
    """Return whether every leaf is an array with concrete values: none is traced, a shape or a placeholder."""
    leaves = jax.tree.leaves(tree)
    arrays = (jax.Array, np.ndarray, np.generic, int)
    return bool(leaves) and is_concrete(leaves) and all(isinstance(leaf, arrays) for leaf in leaves)


def summary(value: Any) -> str:
    """Return a value in a few words: `float32[300, 2]` for an array, the number for an array without axes."""
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    if not dataclasses.is_dataclass(value) and hasattr(value, "shape") and hasattr(value, "dtype"):
        number = isinstance(value, jax.Array | np.ndarray | np.generic) and is_concrete(value) and value.shape == ()
        if number and value.dtype.kind in "iufb":
            found = jax.device_get(value).item()
            return f"{found:.6g}" if isinstance(found, float) else str(found)
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, dict):
        return f"{{{', '.join(map(str, list(value)[:6]))}{', ...' if len(value) > 6 else ''}}}"
    if hasattr(value, "_fields"):
        text = in_a_line(value)
    else:
        text = f"({', '.join(map(summary, value))})" if isinstance(value, list | tuple) else repr(value)
    if len(text) <= LONGEST and "\n" not in text:
        return text
    return f"{len(value)} entries" if isinstance(value, list | tuple) else f"{type(value).__name__}(...)"


_computing: set[int] = set()
"""Process ids, this process or its ancestors, in which jaxsvm computed first."""


def require_own_process() -> None:
    """Note the first process that computes, and refuse to compute in one that was forked from it.

    Raises:
        RuntimeError: In a forked child, where the computation would never return.
    """
    if not _computing:
        _computing.add(os.getpid())
    elif os.getpid() not in _computing:
        raise RuntimeError(
            "This process was forked from one in which jaxsvm had computed: JAX's threads are not here, and JAX would "
            'wait for them for ever. Take joblib\'s "loky" or "threading" in place of "multiprocessing", the start '
            'methods "spawn" or "forkserver" of Python\'s own, or fork before the first fit.'
        )
