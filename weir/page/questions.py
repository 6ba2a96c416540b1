"""Queries, clicks and the map of the page, answered through the public gRPC service."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from weir.contracts import Store
from weir.interact import Answer, Asker
from weir.page.atlas import MOST_ITEMS, Atlas, draw
from weir.page.reader import ItemFeatures
from weir.pipelines.config import PipelineConfig
from weir.readers import is_topic
from weir.serving.client import RetrievalClient, by_history, by_item, by_user
from weir.serving.errors import InvalidRequestError, Violation

__all__ = ["Questions", "can_click", "k_in"]

_DEFAULT_K: Final = 10
_MOST_K: Final = 100
_RANKS_SECONDS: Final = 30.0
_MOST_RANKED: Final = 200_000
"""Largest number of items with popularity ranks; with more items there are no ranks and no map."""
_CLICK_SECONDS: Final = 60.0


def can_click(pipeline: PipelineConfig) -> bool:
    """Return whether clicks can be appended to the log, which must be a folder of this machine."""
    if is_topic(pipeline.log):
        return False
    folder = Store(pipeline.log).local_path
    return folder is not None and folder.is_dir()


def k_in(wanted: Mapping[str, Any]) -> int:
    """Return the k in a query (JSON), 100 at most; raises `InvalidRequestError` if k is not a whole number."""
    k = wanted.get("k", _DEFAULT_K)
    if not isinstance(k, int) or isinstance(k, bool):
        raise InvalidRequestError([Violation("k", f"is {k!r:.40}, must be a whole number from 1 to {_MOST_K}")])
    return min(k, _MOST_K)


@dataclass
class Questions:
    """Answers the page's queries and clicks by one server; all methods block, and several threads may call them."""

    client: RetrievalClient
    store: Store
    pipeline: PipelineConfig
    tags: ItemFeatures
    _ranks: Mapping[str, int] = field(default_factory=dict, init=False)
    _ranked: tuple[str, float] = field(default=("", 0.0), init=False)
    _atlas: Atlas | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._asker = Asker(self.client, self.store)

    def ask(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a query by `user`, `history` or `item`; raises `RetrievalError` or `InvalidRequestError`."""
        k = k_in(wanted)
        user, history, item = (wanted.get(name) for name in ("user", "history", "item"))
        if isinstance(user, str) and user:
            query = by_user(user, k)
        elif isinstance(history, list) and all(isinstance(one, str) for one in history):
            query = by_history(history, k)
        elif isinstance(item, str) and item:
            query = by_item(item, k)
        else:
            raise InvalidRequestError([Violation("", "give a user, a history (a list of items) or an item")])
        started = time.perf_counter()
        answer = self.client.retrieve([query], exclude_seen=wanted.get("exclude_seen") is True)
        hits = answer.hits[0]
        return {
            "bundle": answer.bundle_version,
            "hits": self._hits(hits.item_ids, hits.scores.tolist()),
            "missing": hits.missing_item_ids,
            "fallback": hits.fallback,
            "milliseconds": 1000 * (time.perf_counter() - started),
            "server_milliseconds": 1000 * answer.seconds["total"],
        }

    def click(self, user: str, item: str, k: int) -> dict[str, Any]:
        """Append an event and wait until the answer has changed; raises as `Asker.click`."""
        change = self._asker.click(self.pipeline, user, item, k, _CLICK_SECONDS)
        before = {hit.item_id: hit.rank for hit in change.before.hits}
        return {
            "user": user,
            "item": item,
            "seconds": change.seconds,
            "same_bundle": change.before.bundle_version == change.after.bundle_version,
            "bundle": change.after.bundle_version,
            "fallback": change.after.fallback,
            "missing": [],
            "before": change.before.item_ids,
            "hits": [{**hit, "before": before.get(hit["item"])} for hit in self._answered(change.after)],
            "milliseconds": change.after.total_milliseconds,
            "server_milliseconds": change.after.server_milliseconds["total"],
        }

    def atlas(self) -> Atlas | None:
        """Return the map of the served items, at most half a minute old; None if the bundle has too many items."""
        info = self.client.info()
        ranks = self._newest_ranks(info.bundle_version)
        if not ranks:
            return None
        if self._atlas is None or self._atlas.version != self._ranked[0]:
            ids = sorted(ranks, key=ranks.__getitem__)[:MOST_ITEMS]
            self._atlas = draw(self.client, self._ranked[0], ids, self._atlas)
        return self._atlas

    def _answered(self, answer: Answer) -> list[dict[str, Any]]:
        return self._hits(answer.item_ids, [hit.score for hit in answer.hits])

    def _hits(self, items: list[str], scores: list[float]) -> list[dict[str, Any]]:
        ranks = self._newest_ranks(self.client.info().bundle_version)
        return [
            {"rank": rank, "item": item, "score": score, "popularity": ranks.get(item), "tags": self.tags.of(item)}
            for rank, (item, score) in enumerate(zip(items, scores, strict=True), start=1)
        ]

    def _newest_ranks(self, version: str) -> Mapping[str, int]:
        """Return item -> popularity rank; the ranks of an earlier version are kept for up to half a minute."""
        known, at = self._ranked
        if (version != known and time.monotonic() - at > _RANKS_SECONDS) or not known:
            few = self.client.info().items <= _MOST_RANKED
            self._ranks = self._asker.popularity_ranks(version) if few else {}
            self._ranked = (version, time.monotonic())
        return self._ranks
