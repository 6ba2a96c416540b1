"""Bundles are swapped under load: no request fails, and every answer comes from one bundle only."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from contracts import BundleFile, BundleLog, Store
from serving.client import RetrievalClient, by_history, by_item
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle

SWAPS = 50
DIMENSIONS = (6, 8)
"""Bundles differ in dimension too: a tower of one with an index of another could not even run."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue.random()


@dataclass
class Load:
    """Asks without pause until told to stop, and notes what is wrong with the answers."""

    target: str
    done: threading.Event
    answers: int = 0
    versions: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def __call__(self) -> None:
        with RetrievalClient(self.target) as client:
            while not self.done.is_set():
                self.check(client)

    def check(self, client: RetrievalClient) -> None:
        answer = client.retrieve([by_history(["shared-1", "shared-2"], 5), by_item("shared-3", 5)])
        self.answers += 1
        self.versions.add(answer.bundle_version)
        for hits in answer.hits:
            found = {item.partition("-")[0] for item in hits.item_ids}
            if found != {answer.bundle_version} or hits.fallback or len(hits.item_ids) != 5:
                self.wrong.append(f"{answer.bundle_version} gave {hits}")


def versioned(number: int) -> tuple[str, Catalogue]:
    """A catalogue whose items carry the bundle's version in their ids, but for the ones asked about."""
    version = f"v{number:03d}"
    made = Catalogue.random(items=60, dimension=DIMENSIONS[number % 2], seed=number, prefix=version)
    for row in (1, 2, 3):
        made.ids[row] = f"shared-{row}"
        # Shared items are never among the best: only the versioned ones can answer.
        made.vectors[row] = 0
    return version, made


def test_fifty_swaps_under_load(store: Store) -> None:
    version, made = versioned(0)
    write_bundle(store, version, made, index="IVF4,Flat", parameters={"nprobe": 4})
    with ServerProcess(store, poll_seconds=0.02) as server:
        server.serving(version)
        done = threading.Event()
        loads = [Load(server.target, done) for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(load) for load in loads]
            try:
                for number in range(1, SWAPS + 1):
                    version, made = versioned(number)
                    write_bundle(store, version, made, index="IVF4,Flat", parameters={"nprobe": 4})
                    server.said(f"serving bundle {version}:")
                    BundleLog(store).retire(keep=3)
            finally:
                done.set()
        for load in running:
            load.result()  # a failed request would raise here
        assert [problem for load in loads for problem in load.wrong] == []
        assert server.metric("weir_bundle_swaps_total") == SWAPS + 1
        # All calls that the server saw were answered: the client's retries have hidden nothing.
        assert server.metric("grpc_server_handled_total", 'grpc_method="Retrieve"') == sum(
            load.answers for load in loads
        )
        assert len(set.union(*(load.versions for load in loads))) > SWAPS // 2


def test_a_damaged_bundle_changes_nothing(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    with ServerProcess(store) as server, RetrievalClient(server.target) as client:
        server.serving("v1")
        before = client.retrieve([by_history(["item-1"], 10)]).hits
        write_bundle(store, "v2", Catalogue.random(seed=9), promote=False)
        store.write(f"bundles/v2/{BundleFile.EMBEDDINGS}", b"\x00" * 100)
        BundleLog(store).promote("v2")
        server.said(r"bundle v2 is refused, v1 stays: .*embeddings\.npy")
        answer = client.retrieve([by_history(["item-1"], 10)])
        assert (answer.bundle_version, answer.hits) == ("v1", before)
        assert server.metric("weir_bundle_refused_total") == 1
        write_bundle(store, "v3", Catalogue.random(seed=9))
        server.serving("v3")


def test_answers_over_the_wire_are_the_brute_force_ones(store: Store) -> None:
    made = Catalogue.random(items=500, dimension=16, seed=4)
    write_bundle(store, "v1", made, index="IVF8,Flat", parameters={"nprobe": 2})
    random = np.random.default_rng(0)
    histories = [[made.ids[i] for i in random.integers(0, 500, 3)] for _ in range(64)]
    with ServerProcess(store) as server, RetrievalClient(server.target) as client:
        server.serving("v1")
        exact = client.retrieve([by_history(history, 20) for history in histories], exact=True)
        every_list = client.retrieve([by_history(history, 20) for history in histories], nprobe=8)
        for history, hits, also in zip(histories, exact.hits, every_list.hits, strict=True):
            user = made.user(history)
            scores = np.sort(made.vectors @ user)[::-1][:20]
            np.testing.assert_allclose(hits.scores, scores, rtol=1e-4, atol=1e-5)
            assert hits.item_ids == made.top(user, 20) == also.item_ids
