import asyncio
import logging
from collections.abc import Iterator

import faiss
import pytest
from prometheus_client import CollectorRegistry

from contracts import Store, WindowName
from serving.config import ServingConfig
from serving.server import Server, serve
from tests.serving.support import Event, write_window

T = 1_700_000_000_000


@pytest.fixture
def server(store: Store) -> Iterator[Server]:
    built = Server(store, ServingConfig(port=0, metrics_port=0), CollectorRegistry())
    yield built
    built.batcher.close()


def test_a_damaged_window_is_told_once_and_counted_each_time(
    store: Store, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    write_window(store, 0, [Event("ann", "a", T)])
    damaged = write_window(store, 1, [Event("bob", "b", T)])
    store.write(f"{damaged.name.folder}/{WindowName.examples(0)}", b"x")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            server._catch_up()
    [record] = caplog.records
    assert "histories stay at commit 0" in record.getMessage()
    sample = server.registry.get_sample_value
    assert (sample("weir_history_errors_total"), sample("weir_history_sequence")) == (3, 0)
    write_window(store, 1, [Event("bob", "b", T)])
    server._catch_up()
    assert (sample("weir_history_users"), sample("weir_history_sequence")) == (2, 1)


def test_following_goes_on_after_a_failure(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    async def step() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise RuntimeError("once")
        if len(calls) == 3:
            raise asyncio.CancelledError

    server.config = ServingConfig(poll_seconds=0.001)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(server._forever(step))
    assert calls == [0, 1, 2]
    assert "following the store failed" in caplog.text


@pytest.mark.skipif(bool(getattr(faiss, "get_num_gpus", lambda: 0)()), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused_before_anything_listens(store: Store) -> None:
    with pytest.raises(ValueError, match="FAISS finds none"):
        serve(store, ServingConfig(device="gpu", port=0, metrics_port=0))
