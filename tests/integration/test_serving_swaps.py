"""A real server through swaps of bundles, beside replicas, and with a Redis that is killed and comes back."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from tests.integration.test_serving_lifecycle import HISTORIES, SERVICE, health
from tests.serving.deltas import Change, changed, dense, write_delta
from tests.serving.histories.redis_server import RedisServer
from tests.serving.process import FollowerProcess, ServerProcess
from tests.serving.support import Catalogue, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import BundleFile, BundleLog, BundleManifest, Store
from weir.serving.aio import AsyncRetrievalClient
from weir.serving.client import Hits, RetrievalClient, RetrievalError, by_history, by_item, by_user

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
