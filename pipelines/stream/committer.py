"""Commit under an engine: the slices of one window to one commit, whatever others have committed meanwhile.

The engine may bring a window twice, two jobs may run on one store, and a worker that counts as dead may still be at
work. So nothing here trusts the engine: what is accounted for is judged by the commits, again for each try.
"""

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

import apache_beam as beam
from tenacity import before_sleep_log, retry, retry_if_exception_type, stop_after_delay, wait_random_exponential

from weir.contracts import Commit, CommitLog, CommitTakenError, LogState, SourceSpan, Store, UserError
from weir.pipelines.attempts import discard, new_run, registered
from weir.pipelines.committed_panes import remember_panes
from weir.pipelines.config import PipelineConfig
from weir.pipelines.lasting import check_unchanged
from weir.pipelines.lock import BusyStoreError, only_writer
from weir.pipelines.plan import refused_before
from weir.pipelines.positions import Base, Run
from weir.pipelines.run_commit import RunCommit, RunParts
from weir.pipelines.sources import check_home
from weir.pipelines.stream.intake import Intake
from weir.pipelines.stream.slices import Slice
from weir.pipelines.stream.spans import Coverage, with_letters

__all__ = ["CommitWindow", "UnknownPartitionError", "commit_window"]

logger = logging.getLogger(__name__)

_TOLD: Final = ("stop", "open", "unlisted", "job", "reached")
"""What a commit says of a partition besides its rows."""
_PATIENCE_SECONDS: Final = 120.0
"""For so long a window waits for another writer; then the engine brings it again."""


class UnknownPartitionError(UserError):
    """A partition is read of which no commit says where it starts."""


class CommitWindow(beam.DoFn):
    """(key, `Slice`s) of one window to the `Commit`, if they bring anything that is not accounted for.

    One key, so one worker at a time as long as the engine keeps its promise; where it does not, one of two commits.
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
    """Commit what the slices of the window that starts at `start_ms` bring; None where all of it is accounted for.

    Raises
    ------
    OutOfOrderError
        If a window before has to be committed first.
    MissingRowsError
        If rows that were announced did not come with their window.
    BusyStoreError, CommitTakenError
        If other writers do not let it through for two minutes.
    MovedStoreError
        If the log goes on in another store.
    UnknownPartitionError
        If no commit says where a partition starts.
    LayoutError
        If the settings of the store were changed since the job started.
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
        # Before anything is written: what comes out of order is refused.
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
        """Say whether there is more to say than before; who reads it, too, else that job cannot go on."""
        before = self.run.base.sources[key]
        return any(getattr(span, name) != getattr(before, name) for name in _TOLD)


_lock = Lock()
_states: dict[str, LogState] = {}


@contextmanager
def _following(store: Store) -> Iterator[LogState]:
    """Lend the state of the commits, which this process keeps from window to window; raises `MovedStoreError`."""
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
