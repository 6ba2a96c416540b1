"""The catalogue mapped to the rows of one bundle: bitmaps of rows per tag, and rows with limited availability.

The server builds these bitmaps over index rows when it loads a version, not the trainer: a change of the catalogue then
needs no new bundle, and a bundle needs no catalogue. As a delta moves few items to other rows, only these rows are
changed in the bitmaps of the version before.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from weir.contracts import PADDING_KEY, IndexRows, ItemKeys
from weir.contracts.ascending import ascending
from weir.contracts.bundle_rows import BundleRows
from weir.contracts.catalogue import ALWAYS, Catalogue
from weir.serving.rowsets import NO_ROWS, rowset

if TYPE_CHECKING:
    from weir.serving.cold import ColdItems

__all__ = ["Limited", "TaggedRows", "moved_rows"]

Int64 = npt.NDArray[np.int64]


class Limited(NamedTuple):
    """Rows (n,) with limited availability: from `starts` until before `ends`, milliseconds since 1970."""

    rows: Int64
    starts: Int64
    ends: Int64

    def closed(self, now_ms: int) -> BitMap:
        """Return the rows that are not available at a time."""
        return rowset(self.rows[(self.starts > now_ms) | (self.ends <= now_ms)])

    def next_change(self, now_ms: int) -> int:
        """Return the next time after `now_ms` at which availability changes; `ALWAYS[1]` if it never does."""
        times = np.concatenate([self.starts, self.ends])
        return int(times.min(where=times > now_ms, initial=ALWAYS[1]))

    def replaced(self, rows: Int64, other: "Limited") -> "Limited":
        """Return a copy without `rows`, and with the rows of `other` added."""
        left = ~np.isin(self.rows, rows)
        return Limited(*(np.concatenate([mine[left], new]) for mine, new in zip(self, other, strict=True)))


@dataclass(frozen=True, eq=False)
class TaggedRows:
    """The catalogue's view of one version: `live` rows hold an item, `tags` maps each tag to its rows.

    Immutable. Items that are not in the catalogue have no tags and are always available. `cold` has the catalogue's
    items that the bundle lacks.
    """

    catalogue: Catalogue
    secret: str
    live: BitMap
    tags: Mapping[str, BitMap]
    limited: Limited
    cold: "ColdItems | None" = None

    @classmethod
    def of(cls, catalogue: Catalogue, rows: BundleRows, secret: str) -> "TaggedRows":
        """Look up every row in a catalogue."""
        live = rows.live
        nothing = cls(catalogue, secret, rowset(live), {}, Limited(*(np.empty(0, np.int64) for _ in range(3))))
        entries = nothing.entries_of(rows, live)
        found = {catalogue.tags[number]: rowset(tagged) for number, tagged in nothing.tagged(entries, live)}
        return cls(catalogue, secret, nothing.live, found, nothing.limits(entries, live))

    def moved(self, before: BundleRows, after: BundleRows) -> "TaggedRows":
        """Return the view of a later version with the same base: only rows that deltas changed are looked up."""
        moved = moved_rows(before, after)
        if not len(moved):
            return self
        live = self.live.copy()
        tags = dict(self.tags)
        for rows, sign in ((before, False), (after, True)):
            there = _live(rows, moved)
            live = live | rowset(there) if sign else live - rowset(there)
            for number, tagged in self.tagged(self.entries_of(rows, there), there):
                had = tags.get(self.catalogue.tags[number], NO_ROWS)
                tags[self.catalogue.tags[number]] = had | rowset(tagged) if sign else had - rowset(tagged)
        entries = self.entries_of(after, there)
        return TaggedRows(
            self.catalogue, self.secret, live, tags, self.limited.replaced(moved, self.limits(entries, there))
        )

    def entries_of(self, rows: BundleRows, some: Int64) -> Int64:
        """Return the catalogue entry of the item in each of `some` rows; -1 if it has none."""
        return self.catalogue.entries(self.secret).look_up(ItemKeys(rows.keys[some]))

    def tagged(self, entries: Int64, rows: Int64) -> Iterator[tuple[int, Int64]]:
        """Yield the number of each tag and which of `rows` (n,) have it; `entries` (n,) are their catalogue entries."""
        known = entries >= 0
        places, numbers = self.catalogue.tags_of(entries[known])
        order = np.argsort(numbers, kind="stable")
        numbers, tagged = numbers[order], rows[known][places][order]
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for start, end in zip(starts, np.append(starts[1:], len(numbers)), strict=False):
            yield int(numbers[start]), tagged[start:end]

    def limits(self, entries: Int64, rows: Int64) -> Limited:
        """Return the rows of limited availability; `entries` are the catalogue entries of `rows`."""
        known = entries >= 0
        starts, ends = self.catalogue.starts[entries[known]], self.catalogue.ends[entries[known]]
        ever = (starts == ALWAYS[0]) & (ends == ALWAYS[1])
        return Limited(rows[known][~ever], starts[~ever], ends[~ever])


def moved_rows(before: BundleRows, after: BundleRows) -> IndexRows:
    """Return the rows whose item was replaced, added or removed; both versions share their base."""
    rows = ascending(np.concatenate([before.keys.over.keys, after.keys.over.keys]))
    return IndexRows(rows[_keys(before, rows) != _keys(after, rows)])


def _live(rows: BundleRows, some: Int64) -> Int64:
    live: Int64 = some[_keys(rows, some) != PADDING_KEY]
    return live


def _keys(rows: BundleRows, some: Int64) -> Int64:
    """Return the keys at rows; `PADDING_KEY` beyond the last row."""
    found = np.full(len(some), PADDING_KEY, np.int64)
    there = some < len(rows)
    found[there] = rows.keys[some[there]]
    return found
