"""Compute decisive numbers in twice the precision: float64 for float32 data, for any x64 flag of the caller.

Steps run in the dtype of the data. Products from scratch, certificates and polishes run in float64 inside `in_double`,
which turns x64 on for the operations of one function only. Its arguments and results have the caller's dtypes, so that
no float64 array ever reaches a caller who has x64 off. It works inside `jit`, loops and `vmap`; its derivatives are
computed in float64 too, and rounded once.

A TPU has no float64: there everything stays in the data's dtype, and allowances for rounding grow with it.

Matrix products are in the full precision of their dtypes: GPUs and TPUs use less by default.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray, Tracer
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import ad, batching, mlir, partial_eval
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.numerics.measured import MEASURED
from jaxsvm.runtime.arrays import promoting
from jaxsvm.runtime.loops import varying, while_loop

_T = TypeVar("_T")


PARTS_OF_A_SUM = 64
"""Sums are taken in at least so many parts (vector lanes and tiles): as fast as vectors go, and as exact as `rounding`
says."""


def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of pytrees so that float64 is available inside; its arguments and results keep their dtypes.

    Its results must not be float64 unless its arguments are (`like` rounds). It becomes an operation of its own,
    batched, differentiated (to any order) and transposed with x64 on, whatever the caller's flag. (Batching a loop
    traces its body again with the caller's flag; this operation is then batched as a whole.)
    """

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
            with promoting():
                return function(*arguments, **named)
        leaves, tree = jax.tree.flatten((arguments, named))
        shapes = []

        def of_leaves(*leaves: Any) -> list[Array]:
            given, by_name = jax.tree.unflatten(tree, leaves)
            out, shape = jax.tree.flatten(function(*given, **by_name))
            shapes.append(shape)
            return out

        out = _bind(of_leaves, *varying([_typed(leaf) for leaf in leaves]))  # a tangent varies as its argument does
        return jax.tree.unflatten(shapes[-1], out)

    return call


_in_double = Primitive("in_double")
_in_double.multiple_results = True


def _bind(function: Callable[..., Any], *leaves: Any) -> list[Array]:
    """Trace a function of arrays with x64 on, and bind it as the operation."""
    with jax.enable_x64(True), promoting():  # it mixes both precisions on purpose
        traced = jax.make_jaxpr(function)(*leaves)
    closed, free = traced.jaxpr, [isinstance(const, Tracer) for const in traced.consts]
    own = [not is_free for is_free in free]
    # What is returned as it came is no result of the operation: XLA would copy it.
    given = {id(variable): leaf for variable, leaf in zip(closed.invars, leaves, strict=True)}
    computed = [id(variable) not in given for variable in closed.outvars]
    # Tracers that the function closes over become arguments too.
    inner = closed.replace(
        constvars=_where(own, closed.constvars),
        invars=[*_where(free, closed.constvars), *closed.invars],
        outvars=_where(computed, closed.outvars),
        debug_info=closed.debug_info.with_unknown_names(),
    )
    jaxpr = ClosedJaxpr(inner, _where(own, traced.consts))
    results = _in_double.bind(*_where(free, traced.consts), *leaves, jaxpr=jaxpr)
    return _merged(computed, results, [given.get(id(variable)) for variable in closed.outvars])


def _typed(leaf: Any) -> Any:  # with x64 on a Python float would be float64
    array = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
    return lax.convert_element_type(array, array.dtype) if getattr(jax.typeof(array), "weak_type", False) else array


def _evaluate(*leaves: Any, jaxpr: ClosedJaxpr) -> list[Array]:
    with jax.enable_x64(True):
        return jaxpr_as_fun(jaxpr)(*leaves)


def _lower(context: Any, *leaves: Any, jaxpr: ClosedJaxpr) -> Any:
    with jax.enable_x64(True):
        if context.dim_var_values:
            # An export for several platforms passes the platform's index: wide inside, narrow outside. So neither side
            # may reuse what the other has lowered.
            wide = mlir.aval_to_ir_type(context.module_context, ShapedArray((), "int64"))
            module = context.module_context.replace(lowering_cache={}, cached_primitive_lowerings={})
            places = [hlo.convert(wide, place) for place in context.dim_var_values]
            context = context.replace(dim_var_values=places, module_context=module)
        return mlir.lower_fun(jaxpr_as_fun(jaxpr), multiple_results=True)(context, *leaves)


def _batch(leaves: Any, axes: Any, *, jaxpr: ClosedJaxpr) -> tuple[list[Array], list[int]]:
    out = _bind(jax.vmap(jaxpr_as_fun(jaxpr), in_axes=tuple(axes)), *leaves)
    return out, [0] * len(out)


def _to_lojax(*leaves: Any, jaxpr: ClosedJaxpr) -> list[Array]:
    """Bind the operation with a jaxpr of operations that JAX can lower; from 0.12 on, some traced ones are not."""
    with jax.enable_x64(True):
        lowered = partial_eval.lower_jaxpr2(jaxpr)  # pyright: ignore[reportAttributeAccessIssue]  # absent before
    return _in_double.bind(*leaves, jaxpr=lowered)


def _push(primals: Any, tangents: Any, *, jaxpr: ClosedJaxpr) -> tuple[list[Array], list[Any]]:
    """Bind the tangent as an operation of its own, linear in the non-zero tangents."""
    moves = [not isinstance(tangent, ad.Zero) for tangent in tangents]
    smooth = [jnp.issubdtype(aval.dtype, jnp.floating) for aval in jaxpr.out_avals]
    n = len(moves)

    def push(*leaves: Any) -> list[Array]:
        def of_moving(*moving: Any) -> list[Array]:
            return _where(smooth, jaxpr_as_fun(jaxpr)(*_merged(moves, moving, leaves[:n])))

        return jax.jvp(of_moving, _where(moves, leaves[:n]), list(leaves[n:]))[1]

    pushed = iter(_bind(push, *primals, *_where(moves, tangents)))
    zeros = [ad.Zero(aval.to_tangent_aval()) for aval in jaxpr.out_avals]
    return _in_double.bind(*primals, jaxpr=jaxpr), _merged(smooth, pushed, zeros)


def _needed(used: list[bool], *rest: Any) -> tuple[list[bool], Any]:
    """Drop what only unused results need (dead code); return also which arguments are still needed."""
    equation = rest[-1]  # from JAX 0.12 on, the arguments that are read come before it
    if not any(used):
        return [False] * len(equation.invars), None
    jaxpr, needed = _without(equation.params["jaxpr"], used)
    return needed, equation.replace(
        invars=_where(needed, equation.invars), outvars=_where(used, equation.outvars), params={"jaxpr": jaxpr}
    )


def _without(closed: ClosedJaxpr, used: list[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    jaxpr, needed = partial_eval.dce_jaxpr(closed.jaxpr, used)
    return closed.replace(jaxpr=jaxpr), needed


def _transpose(cotangents: Any, *leaves: Any, jaxpr: ClosedJaxpr) -> list[Any]:
    """Transpose only what leads to results with cotangents: that of a bias skips the work for coefficients."""
    reached = [not isinstance(cotangent, ad.Zero) for cotangent in cotangents]
    closed, needed = _without(jaxpr, reached)
    linear = [ad.is_undefined_primal(leaf) for leaf in leaves]
    moves, fixed = _both(linear, needed), _both([not is_linear for is_linear in linear], needed)
    given, moved = _where(fixed, leaves), _where(moves, leaves)

    def pull(*known_and_back: Any) -> Any:
        known, back = known_and_back[: len(given)], known_and_back[len(given) :]

        def along(*moving: Any) -> list[Array]:
            places = _merged(moves, moving, _merged(fixed, known, [None] * len(linear)))
            return jaxpr_as_fun(closed)(*_where(needed, places))

        # Arrays rather than shapes: inside a `shard_map` only arrays are typed as varying.
        moving = varying([jnp.zeros(leaf.aval.shape, leaf.aval.dtype) for leaf in moved])
        return jax.linear_transpose(along, *moving)(list(back))

    return _merged(moves, _bind(pull, *given, *_where(reached, cotangents)), [None] * len(linear))


def _both(one: list[bool], other: list[bool]) -> list[bool]:
    return [a and b for a, b in zip(one, other, strict=True)]


def _where(chosen: list[bool], items: Any) -> list[Any]:
    return [item for item, wanted in zip(items, chosen, strict=True) if wanted]


def _merged(chosen: list[bool], some: Any, others: Any) -> list[Any]:
    """Insert the items of `some`, in order, at the chosen places of `others`."""
    rest = iter(some)
    return [next(rest) if wanted else other for wanted, other in zip(chosen, others, strict=True)]


_in_double.def_impl(_evaluate)
_in_double.to_lojax = _to_lojax  # pyright: ignore[reportAttributeAccessIssue]
_in_double.def_abstract_eval(lambda *_, jaxpr: jaxpr.out_avals)
mlir.register_lowering(_in_double, _lower)
batching.primitive_batchers[_in_double] = _batch
partial_eval.dce_rules[_in_double] = _needed
ad.primitive_jvps[_in_double] = _push
ad.primitive_transposes[_in_double] = _transpose


def precisely(function: Callable[..., Array]) -> Callable[..., Array]:
    """Wrap a function of a vector (and more arguments) to compute in twice the vector's precision.

    The result has the vector's dtype; it and its derivatives are rounded to that.
    """

    def call(vector: Array, *rest: Any) -> Array:
        with jax.enable_x64(True):  # models of LIBSVM's files hold float64 wherever they are
            dtype = jax.eval_shape(function, vector, *rest).dtype
        dtype = jax.dtypes.canonicalize_dtype(dtype)
        wide = in_double(lambda vector, *rest: function(vector.astype(double(vector.dtype)), *rest).astype(dtype))
        return wide(vector, *rest)

    return call


def double(dtype: Any) -> Any:
    """Return float64, or the dtype itself on a backend without float64. Call it inside `in_double`."""
    return jnp.dtype(dtype) if jax.default_backend() == "tpu" else jnp.dtype(jnp.float64)


def widened(problem: _T) -> _T:
    """Convert the vectors of a problem to float64; of its Gram operator only the parts that cost nothing."""
    given: Any = problem
    wide = double(given.dtype)
    names = [field.name for field in dataclasses.fields(given) if not field.metadata.get("static")]
    parts = {name: getattr(given, name) for name in names}  # of which Gram operators widen themselves
    changed = {name: x.widened(wide) if hasattr(x, "widened") else cast(x, wide) for name, x in parts.items()}
    return dataclasses.replace(given, **changed)


def cast(tree: _T, dtype: Any) -> _T:
    """Convert the floating leaves of a tree to a dtype."""
    return jax.tree.map(lambda leaf: _cast(leaf, dtype), tree)


def like(tree: _T, old: Any) -> _T:
    """Convert the leaves of a tree to the dtypes of another tree's."""
    return jax.tree.map(_as, tree, old)


def rounded(x: Array, dtype: Any) -> Array:
    """Round numbers to a narrower dtype but keep the dtype of x: to compute with the numbers that the caller gets.

    A conversion and one back would not do: on a GPU XLA removes both, and certifies numbers that nobody gets.
    """
    to = jnp.finfo(dtype)
    return lax.reduce_precision(x, to.nexp, to.nmant) if to.bits < jnp.finfo(x.dtype).bits else x


def whole(kept: _T, rest: _T, dtype: Any) -> _T:
    """Recombine rounded values and their `remainder` in a wider dtype."""
    return jax.tree.map(lambda a, b: _cast(a, dtype) + _cast(b, dtype), kept, rest)


def remainder(values: _T, kept: Any) -> _T:
    """Return the part of `values` that the dtypes of `kept` cannot hold; 0 for an infinite value."""
    return jax.tree.map(lambda new, old: jnp.where(jnp.isfinite(new), new - rounded(new, old.dtype), 0), values, kept)


def split(values: _T, kept: _T) -> tuple[_T, _T]:
    """Return values in the dtypes of `kept`, and their `remainder` in these dtypes."""
    return like(values, kept), like(remainder(values, kept), kept)


def bits_of(tree: Any) -> Any:
    """Reinterpret floating leaves as uint32, float64 with another axis of 2, so that they can pass where x64 is off."""
    bits = lambda leaf: lax.bitcast_convert_type(leaf, jnp.uint32)  # noqa: E731
    return jax.tree.map(lambda leaf: bits(leaf) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree)


def of_bits(tree: Any) -> Any:
    """Reinterpret uint32 leaves as numbers; call it inside `in_double`."""
    wide = double(jnp.float32)
    return jax.tree.map(lambda leaf: lax.bitcast_convert_type(leaf, wide) if leaf.dtype == jnp.uint32 else leaf, tree)


def rounding(n: int, dtype: Any) -> float:
    """Return the rounding error of a dot product of n terms, relative to the sum of their sizes.

    Sums are taken in at least 64 parts (vector lanes and tiles), each a random walk of at most n / 64 roundings.
    """
    return float(jnp.finfo(dtype).eps) * (1 + n**0.5 / PARTS_OF_A_SUM)


def _cast(leaf: Any, dtype: Any) -> Any:
    return leaf.astype(dtype) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf


def _as(new: Any, before: Any) -> Any:
    same = jnp.issubdtype(jnp.result_type(before), jax.dtypes.prng_key)
    return new if same else jnp.asarray(new).astype(jnp.result_type(before))


def count(mask: Bool[Array, "..."]) -> Int[Array, ""]:
    """Count the entries that hold, int32."""
    return mask.sum(dtype=jnp.int32)


def places_first(mask: Bool[Array, " n"]) -> Int[Array, " n"]:
    """Return the indices at which a mask holds, in order, followed by arbitrary indices; int32."""
    n = mask.shape[0]
    index = jnp.arange(n, dtype=jnp.int32)
    if n <= MEASURED.sorted_size:
        keys = jnp.sort(jnp.where(mask, index, index + n))
        return jnp.where(keys < n, keys, keys - n)
    place = jnp.where(mask, jnp.cumsum(mask, dtype=jnp.int32) - 1, n)
    return jnp.zeros((n,), jnp.int32).at[place].set(index, mode="drop")


def matmul(a: Array, b: Array) -> Array:
    """Compute `a @ b` in the wider dtype of the two."""
    dtype = jnp.result_type(a.dtype, b.dtype)
    return jnp.matmul(a.astype(dtype), b.astype(dtype), precision=lax.Precision.HIGHEST)


def diagonal(A: Float[Array, "n n"]) -> Float[Array, " n"]:
    """Return `A_ii`, as `jnp.diagonal` does in 43 lines of StableHLO."""
    return A.reshape(-1)[:: A.shape[0] + 1]


def plus_diagonal(A: Float[Array, "n n"], d: Float[Array, " n"]) -> Float[Array, "n n"]:
    """Return `A + diag(d)`."""
    return A + jnp.eye(A.shape[0], dtype=A.dtype) * d[None, :]


def over_support(
    weights: Float[Array, " q"], size: int, add: Callable[[Array, Array, Array], Array], start: Array
) -> Array:
    """Repeat `total = add(total, index, weights[index])` for the weights that are not 0, `size` at a time.

    The number of turns is traced. Indices beyond the last are arbitrary, with weights of 0.
    """
    used = weights != 0
    many, order = count(used), jnp.pad(places_first(used), (0, size))

    def turn(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        k, total = carry
        index = lax.dynamic_slice(order, (k * size,), (size,))
        inside = k * size + jnp.arange(size, dtype=jnp.int32) < many
        return k + 1, add(total, index, jnp.where(inside, weights[index], 0))

    return while_loop(lambda carry: carry[0] * size < many, turn, (jnp.zeros((), jnp.int32), start))[1]


def weighted_rows(
    weights: Float[Array, " q"], rows: Float[Array, "m n"], index: Int[Array, " q"] | None = None
) -> Float[Array, " n"]:
    """Compute `sum_k weights_k rows[index_k]` in the dtype of the weights; weights of 0 cost nothing.

    Rows of a narrower dtype are widened in registers: 512 rows of 10,000 take 1.5 ms in float64, a `matmul` with its
    converted operand 3.9 ms, and one in float32 0.8 ms. `index` is the row of each weight; None: all rows in order.
    """

    def add(total: Array, turn: Array, some: Array) -> Array:
        places = turn if index is None else index[turn]
        for t in range(len(turn)):  # one fused loop over n; for a matrix product XLA would widen the rows in memory
            total = total + some[t] * lax.dynamic_index_in_dim(rows, places[t], keepdims=False).astype(total.dtype)
        return total

    return over_support(weights, MEASURED.terms_per_turn, add, jnp.zeros((rows.shape[1],), weights.dtype))


XLA_SUMS_BY_LIBRARY_FROM = 4096
"""XLA calls a library for sums of so many entries or more; for fewer, only a matrix product is such a call."""


def sums(*terms: Float[Array, " n"]) -> tuple[Float[Array, ""], ...]:
    """Sum each of several vectors of one length. Six of them compile in 0.06 s, as six sums in 0.45."""
    n, dtype = terms[0].shape[0], jnp.result_type(*terms)
    if n >= XLA_SUMS_BY_LIBRARY_FROM:
        return tuple(term.sum() for term in terms)
    if len(terms) == 1:  # for a single vector a matrix product is a library call
        return (matmul(terms[0][None], jnp.ones((n, 2), dtype))[0, 0],)
    parts = jnp.stack([term.astype(dtype) for term in terms])
    parts = lax.pad(parts, jnp.zeros((), dtype), ((0, 0, 0), (0, -n % PARTS_OF_A_SUM, 0)))
    return tuple(parts.reshape(len(terms), -1, PARTS_OF_A_SUM).sum(axis=1).sum(axis=1))
