"""Tables to typed columns: those of Parquet files, and rows of text, whose numbers are still to be read."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from weir.contracts import arrow_columns, columns
from weir.contracts.features import lists_of_cells
from weir.readers.blocks import Lines, TableRows
from weir.readers.config import LogConfig
from weir.readers.decoded import TEXTS, Decoded, Faults
from weir.readers.delimited import read_columns
from weir.readers.faults import Fault, Reason
from weir.readers.features import features_of_table
from weir.readers.fields import absent, without_blanks
from weir.readers.timestamps import Millis, arrow_millis

__all__ = ["cell", "decode_rows", "decode_table"]

_SPELLED: Final = {columns.EVENT_TYPE: arrow_columns.labels}
"""Field -> how its column becomes texts, where that is not as ids do."""


def decode_table(content: TableRows, config: LogConfig, required: Sequence[str]) -> Decoded | Fault:
    """Return the columns of a table, or the fault that all its rows share: a column missing, repeated or mistyped."""
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
    """Return the columns of rows of values, or the fault that all rows share; an empty value is none at all."""
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
    """Return a value of a table for people to read, whatever its bytes are."""
    if isinstance(value, pa.DictionaryScalar) and value.is_valid:
        return cell(value.value)
    kind = value.type
    if value.is_valid and (arrow_columns.is_string(kind) or arrow_columns.is_bytes(kind)):
        # Parquet does not promise that text is UTF-8.
        return value.as_buffer().to_pybytes().decode(errors="backslashreplace")
    if value.is_valid and isinstance(value, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
        return [cell(one) for one in value.values]
    try:
        return value.as_py()
    except (ValueError, OverflowError, ArithmeticError):
        # Times that Python's types do not hold.
        return value.cast(pa.int64(), safe=False).as_py() if pa.types.is_temporal(kind) else str(kind)
