import asyncio
import logging
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from tests.serving.support import write_window
from tests.serving.users import Event
from weir.contracts import Store
from weir.serving.bundles.followers import forever
from weir.serving.config import ServingConfig
from weir.serving.server import Server

T = 1_700_000_000_000


@pytest.fixture
def server(store: Store) -> Iterator[Server]:
    built = Server(store, ServingConfig(port=0, metrics_port=0), CollectorRegistry())
    yield built
    built.batcher.close()


def test_a_damaged_commit_is_told_once_and_counted_each_time(
    store: Store, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    write_window(store, 0, [Event("ann", "a", T)])
    write_window(store, 1, [Event("bob", "b", T)])
    name = "commits/0000000001.json"
    whole = store.read(name)
    store.write(name, b"x")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            asyncio.run(server.followers.refresh_histories())
    [record] = caplog.records
    assert "histories stay at window 0" in record.getMessage()
    sample = server.registry.get_sample_value
    assert (sample("weir_history_errors_total"), sample("weir_history_sequence")) == (3, 0)
    store.write(name, whole)
    asyncio.run(server.followers.refresh_histories())
    assert (sample("weir_history_rows"), sample("weir_history_sequence")) == (2, 1)


def test_following_goes_on_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    async def step() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise RuntimeError("once")
        if len(calls) == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(forever(step, 0.001))
    assert calls == [0, 1, 2]
    assert "following the store failed" in caplog.text
