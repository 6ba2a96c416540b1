"""Diversity: a cap on the items per tag in one answer.

Items are taken best first; an item is skipped if one of its tags has reached the cap. While fewer than k items are
taken, the remaining rows without a capped tag are searched, ever deeper, until no row is left.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from weir.contracts import IndexRows
from weir.contracts.bundles.rows import BundleRows
from weir.serving.index.eligibility import CatalogueView
from weir.serving.index.popular import NO_ROWS, rowset

__all__ = ["DEEPER", "CappedSelection", "Ranked", "TagCap"]

Floats = npt.NDArray[np.float32]
Ranked = tuple[Floats, IndexRows]

DEEPER: Final = 4
"""Rows fetched per wanted row, and the factor by which each further search fetches more rows."""


class TagCap(NamedTuple):
    """At most `most` items of each tag that begins with `prefix`."""

    most: int
    prefix: str = ""


@dataclass
class CappedSelection:
    """Selects up to `wanted` of a bundle's rows within a tag cap; `tagged` has the tags of each row."""

    tagged: CatalogueView
    rows: BundleRows
    cap: TagCap
    wanted: int
    _taken: list[tuple[float, int]] = field(default_factory=list)
    _counts: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def done(self) -> bool:
        """Whether as many rows as `wanted` are taken."""
        return len(self._taken) >= self.wanted

    @property
    def taken(self) -> Ranked:
        """Scores and numbers of the taken rows, best first."""
        # A further search in the lists may find better rows that an earlier one missed.
        ranked = sorted(self._taken, key=lambda pair: -pair[0])
        return np.array([score for score, _ in ranked], np.float32), IndexRows(
            np.array([row for _, row in ranked], np.int64)
        )

    def take(self, scores: Floats, rows: IndexRows) -> None:
        """Take the `rows` (n,) that the cap allows; rows and scores are given best first."""
        for at in range(0, len(rows), self.wanted):
            part = slice(at, at + self.wanted)
            self._take(scores[part].tolist(), IndexRows(rows[part]))
            if self.done:
                return

    def go_on(self, left: BitMap, rank: Callable[[BitMap, int], Ranked]) -> None:
        """Take further rows from the set `left`, by deeper and deeper searches, until enough are taken.

        `rank` searches a set of rows for its best `count` rows, and returns fewer only if it finds no more.
        """
        count = DEEPER * self.wanted
        while not self.done and (left := left - self._full()):
            count = min(DEEPER * count, len(left))
            scores, rows = rank(left, count)
            self.take(scores, rows)
            if len(rows) < count:
                return
            left = left - rowset(rows)

    def _take(self, scores: list[float], rows: IndexRows) -> None:
        for score, row, tags in zip(scores, rows.tolist(), self._tags_of(rows), strict=True):
            if not self.done and all(self._counts[tag] < self.cap.most for tag in tags):
                self._taken.append((score, row))
                for tag in tags:
                    self._counts[tag] += 1

    def _full(self) -> BitMap:
        """Return the rows with a tag that has reached the cap."""
        names, full = self.tagged.catalogue.tags, [tag for tag, taken in self._counts.items() if taken >= self.cap.most]
        return BitMap.union(NO_ROWS, *(self.tagged.tags.get(names[tag], NO_ROWS) for tag in full))

    def _tags_of(self, rows: IndexRows) -> list[list[int]]:
        """Return the numbers of each row's tags that begin with the cap's prefix."""
        catalogue = self.tagged.catalogue
        entries = self.tagged.entries_of(self.rows, rows)
        known = np.flatnonzero(entries >= 0)
        places, numbers = catalogue.tags_of(entries[known])
        first, end = catalogue.numbers_of(self.cap.prefix)
        capped = (first <= numbers) & (numbers < end)
        tags: list[list[int]] = [[] for _ in rows]
        for place, number in zip(known[places[capped]].tolist(), numbers[capped].tolist(), strict=True):
            tags[place].append(number)
        return tags
