"""Joins new served lists with newly committed windows: the monitor's part in attribution.

A window is joined some time after its commit, when servers have written the lists that led to its events. Lists and
windows from before the monitor's start are not read: `weir inspect served` reads everything stored.
"""

import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from weir.contracts import CorruptArtefactError, RetiredError, Store, WindowLog, WindowManifest, read_format
from weir.contracts.bundles.variants import log_of_version
from weir.contracts.served_lists import hour_of, read_segment, served_files
from weir.runtime.log_once import LogOnce
from weir.serving.monitor.attribution import EVENT_COLUMNS, Attribution, clicks_of
from weir.serving.monitor.comparison import Comparing, UserClicks
from weir.serving.monitor.metrics import AttributionMetrics

__all__ = ["ClickFollower", "bundle_items"]

log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS: Final = 15.0
_BUNDLES: Final = 5
"""Number of newest bundles whose figures are shown."""


@dataclass
class ClickFollower:
    """Joins new served lists with new windows, at every `step`; a window is joined `delay_seconds` after its commit.

    While a challenger is compared, `comparing` gets each user's clicks on lists served within `compare_seconds` of the
    user's first list.
    """

    store: Store
    delay_seconds: float
    metrics: AttributionMetrics
    comparing: Comparing | None = None
    compare_seconds: float = 0.0
    _seen: dict[str, set[str]] = field(default_factory=dict, init=False)
    _last: int | None = field(default=None, init=False)
    _waiting: deque[WindowManifest] = field(default_factory=deque, init=False)
    _next: float = field(default=-float("inf"), init=False)
    _items: dict[str, int | None] = field(default_factory=dict, init=False)
    _attribution: Attribution | None = field(default=None, init=False)
    _users: UserClicks | None = field(default=None, init=False)
    _once: LogOnce = field(default_factory=lambda: LogOnce(log), init=False)

    def __post_init__(self) -> None:
        self._started, self._windows = time.time(), WindowLog(self.store)

    def step(self) -> None:
        """Join new lists and windows, if enough time has passed since the last look; failures are logged once."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + min(_SECONDS_BETWEEN_LOOKS, self.delay_seconds)
        try:
            self._look()
            self._once.succeeded()
        except Exception as error:  # noqa: BLE001 - object stores have errors of their own, which are no OSErrors
            self.metrics.errors.inc()
            self._once.failed(error, "clicks wait to be joined with served lists", level=logging.WARNING)

    def _look(self) -> None:
        """Read new lists and windows, join the windows that have waited long enough, and update the metrics."""
        attribution = self._opened()
        if attribution is None:
            return
        self._follow_users(attribution.secret)
        self._take_in_lists(attribution)
        self._take_in_windows()
        while self._waiting and self._waiting[0].committed_at + self.delay_seconds <= time.time():
            self._join(attribution, self._waiting[0])
            self._waiting.popleft()
        self._settle()
        known = self._items
        self._items = {
            version: known[version] if version in known else bundle_items(self.store, version)
            for version in attribution.bundles
        }
        self.metrics.show(attribution, self._items)

    def _opened(self) -> Attribution | None:
        """Return the attribution, which counts windows from the first call on; None while there is no store."""
        if self._attribution is None and (form := read_format(self.store)) is not None:
            newest = self._windows.newest(1)
            self._last = newest[-1].sequence if newest else -1
            self._attribution = Attribution(self._load, form.key_secret, kept=_BUNDLES)
            log.info("clicks are joined with served lists after commit %d", self._last)
        return self._attribution

    def _follow_users(self, secret: str) -> None:
        """Follow the clicks on lists of champion and challenger; start afresh when these roles change."""
        comparing = self.comparing
        sides = comparing.sides if comparing else None
        if comparing is None or sides is None:
            self._users = None
        elif self._users is None or self._users.sides != sides:
            self._users = UserClicks(sides, self.compare_seconds, comparing.is_counted, secret)

    def _settle(self) -> None:
        """Pass on the observations of users whose time for clicks is over; earlier windows must have been joined."""
        if self.comparing is not None and self._users is not None:
            self.comparing.count(self._users.settled(time.time() - self.delay_seconds))

    def _load(self, segment: str) -> pa.Table | None:
        try:
            return read_segment(self.store, segment)
        except CorruptArtefactError as error:
            self._leave_out(error)
        return None

    def _leave_out(self, error: CorruptArtefactError) -> None:
        """Count and log a damaged file, which is left out."""
        self.metrics.errors.inc()
        log.warning("left out: %s", error)

    def _join(self, attribution: Attribution, manifest: WindowManifest) -> None:
        if not attribution.bundles:
            return  # without lists the examples need not be read
        try:
            events = self._windows.all_examples(manifest, EVENT_COLUMNS)
            attribution.join(events)
            if self._users is not None:
                self._users.join(clicks_of(events))
        except CorruptArtefactError as error:
            self._leave_out(error)

    def _take_in_lists(self, attribution: Attribution) -> None:
        """Count the lists in new files of this hour and the hour before: a file appears some time after its start."""
        now = time.time()
        hours = {hour: self._seen.get(hour, set()) for hour in (hour_of(now - 3600), hour_of(now))}
        self._seen = hours
        for hour, seen in hours.items():
            for file in served_files(self.store, hour):
                if file.segment in seen or file.segment[:15] < _moment(self._started):
                    continue
                # Files are never rewritten: each is read once.
                lists = self._load(file.segment)
                seen.add(file.segment)
                if lists is not None:
                    attribution.show(file.segment, lists)
                    if self._users is not None:
                        self._users.show(lists)

    def _take_in_windows(self) -> None:
        try:
            while panes := self._windows.next(-1 if self._last is None else self._last):
                self._waiting += panes
                self._last = panes[-1].sequence
        except RetiredError as error:
            self._last = error.horizon.sequence - 1


def _moment(seconds: float) -> str:
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(seconds))


def bundle_items(store: Store, version: str) -> int | None:
    """Return the number of items of a bundle; None if the bundle was removed or is damaged."""
    try:
        return log_of_version(store, version).manifest(version).items
    except (FileNotFoundError, CorruptArtefactError):
        return None
