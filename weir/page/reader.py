"""Read the current state of store and server, each part separately: a failed part is reported, the others continue."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from weir.contracts import BundleManifest, EventClock, LogState, Store, WindowManifest
from weir.contracts.variants import champions_log
from weir.page.commits import NewestCommits
from weir.page.tags import Tags
from weir.serving.client import Info, RetrievalClient, RetrievalError
from weir.serving.monitor.newest import NewestRecalls
from weir.serving.monitor.results import WindowRecall

__all__ = ["RECALLS", "Reader", "Seen"]

RECALLS: Final = 300
"""Newest windows whose recalls are kept."""

T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
    """The state as read; `held`: why the newest bundle is not promoted, `loaded`: the served bundle's manifest."""

    log: LogState
    clock: EventClock
    newest: BundleManifest | None
    held: str | None
    served: Info | None
    loaded: BundleManifest | None
    recalls: tuple[WindowRecall, ...]
    problems: tuple[str, ...]


@dataclass
class Reader:
    """Reads the store and queries the server as any client could; the cost does not grow with the store's age."""

    store: Store
    client: RetrievalClient
    commits: NewestCommits
    tags: Tags
    _problems: dict[str, str] = field(default_factory=dict, init=False)
    _manifests: dict[str, BundleManifest] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._recalls = NewestRecalls(self.store, RECALLS)

    def read(self) -> Seen:
        """Return the current state; never raises."""
        none: list[WindowManifest] = []
        new = self._attempt("windows", self.commits.catch_up, none)
        self._recalls.expect(new)
        self._attempt("item features", lambda: self.tags.add(new), None)
        self._attempt("recalls", self._recalls.catch_up, None)
        self._attempt("bundles", self._follow_bundles, None)
        newest = max(self._manifests.values(), key=lambda manifest: manifest.created_at, default=None)
        served = self._attempt("server", self._served, None)
        return Seen(
            log=self.commits.state,
            clock=self._attempt("CLOCK.json", lambda: EventClock.of(self.store), EventClock()),
            newest=newest,
            held=self._attempt("bundles/CURRENT", lambda: champions_log(self.store).held(newest), None),
            served=served,
            loaded=self._manifests.get(served.bundle_version) if served else None,
            recalls=tuple(self._recalls.recalls),
            problems=tuple(self._problems.values()),
        )

    def _attempt(self, part: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            value = read()
        except Exception as error:  # noqa: BLE001 - whatever a damaged store raises, the page goes on
            self._problems[part] = f"{part}: {error or type(error).__name__}"
            return otherwise
        self._problems.pop(part, None)
        return value

    def _follow_bundles(self) -> None:
        """Read the new manifests; a bundle may be removed meanwhile."""
        bundles, known = champions_log(self.store), {}
        for version in bundles.versions():
            with suppress(FileNotFoundError):
                known[version] = self._manifests.get(version) or bundles.manifest(version)
        self._manifests = known

    def _served(self) -> Info | None:
        try:
            return self.client.info()
        except RetrievalError:
            return None
