"""What a driver does for the histories of its store: it builds them where they are missing, and has them merged."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from weir.contracts import CommitLog, CorruptArtefactError, LogState, Store
from weir.pipelines.attempts import forget, mark, new_run
from weir.pipelines.config import PipelineConfig
from weir.pipelines.merger import HistoryMerger, commit_histories
from weir.pipelines.merging import MOST_DELTAS
from weir.pipelines.rebuilt_histories import broken_shards, rebuilt

__all__ = ["HistoryKeeper"]

logger = logging.getLogger(__name__)

_TOO_MANY: Final = 4 * MOST_DELTAS
"""Files of a shard from which on the stream waits for a merge."""


@dataclass
class HistoryKeeper:
    """Called by the driver between its runs; `state` is the driver's own, and catches up with each commit made here."""

    store: Store
    config: PipelineConfig
    state: LogState

    def __post_init__(self) -> None:
        self._merger, self._log = HistoryMerger(self.store, self.config), CommitLog(self.store)

    def repair(self, error: CorruptArtefactError | None = None) -> None:
        """Build the histories that are missing, damaged or of another length from the windows, by a commit of its own.

        `error` is what a run found; raised again if it is not about a file of histories, or no window can help.
        """
        broken = broken_shards(self.store, self.config, self.state)
        if error is not None:
            broken |= self._named(str(error))
            if not broken:
                raise error
        self._build(broken)

    def mend(self, failure: str) -> bool:
        """Build the histories whose files a failure names, if it names any; returns whether it does."""
        broken = self._named(failure)
        self._build(broken)
        return bool(broken)

    def _named(self, failure: str) -> dict[int, str]:
        """Return the shard whose file a failure names, in the store or in the cache."""
        return {file.shard: failure for file in self.state.histories.files if Path(file.name).name in failure}

    def _build(self, broken: dict[int, str]) -> None:
        while broken:
            self._check_windows(broken)
            for problem in sorted(set(broken.values())):
                logger.warning("%s: histories are built from the windows (%s)", self.store.path(""), problem)
            self._rebuild(list(broken))
            broken = broken_shards(self.store, self.config, self.state)

    def _check_windows(self, broken: Mapping[int, str]) -> None:
        """Refuse to build histories from a part of the windows: they would forget what has retired."""
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
        """Commit a merge that is complete, and start one that is due; waits only where a shard has too many files."""
        most = max(map(len, self.state.histories.shards.values()), default=0)
        self._commit(wait=most > _TOO_MANY)
        self._merger.start(self.state.histories)

    def settle(self) -> None:
        """Merge and commit until nothing is due."""
        while self._merger.start(self.state.histories):
            self._commit(wait=True)

    def _commit(self, *, wait: bool) -> None:
        try:
            if self._merger.commit(self.state, wait=wait):
                self.state.catch_up(self._log)
        except CorruptArtefactError as error:
            self.repair(error)

    def end(self) -> None:
        """Give up what is being merged; the next pipeline merges it."""
        self._merger.end()
