"""Reads the current state of store and server, with the refused lines, commit times and item features of the page."""

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from weir.contracts import BundleManifest, Commit, EventClock, LogState, Store, WindowLog, WindowManifest
from weir.contracts.base import columns
from weir.serving.client import Info, RetrievalClient, RetrievalError
from weir.serving.monitor.results import WindowRecall
from weir.store_status import StoreStatus

__all__ = ["ItemFeatures", "Letter", "NewestCommits", "Reader", "Seen"]


_KEPT: Final = 300
"""Panes whose commit times are kept, commits that are read at the start, and recalls that are kept."""
_LETTERS: Final = 30
_RECENT: Final = 5

Letter = dict[str, Any]
"""A dead letter as the pipeline wrote it: partition, position, reason, detail, raw, encoding."""


@dataclass
class NewestCommits:
    """Keeps the newest panes of a store and, with `lines`, the newest refused lines."""

    store: Store
    lines: bool
    panes: deque[WindowManifest] = field(default_factory=lambda: deque(maxlen=_KEPT), init=False)
    letters: deque[Letter] = field(default_factory=lambda: deque(maxlen=_LETTERS), init=False)

    def add(self, commits: Iterable[Commit], panes: Iterable[WindowManifest]) -> None:
        """Add commits and the panes in them that can still be read; raises the errors of `Store.read`."""
        self.panes.extend(panes)
        if self.lines:
            for commit in commits:
                self._read_letters(commit)

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

    def __post_init__(self) -> None:
        self._state = StoreStatus(self.store, _KEPT)

    def read(self) -> Seen:
        """Return the current state; never raises."""
        state = self._state
        new = state.refresh()
        panes = state.panes_of(new)
        state.attempt("refused lines", lambda: self.commits.add(new, panes), None)
        state.attempt("item features", lambda: self.tags.add(panes), None)
        served = state.attempt("server", self._served, None)
        return Seen(
            log=state.log,
            clock=state.clock or EventClock(),
            newest=state.newest,
            held=state.attempt("bundles/CURRENT", lambda: state.bundles.held(state.newest), None),
            served=served,
            loaded=state.manifests.get(served.bundle_version) if served else None,
            recalls=state.recalls,
            problems=tuple(f"{part}: {error}" for part, error in state.problems.items()),
        )

    def _served(self) -> Info | None:
        try:
            return self.client.info()
        except RetrievalError:
            return None
