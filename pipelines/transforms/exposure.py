"""Exposure: items that were shown beside a clicked item and not chosen, joined when the window is committed.

Served lists are deleted after some days, while windows stay: so training reads exposed items from the window. A list is
evidence once one of its items was chosen: its user has looked at it, at least down to that item. Items above the click
were passed over, and the item right below it was seen most often (Joachims et al., "Accurately Interpreting
Clickthrough Data as Implicit Feedback", SIGIR 2005: "skip above" and "no-click next"). Items further down are no
evidence.
"""

import logging
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts import PADDING_KEY, CorruptArtefactError, ExposureCounts, Label, Store, examples_schema
from weir.contracts.base import columns
from weir.contracts.served_lists import ServedList, joined_list, lists_by_token, read_segment, segment_of
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.run import Run
from weir.pipelines.transforms.deduplicate import ShardWindow

__all__ = ["AttachExposure", "passed_over"]

logger = logging.getLogger(__name__)

_CACHED_BYTES: Final = 64 << 20
"""Size (in Arrow) of served lists that are cached from shard to shard."""


class _Click(NamedTuple):
    """A positive with an attribution token: its row, the token, and its user and item key."""

    row: int
    token: str
    user: int
    item: int


def passed_over(items: Sequence[int], item: int, chosen: set[int], limit: int) -> list[int]:
    """Return up to `limit` items of a served list that were seen and not chosen, the strongest evidence first.

    First come the items above the clicked `item`, the nearest first, then the item right below; items in `chosen` are
    left out.
    """
    at = items.index(item)
    seen = [*reversed(items[:at]), *items[at + 1 : at + 2]]
    return [other for other in dict.fromkeys(seen) if other not in chosen and other != item][:limit]


class AttachExposure(beam.DoFn):
    """Adds to a `ShardWindow` an `exposed` column (n, limit), and counts of the outcomes of its tokens.

    Lists that a server has not written yet are not awaited: their tokens count as ``unknown_list``.
    """

    def __init__(self, store: Store, run: Run, config: PipelineConfig) -> None:
        self._run, self._limit = run, config.exposed_items
        self._field = examples_schema(config.history_length, self._limit).field(columns.EXPOSED)
        self._lists = _Lists(store)

    def process(self, element: ShardWindow) -> Iterator[ShardWindow]:
        """Join one shard of a window."""
        keys, is_carried = self._carried(element.rows)
        clicks = _clicks(element.rows)
        fresh = [click for click in clicks if not is_carried[click.row]]
        outcomes, chosen = Counter(carried=len(clicks) - len(fresh)), _chosen(element.rows, fresh)
        for click, served in self._joined(fresh, outcomes):
            items = passed_over(served.items, click.item, chosen[click.user], self._limit)
            keys[click.row, : len(items)] = items
        outcomes["items"] = int((keys != PADDING_KEY).sum())
        rows = element.rows.select([name for name in element.rows.column_names if name != columns.EXPOSED])
        lists = pa.FixedSizeListArray.from_arrays(pa.array(keys.ravel()), self._limit)
        counts = ExposureCounts.model_validate(outcomes)
        yield replace(element, rows=rows.append_column(self._field, lists), exposure=counts)

    def _carried(self, rows: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the exposed items (n, limit) in rows of a rebuild's source windows, and a mask (n,) of these rows."""
        keys = np.full((len(rows), self._limit), PADDING_KEY, np.int64)
        if columns.EXPOSED not in rows.column_names:
            return keys, np.zeros(len(rows), np.bool_)
        brought = rows[columns.EXPOSED].combine_chunks()
        is_carried: npt.NDArray[np.bool_] = brought.is_valid().to_numpy(zero_copy_only=False)
        keys[is_carried] = brought.drop_null().flatten().to_numpy().reshape(-1, self._limit)
        return keys, is_carried

    def _joined(self, clicks: Iterable[_Click], outcomes: Counter[str]) -> Iterator[tuple[_Click, ServedList]]:
        """Yield each click whose served list is found, with the list; count the outcome of every click."""
        joined = set[tuple[str, int, int]]()
        for segment, of_segment in _by_segment(clicks).items():
            lists, missing = self._lists_of(segment, {click.token for click in of_segment})
            for click in of_segment:
                served = joined_list(lists.get(click.token, ()), click.user, click.item)
                if served is None:
                    outcomes["other_item" if click.token in lists else missing] += 1
                elif (place := (click.token, served.query, click.item)) in joined:
                    outcomes["repeated"] += 1
                else:
                    joined.add(place)
                    outcomes["joined"] += 1
                    yield click, served

    def _lists_of(self, segment: str | None, tokens: set[str]) -> tuple[dict[str, list[ServedList]], str]:
        """Return token -> served lists for a segment, and the outcome to count for a token without a list."""
        if segment is None:
            return {}, "not_kept"
        try:
            lists = self._lists.of(segment)
        except CorruptArtefactError as error:
            logger.warning("no exposure is joined with it: %s", error)
            return {}, "unreadable"
        return ({} if lists is None else lists_by_token(lists, tokens, self._run.secret)), "unknown_list"


@dataclass
class _Lists:
    """Cache of the served lists of the segments used last, up to `_CACHED_BYTES`; remembers missing segments, too."""

    store: Store
    _segments: OrderedDict[str, pa.Table | None] = field(default_factory=OrderedDict, init=False)
    _bytes: int = field(default=0, init=False)

    def of(self, segment: str) -> pa.Table | None:
        """Return the served lists of a segment, None if it does not exist; raises `CorruptArtefactError`."""
        if segment not in self._segments:
            self._segments[segment] = lists = read_segment(self.store, segment)
            self._bytes += 0 if lists is None else lists.nbytes
        self._segments.move_to_end(segment)
        while self._bytes > _CACHED_BYTES and len(self._segments) > 1:
            _, oldest = self._segments.popitem(last=False)
            self._bytes -= 0 if oldest is None else oldest.nbytes
        return self._segments[segment]


def _clicks(rows: pa.Table) -> list[_Click]:
    """Return the positives with a token, in order of time."""
    tokens, labels = rows[columns.ATTRIBUTION_TOKEN], rows[columns.LABEL]
    places = np.flatnonzero(pc.and_(pc.equal(labels, Label.POSITIVE), pc.is_valid(tokens)).to_numpy())
    clicks = rows.select([columns.ATTRIBUTION_TOKEN, columns.USER_KEY, columns.ITEM_KEY]).take(pa.array(places))
    return list(map(_Click, places.tolist(), *(column.to_pylist() for column in clicks.columns)))


def _chosen(rows: pa.Table, clicks: Iterable[_Click]) -> Mapping[int, set[int]]:
    """Return user -> items chosen in this pane, which are no negatives, for the users of the clicks."""
    is_positive = rows[columns.LABEL].to_numpy() == Label.POSITIVE
    users, items = (rows[name].to_numpy()[is_positive] for name in (columns.USER_KEY, columns.ITEM_KEY))
    has_clicked = np.isin(users, [click.user for click in clicks])
    chosen = defaultdict[int, set[int]](set)
    for user, item in zip(users[has_clicked].tolist(), items[has_clicked].tolist(), strict=True):
        chosen[user].add(item)
    return chosen


def _by_segment(clicks: Iterable[_Click]) -> Mapping[str | None, list[_Click]]:
    """Return segment of served lists -> its clicks; None for tokens whose list is not kept."""
    grouped = defaultdict[str | None, list[_Click]](list)
    for click in clicks:
        grouped[segment_of(click.token)].append(click)
    return grouped
