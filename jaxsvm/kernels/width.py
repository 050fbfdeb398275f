"""Choose the width of a kernel from the data: "scale", "median" and "paper", by name or as functions."""

from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.points.rows import PointsLike, dense_rows, distinct_entries, is_sparse
from jaxsvm.runtime.arrays import Number, require_positive


@np.errstate(over="ignore", invalid="ignore")  # refused by `_spread`
def gamma_scale(x: PointsLike) -> float:
    """Return scikit-learn's "scale", `1 / (d var(x))`: the variance of all entries, absent sparse ones included."""
    means, variances = _moments(x)
    return 1 / _spread(len(means) * (variances.mean() + (means - means[0]).var()))


def gamma_paper(x: PointsLike) -> float:
    """Return the paper's `1 / (2 sigma^2)` with the average squared distance sigma^2 = `2 trace(Cov)`. O(n d)."""
    _, variances = _moments(x)
    return 1 / (4 * _spread(variances.sum()))


@np.errstate(over="ignore", invalid="ignore")
def gamma_median(x: PointsLike, sample: int = 1000, seed: int = 0) -> float:
    """Return `1 / median |x - z|^2` over the pairs of a random sample of rows."""
    points = _host_points(x)
    n = points.shape[0]
    picked = np.sort(np.random.default_rng(seed).permutation(n)[:sample])
    rows: Any = dense_rows(points, picked)  # pyright: ignore[reportArgumentType]  # NumPy indices of NumPy points
    rows = np.asarray(rows.toarray() if is_sparse(rows) else rows, np.float64)
    rows = rows - rows.mean(axis=0)
    squares = (rows**2).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0)
    return 1 / _spread(np.median(distances[np.triu_indices(len(rows), 1)]) if len(rows) > 1 else 0.0)


def resolve_gamma(value: str | Number, x: PointsLike) -> float:
    """Turn "scale", "median", "paper" or a number (text too) into a number.

    Raises:
        InputError: On other words, and on numbers that are not positive.
    """
    rules = {"scale": gamma_scale, "median": gamma_median, "paper": gamma_paper}
    if isinstance(value, str) and value in rules:
        return float(rules[value](x))
    try:
        gamma = float(value)
    except (TypeError, ValueError):
        raise InputError(f"gamma is {value!r}: {', '.join(rules)} or a positive number is needed.") from None
    require_positive("gamma", gamma)
    return gamma


def _host_points(x: Any) -> Any:
    """Convert lists to an array, SciPy's sparse formats to CSR without duplicates; keep other points as they are."""
    if hasattr(x, "tocsr"):
        return distinct_entries(x)
    return x if hasattr(x, "shape") else np.asarray(x)


@np.errstate(over="ignore", invalid="ignore")  # refused by `_spread`
def _moments(x: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return means and variances of the columns of x, in float64."""
    x = _host_points(x)
    n, d = x.shape
    if is_sparse(x):
        data, columns, pivot = np.asarray(x.data, np.float64), np.asarray(x.indices), np.zeros(d)
        kept = columns < d  # JAX pads
        data, columns = data[kept], columns[kept]
        pivot[columns[::-1]] = data[::-1]
        rest, absent = data - pivot[columns], n - np.bincount(columns, minlength=d)
        total = np.bincount(columns, rest, d) - absent * pivot
        squares = np.bincount(columns, rest**2, d) + absent * pivot**2
        return pivot + total / n, np.maximum(squares / n - (total / n) ** 2, 0)
    array, total, squares = np.asarray(x), np.zeros(d), np.zeros(d)
    pivot = array[0].astype(np.float64)  # differences from one of the points: an offset costs no digits
    for start in range(0, n, 4096):  # no float64 copy of all points
        rows = array[start : start + 4096] - pivot
        total += rows.sum(axis=0)
        squares += np.einsum("ij,ij->j", rows, rows)
    return pivot + total / n, np.maximum(squares / n - (total / n) ** 2, 0)


def _spread(value: Any) -> float:
    """Return the spread, or 1 if all points are equal, so that gamma stays finite; refuse one that overflowed."""
    if not np.isfinite(value):
        raise InputError("x spreads so far that squares of its distances overflow: scale its columns, or name a gamma.")
    return float(value) if value > 0 else 1.0
