"""``weir inspect served``: what it joins, from what is stored."""

import time
from pathlib import Path

import pytest

from tests.serving.monitor.test_clicks import serve
from tests.serving.support import Catalogue, write_bundle, write_window
from tests.serving.users import Event
from tests.weir.cli.interactions import refused, told, weir
from weir.cli import served_facts
from weir.contracts import Store, WindowLog
from weir.contracts.served import new_segment

T = 1_700_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A list of two hours ago, two of now, of two bundles, of which one is gone."""
    store, catalogue = Store(str(tmp_path / "store")), Catalogue.random(20)
    write_bundle(store, "v2", catalogue)
    old, _ = serve(store, "item-5", segment=new_segment(time.time() - 7200), version="v1")
    first, _ = serve(store, "item-1", "item-2", version="v2")
    serve(store, "item-3", version="v2")
    events = [
        (old, "item-5"),
        (first, "item-2"),
        (first, "item-2"),
        (first, "item-9"),
        (None, "item-1"),
        ("odd", "item-1"),
    ]
    write_window(store, 0, [Event("ann", item, T, (), 1, token) for token, item in events])
    return store


def test_bundles_positions_and_outcomes(store: Store) -> None:
    facts = told(weir("inspect", "served", "--store", store.url, "--json"))
    assert (facts["files"], facts["lists"]) == (3, 3)
    assert facts["events"] == {"joined": 2, "not_kept": 1, "other_item": 1, "repeated": 1}
    gone, served = facts["bundles"]
    assert (gone["bundle"], gone["click_through"], gone["coverage"]) == ("v1", 1.0, None)
    assert (served["bundle"], served["lists"], served["clicked_lists"]) == ("v2", 2, 1)
    assert (served["click_through"], served["items_shown"], served["coverage"]) == (0.5, 3, 3 / 20)
    assert facts["positions"] == [
        {"position": 1, "shown": 3, "clicked": 1, "click_through": 1 / 3},
        {"position": 2, "shown": 1, "clicked": 1, "click_through": 1.0},
    ]
    less = told(weir("inspect", "served", "--store", store.url, "--since", "30m", "--positions", "1", "--json"))
    assert less["lists"] <= 3
    assert [one["bundle"] for one in less["bundles"]] == ["v2"]
    assert less["events"]["unknown_list"] == 1
    assert len(less["positions"]) == 1


def test_a_table_for_people(store: Store) -> None:
    shown = weir("inspect", "served", "--store", store.url).stdout
    assert "3 lists served in the last 24h" in shown
    assert "50.00%" in shown
    assert "by position" in shown
    assert "positive events with a token: joined 2, not kept 1, other item 1, repeated 1" in shown


def test_lines_are_told_apart(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    write_window(store, 0, [])
    token, _ = serve(store, "item-1", version="v1--new")
    serve(store, "item-1", "item-2")
    serve(store, "item-1", version="v2--new")
    write_window(store, 1, [Event("ann", "item-1", T, token=token)])
    facts = told(weir("inspect", "served", "--store", store.url, "--json"))
    assert {one["bundle"]: one["variant"] for one in facts["bundles"]} == {
        "v1--new": "new",
        "v2--new": "new",
        "v1": "main",
    }
    lines = {one["variant"]: (one["lists"], one["clicked_lists"], one["click_through"]) for one in facts["variants"]}
    assert lines == {"new": (2, 1, 0.5), "main": (1, 0, 0.0)}
    assert "by line" in weir("inspect", "served", "--store", store.url).stdout


def test_nothing_and_nonsense(tmp_path: Path) -> None:
    write_window(Store(str(tmp_path / "store")), 0, [])
    empty = weir("inspect", "served", "--store", tmp_path / "store")
    assert (empty.exit_code, "holds no lists served in the last 24h" in empty.stdout) == (0, True)
    facts = told(weir("inspect", "served", "--store", tmp_path / "store", "--json"))
    assert facts == {"files": 0, "lists": 0, "events": {}, "bundles": [], "variants": [], "positions": []}
    assert "--since is 'soon', but must be" in refused(
        weir("inspect", "served", "--store", tmp_path / "store", "--since", "soon"), 2
    )


def test_a_damaged_file_is_named(store: Store) -> None:
    _, file = serve(store, "item-4")
    store.write(file.name, b"PAR1")
    assert file.name in refused(weir("inspect", "served", "--store", store.url), 1)


def test_only_windows_that_may_name_the_lists_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_facts, "_FIRST", 2)
    begin = time.time()
    for sequence in range(1, 8):
        write_window(store, sequence, [])
    found = served_facts._committed_since(WindowLog(store), begin)
    assert [manifest.sequence for manifest in found] == list(range(1, 8))
    assert len(served_facts._committed_since(WindowLog(store), 0.0)) == 8
    assert served_facts._committed_since(WindowLog(store), time.time() + 1) == []
