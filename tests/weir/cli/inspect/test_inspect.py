"""``weir inspect`` and ``weir inspect age`` on real stores (test_aged.py checks what age counts)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial import distance
from typer.testing import CliRunner

from tests.serving.support import HOUR_MS, Catalogue, write_bundle, write_window
from tests.serving.users import Event
from tests.trainer.windows import WindowWriter
from tests.weir.cli.interactions import refused, told, weir
from weir.cli.main import app
from weir.contracts import Store, WindowManifest, hash_id
from weir.sketches import CountMinSketch, ExactCounter, FrequencyBank

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


DAY = 86_400_000


def run(*arguments: str, status: int = 0, what: str = "sketch") -> str:
    result = CliRunner().invoke(app, ["inspect", what, *arguments], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == status, result.output + (repr(result.exception) if result.exception else "")
    return result.output


def run_json(*arguments: str, what: str = "sketch") -> Any:
    return json.loads(run(*arguments, "--json", what=what))


@pytest.fixture
def windows(tmp_path: Path) -> tuple[str, list[WindowManifest]]:
    """Three windows: the second as the first, the third with another favourite."""
    store = Store(str(tmp_path / "store"))
    writer, manifests = WindowWriter(store), []
    for day, items in enumerate(["aaaaabbbc", "aaaaabbbc", "abbbcxxxx"]):
        times = np.full(len(items), day * DAY)
        span = (day * DAY, (day + 1) * DAY)
        manifests.append(writer.commit(["u"] * len(items), list(items), times, span=span))
    return store.url, manifests


def test_parameters_totals_and_heaviest_items(windows: tuple[str, list[WindowManifest]]) -> None:
    url, manifests = windows
    facts = run_json("--store", url, "--top", "2")
    assert facts["window"] == str(manifests[-1].name)
    assert (facts["kind"], facts["width"], facts["depth"], facts["conservative"]) == ("count_min", 4096, 4, True)
    assert (facts["total"], facts["events"], facts["items"]) == (9, 9, 4)
    assert facts["distinct_estimated"] == pytest.approx(4, abs=0.5)
    assert facts["fill"] == pytest.approx(4 / 4096, rel=0.2)
    assert facts["log_q_error_estimated"] < 0.01
    assert facts["bytes"] == 4096 * 4 * 4
    assert facts["top"] == [
        {"item_id": "x", "count": 4, "estimate": 4.0},
        {"item_id": "b", "count": 3, "estimate": 3.0},
    ]
    text = run("--store", url)
    assert "log q error estimated" in text
    assert "most frequent items" in text


def test_a_window_goes_by_number_name_option_folder_or_file(windows: tuple[str, list[WindowManifest]]) -> None:
    url, manifests = windows
    name, folder = manifests[0].name, manifests[0].folder
    ways = [["0"], [str(name)], [folder], ["--window", "0"], [f"{url}/{folder}"]]
    ways.append([f"{url}/{folder}/sketch.bin"])
    for way in ways:
        assert run_json(*way, "--store", url)["top"][0] == {"item_id": "a", "count": 5, "estimate": 5.0}, way


def test_two_windows_are_compared(windows: tuple[str, list[WindowManifest]]) -> None:
    url, _ = windows
    same = run_json("0", "--compare", "1", "--store", url)
    assert (same["differing_parameters"], same["totals"], same["distance"], same["changes"]) == ({}, [9, 9], 0, [])
    other = run_json("0", "--compare", "2", "--top", "2", "--store", url)
    before, after = [5, 3, 1, 0], [1, 3, 1, 4]
    assert other["distance"] == pytest.approx(float(distance.jensenshannon(before, after, base=2)), abs=1e-5)
    assert {change["item_id"] for change in other["changes"]} == {"a", "x"}
    assert all(abs(change["change"]) == pytest.approx(4 / 9) for change in other["changes"])
    assert [one["total"] for one in other["sketches"]] == [9, 9]
    text = run("0", "--compare", "2", "--store", url)
    assert "largest changes" in text
    assert "+44.4444%" in text


def test_sketches_of_other_parameters_are_compared_by_the_items_known(
    windows: tuple[str, list[WindowManifest]], tmp_path: Path
) -> None:
    url, _ = windows
    small = CountMinSketch(64, 2)
    small.update(np.array([hash_id(item) for item in "xx"]))
    (tmp_path / "small.bin").write_bytes(small.to_bytes())
    found = run_json("2", "--compare", str(tmp_path / "small.bin"), "--store", url)
    assert found["differing_parameters"] == {"width": [4096, 64], "depth": [4, 2]}
    assert found["totals"] == [9, 2]
    assert found["changes"][0]["item_id"] == "x"
    assert "width differs: 4096 and 64" in run("2", "--compare", str(tmp_path / "small.bin"), "--store", url)


def test_without_items_the_cells_of_equal_sketches_are_compared(tmp_path: Path) -> None:
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 400)
    counts = np.random.default_rng(1).integers(1, 50, (2, 400))
    for number, each in enumerate(counts):
        sketch = CountMinSketch(256, 4, conservative=False)
        sketch.update(keys, each.astype(float))
        (tmp_path / f"{number}.bin").write_bytes(sketch.to_bytes())
    common = ["--store", str(tmp_path)]
    found = run_json(str(tmp_path / "0.bin"), "--compare", str(tmp_path / "1.bin"), *common)
    true = float(distance.jensenshannon(*counts, base=2))
    assert found["distance_over"] == "cells"
    assert 0.5 * true < found["distance"] <= true
    (tmp_path / "exact.bin").write_bytes(ExactCounter().to_bytes())
    unlike = run_json(str(tmp_path / "0.bin"), "--compare", str(tmp_path / "exact.bin"), *common)
    assert unlike["distance"] is None
    assert "distance unknown" in run(str(tmp_path / "0.bin"), "--compare", str(tmp_path / "exact.bin"), *common)


@pytest.mark.parametrize("estimator", [ExactCounter(), FrequencyBank([5.0, 9.0], 64)], ids=["exact", "bank"])
def test_every_kind_can_be_read(tmp_path: Path, estimator: ExactCounter | FrequencyBank) -> None:
    estimator.update(np.arange(10))
    (tmp_path / "any.bin").write_bytes(estimator.to_bytes())
    facts = run_json(str(tmp_path / "any.bin"), "--store", str(tmp_path))
    assert facts["total"] == estimator.total
    assert facts["top"] == []


def test_what_is_not_there_or_damaged_is_named(windows: tuple[str, list[WindowManifest]], tmp_path: Path) -> None:
    url, _ = windows
    assert "there is no pane 99; there are 0 to 2" in run("99", "--store", url, status=1)
    assert "neither the number of a pane" in run("nowhere", "--store", url, status=1)
    assert "not both" in run("0", "--window", "1", "--store", url, status=2)
    assert "holds no window yet" in run("--store", str(tmp_path / "empty"), status=1)
    (tmp_path / "damaged.bin").write_bytes(b"no sketch")
    assert "damaged.bin" in run(str(tmp_path / "damaged.bin"), "--store", url, status=1)


def test_every_name_of_a_window_that_is_printed_can_be_asked_for(windows: tuple[str, list[WindowManifest]]) -> None:
    url, manifests = windows
    manifest = manifests[1]
    table, one = run("--store", url, what="windows"), run("1", "--store", url, what="windows")
    facts = run_json("--store", url, what="windows")[1]
    names = ["1", "1970-01-02 00:00", str(manifest.name), manifest.folder]
    assert all(name in table for name in names[:2])
    assert all(name in one for name in names)
    for name in [*names, facts["window"], facts["folder"], run_json("1", "--store", url)["window"]]:
        assert [found["sequence"] for found in run_json(name, "--store", url, what="windows")] == [1], name
        assert run_json(name, "--store", url)["window"] == str(manifest.name), name


def test_a_window_of_several_panes_is_shown_whole_and_a_sketch_wants_one(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    writer = WindowWriter(store)
    for pane in range(2):
        writer.commit(["u"], ["a"], np.zeros(1, np.int64), span=(0, DAY), pane=pane)
    shown = run_json("1970-01-01 00:00", "--store", store.url, what="windows")
    assert [window["pane"] for window in shown] == [0, 1]
    assert "has 2 panes: name one of 0, 1" in run("1970-01-01 00:00", "--store", store.url, status=1)
    assert "there is no pane 7" in run("7", "--store", store.url, status=1, what="windows")


@pytest.mark.parametrize("count", [1, 20, 21, 73])
def test_a_list_for_programs_is_complete_and_a_table_says_what_it_leaves_out(count: int, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    writer = WindowWriter(store)
    for day in range(count):
        writer.commit(["u"], ["i"], np.array([day * DAY]), span=(day * DAY, (day + 1) * DAY))
    listed = run_json("--store", store.url, what="windows")
    assert [window["sequence"] for window in listed] == list(range(count))
    assert [window["sequence"] for window in run_json("--store", store.url, "--last", "3", what="windows")] == list(
        range(max(0, count - 3), count)
    )
    shown = run("--store", store.url, what="windows")
    panes = "1 pane" if count == 1 else f"{count} panes"
    assert (f"20 of {count} panes in" if count > 20 else f"{panes} in") in shown
    assert f"3 of {count} panes in" in run("--store", store.url, "--last", "3", what="windows") or count <= 3


def test_tables_of_items_say_what_they_leave_out(windows: tuple[str, list[WindowManifest]]) -> None:
    url, _ = windows
    assert "most frequent items: 2 of 4" in " ".join(run("--store", url, "--top", "2").split())
    assert "most frequent items rank" in " ".join(run("--store", url).split())
    facts = run_json("0", "--compare", "2", "--store", url, "--top", "1")
    assert facts["changed_items"] > len(facts["changes"]) == 1
    shown = " ".join(run("0", "--compare", "2", "--store", url, "--top", "1").split())
    assert f"largest changes of an item's share: 1 of {facts['changed_items']}" in shown
