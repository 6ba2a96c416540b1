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

logger = logging.getLogger(__name__)

_SPAN_FIELDS: Final = ("stop", "open", "unlisted", "job", "reached")
"""Fields of a span, besides rows and letters, whose change is worth a commit."""
_PATIENCE_SECONDS: Final = 120.0
"""How long a window waits for another writer before the engine must deliver it again."""


@dataclass
class Intake:
    """Makes the parts of one commit from slices, as a bounded run does; `before` are the history files before it.

    Every step has a fixed order (partitions by key, windows by time, shards by number), so that equal rows give equal
    bits, whatever the delivery order.
    """

    store: Store
    run: Run
    config: PipelineConfig
    before: HistoryFiles

    def parts(self, slices: Iterable[Slice]) -> Iterator[RunPart]:
        """Write and yield the parts that the slices add to the commits."""
        grouped = _by_partition(slices)
        letters = {key: _dead(several, self.run.base.sources[key].resume) for key, several in grouped.items()}
        fresh = self._accepted([self._fresh(key, several) for key, several in grouped.items()], letters)
        shards = self._shards(fresh)
        yield from self._counted(shards)
        yield from self._written(shards)
        for key, dead in sorted(letters.items()):
            yield from self._letters(key, dead)

    def _fresh(self, key: str, slices: list[Slice]) -> Keyed:
        """Return the rows of a partition that no commit accounts for."""
        rows = pa.Table.from_batches([part.rows for part in slices]).combine_chunks()
        times, positions = rows[columns.TIMESTAMP].to_numpy(), rows[columns.POSITION].to_numpy()
        windows, base = times // self.run.window_ms * self.run.window_ms, self.run.base
        counted = base.is_counted(key, windows, positions) | base.is_inherited(key, times, positions)
        places = np.flatnonzero(~(counted | np.isin(positions, self.run.stays_refused(key))))
        batches = rows.take(pa.array(places)).combine_chunks().to_batches()
        return Keyed(key, windows[places], batches[0] if batches else slices[0].rows[:0])

    def _accepted(self, fresh: list[Keyed], letters: dict[str, list[DeadLetter]]) -> list[Keyed]:
        """Turn rows before the horizon, or with another item's key, into dead letters; return the other rows."""
        base = self.run.base
        if (horizon := base.horizon) is not None:
            late = before_retention(horizon)
            fresh = [_refused(rows, rows.windows < horizon.ms, late, letters) for rows in fresh]
        key_owners = owners(self.store, base.cursor.sequence - 1)
        claims = Progress(claims=[new_claims(part.rows, key_owners) for part in fresh]).settle().contested
        return [_refused(part, of_others(part.rows, key_owners, claims), COLLISION, letters) for part in fresh]

    def _shards(self, fresh: list[Keyed]) -> list[tuple[int, list[ShardWindow]]]:
        """Return the shards in order, each with its de-duplicated windows in order of time."""
        by_number = defaultdict[int, list[ShardSlice]](list)
        for rows in fresh:
            for number, part in by_shard(rows, np.arange(len(rows.windows)), self.config.user_shards):
                by_number[number].append(part)
        transform = Deduplicate(self.store, self.run)
        transform.setup()
        in_order = sorted(by_number.items(), key=itemgetter(0))
        return [shard for slices in in_order for shard in transform.process(slices)]

    def _counted(self, shards: list[tuple[int, list[ShardWindow]]]) -> Iterator[WindowSketches]:
        """Yield the sketches of each window over all shards."""
        by_start = defaultdict[int, list[ShardWindow]](list)
        for window in (window for _, windows in shards for window in windows):
            by_start[window.name.start_ms].append(window)
        for start_ms, windows in by_start.items():
            items = self._sketch(columns.ITEM_KEY, [window.items for window in windows])
            yield WindowSketches(start_ms, items, self._sketch(columns.USER_KEY, [window.users for window in windows]))

    def _sketch(self, column: str, tables: list[pa.Table]) -> bytes:
        """Return the encoded sketch of the keys in `column` of tables with counts."""
        counter = CountKeys(self.config.sketch, column)
        sketch = counter.create_accumulator()
        for table in tables:
            sketch = counter.add_input(sketch, table)
        return counter.extract_output(sketch)

    def _written(self, shards: list[tuple[int, list[ShardWindow]]]) -> Iterator[RunPart]:
        """Write the examples and history files of the shards, and yield their reports."""
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
        """Write the dead letters of a partition, and yield their file, if there are any."""
        if letters:
            inside = sorted(letters, key=lambda letter: letter.position)
            block = BlockId(key, inside[0].position)
            yield from WriteDeadLetters(self.store, self.run).process(Letters(block, tuple(inside)))


def _by_partition(slices: Iterable[Slice]) -> dict[str, list[Slice]]:
    """Return partition key -> its slices in order of position, ordered by key."""
    grouped = defaultdict[str, list[Slice]](list)
    for part in slices:
        grouped[part.partition].append(part)
    return {key: sorted(grouped[key], key=lambda part: part.stop) for key in sorted(grouped)}


def _dead(slices: list[Slice], resume: int) -> list[DeadLetter]:
    """Return the dead letters of slices from position `resume` on; commits have recorded earlier letters."""
    return [letter for part in slices if part.tile for letter in part.tile.letters if letter.position >= resume]


def _refused(rows: Keyed, wrong: npt.NDArray[np.bool_], fault: Fault, letters: dict[str, list[DeadLetter]]) -> Keyed:
    """Return the rows not marked `wrong` (n,); add dead letters of the wrong rows to `letters` by partition."""
    rest, tagged = without(rows, wrong, fault)
    for output in tagged:
        letters[rows.partition] += output.value.letters
    return rest


class UnknownPartitionError(UserError):
    """The partition has no committed start offset."""


class CommitWindow(beam.DoFn):
    """Turns (key, `Slice`s) of one window into its `Commit`, if the slices add anything.

    All windows have one key, so the engine uses one worker at a time; if it does not, the commit log refuses the
    second.
    """

    def __init__(self, store: Store, config: PipelineConfig) -> None:
        self._store = store
        self._config = config

    def process(self, element: tuple[int, Iterable[Slice]], window: Any = beam.DoFn.WindowParam) -> Iterator[Commit]:
        """Commit the slices of one window; raises as `commit_window`."""
        commit = commit_window(self._store, self._config, window.start.micros // 1000, list(element[1]))
        if commit is not None:
            yield commit


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
        run = _run_after(store, config, state, {part.partition for part in slices})
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
    """Return a run that makes the next commit; raises `UnknownPartitionError`."""
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
    """One try to make the next commit, after `state`, for the window that starts at `start_ms`."""

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
        """Return the spans of the partitions after the window; `panes` are the windows that get a pane."""
        base = self.run.base
        return {
            key: coverage.after(base.sources[key], base.counted.get(key, {}), self.start_ms, panes)
            for key, coverage in sorted(seen.items())
        }

    def _moves(self, key: str, span: SourceSpan) -> bool:
        """Return whether a span changes, including its job: a job continues only from a span that names it."""
        before = self.run.base.sources[key]
        return any(getattr(span, name) != getattr(before, name) for name in _SPAN_FIELDS)


_lock = Lock()
_states: dict[str, LogState] = {}


@contextmanager
def _following(store: Store) -> Iterator[LogState]:
    """Yield this process's cached log state, caught up with the commits before and after the block.

    Raises `MovedStoreError`.
    """
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
