"""The metrics of the follower."""

from prometheus_client import CollectorRegistry, Counter, Gauge

__all__ = ["LOADS", "FollowerMetrics"]

LOADS = ("empty", "lost", "other-store", "gap", "length", "redaction")
"""Why all users are loaded: the first time, lost keys, another store, files gone, another L, users forgotten."""


class FollowerMetrics:
    """How far Redis is behind the store, and what it took."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.behind_commits = Gauge(
            "weir_history_follower_behind_commits", "Commits that are not in Redis yet.", registry=registry
        )
        self.checked = Gauge(
            "weir_history_follower_checked_timestamp_seconds",
            "When Redis was last known to hold all commits, Unix time.",
            registry=registry,
        )
        self.writes = Gauge("weir_history_follower_writes", "1 for the follower that writes.", registry=registry)
        self.users = Counter("weir_history_follower_users", "Users written to Redis.", registry=registry)
        self.loads = Counter(
            "weir_history_follower_loads", "Loads of all users, by reason.", ("reason",), registry=registry
        )
        for reason in LOADS:
            self.loads.labels(reason)
        self.errors = Counter(
            "weir_history_follower_errors",
            "Attempts that failed: Redis or the store did not answer.",
            registry=registry,
        )
