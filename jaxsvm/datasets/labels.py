"""Labels as what is learned: signs of two classes, integers of several, numbers."""

from typing import Any

import numpy as np

from jaxsvm.datasets.refusal import as_number
from jaxsvm.errors import InputError, is_concrete


def two_classes(y: Any, positive: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Labels of two classes as signs.

    Args:
        y: Labels `(n,)`: integers, floats, booleans or strings.
        positive: The label that becomes +1, against all others; None for two classes in sorted order. A string that
            spells a number is that number where the labels are numbers (a command line has strings only).

    Returns:
        Signs `(n,)`, float64 in {-1, +1} (problems take them in the dtype of the points), and the classes `(2,)`:
        `classes[0]` is -1 and `classes[1]` is +1. Where `positive` stands against several others, the classes are the
        strings `"not 8"` and `"8"`.

    Raises:
        InputError: On missing labels, one class only, more than two without `positive`, or under tracing.
    """
    if not is_concrete(y):
        raise InputError("y is being traced: which classes there are is not known yet; call `two_classes` outside jit.")
    present, codes, shown = _present(y)
    if positive is None:
        if len(present) > 2:
            raise InputError(
                f"y holds {len(present)} classes ({shown}): two are needed; choose one against the rest, "
                f"positive={present[-1].item() if isinstance(present[-1], np.generic) else present[-1]!r} for example."
            )
        return np.where(codes == 1, 1.0, -1.0), present
    index = _index_of(positive, present)
    if index is None:
        raise InputError(f"positive is {positive!r}: y has no such label; it has {shown}.")
    signs = np.where(codes == index, 1.0, -1.0)
    if len(present) == 2:
        return signs, present[[1 - index, index]]
    return signs, np.asarray([f"not {present[index]}", f"{present[index]}"])


def several_classes(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Labels of two classes or more as integers.

    Args:
        y: Labels `(n,)`: integers, floats, booleans or strings.

    Returns:
        Codes `(n,)`, int64 from 0 on, and the classes `(k,)` in sorted order.

    Raises:
        InputError: On missing labels, one class only, or nearly as many classes as samples.
    """
    present, codes, shown = _present(y)
    if len(present) > max(2, len(codes) / 3):
        raise InputError(
            f"y holds {len(present)} different labels ({shown}) for {len(codes)} samples: too many to be classes. For "
            "numbers that are to be predicted, use regression (--loss epsilon_insensitive); if other values are the "
            "labels, say which (label=, --label): of a table it is the last column, where nobody says."
        )
    return codes.astype(np.int64), present


def targets(y: Any) -> np.ndarray:
    """Labels of regression as float64, `(n,)`.

    Args:
        y: Numbers `(n,)`.

    Raises:
        InputError: On text, and on missing or infinite numbers.
    """
    values = np.asarray(y)
    if values.ndim != 1 or not len(values):
        raise InputError(f"y has shape {values.shape}: one number a sample is needed, shape (n,) with n >= 1.")
    if values.dtype.kind not in "biuf":
        raise InputError(
            f"y holds {values[0]!s:.40}: regression needs numbers; for classes use a hinge (--loss hinge)."
        )
    _refuse_missing_labels(values)
    return values.astype(np.float64)


def _present(y: Any) -> tuple[np.ndarray, np.ndarray, str]:
    """The classes, the class of each sample, and the first classes in words."""
    labels = np.asarray(y)
    if labels.ndim != 1 or not len(labels):
        raise InputError(f"y has shape {labels.shape}: one label a sample is needed, shape (n,) with n >= 1.")
    as_object = labels.dtype.kind in "US" and not hasattr(y, "dtype")  # NumPy turns a NaN among strings into "nan"
    _refuse_missing_labels(np.asarray(y, dtype=object) if as_object else labels)
    try:
        present, codes = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InputError(
            f"y mixes labels that have no order ({error}): use one type, all strings for example."
        ) from error
    shown = ", ".join(map(str, present[:6].tolist())) + (", ..." if len(present) > 6 else "")
    if len(present) < 2:
        raise InputError(f"y holds one class only, {shown}: two are needed to separate them.")
    return present, codes, shown


def _refuse_missing_labels(labels: np.ndarray) -> None:
    if labels.dtype.kind == "O":
        missing = np.asarray([label is None or label != label for label in labels.tolist()])  # NaN differs from itself
    elif labels.dtype.kind in "f":
        missing = ~np.isfinite(labels)
    elif labels.dtype.kind in "biuUS":
        return
    else:
        raise InputError(f"y is of type {labels.dtype}: numbers, booleans or strings are needed.")
    if missing.any():
        raise InputError(
            f"y has {int(missing.sum())} label(s) that are missing or not finite, the first at index "
            f"{int(missing.argmax())}: remove those samples."
        )


def _index_of(positive: Any, present: np.ndarray) -> int | None:
    labels = present.tolist()
    if positive in labels:
        return labels.index(positive)
    texts = [str(label) for label in labels]
    if str(positive) in texts:
        return texts.index(str(positive))
    number = as_number(positive) if isinstance(positive, str) and present.dtype.kind in "iuf" else None
    return labels.index(number) if number in labels else None
