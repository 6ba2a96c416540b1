"""The monitor as a process beside a server: it measures what is committed while both run."""

import time
from pathlib import Path

from tests.serving.process import MonitorProcess, ServerProcess
from tests.serving.support import Catalogue, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import Store
from weir.serving.monitor.results import recorded

T = 1_700_000_000_000


def test_it_follows_a_running_server(tmp_path: Path) -> None:
    store, catalogue = Store(str(tmp_path / "store")), Catalogue.random()
    write_bundle(store, "v1", catalogue)
    write_window(store, 0, [Event("ann", "item-1", T)])
    with ServerProcess(store) as server, MonitorProcess(store, target=server.target, k=(1, 50)) as monitor:
        server.said("ready")
        write_window(store, 1, [Event("ann", catalogue.top(catalogue.user(["item-1"]), 1)[0], T, ["item-1"])] * 5)
        monitor.said("window .*model @1=1.000 @50=1.000")
        assert monitor.metric("weir_recall_model", 'k="1"') == 1
        write_bundle(store, "v2", catalogue, trained_sequence=1)
        write_window(store, 2, [Event("bob", "item-3", T)])
        server.serving("v2")
        while monitor.metric("weir_event_to_servable_seconds_count") != 100:
            time.sleep(0.05)
        while monitor.metric("weir_recall_windows_total") != 3:
            time.sleep(0.05)
        assert monitor.terminate() == 0
        assert server.terminate() == 0
    assert [result.sequence for result in recorded(store)] == [0, 1, 2]


def test_it_ends_cleanly_without_a_server(tmp_path: Path) -> None:
    with MonitorProcess(Store(str(tmp_path)), target="127.0.0.1:9") as monitor:
        monitor.said("ready: asking 127.0.0.1:9")
        monitor.said("waiting after commit -1: UNAVAILABLE")
        assert monitor.terminate() == 0
