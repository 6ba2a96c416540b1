"""Decode raw rows of any format into typed columns, and separate rows that do not decode."""

import codecs
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from weir.contracts.base import columns
from weir.contracts.interactions import arrow_columns
from weir.contracts.interactions.features import lists_of_cells
from weir.readers.blocks import Bool, Fault, Int64, Lines, Reason, TableRows
from weir.readers.config import LogConfig
from weir.readers.delimited import read_columns
from weir.readers.features import Features, features_of_lines, features_of_table
from weir.readers.lines import MAX_LINE_BYTES
from weir.readers.timestamps import Millis, arrow_millis, mixed_millis

__all__ = [
    "TEXTS",
    "Decoded",
    "Decoder",
    "Faults",
    "LineDecoder",
    "absent",
    "cell",
    "decode_rows",
    "decode_table",
    "without_blanks",
]


Faults = list[tuple[int, Fault, bytes] | tuple[int, Fault, bytes, int | None]]
"""Refused rows: position, fault, raw bytes, and the event time in ms if known."""

TEXTS = (columns.USER_ID, columns.ITEM_ID, columns.EVENT_ID, columns.EVENT_TYPE, columns.ATTRIBUTION_TOKEN)
"""The text fields of `Decoded`."""


@dataclass
class Decoded:
    """Columns of n decoded rows, and the rows `refused` in decoding.

    `texts` are the text fields by name; `weights` are numbers, and a mask of values that are no numbers; `timeless`
    marks rows without a timestamp. `value(field, row)` returns a value as the log has it, `raw(row)` the row's bytes.
    """

    texts: dict[str, pa.Array]
    weights: tuple[pa.Array, Bool]
    millis: Millis
    positions: Int64
    timeless: Bool
    value: Callable[[str, int], Any]
    raw: Callable[[int], bytes]
    refused: Faults = field(default_factory=list)
    features: Features = field(default_factory=dict)


_NAMED: Final = 12
_LONGEST: Final = 40


def absent(field: str, names: Sequence[str], where: str) -> str:
    """Return a clause about a field that `where` (file or line) lacks: the `names` there, and the setting to change."""
    shown = [name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..." for name in names[:_NAMED]]
    listed = ", ".join([*shown, "..."] if len(names) > _NAMED else shown) or "none"
    return f"the {where} has {listed}: name the right one with pipeline.columns.{field}"


def without_blanks(lines: list[bytes], positions: Int64) -> tuple[list[bytes], Int64]:
    """Return the lines that are not blank, and their positions."""
    if all(lines) and not any(map(bytes.isspace, lines)):
        return lines, positions
    kept = np.array([bool(line) and not line.isspace() for line in lines], np.bool_)
    return [line for line, keep in zip(lines, kept, strict=True) if keep], positions[kept]


_SPELLED: Final = {columns.EVENT_TYPE: arrow_columns.labels}
"""Field -> conversion of its column to texts, if not that of ids."""


def decode_table(content: TableRows, config: LogConfig, required: Sequence[str]) -> Decoded | Fault:
    """Return the columns of a table, or the fault that all rows share: a missing, repeated or mistyped column."""
    table, spelling = content.table, config.columns.model_dump()
    names = [*table.column_names, *content.others]
    if (fault := _shared_fault(names, table.num_rows, config, required)) is not None:
        return fault
    arrays = {name: arrow_columns.column(table, spelling[name]) for name in spelling}
    try:
        texts = {name: _SPELLED.get(name, arrow_columns.texts)(arrays[name], spelling[name]) for name in TEXTS}
        weights = arrow_columns.parsed_numbers(arrays[columns.WEIGHT], spelling[columns.WEIGHT])
        times = arrays[columns.TIMESTAMP]
        timeless = times.is_null().to_numpy(zero_copy_only=False)
        millis = _millis(times, spelling[columns.TIMESTAMP], config)
        found = features_of_table(table, config.features)
    except TypeError as error:
        return Fault.of_all(Reason.WRONG_TYPE, str(error), table.num_rows)

    def value(name: str, row: int) -> Any:
        return cell(arrays[name][row])

    def raw(row: int) -> bytes:
        cells = {name: cell(column[row]) for name, column in zip(table.column_names, table.columns, strict=True)}
        return msgspec.json.encode(cells, enc_hook=str)

    return Decoded(texts, weights, millis, content.positions, timeless, value, raw, features=found)


def _shared_fault(names: Sequence[str], rows: int, config: LogConfig, required: Sequence[str]) -> Fault | None:
    spelling = config.columns.model_dump()
    for name in required:
        if spelling[name] not in names:
            message = f"column {spelling[name]} is missing; {absent(name, names, 'file')}"
            return Fault.of_all(Reason.MISSING_FIELD, message, rows)
    for name in (*spelling.values(), *config.features.all):
        if (count := names.count(name)) > 1:
            message = f"column {name} is in the file {count} times; one is allowed"
            return Fault.of_all(Reason.REPEATED_FIELD, message, rows)
    return None


def decode_rows(content: Lines, config: LogConfig, required: Sequence[str]) -> Decoded | Fault:
    """Return the columns of rows of values, or the fault that all rows share; an empty value counts as absent."""
    assert content.header is not None  # noqa: S101 - without one the lines are JSON
    names = content.header.names
    if (fault := _shared_fault(names, len(content.lines), config, required)) is not None:
        return fault
    lines, positions = without_blanks(content.lines, content.positions)
    table, wrong = read_columns(lines, content.header, {*config.columns.model_dump().values(), *config.features.all})
    for name in {*config.features.dense} & {*table.column_names}:
        numbers, unread = arrow_columns.spelled_numbers(table[name].combine_chunks())
        said = {row: f"{name} is {table[name][row]}, which is no number" for row in np.flatnonzero(unread).tolist()}
        wrong = {row: Fault(Reason.WRONG_TYPE, sentence) for row, sentence in said.items()} | wrong
        table = table.set_column(table.column_names.index(name), name, numbers)
    for name in {*config.features.categorical} & {*table.column_names}:
        lists = lists_of_cells(table[name].combine_chunks())
        table = table.set_column(table.column_names.index(name), name, lists)
    kept = np.setdiff1d(np.arange(len(lines)), [*wrong])
    refused: Faults = [(int(positions[row]), wrong[row], lines[row]) for row in sorted(wrong)]
    decoded = decode_table(TableRows(table.take(kept), positions[kept]), config, required)
    if isinstance(decoded, Fault):
        return decoded
    return replace(decoded, raw=[lines[row] for row in kept].__getitem__, refused=refused)


def _millis(values: pa.Array, name: str, config: LogConfig) -> Millis:
    try:
        return arrow_millis(values, config.timestamp_unit, config.time_zone)
    except TypeError as error:
        raise TypeError(f"column {name} {error}") from error


def cell(value: pa.Scalar) -> Any:
    """Return a value of a table in readable form, whatever its bytes are."""
    if isinstance(value, pa.DictionaryScalar) and value.is_valid:
        return cell(value.value)
    kind = value.type
    if value.is_valid and (arrow_columns.is_string(kind) or arrow_columns.is_bytes(kind)):
        # Parquet does not guarantee UTF-8.
        return value.as_buffer().to_pybytes().decode(errors="backslashreplace")
    if value.is_valid and isinstance(value, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
        return [cell(one) for one in value.values]
    try:
        return value.as_py()
    except (ValueError, OverflowError, ArithmeticError):
        # Times beyond the range of Python's types.
        return value.cast(pa.int64(), safe=False).as_py() if pa.types.is_temporal(kind) else str(kind)


_IDS = (columns.USER_ID, columns.ITEM_ID)
_WRONG_KINDS: dict[type, str] = {float: "a floating-point number", bool: "a boolean"}
"""Type -> name in messages, of values that cannot be ids."""

_OPENING, _CLOSING = b"{}"
_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)


class Decoder:
    """Decoder of raw rows of any format; with `needs_time=False` rows may lack a timestamp."""

    def __init__(self, config: LogConfig, *, needs_time: bool = True) -> None:
        self._config = config
        self._required = (*_IDS, columns.TIMESTAMP) if needs_time else _IDS
        self._lines = LineDecoder(config, self._required)

    def decode(self, content: Lines | TableRows) -> Decoded | Fault:
        """Return the columns of the rows, or the fault that all rows share."""
        if isinstance(content, TableRows):
            return decode_table(content, self._config, self._required)
        if content.header is None:
            return self._lines.decode(content)
        return decode_rows(content, self._config, self._required)


class LineDecoder:
    """Decoder of JSON lines, strictly typed: ids are strings or integers, since fractions have several spellings.

    Event types may be booleans, and weights numeric texts.
    """

    def __init__(self, config: LogConfig, required: Sequence[str]) -> None:
        self._unit, self._zone = config.timestamp_unit, config.time_zone
        self._features = features = config.features
        self._names = config.columns.model_dump()
        self._required = required
        types: dict[str, Any] = dict.fromkeys(TEXTS, str | int) | {columns.EVENT_TYPE: str | int | bool}
        types |= {columns.TIMESTAMP: int | float | str, columns.WEIGHT: float | str}
        fields = [(name, types[name]) if name in required else (name, types[name] | None, None) for name in self._names]
        # `LogColumns` has required fields first, as a struct demands.
        self._fields = [*self._names, *features.all]
        kinds = [str | list[str] | None] * len(features.categorical) + [float | None] * len(features.dense)
        fields += [(f"feature_{number}", kind, None) for number, kind in enumerate(kinds)]
        spelling = self._names | {f"feature_{number}": name for number, name in enumerate(features.all)}
        self._read = [*spelling.values()]
        self._type = msgspec.defstruct("Line", fields, rename=spelling, gc=False)
        self._decoder = msgspec.json.Decoder(self._type)

    def decode(self, content: Lines) -> Decoded:
        """Return the columns of the lines that decode, with the other lines as `refused`; blank lines are skipped."""
        found = content.lines
        if found and content.positions[0] == 0:
            # Some programs start a file with a byte order mark, which does not belong to its first line.
            found = [found[0].removeprefix(codecs.BOM_UTF8), *found[1:]]
        lines, positions = without_blanks(found, content.positions)
        refused: Faults = []
        values = self._all_at_once(lines)
        if values is None:
            values, good, refused = self._one_by_one(lines, positions)
            lines, positions = [lines[row] for row in good], positions[good]
        by_name: dict[str, Sequence[Any]] = dict.fromkeys(self._fields, ())
        by_name |= zip(self._fields, zip(*map(msgspec.structs.astuple, values), strict=True), strict=False)
        times = by_name[columns.TIMESTAMP]
        return Decoded(
            {name: _texts(by_name[name]) for name in TEXTS},
            _weights(by_name[columns.WEIGHT]),
            mixed_millis(times, self._unit, self._zone),
            positions,
            np.fromiter((time is None for time in times), np.bool_, len(lines)),
            lambda name, row: by_name[name][row],
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
        # Two values on one line would shift all later rows. No value can span two lines: each line ends in } and starts
        # with {, and objects never continue so.
        return values if len(values) == len(lines) else None

    def _one_by_one(self, lines: list[bytes], positions: Int64) -> tuple[list[Any], list[int], Faults]:
        values, good, refused = [], [], Faults()
        for row, line in enumerate(lines):
            try:
                if len(line) > MAX_LINE_BYTES:
                    fault = Fault(Reason.LINE_TOO_LONG, f"a line may have {MAX_LINE_BYTES} bytes, this one has more")
                    refused.append((int(positions[row]), fault, line))
                    continue
                values.append(self._decoder.decode(line))
                good.append(row)
            except _ERRORS as error:
                fault = self._explain(line, error)
                is_text_wrong = fault.reason in (Reason.MALFORMED_JSON, Reason.NOT_UTF8)
                found = self._without_others(line, fault) if is_text_wrong else fault
                if isinstance(found, Fault):
                    refused.append((int(positions[row]), found, line))
                else:
                    values.append(found)
                    good.append(row)
        return values, good, refused

    def _without_others(self, line: bytes, fault: Fault) -> Any:
        """Return the fields of a line whose `fault` lies in unread fields only, or else the fault of the line.

        Some programs write what JSON does not have: NaN, infinity, lone surrogates, invalid UTF-8. Such a
        value only harms its own field.
        """
        try:
            value = json.loads(line.decode(errors="surrogateescape"))
            found = {name: value[name] for name in self._read if name in value}
            # Raises for invalid text in the read fields.
            plain = msgspec.json.encode(found)
        except (*_ERRORS, TypeError, OverflowError):
            return fault
        try:
            return msgspec.convert(found, self._type)
        except _ERRORS as error:
            return self._explain(plain, error)

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
                hint = "" if self._names[name] in value else f"; {absent(name, [*value], 'line')}"
                return Fault(Reason.MISSING_FIELD, f"{self._names[name]} is missing or null{hint}")
        raw = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        for name in (*_IDS, columns.EVENT_ID, columns.EVENT_TYPE):
            kind = _WRONG_KINDS.get(type(value.get(self._names[name])))
            if kind and not (kind == "a boolean" and name == columns.EVENT_TYPE):
                said = bytes(raw[self._names[name]]).decode()
                return Fault(Reason.WRONG_TYPE, f"{self._names[name]} is {said:.100}, {kind}; {arrow_columns.NO_ID}")
        return Fault(Reason.WRONG_TYPE, str(error))


def _texts(values: Sequence[str | int | None]) -> pa.Array:
    """Return strings, spelled as `weir.contracts.interactions.arrow_columns.labels` does."""
    try:
        return pa.array(values, pa.string())
    except pa.ArrowTypeError:
        return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _weights(values: Sequence[float | str | None]) -> tuple[pa.Array, Bool]:
    """Return numbers and a mask of non-numbers, as `weir.contracts.interactions.arrow_columns.parsed_numbers` does."""
    try:
        return pa.array(values, pa.float64()), np.zeros(len(values), np.bool_)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        spelled = (value if value is None or isinstance(value, str) else repr(value) for value in values)
        return arrow_columns.spelled_numbers(pa.array(spelled, pa.string()))


def _is_braced(line: bytes) -> bool:
    if line[0] != _OPENING or line[-1] != _CLOSING:
        line = line.strip()
    return line[0] == _OPENING and line[-1] == _CLOSING
