"""A monitor is killed at random moments; every window has one result, that of a monitor which was never killed."""

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from tests.campaigns import lives, size
from tests.campaigns.tally import counting
from tests.serving.process import ServerProcess
from tests.serving.support import HOUR_MS, Catalogue, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import Store
from weir.serving.client import RetrievalClient
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
        row.faults = size.of(3, 30)
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
