import asyncio
import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import Pipe

import faiss
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from prometheus_client import CollectorRegistry

from tests.serving.deltas import Change, changed, write_delta
from tests.serving.support import Catalogue, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import Store
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.config import ServingConfig
from weir.serving.errors import NoBundleError
from weir.serving.histories.files import FollowedHistories
from weir.serving.index.index import AnnIndex, Found
from weir.serving.processes.channel import Channel
from weir.serving.processes.link import ParentLink
from weir.serving.processes.member import Member
from weir.serving.search.cost import parts_of
from weir.serving.search.queries import ByEmbedding, Query, Task
from weir.serving.server import LIVENESS, Server, serve
from weir.serving.transports import SERVICE

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
T = 1_700_000_000_000


@pytest.fixture
def server(store: Store) -> Iterator[Server]:
    built = Server(store, ServingConfig(port=0, metrics_port=0), CollectorRegistry())
    yield built
    built.batcher.close()


@pytest.mark.skipif(bool(getattr(faiss, "get_num_gpus", lambda: 0)()), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused_before_anything_listens(store: Store) -> None:
    with pytest.raises(ValueError, match="FAISS finds none"):
        serve(store, ServingConfig(device="gpu", port=0, metrics_port=0))


class ForeignError(Exception):
    """As libraries of object stores raise: no `OSError`."""


def liveness(server: Server) -> int:
    """Return the health of the process; `run` starts it as SERVING."""
    return int(server.health._server_status.get(LIVENESS, SERVING))


def test_what_is_loaded_is_no_longer_looked_through_for_garbage(
    store: Store, catalogue: Catalogue, server: Server
) -> None:
    write_bundle(store, "v1", catalogue)
    server.followers.seconds = 0.01

    async def scenario() -> None:
        server.followers.start()
        while server.health._server_status.get(SERVICE) != SERVING:
            await asyncio.sleep(0.01)
        assert gc.get_freeze_count() > before + 10_000
        for task in server.followers.tasks:
            task.cancel()
        await asyncio.gather(*server.followers.tasks, return_exceptions=True)

    gc.unfreeze()
    before = gc.get_freeze_count()
    try:
        asyncio.run(scenario())
    finally:
        gc.unfreeze()


def test_the_first_look_may_fail_in_any_way(
    store: Store,
    catalogue: Catalogue,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_window(store, 0, [Event("ann", "item-1", T)])
    write_bundle(store, "v1", catalogue)
    server.followers.seconds = 0.01
    looks = []
    catch_up = type(server.histories).catch_up

    def failing(histories: FollowedHistories) -> None:
        looks.append(1)
        if len(looks) <= 3:
            raise ForeignError("slow down")
        catch_up(histories)

    async def scenario() -> None:
        server.followers.start()
        while server.watcher.bundle is None or server.histories.sequence:
            await asyncio.sleep(0.01)
            await server.look_after()
        assert liveness(server) == SERVING
        for task in server.followers.tasks:
            task.cancel()

    monkeypatch.setattr(type(server.histories), "catch_up", failing)
    with caplog.at_level(logging.ERROR):
        asyncio.run(asyncio.wait_for(scenario(), 20))
    assert [record.getMessage() for record in caplog.records] == [
        "histories stay at window -1: ForeignError: slow down"
    ]
    assert server.registry.get_sample_value("weir_history_errors_total") == 3


def test_liveness_says_when_following_has_ended(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        server.followers.start()
        await server.look_after()
        assert liveness(server) == SERVING
        server.followers.tasks[1].cancel()
        await asyncio.sleep(0.01)
        await server.look_after()
        await server.look_after()
        assert liveness(server) == NOT_SERVING
        server.followers.tasks[0].cancel()

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    [message] = [message for message in caplog.messages if message.startswith("liveness")]
    assert message == "liveness: following bundles has ended: cancelled"


def test_liveness_watches_the_thread_that_searches(
    store: Store, catalogue: Catalogue, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    write_bundle(store, "v1", catalogue)
    server.watcher.refresh()
    bundle = server.watcher.bundle
    assert bundle is not None
    server.config = ServingConfig(max_batch_seconds=0.05)
    hold, held = threading.Event(), threading.Event()

    class Slow:
        """An index that a driver's fault keeps from answering."""

        lists = 0

        def search(self, queries: np.ndarray, k: int, nprobe: int = 0) -> Found:
            held.set()
            assert hold.wait(10)
            return bundle.exact.search(queries, k)

        def reaches(self, k: int, nprobe: int = 0) -> bool:
            return True

        def cost(self, nprobe: int = 0) -> float:
            return 1.0

    task = Task(replace(bundle, index=Slow()), (Query(ByEmbedding(np.ones(8, np.float32)), 3),))

    async def scenario() -> None:
        running = asyncio.create_task(server.batcher.submit(parts_of(task, 1000)))
        await asyncio.to_thread(held.wait, 10)
        await asyncio.sleep(0.1)
        await server.look_after()
        assert liveness(server) == NOT_SERVING
        hold.set()
        await running
        await server.look_after()
        assert liveness(server) == SERVING

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert [message for message in caplog.messages if message.startswith("liveness")] == [
        "liveness: a batch of 1 requests has been running for 0 s, more than 0.05 s",
        "liveness: well again",
    ]


def readiness(server: Server) -> int | None:
    return server.health._server_status.get("")


def test_a_server_whose_index_is_damaged_is_not_ready_until_it_has_read_the_bundle_again(
    store: Store, catalogue: Catalogue, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    first = write_bundle(store, "v1", catalogue, index="IVF4,Flat", parameters={"nprobe": 4})
    change = Change([3, 4], {200: "new"}, [5])
    owner = list[str]()

    def losing_a_row(take: Callable[[], LoadedBundle]) -> LoadedBundle:
        served = server.watcher.bundle
        assert served is not None
        assert isinstance(served.index, AnnIndex)
        served.index.index.remove_ids(faiss.IDSelectorArray(np.array([77])))

        def noting() -> LoadedBundle:
            owner.append(threading.current_thread().name)
            return take()

        return server.batcher.between(noting)

    async def scenario() -> None:
        await server.followers.refresh_histories()
        server.followers._listed.set()
        await server.followers.refresh_bundle()
        assert readiness(server) == SERVING
        write_delta(store, "v2", first, changed(catalogue, change), change)
        server.watcher.between = losing_a_row
        waiting = Task(server.watcher.bundle, (Query(ByEmbedding(np.ones(8, np.float32)), 3),))
        await server.followers.refresh_bundle()
        assert readiness(server) == NOT_SERVING
        with pytest.raises(NoBundleError):
            await server.batcher.submit(parts_of(waiting, 1000))
        await server.followers.refresh_bundle()
        assert readiness(server) == SERVING

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert owner == ["weir-search"]
    assert server.watcher.bundle is not None
    assert server.watcher.bundle.version == "v2"
    assert [text.partition(":")[0] for text in caplog.messages if "ready" in text] == [
        "ready",
        "not ready, there is no bundle to serve",
        "ready",
    ]


def test_one_of_several_ends_where_only_a_restart_helps(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    member = Member(Channel.pair()[0], ParentLink(Pipe()[0]))
    server = Server(store, ServingConfig(port=0, processes=2), member.link.registry, member=member)
    asyncio.run(server.look_after())
    assert statuses == []
    monkeypatch.setattr(server.batcher, "problem", lambda _: "a batch has been running for 31 s")
    asyncio.run(server.look_after())
    assert statuses == [1]
    server.batcher.close()


def test_several_processes_are_refused_a_gpu(store: Store) -> None:
    with pytest.raises(ValueError, match="2 processes cannot search on one GPU"):
        serve(store, ServingConfig(device="gpu", processes=2, port=0, metrics_port=0))
