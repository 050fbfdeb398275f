"""Check the arguments of problems: bad concrete values raise, traced ones make `feasible` False at run time."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsvm.errors import InputError, is_concrete, require, require_finite, require_part
from jaxsvm.runtime.arrays import on_device, owned, require_positive
from jaxsvm.runtime.programs import Program


def labelled(gram: Any, y: Any, bias: str, sample_weight: Any, name: str) -> tuple[Array, Any, Any, float]:
    """Check the labels, bias and weights of a problem of two classes, which messages name.

    Returns signs `(n,)`; weights, `(n,)` or None; whether the weights can be used, `()`; and 1.0 with a regularised
    bias, else 0.0.
    """
    if bias not in ("regularized", "none", "free"):
        raise InputError(f'bias is {bias!r}: the {name} problem has "regularized", "none" or "free".')
    dtype = vector_dtype(gram)
    signs = checked_signs(y, gram.n, dtype)
    weight, feasible = checked_weights(sample_weight, gram.n, dtype)
    return signs, weight, feasible, 1.0 if bias == "regularized" else 0.0


def vector_dtype(gram: Any) -> Any:
    """Return the dtype of the data; that of the Gram values if the points are no numbers (precomputed)."""
    require_part("gram", gram, "expansion", "a Gram operator is needed, such as `jaxsvm.gram(RBF(gamma=0.5), x)`")
    return gram.x.dtype if jnp.issubdtype(gram.x.dtype, jnp.floating) else gram.dtype


def checked_signs(y: Any, n: int, dtype: Any) -> Float[Array, " n"]:
    """Return labels as signs, `(n,)`; refuse anything but -1 and +1."""
    if isinstance(y, tuple):
        raise InputError("y is a tuple: the labels alone are needed (`y, classes = two_classes(labels)`).")
    if np.shape(y) != (n,):
        raise InputError(f"y has shape {np.shape(y)}: one label for each of the {n} samples is needed, shape ({n},).")
    if is_concrete(y):
        values = np.asarray(y)
        values = np.unique(values) if values.dtype.kind in "iufb" else values.ravel()
        if values.dtype.kind not in "iufb" or not np.isin(values.astype(float), (-1.0, 1.0)).all():
            shown = ", ".join(map(str, values[:5].tolist()))
            raise InputError(
                f"y holds the values {shown}{', ...' if len(values) > 5 else ''}: -1 and +1 are needed; "
                "`jaxsvm.datasets.two_classes` makes them of any two labels."
            )
    return owned(np.asarray(y) if is_concrete(y) else y, dtype)


def require_both_classes(signs: Any, weight: Any) -> None:
    """Refuse signs of which a class has no sample of positive weight."""
    values = np.asarray(signs)
    present = values if weight is None else values[np.asarray(weight) > 0]
    for sign in (-1, 1):
        if not (present == sign).any():
            raise InputError(
                f"y has no sample of class {sign:+d}{'' if weight is None else ' with a positive weight'}: "
                "two classes are needed to separate them."
            )


def positive_scalar(name: str, value: Any, dtype: Any) -> Float[Array, ""]:
    """Return one positive finite number as an array, `()`; refuse anything else."""
    require_positive_scalar(name, value)
    return owned(value, dtype)


def require_positive_scalar(name: str, value: Any) -> None:
    """Refuse anything but one positive finite number; a traced one passes."""
    if np.shape(value) != ():
        raise InputError(f"{name} has shape {np.shape(value)}: one number is needed (use `solve_path` for many).")
    if is_concrete(value):
        require_positive(name, value)


def require_share(name: str, value: Any) -> None:
    """Refuse anything but one number in (0, 1]; a traced one passes."""
    if np.shape(value) or (is_concrete(value) and not 0 < float(value) <= 1):
        raise InputError(f"{name} is {value}: one number in (0, 1] is needed.")


def checked_weights(sample_weight: Any, n: int, dtype: Any) -> tuple[Array | None, Array]:
    """Return weights, and whether they can be used, `()`; None and True if no weights are given."""
    if sample_weight is None:
        return None, on_device(np.asarray(True))
    require(np.shape(sample_weight) == (n,), f"sample_weight has shape {np.shape(sample_weight)}: ({n},) is needed.")
    require_finite("sample_weight", sample_weight)
    if is_concrete(sample_weight):
        values = np.asarray(sample_weight)
        if (values < 0).any():
            raise InputError(f"sample_weight has {int((values < 0).sum())} negative value(s): weights are >= 0.")
        require_some(values)
        usable: Any = np.asarray(True)
        return on_device(_positive(np.array(values, dtype), values > 0)), on_device(usable)
    weight = jnp.asarray(sample_weight, dtype)
    return weight, _usable(weight)


def require_some(weight: Any) -> None:
    """Refuse weights that are all 0."""
    if not (np.asarray(weight) > 0).any():
        raise InputError("sample_weight is zero everywhere: at least one sample must count.")


def weights_times(weight: Any, before: Any) -> tuple[Any, Any]:
    """Multiply weights; return the products, `(n,)`, and whether the dtype holds them (of concrete ones True), `()`."""
    if not is_concrete(weight, before):
        return weight * before, ((weight * before > 0) == ((weight > 0) & (before > 0))).all()
    weight, before = np.asarray(weight), np.asarray(before)
    return on_device(_positive(weight * before, (weight > 0) & (before > 0))), True


def _positive(values: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """Replace positive values that rounding turned to 0 by the smallest number, which `require_costs` refuses."""
    return np.where(positive & (values == 0), np.finfo(values.dtype).smallest_subnormal, values)


@Program.full()
def _usable(weight: Array) -> Array:
    return (weight >= 0).all() & (weight > 0).any() & jnp.isfinite(weight).all()


def two_classes(y: Float[Array, " n"], present: Bool[Array, " n"]) -> Bool[Array, ""]:
    """Return whether labels are signs and each class has a present sample: `require_both_classes` under tracing."""
    return (jnp.abs(y) == 1).all() & (present & (y > 0)).any() & (present & (y < 0)).any()


def require_costs(C: Any, weight: Any, dtype: Any) -> None:
    """Refuse costs `C w_i` if the dtype cannot hold both `C w_i` and `1 / (C w_i)`; traced ones pass.

    A ridge of 0 (from an infinite cost) and a weight rounded to 0 would mark the sample as absent.
    """
    if not is_concrete(C, weight):
        return
    least = float(np.finfo(dtype).tiny)
    if float(C) < least:  # compiled code takes it for 0, with any weight
        weight = None
    weights = np.asarray(1.0 if weight is None else weight, np.float64)
    with np.errstate(over="ignore"):
        costs = np.where(weights > 0, float(C) * weights, 1.0)
    wrong = (weights > 0) & ~((costs >= least) & (costs <= 1 / least) & (weights >= least))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        where = "C is" if weight is None else f"C times sample_weight[{at}] (weight {float(weights.flat[at]):.3g}) is"
        raise InputError(
            f"{where} {float(costs.flat[at]):.3g}: {np.dtype(dtype).name} holds costs and weights from {least:.3g} to "
            f"{1 / least:.3g}; weights of 0 leave samples out."
        )


def costs_hold(C: Any, weight: Any) -> Any:
    """Return whether the dtype holds weights and costs of all present samples, `()`: `require_costs` under tracing."""
    least = jnp.finfo(C.dtype).tiny
    values = C if weight is None else jnp.where(weight > 0, jnp.stack([weight, C * weight]), 1)
    return ((values >= least) & (values <= 1 / least)).all()
