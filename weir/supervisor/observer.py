"""What the stages have achieved so far, read from the store and from the server, as any other reader could."""

import time
from dataclasses import dataclass, field
from typing import Final

from contracts import BundleLog, EventClock, Store, WindowLog, WindowManifest
from pipelines.positions import seen_partitions
from pipelines.sources import discover
from serving.client import Info, RetrievalClient, RetrievalError, by_user
from serving.monitor.results import WindowRecall, recorded
from weir.config import Settings

__all__ = ["Observer", "Snapshot", "mean_recall"]

_LONG_QUIET_SECONDS: Final = 30.0
_RECENT: Final = 5
"""Windows over which recalls are averaged."""


@dataclass(frozen=True)
class Snapshot:
    """One look at everything."""

    seconds: float
    replayed: float | None
    windows: list[WindowManifest] = field(default_factory=list)
    dead: int = 0
    bundles: list[str] = field(default_factory=list)
    current: str | None = None
    trained_sequence: int = -1
    served: Info | None = None
    recalls: list[WindowRecall] = field(default_factory=list)
    newest_event_age: float | None = None
    first_answer_seconds: float | None = None

    @property
    def events(self) -> int:
        """Distinct valid events committed."""
        return sum(manifest.counts.events for manifest in self.windows)

    @property
    def duplicates(self) -> int:
        """Events dropped because they had come before."""
        return sum(manifest.counts.duplicates for manifest in self.windows)

    @property
    def late(self) -> int:
        """Events that came after their window had been committed."""
        return sum(manifest.counts.late for manifest in self.windows)

    @property
    def read(self) -> int:
        """Rows of the log that are accounted for."""
        ignored = sum(manifest.counts.ignored for manifest in self.windows)
        return self.events + self.duplicates + ignored + self.dead

    @property
    def last_sequence(self) -> int:
        """Commit number of the newest window, -1 before the first."""
        return self.windows[-1].sequence if self.windows else -1


def mean_recall(recalls: list[WindowRecall], kind: str, k: int, last: int = _RECENT) -> float | None:
    """Return a recall's mean over the newest windows that have it, weighted by their examples."""
    found = [(getattr(recall, kind)[k], _examples(recall, kind)) for recall in recalls if k in getattr(recall, kind)]
    total = sum(examples for _, examples in found[-last:])
    return sum(value * examples for value, examples in found[-last:]) / total if total else None


def _examples(recall: WindowRecall, kind: str) -> int:
    return int(getattr(recall.examples, "model" if kind == "index" else kind))


@dataclass
class Observer:
    """Looks at the store and the server of one `weir up`.

    Parameters
    ----------
    store, settings
        What the stages run with.
    client
        To the server.
    begun
        When `weir up` began, by `time.monotonic`.
    user
        Somebody to ask about, None where nobody is known; the first answer for them tells when the system is of use.
    """

    store: Store
    settings: Settings
    client: RetrievalClient
    begun: float
    user: str | None
    _first_answer: float | None = None

    def __post_init__(self) -> None:
        self._windows = WindowLog(self.store)
        self._bundles = BundleLog(self.store)

    def look(self) -> Snapshot:
        """Return what there is now."""
        windows = self._windows.committed()
        current = self._bundles.current()
        versions = self._bundles.versions()
        served = self._served()
        clock = EventClock.of(self.store)
        return Snapshot(
            seconds=time.monotonic() - self.begun,
            replayed=_share(clock),
            windows=windows,
            dead=sum(seen.dead for seen in seen_partitions(windows).values()),
            bundles=versions,
            current=current,
            trained_sequence=self._bundles.manifest(versions[-1]).trained_sequence if versions else -1,
            served=served,
            recalls=recorded(self.store),
            newest_event_age=time.time() - clock.wall_time(round(1000 * served.max_event_time)) if served else None,
            first_answer_seconds=self._first_answer,
        )

    def _served(self) -> Info | None:
        try:
            info = self.client.info()
            if self._first_answer is None:
                self.client.retrieve([by_user(self.user or "nobody", 10)])
                self._first_answer = time.monotonic() - self.begun
        except RetrievalError:
            return None
        return info

    def is_settled(self, snapshot: Snapshot) -> bool:
        """Say whether everything that lies in the log is committed, learnt, served and measured."""
        last = snapshot.last_sequence
        if last < 0 or snapshot.trained_sequence < last or snapshot.served is None:
            return False
        if snapshot.served.bundle_version != snapshot.current or not self.is_all_committed(snapshot):
            return False
        return any(recall.sequence == last for recall in snapshot.recalls)

    def is_all_committed(self, snapshot: Snapshot) -> bool:
        """Say whether the newest commits account for all that lies in the log.

        Segments that brought nothing to commit, duplicates only, are in no manifest: then a long quiet has to do.
        """
        if time.time() - snapshot.windows[-1].committed_at > _LONG_QUIET_SECONDS:
            return True
        seen = seen_partitions(snapshot.windows)
        return all(
            part.key in seen and seen[part.key].is_done and seen[part.key].size == part.size
            for part in discover(self.settings.pipeline.log)
        )


def _share(clock: EventClock) -> float | None:
    """Return how much of a replay is over, from 0 to 1; None where there is none."""
    if clock.event_end is None:
        return None
    span = clock.wall_time(round(1000 * clock.event_end)) - clock.wall_origin
    return min(1.0, (time.time() - clock.wall_origin) / span) if span > 0 else 1.0
