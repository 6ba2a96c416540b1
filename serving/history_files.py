"""The history files that a server has at hand: all of them on local disk, those fetched so far of an object store."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from weir.contracts import HistoryFile, HistoryFiles, LocalCache, Store

__all__ = ["LARGE", "FilesAtHand", "readable"]

LARGE: Final = 64 << 20
"""Files of more bytes have a lane of their own, so that the small ones of new commits do not wait for them."""

_RETRY_SECONDS: Final = 30.0
"""How long a file rests that could not be fetched."""


@dataclass
class FilesAtHand:
    """Which files are here; one thread per lane may call `fetch`."""

    store: Store
    cache: LocalCache
    _fetched: set[str] = field(default_factory=set, init=False, repr=False)
    _resting: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def has(self, file: HistoryFile) -> bool:
        """Say whether a file can be opened without waiting."""
        return self.store.local_path is not None or file.name in self._fetched

    def missing(self, wanted: HistoryFiles) -> list[HistoryFile]:
        """Return the files that are not here, in the order in which to fetch them: of each shard the newest first."""
        ages = [(age, file) for files in wanted.shards.values() for age, file in enumerate(reversed(files))]
        return [file for _, file in sorted(ages, key=_urgency) if not self.has(file)]

    def due(self, wanted: HistoryFiles, *, large: bool) -> list[HistoryFile]:
        """Return the missing files of a lane that the cache has room for and that have not just failed."""
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
        """Forget the names of files that no shard needs any more."""
        names = {file.name for file in wanted.files}
        self._fetched &= names
        self._resting = {name: until for name, until in self._resting.items() if name in names}


def _urgency(file: tuple[int, HistoryFile]) -> tuple[int, int]:
    age, entry = file
    return age, entry.size


def readable(
    before: tuple[HistoryFile, ...], wanted: tuple[HistoryFile, ...], has: Callable[[HistoryFile], bool]
) -> tuple[HistoryFile, ...]:
    """Return the files of a shard that answer for it, oldest first, given those that did `before`.

    They are those wanted as soon as all are here. Until then those before stay: a file on its way may replace them.
    Files that have come take their place in the order, the newest behind all others.
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
