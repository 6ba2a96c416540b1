"""Queries and clicks for `weir query`, `weir click` and the page: ask the server, append an event, await its effect."""

import io
import json
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
from pydantic import Field
from rich.console import Console
from rich.table import Table
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from weir.contracts import BundleFile, CorruptArtefactError, EventClock, LogState, Store
from weir.contracts.base import columns
from weir.contracts.base.models import FrozenModel
from weir.contracts.bundles.variants import champions_log, log_of_version
from weir.pipelines.config import PipelineConfig
from weir.readers import is_topic
from weir.serving.client import Features, RetrievalClient, by_item, by_user
from weir.text import in_words, plain

__all__ = [
    "Answer",
    "AppendedEvent",
    "Asker",
    "Change",
    "Hit",
    "WantedTags",
    "append_event",
    "print_answer",
    "print_change",
]


_POLL_SECONDS: Final = 0.1


class Hit(FrozenModel):
    """One item of an answer; `rank` and `popularity_rank` count from 1. None: the popularity rank is unknown."""

    rank: int
    item_id: str
    score: float
    popularity_rank: int | None


class WantedTags(NamedTuple):
    """Tag options of a query: items must have one of `any`, all of `all` and none of `none`.

    `most` limits the items per tag in an answer; None: no limit.
    """

    any: Sequence[str] = ()
    all: Sequence[str] = ()
    none: Sequence[str] = ()
    most: int | None = None


class Answer(FrozenModel):
    """The server's answer to a query by user, and how fresh it is."""

    user_id: str
    hits: list[Hit]
    fallback: bool = Field(description="the user is unknown: these are the popular items")
    seen_bounded: bool = Field(description="not all that the user has seen is stored: seen items may be among these")
    complete: bool = Field(default=True, description="false: fewer items than wanted pass the filter")
    missing_features: list[str] = Field(default_factory=list, description="features that the bundle does not know")
    bundle_version: str
    attribution_token: str = Field(default="", description="names the answer; an event that it led to may carry it")
    newest_event_age_seconds: float = Field(description="age of the newest event that the bundle was trained on")
    server_milliseconds: dict[str, float] = Field(description="by stage, as the server measured")
    total_milliseconds: float = Field(description="as the client measured")

    @property
    def item_ids(self) -> list[str]:
        """The items, best first."""
        return [hit.item_id for hit in self.hits]


class AppendedEvent(FrozenModel):
    """An event that was appended to the log, as the file `segment`."""

    user_id: str
    item_id: str
    event_ms: int
    segment: str


class Change(FrozenModel):
    """The effect of an event: the answers before and after it.

    `seconds` is the time until the answer changed; None if it did not change in time.
    """

    event: AppendedEvent
    before: Answer
    after: Answer
    seconds: float | None
    is_served: bool = Field(default=True, description="whether the served bundle has the item, as an answer needs")
    is_committed: bool = Field(default=True, description="whether the pipeline has committed the event")
    held: str | None = Field(default=None, description="why the newest bundle is not served, if it is not")


class Asker:
    """Queries a server for a user's items, and measures the effect of an event on the answer.

    Parameters
    ----------
    client
        The connection.
    store
        The store of the server's bundles; used only for popularity ranks and ages.
    """

    def __init__(self, client: RetrievalClient, store: Store) -> None:
        self._client = client
        self._store = store

    def ask(
        self,
        user: str,
        k: int,
        *,
        exclude_seen: bool = False,
        exact: bool = False,
        tags: WantedTags | None = None,
        features: Features | None = None,
        probe: bool = False,
    ) -> Answer:
        """Return a user's top `k` items; raises `RetrievalError`.

        `tags` and `features` are the query's tag options and user features; `probe` tells the server that no user sees
        the answer.
        """
        started = time.perf_counter()
        wanted = tags or WantedTags()
        answer = self._client.retrieve(
            [by_user(user, k, features=features)],
            exclude_seen=exclude_seen,
            exact=exact,
            any_tags=wanted.any,
            all_tags=wanted.all,
            none_tags=wanted.none,
            max_per_tag=wanted.most,
            probe=probe,
        )
        total = time.perf_counter() - started
        hits = answer.hits[0]
        ranks = self.popularity_ranks(answer.bundle_version)
        newest = round(1000 * self._client.info().max_event_time)
        return Answer(
            user_id=user,
            hits=[
                Hit(rank=rank, item_id=item, score=score, popularity_rank=ranks.get(item))
                for rank, (item, score) in enumerate(zip(hits.item_ids, hits.scores.tolist(), strict=True), start=1)
            ],
            fallback=hits.fallback,
            seen_bounded=hits.seen_bounded,
            complete=hits.complete,
            missing_features=hits.missing_features,
            bundle_version=answer.bundle_version,
            attribution_token=answer.attribution_token,
            newest_event_age_seconds=time.time() - EventClock.of(self._store).wall_time(newest),
            server_milliseconds={stage: 1000 * seconds for stage, seconds in answer.seconds.items()},
            total_milliseconds=1000 * total,
        )

    def popularity_ranks(self, version: str) -> dict[str, int]:
        """Return the popularity rank of each item of a bundle version; empty if the bundle cannot be found. Cached."""
        return _popularity_ranks(self._store, version)

    def click(
        self, pipeline: PipelineConfig, user: str, item: str, k: int, timeout: float, *, token: str | None = None
    ) -> Change:
        """Append an event, and wait until it has changed the user's top `k` items, at most `timeout` seconds.

        A new bundle alone also changes answers, so an item that is new to the user must also count as seen before the
        wait ends. `token` is the attribution token of the event. Raises `RetrievalError`.
        """
        change = self._click(pipeline, user, item, k, timeout, token=token)
        return change.model_copy(update={"held": self._held()})

    def _click(
        self, pipeline: PipelineConfig, user: str, item: str, k: int, timeout: float, *, token: str | None
    ) -> Change:
        before = self.ask(user, k, probe=True)
        is_new = not self._has_seen(user, item)
        event = append_event(self._store, pipeline, user, item, token)
        if not self._is_served(item):
            # The tower ignores items that the bundle lacks: there is no change to wait for.
            return Change(event=event, before=before, after=before, seconds=None, is_served=False)
        started = time.monotonic()

        def has_no_effect(answer: Answer) -> bool:
            return _same(before, answer) or (is_new and not self._has_seen(user, item))

        attempts = Retrying(
            retry=retry_if_result(has_no_effect), wait=wait_fixed(_POLL_SECONDS), stop=stop_after_delay(timeout)
        )
        try:
            attempts(self.ask, user, k, probe=True)
        except RetryError as error:
            after, is_committed = error.last_attempt.result(), self._is_committed(event)
            return Change(event=event, before=before, after=after, seconds=None, is_committed=is_committed)
        seconds = time.monotonic() - started
        return Change(event=event, before=before, after=self.ask(user, k, probe=True), seconds=seconds)

    def _held(self) -> str | None:
        """Return why the newest bundle is not promoted; None if it is promoted or the store is corrupt."""
        try:
            log = champions_log(self._store)
            return log.held(next(reversed(log.manifests()), None))
        except CorruptArtefactError:
            return None

    def _is_served(self, item: str) -> bool:
        return not self._client.retrieve([by_item(item, 1)], probe=True).hits[0].missing_item_ids

    def _is_committed(self, event: AppendedEvent) -> bool:
        return event.segment.rpartition("/")[2] in LogState.open(self._store).sources

    def _has_seen(self, user: str, item: str) -> bool:
        """Return whether the server leaves the item out as seen by the user; True for items that the bundle lacks."""
        answer = self._client.retrieve([by_user(user, 1)], exclude_seen=True, allowed_item_ids=[item], probe=True)
        return not answer.hits[0].item_ids


def append_event(
    store: Store, pipeline: PipelineConfig, user: str, item: str, token: str | None = None
) -> AppendedEvent:
    """Add a file (segment) with one event to the log's folder; the event has the present time of the store's clock.

    `token` is the attribution token of the answer that led to the event.

    Raises `ValueError` if the log is not a folder, or if no event type is positive.
    """
    if is_topic(pipeline.log):
        raise ValueError(f"pipeline.log = {pipeline.log} is a topic: produce the event to it, a click needs a folder")
    event_ms = EventClock.of(store).event_ms()
    names = pipeline.columns
    event_id = uuid.uuid4().hex
    record: dict[str, Any] = {
        names.event_id: event_id,
        names.user_id: user,
        names.item_id: item,
        names.timestamp: _timestamp(pipeline, event_ms),
    }
    if token is not None:
        record[names.attribution_token] = token
    if pipeline.event_types:
        positive = [kind for kind, meaning in pipeline.event_types.items() if meaning == "positive"]
        if not positive:
            raise ValueError("pipeline.event_types names no positive type for a click")
        record[names.event_type] = positive[0]
    folder = Store(pipeline.log)
    if folder.local_path is not None and not folder.local_path.is_dir():
        raise ValueError(f"pipeline.log = {pipeline.log} is not a folder to which a segment could be added")
    name = f"click-{event_ms}-{event_id[:8]}.jsonl"
    folder.write(name, json.dumps(record, ensure_ascii=False).encode() + b"\n")
    return AppendedEvent(user_id=user, item_id=item, event_ms=event_ms, segment=folder.path(name))


def _timestamp(pipeline: PipelineConfig, event_ms: int) -> int | str:
    if pipeline.timestamp_unit == "rfc3339":
        return datetime.fromtimestamp(event_ms / 1000, UTC).isoformat(timespec="milliseconds")
    if pipeline.timestamp_unit == "s":
        return event_ms // 1000
    return event_ms * {"us": 1000, "ns": 1_000_000}.get(pipeline.timestamp_unit, 1)


def _same(before: Answer, after: Answer) -> bool:
    return [(hit.item_id, hit.score) for hit in before.hits] == [(hit.item_id, hit.score) for hit in after.hits]


@lru_cache(maxsize=4)
def _popularity_ranks(store: Store, version: str) -> dict[str, int]:
    """Return the popularity rank of each item of a bundle version; empty if the bundle cannot be found."""
    log = log_of_version(store, version)
    try:
        manifest = log.manifest(version)
        popularity: dict[str, float] = {}
        # Items removed by deltas may stay: callers do not ask for them.
        for one in log.chain(manifest):
            table = pq.read_table(io.BytesIO(log.read(one, BundleFile.ITEMS)))
            counts = table[columns.POPULARITY].to_pylist()
            popularity |= dict(zip(table[columns.ITEM_ID].to_pylist(), counts, strict=True))
    except FileNotFoundError:
        return {}
    order = sorted(popularity, key=lambda item: -popularity[item])
    return {item: rank for rank, item in enumerate(order, start=1)}


def print_answer(console: Console, answer: Answer, before: Answer | None = None) -> None:
    """Print an answer as a table; with the answer `before`, also each item's rank in that answer."""
    table = Table(box=None, header_style="bold")
    columns = ["rank", "item", "score", "popularity rank", *(["before"] if before else [])]
    for name in columns:
        table.add_column(name, justify="left" if name == "item" else "right")
    ranks = {hit.item_id: hit.rank for hit in before.hits} if before else {}
    for hit in answer.hits:
        popular = "-" if hit.popularity_rank is None else str(hit.popularity_rank)
        was = [str(ranks.get(hit.item_id, "new"))] if before else []
        table.add_row(str(hit.rank), plain(hit.item_id), f"{hit.score:.4f}", popular, *was)
    console.print(table)
    if answer.fallback:
        console.print(plain(f"{answer.user_id} is unknown so far: these are the popular items"))
    if answer.missing_features:
        names = ", ".join(answer.missing_features)
        console.print(plain(f"the bundle knows no feature {names}: pipeline.user_features names them"))
    if not answer.complete:
        console.print("there are no more items to show", highlight=False)
    if answer.seen_bounded:
        console.print(
            plain(f"{answer.user_id} has seen more items than are stored: some of these may have been seen before")
        )
    stages = ", ".join(f"{name} {value:.2f}" for name, value in answer.server_milliseconds.items() if name != "total")
    console.print(
        plain(
            f"bundle {answer.bundle_version}, newest event {in_words(answer.newest_event_age_seconds)} old, "
            f"{answer.total_milliseconds:.1f} ms ({stages})"
        )
    )


def print_change(console: Console, change: Change) -> None:
    """Print the effect of a click and, if the newest bundle is not served, the reason for that."""
    _print_change(console, change)
    if change.held:
        console.print(plain(f"newest bundle: {change.held}"), soft_wrap=True)


def _print_change(console: Console, change: Change) -> None:
    event = change.event
    console.print(plain(f"{event.user_id} -> {event.item_id}"))
    if not change.is_served:
        sentence = "is new: it changes answers once a bundle has it, after its window has been trained on"
        console.print(plain(f"the event is in the log; {event.item_id} {sentence}"), soft_wrap=True)
        return
    if change.seconds is None:
        stage = "the server has not taken it in" if change.is_committed else "the pipeline has not committed it"
        command = "weir serve" if change.is_committed else "weir ingest --follow"
        sentence = f"the answer has not changed in time, because {stage}: is `{command}` running?"
        console.print(sentence, highlight=False, soft_wrap=True)
        return
    if change.before.bundle_version == change.after.bundle_version:
        why = "by the click alone: the bundle is the same"
    else:
        why = "and a newer bundle was swapped in as well"
    console.print(f"the answer changed after {change.seconds:.1f} s, {why}", highlight=False)
    print_answer(console, change.after, change.before)
