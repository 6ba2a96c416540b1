"""What the stages have achieved so far, read from the store and from the server, as any other reader could.

A look never fails. Each of its parts is read by itself; one that cannot be read keeps its last value, and the
snapshot names the problem. A look that finds nothing new costs the same whatever the age of the store.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from contracts import BundleLog, BundleManifest, CorruptArtefactError, EventClock, Store, WindowCounts
from logs import discover
from serving.client import Info, RetrievalClient, RetrievalError, by_user
from serving.monitor.results import WindowRecall
from weir.config import Settings
from weir.supervisor.committed import Committed
from weir.supervisor.measured import Measured

__all__ = ["Observer", "Snapshot", "mean_recall"]

_LONG_QUIET_SECONDS: Final = 30.0
_RECENT: Final = 5
"""Windows over which recalls are averaged."""

T = TypeVar("T")


@dataclass(frozen=True)
class Snapshot:
    """One look at everything; `problems` says, by part, what could not be read."""

    seconds: float
    replayed: float | None
    windows: int = 0
    counts: WindowCounts = field(default_factory=WindowCounts)
    dead: int = 0
    last_sequence: int = -1
    newest_bundle: str | None = None
    current: str | None = None
    trained_sequence: int = -1
    served: Info | None = None
    recalls: tuple[WindowRecall, ...] = ()
    newest_event_age: float | None = None
    first_answer_seconds: float | None = None
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def read(self) -> int:
        """Rows of the log that are accounted for."""
        return self.counts.events + self.counts.duplicates + self.counts.ignored + self.dead


def mean_recall(recalls: Sequence[WindowRecall], kind: str, k: int, last: int = _RECENT) -> float | None:
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
    problems: dict[str, str] = field(default_factory=dict)
    _first_answer: float | None = None
    _newest_bundle: str | None = None
    _trained_sequence: int = -1

    def __post_init__(self) -> None:
        self._committed = Committed(self.store)
        self._measured = Measured(self.store)
        self._bundles = BundleLog(self.store)
        self._manifests: dict[str, BundleManifest] = {}

    def look(self) -> Snapshot:
        """Return what there is now; never raises."""
        self._attempt("windows", self._follow_windows, None)
        self._attempt("recalls", self._measured.catch_up, None)
        current = self._attempt("bundles/CURRENT", self._current, None)
        self._attempt("bundles", self._follow_bundles, None)
        served = self._attempt("server", self._served, None)
        unknown: tuple[float | None, float | None] = (None, None)
        replayed, age = self._attempt("CLOCK.json", lambda: self._times(served), unknown)
        committed = self._committed
        return Snapshot(
            seconds=time.monotonic() - self.begun,
            replayed=replayed,
            windows=committed.windows,
            counts=committed.counts,
            dead=committed.dead,
            last_sequence=committed.last_sequence,
            newest_bundle=self._newest_bundle,
            current=current,
            trained_sequence=self._trained_sequence,
            served=served,
            recalls=tuple(self._measured.recalls),
            newest_event_age=age,
            first_answer_seconds=self._first_answer,
            problems=dict(self.problems),
        )

    def _attempt(self, part: str, read: Callable[[], T], otherwise: T) -> T:
        """Return what `read` returns; where it fails, note why and return `otherwise`."""
        try:
            value = read()
        except Exception as error:  # noqa: BLE001 - whatever a damaged store raises, the stages go on
            self.problems[part] = _told(part, error)
            return otherwise
        self.problems.pop(part, None)
        return value

    def _follow_windows(self) -> None:
        self._measured.expect(self._committed.catch_up())

    def _current(self) -> str | None:
        version = self._bundles.current()
        # It may have been promoted, and another retired, between the two looks.
        if version is None or version in self._bundles.versions() or version != self._bundles.current():
            return version
        raise ValueError(f"{self.store.path('bundles/CURRENT')}: names {version!r}, which is no bundle")

    def _follow_bundles(self) -> None:
        """Read the manifests that are new; one may be retired just now."""
        versions = self._bundles.versions()
        known = {version: self._manifests[version] for version in versions if version in self._manifests}
        self._manifests = known
        for version in versions:
            if version not in known:
                with suppress(FileNotFoundError):
                    known[version] = self._bundles.manifest(version)
        if known:
            newest = max(known.values(), key=lambda manifest: manifest.created_at)
            self._newest_bundle, self._trained_sequence = newest.version, newest.trained_sequence

    def _served(self) -> Info | None:
        try:
            info = self.client.info()
            if self._first_answer is None:
                self.client.retrieve([by_user(self.user or "nobody", 10)])
                self._first_answer = time.monotonic() - self.begun
        except RetrievalError:
            return None
        return info

    def _times(self, served: Info | None) -> tuple[float | None, float | None]:
        """Return how much of a replay is over, and the age of the newest event served in seconds."""
        clock = EventClock.of(self.store)
        age = time.time() - clock.wall_time(round(1000 * served.max_event_time)) if served else None
        return _share(clock), age

    def is_settled(self, snapshot: Snapshot) -> bool:
        """Say whether everything that lies in the log is committed, trained on, served and measured; never raises."""
        return self._attempt("log", lambda: self._is_settled(snapshot), otherwise=False)

    def _is_settled(self, snapshot: Snapshot) -> bool:
        last = snapshot.last_sequence
        if last < 0 or snapshot.trained_sequence < last or snapshot.served is None:
            return False
        if snapshot.served.bundle_version != snapshot.current or not self.is_all_committed():
            return False
        return any(recall.sequence == last for recall in snapshot.recalls)

    def is_all_committed(self) -> bool:
        """Say whether the commits of the last look account for all that lies in the log.

        Segments that brought nothing to commit, duplicates only, are in no manifest: then a long quiet has to do.
        """
        if time.time() - self._committed.committed_at > _LONG_QUIET_SECONDS:
            return True
        return self._committed.covers(discover(self.settings.pipeline.log))


def _told(part: str, error: Exception) -> str:
    """Return a sentence that names the file, or the part where the error does not."""
    text = str(error) or type(error).__name__
    return text if part in text or isinstance(error, OSError | CorruptArtefactError) else f"{part}: {text}"


def _share(clock: EventClock) -> float | None:
    """Return how much of a replay is over, from 0 to 1; None where there is none."""
    if clock.event_end is None:
        return None
    span = clock.wall_time(round(1000 * clock.event_end)) - clock.wall_origin
    return min(1.0, (time.time() - clock.wall_origin) / span) if span > 0 else 1.0
