"""What a run has seen of the log: how far it was read, how much was refused, which ids claim which keys."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from apache_beam.runners.worker.statecache import CacheAware

from weir.contracts import Keys, LetterFile

__all__ = ["Claims", "LettersWritten", "Owners", "PartitionProgress", "Progress"]

Claims = Keys
"""(n, 2): item keys, each with the check of an id that claims it (`weir.pipelines.key_owners`)."""

Owners = dict[int, int]
"""Item key -> check of the id that owns it."""


@dataclass(frozen=True)
class LettersWritten:
    """A file of dead letters that waits for its commit; `last` is the highest position in it."""

    file: LetterFile
    last: int


@dataclass
class PartitionProgress:
    """What a run has seen of a partition: position after its last row, dead letters, lowest position by window.

    `skipped` counts messages without a value, those of earlier runs left out.
    """

    stop: int = 0
    dead: int = 0
    lowest: dict[int, int] = field(default_factory=dict)
    skipped: int = 0

    def add(self, other: "PartitionProgress") -> None:
        """Add what was seen of another part of the partition."""
        self.stop = max(self.stop, other.stop)
        self.dead += other.dead
        self.skipped += other.skipped
        for window, position in other.lowest.items():
            self.lowest[window] = min(position, self.lowest.get(window, position))


@dataclass
class Progress(CacheAware):
    """What a run has seen of the whole log; `max_event_ms` is the newest event, -1 where there was none.

    `claims` are those on keys that nobody owned before, batch by batch; of keys that several ids claim, `contested` has
    the owner once all claims are settled. `wanted` is the position up to which a partition was to be read, where
    reading may end before.
    """

    max_event_ms: int = -1
    partitions: dict[str, PartitionProgress] = field(default_factory=dict)
    claims: list[Claims] = field(default_factory=list)
    contested: Owners = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)

    def get_referents_for_cache(self) -> list[Any]:
        """Return nothing: Beam would measure each claim, for a cache that holds this one value."""
        return []

    @property
    def is_cut(self) -> bool:
        """Whether something that was to be read was not: the input is not complete."""
        return any(self.partitions[key].stop < stop for key, stop in self.wanted.items())

    def add(self, others: Iterable["Progress"]) -> "Progress":
        """Add what was seen elsewhere, and return this."""
        for other in others:
            self.max_event_ms = max(self.max_event_ms, other.max_event_ms)
            for key, seen in other.partitions.items():
                self.partitions.setdefault(key, PartitionProgress()).add(seen)
            self.claims += other.claims
            self.wanted |= other.wanted
        return self

    def settle(self) -> "Progress":
        """Find out who owns the contested keys, drop the claims, and return this: all of them must be here."""
        keys, checks = np.concatenate([np.empty((0, 2), np.int64), *self.claims]).T
        order = np.lexsort((checks, keys))
        keys, checks = keys[order], checks[order]
        is_first = np.diff(keys, prepend=~keys[:1]) != 0
        lowest = checks[is_first][np.cumsum(is_first) - 1]
        lost = checks != lowest
        self.contested = dict(zip(keys[lost].tolist(), lowest[lost].tolist(), strict=True))
        self.claims = []
        return self
