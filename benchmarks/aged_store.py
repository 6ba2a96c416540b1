"""Stores of any age, created fast: one real window, linked and committed repeatedly at later event times.

The pipeline writes the first window; later ones link its files, each with its own commit, log file and event time, as
if the log had been rotated with every window. A last run of the pipeline writes its snapshots. All windows have the
same users, so that stores differ in age alone.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from weir.contracts import Commit, CommitLog, FileEntry, Store, WindowManifest
from weir.contracts.commits import Head
from weir.contracts.documents import encode_document
from weir.contracts.storage import checksum
from weir.pipelines.config import PipelineConfig, SketchConfig
from weir.pipelines.ingest import ingest

__all__ = ["SETTINGS", "AgedStore"]

SETTINGS: Final = PipelineConfig(
    window_seconds=60,
    allowed_lateness_seconds=0,
    history_length=50,
    user_shards=2,
    sketch=SketchConfig(width=1 << 12),
    idle_seconds=0,
    poll_seconds=0.05,
    metrics_port=0,
)

_ORIGIN: Final = 1_700_000_040
_USERS: Final = 100
_ITEMS: Final = 500
_EVENTS: Final = 200


@dataclass
class AgedStore:
    """A store in ``folder/store`` and its log in ``folder/log``; `windows` counts the windows, one per commit."""

    folder: Path
    windows: int = 0

    @classmethod
    def make(cls, folder: Path, windows: int) -> "AgedStore":
        """Create a store with so many windows, the last of them by a run that writes snapshots."""
        aged = cls(folder)
        aged.arrive(_EVENTS)
        aged.ingest()
        aged._repeat(windows - 1)
        aged.arrive(_EVENTS)
        aged.ingest()
        return aged

    @property
    def store(self) -> Store:
        """The store."""
        return Store(str(self.folder / "store"))

    @property
    def config(self) -> PipelineConfig:
        """The settings of its pipeline."""
        return SETTINGS.model_copy(update={"log": str(self.folder / "log")})

    def arrive(self, events: int, who: str = "user") -> None:
        """Append events of the next window to the log, in a file of their own; users are called `who` and a number."""
        start = _ORIGIN + self.windows * SETTINGS.window_seconds
        rows = [
            {
                "user_id": f"{who}-{number % _USERS}",
                "item_id": f"item-{(7 * number + self.windows) % _ITEMS}",
                "timestamp": start + number * SETTINGS.window_seconds // events,
            }
            for number in range(events)
        ]
        path = self.folder / "log" / _part(self.windows)
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(f"{json.dumps(one)}\n" for one in rows), encoding="utf-8")
        hidden.replace(path)
        self.windows += 1

    def ingest(self) -> None:
        """Run the pipeline in this process."""
        ingest(self.store, self.config, registry=CollectorRegistry())

    def _repeat(self, times: int) -> None:
        """Commit the window of the newest commit again, so many times at later event times; remove its log file."""
        log = CommitLog(self.store)
        first, before = log.get(log.newest()), log.at(log.newest() + 1)
        digest, [pane] = before.checksum, first.panes
        span = first.sources[_part(0)]
        for later in range(1, times + 1):
            number = first.number + later
            name = f"{later:020x}"
            commit = Commit(
                number=number,
                writer=name,
                predecessor=digest,
                committed_at=first.committed_at,
                sequence=first.sequence + later,
                panes=(_later(pane, later, name),),
                sources={_part(self.windows): span},
            )
            self._link(pane, commit.panes[0])
            data = encode_document(commit)
            # Without `fsync`, which takes most of the time.
            Path(self.store.path(CommitLog.name(number))).write_bytes(data)
            digest = checksum(data)
            self.windows += 1
        log.point(Head(number=first.number + times, sequence=first.sequence + times + 1))
        (self.folder / "log" / _part(0)).unlink()

    def _link(self, pane: WindowManifest, later: WindowManifest) -> None:
        source, target = (Path(self.store.path(one.folder)) for one in (pane, later))
        target.mkdir(parents=True)
        entries: tuple[FileEntry, ...] = pane.files
        for entry in entries:
            os.link(source / entry.name, target / entry.name)


def _part(number: int) -> str:
    return f"part-{number:06d}.jsonl"


def _later(pane: WindowManifest, later: int, attempt: str) -> WindowManifest:
    by = later * SETTINGS.window_ms
    moved = {name: getattr(pane, name) + by for name in ("start_ms", "end_ms", "min_event_ms", "max_event_ms")}
    return pane.model_copy(update={**moved, "sequence": pane.sequence + later, "attempt": attempt})
