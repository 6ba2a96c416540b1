"""Retry: refused rows are read again, from their dead letters as partitions of their own.

A partition has the letters of one reason in one file, and is named after both; the position of a letter is the number
of its line, from 1. So what makes every row of a log count exactly once (`weir.pipelines.positions`) makes every letter
count exactly once. A row that is refused again becomes a letter of its new partition: that one can be read again, the
one before never.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate
from typing import Any, Final

import apache_beam as beam
import numpy as np
import pyarrow as pa
from prometheus_client import CollectorRegistry
from pydantic import Field

from weir.contracts import CommitLog, CorruptArtefactError, EventClock, LetterFile, LogState, Store, UserError
from weir.contracts.commits import Cursor
from weir.contracts.models import FrozenModel
from weir.pipelines.chain import BlocksToWindows
from weir.pipelines.config import PipelineConfig
from weir.pipelines.ingest import IngestSummary, ingest
from weir.pipelines.layout import identify_files
from weir.pipelines.plan import InHand, Planned, RunPlan, Seen
from weir.pipelines.progress import PartitionProgress, Progress
from weir.pipelines.redacted_files import REDACTED
from weir.pipelines.sources import LogSource, check_home
from weir.pipelines.transforms.dead_letters import is_retried, origin_of, read_dead_letters, retried
from weir.pipelines.transforms.read import PROGRESS
from weir.pipelines.transforms.validate import DEAD
from weir.readers import (
    LOG_SUFFIXES,
    Block,
    BlockId,
    DeadLetter,
    FirstLook,
    Format,
    Header,
    Lines,
    Partition,
    Reading,
    Reason,
    TableRows,
    UnreadableError,
    Validator,
    chunks_of,
    discover,
    generation,
    has_ending,
    header_of,
    is_topic,
    read_chunk,
    row_count,
)

__all__ = ["HINTS_OF_LEFT", "Left", "LetterPartition", "LetterSource", "RetrySummary", "retry"]


class Left(StrEnum):
    """Why a letter cannot be read again."""

    CUT = "cut"
    WITHOUT_ROW = "without_row"
    FORGOTTEN = "forgotten"
    FILE_GONE = "file_gone"


HINTS_OF_LEFT: Final[Mapping[Left, str]] = {
    Left.CUT: "hold only the first KiB of their row: append the repaired rows to the log",
    Left.WITHOUT_ROW: "hold no row, but stand for a file, several rows or an item: write the repaired file under "
    "another name, or append the repaired rows to the log",
    Left.FORGOTTEN: "named users who have been forgotten: their text is gone for good",
    Left.FILE_GONE: "are of a CSV, TSV or Parquet file that the log does not hold any more as it was, so the names or "
    "types of their columns are unknown: append the repaired rows to the log",
}
"""Why letters cannot be read again -> what to say about them."""

_WITHOUT_ROW: Final = frozenset(
    {
        *(Reason.UNREADABLE_BLOCK, Reason.KEY_COLLISION, Reason.BEFORE_RETENTION),
        *(Reason.MALFORMED_PROTOBUF, Reason.MALFORMED_AVRO),
    }
)
"""Reasons whose letters keep something else than a row: its item, the first of several, or the bytes of a message."""

_DELIMITED: Final = (Format.DELIMITED, Format.GZIP_DELIMITED)


class RetrySummary(FrozenModel):
    """What became of the dead letters that no retry had read before."""

    letters: int = Field(default=0, description="dead letters looked at")
    valid: int = Field(default=0, description="rows that are valid under these settings")
    events: int = Field(default=0, description="of the valid: distinct events committed")
    duplicates: int = Field(default=0, description="of the valid: dropped because their event_id was known")
    ignored: int = Field(default=0, description="of the valid: of ignored types")
    refused: dict[str, int] = Field(default={}, description="rows refused again by reason; a retry may read them")
    left: dict[str, int] = Field(default={}, description="letters that cannot be read again, by cause")
    first_left: dict[str, str] = Field(default={}, description="place of the first of them, by cause")
    seconds: float = Field(default=0.0, description="wall time, seconds")


@dataclass(frozen=True)
class LetterPartition:
    """The letters of one reason in a file of dead letters, which is called `name` now.

    Rows of CSV and TSV need the `header` of their file; those of Parquet are read from the file itself, `table`, in
    which `places` has the number of the row of each line.
    """

    key: str
    name: str
    checksum: str
    rows: int
    nbytes: int
    reason: str
    header: Header | None = None
    table: Partition | None = None
    places: Mapping[int, int] = field(default_factory=dict)
    arrival_ms: int | None = None
    fingerprint: str = ""

    @property
    def size(self) -> int:
        """The position after the last letter."""
        return self.rows + 1


@dataclass(frozen=True)
class _Letters:
    """Read `partition` from line `start` on; rows newer than `latest_ms` (event time) cannot be right."""

    partition: LetterPartition
    start: int = 0
    latest_ms: int | None = None


@dataclass
class _Judged:
    """What reading the letters of a partition again would give, and which of them cannot be read."""

    look: FirstLook = field(default_factory=FirstLook)
    left: dict[Left, list[DeadLetter]] = field(default_factory=dict)

    def leave(self, cause: Left, letters: Iterable[DeadLetter]) -> None:
        """Add letters that cannot be read."""
        self.left.setdefault(cause, []).extend(letters)

    @property
    def letters(self) -> int:
        """How many there are."""
        return self.look.rows + sum(map(len, self.left.values()))


def retry(
    store: Store,
    config: PipelineConfig,
    reasons: Collection[str] = (),
    *,
    dry_run: bool = False,
) -> RetrySummary:
    """Read dead letters again under these settings and today's clock, of some reasons or of all; commit what is valid.

    Where no letter of a file and reason is valid, all of them stay as they are. With `dry_run` nothing is written.
    Raises a `UserError` for a store without commits, and what `ingest` raises.
    """
    began, source = time.monotonic(), LetterSource(store, config, frozenset(reasons or map(str, Reason)))
    state = LogState.open(store)
    if state.number < 0:
        raise UserError(f"{store.path('')} has no commit, so there is no dead letter to read again: run `weir ingest`")
    check_home(store, state)
    if dry_run:
        source.identify(source.discover(), state, InHand())
        done = IngestSummary()
    else:
        quiet = config.model_copy(update={"metrics_port": 0})
        done = ingest(store, quiet, source=source, registry=CollectorRegistry())
    return source.summary(done).model_copy(update={"seconds": time.monotonic() - began})


class LetterSource(LogSource[LetterPartition]):
    """The dead letters of a store, of some reasons."""

    def __init__(self, store: Store, config: PipelineConfig, reasons: frozenset[str]) -> None:
        self._store = store
        self._config = config
        self._reasons = reasons
        self._files = _LetterFiles(store)
        self._judged: dict[str, _Judged] = {}
        self._kept: set[str] = set()

    def discover(self) -> list[LetterPartition]:
        """Return the files of dead letters that commits list, reason by reason."""
        self._files.catch_up()
        return [
            LetterPartition(retried(first, reason), file.name, file.checksum, file.rows, file.size, reason)
            for first, file in self._files.found.items()
            for reason in sorted(self._reasons & file.reasons.keys())
        ]

    def in_log(self, _partitions: list[LetterPartition]) -> None:
        """Return None: what the log holds is not known here."""

    def identify(self, partitions: list[LetterPartition], state: LogState, in_hand: InHand) -> list[LetterPartition]:
        """Return what was not read yet, as far as some of it is valid now."""
        seen = Seen.of(state, in_hand)
        unread = [one for one in partitions if one.key not in seen.known or not seen.known[one.key].is_done]
        found = [self._placed(one) for one in _with_files(unread, self._config, state)]
        clock, validator = EventClock.of(self._store), Validator(self._config)
        for one in found:
            self._judged[one.key] = self._judge(one, _latest_ms(clock, self._config), validator)
        # What was begun is read to its end.
        kept = [one for one in found if one.key in seen.known or self._judged[one.key].look.valid]
        self._kept |= {one.key for one in kept}
        return kept

    def _placed(self, partition: LetterPartition) -> LetterPartition:
        """Return a partition with the places of its rows in their Parquet file, if it has one."""
        if partition.table is None:
            return partition
        places = {line: self._place(letter) for line, letter in _chosen(self._store, partition)}
        return replace(partition, places={line: place for line, place in places.items() if place is not None})

    def _place(self, letter: DeadLetter) -> int | None:
        """Return the position of a row in the log, None where a letter before this one has retired."""
        while is_retried(letter.partition):
            file = self._files.found.get(letter.partition.rpartition("#")[0])
            if file is None:
                return None
            letter = read_dead_letters(self._store, file.name, file.checksum)[letter.position - 1]
        return letter.position

    def _judge(self, partition: LetterPartition, latest_ms: int, validator: Validator) -> _Judged:
        judged, whole = _Judged(), list[DeadLetter]()
        for _, letter in _chosen(self._store, partition):
            cause = _why_left(letter, partition)
            whole.append(letter) if cause is None else judged.leave(cause, [letter])
        look = FirstLook()
        try:
            for block in _blocks(self._store, _Letters(partition, 0, latest_ms), self._config):
                valid, letters = validator.validate(block)
                look.add(row_count(block), len(valid.rows), letters.letters)
        except (OSError, UnreadableError):
            look = FirstLook()
        if look.rows < len(whole):
            judged.leave(Left.FILE_GONE, whole)
        else:
            judged.look = look
        return judged

    def cut(self, found: list[LetterPartition], state: LogState, in_hand: InHand) -> Iterator[list[LetterPartition]]:
        """Yield the letters of each run, about `run_bytes` of new ones, and at last all."""
        known = state.sources | in_hand.pending
        sizes = list(accumulate(0 if one.key in known else one.nbytes for one in found))
        for count, size in enumerate(sizes[:-1], start=1):
            if size // self._config.run_bytes < sizes[count] // self._config.run_bytes:
                yield found[:count]
        yield found

    def readings(self, partitions: Sequence[LetterPartition], seen: Seen) -> Sequence[Planned]:
        """Return the letters that are unread, from the files that hold them now: those that are left of a redaction."""
        self._files.catch_up()
        latest = _latest_ms(seen.clock, self._config)
        found = []
        for one in partitions:
            before, start = seen.known.get(one.key), seen.start(one.key)
            file = self._files.found.get(one.key.rpartition("#")[0])
            if file is not None and (before is None or start < before.stop):
                found.append(_Letters(replace(one, name=file.name, checksum=file.checksum), start, latest))
        return found

    def windows(self, readings: Any, store: Store, plan: RunPlan) -> Any:
        """Read, validate and commit."""
        read = readings | "Read letters" >> beam.ParDo(_ReadLetters(store, self._config)).with_outputs(
            PROGRESS, main="blocks"
        )
        blocks = {"blocks": read.blocks, DEAD: (), PROGRESS: read[PROGRESS]}
        return blocks | "Windows" >> BlocksToWindows(store, plan.run, self._config, plan.histories)

    def summary(self, done: IngestSummary) -> RetrySummary:
        """Return what became of the letters, given what the runs have committed of them."""
        judged = self._judged.values()
        stay = (one.look.reasons for key, one in self._judged.items() if key not in self._kept or not done.runs)
        left: dict[Left, list[DeadLetter]] = {}
        for cause, letters in (pair for one in judged for pair in one.left.items()):
            left.setdefault(cause, []).extend(letters)
        return RetrySummary(
            letters=sum(one.letters for one in judged),
            valid=sum(one.look.valid for one in judged),
            events=done.valid,
            duplicates=done.duplicates,
            ignored=done.ignored,
            refused=dict(sum(stay, Counter(done.refused))),
            left={str(cause): len(letters) for cause, letters in sorted(left.items())},
            first_left={
                str(cause): f"{letters[0].partition}, position {letters[0].position}"
                for cause, letters in sorted(left.items())
            },
        )


@dataclass
class _LetterFiles:
    """The files of dead letters that commits list; `found` has each by its first name, as it is called now."""

    store: Store
    found: dict[str, LetterFile] = field(default_factory=dict)
    _first: dict[str, str] = field(default_factory=dict)
    _at: Cursor | None = None

    def catch_up(self) -> None:
        """Take in the commits that are new; a redaction writes a file again, line for line, under another name."""
        log = CommitLog(self.store)
        self._at = self._at or log.first()
        while (step := log.next(self._at)) is not None:
            commit, self._at = step
            self.found |= {file.name: file for file in commit.letters}
            self._first |= {file.name: file.name for file in commit.letters}
            for file in commit.rewritten:
                # Without it the commit that listed the file has retired, and so has what was read of it.
                if (first := self._first.pop(file.replaces, None)) is not None:
                    self.found[first], self._first[file.name] = file, first


def _latest_ms(clock: EventClock, config: PipelineConfig) -> int:
    """Return the newest event time that a row may have which is read now."""
    return clock.event_ms(max(time.time(), clock.wall_origin)) + round(60_000 * config.clock_tolerance_minutes)


def _with_files(
    partitions: Iterable[LetterPartition], config: PipelineConfig, state: LogState
) -> Iterator[LetterPartition]:
    """Yield partitions with what the files of the log say of the rows: header, or the table itself."""
    files: dict[str, Partition] | None = None
    headers: dict[str, Header | None] = {}
    for one in partitions:
        origin = origin_of(one.name)
        kind = _format_of(origin)
        if kind is Format.PARQUET or kind in _DELIMITED:
            files = _files_of_log(config, state) if files is None else files
            file = files.get(origin)
            if file is None:
                yield one
            elif kind is Format.PARQUET:
                yield replace(one, table=file)
            else:
                if origin not in headers:
                    headers[origin] = _header(file)
                yield replace(one, header=headers[origin])
        else:
            yield one


def _format_of(origin: str) -> Format:
    """Return the format of the rows of a partition of the log; those of a topic are lines of JSON."""
    name = origin.rpartition("@")[0] if generation(origin) > 1 else origin
    return next((kind for suffix, kind in LOG_SUFFIXES.items() if has_ending(name, [suffix])), Format.JSON_LINES)


def _files_of_log(config: PipelineConfig, state: LogState) -> dict[str, Partition]:
    """Return the files of the log by key, none where it cannot be listed."""
    if is_topic(config.log):
        return {}
    try:
        return {file.key: file for file in identify_files(discover(config.log), state.sources)}
    except OSError:
        return {}


def _header(file: Partition) -> Header | None:
    try:
        with file.open() as opened:
            return header_of(opened, file)
    except Exception:  # noqa: BLE001 - file systems and headers raise what they like
        return None


def _chosen(store: Store, partition: LetterPartition, start: int = 0) -> Iterator[tuple[int, DeadLetter]]:
    """Yield the letters from a line on, with the numbers of their lines; raises `CorruptArtefactError`."""
    letters = read_dead_letters(store, partition.name, partition.checksum)
    if not letters:
        raise CorruptArtefactError(store.path(partition.name), "a commit lists it, but it is missing")
    for line, letter in enumerate(letters, start=1):
        if line >= start and letter.reason == partition.reason:
            yield line, letter


def _why_left(letter: DeadLetter, partition: LetterPartition) -> Left | None:
    """Return why a letter cannot be read again, None if it can."""
    if letter.detail == REDACTED:
        return Left.FORGOTTEN
    if letter.reason in _WITHOUT_ROW or not letter.raw:
        return Left.WITHOUT_ROW
    if letter.row is None:
        return Left.CUT
    kind = _format_of(origin_of(partition.name))
    is_gone = partition.table is None if kind is Format.PARQUET else kind in _DELIMITED and partition.header is None
    return Left.FILE_GONE if is_gone else None


def _blocks(store: Store, reading: _Letters, config: PipelineConfig) -> Iterator[Block]:
    """Yield the rows of letters that can be read again, under the numbers of their lines."""
    partition = reading.partition
    found = [pair for pair in _chosen(store, partition, reading.start) if _why_left(pair[1], partition) is None]
    if partition.table is None:
        for first in range(0, len(found), config.chunk_rows):
            some = found[first : first + config.chunk_rows]
            lines = [row for _, letter in some if (row := letter.row) is not None]
            content = Lines(lines, np.array([line for line, _ in some], np.int64), header=partition.header)
            yield Block(BlockId(partition.key, some[0][0]), content, latest_ms=reading.latest_ms)
    else:
        wanted = {partition.places[line]: line for line, _ in found if line in partition.places}
        for rows in _rows_of_table(partition.table, wanted, config):
            yield Block(BlockId(partition.key, int(rows.positions[0])), rows, latest_ms=reading.latest_ms)


def _rows_of_table(table: Partition, wanted: Mapping[int, int], config: PipelineConfig) -> Iterator[TableRows]:
    """Yield the rows of a Parquet file at some positions, under other ones: what a letter spells has lost its types."""
    if not wanted:
        return
    places = np.array(sorted(wanted), np.int64)
    chunks, _ = chunks_of(Reading(table, int(places[0])), config.chunk_bytes)
    for chunk in chunks:
        if not ((places >= chunk.start) & (places < chunk.stop)).any():
            continue
        for block in read_chunk(chunk, config, config.chunk_rows, config.chunk_bytes):
            if isinstance(content := block.content, TableRows):
                rows = np.flatnonzero(np.isin(content.positions, places))
                lines = np.array([wanted[place] for place in content.positions[rows].tolist()], np.int64)
                order = np.argsort(lines)
                if len(rows):
                    yield TableRows(content.table.take(pa.array(rows[order])), lines[order], content.others)


class _ReadLetters(beam.DoFn):
    """`_Letters` to `Block`s; how far they were read leaves by the tag `PROGRESS`."""

    def __init__(self, store: Store, config: PipelineConfig) -> None:
        self._store = store
        self._config = config

    def process(self, element: _Letters) -> Iterator[Any]:
        """Read the letters of one partition."""
        yield from _blocks(self._store, element, self._config)
        seen = {element.partition.key: PartitionProgress(element.partition.size)}
        yield beam.pvalue.TaggedOutput(PROGRESS, Progress(partitions=seen))
