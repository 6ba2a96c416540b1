"""Attribution of clicks to served lists: click-through and coverage by bundle, and click-through by position.

An event is joined with a served list by the token of the answer. The event is a click if it is positive, its item is in
the list and, if the query named a user, the event is this user's. Only the first of several events on one item of a
list counts.

All rates are over lists (macro over lists): click-through is the share of lists with a click. The click-through of a
position is the share, among the lists that are long enough, whose item at this position was clicked.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts import Keys, Label, hash_ids
from weir.contracts.base import columns
from weir.contracts.bundles.variants import variant_of
from weir.contracts.served_lists import ServedList, joined_list, lists_by_token, segment_of

__all__ = ["EVENT_COLUMNS", "OUTCOMES", "POSITIONS", "Attribution", "Click", "Shown", "clicks_of"]

POSITIONS: Final = 100
"""Positions of a list that are counted separately."""

EVENT_COLUMNS: Final = [columns.USER_KEY, columns.ITEM_KEY, columns.LABEL, columns.ATTRIBUTION_TOKEN]
"""Columns of a window's examples that `Attribution.join` reads."""

OUTCOMES: Final = ("joined", "repeated", "not_kept", "unknown_list", "other_item")
"""Outcomes of an event with a token, explained at `Attribution`."""

_Ints = npt.NDArray[np.int64]


class Click(NamedTuple):
    """A positive event with an attribution token: the token, and the keys of item and user."""

    token: str
    item: int
    user: int


def _no_counts() -> _Ints:
    return np.zeros(POSITIONS, np.int64)


@dataclass
class Shown:
    """Counts of the lists served from one bundle, and of their clicks.

    `fallbacks` lists had popular items only. `shown` and `clicked` (POSITIONS,) count lists and clicks by position;
    `items` are the keys of all shown items, `segments` the names of the files whose lists are counted.
    """

    lists: int = 0
    fallbacks: int = 0
    shown: _Ints = field(default_factory=_no_counts)
    clicked: _Ints = field(default_factory=_no_counts)
    clicked_lists: int = 0
    items: Keys = field(default_factory=lambda: np.empty(0, np.int64))
    segments: set[str] = field(default_factory=set)
    _clicks: dict[tuple[str, int], set[int]] = field(default_factory=dict)

    @property
    def click_through(self) -> float:
        """The share of lists with a click."""
        return self.clicked_lists / self.lists if self.lists else 0.0

    def add(self, segment: str, rows: pa.Table, secret: str) -> None:
        """Count the lists `rows` of the file `segment`, all from this bundle; `secret` is the store's key secret."""
        lists = rows[columns.ITEM_IDS].combine_chunks()
        self.segments.add(segment)
        self.lists += len(rows)
        self.fallbacks += pc.sum(rows[columns.FALLBACK]).as_py() or 0
        lengths = np.minimum(pc.list_value_length(lists).to_numpy(), POSITIONS)
        ending = np.bincount(lengths, minlength=POSITIONS + 1)
        self.shown += ending[:0:-1].cumsum()[::-1]
        self.items = np.union1d(self.items, hash_ids(pc.unique(pc.list_flatten(lists)), secret))

    def click(self, token: str, query: int, position: int) -> bool:
        """Count a click on an item of a list, unless the item was clicked before; return whether it was counted."""
        clicked = self._clicks.setdefault((token, query), set())
        if position in clicked:
            return False
        self.clicked_lists += not clicked
        clicked.add(position)
        if position < POSITIONS:
            self.clicked[position] += 1
        return True


@dataclass
class Attribution:
    """Joins served lists and events; `bundles` has the counts of the `kept` bundles that appeared last (None: all).

    `load` returns the lists in a file, None if they were removed; `secret` is the store's key secret. `outcomes`
    counts positive events with a token: ``joined``: counted as a click; ``repeated``: the item was clicked before;
    ``not_kept``: the answer was not sampled for storage; ``unknown_list``: the list was removed or never counted;
    ``other_item``: the list does not have the item or was another user's.
    """

    load: Callable[[str], pa.Table | None]
    secret: str = ""
    kept: int | None = None
    bundles: dict[str, Shown] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)

    def show(self, segment: str, lists: pa.Table) -> None:
        """Count the served `lists` of the file `segment`."""
        versions = lists[columns.BUNDLE_VERSION]
        for version in pc.unique(versions).to_pylist():
            shown = self.bundles.setdefault(version, Shown())
            shown.add(segment, lists.filter(pc.equal(versions, version)), self.secret)
        while self.kept is not None and len(self.bundles) > self.kept:
            del self.bundles[next(iter(self.bundles))]

    def by_position(self) -> list[tuple[int, int]]:
        """Return (lists that reach the position, clicks) for each shown position, from the first on."""
        shown = sum((counts.shown for counts in self.bundles.values()), start=_no_counts()).tolist()
        clicked = sum((counts.clicked for counts in self.bundles.values()), start=_no_counts()).tolist()
        return [(count, clicks) for count, clicks in zip(shown, clicked, strict=True) if count]

    def by_variant(self) -> dict[str, tuple[int, int]]:
        """Return (lists, lists with a click) for each served variant."""
        variants = dict[str, tuple[int, int]]()
        for version, shown in self.bundles.items():
            lists, clicked = variants.get(variant_of(version), (0, 0))
            variants[variant_of(version)] = lists + shown.lists, clicked + shown.clicked_lists
        return variants

    def join(self, events: pa.Table) -> None:
        """Count the clicks among a window's events, which have the columns `EVENT_COLUMNS`; raises as `load`."""
        by_segment = defaultdict[str, list[Click]](list)
        for click in clicks_of(events):
            segment = segment_of(click.token)
            if segment is None:
                self.outcomes["not_kept"] += 1
            else:
                by_segment[segment].append(click)
        for segment, clicks in by_segment.items():
            is_counted = any(segment in shown.segments for shown in self.bundles.values())
            lists = self.load(segment) if is_counted else None
            self._join(
                clicks, {} if lists is None else lists_by_token(lists, {click.token for click in clicks}, self.secret)
            )

    def _join(self, clicks: Iterable[Click], lists: dict[str, list[ServedList]]) -> None:
        for click in clicks:
            counted = [served for served in lists.get(click.token, ()) if served.version in self.bundles]
            holding = joined_list(counted, click.user, click.item)
            if holding is None:
                self.outcomes["other_item" if counted else "unknown_list"] += 1
                continue
            shown = self.bundles[holding.version]
            is_new = shown.click(click.token, holding.query, holding.items.index(click.item))
            self.outcomes["joined" if is_new else "repeated"] += 1


def clicks_of(events: pa.Table) -> Iterator[Click]:
    """Yield the positive events with a token, of events with the columns `EVENT_COLUMNS`."""
    is_click = pc.and_(pc.equal(events[columns.LABEL], Label.POSITIVE), pc.is_valid(events[columns.ATTRIBUTION_TOKEN]))
    clicks = events.filter(is_click)
    names = (columns.ATTRIBUTION_TOKEN, columns.ITEM_KEY, columns.USER_KEY)
    return map(Click, *(clicks[name].to_pylist() for name in names))
