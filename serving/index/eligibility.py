"""The rows that may be returned now, as bitmaps over index rows: by the catalogue, the takedown list, and filters.

The server, not the trainer, builds the bitmaps when it loads a bundle version: a change of the catalogue then needs no
new bundle, and a bundle needs no catalogue. A delta changes few rows, so only these rows are changed in the bitmaps of
the version before.

An `Eligibility` is valid for one version, one catalogue and one takedown list, until the availability of an item
changes. The search thread owns it, and makes a new one as soon as one of these has changed.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from weir.contracts import PADDING_KEY, IndexRows, ItemKeys
from weir.contracts.base.arrays import ascending
from weir.contracts.bundles.rows import BundleRows
from weir.contracts.interactions.catalogue import ALWAYS, Catalogue
from weir.serving.index.popular import NO_ROWS, bits_of, rows_in, rowset

if TYPE_CHECKING:
    from weir.serving.index.cold import ColdItems

__all__ = ["NO_TAGS", "CatalogueView", "Eligibility", "Limited", "RowMask", "TagFilter", "moved_rows"]

Int64 = npt.NDArray[np.int64]

_REMEMBERED: Final = 64
"""Most tag filters whose rows are cached."""

_RANKED: Final = 1024
"""Number of most popular rows that `RowMask.most_popular` computes at once and caches."""

_SHORTEST: Final = 1.0
"""Least seconds between two checks of availability, however often it changes."""


class Limited(NamedTuple):
    """Rows (n,) whose items are only available from `starts` until before `ends`, milliseconds since 1970."""

    rows: Int64
    starts: Int64
    ends: Int64

    def closed(self, now_ms: int) -> BitMap:
        """Return the rows that are not available at `now_ms`."""
        return rowset(self.rows[(self.starts > now_ms) | (self.ends <= now_ms)])

    def next_change(self, now_ms: int) -> int:
        """Return the next time after `now_ms` at which the availability of a row changes; `ALWAYS[1]`: never."""
        times = np.concatenate([self.starts, self.ends])
        return int(times.min(where=times > now_ms, initial=ALWAYS[1]))

    def replaced(self, rows: Int64, other: "Limited") -> "Limited":
        """Return a copy without `rows`, and with the rows of `other` added."""
        left = ~np.isin(self.rows, rows)
        return Limited(*(np.concatenate([mine[left], new]) for mine, new in zip(self, other, strict=True)))


@dataclass(frozen=True, eq=False)
class CatalogueView:
    """What the catalogue says about the rows of one bundle version; immutable.

    `live` rows hold an item, `tags` maps each tag to its rows, and `limited` has the rows of limited availability.
    Items that are not in the catalogue have no tags and are always available. `cold` has the catalogue's items that the
    bundle lacks. `secret` is the store's key secret.
    """

    catalogue: Catalogue
    secret: str
    live: BitMap
    tags: Mapping[str, BitMap]
    limited: Limited
    cold: "ColdItems | None" = None

    @classmethod
    def of(cls, catalogue: Catalogue, rows: BundleRows, secret: str) -> "CatalogueView":
        """Build the view of a bundle's rows by looking up every row in a catalogue."""
        live = rows.live
        nothing = cls(catalogue, secret, rowset(live), {}, Limited(*(np.empty(0, np.int64) for _ in range(3))))
        entries = nothing.entries_of(rows, live)
        found = {catalogue.tags[number]: rowset(tagged) for number, tagged in nothing.tagged(entries, live)}
        return cls(catalogue, secret, nothing.live, found, nothing.limits(entries, live))

    def moved(self, before: BundleRows, after: BundleRows) -> "CatalogueView":
        """Return the view of a later version on the same complete bundle; only rows that deltas changed are looked up.

        `before` are the rows of this view's version, `after` the rows of the later version.
        """
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
        return CatalogueView(
            self.catalogue, self.secret, live, tags, self.limited.replaced(moved, self.limits(entries, there))
        )

    def entries_of(self, rows: BundleRows, some: Int64) -> Int64:
        """Return the catalogue entry of the item in each of `some` rows; -1 for an item without an entry."""
        return self.catalogue.entries(self.secret).look_up(ItemKeys(rows.keys[some]))

    def tagged(self, entries: Int64, rows: Int64) -> Iterator[tuple[int, Int64]]:
        """Yield each tag's number with the `rows` (n,) that have the tag; `entries` (n,) are the rows' entries."""
        known = entries >= 0
        places, numbers = self.catalogue.tags_of(entries[known])
        order = np.argsort(numbers, kind="stable")
        numbers, tagged = numbers[order], rows[known][places][order]
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for start, end in zip(starts, np.append(starts[1:], len(numbers)), strict=False):
            yield int(numbers[start]), tagged[start:end]

    def limits(self, entries: Int64, rows: Int64) -> Limited:
        """Return which of `rows` (n,) have limited availability; `entries` (n,) are their catalogue entries."""
        known = entries >= 0
        starts, ends = self.catalogue.starts[entries[known]], self.catalogue.ends[entries[known]]
        ever = (starts == ALWAYS[0]) & (ends == ALWAYS[1])
        return Limited(rows[known][~ever], starts[~ever], ends[~ever])


def moved_rows(before: BundleRows, after: BundleRows) -> IndexRows:
    """Return the rows whose item was replaced, added or removed; both versions share their base."""
    rows = ascending(np.concatenate([before.keys.over.keys, after.keys.over.keys]))
    return IndexRows(rows[_keys(before, rows) != _keys(after, rows)])


def _live(rows: BundleRows, some: Int64) -> Int64:
    """Return the rows among `some` that hold an item."""
    live: Int64 = some[_keys(rows, some) != PADDING_KEY]
    return live


def _keys(rows: BundleRows, some: Int64) -> Int64:
    """Return the item keys at `some` rows; `PADDING_KEY` for a row number beyond the last row."""
    keys = np.full(len(some), PADDING_KEY, np.int64)
    there = some < len(rows)
    keys[there] = rows.keys[some[there]]
    return keys


class TagFilter(NamedTuple):
    """A filter by tags: an item passes if it has one of `any`, all of `all` and none of `none`."""

    any: tuple[str, ...] = ()
    all: tuple[str, ...] = ()
    none: tuple[str, ...] = ()

    @property
    def tags(self) -> int:
        """Number of tags in the filter."""
        return sum(map(len, self))


NO_TAGS: Final = TagFilter()


@dataclass(eq=False)
class RowMask:
    """The rows of a bundle version that pass a filter: as a set and, on demand, as an array and a bit mask.

    `size` is the number of all rows of the version. `kept` caches data that searches derive from the set, such as the
    passing rows by list.
    """

    rows: BitMap
    size: int
    kept: dict[str, Any] = field(default_factory=dict)
    _popular: IndexRows = field(default_factory=lambda: IndexRows(np.empty(0, np.int64)))

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def array(self) -> IndexRows:
        """The passing rows, ascending, (n,)."""
        return rows_in(self.rows)

    @cached_property
    def bits(self) -> npt.NDArray[np.uint8]:
        """The mask: a bit for each row of the version, the lowest row first."""
        return bits_of(self.array, self.size)

    def split(self, row: int) -> "tuple[RowMask, RowMask]":
        """Return the passing rows before `row`, and the passing rows from `row` on; cached, as `row` never changes."""
        if "split" not in self.kept:
            before = BitMap(range(row)) & self.rows
            self.kept["split"] = RowMask(before, self.size), RowMask(self.rows - before, self.size)
        found: tuple[RowMask, RowMask] = self.kept["split"]
        return found

    @contextmanager
    def without(self, rows: IndexRows) -> Iterator[None]:
        """Context manager: clear the bits of `rows` (which may repeat) in `bits`; `rows` and `array` stay the same."""
        at, bits = np.unique(rows >> 3), self.bits
        before = bits[at]
        np.bitwise_and.at(bits, rows >> 3, ~np.left_shift(1, rows & 7).astype(np.uint8))
        try:
            yield
        finally:
            bits[at] = before

    def shown(self, rows: IndexRows) -> IndexRows:
        """Return the given rows whose bit is set in `bits`."""
        return IndexRows(rows[(self.bits[rows >> 3] >> (rows & 7)) & 1 > 0])

    def among(self, rows: IndexRows) -> int:
        """Return how many distinct ones of the given rows pass; `rows` may repeat."""
        return len(self.rows & rowset(rows)) if len(rows) else 0

    def most_popular(self, popularity: Callable[[IndexRows], npt.NDArray[np.float64]], count: int) -> IndexRows:
        """Return the `count` most popular passing rows, or all if there are fewer; ties by ascending row.

        `popularity` returns the popularity of rows.
        """
        count = min(count, len(self))
        if len(self._popular) < count:
            wanted = min(len(self), max(count, _RANKED))
            values = popularity(self.array)
            best = np.argpartition(-values, wanted - 1)[:wanted]
            self._popular = IndexRows(self.array[best[np.lexsort((best, -values[best]))]])
        return IndexRows(self._popular[:count])


@dataclass(eq=False)
class Eligibility:
    """The rows of a bundle version that may be returned, in the time from `since` until before `until`.

    `blocked` rows must not be returned: their items are taken down (`down`, item keys) or not available. `tagged` is
    the catalogue's view of the version, None without a catalogue.
    """

    rows: BundleRows
    tagged: CatalogueView | None
    down: ItemKeys
    blocked: BitMap
    since: float
    until: float
    _passing: OrderedDict[TagFilter, RowMask] = field(default_factory=OrderedDict)

    @classmethod
    def of(cls, rows: BundleRows, tagged: CatalogueView | None, down: ItemKeys, now: float) -> "Eligibility":
        """Compute the eligibility at time `now`, seconds since 1970."""
        taken_down = rows.item_rows.look_up(down)
        blocked, until = rowset(taken_down[taken_down >= 0]), np.inf
        if tagged is not None:
            now_ms = int(now * 1000)
            blocked |= tagged.limited.closed(now_ms)
            until = max(now + _SHORTEST, tagged.limited.next_change(now_ms) / 1000)
        return cls(rows, tagged, down, blocked, now, until)

    def holds(self, tagged: CatalogueView | None, down: ItemKeys, now: float) -> bool:
        """Return whether the eligibility is still valid at `now`, with this catalogue and takedown list."""
        return self.tagged is tagged and self.down is down and self.since <= now < self.until

    def passing(self, tags: TagFilter, allowed: ItemKeys | None) -> RowMask:
        """Return the rows that pass a filter by tags and by item keys and are not blocked; cached by tags.

        `allowed` are the keys of the allowed items, None: every item.
        """
        if allowed is not None:
            rows = self.rows.item_rows.look_up(allowed)
            return self._made(tags, rowset(rows[rows >= 0]))
        mask = self._passing.get(tags)
        if mask is None:
            mask = self._passing[tags] = self._made(tags, None)
            if len(self._passing) > _REMEMBERED:
                self._passing.popitem(last=False)
        self._passing.move_to_end(tags)
        return mask

    def _made(self, tags: TagFilter, start: BitMap | None) -> RowMask:
        """Compute the rows among `start` (None: all) that pass a filter by tags and are not blocked."""
        of = self.tagged.tags if self.tagged is not None else {}
        sets = [of.get(tag, NO_ROWS) for tag in tags.all]
        if tags.any:
            sets.append(BitMap.union(NO_ROWS, *(of.get(tag, NO_ROWS) for tag in tags.any)))
        if start is not None:
            sets.append(start)
        sets = sorted(sets, key=len) or [self._live]
        passing = sets[0]
        for other in sets[1:]:
            passing = passing & other
        for other in (*(of.get(tag, NO_ROWS) for tag in tags.none), self.blocked):
            passing = passing - other
        return RowMask(passing, len(self.rows))

    @cached_property
    def _live(self) -> BitMap:
        return self.tagged.live if self.tagged is not None else rowset(self.rows.live)
