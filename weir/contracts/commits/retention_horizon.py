"""The retention horizon: what is older has retired; and the positions of readers, which hold it back.

A commit that retires (`Commit.retires`) moves the horizon; the newest snapshot holds it, and ``commits/HEAD`` repeats
it as a hint. Files of void commits are removed later, in an order that may end anywhere.
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
"""What a commit that retires others requires of its readers."""

WINDOWS: Final = "retired_windows"
"""Required, too, where panes retire whose commits stay for the sake of their other panes."""


class Horizon(StoredModel):
    """Where the log starts: at commit `number`, whose first pane is `sequence`; `checksum` is of the commit before.

    Windows that start before `ms` (event time) have retired with all of their panes where they are `whole`; commits
    from `number` on may list such panes beside others. In stores of earlier versions late panes from there on are left.
    """

    ms: int
    number: int = Field(ge=0)
    sequence: int = Field(ge=0)
    checksum: str
    whole: bool = False

    def has_retired(self, sequence: int, start_ms: int) -> bool:
        """Return whether a pane has retired, given its number and the start of its window (event time)."""
        return sequence < self.sequence or (self.whole and start_ms < self.ms)

    def __str__(self) -> str:
        return datetime.fromtimestamp(self.ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class Retirement(Horizon):
    """What a commit retires: all before the horizon, source partitions that are forgotten, and dead letters.

    `sources` are gone from the log, and all of their rows lie before the horizon. `letters` are files of retired
    commits that spans still name. `commits` are those from the horizon on that list panes that it retires.
    """

    sources: tuple[str, ...] = ()
    letters: tuple[str, ...] = ()
    commits: tuple[int, ...] = ()


class RetiredError(UserError):
    """A follower asks for a commit or pane that has retired; `horizon` is where the log starts now."""

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
    """Return the numbers of the snapshots, newest first. It lists: only for starts and for what looks lost."""
    names = store.glob("commits/snapshot-" + "[0-9]" * 10 + ".json")
    return sorted((int(name[-15:-5]) for name in names), reverse=True)


def snapshot_name(number: int) -> str:
    """Return the name of the snapshot of the state as of a commit."""
    return f"commits/snapshot-{number:010d}.json"


def stored_horizon(store: Store) -> Horizon | None:
    """Return the horizon of the newest snapshot that can be read, None where nothing has retired."""
    for number in snapshots(store):
        try:
            return read_document(store, snapshot_name(number), _Snapshot).state.horizon
        except (FileNotFoundError, CorruptArtefactError) as error:
            logger.warning("the horizon is read from an older snapshot: %s", error)
    return None


GATE_WINDOWS: Final = 200
"""Windows that the gate looks back at, at most: many small ones are not worth reading."""

_MONITOR: Final = "monitor/PLACE.json"


class MonitorPlace(Document):
    """``monitor/PLACE.json``: the newest panes that the monitor has done with, -1 before the first."""

    measured: int = Field(default=-1, ge=-1, description="measured, or passed over")
    commit: CommitRef | None = Field(
        default=None, description="the commit of the pane `measured`; none: before the first, or of an earlier version"
    )
    reported: int = Field(default=-1, ge=-1, description="with the time until they were servable")
    counted: int = Field(default=-1, ge=-1, description="in the stored popularity")

    @classmethod
    def read(cls, store: Store) -> "MonitorPlace | None":
        """Return what is stored, None without; raises `CorruptArtefactError`."""
        try:
            return read_document(store, _MONITOR, cls)
        except FileNotFoundError:
            return None

    def write(self, store: Store) -> None:
        """Store it."""
        write_document(store, _MONITOR, self)
