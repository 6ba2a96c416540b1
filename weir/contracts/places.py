"""How far the readers of windows have got, and how far they look back: retention keeps what they need."""

from typing import Final

from pydantic import Field

from weir.contracts.commit import CommitRef
from weir.contracts.documents import Document, read_document, write_document
from weir.contracts.storage import Store

__all__ = ["GATE_CASES", "GATE_WINDOWS", "MonitorPlace"]

GATE_CASES: Final = 200
"""Events that bundles are compared on, at least: the gate looks back until it has so many."""

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
