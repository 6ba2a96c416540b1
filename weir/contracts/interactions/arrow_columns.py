"""Columns of a table, cast to the types of the pipeline; a type that does not fit raises `TypeError`.

A value means the same in every file format: `texts` defines the spelling of ids.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts.interactions.features import CATEGORICAL_TYPE

__all__ = [
    "NO_ID",
    "bytes_as_text",
    "cast_or_none",
    "column",
    "is_bytes",
    "is_string",
    "labels",
    "not_utf8",
    "numbers",
    "parsed_numbers",
    "spelled_numbers",
    "text_lists",
    "texts",
]

Bool = npt.NDArray[np.bool_]

NO_ID: Final = "allowed are strings and integers, decimals of scale 0 and UUIDs: write it as one of them"
"""Hint for a value of a type that ids cannot have."""

_NUMBER: Final = r"^[+-]?(?i:(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan|nan\(\w*\))$"
"""Texts that Arrow reads as doubles."""

_BYTES: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
_NUMERIC: Final = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
_FEW: Final = 8
"""Texts that are tried before a whole column is cast."""
_SHOWN: Final = 40
_UUID_BYTES: Final = 16
_DIGITS: Final = np.array([f"{byte:02x}".encode() for byte in range(256)], "S2").view(np.uint8).reshape(256, 2)
_HYPHENS: Final = (8, 12, 16, 20)
"""Digits of a UUID that follow a hyphen (RFC 9562)."""


def column(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array without dictionaries; all null if the table lacks it."""
    if name not in table.column_names:
        return pa.nulls(table.num_rows)
    found = table.column(name).combine_chunks()
    if isinstance(found.type, pa.BaseExtensionType) and not _is_uuid(found.type):
        found = found.storage
    if not pa.types.is_dictionary(found.type):
        return found
    # Nested values are refused by their type: decoding would copy a large value into every row that repeats it.
    return found if pa.types.is_nested(found.type.value_type) else found.dictionary_decode()


def texts(values: pa.Array, name: str) -> pa.Array:
    """Return the canonical spelling of each id as strings (n,).

    Integers and decimals of scale 0 become their decimal digits, UUIDs their canonical text, bytes the text that they
    encode (`not_utf8` marks invalid ones). Raises `TypeError`, which shows the first value, for other types.
    """
    found = _texts(values)
    if found is None:
        raise TypeError(f"column {name} is of type {values.type}; {NO_ID}{_example(values)}")
    return found


def labels(values: pa.Array, name: str) -> pa.Array:
    """Return strings as `texts` does; booleans become ``true`` and ``false``."""
    return values.cast(pa.string()) if pa.types.is_boolean(values.type) else texts(values, name)


def text_lists(values: pa.Array, name: str) -> pa.Array:
    """Return lists of strings, spelled as `texts` does; a single value becomes a list of one."""
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = kind.value_type.value_type if pa.types.is_dictionary(kind.value_type) else kind.value_type
        if is_string(inner) or pa.types.is_integer(inner) or pa.types.is_null(inner):
            return values.cast(CATEGORICAL_TYPE)
        flat = values.flatten()
        if (found := _texts(flat.dictionary_decode() if pa.types.is_dictionary(flat.type) else flat)) is not None:
            lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
            return pa.ListArray.from_arrays(_offsets(lengths), found, mask=values.is_null())
    elif (found := _texts(values)) is not None:
        return pa.ListArray.from_arrays(_offsets(np.ones(len(values), np.int64)), found, mask=values.is_null())
    raise TypeError(f"column {name} is of type {kind}; allowed are strings, integers and lists of them")


def numbers(values: pa.Array, name: str) -> pa.Array:
    """Return doubles; decimals become the nearest one."""
    kind = values.type
    if any(is_kind(kind) for is_kind in _NUMERIC):
        return pc.cast(values, pa.float64(), safe=False)
    raise TypeError(f"column {name} is of type {kind}; allowed are numbers")


def parsed_numbers(values: pa.Array, name: str) -> tuple[pa.Array, Bool]:
    """Return doubles (n,) of numbers or numeric texts, and a mask of texts that are no numbers."""
    if is_string(values.type) or is_bytes(values.type):
        return spelled_numbers(texts(values, name))
    return numbers(values, name), np.zeros(len(values), np.bool_)


def spelled_numbers(values: pa.Array) -> tuple[pa.Array, Bool]:
    """Return the numbers (n,) in strings, ignoring surrounding blanks, and a mask of strings that are no numbers."""
    if (found := cast_or_none(values, pa.float64())) is not None:
        return found, np.zeros(len(values), np.bool_)
    spelled = pc.ascii_trim_whitespace(values)
    is_number = pc.match_substring_regex(spelled, _NUMBER)
    unread: Bool = pc.fill_null(pc.invert(is_number), fill_value=False).to_numpy(zero_copy_only=False)
    return pc.if_else(is_number, spelled, None).cast(pa.float64()), unread


def cast_or_none(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return strings cast to a type, or None if one of them does not fit."""
    # Arrow takes ten times as long to refuse a text as to read one: try the first few before the whole column.
    try:
        values[:_FEW].cast(kind)
        return values.cast(kind)
    except pa.ArrowInvalid:
        return None


def is_string(kind: pa.DataType) -> bool:
    """Return whether a type is a string type."""
    return any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a type is a binary type, whose values need not be text."""
    return any(is_kind(kind) for is_kind in _BYTES)


def bytes_as_text(values: pa.Array) -> pa.Array:
    """Return bytes as strings, unchecked: see `not_utf8`."""
    return values.cast(pa.binary()).view(pa.string())


def not_utf8(texts: pa.Array) -> Bool:
    """Mark the strings whose bytes are not UTF-8, as Parquet does not guarantee it."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return np.array([not _is_utf8(raw) for raw in texts.cast(pa.binary()).to_pylist()], np.bool_)
    return np.zeros(len(texts), np.bool_)


def _texts(values: pa.Array) -> pa.Array | None:
    """Return strings, or None for a type without a canonical text for each value."""
    kind = values.type
    if is_string(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return values.cast(pa.string())
    if is_bytes(kind):
        return bytes_as_text(values)
    if _is_uuid(kind):
        return _uuids(values.storage)
    if pa.types.is_decimal(kind) and kind.scale <= 0:
        # With a negative scale, the text would have an exponent.
        return (values.cast(pa.decimal256(76, 0)) if kind.scale else values).cast(pa.string())
    return None


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.UuidType)


def _uuids(values: pa.Array) -> pa.Array:
    """Return the canonical texts of UUIDs of 16 bytes."""
    raw = np.frombuffer(values.buffers()[1] or b"", np.uint8)[_UUID_BYTES * values.offset :][
        : _UUID_BYTES * len(values)
    ]
    spelled = np.insert(_DIGITS[raw].reshape(len(values), 2 * _UUID_BYTES), _HYPHENS, ord("-"), axis=1)
    width = 2 * _UUID_BYTES + len(_HYPHENS)
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(spelled.tobytes())])
    return pc.if_else(values.is_valid(), bytes_as_text(fixed), None)


def _offsets(lengths: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def _example(values: pa.Array) -> str:
    """Return a clause for an error that shows the first non-null value, "" without one."""
    first = next((str(value) for value in values if value.is_valid), "")
    return f"; the first value is {first[:_SHOWN]}" if first and not pa.types.is_nested(values.type) else ""


def _is_utf8(raw: bytes | None) -> bool:
    try:
        (raw or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
