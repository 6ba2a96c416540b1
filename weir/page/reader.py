"""Reads the state of store and server for the page; a part that cannot be read is named, and the others are read."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, TypeVar

from weir.contracts import BundleManifest, Commit, CommitLog, EventClock, LogState, Store, WindowLog, WindowManifest
from weir.contracts.base import columns
from weir.contracts.bundles.variants import champions_log
from weir.serving.client import Info, RetrievalClient, RetrievalError
from weir.serving.monitor.results import NewestRecalls, WindowRecall

__all__ = ["RECALLS", "ItemFeatures", "Letter", "NewestCommits", "Reader", "Seen"]


_KEPT: Final = 300
"""Panes whose commit times are kept, and commits that are read at the start."""
_LETTERS: Final = 30
_RECENT: Final = 5

Letter = dict[str, Any]
"""A dead letter as the pipeline wrote it: partition, position, reason, detail, raw, encoding."""


@dataclass
class NewestCommits:
    """Follows the commits of a store; with `lines`, it also reads the refused lines."""

    store: Store
    lines: bool
    state: LogState = field(default_factory=LogState)
    panes: deque[WindowManifest] = field(default_factory=lambda: deque(maxlen=_KEPT))
    letters: deque[Letter] = field(default_factory=lambda: deque(maxlen=_LETTERS))
    _opened: bool = False

    def __post_init__(self) -> None:
        self._log = CommitLog(self.store)

    def catch_up(self) -> list[WindowManifest]:
        """Read the new commits, and return their panes; raises the errors of `LogState.open`."""
        commits = self.state.catch_up(self._log) if self._opened else self._open()
        horizon, new = self.state.horizon, list[WindowManifest]()
        for commit in commits:
            new += [one for one in commit.panes if not (horizon and horizon.has_retired(one.sequence, one.start_ms))]
            if self.lines:
                self._read_letters(commit)
        self.panes.extend(new)
        return new

    def _open(self) -> list[Commit]:
        """Open the commit log at its newest commits, and return these."""
        state = LogState.open(self.store)
        first = self._log.first().number
        commits = [self._log.get(number) for number in range(max(first, state.number + 1 - _KEPT), state.number + 1)]
        self.state, self._opened = state, True
        return commits

    def _read_letters(self, commit: Commit) -> None:
        if commit.forgets:
            # After an erasure drop all lines: the users of the lines are unknown here.
            self.letters.clear()
        for file in commit.letters:
            try:
                data = self.store.read(file.name)
            except FileNotFoundError:  # erased or removed since
                continue
            self.letters.extend(json.loads(line) for line in data.splitlines()[-_LETTERS:])

    def committed_at(self, sequence: int) -> float | None:
        """Return the commit time of a pane; None if it is not among the newest."""
        return next((pane.committed_at for pane in reversed(self.panes) if pane.sequence == sequence), None)

    def seconds_to_commit(self, clock: EventClock) -> float | None:
        """Return the median seconds from the newest event of a window to its commit, over the newest windows."""
        newest = [pane for pane in self.panes if pane.pane == 0][-_RECENT:]
        return median(pane.committed_at - clock.wall_time(pane.max_event_ms) for pane in newest) if newest else None


_MOST: Final = 100_000
"""Most items that are kept; beyond that, those not updated for longest are dropped."""


@dataclass
class ItemFeatures:
    """Features of the items in the newest windows; empty without `pipeline.item_features`."""

    store: Store
    _words: dict[str, list[str]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._windows = WindowLog(self.store)

    def add(self, panes: Iterable[WindowManifest]) -> None:
        """Add the features of the items in panes, given in commit order; raises `CorruptArtefactError`."""
        for pane in panes:
            if names := pane.item_features.all:
                self._add(self._windows.items(pane), self._windows.item_features(pane), names)

    def _add(self, items: Any, features: Any, names: Sequence[str]) -> None:
        ids = dict(zip(items[columns.ITEM_KEY].to_pylist(), items[columns.ITEM_ID].to_pylist(), strict=True))
        for row in features.to_pylist():
            item = ids[row[columns.ITEM_KEY]]
            words = [f"{name} {_text(value)}" for name in names if (value := row[name]) not in (None, [])]
            if words:
                # Reinserted, so that the newest are last.
                self._words.pop(item, None)
                self._words[item] = words
        for item in list(self._words)[: max(0, len(self._words) - _MOST)]:
            del self._words[item]

    def of(self, item: str) -> list[str]:
        """Return the features of an item, such as ``genre jazz, blues``."""
        return self._words.get(item, [])


def _text(value: float | list[str]) -> str:
    return ", ".join(value) if isinstance(value, list) else f"{value:g}"


RECALLS: Final = 300
"""Newest windows whose recalls are kept."""

T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
    """The state of store and server at one reading.

    `newest` is the newest bundle's manifest, `held` the reason why that bundle is not promoted, and `loaded` the
    manifest of the bundle that the server has `served`. `problems` are sentences about parts that cannot be read.
    """

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
    tags: ItemFeatures
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
        except Exception as error:  # noqa: BLE001 - whatever a damaged store raises, the page continues
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
