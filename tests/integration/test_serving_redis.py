"""Server, follower and Redis as real processes: killed, hanging, emptied, and back by themselves."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2

from tests.integration.test_serving_lifecycle import HISTORIES, SERVICE, health
from tests.serving.histories.redis_server import RedisServer
from tests.serving.process import FollowerProcess, ServerProcess
from tests.serving.support import Catalogue, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import Store
from weir.serving.client import RetrievalClient, by_user

STATUS = health_pb2.HealthCheckResponse
T = 1_700_000_000_000


@pytest.fixture
def database(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    yield server
    server.stop()


def until(is_so: Callable[[], bool], within: float = 30) -> None:
    ends = time.monotonic() + within
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_a_server_without_a_disk_answers_whatever_becomes_of_redis(tmp_path: Path, database: RedisServer) -> None:
    store, catalogue = Store(str(tmp_path / "store")), Catalogue.random()
    write_bundle(store, "v1", catalogue)
    write_window(store, 0, [Event("ann", "item-1", T)])
    with (
        ServerProcess(store, histories=database.url, histories_timeout_seconds=0.2) as server,
        RetrievalClient(server.target, timeout=5) as client,
    ):
        server.serving("v1")

        def top(*history: str) -> bool:
            """Say whether ann gets what this history gives, without what it holds."""
            hits = client.retrieve([by_user("ann", 10)], exclude_seen=True).hits[0]
            expected = catalogue.top(catalogue.user(list(history)), 10, list(history)) if history else None
            return hits.fallback if expected is None else hits.item_ids == expected and not hits.seen_bounded

        assert top()
        until(lambda: health(server.target, HISTORIES) == STATUS.NOT_SERVING)
        with FollowerProcess(store, redis=database.url, lease_seconds=1) as follower:
            until(lambda: top("item-1"))
            until(lambda: health(server.target, HISTORIES) == STATUS.SERVING)
            write_window(store, 1, [Event("ann", "item-2", T + 1)])
            until(lambda: top("item-1", "item-2"))
            follower.process.kill()
        write_window(store, 2, [Event("ann", "item-3", T + 2)])
        until(lambda: server.metric("weir_history_behind_commits") == 1)
        with FollowerProcess(store, redis=database.url, lease_seconds=1) as follower:
            until(lambda: top("item-1", "item-2", "item-3"))
            assert follower.metric("weir_history_follower_loads_total") == 0
            database.hang(on=True)
            started = time.monotonic()
            assert top()
            assert time.monotonic() - started < 2
            assert health(server.target, SERVICE) == STATUS.SERVING
            assert server.metric("weir_history_unavailable_total") > 0
            database.hang(on=False)
            until(lambda: top("item-1", "item-2", "item-3"))
            database.stop()
            assert top()
            database.start()
            until(lambda: top("item-1", "item-2", "item-3"))
            # Redis kept nothing over its restart.
            assert follower.metric("weir_history_follower_loads_total") == 1
            assert follower.terminate() == 0
        assert server.terminate() == 0
