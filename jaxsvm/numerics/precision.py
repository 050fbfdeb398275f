"""Twice the precision where something is decided: float64 for float32 data, whatever the caller's x64 flag says.

Steps run in the dtype of the data. What decides (products from scratch, certificates, polishes) runs in float64 inside
`in_double`, which turns x64 on for the operations of one function and for nothing else: what goes in and what comes out
has the caller's dtypes, so that no float64 array ever reaches a caller who has x64 off. It works inside `jit`, loops
and `vmap`; what is computed in it has no derivative (`jaxsvm.derivatives.rule` gives those of a solution).

A TPU has no float64: there everything stays in the data's dtype, and allowances grow with it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

_T = TypeVar("_T")


def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with float64 at hand; its arguments and results keep their dtypes.

    Args:
        function: Of pytrees of arrays to a pytree of arrays. What it returns must not be float64 where its arguments
            are not (`like` rounds).

    Returns:
        The function, an operation of its own: lanes of it, its derivatives of any order and their transposes are made
        with x64 on, whatever the flag says where they are asked for. (Batching a loop traces its body again, with the
        caller's flag; this operation is not looked into then, but batched as a whole.)
    """

    def call(*arguments: Any) -> Any:
        if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
            return function(*arguments)
        leaves, tree = jax.tree.flatten(arguments)
        shapes = []

        def of_leaves(*leaves: Any) -> list[Array]:
            out, shape = jax.tree.flatten(function(*jax.tree.unflatten(tree, leaves)))
            shapes.append(shape)
            return out

        out = _bind(of_leaves, *(leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf) for leaf in leaves))
        return jax.tree.unflatten(shapes[-1], out)

    return call


_in_double = Primitive("in_double")
_in_double.multiple_results = True


def _bind(function: Callable[..., Any], *leaves: Any) -> list[Array]:
    """The operation that `function` is, of arrays to a list of arrays, traced with x64 on."""
    with jax.enable_x64(True):
        traced = jax.make_jaxpr(function)(*leaves)
    closed, free = traced.jaxpr, [isinstance(const, Tracer) for const in traced.consts]
    # What the function closes over of a trace that is going on is an argument too.
    consts = list(zip(free, closed.constvars, traced.consts, strict=True))
    inner = closed.replace(
        constvars=[var for free, var, _ in consts if not free],
        invars=[*(var for free, var, _ in consts if free), *closed.invars],
        debug_info=closed.debug_info.with_unknown_names(),
    )
    kept = ClosedJaxpr(inner, [const for free, _, const in consts if not free])
    return _in_double.bind(*(const for free, _, const in consts if free), *leaves, jaxpr=kept)


def _evaluate(*leaves: Any, jaxpr: ClosedJaxpr) -> list[Array]:
    with jax.enable_x64(True):
        return jaxpr_as_fun(jaxpr)(*leaves)


def _lower(context: Any, *leaves: Any, jaxpr: ClosedJaxpr) -> Any:
    with jax.enable_x64(True):
        return mlir.lower_fun(jaxpr_as_fun(jaxpr), multiple_results=True)(context, *leaves)


def _batch(leaves: Any, axes: Any, *, jaxpr: ClosedJaxpr) -> tuple[list[Array], list[int]]:
    out = _bind(jax.vmap(jaxpr_as_fun(jaxpr), in_axes=tuple(axes)), *leaves)
    return out, [0] * len(out)


def _push(primals: Any, tangents: Any, *, jaxpr: ClosedJaxpr) -> tuple[list[Array], list[Any]]:
    """The tangent is an operation apart, linear in the tangents that there are."""
    moves = [not isinstance(tangent, ad.Zero) for tangent in tangents]

    def push(*leaves: Any) -> list[Array]:
        primals, rest = list(leaves[: len(moves)]), list(leaves[len(moves) :])

        def moved(*moving: Any) -> list[Array]:
            given = iter(moving)
            leaves = [next(given) if moves else leaf for leaf, moves in zip(primals, which, strict=True)]
            return [leaf for leaf, smooth in zip(jaxpr_as_fun(jaxpr)(*leaves), floating, strict=True) if smooth]

        return jax.jvp(moved, [leaf for leaf, moves in zip(primals, which, strict=True) if moves], rest)[1]

    which, floating = moves, [jnp.issubdtype(aval.dtype, jnp.floating) for aval in jaxpr.out_avals]
    found = iter(_bind(push, *primals, *(t for t, moves in zip(tangents, which, strict=True) if moves)))
    out = _in_double.bind(*primals, jaxpr=jaxpr)
    pushed = [
        next(found) if smooth else ad.Zero(aval.to_tangent_aval())
        for smooth, aval in zip(floating, jaxpr.out_avals, strict=True)
    ]
    return out, pushed


def _transpose(cotangents: Any, *leaves: Any, jaxpr: ClosedJaxpr) -> list[Any]:
    linear = [ad.is_undefined_primal(leaf) for leaf in leaves]
    avals = [jax.ShapeDtypeStruct(leaf.aval.shape, leaf.aval.dtype) for leaf in leaves if ad.is_undefined_primal(leaf)]
    given = [leaf for leaf in leaves if not ad.is_undefined_primal(leaf)]
    dense = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]

    def pull(*arguments: Any) -> Any:
        known, back = arguments[: len(given)], arguments[len(given) :]

        def along(*moving: Any) -> list[Array]:
            moved, fixed = iter(moving), iter(known)
            return jaxpr_as_fun(jaxpr)(*(next(moved) if is_linear else next(fixed) for is_linear in linear))

        return jax.linear_transpose(along, *avals)(list(back))

    found = iter(_bind(pull, *given, *dense))
    return [next(found) if is_linear else None for is_linear in linear]


_in_double.def_impl(_evaluate)
_in_double.def_abstract_eval(lambda *_, jaxpr: jaxpr.out_avals)
mlir.register_lowering(_in_double, _lower)
batching.primitive_batchers[_in_double] = _batch
ad.primitive_jvps[_in_double] = _push
ad.primitive_transposes[_in_double] = _transpose


def precisely(function: Callable[..., Array]) -> Callable[..., Array]:
    """A function of a vector (and more) whose value is computed from the vector in twice the precision.

    Args:
        function: Whose result follows the dtype of its first argument, a vector.

    Returns:
        The function; its result is rounded to the dtype that it had, its derivatives are the plain function's.
    """

    def call(vector: Array, *rest: Any) -> Array:
        dtype = jax.eval_shape(function, vector, *rest).dtype
        wide = in_double(lambda vector, *rest: function(vector.astype(double(vector.dtype)), *rest).astype(dtype))
        return wide(vector, *rest)

    return call


def double(dtype: Any) -> Any:
    """Twice the precision of a dtype, where the backend has it. To be asked inside `in_double`."""
    return jnp.dtype(dtype) if jax.default_backend() == "tpu" else jnp.dtype(jnp.float64)


def widened(problem: Any) -> Any:
    """A problem whose vectors are in float64; its Gram operator stays as it is stored, but for what costs nothing."""
    wide = double(problem.dtype)
    changed = {
        field.name: _wide_part(getattr(problem, field.name), wide)
        for field in dataclasses.fields(problem)
        if not field.metadata.get("static")
    }
    return dataclasses.replace(problem, **changed)


def like(tree: _T, old: Any) -> _T:
    """A tree whose leaves have the dtypes of another."""
    return jax.tree.map(_as, tree, old)


def rounded(x: Array, dtype: Any) -> Array:
    """The nearest numbers of a narrower dtype, in the dtype of x: what a caller gets is what was computed with."""
    return x.astype(dtype).astype(x.dtype)


def whole(kept: _T, rest: _T, dtype: Any) -> _T:
    """Numbers known to twice the precision of their dtype, in a wider one: what is kept, and its `remainder`."""
    return jax.tree.map(lambda a, b: _cast(a, dtype) + _cast(b, dtype), kept, rest)


def remainder(values: _T, kept: Any) -> _T:
    """What the dtypes of `kept` cannot hold of values (nothing of an infinite one)."""
    return jax.tree.map(lambda new, old: jnp.where(jnp.isfinite(new), new - rounded(new, old.dtype), 0), values, kept)


def rounding(n: int, dtype: Any) -> float:
    """What a product of n terms may be off by, in units of the sum of their sizes: a dot product's partial sums.

    Sums are taken in at least 64 parts (vector lanes and tiles), each a random walk of n / 64 roundings at most.
    """
    return float(jnp.finfo(dtype).eps) * (1 + n**0.5 / 64)


def _wide_part(part: Any, dtype: Any) -> Any:
    """A Gram operator knows what it is in a wider dtype; vectors are cast."""
    if hasattr(part, "widened"):
        return part.widened(dtype)
    return jax.tree.map(lambda leaf: _cast(leaf, dtype), part)


def _cast(leaf: Any, dtype: Any) -> Any:
    return leaf.astype(dtype) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf


def _as(new: Any, before: Any) -> Any:
    same = jnp.issubdtype(jnp.result_type(before), jax.dtypes.prng_key)
    return new if same else jnp.asarray(new).astype(jnp.result_type(before))
