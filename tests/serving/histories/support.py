"""Followers and readers of a Redis, and what both kinds of histories say of users."""

from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from weir.contracts import Store, UserKeys
from weir.serving.histories.files import FollowedHistories, Histories
from weir.serving.histories.redis_config import FollowerConfig
from weir.serving.histories.redis_follower import Follower, FollowerMetrics
from weir.serving.histories.redis_reader import SharedHistories
from weir.serving.metrics import HistoryMetrics


def follower(store: Store, url: str, **settings: Any) -> Follower:
    settings = {"redis": url, "lease_seconds": 5.0, "block_users": 3} | settings
    return Follower(store, FollowerConfig(**settings), FollowerMetrics(CollectorRegistry()))


def reader(store: Store, url: str, timeout: float = 0.5) -> SharedHistories:
    """Return histories as a server that starts has them after its first look."""
    found = SharedHistories(store, HistoryMetrics(CollectorRegistry()), url, timeout)
    found.catch_up()
    return found


def mapped(store: Store) -> FollowedHistories:
    found = FollowedHistories(store, HistoryMetrics(CollectorRegistry()))
    found.catch_up()
    return found


def said(histories: Histories, users: list[int], asked: list[int] | None = None) -> Any:
    """What is known of users: items without padding, and of those asked for the seen items with their flag."""
    rows = np.arange(len(users)) if asked is None else np.array(asked, np.int64)
    items, seen = histories.look_up(UserKeys(np.array(users, np.int64)), rows)
    return [
        [[item for item in row if item] for row in items.tolist()],
        [(seen.of(n).tolist(), bool(seen.bounded[n])) for n in range(len(rows))],
    ]


def sample(histories: SharedHistories, name: str) -> float:
    return float(getattr(histories.metrics, name)._value.get())


def loads(one: Follower) -> dict[str, int]:
    """How often all users were loaded, by reason."""
    [metric] = one.metrics.loads.collect()
    return {row.labels["reason"]: int(row.value) for row in metric.samples if row.name.endswith("_total") and row.value}
