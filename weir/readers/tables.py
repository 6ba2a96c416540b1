"""Tables to typed columns: those of Parquet files, and rows of text, whose numbers are still to be read."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts import arrow_columns, columns
from weir.contracts.features import lists_of_cells
from weir.readers.blocks import Bool, Lines, TableRows
from weir.readers.config import LogConfig
from weir.readers.decoded import TEXTS, Decoded, Faults
from weir.readers.delimited import read_columns
from weir.readers.faults import Fault, Reason
from weir.readers.features import features_of_table
from weir.readers.fields import absent, without_blanks
from weir.readers.timestamps import Millis, arrow_millis

__all__ = ["decode_rows", "decode_table"]


def decode_table(content: TableRows, config: LogConfig, required: Sequence[str]) -> Decoded | Fault:
    """Return the columns of a table, or the fault that all its rows share: a column missing, repeated or mistyped."""
    table, spelling = content.table, config.columns.model_dump()
    names = [*table.column_names, *content.others]
    if (fault := _shared_fault(names, table.num_rows, config, required)) is not None:
        return fault
    arrays = {name: arrow_columns.column(table, spelling[name]) for name in spelling}
    try:
        texts = {name: arrow_columns.texts(arrays[name], spelling[name]) for name in TEXTS}
        weights = arrow_columns.numbers(arrays[columns.WEIGHT], spelling[columns.WEIGHT])
        times = arrays[columns.TIMESTAMP]
        timeless = times.is_null().to_numpy(zero_copy_only=False)
        millis = _millis(times, spelling[columns.TIMESTAMP], config)
        found = features_of_table(table, config.features)
    except TypeError as error:
        return Fault(Reason.WRONG_TYPE, f"{error} (all {table.num_rows} rows refused)")

    def raw(row: int) -> bytes:
        cells = {name: _cell(column[row]) for name, column in zip(table.column_names, table.columns, strict=True)}
        return msgspec.json.encode(cells, enc_hook=str)

    return Decoded(texts, weights, millis, content.positions, timeless, raw, features=found)


def _shared_fault(names: Sequence[str], rows: int, config: LogConfig, required: Sequence[str]) -> Fault | None:
    spelling = config.columns.model_dump()
    for name in required:
        if spelling[name] not in names:
            message = f"column {spelling[name]} is missing; {absent(name, names, 'file')}"
            return Fault(Reason.MISSING_FIELD, f"{message} (all {rows} rows refused)")
    for name in (*spelling.values(), *config.features.all):
        if (count := names.count(name)) > 1:
            message = f"column {name} is in the file {count} times; one is allowed"
            return Fault(Reason.REPEATED_FIELD, f"{message} (all {rows} rows refused)")
    return None


def decode_rows(content: Lines, config: LogConfig, required: Sequence[str]) -> Decoded | Fault:
    """Return the columns of rows of values, or the fault that all rows share; an empty value is none at all."""
    assert content.header is not None  # noqa: S101 - without one the lines are JSON
    names = content.header.names
    if (fault := _shared_fault(names, len(content.lines), config, required)) is not None:
        return fault
    lines, positions = without_blanks(content.lines, content.positions)
    table, wrong = read_columns(lines, content.header, {*config.columns.model_dump().values(), *config.features.all})
    for name in {config.columns.weight, *config.features.dense} & {*table.column_names}:
        numbers, unread = _parsed(table[name].combine_chunks())
        faults = {row: Fault(Reason.WRONG_TYPE, f"{name} is {table[name][row]}, which is no number") for row in unread}
        wrong = faults | wrong
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


def _parsed(texts: pa.Array) -> tuple[pa.Array, list[int]]:
    """Return the numbers that texts spell, and the rows of those that spell none."""
    try:
        return texts.cast(pa.float64()), []
    except pa.ArrowInvalid:
        numbers = pa.array([None if text is None else _number(text) for text in texts.to_pylist()], pa.float64())
        unread: Bool = pc.and_(pc.is_null(numbers), pc.is_valid(texts)).to_numpy(zero_copy_only=False)
        return numbers, np.flatnonzero(unread).tolist()


def _number(text: str) -> float | None:
    try:
        number: float = pa.scalar(text).cast(pa.float64()).as_py()
    except pa.ArrowInvalid:
        return None
    return number


def _millis(values: pa.Array, name: str, config: LogConfig) -> Millis:
    try:
        return arrow_millis(values, config.timestamp_unit, config.time_zone)
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
