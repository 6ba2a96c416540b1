"""Served lists: sampled answers kept for attribution, bounded in memory, and written to the store by a thread."""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa

from weir.contracts import Key, Store
from weir.contracts.served_lists import SERVED_SCHEMA, hour_of, new_segment, served_hours, served_token, write_served
from weir.runtime.log_once import LogOnce
from weir.serving.config import ServedConfig
from weir.serving.metrics import ServedMetrics
from weir.serving.search.queries import ByUser, Hits, Query

__all__ = ["Batch", "ServedLists", "ServedWriter"]

log = logging.getLogger(__name__)

_AT_ONCE: Final = 32
"""Lists converted to columns per step; a step holds the interpreter's lock, some 100 us for lists of 100 items."""

_RANGE: Final = 1 << 64
"""Each answer draws a random number below this one, and is kept if its number is below `share` times this one."""


class _List(NamedTuple):
    """A served list: token of the answer, number and user of the query, time, bundle version, and item ids."""

    token: str
    query: int
    user: Key | None
    at: float
    version: str
    fallback: bool
    items: list[str]


@dataclass
class Batch:
    """Served lists that go into one file, whose name is `segment`; `items` counts the items of all lists."""

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
    """Collects sampled answers as served lists, which `take` returns in batches; thread-safe."""

    def __init__(self, config: ServedConfig, metrics: ServedMetrics) -> None:
        self._share, self._most, self._metrics = config.share, config.max_waiting_items, metrics
        self._lock, self._batch = threading.Lock(), Batch()

    def note(self, version: str, queries: Sequence[Query], hits: Sequence[Hits], *, probe: bool = False) -> str:
        """Keep an answer if it is sampled and there is room; return its attribution token.

        The token of a kept answer names the file with its lists. A `probe` is never kept.
        """
        return self.token(version, lambda: (queries, hits), probe=probe)

    def token(self, version: str, answer: Callable[[], tuple[Sequence[Query], Sequence[Hits]]], *, probe: bool) -> str:
        """Do the same as `note`, but call `answer` for the queries and hits only if the answer is sampled."""
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


_SECONDS_BETWEEN_REMOVALS: Final = 600.0
_LAST_SECONDS: Final = 5.0
"""Most seconds that a stopping server waits for its last file."""


@dataclass
class ServedWriter:
    """A thread that writes the collected `lists` to the store every `flush_seconds`, and removes old files.

    A failed write is retried; meanwhile `lists` fills up, and drops lists beyond its limit. Only `close` waits for the
    thread.
    """

    store: Store
    config: ServedConfig
    lists: ServedLists
    metrics: ServedMetrics
    _batch: Batch | None = field(default=None, init=False)
    _removed_at: float = field(default=-float("inf"), init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _once: LogOnce = field(default_factory=lambda: LogOnce(log), init=False)

    def start(self) -> None:
        """Start the thread if `share` is above 0."""
        if self.config.share:
            # A daemon thread: the process must be able to exit although the store hangs.
            self._thread = threading.Thread(target=self._run, name="weir-served", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread after a last write; log a warning if the store takes too long."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS)
            if self._thread.is_alive() or self._batch is not None:
                log.warning("the last served lists may be lost: the store did not take them in time")

    def flush(self) -> None:
        """Write the collected lists to a file, and remove old files if due; failures are counted and logged once."""
        try:
            self._write()
            self._remove_old()
            self._once.succeeded()
        except Exception as error:  # noqa: BLE001 - object stores have errors of their own, which are no OSErrors
            self.metrics.errors.inc()
            self._once.failed(error, "served lists are not written, or not removed", level=logging.WARNING)

    def _run(self) -> None:
        while not self._stop.wait(self.config.flush_seconds):
            self.flush()
        # A batch whose write had failed, then the lists since.
        for _ in range(2):
            self.flush()

    def _write(self) -> None:
        batch = self._batch or self.lists.take()
        if batch.lists:
            self._batch = batch
            write_served(self.store, batch.segment, batch.table())
            self.metrics.lists.labels("written").inc(len(batch.lists))
            self.metrics.files.inc()
        self._batch = None

    def _remove_old(self) -> None:
        if time.monotonic() - self._removed_at < _SECONDS_BETWEEN_REMOVALS:
            return
        # A folder holds lists up to 3,600 seconds after its hour's start.
        oldest = hour_of(time.time() - 86_400 * self.config.keep_days - 3600)
        for hour, folder in served_hours(self.store).items():
            if hour < oldest:
                self.store.remove(folder)
                log.info("removed the served lists of %s", hour)
        self._removed_at = time.monotonic()
