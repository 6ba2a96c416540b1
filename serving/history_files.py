"""The history files available to a server: all of them on local disk, only the fetched ones of an object store."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from weir.contracts import HistoryFile, HistoryFiles, LocalCache, Store

__all__ = ["LARGE", "FilesAtHand", "readable"]

LARGE: Final = 64 << 20
"""Bytes above which files have a fetch lane of their own, so that small files of new commits need not wait."""

_RETRY_SECONDS: Final = 30.0
"""Pause before a failed fetch is retried."""


@dataclass
class FilesAtHand:
    """Tracks which files are available locally; one thread per lane may call `fetch`."""

    store: Store
    cache: LocalCache
    _fetched: set[str] = field(default_factory=set, init=False, repr=False)
    _resting: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def has(self, file: HistoryFile) -> bool:
        """Return whether a file can be opened without a fetch."""
        return self.store.local_path is not None or file.name in self._fetched

    def missing(self, wanted: HistoryFiles) -> list[HistoryFile]:
        """Return the files to fetch, in order: the newest file of every shard first, small ones before large ones."""
        ages = [(age, file) for files in wanted.shards.values() for age, file in enumerate(reversed(files))]
        return [file for _, file in sorted(ages, key=_urgency) if not self.has(file)]

    def due(self, wanted: HistoryFiles, *, large: bool) -> list[HistoryFile]:
        """Return the missing files of a lane that fit into the cache and have not just failed."""
        room = self.cache.limit - sum(file.size for file in wanted.files if self.has(file))
        fitting, now = [], time.monotonic()
        for file in self.missing(wanted):
            room -= file.size
            if room >= 0 and now >= self._resting.get(file.name, now):
                fitting.append(file)
        return [file for file in fitting if (file.size > LARGE) == large]

    def fetch(self, file: HistoryFile) -> None:
        """Fetch a file; raises `CorruptArtefactError`, and what the object store raises."""
        self._resting[file.name] = time.monotonic() + _RETRY_SECONDS
        self.cache.path(self.store, file)
        self._fetched.add(file.name)
        del self._resting[file.name]

    def forget_all_but(self, wanted: HistoryFiles) -> None:
        """Drop the state of files that are no longer `wanted`."""
        names = {file.name for file in wanted.files}
        self._fetched &= names
        self._resting = {name: until for name, until in self._resting.items() if name in names}


def _urgency(file: tuple[int, HistoryFile]) -> tuple[int, int]:
    age, entry = file
    return age, entry.size


def readable(
    before: tuple[HistoryFile, ...], wanted: tuple[HistoryFile, ...], has: Callable[[HistoryFile], bool]
) -> tuple[HistoryFile, ...]:
    """Return the files of a shard that look-ups read, oldest first, given those read `before`.

    If all `wanted` files are available, these. Otherwise the files read before stay, as a missing one may replace
    them, and available new files are inserted in their order, the newest last.
    """
    if all(map(has, wanted)):
        return wanted
    found, place = list(before), len(before)
    for file in reversed(wanted):
        if file in found:
            place = found.index(file)
        elif has(file):
            found.insert(place, file)
    return tuple(found)
