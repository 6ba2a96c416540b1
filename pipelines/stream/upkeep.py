"""What the driver does for a store while an engine writes to it: merges, retirement, erasure, snapshots, sweeping.

Workers commit beside it. On a local disk one has the lock at a time; on an object store whoever is late reads again.
"""

import math
import time
from dataclasses import dataclass, field
from typing import Final

from weir.contracts import CommitLog, CommitTakenError, LogState, Store
from weir.pipelines.attempts import sweep
from weir.pipelines.config import PipelineConfig
from weir.pipelines.erasure import Erasure
from weir.pipelines.keeper import HistoryKeeper
from weir.pipelines.lock import BusyStoreError, only_writer
from weir.pipelines.retention import Retention
from weir.pipelines.sources import check_home

__all__ = ["Upkeep"]

_SWEEP_SECONDS: Final = 600.0


@dataclass
class Upkeep:
    """Called by the driver now and then; `state` is its own, and is caught up with the commits before each step."""

    store: Store
    config: PipelineConfig
    state: LogState
    _next_sweep: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        self._log = CommitLog(self.store)
        self._histories = HistoryKeeper(self.store, self.config, self.state)
        days = self.config.retention_days
        self._retention = None if days is None else Retention(self.store, 86_400 * days)
        self._erasure = Erasure(self.store, 86_400 * self.config.erasure_days, (self.config.cache,))

    def begin(self) -> None:
        """Do what must be done before anything is read; no worker of this driver runs yet."""
        with only_writer(self.store):
            self.state.catch_up(self._log)
            check_home(self.store, self.state)
            sweep(self.store)
            self._next_sweep = time.monotonic() + _SWEEP_SECONDS
            self._histories.repair()

    def mend(self, failure: str) -> bool:
        """Build the histories whose files a failure of a worker names; False while somebody else commits."""
        try:
            with only_writer(self.store):
                self.state.catch_up(self._log)
                self._histories.mend(failure)
        except (BusyStoreError, CommitTakenError):
            return False
        return True

    def step(self, partitions: set[str]) -> None:
        """Do what is due, unless a window is being committed right now; `partitions` are the keys of the topic."""
        try:
            with only_writer(self.store):
                self.state.catch_up(self._log)
                self._histories.keep()
                if self._retention is not None and self._retention.is_due:
                    self._retention.step(self.state, partitions)
                self._erasure.step(self.state)
                if time.monotonic() >= self._next_sweep:
                    self._next_sweep = time.monotonic() + _SWEEP_SECONDS
                    # A merge of this process is under way, perhaps.
                    sweep(self.store, by_age=True)
                self.state.save(self._log)
        except (BusyStoreError, CommitTakenError):
            # The next step catches up.
            return

    def end(self) -> None:
        """Give up what is being merged."""
        self._histories.end()
