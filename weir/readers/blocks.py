"""The data that reading and validating exchange: chunks, blocks of raw rows, valid rows, and dead letters.

A chunk is a piece of a file to read at once; chunks are read in any order. A block is a piece of a partition that is
validated at once.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.readers.sources import Partition

__all__ = [
    "HINTS",
    "Block",
    "BlockId",
    "Bool",
    "Chunk",
    "DeadLetter",
    "Fault",
    "Header",
    "Int64",
    "Letters",
    "Lines",
    "Reading",
    "Reason",
    "TableRows",
    "ValidatedBlock",
    "cuts",
]

Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]
_RAW_BYTES = 1024
_OF_ALL = re.compile(r" \(all (\d+) rows refused\)\Z")


class Reason(StrEnum):
    """Reasons for refusing a row: stable codes, which dashboards and alerts use."""

    MALFORMED_JSON = "malformed_json"
    MALFORMED_ROW = "malformed_row"
    MALFORMED_PROTOBUF = "malformed_protobuf"
    MALFORMED_AVRO = "malformed_avro"
    NOT_UTF8 = "not_utf8"
    NOT_AN_OBJECT = "not_an_object"
    LINE_TOO_LONG = "line_too_long"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    REPEATED_FIELD = "repeated_field"
    EMPTY_ID = "empty_id"
    MISSING_ID = "missing_id"
    ID_TOO_LONG = "id_too_long"
    TOKEN_TOO_LONG = "token_too_long"  # noqa: S105 - a reason, no secret
    UNPARSABLE_TIMESTAMP = "unparsable_timestamp"
    TIMESTAMP_OUT_OF_RANGE = "timestamp_out_of_range"
    AHEAD_OF_ARRIVAL = "ahead_of_arrival"
    NEGATIVE_WEIGHT = "negative_weight"
    NON_FINITE_WEIGHT = "non_finite_weight"
    WEIGHT_TOO_LARGE = "weight_too_large"
    UNKNOWN_EVENT_TYPE = "unknown_event_type"
    FEATURE_TOO_LONG = "feature_too_long"
    NON_FINITE_FEATURE = "non_finite_feature"
    UNREADABLE_FILE = "unreadable_file"
    TRUNCATED_GZIP = "truncated_gzip"
    KEY_COLLISION = "key_collision"
    REWRITTEN_FILE = "rewritten_file"
    UNREADABLE_BLOCK = "unreadable_block"
    BEFORE_RETENTION = "before_retention"


HINTS: Final[Mapping[Reason, str]] = {
    Reason.MALFORMED_JSON: "each line must hold one JSON object; CSV and TSV are read from .csv and .tsv files",
    Reason.MALFORMED_ROW: "a row has as many values as the header names; a value with a separator or quote is quoted",
    Reason.MALFORMED_PROTOBUF: "messages must follow the schema in proto/; see pipeline.kafka.format",
    Reason.MALFORMED_AVRO: "pipeline.kafka.registry names the registry with their schema, pipeline.kafka.format says "
    "how messages are written",
    Reason.NOT_UTF8: "text must be UTF-8: convert it with iconv",
    Reason.NOT_AN_OBJECT: "each line must hold one JSON object, with the names of its fields",
    Reason.LINE_TOO_LONG: "leave out the fields of the row that nothing reads",
    Reason.MISSING_FIELD: "`weir check LOG` proposes the columns",
    Reason.WRONG_TYPE: "ids are strings or integers; another column is named with pipeline.columns, and a feature that "
    "is no number is categorical (pipeline.item_features, pipeline.user_features)",
    Reason.MISSING_ID: "pipeline.missing_ids lists the texts that stand for no id",
    Reason.REPEATED_FIELD: "write each column once, or name another one with pipeline.columns",
    Reason.EMPTY_ID: "leave out rows without a user or an item, or name another column with pipeline.columns",
    Reason.ID_TOO_LONG: "use a shorter id, such as a hash of it, or name another column with pipeline.columns",
    Reason.TOKEN_TOO_LONG: "a token is the attribution_token of an answer, as it is: name its column with "
    "pipeline.columns.attribution_token",
    Reason.UNPARSABLE_TIMESTAMP: "times are numbers (s, ms, us or ns since 1970) or texts such as 2026-03-01 08:00:41, "
    "whose zone is pipeline.time_zone=UTC where they name none; others, such as 01.03.2026, must be converted first",
    Reason.TIMESTAMP_OUT_OF_RANGE: "pipeline.min_time and pipeline.max_time say which times are valid, "
    "pipeline.timestamp_unit what numbers mean",
    Reason.AHEAD_OF_ARRIVAL: "the file was modified before these events, by its time: set that (`touch FILE`) if it is "
    "wrong; pipeline.clock_tolerance_minutes is how far times may be ahead of their file's",
    Reason.NEGATIVE_WEIGHT: "weights are 0 or more; pipeline.event_types says which events are negative, and "
    "pipeline.columns.weight names another column",
    Reason.NON_FINITE_WEIGHT: "leave the weight empty where there is none, or name another column with "
    "pipeline.columns.weight",
    Reason.WEIGHT_TOO_LARGE: "play counts and prices are no weights: let pipeline.columns.weight name a column that "
    "is not there, or pipeline.max_weight be the largest weight",
    Reason.UNKNOWN_EVENT_TYPE: "pipeline.event_types names them, pipeline.unknown_event_type says what others mean",
    Reason.FEATURE_TOO_LONG: "shorten the values, or leave the feature out of pipeline.item_features, user_features",
    Reason.NON_FINITE_FEATURE: "leave the value empty where there is none",
    Reason.UNREADABLE_FILE: "write the file again as what its name says, or restore it from a copy",
    Reason.TRUNCATED_GZIP: "gzip the file again elsewhere, and rename it when it is whole",
    Reason.KEY_COLLISION: "two ids have the same key: rename one, or start a store with pipeline.secret_keys=true",
    Reason.REWRITTEN_FILE: "write new rows into new files, or append them: what was read must not be rewritten",
    Reason.UNREADABLE_BLOCK: "the file is damaged, or not what its name says: write it again, or restore a copy",
    Reason.BEFORE_RETENTION: "pipeline.retention_days is the age at which windows retire",
}
"""Reason -> advice; `weir.readers.advice` looks at the file, too."""


@dataclass(frozen=True)
class Fault:
    """The fault of a row: the reason, and a sentence with the actual and the allowed value."""

    reason: Reason
    detail: str

    @classmethod
    def of_all(cls, reason: Reason, detail: str, rows: int) -> "Fault":
        """Return a fault that all rows of a block share, reported in one letter (`DeadLetter.stands_for`)."""
        return cls(reason, f"{detail} (all {rows} rows refused)")


class DeadLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refused row, as a line of ``dead-letters/<partition>/<position of the block>-<token>-<run>.jsonl``.

    `raw` is its first KiB: text, or base64 if `encoding` says so; `size` is the row's full length in bytes. `event_ms`
    is its event time, if readable. `may_have_counted` marks a row that was valid in an earlier reading and whose window
    is unknown.
    """

    partition: str
    position: int
    reason: str
    detail: str
    raw: str
    encoding: str
    size: int
    event_ms: int | None = None
    may_have_counted: bool = False

    @classmethod
    def of(cls, partition: str, position: int, fault: Fault, raw: bytes, event_ms: int | None = None) -> "DeadLetter":
        """Return the letter of a row."""
        text, encoding = _spell(raw)
        return cls(partition, position, str(fault.reason), fault.detail, text, encoding, len(raw), event_ms)

    @property
    def row(self) -> bytes | None:
        """The bytes of the refused row; None if the letter holds only a part of the row."""
        raw = self.raw.encode() if self.encoding == "utf-8" else base64.b64decode(self.raw)
        return raw if raw and len(raw) == self.size else None

    @property
    def stands_for(self) -> int:
        """Number of rows for which the letter stands, from its position on; 0 if it is the letter of a single row."""
        found = None if self.raw else _OF_ALL.search(self.detail)
        return int(found[1]) if found else 0


def _spell(raw: bytes) -> tuple[str, str]:
    head = raw[:_RAW_BYTES]
    try:
        return head.decode(), "utf-8"
    except UnicodeDecodeError as error:
        # A character cut by the limit does not make the text binary.
        if len(raw) > _RAW_BYTES and error.start > _RAW_BYTES - 4:
            return head[: error.start].decode(), "utf-8"
    return base64.b64encode(head).decode(), "base64"


@dataclass(frozen=True, order=True)
class BlockId:
    """The identity of a block: its partition and the position where it starts, -1 for the whole file."""

    partition: str
    start: int


@dataclass(frozen=True)
class Header:
    """The first row of a CSV or TSV file: column names and delimiter."""

    names: tuple[str, ...]
    delimiter: str


@dataclass(frozen=True)
class Lines:
    """Lines of text (n,) with their `positions` (n,), ascending: JSON, or rows of values if there is a `header`.

    With a header a line is a row, which may have line breaks within quotes. `latest_ms` (n,) are the newest event times
    that the lines may have, if each has its own time of arrival.
    """

    lines: list[bytes]
    positions: Int64
    latest_ms: Int64 | None = None
    header: Header | None = None

    def piece(self, start: int, stop: int) -> "Lines":
        """Return the lines with numbers [start, stop)."""
        latest = None if self.latest_ms is None else self.latest_ms[start:stop]
        return Lines(self.lines[start:stop], self.positions[start:stop], latest, self.header)

    @property
    def nbytes(self) -> int:
        """Bytes of the lines."""
        return sum(map(len, self.lines))


@dataclass(frozen=True)
class TableRows:
    """Rows of a table with the log's column names, and their `positions` (n,), ascending.

    `others` are columns of the file that were not read.
    """

    table: pa.Table
    positions: Int64
    others: tuple[str, ...] = ()

    def piece(self, start: int, stop: int) -> "TableRows":
        """Return the rows with numbers [start, stop)."""
        return TableRows(self.table[start:stop], self.positions[start:stop], self.others)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(self.table.nbytes)


@dataclass(frozen=True)
class Block:
    """Raw rows of one partition, and the faults found while reading: (position, fault, raw bytes).

    `stop` is the position after the last row, if it was unknown before reading. A row with an event time after
    `latest_ms` is invalid, because it arrived earlier.
    """

    id: BlockId
    content: Lines | TableRows | None
    faults: tuple[tuple[int, Fault, bytes], ...] = ()
    stop: int = 0
    latest_ms: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return self.content.nbytes if self.content else 0


@dataclass(frozen=True)
class Letters:
    """All dead letters of one block."""

    block: BlockId
    letters: tuple[DeadLetter, ...]


@dataclass(frozen=True)
class ValidatedBlock:
    """Valid interactions of a block, `INTERACTION_SCHEMA` rows; `dead` and `stop` describe the whole block."""

    block: BlockId
    rows: pa.RecordBatch
    dead: int
    stop: int


@dataclass(frozen=True)
class Reading:
    """A request to read `partition` from position `start`, at which a row starts.

    With `only_whole_lines`, the text after the last newline is left to a later reading. `latest_ms` is the newest event
    time that the rows of the partition may have (`weir.readers.sources`).
    """

    partition: Partition
    start: int = 0
    only_whole_lines: bool = False
    latest_ms: int | None = None


@dataclass(frozen=True)
class Chunk:
    """A piece of a partition to read at once: positions [start, stop); bytes from `limit` on are not read.

    Rows below `skip`, at which a row starts, are left out; `stop` is 0 if the end is unknown before reading. Parquet is
    read by row groups, from `row_group` on. `latest_ms` is the newest event time that the rows may have. A chunk of CSV
    or TSV has the `header`, and starts and stops at rows.
    """

    partition: Partition
    start: int
    stop: int
    limit: int
    skip: int = 0
    row_group: int = 0
    latest_ms: int | None = None
    header: Header | None = None


def cuts(sizes: Int64, limit: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) of consecutive pieces of at most `rows` rows and `limit` bytes, or one row of more bytes.

    `sizes` (n,) are the bytes of each row.
    """
    ends, start = np.cumsum(sizes), 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        full = int(np.searchsorted(ends, before + limit, side="right"))
        stop = min(max(start + 1, full), start + rows)
        yield start, min(stop, len(sizes))
        start = stop
