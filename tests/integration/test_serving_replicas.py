"""Two servers behind one name, as behind a headless service: calls are spread, and a pod that goes costs none."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.serving.aio import AsyncRetrievalClient
from weir.serving.client import RetrievalClient, RetrievalError, by_history

STARTED = "grpc_server_started_total", 'grpc_method="Retrieve"'


class Asked:
    """Calls of several callers at once: how many were answered, and what failed."""

    def __init__(self) -> None:
        self.answered, self.stop = [0], threading.Event()
        self.failures: list[RetrievalError] = []

    def by_threads(self, target: str) -> None:
        callers = [threading.Thread(target=self._caller, args=(target,)) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()

    def _caller(self, target: str) -> None:
        with RetrievalClient(target) as client:
            while not self.stop.is_set():
                try:
                    client.retrieve([by_history(["item-1"], 5)])
                    self.answered[0] += 1
                except RetrievalError as error:
                    self.failures.append(error)

    def by_tasks(self, target: str) -> None:
        async def calls() -> None:
            async with AsyncRetrievalClient(target) as client:
                await asyncio.gather(*(self._task(client) for _ in range(4)))

        asyncio.run(calls())

    async def _task(self, client: AsyncRetrievalClient) -> None:
        while not self.stop.is_set():
            try:
                await client.retrieve([by_history(["item-1"], 5)])
                self.answered[0] += 1
            except RetrievalError as error:
                self.failures.append(error)


@pytest.mark.parametrize("ask", [Asked.by_threads, Asked.by_tasks])
def test_a_replica_that_is_rolled_under_load_fails_no_request(
    tmp_path: Path, ask: Callable[[Asked, str], None]
) -> None:
    store = Store(str(tmp_path / "store"))
    write_bundle(store, "v1", Catalogue.random())
    with ServerProcess(store, drain_seconds=0.5) as one, ServerProcess(store) as other:
        for server in (one, other):
            server.serving("v1")
        asked = Asked()
        asking = threading.Thread(target=ask, args=(asked, f"ipv4:{one.target},{other.target}"))
        asking.start()
        try:
            wait_for(asked.answered, 200)
            shares = [server.metric(*STARTED) for server in (one, other)]
            assert min(shares) > 0.3 * sum(shares)
            assert one.terminate() == 0
            wait_for(asked.answered, asked.answered[0] + 200)
        finally:
            asked.stop.set()
            asking.join()
        assert asked.failures == []


def wait_for(answered: list[int], number: int) -> None:
    """Wait until so many calls have been answered."""
    pause = threading.Event()
    for _ in range(3000):
        if answered[0] >= number:
            return
        pause.wait(0.01)
    raise AssertionError(f"only {answered[0]} of {number} calls have been answered")
