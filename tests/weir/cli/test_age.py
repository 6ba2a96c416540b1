"""``weir inspect age`` on real bundles and windows; what it counts is tested in tests/serving/monitor/test_aged.py."""

from pathlib import Path

import pytest

from tests.serving.support import HOUR_MS, Catalogue, write_bundle, write_window
from tests.serving.users import Event
from tests.weir.cli.interactions import refused, told, weir
from weir.contracts import Store

START = 1_700_000_000_000 // HOUR_MS * HOUR_MS


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three windows and two bundles; the first one ranks items from the worst to the best."""
    store, catalogue = Store(str(tmp_path / "store")), Catalogue.random(40)
    best = catalogue.top(catalogue.user(["item-1"]), 5, ["item-1"])
    for number in range(3):
        at = START + number * HOUR_MS
        events = [Event(f"user-{i}", item, at + i, ["item-1"]) for i, item in enumerate(["item-1", *best])]
        write_window(store, number, events)
    other = Catalogue(catalogue.ids, -catalogue.vectors, catalogue.embeddings, catalogue.popularity)
    write_bundle(store, "v0", other, trained_sequence=0, max_event_ms=START + HOUR_MS - 1)
    write_bundle(store, "v1", catalogue, trained_sequence=1, max_event_ms=START + 2 * HOUR_MS - 1)
    return store


def test_figures_and_report(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "report"
    facts = told(weir("inspect", "age", "--store", store.url, "-k", "5", "--windows", "1", "--out", out, "--json"))
    found = {(one["aged"], one["windows"]): (one["recall"], one["freshest"]) for one in facts["points"]}
    # An event in six is of an item that was seen, which no answer has.
    assert found["bundle", 1] == (5 / 6, 5 / 6)
    assert found["bundle", 2] == (0, 5 / 6)
    assert facts["longer"][0]["difference"] == -found["both", 1][0] / 2
    assert sorted(file.name for file in out.iterdir()) == ["age.html", "age.json", "age.png"]
    shown = weir("inspect", "age", "--store", store.url, "-k", "5").stdout
    assert "recall@5 by age, 2 windows of 1 h" in shown
    assert "with longer windows" in shown


def test_nothing_and_damage(store: Store, tmp_path: Path) -> None:
    write_window(Store(str(tmp_path / "empty")), 0, [])
    empty = weir("inspect", "age", "--store", tmp_path / "empty")
    assert (empty.exit_code, "keeps no bundle with a window after it" in empty.stdout) == (0, True)
    store.write("bundles/v1/items.parquet", b"PAR1")
    assert "bundles/v1/items.parquet" in refused(weir("inspect", "age", "--store", store.url), 1)
