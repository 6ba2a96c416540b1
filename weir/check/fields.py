"""Detects a log's columns and their kinds, and guesses which columns are the user, the item and the time."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weir.contracts.base import columns
from weir.contracts.interactions.arrow_columns import is_bytes
from weir.readers import Block, Chunk, Fault, Lines, Partition, TableRows
from weir.readers.decode import cell
from weir.readers.delimited import split_row
from weir.readers.timestamps import arrow_millis

__all__ = ["Column", "columns_of", "likely_columns"]

_ROWS: Final = 1000
"""First rows of a block that are looked at."""

_FEW: Final = 20
"""Most distinct values of a column whose values are counted."""

_WORDS: Final[dict[str, tuple[str, ...]]] = {
    columns.TIMESTAMP: (
        *("timestamp", "ts", "datetime", "time", "date", "when", "at", "created", "occurred", "logged", "played"),
        *("purchased", "bought", "ordered", "watched", "listened", "viewed", "clicked", "zeit", "datum", "fecha"),
    ),
    columns.USER_ID: (
        *("user", "customer", "client", "visitor", "account", "member", "buyer", "shopper", "listener", "viewer"),
        *("reader", "player", "subscriber", "profile", "person", "cookie", "device", "uid", "kunde", "nutzer"),
        *("utilisateur", "usuario", "cliente", "session"),
    ),
    columns.ITEM_ID: (
        *("item", "product", "article", "sku", "asin", "isbn", "track", "song", "recording", "movie", "film"),
        *("video", "book", "content", "asset", "listing", "offer", "stock", "business", "game", "app", "page", "url"),
        *("artikel", "produkt", "producto", "produit"),
    ),
    columns.EVENT_ID: ("eventid", "eventuuid", "eventkey"),
    columns.EVENT_TYPE: ("eventtype", "event", "action", "eventname", "behavior", "behaviour", "interaction", "type"),
}
"""Field -> words that are likely in its column's name, the likeliest first."""

_FEW_VALUED: Final = {columns.EVENT_TYPE}
_PARTS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_KINDS: Final = {
    columns.USER_ID: ("text", "integer"),
    columns.ITEM_ID: ("text", "integer"),
    columns.EVENT_ID: ("text", "integer"),
    columns.EVENT_TYPE: ("text",),
    columns.TIMESTAMP: ("time", "integer", "number"),
}


@dataclass(frozen=True)
class Column:
    """A column of a log.

    `kind` is text, time, integer, number, boolean, list, object, mixed or empty. `few` counts the column's values in
    the first rows; empty if there are many distinct values.
    """

    name: str
    kind: str
    example: str
    few: dict[str, int]


def columns_of(blocks: Iterable[tuple[Chunk, Block]]) -> list[Column]:
    """Return the columns that appear in the first rows of blocks, in order of first appearance."""
    by_name: dict[str, list[Any]] = {}
    kinds: dict[str, str] = {}
    for chunk, block in blocks:
        content = block.content
        if isinstance(content, TableRows):
            content = _head(chunk.partition)
            kinds |= {field.name: kind for field in content.table.schema if (kind := _arrow_kind(field.type))}
        for row in _rows(content):
            for name, value in row:
                by_name.setdefault(name, []).append(value)
    names = [*by_name, *(name for name in kinds if name not in by_name)]
    return [_column(name, by_name.get(name, []), kinds.get(name)) for name in names]


def _head(partition: Partition) -> TableRows:
    """Return the first rows of a Parquet file, with all columns."""
    with partition.open() as file:
        batch = next(pq.ParquetFile(file, arrow_extensions_enabled=True).iter_batches(_ROWS))
    return TableRows(pa.Table.from_batches([batch]), np.arange(len(batch)))


def _rows(content: Lines | TableRows | None) -> Iterator[Sequence[tuple[str, Any]]]:
    """Yield the (name, value) pairs of each readable row among the first ones."""
    if isinstance(content, TableRows):
        head = content.table[:_ROWS]
        for row in zip(*map(_values, head.columns), strict=True):
            yield [*zip(head.column_names, row, strict=True)]
    elif content is not None and content.header is not None:
        for line in content.lines[:_ROWS]:
            if not isinstance(cells := split_row(line, content.header), Fault):
                yield [(name, value or None) for name, value in zip(content.header.names, cells, strict=True)]
    elif content is not None:
        for line in content.lines[:_ROWS]:
            try:
                value = msgspec.json.decode(line)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield list(value.items())


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values; bytes, and values without a Python type, as text."""
    if not is_bytes(column.type):
        with suppress(ValueError, OverflowError, ArithmeticError):
            values: list[Any] = column.to_pylist()
            return values
    return [cell(value) for value in column]


def _column(name: str, values: list[Any], kind: str | None) -> Column:
    present = [str(value) if isinstance(value, UUID) else value for value in values if value is not None]
    counts = Counter(str(value) for value in present)
    few = dict(counts.most_common()) if len(counts) <= _FEW else {}
    return Column(name, kind or _kind(present), str(present[0])[:40] if present else "", few)


def _kind(values: list[Any]) -> str:
    """Return the common kind of values, ``mixed`` or ``empty`` without one."""
    kinds = {_kind_of(value) for value in values}
    if kinds == {"text"}:
        return _kind_of_texts(values)
    return (
        kinds.pop()
        if len(kinds) == 1
        else "number"
        if kinds == {"integer", "number"}
        else "mixed"
        if kinds
        else "empty"
    )


def _kind_of(value: Any) -> str:
    names = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "text"), (list, "list"))
    return next((name for kind, name in names if isinstance(value, kind)), "object")


def _kind_of_texts(texts: list[str]) -> str:
    """Return the kind of the values that texts spell, as CSV has only texts: integer, number, time or text."""
    values = pa.array(texts)
    for kind, name in ((pa.int64(), "integer"), (pa.float64(), "number")):
        try:
            values.cast(kind)
        except pa.ArrowInvalid:
            continue
        else:
            return name
    return "time" if arrow_millis(values, "auto", "UTC")[1].mean() > 0.5 else "text"


def _arrow_kind(kind: pa.DataType) -> str:
    """Return the kind of an Arrow type; "" for other types, such as text."""
    if pa.types.is_dictionary(kind):
        return _arrow_kind(kind.value_type)
    tests = {
        "time": (pa.types.is_timestamp, pa.types.is_date),
        "boolean": (pa.types.is_boolean,),
        "integer": (pa.types.is_integer, _is_whole),
        "number": (pa.types.is_floating, pa.types.is_decimal),
        "list": (pa.types.is_nested,),
    }
    return next((name for name, checks in tests.items() if any(check(kind) for check in checks)), "")


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) and kind.scale <= 0)


def likely_columns(present: Sequence[Column], configured: dict[str, str]) -> dict[str, str]:
    """Guess, by names and kinds, the columns of the fields whose configured column is missing.

    `present` are the columns of the log, and `configured` maps each field to its column. Returns field -> column.
    """
    names = {column.name for column in present}
    taken = {name for name in configured.values() if name in names}
    likely: dict[str, str] = {}
    for field in _WORDS:
        free = [
            column
            for column in present
            if column.name not in taken and column.kind in _KINDS[field] and (field not in _FEW_VALUED or column.few)
        ]
        if configured[field] not in names and (best := _best(field, free)):
            likely[field] = best
            taken.add(best)
    return {field: likely[field] for field in configured if field in likely}


def _best(field: str, free: Sequence[Column]) -> str | None:
    """Return the column among `free` ones that most likely holds a field; None if none is likely."""
    scores = {column.name: _score(column.name, _WORDS[field]) for column in free}
    best = max(scores, key=scores.__getitem__, default="")
    if scores.get(best):
        return best
    # A single column of kind time is taken as the timestamp, whatever its name.
    times = [column.name for column in free if column.kind == "time"]
    return times[0] if len(times) == 1 else None


def _score(name: str, words: Sequence[str]) -> float:
    """Return how well a column's name matches one of the words, the first words best; 0: no match."""
    parts = [part.lower() for part in _PARTS.findall(name)]
    joined = "".join(parts)
    for rank, word in enumerate(words):
        if joined in (word, f"{word}id", f"{word}key", f"{word}code", f"{word}no", f"{word}number", f"id{word}"):
            return 3 - rank / 100
    for rank, word in enumerate(words):
        if word in parts:
            # Prefer `user_id` to `user_name`.
            return (2 if {"id", "code", "key", "at", "no"} & {*parts} else 1) - rank / 100
    return 0.0
