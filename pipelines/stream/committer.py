"""Committer under an engine: turn the slices of one window into one commit, with the transforms of a bounded run.

The engine may deliver a window twice, two jobs may run on one store, and a worker that counts as dead may still write.
So each try decides from the commits alone which rows are accounted for.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from threading import Lock
from typing import Any, Final

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tenacity import before_sleep_log, retry, retry_if_exception_type, stop_after_delay, wait_random_exponential

from weir.contracts import (
    Commit,
    CommitLog,
    CommitTakenError,
    HistoryFile,
    HistoryFiles,
    LogState,
    SourceSpan,
    Store,
    UserError,
)
from weir.contracts.base import columns
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.hash_collisions import COLLISION, new_claims, of_others, owners
from weir.pipelines.runs.progress import LettersWritten, Progress
from weir.pipelines.runs.run import Base, Run, remember_panes
from weir.pipelines.runs.run_registry import BusyStoreError, discard, new_run, only_writer, registered
from weir.pipelines.sources.plan import refused_before
from weir.pipelines.sources.source import check_home
from weir.pipelines.store_settings import check_unchanged
from weir.pipelines.stream.slices import Coverage, Slice, with_letters
from weir.pipelines.transforms.commit import RunCommit, RunPart, RunParts, WindowSketches, WriteShards
from weir.pipelines.transforms.count import CountKeys
from weir.pipelines.transforms.deduplicate import Deduplicate, ShardWindow
from weir.pipelines.transforms.exposure import AttachExposure
from weir.pipelines.transforms.histories import AttachHistories
from weir.pipelines.transforms.read import WriteDeadLetters
from weir.pipelines.transforms.split import Keyed, ShardSlice, before_retention, by_shard, without
from weir.readers import BlockId, DeadLetter, Fault, Letters

__all__ = ["CommitWindow", "Intake", "UnknownPartitionError", "commit_window"]


@dataclass
class Intake:
    """Makes the parts of one commit; `before` are the history files before it.

    Every step has a fixed order (partitions by key, windows by time, shards by number), so that equal rows give equal
    bits, whatever the delivery order.
    """

    store: Store
    run: Run
    config: PipelineConfig
    before: HistoryFiles

    def parts(self, slices: Iterable[Slice]) -> Iterator[RunPart]:
        """Write and yield the parts that the slices add to the commits."""
        found = _by_partition(slices)
        letters = {key: _dead(ones, self.run.base.sources[key].resume) for key, ones in found.items()}
        fresh = self._accepted([self._fresh(key, ones) for key, ones in found.items()], letters)
        shards = self._shards(fresh)
        yield from self._counted(shards)
        yield from self._written(shards)
        for key, ones in sorted(letters.items()):
            yield from self._letters(key, ones)

    def _fresh(self, key: str, slices: list[Slice]) -> Keyed:
        """Return the rows of a partition that no commit accounts for."""
        rows = pa.Table.from_batches([one.rows for one in slices]).combine_chunks()
        times, positions = rows[columns.TIMESTAMP].to_numpy(), rows[columns.POSITION].to_numpy()
        windows, base = times // self.run.window_ms * self.run.window_ms, self.run.base
        known = base.is_counted(key, windows, positions) | base.is_inherited(key, times, positions)
        places = np.flatnonzero(~(known | np.isin(positions, self.run.stays_refused(key))))
        batches = rows.take(pa.array(places)).combine_chunks().to_batches()
        return Keyed(key, windows[places], batches[0] if batches else slices[0].rows[:0])

    def _accepted(self, fresh: list[Keyed], letters: dict[str, list[DeadLetter]]) -> list[Keyed]:
        """Return the rows without those before the horizon or with another item's key, which become letters."""
        base = self.run.base
        if (horizon := base.horizon) is not None:
            late = before_retention(horizon)
            fresh = [_refused(one, one.windows < horizon.ms, late, letters) for one in fresh]
        known = owners(self.store, base.cursor.sequence - 1)
        seen = Progress(claims=[new_claims(one.rows, known) for one in fresh]).settle()
        return [_refused(one, of_others(one.rows, known, seen.contested), COLLISION, letters) for one in fresh]

    def _shards(self, fresh: list[Keyed]) -> list[tuple[int, list[ShardWindow]]]:
        """Return the shards in order, each with its de-duplicated windows in order of time."""
        pieces = defaultdict[int, list[ShardSlice]](list)
        for one in fresh:
            for shard, piece in by_shard(one, np.arange(len(one.windows)), self.config.user_shards):
                pieces[shard].append(piece)
        transform = Deduplicate(self.store, self.run)
        transform.setup()
        return [found for one in sorted(pieces.items(), key=itemgetter(0)) for found in transform.process(one)]

    def _counted(self, shards: list[tuple[int, list[ShardWindow]]]) -> Iterator[WindowSketches]:
        by_start = defaultdict[int, list[ShardWindow]](list)
        for window in (window for _, windows in shards for window in windows):
            by_start[window.name.start_ms].append(window)
        for start_ms, windows in by_start.items():
            items = self._sketch(columns.ITEM_KEY, [window.items for window in windows])
            yield WindowSketches(start_ms, items, self._sketch(columns.USER_KEY, [window.users for window in windows]))

    def _sketch(self, column: str, tables: list[pa.Table]) -> bytes:
        counter = CountKeys(self.config.sketch, column)
        found = counter.create_accumulator()
        for table in tables:
            found = counter.add_input(found, table)
        return counter.extract_output(found)

    def _written(self, shards: list[tuple[int, list[ShardWindow]]]) -> Iterator[RunPart]:
        attach = AttachHistories(self.store, self.run, self.config, self.before)
        expose = AttachExposure(self.store, self.run, self.config) if self.config.exposed_items else None
        write = WriteShards(self.store, self.run, self.config)
        for shard in shards:
            for made in attach.process(shard):
                if isinstance(made, beam.pvalue.TaggedOutput):
                    delta: HistoryFile = made.value
                    yield delta
                else:
                    for window in expose.process(made) if expose else (made,):
                        yield from write.process(window)

    def _letters(self, key: str, letters: list[DeadLetter]) -> Iterator[LettersWritten]:
        if letters:
            inside = sorted(letters, key=lambda letter: letter.position)
            block = BlockId(key, inside[0].position)
            yield from WriteDeadLetters(self.store, self.run).process(Letters(block, tuple(inside)))


def _by_partition(slices: Iterable[Slice]) -> dict[str, list[Slice]]:
    found = defaultdict[str, list[Slice]](list)
    for one in slices:
        found[one.partition].append(one)
    return {key: sorted(found[key], key=lambda one: one.stop) for key in sorted(found)}


def _dead(slices: list[Slice], resume: int) -> list[DeadLetter]:
    """Return the dead letters in the tiles, without counted ones below `resume`."""
    return [letter for one in slices if one.tile for letter in one.tile.letters if letter.position >= resume]


def _refused(rows: Keyed, wrong: npt.NDArray[np.bool_], fault: Fault, letters: dict[str, list[DeadLetter]]) -> Keyed:
    """Return the rows that are not `wrong` (n,), and add the letters of the wrong ones to `letters`."""
    kept, tagged = without(rows, wrong, fault)
    for one in tagged:
        letters[rows.partition] += one.value.letters
    return kept


logger = logging.getLogger(__name__)

_TOLD: Final = ("stop", "open", "unlisted", "job", "reached")
"""Fields of a span, besides rows and letters, whose change is worth a commit."""
_PATIENCE_SECONDS: Final = 120.0
"""How long a window waits for another writer before the engine must deliver it again."""


class UnknownPartitionError(UserError):
    """The partition has no committed start offset."""


class CommitWindow(beam.DoFn):
    """(key, `Slice`s) of one window to its `Commit`, if the slices add anything.

    All windows have one key, so the engine uses one worker at a time; if it does not, the commit log refuses the
    second.
    """

    def __init__(self, store: Store, config: PipelineConfig) -> None:
        self._store = store
        self._config = config

    def process(self, element: tuple[int, Iterable[Slice]], window: Any = beam.DoFn.WindowParam) -> Iterator[Commit]:
        """Commit one window."""
        found = commit_window(self._store, self._config, window.start.micros // 1000, list(element[1]))
        if found is not None:
            yield found


@retry(
    retry=retry_if_exception_type((BusyStoreError, CommitTakenError)),
    wait=wait_random_exponential(0.05, max=2.0),
    stop=stop_after_delay(_PATIENCE_SECONDS),
    before_sleep=before_sleep_log(logger, logging.DEBUG),
    reraise=True,
)
def commit_window(store: Store, config: PipelineConfig, start_ms: int, slices: list[Slice]) -> Commit | None:
    """Commit the slices of the window that starts at `start_ms`; return None if they add nothing.

    Raises
    ------
    OutOfOrderError
        If an earlier window must be committed first.
    MissingRowsError
        If announced rows did not come with their window.
    BusyStoreError, CommitTakenError
        If other writers block the commit for two minutes.
    MovedStoreError
        If the log continues in another store.
    UnknownPartitionError
        If a partition has no committed start offset.
    LayoutError
        If the settings of the store have changed since the job started.
    """
    with only_writer(store), _following(store) as state:
        check_unchanged(store, config)
        run = _run_after(store, config, state, {one.partition for one in slices})
        with registered(store, run):
            try:
                commit = _Attempt(store, config, state, run, start_ms).commit(slices)
                if commit is not None:
                    CommitLog(store).append(commit)
            except CommitTakenError:
                discard(store, run)
                raise
        store.remove(run.folder)
    return commit


def _run_after(store: Store, config: PipelineConfig, state: LogState, partitions: set[str]) -> Run:
    """Return the run that makes the next commit."""
    if unknown := partitions - state.sources.keys():
        raise UnknownPartitionError(
            f"{store.url}: no commit says where {min(unknown)} starts; `weir stream` commits that before it reads"
        )
    spans = {key: state.sources[key] for key in partitions}
    refused = {key: refused_before(store, span, span.resume) for key, span in spans.items()}
    return Run(
        id=new_run(),
        base=Base.of(state, partitions),
        partitions={},
        window_ms=config.window_ms,
        lateness_ms=0,
        flush=False,
        refused={key: positions for key, positions in refused.items() if positions is not None},
    )


@dataclass(frozen=True)
class _Attempt:
    """One try to make the next commit."""

    store: Store
    config: PipelineConfig
    state: LogState
    run: Run
    start_ms: int

    def commit(self, slices: list[Slice]) -> Commit | None:
        """Write the files of the commit and return it; None if there is nothing to commit."""
        seen = Coverage.of(slices)
        # Refuse windows out of order before anything is written.
        self._spans(seen, ())
        intake = Intake(self.store, self.run, self.config, self.state.histories)
        parts = RunParts.of(intake.parts(slices), self.store, self.run)
        spans = self._spans(seen, parts.panes)
        if not (parts.panes or parts.letters or any(self._moves(key, span) for key, span in spans.items())):
            return None
        spans = {key: with_letters(span, parts.letters.get(key, ())) for key, span in spans.items()}
        return RunCommit(self.store, self.run, self.config).of(parts, spans)

    def _spans(self, seen: dict[str, Coverage], panes: Collection[int]) -> dict[str, SourceSpan]:
        base = self.run.base
        return {
            key: ones.after(base.sources[key], base.counted.get(key, {}), self.start_ms, panes)
            for key, ones in sorted(seen.items())
        }

    def _moves(self, key: str, span: SourceSpan) -> bool:
        """Return whether a span changes, including its job: a job continues only from a span that names it."""
        before = self.run.base.sources[key]
        return any(getattr(span, name) != getattr(before, name) for name in _TOLD)


_lock = Lock()
_states: dict[str, LogState] = {}


@contextmanager
def _following(store: Store) -> Iterator[LogState]:
    """Lend the process's cached commit state, caught up before and after; raises `MovedStoreError`."""
    log = CommitLog(store)
    with _lock:
        state = _states.pop(store.url, None)
        if state is None:
            state = LogState.open(store)
            remember_panes(store, state)
        state.catch_up(log)
        check_home(store, state)
        yield state
        state.catch_up(log)
        state.save(log)
        _states[store.url] = state
