"""Arrow columns, by their declared types: nothing passes through float64 or text on its way."""

from fractions import Fraction
from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.tables.columns import DAY, UNITS, Column, objects, whole


def arrow_column(found: Any, where: str) -> Column:
    """A column of an Arrow array or a chunked one.

    Raises:
        InputError: On an array that Arrow cannot decode.
    """
    import pyarrow as pa

    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)
        if isinstance(found, pa.ChunkedArray):  # of no chunks
            found = pa.array([], found.type)
    missing, called = found.is_null().to_numpy(zero_copy_only=False), str(found.type)
    if pa.types.is_dictionary(found.type):  # by the values: their order and their numbers are nobody's identity
        try:
            found = found.dictionary_decode()
        except pa.ArrowException as error:
            raise InputError(f"column {where} of type {called} cannot be read: {error}") from None
        missing = found.is_null().to_numpy(zero_copy_only=False)
    held = found.type
    if isinstance(held, pa.BaseExtensionType):
        name, found = str(getattr(held, "extension_name", "")), found.storage
        if name not in ("arrow.uuid", "arrow.bool8"):
            return Column("other", np.zeros(len(missing)), missing, 0, called)
        if name == "arrow.uuid":
            import uuid

            values = [None if value is None else str(uuid.UUID(bytes=value)) for value in found.to_pylist()]
            return Column("uuid", objects(values), missing, 0, called)
        return Column("boolean", found.fill_null(0).to_numpy() != 0, missing, 0, called)
    kind, values, scale = _decoded(found, held, missing)
    return Column(kind, values, missing, scale, called)


def _decoded(found: Any, held: Any, missing: np.ndarray) -> tuple[str, np.ndarray, int]:
    """The kind of an Arrow array, its values and their scale."""
    import pyarrow as pa

    of = pa.types
    if of.is_null(held):
        return "null", np.zeros(len(missing)), 0
    if of.is_boolean(held):
        return "boolean", found.fill_null(False).to_numpy(zero_copy_only=False), 0
    if of.is_integer(held):
        return "number", whole(found.fill_null(0).to_numpy(zero_copy_only=False)), 0
    if of.is_floating(held):
        values = found.to_numpy(zero_copy_only=False)  # NaN where null
        return "float", values, 0
    if of.is_decimal(held):
        return "number", _unscaled(found, held, missing), held.scale
    if of.is_string(held) or of.is_large_string(held) or str(held) == "string_view":
        return "text", objects(found.to_pylist()), 0
    if of.is_binary(held) or of.is_large_binary(held) or of.is_fixed_size_binary(held) or str(held) == "binary_view":
        return "bytes", objects(found.to_pylist()), 0
    if of.is_date(held):
        days = found.cast(pa.date32()).cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
        return "date", days.astype(np.int64) * DAY, 0
    if of.is_timestamp(held):
        values = found.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return "timestamp" if held.tz is None else "zoned", values, UNITS[held.unit]
    if of.is_time(held):
        bits = pa.int32() if of.is_time32(held) else pa.int64()
        values = found.cast(bits).fill_null(0).to_numpy(zero_copy_only=False)
        return "time", values.astype(np.int64), UNITS[held.unit]
    return "other", np.zeros(len(missing)), 0


def _unscaled(found: Any, held: Any, missing: np.ndarray) -> np.ndarray:
    """The whole numbers that decimals are held as."""
    if held.bit_width != 128 or not len(found):
        values = found.to_pylist()
        return whole([0 if value is None else int(Fraction(value) * Fraction(10) ** held.scale) for value in values])
    words = np.frombuffer(found.buffers()[1], np.int64).reshape(-1, 2)[found.offset : found.offset + len(found)]
    low, high = (np.where(missing, 0, part) for part in words.T)
    if np.array_equal(high, low >> 63):
        return low
    return objects(
        [(top << 64) + (bottom & (2**64 - 1)) for top, bottom in zip(high.tolist(), low.tolist(), strict=True)]
    )
