"""Builds the report of `weir check`: a log's contents, its invalid rows, and proposed settings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from weir.check.fields import Column, columns_of, likely_columns
from weir.check.sample import Piece, Sample, spread, take_sample
from weir.contracts.base import columns
from weir.contracts.base.models import FrozenModel
from weir.demo.replay import nice_window
from weir.readers import Block, Chunk, FirstLook, Format, Letters, LogConfig, Reason, Validator, has_ending, row_count

__all__ = ["REQUIRED", "BadRow", "ColumnFacts", "LogReport", "check_log"]

REQUIRED: Final = (columns.USER_ID, columns.ITEM_ID, columns.TIMESTAMP)
_FEW: Final = 3
"""Number of sampled pieces on which proposed settings are tried."""
_COUNTED: Final = 1 << 26
"""Byte position up to which the lines before a bad line are counted, to give its number."""
_RAW: Final = 160
"""Characters of an invalid row that the report repeats."""
_MANY: Final = 0.01
"""Share of rows with too large weights from which on the report proposes to use no weight column."""
_OFF: Final = (1, 2, 3, 6, 9, 12, 14, 24)
"""Hours that are tried as clock tolerance: times may be off by, for example, a time zone or a day."""


class ColumnFacts(FrozenModel):
    """A column of the log; `read_as` is the field that is read from it, by the given or the proposed settings."""

    name: str
    kind: str
    example: str
    read_as: str | None


class BadRow(FrozenModel):
    """An invalid row: its file and place, the reason and details, and its raw text."""

    file: str
    place: str
    reason: str
    detail: str
    raw: str


class LogReport(FrozenModel):
    """Report on a sample of a log; rows, users and items are counted in the sample."""

    log: str
    files: int
    bytes: int
    formats: list[str]
    rows: int = Field(description="rows that were looked at")
    all_rows: int | None = Field(description="rows of the whole log, estimated unless all were looked at")
    is_complete: bool = Field(description="whether all rows were looked at")
    columns: list[ColumnFacts]
    settings: list[str] = Field(
        description="settings, as KEY=VALUE, with which more rows are valid; if none is, the settings that are known"
    )
    valid: int = Field(description="valid rows, with these settings")
    valid_before: int = Field(description="valid rows, without these settings")
    reasons: dict[str, int] = Field(description="what is wrong with the others, with these settings")
    reasons_before: dict[str, int] = Field(default={}, description="the same, without these settings")
    first_bad: BadRow | None = Field(description="the first row that is not valid, with these settings")
    first_bad_before: BadRow | None = Field(description="the same, without these settings")
    next_step: str = Field(default="", description="what mends the commonest reason, with these settings")
    start_ms: int | None
    end_ms: int | None
    users: int
    items: int
    event_types: dict[str, int] = Field(description="the commonest event types, if the log has any")
    window_seconds: int | None = Field(description="suggested pipeline.window_seconds")

    @property
    def missing_ids(self) -> int:
        """Number of rows whose user or item id is empty or a placeholder for a missing id."""
        return sum(self.reasons.get(reason, 0) for reason in (Reason.EMPTY_ID, Reason.MISSING_ID))

    @property
    def is_readable(self) -> bool:
        """Whether at least one row is valid without the proposed settings."""
        return self.valid_before > 0


@dataclass
class _Verdict:
    """The result of validating sampled rows: counts, the first invalid row, and the valid rows."""

    look: FirstLook
    first_bad: BadRow | None = None
    tables: list[pa.RecordBatch] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.look.valid / self.look.rows if self.look.rows else 0.0

    def column(self, name: str) -> pa.ChunkedArray:
        return pa.chunked_array([table.column(name) for table in self.tables])


def check_log(config: LogConfig) -> LogReport:
    """Sample and check the log of the settings `config`.

    Raises `FileNotFoundError` if there is no log, and `TopicError` for a topic.
    """
    sample = take_sample(config)
    present = columns_of(_heads(sample, config))
    settings = _proposal(sample, config, present)
    proposed = with_settings(config, settings)
    before = _validate(sample.pieces, config)
    after = _validate(sample.pieces, proposed) if settings else before
    times = after.column(columns.TIMESTAMP).to_numpy() if after.look.valid else np.empty(0, np.int64)
    low, high = np.quantile(times, [0.001, 0.999]) if len(times) else (0, 0)
    share = sample.share
    return LogReport(
        log=config.log,
        files=len(sample.partitions),
        bytes=sample.size,
        formats=sorted({_format(partition.key, partition.format) for partition in sample.partitions}),
        rows=after.look.rows,
        all_rows=None if share is None else round(after.look.rows / share) if share else 0,
        is_complete=share == 1.0,
        columns=[_facts(column, proposed) for column in present],
        settings=settings,
        valid=after.look.valid,
        valid_before=before.look.valid,
        reasons=dict(after.look.reasons.most_common()),
        reasons_before=dict(before.look.reasons.most_common()),
        first_bad=after.first_bad,
        first_bad_before=before.first_bad,
        next_step=after.look.advice,
        start_ms=int(times.min()) if len(times) else None,
        end_ms=int(times.max()) if len(times) else None,
        users=_distinct(after, columns.USER_ID),
        items=_distinct(after, columns.ITEM_ID),
        event_types=_event_types(proposed, present),
        window_seconds=nice_window((high - low) / 1000) if len(times) else None,
    )


def with_settings(config: LogConfig, settings: Sequence[str]) -> LogConfig:
    """Return a copy of the config with some settings changed, given as KEY=VALUE (`LogReport.settings`)."""
    values = config.model_dump()
    for setting in settings:
        path, _, value = setting.removeprefix("pipeline.").partition("=")
        *sections, name = path.split(".")
        inner: dict[str, Any] = values
        for section in sections:
            inner = inner[section]
        inner[name] = value
    return LogConfig.model_validate({name: values[name] for name in LogConfig.model_fields})


def _heads(sample: Sample, config: LogConfig) -> Iterator[tuple[Chunk, Block]]:
    """Yield the first blocks of the first and of the last readable piece, each block with its chunk."""
    for piece in spread([piece for piece in sample.pieces if piece.chunk is not None], 2):
        if piece.chunk is not None:
            yield from ((piece.chunk, block) for block in islice(piece.read(config), 1))


def _proposal(sample: Sample, config: LogConfig, present: Sequence[Column]) -> list[str]:
    """Return the settings, as KEY=VALUE, with which most rows are valid.

    No columns are named if the current settings are as good. `present` are the log's columns.
    """
    free = [column for column in present if column.name and column.name not in config.features.all]
    likely = likely_columns(free, config.columns.model_dump())
    named = [f"pipeline.columns.{name}={column}" for name, column in likely.items()]
    tried: list[list[str]] = [[], named, [*named, "pipeline.time_zone=UTC"], [*named, "pipeline.min_time=1970-01-01"]]
    pieces = spread(sample.pieces, _FEW)
    shares = [_validate(pieces, with_settings(config, settings)).share for settings in tried]
    best = tried[shares.index(max(shares))] if any(shares) else named
    return [*best, *_repairs(pieces, with_settings(config, best), [column.name for column in present])]


def _repairs(pieces: Sequence[Piece], config: LogConfig, names: Sequence[str]) -> list[str]:
    """Return settings that make further rows valid: no weight column, or a clock tolerance.

    `names` are the names of the log's columns.
    """
    look, repairs = _validate(pieces, config).look, []
    if look.reasons[Reason.WEIGHT_TOO_LARGE] >= _MANY * look.rows:
        # A play count or a price is not a weight: without a weight column each event counts as one.
        absent = next(name for number in count() if (name := f"none{number or ''}") not in names)
        repairs.append(f"pipeline.columns.weight={absent}")
    if look.reasons[Reason.AHEAD_OF_ARRIVAL]:
        for hours in _OFF:
            proposed = f"pipeline.clock_tolerance_minutes={60 * hours}"
            if not _validate(pieces, with_settings(config, [proposed])).look.reasons[Reason.AHEAD_OF_ARRIVAL]:
                return [*repairs, proposed]
    return repairs


def _validate(pieces: Sequence[Piece], config: LogConfig) -> _Verdict:
    """Validate the sampled rows as the pipeline does."""
    files = {piece.partition.key: piece.partition for piece in pieces}
    verdict, validator = _Verdict(FirstLook(files=files)), Validator(config)
    for piece in pieces:
        for block in piece.read(config):
            valid, letters = validator.validate(block)
            verdict.look.add(row_count(block), len(valid.rows), letters.letters)
            if len(valid.rows):
                verdict.tables.append(valid.rows)
            if letters.letters and verdict.first_bad is None:
                verdict.first_bad = _bad_row(piece, letters)
    return verdict


def _bad_row(piece: Piece, letters: Letters) -> BadRow:
    letter = letters.letters[0]
    return BadRow(
        file=letter.partition,
        place=_place(piece.chunk, letter.position),
        reason=letter.reason,
        detail=letter.detail,
        raw=letter.raw[:_RAW],
    )


def _place(chunk: Chunk | None, position: int) -> str:
    """Return the place of a row in words; lines count from 1. A `chunk` of None is an unreadable file."""
    if chunk is None:
        return "the whole file"
    if chunk.partition.format is Format.PARQUET:
        return f"row {position}"
    if chunk.partition.format in (Format.GZIP_LINES, Format.GZIP_DELIMITED):
        return f"line {position + 1}"
    if position > _COUNTED:
        return f"byte {position}"
    with chunk.partition.open() as file:
        before = file.read(position).count(b"\n")
    return f"line {before + 1}"


def _facts(column: Column, config: LogConfig) -> ColumnFacts:
    read_as = {spelled: name for name, spelled in config.columns.model_dump().items()}
    read_as |= dict.fromkeys(config.item_features.all, "item feature")
    read_as |= dict.fromkeys(config.user_features.all, "user feature")
    return ColumnFacts(name=column.name, kind=column.kind, example=column.example, read_as=read_as.get(column.name))


def _distinct(verdict: _Verdict, name: str) -> int:
    return pc.count_distinct(verdict.column(name)).as_py() if verdict.look.valid else 0


def _event_types(config: LogConfig, present: Sequence[Column]) -> dict[str, int]:
    """Return the count of each event type in the first rows; empty without a column of event types."""
    return next((column.few for column in present if column.name == config.columns.event_type), {})


def _format(key: str, form: Format) -> str:
    name = {Format.PARQUET: "Parquet", Format.JSON_LINES: "JSON Lines", Format.GZIP_LINES: "JSON Lines (gzip)"}
    plain = "TSV" if has_ending(key, (".tsv", ".tsv.gz")) else "CSV"
    return name.get(form, f"{plain} (gzip)" if form is Format.GZIP_DELIMITED else plain)
