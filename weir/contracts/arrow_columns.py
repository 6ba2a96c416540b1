"""Columns of a table in the types that the pipeline works with; a type that does not fit is a `TypeError`."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts.features import CATEGORICAL_TYPE

__all__ = ["column", "is_string", "not_utf8", "numbers", "text_lists", "texts"]


def column(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array, without dictionaries; all null where the table has none of this name."""
    if name not in table.column_names:
        return pa.nulls(table.num_rows)
    found = table.column(name).combine_chunks()
    if not pa.types.is_dictionary(found.type):
        return found
    # Rows may repeat a large value that is refused by its type: that must not take its room once per row.
    return found.dictionary_decode() if _is_text(found.type.value_type) else found


def texts(values: pa.Array, name: str) -> pa.Array:
    """Return strings; integers become their decimal spelling."""
    if not _is_text(values.type):
        raise TypeError(f"column {name} is of type {values.type}; allowed are strings and integers")
    return values.cast(pa.string())


def text_lists(values: pa.Array, name: str) -> pa.Array:
    """Return lists of strings; a string or an integer becomes a list of one."""
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = kind.value_type.value_type if pa.types.is_dictionary(kind.value_type) else kind.value_type
        if _is_text(inner):
            return values.cast(CATEGORICAL_TYPE)
    elif _is_text(kind):
        offsets = pa.array(range(len(values) + 1), pa.int32())
        return pa.ListArray.from_arrays(offsets, values.cast(pa.string()), mask=values.is_null())
    raise TypeError(f"column {name} is of type {kind}; allowed are strings, integers and lists of them")


def numbers(values: pa.Array, name: str) -> pa.Array:
    """Return doubles."""
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
        return pc.cast(values, pa.float64(), safe=False)
    raise TypeError(f"column {name} is of type {kind}; allowed are numbers")


def is_string(kind: pa.DataType) -> bool:
    """Say whether a type is one of strings."""
    return any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _is_text(kind: pa.DataType) -> bool:
    return is_string(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)


def not_utf8(texts: pa.Array) -> npt.NDArray[np.bool_]:
    """Mark the strings whose bytes are not UTF-8: Parquet does not promise that they are."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return np.array([not _is_utf8(raw) for raw in texts.cast(pa.binary()).to_pylist()], np.bool_)
    return np.zeros(len(texts), np.bool_)


def _is_utf8(raw: bytes | None) -> bool:
    try:
        (raw or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
