"""Compaction of user histories: a thread merges files, and the driver commits them between its runs."""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from weir.contracts import (
    Commit,
    CommitLog,
    CommitTakenError,
    CorruptArtefactError,
    HistoryFile,
    HistoryFiles,
    LocalCache,
    LogState,
    Store,
)
from weir.contracts.commits.commit import HISTORIES, requirements
from weir.pipelines.config import PipelineConfig
from weir.pipelines.histories.merging import MOST_DELTAS, FileMerge, broken_shards, merge_plan, rebuilt
from weir.pipelines.runs.run_registry import forget, is_marked, mark, new_run
from weir.runtime.background import BackgroundTask

__all__ = ["REPLACED_SECONDS", "HistoryKeeper", "HistoryMerger", "commit_histories"]


logger = logging.getLogger(__name__)

REPLACED_SECONDS = 3600.0
"""How long a replaced file stays for readers that have not seen the merge."""


class _EndedError(Exception):
    """The process ends, so the merge is cancelled."""


@dataclass
class HistoryMerger:
    """Merges history files in a thread, one merge at a time; only the driver's thread may call its methods."""

    store: Store
    config: PipelineConfig
    _task: BackgroundTask[list[HistoryFile]] | None = field(default=None, init=False)
    _end: threading.Event = field(default_factory=threading.Event, init=False)
    _run: str = field(default="", init=False)

    def start(self, files: HistoryFiles) -> bool:
        """Start a merge in a thread if one is due and none is running; return whether a merge is running now."""
        if self._task is None:
            due = _due(files)
            if due:
                self._run = new_run()
                mark(self.store, self._run)
                self._task = BackgroundTask("merge histories", partial(self._merge, due))
        return self._task is not None

    def _merge(self, due: list[tuple[HistoryFile, ...]]) -> list[HistoryFile]:
        merge = FileMerge(self.store, self.config.cache, self.config.seen_items, self._check)
        try:
            return [merge(files, self._run) for files in due]
        except _EndedError:
            logger.info("a merge of histories is given up")
            return []

    def _check(self) -> None:
        if self._end.is_set():
            raise _EndedError

    def commit(self, state: LogState, *, wait: bool = False) -> bool:
        """Commit a complete merge; return whether `state` must catch up with its commit.

        With `wait` this waits until the merge is complete. Raises the error of the merge, `CorruptArtefactError` for a
        damaged file.
        """
        if self._task is None or (self._task.running and not wait):
            return False
        self._task.wait()
        task, self._task = self._task, None
        try:
            # Without the mark the files may be gone: another process took this merge for killed.
            if not is_marked(self.store, self._run):
                return False
            made = task.result()
            return bool(made) and commit_histories(self.store, state, made, self._run, self.config.cache)
        finally:
            forget(self.store, self._run)

    def end(self) -> None:
        """Cancel the running merge, if any, and remove its files."""
        if self._task is not None:
            self._end.set()
            self._task.wait()
            forget(self.store, self._run)


def _due(files: HistoryFiles) -> list[tuple[HistoryFile, ...]]:
    plans = ((shard, merge_plan([file.size for file in shard])) for shard in files.shards.values())
    return [shard[-count:] for shard, count in plans if count]


def commit_histories(
    store: Store, state: LogState, files: list[HistoryFile], run: str, cache: LocalCache, *, covered: int = 0
) -> bool:
    """Commit history files of run id `run` that replace others, and remove files replaced over an hour ago.

    `covered` is the number of panes that rebuilt histories hold, 0 for a merge. If another writer commits first,
    `state` catches up and the commit is tried again. Returns False if other writers' commits have made the files
    useless; the caller then removes the files with `forget`.
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


_TOO_MANY: Final = 4 * MOST_DELTAS
"""Number of files of a shard above which the driver waits for a merge."""


@dataclass
class HistoryKeeper:
    """Compacts and repairs history files between the driver's runs; adds its commits to the driver's `state`."""

    store: Store
    config: PipelineConfig
    state: LogState

    def __post_init__(self) -> None:
        self._merger, self._log = HistoryMerger(self.store, self.config), CommitLog(self.store)

    def repair(self, error: CorruptArtefactError | None = None) -> None:
        """Rebuild histories that are missing, damaged or of another length from the windows, and commit them.

        `error` is the failure of a run; raised again if it does not name a history file, or the windows do not suffice.
        """
        broken = broken_shards(self.store, self.config, self.state)
        if error is not None:
            broken |= self._named(str(error))
            if not broken:
                raise error
        self._build(broken)

    def mend(self, failure: str) -> bool:
        """Rebuild the histories whose files a failure message names; return whether it names any."""
        broken = self._named(failure)
        self._build(broken)
        return bool(broken)

    def _named(self, failure: str) -> dict[int, str]:
        """Return user shard -> `failure`, for shards with a file whose name is in this failure message."""
        return {file.shard: failure for file in self.state.histories.files if Path(file.name).name in failure}

    def _build(self, broken: dict[int, str]) -> None:
        while broken:
            self._check_windows(broken)
            for problem in sorted(set(broken.values())):
                logger.warning("%s: histories are built from the windows (%s)", self.store.path(""), problem)
            self._rebuild(list(broken))
            broken = broken_shards(self.store, self.config, self.state)

    def _check_windows(self, broken: Mapping[int, str]) -> None:
        """Refuse a rebuild after windows have retired: the histories would lose their events."""
        if self.state.horizon is None:
            return
        shard, problem = min(broken.items())
        known = self.state.histories.shards.get(shard)
        path = self.store.path(known[0].name if known else "")
        remedy = (
            f"windows before {self.state.horizon} have retired: restore it from a copy, or set back what you changed"
        )
        raise CorruptArtefactError(path, f"{problem}; histories cannot be built from the windows, {remedy}")

    def _rebuild(self, shards: list[int]) -> None:
        run = new_run()
        mark(self.store, run)
        sequence = self.state.cursor.sequence
        files = rebuilt(self.store, self.config, self.state, shards, run)
        known = self.state.histories.shards
        for shard in known.keys() & set(shards) - {file.shard for file in files}:
            path = self.store.path(known[shard][0].name)
            raise CorruptArtefactError(path, "it cannot be used, and no window has events of its users")
        if commit_histories(self.store, self.state, list(files), run, self.config.cache, covered=sequence):
            self.state.catch_up(self._log)
        forget(self.store, run)

    def keep(self) -> None:
        """Commit a complete merge and start the next due one; waits for a merge only if a shard has too many files."""
        most = max(map(len, self.state.histories.shards.values()), default=0)
        self._commit(wait=most > _TOO_MANY)
        self._merger.start(self.state.histories)

    def settle(self) -> None:
        """Merge history files and commit them until no merge is due."""
        while self._merger.start(self.state.histories):
            self._commit(wait=True)

    def _commit(self, *, wait: bool) -> None:
        try:
            if self._merger.commit(self.state, wait=wait):
                self.state.catch_up(self._log)
        except CorruptArtefactError as error:
            self.repair(error)

    def end(self) -> None:
        """Cancel the running merge; the next pipeline repeats it."""
        self._merger.end()
