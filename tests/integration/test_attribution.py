"""Attribution from a real server to the command line: what was served, what came of it, and who is forgotten."""

import time
from pathlib import Path

from tests.ports import free_port
from tests.serving.process import MonitorProcess, ServerProcess
from tests.serving.support import Catalogue, write_bundle, write_window
from tests.serving.users import Event
from tests.weir.cli.interactions import told, weir
from weir.contracts import Store, hash_id
from weir.contracts.served_lists import read_served, segment_of, served_files
from weir.contracts.verification import verify
from weir.serving.client import RetrievalClient, by_history, by_user

T = 1_700_000_000_000
PATIENT = 120
"""Seconds that a process may take to start on a busy machine."""


def test_clicks_are_joined_with_what_a_server_served(tmp_path: Path) -> None:
    store, catalogue = Store(str(tmp_path / "store")), Catalogue.random()
    write_bundle(store, "v1", catalogue, trained_sequence=0)
    write_window(store, 0, [Event("ann", "item-1", T)])
    target = f"127.0.0.1:{free_port()}"
    with MonitorProcess(store, target=target, served_delay_seconds=3, k=[5]) as monitor:
        # What was served and committed before it looks is not its business.
        monitor.said("clicks are joined with served lists after commit 0", PATIENT)
        port = int(target.rpartition(":")[2])
        with ServerProcess(store, port=port, served={"share": 1, "flush_seconds": 0.1}) as server:
            server.said(r"gRPC on", PATIENT)
            server.serving("v1", PATIENT)
            with RetrievalClient(target, 60) as client:
                anns = client.retrieve([by_user("ann", 5)])
                others = client.retrieve([by_history(["item-2"], 5), by_user("bob", 3)])
                probe = client.retrieve([by_user("ann", 5)], probe=True)
            assert segment_of(anns.attribution_token)
            assert segment_of(probe.attribution_token) is None
            second = anns.hits[0].item_ids[1]
            clicks = [
                Event("ann", second, T + 1, ("item-1",), 1, anns.attribution_token),
                Event("bob", others.hits[1].item_ids[0], T + 2, (), 1, others.attribution_token),
                Event("ann", second, T + 3, ("item-1",), 1, probe.attribution_token),
            ]
            write_window(store, 1, clicks)
            ends = time.monotonic() + PATIENT
            while monitor.metric("weir_attribution_clicks_total", 'outcome="joined"') != 2:
                assert time.monotonic() < ends, monitor.lines
                time.sleep(0.1)
            assert monitor.metric("weir_attribution_click_through", 'bundle="v1"') == 2 / 3
            server.terminate(PATIENT)
    tables = [read_served(store, file) for file in served_files(store)]
    rows = [row for table in tables if table is not None for row in table.to_pylist()]
    rows.sort(key=lambda row: (row["served_at"], row["query"]))
    assert [row["user_key"] for row in rows] == [hash_id("ann"), None, hash_id("bob")]
    assert [row["item_ids"] for row in rows] == [hits.item_ids for hits in (*anns.hits, *others.hits)]
    facts = told(weir("inspect", "served", "--store", store.url, "--json"))
    assert facts["events"] == {"joined": 2, "not_kept": 1}
    assert facts["bundles"][0]["click_through"] == 2 / 3
    assert verify(store).findings == []
    report = told(weir("forget", "--store", store.url, "--user", "ann", "--grace", "0s", "--json"))
    assert (report["held"], report["served_lists"]) == (["ann"], 1)
    assert sum(file.rows for file in served_files(store)) == 2
