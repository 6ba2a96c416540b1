"""Retry: read refused rows again, with their dead letters as partitions.

A partition holds the letters of one reason in one file and is named after both; the position of a letter is its line
number, from 1. A letter for several rows is a partition of its own, whose positions number its rows from 1. So each
letter counts exactly once, by the same rule as each row of a log (`weir.pipelines.runs.run`). A row that is refused
again becomes a letter of its new partition; a later retry reads only the newer letter.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import apache_beam as beam
from prometheus_client import CollectorRegistry
from pydantic import Field

from weir.contracts import CommitLog, EventClock, LetterFile, LogState, Store, UserError
from weir.contracts.base.models import FrozenModel
from weir.contracts.commits.commit_log import Cursor
from weir.pipelines.batch.ingest import IngestSummary, ingest
from weir.pipelines.batch.read_dead_letters import (
    LetterPartition,
    LetterReading,
    ReadLetters,
    UnreadableCause,
    blocks_of,
    chosen,
    lines_of,
    why_left,
)
from weir.pipelines.config import PipelineConfig
from weir.pipelines.layout import identify_files, with_window
from weir.pipelines.sources.plan import InHand, Planned, RunPlan, Seen
from weir.pipelines.sources.source import LogSource, check_home
from weir.pipelines.store_settings import settled
from weir.pipelines.transforms.chain import BlocksToWindows
from weir.pipelines.transforms.read import DEAD, PROGRESS, is_retried, origin_of, read_dead_letters, retried
from weir.readers import (
    DeadLetter,
    FirstLook,
    Format,
    Header,
    Partition,
    Reason,
    UnreadableError,
    Validator,
    cost_of,
    discover,
    header_of,
    is_topic,
    row_count,
)

__all__ = ["HINTS_OF_LEFT", "LetterSource", "RetrySummary", "retry"]

HINTS_OF_LEFT: Final[Mapping[UnreadableCause, str]] = {
    UnreadableCause.CUT: "hold only the first KiB of their row: append the repaired rows to the log",
    UnreadableCause.WITHOUT_ROW: "hold no row, but stand for a file, several rows or an item: write the repaired file "
    "under another name, or append the repaired rows to the log",
    UnreadableCause.FORGOTTEN: "named users who have been forgotten: their text is gone for good",
    UnreadableCause.FILE_GONE: "are of a CSV, TSV or Parquet file that the log does not hold any more as it was, so "
    "the names or types of their columns are unknown: append the repaired rows to the log",
    UnreadableCause.BEFORE_ERASURE: "are of rows that only a file of the log has, and users have been forgotten since, "
    "whom these rows may name: append the rows of others to the log",
    UnreadableCause.MAY_HAVE_COUNTED: "are of rows that were valid when they were first read and refused when they "
    "were read again, after a change of settings: they may have counted. Append to the log the rows that no window has",
}
"""Why letters cannot be read again -> advice for the user."""


_LATER: Final = {UnreadableCause.FILE_GONE, UnreadableCause.BEFORE_ERASURE}
"""Causes that make a whole partition unreadable."""


class RetrySummary(FrozenModel):
    """Result of a retry: counts of dead letters that no retry had read before."""

    letters: int = Field(default=0, description="rows of the dead letters looked at")
    valid: int = Field(default=0, description="rows that are valid under these settings")
    events: int = Field(default=0, description="of the valid: distinct events committed")
    duplicates: int = Field(default=0, description="of the valid: dropped because their event_id was known")
    ignored: int = Field(default=0, description="of the valid: of ignored types")
    refused: dict[str, int] = Field(default={}, description="rows refused again by reason; a retry may read them")
    left: dict[str, int] = Field(default={}, description="letters that cannot be read again, by cause")
    first_left: dict[str, str] = Field(default={}, description="place of the first of them, by cause")
    seconds: float = Field(default=0.0, description="wall time, seconds")


@dataclass
class _Judged:
    """The expected result of reading the letters of a partition again, and how many letters cannot be read.

    `cost` is the letters' share of `run_bytes`; `first_left` has the place of the first unreadable letter, by cause.
    """

    look: FirstLook = field(default_factory=FirstLook)
    cost: int = 0
    left: Counter[UnreadableCause] = field(default_factory=Counter)
    first_left: dict[UnreadableCause, str] = field(default_factory=dict)

    def leave(self, cause: UnreadableCause, letters: Sequence[DeadLetter]) -> None:
        """Count letters that cannot be read again, and note the first of this `cause`."""
        self.first_left.setdefault(cause, f"{letters[0].partition}, position {letters[0].position}")
        self.left[cause] += len(letters)

    @property
    def letters(self) -> int:
        """The number of readable rows plus the number of unreadable letters."""
        return self.look.rows + self.left.total()


def retry(
    store: Store, config: PipelineConfig, reasons: Collection[str] = (), *, dry_run: bool = False
) -> RetrySummary:
    """Read dead letters again, under these settings and today's clock, and commit the valid rows.

    `reasons` limits the retry, empty means all. If no letter of a file and reason is valid, its letters stay as they
    are. `dry_run` writes nothing. Raises `UserError` for a store without commits, and the errors of `ingest`.
    """
    began, state = time.monotonic(), LogState.open(store)
    if state.number < 0:
        raise UserError(f"{store.path('')} has no commit, so there is no dead letter to read again: run `weir ingest`")
    check_home(store, state)
    config = with_window(store, settled(store, config), follow=False)
    source = LetterSource(store, config, frozenset(reasons or map(str, Reason)))
    if dry_run:
        source.identify(source.discover(), state, InHand())
        done = IngestSummary()
    else:
        quiet = config.model_copy(update={"metrics_port": 0})
        done = ingest(store, quiet, source=source, registry=CollectorRegistry())
    return source.summary(done).model_copy(update={"seconds": time.monotonic() - began})


class LetterSource(LogSource[LetterPartition]):
    """The dead letters of a store with the given reasons."""

    def __init__(self, store: Store, config: PipelineConfig, reasons: frozenset[str]) -> None:
        self._store = store
        self._config = config
        self._reasons = reasons
        self._files = _LetterFiles(store)
        self._judged: dict[str, _Judged] = {}
        self._kept: set[str] = set()

    def discover(self) -> list[LetterPartition]:
        """Return one partition for each reason in each committed file of dead letters."""
        self._files.catch_up()
        return [
            LetterPartition(
                retried(first, reason), file.name, file.checksum, file.rows, reason, is_old=self._files.is_old(first)
            )
            for first, file in self._files.found.items()
            for reason in sorted(self._reasons & file.reasons.keys())
        ]  # fmt: skip

    def in_log(self, _partitions: list[LetterPartition]) -> None:
        """Return None: this source does not list the log."""

    def identify(self, partitions: list[LetterPartition], state: LogState, in_hand: InHand) -> list[LetterPartition]:
        """Return the partitions with a row that is valid now, and the partitions that were partly read before."""
        seen = Seen.of(state, in_hand)
        each = (one for listed in partitions for one in self._split(listed))
        unread = [one for one in each if one.key not in seen.known or not seen.known[one.key].is_done]
        found = list(_with_files(unread, self._config, state))
        clock, validator = EventClock.of(self._store), Validator(self._config)
        for one in found:
            self._judged[one.key] = self._judge(self._placed(one), _latest_ms(clock, self._config), validator)
        # Finish a partly read partition, unless its file is gone.
        readable = (one for one in found if not self._judged[one.key].left.keys() & _LATER)
        partly_read = {one.key for one in readable if one.key in seen.known}
        kept = [one for one in found if one.key in partly_read or self._judged[one.key].look.valid]
        self._kept |= {one.key for one in kept}
        return kept

    def _split(self, partition: LetterPartition) -> Iterator[LetterPartition]:
        """Yield a partition, then one for each of its letters that stands for several rows."""
        yield partition
        if partition.is_split:
            for line, letter in lines_of(self._store, partition):
                if letter.stands_for and letter.reason == partition.reason:
                    key = f"{partition.key}:{line}"
                    yield replace(partition, key=key, line=line, rows=letter.stands_for)

    def _placed(self, partition: LetterPartition) -> LetterPartition:
        """Return a partition with the places of its rows in the log file, if it reads them from there."""
        if partition.file is None or not partition.is_in_file:
            return partition
        if partition.line:
            [(_, letter)] = chosen(self._store, partition)
            at = self._place(letter)
            # Text rows are consecutive: the place of the first is enough.
            steps = range(letter.stands_for) if partition.format is Format.PARQUET else range(1)
            places = {} if at is None else {step + 1: at + step for step in steps}
        else:
            found = {line: self._place(letter) for line, letter in chosen(self._store, partition)}
            places = {line: place for line, place in found.items() if place is not None}
        return replace(partition, places=places)

    def _place(self, letter: DeadLetter) -> int | None:
        """Return the log position of a letter's row; None if it follows from an earlier letter that has retired."""
        offset = 0
        while is_retried(letter.partition):
            name, _, what = letter.partition.rpartition("#")
            file = self._files.found.get(name)
            if file is None:
                return None
            line = int(what.partition(":")[2] or 0)
            offset += letter.position - 1 if line else 0
            letter = read_dead_letters(self._store, file.name, file.checksum)[(line or letter.position) - 1]
        return letter.position + offset

    def _judge(self, partition: LetterPartition, latest_ms: int, validator: Validator) -> _Judged:
        judged, whole = _Judged(), list[DeadLetter]()
        for _, letter in chosen(self._store, partition):
            cause = why_left(letter, partition)
            whole.append(letter) if cause is None else judged.leave(cause, [letter])
        look, delivered, cost = FirstLook(), 0, 0
        try:
            for block in blocks_of(self._store, LetterReading(partition, 0, latest_ms), self._config):
                valid, letters = validator.validate(block)
                look.add(row_count(block), len(valid.rows), letters.letters)
                cost += cost_of(row_count(block), valid.rows.nbytes)
                delivered += len(block.content.positions) if block.content else 0
        except (OSError, UnreadableError):
            look = FirstLook()
        if delivered < (partition.rows if partition.line and whole else len(whole)):
            judged.leave(UnreadableCause.FILE_GONE, whole)
        else:
            judged.look, judged.cost = look, cost
        return judged

    def cut(self, found: list[LetterPartition], state: LogState, in_hand: InHand) -> Iterator[list[LetterPartition]]:
        """Yield the partitions cut for one run after another, so that each run fits in `run_bytes`; at last all."""
        seen, used, is_empty = Seen.of(state, in_hand), in_hand.cost, True
        for count, one in enumerate(found):
            if not _is_due(one, seen):
                continue
            cost = self._judged[one.key].cost
            if not is_empty and used + cost > self._config.run_bytes:
                yield found[:count]
                used = in_hand.cost
            used, is_empty = used + cost, False
        yield found

    def readings(self, partitions: Sequence[LetterPartition], seen: Seen) -> Sequence[Planned]:
        """Return the unread letters with the current names of their files, which a redaction may have rewritten."""
        self._files.catch_up()
        latest = _latest_ms(seen.clock, self._config)
        found = []
        for one in partitions:
            first = one.key.rpartition("#")[0]
            file, is_erased = self._files.found.get(first), one.is_in_file and self._files.is_old(first)
            if file is not None and not is_erased and _is_due(one, seen):
                placed = self._placed(replace(one, name=file.name, checksum=file.checksum))
                found.append(LetterReading(placed, seen.start(one.key), latest))
        return found

    def windows(self, readings: Any, store: Store, plan: RunPlan) -> Any:
        """Add the transforms that read and validate the letters and commit the run."""
        read = readings | "Read letters" >> beam.ParDo(ReadLetters(store, self._config)).with_outputs(
            PROGRESS, main="blocks"
        )
        blocks = {"blocks": read.blocks, DEAD: (), PROGRESS: read[PROGRESS]}
        return blocks | "Windows" >> BlocksToWindows(store, plan.run, self._config, plan.histories)

    def summary(self, done: IngestSummary) -> RetrySummary:
        """Return the result of a retry, given the sum of its commits."""
        judged = list(self._judged.values())
        stay = (one.look.reasons for key, one in self._judged.items() if key not in self._kept or not done.runs)
        left = sum((one.left for one in judged), Counter[UnreadableCause]())
        first_left = {cause: place for one in reversed(judged) for cause, place in one.first_left.items()}
        return RetrySummary(
            letters=sum(one.letters for one in judged),
            valid=sum(one.look.valid for one in judged),
            events=done.valid,
            duplicates=done.duplicates,
            ignored=done.ignored,
            refused=dict(sum(stay, Counter(done.refused))),
            left={str(cause): count for cause, count in sorted(left.items())},
            first_left={str(cause): place for cause, place in sorted(first_left.items())},
        )


@dataclass
class _LetterFiles:
    """The committed files of dead letters; `found` maps the first name of a file to its current name and entry.

    A redaction rewrites a file under a new name.
    """

    store: Store
    found: dict[str, LetterFile] = field(default_factory=dict)
    _first: dict[str, str] = field(default_factory=dict)
    _number: dict[str, int] = field(default_factory=dict)
    _redaction: int = -1
    _at: Cursor | None = None

    def is_old(self, first: str) -> bool:
        """Return whether users were erased since the rows of the file first named `first` were first refused."""
        return self._number[first] < self._redaction

    def catch_up(self) -> None:
        """Read new commits; a redaction rewrites a file, line for line, under another name."""
        log = CommitLog(self.store)
        self._at = self._at or log.first()
        while (step := log.next(self._at)) is not None:
            commit, self._at = step
            self.found |= {file.name: file for file in commit.letters}
            self._first |= {file.name: file.name for file in commit.letters}
            self._number |= {file.name: self._number_of(file, commit.number) for file in commit.letters}
            self._redaction = commit.newest_redaction
            for file in commit.rewritten:
                # An unknown file was listed by a commit that has retired, and its letters with it.
                if (first := self._first.pop(file.replaces, None)) is not None:
                    self.found[first], self._first[file.name] = file, first

    def _number_of(self, file: LetterFile, number: int) -> int:
        """Return the number of the commit in which the rows of a file of letters were first refused."""
        return self._number.get(file.partition.rpartition("#")[0], number) if is_retried(file.partition) else number


def _is_due(partition: LetterPartition, seen: Seen) -> bool:
    """Return whether a partition has letters that were not read yet."""
    before = seen.known.get(partition.key)
    return before is None or seen.start(partition.key) < before.stop


def _latest_ms(clock: EventClock, config: PipelineConfig) -> int:
    """Return the newest plausible event time (ms) of a row that is read now."""
    return clock.event_ms(max(time.time(), clock.wall_origin)) + round(60_000 * config.clock_tolerance_minutes)


def _with_files(
    partitions: Iterable[LetterPartition], config: PipelineConfig, state: LogState
) -> Iterator[LetterPartition]:
    """Yield partitions with their log file and its header, if their rows need them."""
    files: dict[str, Partition] | None = None
    headers: dict[str, Header | None] = {}
    for one in partitions:
        if not one.has_columns:
            yield one
            continue
        files = _files_of_log(config, state) if files is None else files
        file = files.get(origin_of(one.name))
        if file is not None and one.format is not Format.PARQUET and file.key not in headers:
            headers[file.key] = _header(file)
        yield replace(one, file=file, header=None if file is None else headers.get(file.key))


def _files_of_log(config: PipelineConfig, state: LogState) -> dict[str, Partition]:
    """Return the files of the log by key; empty if it cannot be listed."""
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
