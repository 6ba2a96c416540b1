"""Raw rows to typed columns; rows that do not decode are kept apart."""

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from contracts import columns
from logs import arrow_columns
from logs.blocks import Int64, Lines, TableRows
from logs.config import LogConfig, TimestampUnit
from logs.faults import Fault, Reason
from logs.features import Features, features_of_lines, features_of_table
from logs.lines import MAX_LINE_BYTES
from logs.timestamps import Millis, arrow_millis, mixed_millis

__all__ = ["Decoded", "Decoder", "Faults", "LineDecoder"]

Faults = list[tuple[int, Fault, bytes]]

_TEXTS = (columns.USER_ID, columns.ITEM_ID, columns.EVENT_ID, columns.EVENT_TYPE, columns.ATTRIBUTION_TOKEN)
_IDS = (columns.USER_ID, columns.ITEM_ID)
_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)


@dataclass
class Decoded:
    """Columns of n rows.

    `timeless` marks rows without a timestamp, `raw` returns a row's bytes, `refused` are the rows that did not decode.
    """

    texts: dict[str, pa.Array]
    weights: pa.Array
    millis: Millis
    positions: Int64
    timeless: npt.NDArray[np.bool_]
    raw: Callable[[int], bytes]
    refused: Faults = field(default_factory=list)
    features: Features = field(default_factory=dict)


class Decoder:
    """Decodes raw rows of any format; without `needs_time` rows may lack a timestamp."""

    def __init__(self, config: LogConfig, *, needs_time: bool = True) -> None:
        self._config = config
        self._required = (*_IDS, columns.TIMESTAMP) if needs_time else _IDS
        self._lines = LineDecoder(config, self._required)

    def decode(self, content: Lines | TableRows) -> Decoded | Fault:
        """Return the columns of the rows, or the fault that all of them share."""
        if isinstance(content, Lines):
            return self._lines.decode(content)
        return _decode_table(content, self._config, self._required)


class LineDecoder:
    """Decodes JSON lines, strictly typed: an id that is a number is a fault of the producer."""

    def __init__(self, config: LogConfig, required: Sequence[str]) -> None:
        self._unit = config.timestamp_unit
        self._features = features = config.item_features
        self._names = config.columns.model_dump()
        self._required = required
        types: dict[str, Any] = {columns.TIMESTAMP: int | float | str, columns.WEIGHT: float}
        types |= dict.fromkeys(_TEXTS, str)
        fields = [(name, types[name]) if name in required else (name, types[name] | None, None) for name in self._names]
        # Required fields come first in `LogColumns`, as a struct demands.
        self._fields = [*self._names, *features.all]
        kinds = [str | list[str] | None] * len(features.categorical) + [float | None] * len(features.dense)
        fields += [(f"feature_{number}", kind, None) for number, kind in enumerate(kinds)]
        spelling = self._names | {f"feature_{number}": name for number, name in enumerate(features.all)}
        self._decoder = msgspec.json.Decoder(msgspec.defstruct("Line", fields, rename=spelling, gc=False))

    def decode(self, content: Lines) -> Decoded:
        """Return the columns of the lines that decode, and the faults of the others; blank lines count for nothing."""
        found = content.lines
        if found and content.positions[0] == 0:
            # Some programs begin a file with a byte order mark, which is no part of its first line.
            found = [found[0].removeprefix(codecs.BOM_UTF8), *found[1:]]
        kept = np.array([bool(line) and not line.isspace() for line in found], np.bool_)
        lines = [line for line, keep in zip(found, kept, strict=True) if keep]
        positions = content.positions[kept]
        refused: Faults = []
        values = self._all_at_once(lines)
        if values is None:
            values, good, refused = self._one_by_one(lines, positions)
            lines, positions = [lines[row] for row in good], positions[good]
        by_name: dict[str, Sequence[Any]] = dict.fromkeys(self._fields, ())
        by_name |= zip(self._fields, zip(*map(msgspec.structs.astuple, values), strict=True), strict=False)
        times = by_name[columns.TIMESTAMP]
        return Decoded(
            {name: pa.array(by_name[name], pa.string()) for name in _TEXTS},
            pa.array(by_name[columns.WEIGHT], pa.float64()),
            mixed_millis(times, self._unit),
            positions,
            np.fromiter((time is None for time in times), np.bool_, len(lines)),
            lines.__getitem__,
            refused,
            features_of_lines(by_name, self._features),
        )

    def _all_at_once(self, lines: list[bytes]) -> list[Any] | None:
        if max(map(len, lines), default=0) > MAX_LINE_BYTES or not all(map(_is_braced, lines)):
            return None
        try:
            values = self._decoder.decode_lines(b"\n".join(lines))
        except _ERRORS:
            return None
        # Two values on one line would shift all that follow. One value cannot take two lines: between } and {, where
        # lines end and start, no object goes on.
        return values if len(values) == len(lines) else None

    def _one_by_one(self, lines: list[bytes], positions: Int64) -> tuple[list[Any], list[int], Faults]:
        values, good, refused = [], [], []
        for row, line in enumerate(lines):
            try:
                if len(line) > MAX_LINE_BYTES:
                    fault = Fault(Reason.LINE_TOO_LONG, f"a line may have {MAX_LINE_BYTES} bytes, this one has more")
                    refused.append((int(positions[row]), fault, line))
                    continue
                values.append(self._decoder.decode(line))
                good.append(row)
            except _ERRORS as error:
                refused.append((int(positions[row]), self._explain(line, error), line))
        return values, good, refused

    def _explain(self, line: bytes, error: Exception) -> Fault:
        try:
            line.decode()
            value = msgspec.json.decode(line)
        except UnicodeDecodeError as undecodable:
            return Fault(Reason.NOT_UTF8, str(undecodable))
        except _ERRORS as malformed:
            return Fault(Reason.MALFORMED_JSON, str(malformed))
        if not isinstance(value, dict):
            return Fault(Reason.NOT_AN_OBJECT, f"expected a JSON object, got {type(value).__name__}")
        for name in self._required:
            if value.get(self._names[name]) is None:
                return Fault(Reason.MISSING_FIELD, f"{self._names[name]} is missing or null")
        return Fault(Reason.WRONG_TYPE, str(error))


def _is_braced(line: bytes) -> bool:
    stripped = line.strip()
    return stripped[:1] == b"{" and stripped[-1:] == b"}"


def _decode_table(content: TableRows, config: LogConfig, required: Sequence[str]) -> Decoded | Fault:
    """Return the columns of a table, or the fault that all its rows share: a column missing, repeated or mistyped.

    Ids may be integers, which become their decimal spelling: unlike in JSON, the schema says what they are.
    """
    table, spelling, features = content.table, config.columns.model_dump(), config.item_features
    for name in required:
        if spelling[name] not in table.column_names:
            message = f"column {spelling[name]} is missing; the file has {', '.join(table.column_names) or 'none'}"
            return Fault(Reason.MISSING_FIELD, f"{message} (all {table.num_rows} rows refused)")
    for name in (*spelling.values(), *features.all):
        if (count := table.column_names.count(name)) > 1:
            message = f"column {name} is in the file {count} times; one is allowed"
            return Fault(Reason.REPEATED_FIELD, f"{message} (all {table.num_rows} rows refused)")
    arrays = {name: arrow_columns.column(table, spelling[name]) for name in spelling}
    try:
        texts = {name: arrow_columns.texts(arrays[name], spelling[name]) for name in _TEXTS}
        weights = arrow_columns.numbers(arrays[columns.WEIGHT], spelling[columns.WEIGHT])
        times = arrays[columns.TIMESTAMP]
        timeless = times.is_null().to_numpy(zero_copy_only=False)
        millis = _millis(times, spelling[columns.TIMESTAMP], config.timestamp_unit)
        found = features_of_table(table, features)
    except TypeError as error:
        return Fault(Reason.WRONG_TYPE, f"{error} (all {table.num_rows} rows refused)")

    def raw(row: int) -> bytes:
        cells = {name: _cell(column[row]) for name, column in zip(table.column_names, table.columns, strict=True)}
        return msgspec.json.encode(cells, enc_hook=str)

    return Decoded(texts, weights, millis, content.positions, timeless, raw, features=found)


def _millis(values: pa.Array, name: str, unit: TimestampUnit) -> Millis:
    try:
        return arrow_millis(values, unit)
    except TypeError as error:
        raise TypeError(f"column {name} {error}") from error


def _cell(value: pa.Scalar) -> Any:
    if value.is_valid and (pa.types.is_string(value.type) or pa.types.is_large_string(value.type)):
        # Parquet does not promise that text is UTF-8.
        return value.as_buffer().to_pybytes().decode(errors="backslashreplace")
    if value.is_valid and isinstance(value, pa.DictionaryScalar):
        return _cell(value.value)
    if value.is_valid and isinstance(value, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
        return [_cell(one) for one in value.values]
    try:
        return value.as_py()
    except (ValueError, OverflowError, ArithmeticError):
        # Times that Python's types do not hold.
        return str(value.cast(pa.int64(), safe=False)) if pa.types.is_temporal(value.type) else str(value.type)
