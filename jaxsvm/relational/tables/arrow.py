"""Read Arrow columns by their declared types; no value passes through float64 or text."""

import uuid
from fractions import Fraction
from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.tables.columns import SECONDS_PER_DAY, TIME_SCALES, Column, integers, object_array


def arrow_column(array: Any, where: str) -> Column:
    """Read an Arrow array or chunked array."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
        if isinstance(array, pa.ChunkedArray):  # of no chunks
            array = pa.array([], array.type)
    type_name = str(array.type)
    if pa.types.is_dictionary(array.type):  # only its values count, not their order or numbers
        try:
            array = array.dictionary_decode()
        except pa.ArrowException as error:
            raise InputError(f"column {where} of type {type_name} cannot be read: {error}") from None
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if isinstance(array.type, pa.BaseExtensionType):
        kind, values, scale = _extension(array, missing)
    else:
        kind, values, scale = _decoded(array, missing)
    return Column(kind, values, missing, scale, type_name)


def _extension(array: Any, missing: np.ndarray) -> tuple[str, np.ndarray, int]:
    """Return the kind, values and scale of an array of an extension type."""
    name, storage = str(getattr(array.type, "extension_name", "")), array.storage
    if name == "arrow.uuid":
        values = [None if value is None else str(uuid.UUID(bytes=value)) for value in storage.to_pylist()]
        return "uuid", object_array(values), 0
    if name == "arrow.bool8":
        return "boolean", storage.fill_null(0).to_numpy() != 0, 0
    return "other", np.zeros(len(missing)), 0


def _decoded(array: Any, missing: np.ndarray) -> tuple[str, np.ndarray, int]:
    """Return the kind, values and scale of an array of a plain type."""
    import pyarrow as pa

    of, kind = pa.types, array.type

    def filled(values: Any) -> np.ndarray:
        return values.fill_null(0).to_numpy(zero_copy_only=False)

    if of.is_null(kind):
        return "null", np.zeros(len(missing)), 0
    if of.is_boolean(kind):
        return "boolean", array.fill_null(False).to_numpy(zero_copy_only=False), 0
    if of.is_integer(kind):
        return "number", integers(filled(array)), 0
    if of.is_floating(kind):
        return "float", array.to_numpy(zero_copy_only=False), 0  # NaN where null
    if of.is_decimal(kind):
        return "number", _unscaled(array, missing), kind.scale
    if of.is_string(kind) or of.is_large_string(kind) or str(kind) == "string_view":
        return "text", object_array(array.to_pylist()), 0
    if of.is_binary(kind) or of.is_large_binary(kind) or of.is_fixed_size_binary(kind) or str(kind) == "binary_view":
        return "bytes", object_array(array.to_pylist()), 0
    if of.is_date(kind):
        return "date", filled(array.cast(pa.date32()).cast(pa.int32())).astype(np.int64) * SECONDS_PER_DAY, 0
    if of.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "zoned", filled(array.cast(pa.int64())), TIME_SCALES[kind.unit]
    if of.is_time(kind):
        bits = pa.int32() if of.is_time32(kind) else pa.int64()
        return "time", filled(array.cast(bits)).astype(np.int64), TIME_SCALES[kind.unit]
    return "other", np.zeros(len(missing)), 0


def _unscaled(array: Any, missing: np.ndarray) -> np.ndarray:
    """Return the integers that store decimals."""
    if array.type.bit_width != 128 or not len(array):
        factor = Fraction(10) ** array.type.scale
        return integers([0 if value is None else int(Fraction(value) * factor) for value in array.to_pylist()])
    words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)[array.offset : array.offset + len(array)]
    low, high = (np.where(missing, 0, part) for part in words.T)
    if np.array_equal(high, low >> 63):
        return low
    pairs = zip(high.tolist(), low.tolist(), strict=True)
    return object_array([(top << 64) + (bottom & (2**64 - 1)) for top, bottom in pairs])
