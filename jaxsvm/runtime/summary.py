"""Show what holds arrays in one line: arrays by dtype and shape, which they have under tracing too."""

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxsvm.errors import is_concrete

LONGEST = 250
"""Characters of a part's own line that are shown."""


def in_a_line(self: Any, **first: Any) -> str:
    """Return `Class(field=value, ...)`: the `__repr__` of dataclasses and named tuples that hold arrays.

    A field that is left at its default of None or False is left out.

    Args:
        self: The object.
        **first: What to show before its fields.
    """
    if dataclasses.is_dataclass(self):
        defaults = {field.name: field.default for field in dataclasses.fields(self) if field.repr}
    else:
        defaults = {name: self._field_defaults.get(name, dataclasses.MISSING) for name in self._fields}
    values = {name: getattr(self, name) for name in defaults}
    absent = {name for name, value in values.items() if value is defaults[name] and value in (None, False)}
    shown = first | {name: value for name, value in values.items() if name not in absent}
    return f"{type(self).__name__}({', '.join(f'{name}={summary(value)}' for name, value in shown.items())})"


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
