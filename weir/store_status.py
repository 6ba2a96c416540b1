"""The state of a store for people: commits, bundles, recalls and clock.

A reading costs the same in a young and in an old store.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from weir.contracts import BundleLog, BundleManifest, Commit, CommitLog, EventClock, LogState, Store, WindowManifest
from weir.contracts.bundles.variants import champions_log
from weir.serving.monitor.results import NewestRecalls, WindowRecall

__all__ = ["StoreStatus"]

T = TypeVar("T")


@dataclass
class StoreStatus:
    """The state of a store as of the last `refresh`, which reads only what is new.

    Each part is read separately. If one cannot be read, `problems` holds its error, and its last value stays, but
    `clock` is None.

    Parameters
    ----------
    store
        The store.
    kept
        Commits to read at first, and recalls to keep: the newest ones.
    has_variants
        Whether to follow the bundles of the champion among variants.
    """

    store: Store
    kept: int = 300
    has_variants: bool = True
    log: LogState = field(default_factory=LogState, init=False)
    newest: BundleManifest | None = field(default=None, init=False)
    clock: EventClock | None = field(default=None, init=False)
    manifests: dict[str, BundleManifest] = field(default_factory=dict, init=False)
    problems: dict[str, Exception] = field(default_factory=dict, init=False)
    _is_opened: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._commits = CommitLog(self.store)
        self._recalls = NewestRecalls(self.store, self.kept)

    @property
    def bundles(self) -> BundleLog:
        """The bundles that the server loads; raises `CorruptArtefactError`."""
        return champions_log(self.store) if self.has_variants else BundleLog(self.store)

    @property
    def recalls(self) -> tuple[WindowRecall, ...]:
        """The newest recalls, in commit order."""
        return tuple(self._recalls.recalls)

    def refresh(self) -> list[Commit]:
        """Read what is new, and return the new commits; never raises."""
        none: list[Commit] = []
        new = self.attempt("windows", self.catch_up, none)
        self._recalls.expect(self.panes_of(new))
        self.attempt("recalls", self._recalls.catch_up, None)
        self.attempt("bundles", self._follow_bundles, None)
        self.clock = self.attempt("CLOCK.json", lambda: EventClock.of(self.store), None)
        return new

    def attempt(self, part: str, read: Callable[[], T], otherwise: T) -> T:
        """Return the result of `read`; on failure, record the error under the part, and return `otherwise`."""
        try:
            value = read()
        except Exception as error:  # noqa: BLE001 - whatever a damaged store raises, the reader continues
            self.problems[part] = error.with_traceback(None)
            return otherwise
        self.problems.pop(part, None)
        return value

    def catch_up(self) -> list[Commit]:
        """Add the new commits to `log` and return them; at first, return only the newest ones.

        Raises the errors of `LogState.open`; `log` then stops before the damaged commit.
        """
        if self._is_opened:
            return self.log.catch_up(self._commits)
        log = LogState.open(self.store)
        first = max(self._commits.first().number, log.number + 1 - self.kept)
        commits = [self._commits.get(number) for number in range(first, log.number + 1)]
        self.log, self._is_opened = log, True
        return commits

    def panes_of(self, commits: list[Commit]) -> list[WindowManifest]:
        """Return the panes of commits, without retired ones."""
        horizon, panes = self.log.horizon, [pane for commit in commits for pane in commit.panes]
        return [pane for pane in panes if not (horizon and horizon.has_retired(pane.sequence, pane.start_ms))]

    def _follow_bundles(self) -> None:
        """Read the new manifests; a bundle may be retired meanwhile."""
        bundles = self.bundles
        versions = bundles.versions()
        self.manifests = {version: self.manifests[version] for version in versions if version in self.manifests}
        for version in versions:
            if version not in self.manifests:
                with suppress(FileNotFoundError):
                    self.manifests[version] = bundles.manifest(version)
        self.newest = max(self.manifests.values(), key=lambda manifest: manifest.created_at, default=self.newest)
