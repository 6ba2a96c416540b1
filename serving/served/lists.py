"""Collect served lists in memory, up to a limit, until they are written; answers never wait for this."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa

from weir.contracts import Key
from weir.contracts.served import SERVED_SCHEMA, new_segment, served_token
from weir.serving.metrics import ServedMetrics
from weir.serving.queries import ByUser, Hits, Query
from weir.serving.served.config import ServedConfig

__all__ = ["Batch", "ServedLists"]

_AT_ONCE: Final = 32
"""Lists converted to columns per step, which holds the interpreter's lock: some 100 us for lists of 100 items."""

_RANGE: Final = 1 << 64


class _List(NamedTuple):
    token: str
    query: int
    user: Key | None
    at: float
    version: str
    fallback: bool
    items: list[str]


@dataclass
class Batch:
    """Lists that go into one file, named by `segment`; `items` counts the items of all lists."""

    segment: str = field(default_factory=new_segment)
    lists: list[_List] = field(default_factory=list)
    items: int = 0

    def table(self) -> pa.Table:
        """Return the lists as columns (`SERVED_SCHEMA`)."""
        starts = range(0, len(self.lists), _AT_ONCE)
        pieces = [_columns_of(self.lists[start : start + _AT_ONCE]) for start in starts]
        return pa.concat_tables(pieces) if pieces else SERVED_SCHEMA.empty_table()


def _columns_of(lists: Sequence[_List]) -> pa.Table:
    tokens, queries, users, times, versions, fallbacks, items = zip(*lists, strict=True)
    moments = [round(1000 * at) for at in times]
    values: list[Sequence[Any]] = [tokens, queries, users, moments, versions, fallbacks, items]
    arrays = [pa.array(column, kind.type) for column, kind in zip(values, SERVED_SCHEMA, strict=True)]
    return pa.table(arrays, schema=SERVED_SCHEMA)


class ServedLists:
    """Collects answers from the event loop and hands them over in batches; thread-safe."""

    def __init__(self, config: ServedConfig, metrics: ServedMetrics) -> None:
        self._share, self._most, self._metrics = config.share, config.max_waiting_items, metrics
        self._lock, self._batch = threading.Lock(), Batch()

    def note(self, version: str, queries: Sequence[Query], hits: Sequence[Hits], *, probe: bool = False) -> str:
        """Keep a sampled answer if there is room; return its attribution token, which names the file if it is kept."""
        return self.token(version, lambda: (queries, hits), probe=probe)

    def token(self, version: str, answer: Callable[[], tuple[Sequence[Query], Sequence[Hits]]], *, probe: bool) -> str:
        """Return the token as `note` does; `answer` is only called if the answer is sampled."""
        number = secrets.token_hex(8)
        if probe or int(number, 16) >= self._share * _RANGE:
            return served_token(version, "", number)
        queries, hits = answer()
        items = sum(len(found.ids) for found in hits)
        with self._lock:
            batch = self._batch
            if batch.items + items > self._most:
                self._metrics.lists.labels("dropped").inc(len(hits))
                return served_token(version, "", number)
            token = served_token(version, batch.segment, number)
            batch.lists += _lists_of(token, version, queries, hits)
            batch.items += items
        return token

    def take(self) -> Batch:
        """Return the current batch, and start an empty one."""
        with self._lock:
            taken, self._batch = self._batch, Batch()
        return taken


def _lists_of(token: str, version: str, queries: Sequence[Query], hits: Sequence[Hits]) -> Iterator[_List]:
    now = time.time()
    for place, (query, found) in enumerate(zip(queries, hits, strict=True)):
        user = query.source.key if isinstance(query.source, ByUser) else None
        yield _List(token, place, user, now, version, found.fallback, found.ids)
