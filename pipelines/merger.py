"""Merges of history files beside the stream: a thread writes them, the driver commits them between its runs."""

import logging
import threading
import time
from dataclasses import dataclass, field

from weir.contracts import Commit, CommitLog, CommitTakenError, HistoryFile, HistoryFiles, LocalCache, LogState, Store
from weir.contracts.commit import requirements
from weir.contracts.history_files import HISTORIES
from weir.pipelines.attempts import forget, is_marked, mark, new_run
from weir.pipelines.config import PipelineConfig
from weir.pipelines.merging import FileMerge, merge_plan

__all__ = ["REPLACED_SECONDS", "HistoryMerger", "commit_histories"]

logger = logging.getLogger(__name__)

REPLACED_SECONDS = 3600.0
"""How long a replaced file stays, for readers that have not seen the merge."""


class _EndedError(Exception):
    """The process ends: the merge is given up."""


@dataclass
class HistoryMerger:
    """At most one merge at a time; all methods are the driver's, which is one thread."""

    store: Store
    config: PipelineConfig
    _thread: threading.Thread | None = field(default=None, init=False)
    _end: threading.Event = field(default_factory=threading.Event, init=False)
    _made: list[HistoryFile] = field(default_factory=list, init=False)
    _error: Exception | None = field(default=None, init=False)
    _run: str = field(default="", init=False)

    def start(self, files: HistoryFiles) -> bool:
        """Start to merge what is due, if anything is and nothing is being merged; say whether a merge is on its way."""
        if self._thread is None:
            due = _due(files)
            if due:
                self._run = new_run()
                mark(self.store, self._run)
                self._thread = threading.Thread(target=self._merge, args=(due,), name="merge histories", daemon=True)
                self._thread.start()
        return self._thread is not None

    def _merge(self, due: list[tuple[HistoryFile, ...]]) -> None:
        merge = FileMerge(self.store, self.config.cache, self.config.seen_items, self._check)
        try:
            self._made = [merge(files, self._run) for files in due]
        except _EndedError:
            logger.info("a merge of histories is given up")
        except Exception as error:  # noqa: BLE001 - the driver raises it
            self._error = error

    def _check(self) -> None:
        if self._end.is_set():
            raise _EndedError

    def commit(self, state: LogState, *, wait: bool = False) -> bool:
        """Commit the merge if it is complete; say whether `state` must catch up with a commit of it.

        With `wait` it is completed first. Raises what the merge raised, `CorruptArtefactError` for a damaged file.
        """
        if self._thread is None or (self._thread.is_alive() and not wait):
            return False
        self._thread.join()
        made, error, self._thread, self._made, self._error = self._made, self._error, None, [], None
        try:
            # Without its mark the files may be gone, one that was being written among them: another process has taken
            # the merge for killed.
            if not is_marked(self.store, self._run):
                return False
            if error is not None:
                raise error
            if not made:
                return False
            return commit_histories(self.store, state, made, self._run, self.config.cache)
        finally:
            forget(self.store, self._run)

    def end(self) -> None:
        """Give up what is being merged."""
        if self._thread is not None:
            self._end.set()
            self._thread.join()
            forget(self.store, self._run)


def _due(files: HistoryFiles) -> list[tuple[HistoryFile, ...]]:
    plans = ((shard, merge_plan([file.size for file in shard])) for shard in files.shards.values())
    return [shard[-count:] for shard, count in plans if count]


def commit_histories(
    store: Store, state: LogState, files: list[HistoryFile], run: str, cache: LocalCache, *, covered: int = 0
) -> bool:
    """Commit files that replace others, and drop the names of those replaced long ago; catches up with the log.

    False where another writer's commits have made them useless: `forget` removes them then.
    """
    log = CommitLog(store)
    while True:
        if not all(state.histories.fits(file) for file in files) or covered not in {0, state.cursor.sequence}:
            return False
        expired = state.histories.expired(time.time() - REPLACED_SECONDS)
        for name in expired:
            store.remove(name)
        cache.discard(expired)
        commit = Commit(
            number=state.cursor.number,
            writer=run,
            predecessor=state.cursor.checksum,
            committed_at=time.time(),
            sequence=state.cursor.sequence,
            covered=covered,
            histories=tuple(files),
            dropped=tuple(expired),
            redaction=state.redaction,
            requires=requirements(HISTORIES, redaction=state.redaction),
        )
        try:
            log.append(commit)
        except CommitTakenError:
            state.catch_up(log)
            continue
        return True
