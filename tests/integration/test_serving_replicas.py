"""Two servers behind one name, as behind a headless service: calls are spread, and a pod that goes costs none."""

import threading
from pathlib import Path

from contracts import Store
from serving.client import RetrievalClient, RetrievalError, by_history
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle

STARTED = "grpc_server_started_total", 'grpc_method="Retrieve"'


def test_a_replica_that_is_rolled_under_load_fails_no_request(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    write_bundle(store, "v1", Catalogue.random())
    with ServerProcess(store, drain_seconds=0.5) as one, ServerProcess(store) as other:
        for server in (one, other):
            server.serving("v1")
        failures: list[RetrievalError] = []
        answered, stop = [0], threading.Event()

        def ask() -> None:
            with RetrievalClient(f"ipv4:{one.target},{other.target}") as client:
                while not stop.is_set():
                    try:
                        client.retrieve([by_history(["item-1"], 5)])
                        answered[0] += 1
                    except RetrievalError as error:
                        failures.append(error)

        callers = [threading.Thread(target=ask) for _ in range(4)]
        for caller in callers:
            caller.start()
        try:
            wait_for(answered, 200)
            shares = [server.metric(*STARTED) for server in (one, other)]
            assert min(shares) > 0.3 * sum(shares)
            assert one.terminate() == 0
            wait_for(answered, answered[0] + 200)
        finally:
            stop.set()
            for caller in callers:
                caller.join()
        assert failures == []


def wait_for(answered: list[int], number: int) -> None:
    """Wait until so many calls have been answered."""
    pause = threading.Event()
    for _ in range(3000):
        if answered[0] >= number:
            return
        pause.wait(0.01)
    raise AssertionError(f"only {answered[0]} of {number} calls have been answered")
