"""The retention horizon, before which windows have retired, and the monitor's position, which holds retention back.

A commit that retires windows (`Commit.retires`) moves the horizon; the newest snapshot holds it, and ``commits/HEAD``
repeats it as a hint. Files of retired commits are removed later; removal may stop at any point.
"""

import logging
from datetime import UTC, datetime
from typing import ClassVar, Final

from pydantic import Field

from weir.contracts.base.errors import CorruptArtefactError, UserError
from weir.contracts.base.models import CommitRef, StoredModel
from weir.contracts.storage.documents import Document, read_document, write_document
from weir.contracts.storage.store import Store

__all__ = [
    "GATE_WINDOWS",
    "RETENTION",
    "WINDOWS",
    "Horizon",
    "MonitorPlace",
    "RetiredError",
    "Retirement",
    "snapshot_name",
    "snapshots",
    "stored_horizon",
]

logger = logging.getLogger(__name__)

RETENTION: Final = "retention"
"""Required of readers by a commit that retires others."""
WINDOWS: Final = "retired_windows"
"""Required of readers, besides `RETENTION`, by a commit that retires panes of commits that stay for other panes."""
GATE_WINDOWS: Final = 200
"""Largest number of windows that the gate looks back at; more small ones are not worth reading."""
_MONITOR: Final = "monitor/PLACE.json"


class Horizon(StoredModel):
    """Start of the log: commit `number`, whose first pane is `sequence`; `checksum` covers the commit before.

    If `whole`, windows that start before `ms` (event time) have retired with all panes; commits from `number` on may
    list retired panes beside others. Otherwise (stores of earlier versions) late panes from `sequence` on remain.
    """

    ms: int
    number: int = Field(ge=0)
    sequence: int = Field(ge=0)
    checksum: str
    whole: bool = False

    def has_retired(self, sequence: int, start_ms: int) -> bool:
        """Return whether a pane has retired, given its sequence and its window's start (event time, ms)."""
        return sequence < self.sequence or (self.whole and start_ms < self.ms)

    def __str__(self) -> str:
        return datetime.fromtimestamp(self.ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class Retirement(Horizon):
    """A new horizon, with the source partitions, dead letters and panes that retire.

    `sources` are forgotten: gone from the log, with all rows before the horizon. `letters` are files of retired commits
    that spans still name. `commits` are commits from the horizon on that list retired panes.
    """

    sources: tuple[str, ...] = ()
    letters: tuple[str, ...] = ()
    commits: tuple[int, ...] = ()


class RetiredError(UserError):
    """A requested commit or pane has retired; `horizon` is the start of the log."""

    hint: ClassVar[str] = "start from what is left: remove what the stage remembers of its place"

    def __init__(self, what: str, horizon: Horizon) -> None:
        start = f"commit {horizon.number}, pane {horizon.sequence}, events of {horizon}"
        super().__init__(f"{what} has retired: the log starts at {start}")
        self.what = what
        self.horizon = horizon

    def __reduce__(self) -> tuple[type["RetiredError"], tuple[str, Horizon]]:
        return type(self), (self.what, self.horizon)


class _State(StoredModel):
    horizon: Horizon | None = None


class _Snapshot(Document):
    state: _State


def snapshots(store: Store) -> list[int]:
    """Return the numbers of the snapshots, newest first. Lists the folder: only for starts and repairs."""
    names = store.glob("commits/snapshot-" + "[0-9]" * 10 + ".json")
    return sorted((int(name[-15:-5]) for name in names), reverse=True)


def snapshot_name(number: int) -> str:
    """Return the file name of the snapshot of the state after commit `number`, relative to the store."""
    return f"commits/snapshot-{number:010d}.json"


def stored_horizon(store: Store) -> Horizon | None:
    """Return the horizon of the newest readable snapshot, None if no window has retired."""
    for number in snapshots(store):
        try:
            return read_document(store, snapshot_name(number), _Snapshot).state.horizon
        except (FileNotFoundError, CorruptArtefactError) as error:
            logger.warning("the horizon is read from an older snapshot: %s", error)
    return None


class MonitorPlace(Document):
    """``monitor/PLACE.json``: the newest panes that the monitor has processed, -1 before the first."""

    measured: int = Field(default=-1, ge=-1, description="measured, or passed over")
    commit: CommitRef | None = Field(
        default=None, description="the commit of the pane `measured`; none: before the first, or of an earlier version"
    )
    reported: int = Field(default=-1, ge=-1, description="with the time until they were servable")
    counted: int = Field(default=-1, ge=-1, description="in the stored popularity")

    @classmethod
    def read(cls, store: Store) -> "MonitorPlace | None":
        """Return the stored position, or None; raises `CorruptArtefactError`."""
        try:
            return read_document(store, _MONITOR, cls)
        except FileNotFoundError:
            return None

    def write(self, store: Store) -> None:
        """Store the position."""
        write_document(store, _MONITOR, self)
