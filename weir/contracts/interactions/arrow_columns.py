"""Columns of a table in the types that the pipeline works with; a type that does not fit is a `TypeError`.

What a value means does not depend on the format that it comes from: `texts` says what an id is.
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
"""What to say where a value is of a type that ids do not have."""

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
"""Texts that are tried before a column is cast."""
_SHOWN: Final = 40
_UUID_BYTES: Final = 16
_DIGITS: Final = np.array([f"{byte:02x}".encode() for byte in range(256)], "S2").view(np.uint8).reshape(256, 2)
_HYPHENS: Final = (8, 12, 16, 20)
"""Before which digits of a UUID a hyphen is written (RFC 9562)."""


def column(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array, without dictionaries; all null where the table has none of this name."""
    if name not in table.column_names:
        return pa.nulls(table.num_rows)
    found = table.column(name).combine_chunks()
    if isinstance(found.type, pa.BaseExtensionType) and not _is_uuid(found.type):
        found = found.storage
    if not pa.types.is_dictionary(found.type):
        return found
    # Rows may repeat a large value that is refused by its type: that must not take its room once per row.
    return found if pa.types.is_nested(found.type.value_type) else found.dictionary_decode()


def texts(values: pa.Array, name: str) -> pa.Array:
    """Return strings (n,), the one spelling of each id.

    Integers and decimals of scale 0 become their decimal digits, UUIDs their canonical text, bytes the text that they
    hold; `not_utf8` marks those that hold none. Raises `TypeError` for another type, which names the first value.
    """
    found = _texts(values)
    if found is None:
        raise TypeError(f"column {name} is of type {values.type}; {NO_ID}{_example(values)}")
    return found


def labels(values: pa.Array, name: str) -> pa.Array:
    """Return strings as `texts` does; booleans become ``true`` and ``false``."""
    return values.cast(pa.string()) if pa.types.is_boolean(values.type) else texts(values, name)


def text_lists(values: pa.Array, name: str) -> pa.Array:
    """Return lists of strings; a single value becomes a list of one. Values are spelled as `texts` does."""
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
    """Return doubles (n,) as `numbers` does, or those that texts spell, and which texts spell no number."""
    if is_string(values.type) or is_bytes(values.type):
        return spelled_numbers(texts(values, name))
    return numbers(values, name), np.zeros(len(values), np.bool_)


def spelled_numbers(values: pa.Array) -> tuple[pa.Array, Bool]:
    """Return the numbers (n,) that strings spell, blanks around them aside, and which strings spell none."""
    if (found := cast_or_none(values, pa.float64())) is not None:
        return found, np.zeros(len(values), np.bool_)
    spelled = pc.ascii_trim_whitespace(values)
    is_number = pc.match_substring_regex(spelled, _NUMBER)
    unread: Bool = pc.fill_null(pc.invert(is_number), fill_value=False).to_numpy(zero_copy_only=False)
    return pc.if_else(is_number, spelled, None).cast(pa.float64()), unread


def cast_or_none(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return texts as values of a type that they spell, or None where one of them spells none."""
    # To refuse a text takes Arrow ten times as long as to read one: the first ones tell what a column holds.
    try:
        values[:_FEW].cast(kind)
        return values.cast(kind)
    except pa.ArrowInvalid:
        return None


def is_string(kind: pa.DataType) -> bool:
    """Say whether a type is one of strings."""
    return any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def is_bytes(kind: pa.DataType) -> bool:
    """Say whether a type is one of bytes, of which nothing says that they are text."""
    return any(is_kind(kind) for is_kind in _BYTES)


def bytes_as_text(values: pa.Array) -> pa.Array:
    """Return bytes as strings, unchecked: see `not_utf8`."""
    return values.cast(pa.binary()).view(pa.string())


def not_utf8(texts: pa.Array) -> Bool:
    """Mark the strings whose bytes are not UTF-8: Parquet does not promise that they are."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return np.array([not _is_utf8(raw) for raw in texts.cast(pa.binary()).to_pylist()], np.bool_)
    return np.zeros(len(texts), np.bool_)


def _texts(values: pa.Array) -> pa.Array | None:
    """Return strings, or None for a type that has no one text for each value."""
    kind = values.type
    if is_string(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return values.cast(pa.string())
    if is_bytes(kind):
        return bytes_as_text(values)
    if _is_uuid(kind):
        return _uuids(values.storage)
    if pa.types.is_decimal(kind) and kind.scale <= 0:
        # With a scale below 0, the text would have an exponent.
        return (values.cast(pa.decimal256(76, 0)) if kind.scale else values).cast(pa.string())
    return None


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.UuidType)


def _uuids(values: pa.Array) -> pa.Array:
    """Return the canonical texts of UUIDs, which are 16 bytes each."""
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
    """Return the first value that is not null, or nothing."""
    first = next((str(value) for value in values if value.is_valid), "")
    return f"; the first value is {first[:_SHOWN]}" if first and not pa.types.is_nested(values.type) else ""


def _is_utf8(raw: bytes | None) -> bool:
    try:
        (raw or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
