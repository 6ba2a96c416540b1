"""Bundles are swapped under load: no request fails, and every answer comes from one bundle only."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.serving.deltas import Change, changed, dense, write_delta
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import BundleFile, BundleLog, BundleManifest, Store
from weir.serving.client import Hits, RetrievalClient, RetrievalError, by_history, by_item

SWAPS = 50
DELTAS = 30
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


@pytest.mark.parametrize("processes", [1, 2])
def test_fifty_swaps_under_load(store: Store, processes: int) -> None:
    version, made = versioned(0)
    write_bundle(store, version, made, index="IVF4,Flat", parameters={"nprobe": 4})
    with ServerProcess(store, poll_seconds=0.02, processes=processes) as server:
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


@dataclass
class Chain:
    """Deltas of one bundle, and what each version answers by brute force."""

    store: Store
    newest: BundleManifest
    catalogues: dict[str, Catalogue]
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @classmethod
    def started(cls, store: Store) -> "Chain":
        made = Catalogue.random(items=120, dimension=6, seed=1)
        manifest = write_bundle(store, "v000", made, index="IVF4,SQfp16", parameters={"nprobe": 4})
        return cls(store, manifest, {"v000": made})

    def extend(self) -> str:
        """Write and promote a delta that moves half of the items, adds some and takes some away."""
        version, before = f"v{len(self.catalogues):03d}", self.catalogues[self.newest.version]
        live = self.random.permutation([row for row, name in enumerate(before.ids) if name and row > 2]).tolist()
        size = len(before.ids)
        new = {row: f"new-{version}-{row}" for row in [*live[:2], size, size + 1]}
        change = Change(live[10:60], new, sorted(live[2:6]), len(self.catalogues))
        self.catalogues[version] = changed(before, change)
        self.newest = write_delta(self.store, version, self.newest, self.catalogues[version], change)
        return version

    def wrong(self, version: str, history: list[str], hits: Hits) -> str | None:
        """Say what is wrong with the answer of a version to a history."""
        made = dense(self.catalogues[version])
        user = made.user(history)
        scores = [float(made.vectors[made.ids.index(one)] @ user) for one in hits.item_ids if one in made.ids]
        exact = np.sort(made.vectors @ user)[::-1][:5]
        # The index holds halves of floats, and ranks as these do.
        if len(scores) == 5 and np.allclose(hits.scores, scores, atol=2e-3) and np.allclose(scores, exact, atol=2e-3):
            return None
        return f"{version} gave {hits} to {history}, not {made.top(user, 5)}"


@dataclass
class ChainLoad(Load):
    """Asks single queries, and requests that are run in parts, and compares each answer with its version's."""

    chain: Chain | None = None
    large: bool = False

    def check(self, client: RetrievalClient) -> None:
        assert self.chain is not None
        histories = [[f"item-{number % 3}", f"item-{number % 2}"] for number in range(40 if self.large else 1)]
        answer = client.retrieve([by_history(history, 5) for history in histories])
        self.answers += 1
        self.versions.add(answer.bundle_version)
        for history, hits in zip(histories, answer.hits, strict=True):
            if problem := self.chain.wrong(answer.bundle_version, history, hits):
                self.wrong.append(problem)


@pytest.mark.parametrize(("how", "processes"), [("in_place", 1), ("clone", 1), ("in_place", 2)])
def test_thirty_deltas_under_load(store: Store, how: str, processes: int) -> None:
    chain = Chain.started(store)
    # A batch may cost little: requests of many queries are run in many parts, with others in between.
    with ServerProcess(store, poll_seconds=0.02, deltas=how, max_batch_cost=1000, processes=processes) as server:
        server.serving("v000")
        done = threading.Event()
        loads = [ChainLoad(server.target, done, chain=chain, large=large) for large in (False, True, True)]
        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(load) for load in loads]
            try:
                for _ in range(DELTAS):
                    server.said(f"serving bundle {chain.extend()}:")
                    assert not [load.result() for load in running if load.done()]
            finally:
                done.set()
        for load in running:
            load.result()  # a failed request would raise here
        assert [problem for load in loads for problem in load.wrong] == []
        assert server.metric("weir_bundle_deltas_total", f'how="{how}"') == DELTAS
        assert server.metric("weir_bundle_delta_pause_seconds_count") == (DELTAS if how == "in_place" else 0)
        answered = server.metric("grpc_server_handled_total", 'grpc_method="Retrieve"')
        assert answered == sum(load.answers for load in loads)
        assert len(set.union(*(load.versions for load in loads))) > DELTAS // 2
        with RetrievalClient(server.target) as client:
            # Of several processes a further one changes the index, beside that which they search.
            is_searched = how == "in_place" and processes == 1
            assert client.info().delta_updates == ("in_place" if is_searched else "beside")
            with pytest.raises(RetrievalError, match=r"BUNDLE_VERSION_NOT_LOADED.*pin that, or leave") as refused:
                client.retrieve([by_item("item-1")], bundle_version="v000")
            assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
            # Back to the first version, which only a complete load can reach.
            BundleLog(store).promote("v000")
            server.serving("v000")
            answer = client.retrieve([by_history(["item-1"], 5)], bundle_version="v000")
            assert chain.wrong("v000", ["item-1"], answer.hits[0]) is None


@pytest.mark.parametrize("processes", [1, 2])
def test_a_damaged_bundle_changes_nothing(store: Store, catalogue: Catalogue, processes: int) -> None:
    write_bundle(store, "v1", catalogue)
    with ServerProcess(store, processes=processes) as server, RetrievalClient(server.target) as client:
        server.serving("v1")
        before = client.retrieve([by_history(["item-1"], 10)]).hits[0]
        write_bundle(store, "v2", Catalogue.random(seed=9), promote=False)
        store.write(f"bundles/v2/{BundleFile.EMBEDDINGS}", b"\x00" * 100)
        BundleLog(store).promote("v2")
        server.said(r"bundle v2 is refused, v1 stays: .*embeddings\.npy")
        answer = client.retrieve([by_history(["item-1"], 10)])
        assert (answer.bundle_version, answer.hits[0].item_ids) == ("v1", before.item_ids)
        assert list(answer.hits[0].scores) == list(before.scores)
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


@pytest.mark.parametrize("processes", [1, 2])
def test_without_room_for_two_bundles_the_server_is_away_while_it_reads_one(
    store: Store, catalogue: Catalogue, processes: int
) -> None:
    write_bundle(store, "v1", catalogue)
    with (
        ServerProcess(store, memory_bytes=1 << 28, processes=processes) as server,
        RetrievalClient(server.target) as client,
    ):
        server.serving("v1")
        write_bundle(store, "v2", Catalogue.random(seed=9))
        server.said("v1 is dropped before v2 is read: both would take")
        server.said("not ready, there is no bundle to serve")
        server.serving("v2")
        assert client.retrieve([by_history(["item-1"], 10)]).bundle_version == "v2"
        assert server.metric("weir_bundle_dropped_total") == 1
