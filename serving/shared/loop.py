"""The process behind `weir histories`: one follower, metrics, and an orderly end."""

import logging
import threading

import redis
from prometheus_client import CollectorRegistry, ProcessCollector

from weir.contracts import Store, UserError
from weir.contracts.exposition import exposed
from weir.contracts.stopping import ended_by_signals
from weir.serving.problems import Problems
from weir.serving.shared.config import FollowerConfig
from weir.serving.shared.database import place_of
from weir.serving.shared.follower import Follower, FollowerLostError
from weir.serving.shared.metrics import FollowerMetrics

__all__ = ["follow"]

log = logging.getLogger(__name__)


def follow(store: Store, config: FollowerConfig, *, forever: bool) -> None:
    """Bring Redis up to date with a store, once or until SIGTERM or SIGINT.

    Once, it raises `UserError` where Redis does not answer or another follower writes. Forever, it tries again.
    """
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    follower = Follower(store, config, FollowerMetrics(registry))
    if not forever:
        _once(follower)
        return
    with exposed(registry, config.metrics_host, config.metrics_port):
        _until_stopped(follower, config.poll_seconds)


def _once(follower: Follower) -> None:
    where = place_of(follower.config.redis)
    try:
        if not follower.step():
            raise UserError(f"another follower writes to Redis at {where}: it brings it up to date")
        follower.release()
    except (redis.RedisError, FollowerLostError) as error:
        raise UserError(f"Redis at {where}: {error}") from error


def _until_stopped(follower: Follower, poll_seconds: float) -> None:
    stopped, problems = threading.Event(), Problems(log)
    with ended_by_signals(stopped):
        while not stopped.is_set():
            try:
                follower.step()
                problems.over()
            except FollowerLostError as error:
                log.warning("%s: trying again", error)
            except Exception as error:  # noqa: BLE001 - Redis and object stores have errors of their own
                follower.metrics.errors.inc()
                problems.report(error, "Redis is not brought up to date, it is tried again")
            stopped.wait(poll_seconds)
    try:
        follower.release()
    except redis.RedisError:
        log.info("the lease could not be given back, it ends by itself")
