from collections.abc import Iterator

import pytest

from tests.serving.histories.redis_server import RedisServer


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def database(running: RedisServer) -> RedisServer:
    """A running server that holds nothing."""
    running.client.flushall()
    return running
