"""Monitor and server, each killed at random moments: one result for each window, and no wrong answer."""

import random
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from tests.campaigns import lives
from tests.campaigns.hunter import counting, size_of
from tests.ports import free_port
from tests.serving.deltas import Change, changed, write_delta
from tests.serving.process import ServerProcess
from tests.serving.support import HOUR_MS, Catalogue, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import BundleLog, Store
from weir.serving.client import RetrievalClient, RetrievalError, by_history
from weir.serving.config import ServingConfig
from weir.serving.monitor.config import MonitorConfig
from weir.serving.monitor.loop import Monitor
from weir.serving.monitor.metrics import MonitorMetrics
from weir.serving.monitor.results import recorded

T = 1_700_000_000_000 // HOUR_MS * HOUR_MS
MOST_WINDOWS = 200


def commit(store: Store, catalogue: Catalogue, sequence: int) -> None:
    random = np.random.default_rng(sequence)
    ids = [catalogue.ids[place] for place in random.integers(0, 60, 40)]
    rows = [Event(f"user-{n % 9}", ids[n], T + sequence * HOUR_MS + n, ids[max(0, n - n % 4) : n]) for n in range(40)]
    write_window(store, sequence, rows)


def complete(store: Store, settings: MonitorConfig) -> list[dict[str, Any]]:
    """Let a monitor measure what is left, and return all figures."""
    with RetrievalClient(settings.target) as client:
        Monitor(store, settings, client, MonitorMetrics(CollectorRegistry())).step()
    return [one.model_dump(exclude={"measured_at", "freshness"}) for one in recorded(store)]


def test_killed_again_and_again_every_window_has_the_one_result_of_an_unkilled_run(tmp_path: Path) -> None:
    store, whole = Store(str(tmp_path / "killed")), Store(str(tmp_path / "whole"))
    catalogue = Catalogue.random()
    write_bundle(store, "v1", catalogue)
    commit(store, catalogue, 0)
    measured: dict[int, float] = {}
    changed: list[int] = []
    with counting("kills: monitor") as row, ServerProcess(store) as server:
        server.serving("v1")
        row.faults = size_of(3, 30)
        settings = MonitorConfig(
            target=server.target, metrics_port=0, k=(2, 5), poll_seconds=0.02, queries_per_request=7
        )
        hunter = lives.started("monitor", store, settings.model_dump_json(), row.faults, tmp_path / "log")
        for sequence in range(1, MOST_WINDOWS):
            if hunter.poll() is not None:
                break
            commit(store, catalogue, sequence)
            for one in recorded(store):
                changed += [one.sequence] * (measured.setdefault(one.sequence, one.measured_at) != one.measured_at)
            time.sleep(0.2)
        assert hunter.wait(120) == 0, (tmp_path / "log").read_text()
        assert measured, "no life has measured anything"
        results = complete(store, settings)
        shutil.copytree(tmp_path / "killed", tmp_path / "whole", ignore=shutil.ignore_patterns("monitor"))
        assert [one["sequence"] for one in results] == list(range(len(results)))
        assert results == complete(whole, settings)
        assert changed == [], "a window that had its result was measured again"
        row.without_effect = row.faults


K = 5
HISTORY = ["shared-1", "shared-2"]


def catalogue(number: int) -> Catalogue:
    """Items that carry the version in their ids, but for the two of the history."""
    made = Catalogue.random(items=60, dimension=6, seed=number, prefix=f"v{number}")
    made.ids[1], made.ids[2] = HISTORY
    return made


@dataclass
class Load:
    """Asks without pause; a refused connection is what a kill looks like, any other refusal is wrong."""

    target: str
    catalogues: dict[str, Catalogue]
    done: threading.Event = field(default_factory=threading.Event)
    answers: int = 0
    away: int = 0
    returned: int = 0
    versions: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def __call__(self) -> None:
        while not self.done.is_set():
            # A new connection for each spell: one that has failed waits longer and longer before it is tried again.
            with RetrievalClient(self.target, timeout=2) as client:
                try:
                    before = self.answers
                    while not self.done.is_set():
                        self.check(client)
                        self.returned += self.answers == before + 1 and self.away > 0
                        time.sleep(0.002)
                except RetrievalError as error:
                    self.away += 1
                    if error.code.name not in {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"}:
                        self.wrong.append(str(error))
            time.sleep(0.01)

    def check(self, client: RetrievalClient) -> None:
        answer = client.retrieve([by_history(HISTORY, K)])
        self.answers += 1
        self.versions.add(answer.bundle_version)
        made, [hits] = self.catalogues[answer.bundle_version], answer.hits
        user = made.user(HISTORY)
        scores = [float(made.vectors[made.ids.index(one)] @ user) for one in hits.item_ids]
        if hits.item_ids != made.top(user, K) or not np.allclose(hits.scores, scores, atol=1e-5):
            self.wrong.append(f"{answer.bundle_version} gave {hits}")


def test_killed_under_load_its_answers_come_from_one_bundle_and_it_comes_back(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    catalogues = {f"v{number}": catalogue(number) for number in range(3)}
    for version, made in catalogues.items():
        lists = {"index": "IVF4,Flat", "parameters": {"nprobe": 4}} if version == "v2" else {}
        manifest = write_bundle(store, version, made, promote=False, **lists)
    # Two more are deltas: a server takes them in the index of the one before, or reads the chain.
    for number in (3, 4):
        change = Change(list(range(10, 40)), {57 + number: f"v{number}-new"}, [], number)
        catalogues[f"v{number}"] = changed(catalogues[f"v{number - 1}"], change)
        manifest = write_delta(store, f"v{number}", manifest, catalogues[f"v{number}"], change, promote=False)
    rng, log = random.Random(3), BundleLog(store)
    log.promote("v0")
    settings = ServingConfig(port=free_port(), metrics_port=0, poll_seconds=0.02)
    load = Load(f"127.0.0.1:{settings.port}", catalogues)
    with counting("kills: server") as row:
        row.faults = size_of(3, 30)
        hunter = lives.started("server", store, settings.model_dump_json(), row.faults, tmp_path / "log")
        asking = threading.Thread(target=load)
        asking.start()
        try:
            while hunter.poll() is None:
                log.promote(rng.choice(list(catalogues)))
                time.sleep(rng.uniform(0, 0.3))
        finally:
            load.done.set()
            asking.join()
        assert hunter.returncode == 0, (tmp_path / "log").read_text()
        assert load.wrong == []
        assert load.answers > 0
        assert load.returned > row.faults // 4, "after many a kill somebody must be answered again"
        row.refused = row.faults
