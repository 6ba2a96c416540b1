import logging
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tests.serving.deltas import Change, base, changed, write_delta
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import BundleLog, Store, hash_id
from weir.serving.bundles.catalogue import CatalogueFiles, CatalogueFollower, Takedown
from weir.serving.bundles.loading import load_bundle
from weir.serving.index.eligibility import CatalogueView
from weir.serving.index.popular import rows_in
from weir.serving.metrics import CatalogueMetrics


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> CatalogueMetrics:
    return CatalogueMetrics(registry)


def replace(path: Path, text: str) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)


def test_a_catalogue_describes_the_served_bundle_and_is_read_again_when_it_changes(
    store: Store, tmp_path: Path, registry: CollectorRegistry, metrics: CatalogueMetrics
) -> None:
    write_bundle(store, "v1", Catalogue.random(items=20))
    bundle, path = load_bundle(BundleLog(store), "v1"), tmp_path / "items.jsonl"
    follower = CatalogueFollower(CatalogueFiles(str(path)), metrics)
    follower.look(bundle)
    assert bundle.state.view is None
    assert registry.get_sample_value("weir_catalogue_unusable", {"file": "catalogue"}) == 1
    replace(path, '{"item_id": "item-3", "tags": ["jazz"]}\n{"item_id": "gone", "tags": ["jazz"]}\n')
    follower.look(bundle)
    first = bundle.state.view
    assert first is not None
    assert rows_in(first.tags["jazz"]).tolist() == [3]
    assert registry.get_sample_value("weir_catalogue_items") == 2
    follower.look(bundle)
    assert bundle.state.view is first
    replace(path, '{"item_id": "item-4", "tags": ["jazz"]}\n[]\n')
    follower.look(bundle)
    assert bundle.state.view is not None
    assert rows_in(bundle.state.view.tags["jazz"]).tolist() == [4]
    assert registry.get_sample_value("weir_catalogue_refused_rows") == 1


def test_what_cannot_be_read_changes_nothing_and_is_said_once(
    store: Store,
    tmp_path: Path,
    registry: CollectorRegistry,
    metrics: CatalogueMetrics,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_bundle(store, "v1", Catalogue.random(items=20))
    bundle, path = load_bundle(BundleLog(store), "v1"), tmp_path / "items.csv"
    follower = CatalogueFollower(CatalogueFiles(str(path)), metrics)
    replace(path, "item_id,tags\nitem-3,jazz\n")
    follower.look(bundle)
    good = bundle.state.view
    with caplog.at_level(logging.ERROR):
        for text in ("name\nitem-3\n", "name\nitem-4\n"):
            replace(path, text)
            for _ in range(3):
                follower.look(bundle)
        path.unlink()
        follower.look(bundle)
        follower.look(bundle)
    assert bundle.state.view is good is not None
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert [message.count("the one read before stays") for message in errors] == [1, 1]
    assert registry.get_sample_value("weir_catalogue_unusable", {"file": "catalogue"}) == 1
    replace(path, "item_id\nitem-3\n")
    follower.look(bundle)
    assert registry.get_sample_value("weir_catalogue_unusable", {"file": "catalogue"}) == 0


def test_a_new_version_is_described_by_what_has_moved(
    store: Store, tmp_path: Path, metrics: CatalogueMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, catalogue = base(store)
    path = tmp_path / "items.csv"
    replace(path, "item_id,tags\nitem-3,jazz\nitem-5,jazz|new\nfresh,jazz\n")
    before = load_bundle(BundleLog(store), "v0")
    follower = CatalogueFollower(CatalogueFiles(str(path)), metrics)
    follower.look(before)
    change = Change([1], {3: "fresh"}, [5])
    write_delta(store, "v1", manifest, changed(catalogue, change), change)
    after = load_bundle(BundleLog(store), "v1", served=before)
    with monkeypatch.context() as patch:
        patch.setattr(CatalogueView, "of", lambda *_: pytest.fail("every row was looked up"))
        follower.describe(after, before)
    assert after.state.view is not None
    assert rows_in(after.state.view.tags["jazz"]).tolist() == [3]
    assert not after.state.view.tags["new"]
    # Of another base, and of another catalogue, all rows are.
    write_bundle(store, "v2", Catalogue.random(items=7))
    other = load_bundle(BundleLog(store), "v2")
    follower.describe(other, after)
    assert other.state.view is not None
    assert rows_in(other.state.view.live).tolist() == list(range(7))
    replace(path, "item_id,tags\nitem-2,jazz\n")
    follower.look()
    late = load_bundle(BundleLog(store), "v1", served=before)
    follower.describe(late, before)
    assert late.state.view is not None
    assert rows_in(late.state.view.tags["jazz"]).tolist() == [2]


def test_a_version_that_was_swapped_in_meanwhile_is_described_at_the_next_look(
    store: Store, tmp_path: Path, metrics: CatalogueMetrics
) -> None:
    write_bundle(store, "v1", Catalogue.random(items=20))
    path = tmp_path / "items.csv"
    replace(path, "item_id,tags\nitem-3,jazz\n")
    follower = CatalogueFollower(CatalogueFiles(str(path)), metrics)
    follower.look()
    bundle = load_bundle(BundleLog(store), "v1")
    follower.describe(bundle)
    old = bundle.state.view
    replace(path, "item_id,tags\nitem-4,jazz\n")
    follower.look()
    assert bundle.state.view is old
    follower.look(bundle)
    assert bundle.state.view is not None
    assert rows_in(bundle.state.view.tags["jazz"]).tolist() == [4]


def test_without_a_catalogue_there_is_nothing_to_describe(store: Store, metrics: CatalogueMetrics) -> None:
    write_bundle(store, "v1", Catalogue.random(items=20))
    bundle = load_bundle(BundleLog(store), "v1")
    CatalogueFollower(CatalogueFiles(), metrics).look(bundle)
    assert bundle.state.view is None


def test_items_are_taken_down_by_a_list_of_ids(
    tmp_path: Path, registry: CollectorRegistry, metrics: CatalogueMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "takedown.txt"
    takedown = Takedown(str(path), metrics)
    takedown.look()
    assert not len(takedown.keys("")), "until the file is there, nothing is taken down"
    assert registry.get_sample_value("weir_catalogue_unusable", {"file": "takedown"}) == 1
    path.write_bytes("\ufeffitem-1\r\n\n  item-2 \nitem-1\nb\u00e4r\n".encode())
    takedown.look()
    keys = takedown.keys("")
    assert set(keys.tolist()) == {hash_id("item-1"), hash_id("item-2"), hash_id("b\u00e4r")}
    assert registry.get_sample_value("weir_takedown_items") == len(keys) == 3
    assert takedown.keys("") is keys
    assert hash_id("item-1", "00ff") in takedown.keys("00ff").tolist()
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        path.unlink()
        takedown.look()
        takedown.look()
    assert len(takedown.keys("")) == 3, "only an emptied file lifts what it said"
    assert len(caplog.records) == 1
    assert registry.get_sample_value("weir_catalogue_unusable", {"file": "takedown"}) == 1
    replace(path, "")
    takedown.look()
    np.testing.assert_array_equal(takedown.keys(""), np.empty(0, np.int64))
    assert registry.get_sample_value("weir_catalogue_unusable", {"file": "takedown"}) == 0


def test_without_a_list_nothing_is_taken_down(metrics: CatalogueMetrics) -> None:
    takedown = Takedown(None, metrics)
    takedown.look()
    assert takedown.keys("") is takedown.keys("")
    assert not len(takedown.keys(""))
