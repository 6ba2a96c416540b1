"""Logs of interactions: readers of every format, and the rules for valid rows that all users of logs share.

Data flow: `discover` lists the files of a log as `Partition`s; `chunks_of` cuts a file into `Chunk`s; `read_chunk`
reads them as `Block`s of raw rows with positions; a `Validator` decodes a block (ids, event times, event types,
weights, features) into a `ValidatedBlock`, and turns each invalid row into a `DeadLetter`. `read_log` does all of this
for finished files, `read_newest` for their last rows. `LogConfig` holds the settings.

Imports contracts only. Used by the pipeline (a Beam transform per step), offline evaluation and replays.
"""

from weir.readers.advice import OF_READING, OUTSIDE, next_step, then_retry
from weir.readers.blocks import (
    HINTS,
    Block,
    BlockId,
    Chunk,
    DeadLetter,
    Fault,
    Header,
    Int64,
    Letters,
    Lines,
    Reading,
    Reason,
    TableRows,
    ValidatedBlock,
)
from weir.readers.config import LogColumns, LogConfig, TimestampUnit
from weir.readers.delimited import header_of, rows_of
from weir.readers.extent import PIECE_COST, Extent, cost_of, extents, most_cost
from weir.readers.look import FirstLook, Newest, first_look, read_newest, row_count
from weir.readers.reading import UnreadableError, chunks_of, read_chunk, read_log
from weir.readers.sources import (
    LOG_SUFFIXES,
    PAIR_SUFFIXES,
    Format,
    KnownFile,
    Partition,
    TopicError,
    discover,
    generation,
    has_ending,
    identified,
    is_topic,
    latest_event_ms,
    topic_of,
)
from weir.readers.validate import Validator

__all__ = [
    "HINTS",
    "LOG_SUFFIXES",
    "OF_READING",
    "OUTSIDE",
    "PAIR_SUFFIXES",
    "PIECE_COST",
    "Block",
    "BlockId",
    "Chunk",
    "DeadLetter",
    "Extent",
    "Fault",
    "FirstLook",
    "Format",
    "Header",
    "Int64",
    "KnownFile",
    "Letters",
    "Lines",
    "LogColumns",
    "LogConfig",
    "Newest",
    "Partition",
    "Reading",
    "Reason",
    "TableRows",
    "TimestampUnit",
    "TopicError",
    "UnreadableError",
    "ValidatedBlock",
    "Validator",
    "chunks_of",
    "cost_of",
    "discover",
    "extents",
    "first_look",
    "generation",
    "has_ending",
    "header_of",
    "identified",
    "is_topic",
    "latest_event_ms",
    "most_cost",
    "next_step",
    "read_chunk",
    "read_log",
    "read_newest",
    "row_count",
    "rows_of",
    "then_retry",
    "topic_of",
]
