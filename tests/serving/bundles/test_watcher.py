import gc
import logging
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import faiss
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tests.serving.deltas import Change, changed, write_delta
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import BundleFile, BundleLog, EventClock, Store
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import Memory
from weir.serving.bundles.watcher import BundleWatcher, DeltaPolicy
from weir.serving.index.index import AnnIndex
from weir.serving.metrics import BundleMetrics


def watcher(store: Store) -> tuple[BundleWatcher, CollectorRegistry]:
    registry = CollectorRegistry()
    return BundleWatcher(store, BundleMetrics(registry)), registry


def policy(how: Literal["auto", "clone", "in_place"], limit: int = 1 << 40) -> DeltaPolicy:
    return DeltaPolicy(how, Memory(limit))


def damage(store: Store, version: str) -> None:
    path = Path(store.path(f"bundles/{version}/{BundleFile.VECTORS}"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")


def test_it_follows_what_is_promoted(store: Store, catalogue: Catalogue) -> None:
    follower, registry = watcher(store)
    assert not follower.refresh()
    assert follower.bundle is None
    write_bundle(store, "v1", catalogue, max_event_ms=5_000)
    assert follower.refresh()
    assert not follower.refresh()
    write_bundle(store, "v2", Catalogue.random(items=50), promote=False)
    assert not follower.refresh()
    BundleLog(store).promote("v2")
    assert follower.refresh()
    assert follower.bundle is not None
    assert follower.bundle.version == "v2"
    assert registry.get_sample_value("weir_bundle_swaps_total") == 2
    assert registry.get_sample_value("weir_index_items") == 50
    labels = {"index": "Flat", "metric": "cosine"}
    assert registry.get_sample_value("weir_bundle_served_info", {"version": "v2", **labels}) == 1
    assert registry.get_sample_value("weir_bundle_served_info", {"version": "v1", **labels}) is None
    assert registry.get_sample_value("weir_bundle_max_event_timestamp_seconds") == 1_700_000_000


def test_a_replayed_bundle_tells_when_its_newest_event_happened(store: Store, catalogue: Catalogue) -> None:
    EventClock(event_origin=1_700_000_000, wall_origin=1000, speed=60).save(store)
    follower, registry = watcher(store)
    write_bundle(store, "v1", catalogue, max_event_ms=1_700_000_600_000)
    follower.refresh()
    assert registry.get_sample_value("weir_bundle_max_event_timestamp_seconds") == 1_700_000_600
    assert registry.get_sample_value("weir_bundle_max_event_wall_timestamp_seconds") == 1010


def test_it_follows_a_rollback(store: Store, catalogue: Catalogue) -> None:
    follower, registry = watcher(store)
    for version in ("v1", "v2"):
        write_bundle(store, version, catalogue)
        follower.refresh()
    assert registry.get_sample_value("weir_bundle_rollbacks_total") == 0
    BundleLog(store).promote("v1")
    assert follower.refresh()
    assert registry.get_sample_value("weir_bundle_rollbacks_total") == 1
    assert follower.bundle is not None
    assert follower.bundle.version == "v1"


def test_a_damaged_bundle_is_refused_once_and_the_old_one_stays(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    follower, registry = watcher(store)
    write_bundle(store, "v1", catalogue)
    follower.refresh()
    served = follower.bundle
    write_bundle(store, "v2", catalogue, promote=False)
    damage(store, "v2")
    BundleLog(store).promote("v2")
    with caplog.at_level(logging.ERROR):
        assert [follower.refresh() for _ in range(3)] == [False] * 3
    assert follower.bundle is served
    assert registry.get_sample_value("weir_bundle_refused_total") == 1
    [record] = caplog.records
    assert "bundle v2 is refused, v1 stays" in record.getMessage()
    assert BundleFile.VECTORS in record.getMessage()
    write_bundle(store, "v3", catalogue)
    assert follower.refresh()


def test_a_store_that_cannot_be_read_is_asked_again(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    follower, registry = watcher(store)
    write_bundle(store, "v1", catalogue)
    store.remove("bundles/v1")
    with caplog.at_level(logging.ERROR):
        assert [follower.refresh() for _ in range(3)] == [False] * 3
    assert len(caplog.records) == 1
    assert registry.get_sample_value("weir_bundle_refused_total") == 1
    write_bundle(store, "v1", catalogue)
    assert follower.refresh()


def test_a_damaged_current_is_told_once_and_what_is_served_stays(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    follower, registry = watcher(store)
    write_bundle(store, "v1", catalogue)
    follower.refresh()
    served = follower.bundle
    store.write("bundles/CURRENT", b"\xff")
    with caplog.at_level(logging.ERROR):
        assert [follower.refresh() for _ in range(3)] == [False] * 3
    assert follower.bundle is served
    [record] = caplog.records
    assert "bundles/CURRENT" in record.getMessage()
    assert registry.get_sample_value("weir_bundle_refused_total") == 1
    write_bundle(store, "v2", catalogue)
    assert follower.refresh()


@pytest.mark.parametrize("served", [False, True])
def test_a_current_that_is_missing_beside_bundles_is_told_once_with_the_command_that_repairs_it(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture, served: bool
) -> None:
    follower, registry = watcher(store)
    for version in ("v1", "v2"):
        write_bundle(store, version, catalogue)
    if served:
        follower.refresh()
    store.remove("bundles/CURRENT")
    for _ in range(40):
        assert not follower.refresh()
    assert (follower.bundle is not None) == served
    assert caplog.text.count("bundles/CURRENT: is missing beside 2 bundles: `weir promote v2`") == 1
    assert registry.get_sample_value("weir_bundle_refused_total") == 1
    BundleLog(store).promote("v1")
    assert follower.refresh()


def test_before_the_first_promotion_nothing_is_told(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    follower, _ = watcher(store)
    assert not follower.refresh()
    write_bundle(store, "v1", catalogue, promote=False)
    assert not follower.refresh()
    BundleLog(store).promote("v1")
    assert follower.refresh()
    assert caplog.text == ""


def test_the_old_bundles_memory_is_released(store: Store, catalogue: Catalogue) -> None:
    follower, _ = watcher(store)
    write_bundle(store, "v1", catalogue, index="IVF4,Flat")
    follower.refresh()
    old = weakref.ref(follower.bundle)
    write_bundle(store, "v2", catalogue)
    follower.refresh()
    gc.collect()
    assert old() is None


@pytest.mark.parametrize("damaged", [b"", b"v9\n", b"v\xff\n", b"\x00\x01\x02", bytes(range(256)) * 40, b"../..\n"])
def test_a_damaged_current_changes_nothing_and_the_next_promotion_is_taken(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture, damaged: bytes
) -> None:
    follower, registry = watcher(store)
    write_bundle(store, "v1", catalogue)
    follower.refresh()
    served = follower.bundle
    store.write("bundles/CURRENT", damaged)
    with caplog.at_level(logging.ERROR):
        assert [follower.refresh() for _ in range(3)] == [False] * 3
    assert follower.bundle is served
    [record] = caplog.records
    assert store.path("bundles/CURRENT") in record.getMessage()
    assert "v1 stays" in record.getMessage()
    assert record.getMessage().isprintable()
    assert registry.get_sample_value("weir_bundle_refused_total") == 1
    write_bundle(store, "v2", Catalogue.random(items=50))
    assert follower.refresh()
    assert follower.bundle is not None
    assert follower.bundle.version == "v2"


class ForeignError(Exception):
    """As libraries of object stores raise: no `OSError`."""


def test_errors_of_any_kind_are_survived_and_told_once(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, registry = watcher(store)
    write_bundle(store, "v1", catalogue)

    def read(self: Store, name: str) -> bytes:
        raise ForeignError(f"throttled: {name}")

    with caplog.at_level(logging.ERROR), monkeypatch.context() as patched:
        patched.setattr(Store, "read", read)
        assert [follower.refresh() for _ in range(3)] == [False] * 3
    [record] = caplog.records
    assert "throttled" in record.getMessage()
    assert record.exc_info is not None
    assert registry.get_sample_value("weir_bundle_refused_total") == 1
    assert follower.refresh()


def test_a_damaged_clock_does_not_keep_a_bundle_back(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    follower, _ = watcher(store)
    store.write("CLOCK.json", b"{")
    write_bundle(store, "v1", catalogue)
    with caplog.at_level(logging.ERROR):
        assert follower.refresh()
    assert "CLOCK.json" in caplog.text


def test_a_delta_is_applied_beside_what_is_served_and_a_damaged_one_is_not(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    first = write_bundle(store, "v1", catalogue, index="IVF4,Flat", parameters={"nprobe": 4})
    watcher = BundleWatcher(store, BundleMetrics(CollectorRegistry()), policy=policy("clone"))
    assert watcher.refresh()
    before = watcher.bundle
    change = Change([3, 4], {200: "new"}, [5])
    second = write_delta(store, "v2", first, changed(catalogue, change), change)
    assert watcher.refresh()
    served = watcher.bundle
    assert before is not None
    assert served is not None
    assert (served.version, served.items) == ("v2", 200)
    assert served.rows.vectors.base is before.rows.vectors.base
    further = Change([7], {}, [], 1)
    write_delta(store, "v3", second, changed(changed(catalogue, change), further), further)
    path = Path(store.path("bundles/v3/vectors.npy"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert not watcher.refresh()
    assert watcher.bundle is served
    assert "bundle v3 is refused, v2 stays" in caplog.text
    assert "v3/vectors.npy" in caplog.text
    # Back to the beginning of the chain, and to its end again.
    BundleLog(store).promote("v1")
    assert watcher.refresh()
    assert watcher.bundle is not None
    assert watcher.bundle.items == 200
    BundleLog(store).promote("v2")
    assert watcher.refresh()
    assert watcher.bundle.rows_of(served.rows.keys[np.arange(201)]).tolist()[200] == 200


def with_delta(store: Store, catalogue: Catalogue) -> None:
    first = write_bundle(store, "v1", catalogue, index="IVF4,Flat", parameters={"nprobe": 4})
    change = Change([3, 4], {200: "new"}, [5])
    write_delta(store, "v2", first, changed(catalogue, change), change, promote=False)


def test_a_delta_is_taken_in_place_and_an_older_version_is_loaded(store: Store, catalogue: Catalogue) -> None:
    with_delta(store, catalogue)
    registry, log = CollectorRegistry(), BundleLog(store)
    watcher = BundleWatcher(store, BundleMetrics(registry))
    watcher.refresh()
    before = watcher.bundle
    log.promote("v2")
    assert watcher.refresh()
    served = watcher.bundle
    assert before is not None
    assert served is not None
    assert before.answering() is served
    assert served.index is not before.index
    assert isinstance(served.index, AnnIndex)
    assert isinstance(before.index, AnnIndex)
    assert served.index.index is before.index.index
    assert registry.get_sample_value("weir_bundle_delta_pause_seconds_count") == 1
    assert registry.get_sample_value("weir_bundle_deltas_total", {"how": "in_place"}) == 1
    assert registry.get_sample_value("weir_bundle_deltas_total", {"how": "clone"}) == 0
    log.promote("v1")
    assert watcher.refresh()
    assert watcher.bundle is not None
    assert (watcher.bundle.version, served.answering()) == ("v1", served)
    assert registry.get_sample_value("weir_bundle_delta_pause_seconds_count") == 1


def test_a_damaged_delta_is_not_taken_in_place(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    with_delta(store, catalogue)
    follower, registry = watcher(store)
    follower.refresh()
    served = follower.bundle
    damage(store, "v2")
    BundleLog(store).promote("v2")
    assert not follower.refresh()
    assert follower.bundle is served
    assert served is not None
    assert served.answering() is served
    assert "bundle v2 is refused, v1 stays" in caplog.text
    assert registry.get_sample_value("weir_bundle_damaged_total") == 0


def test_after_a_change_that_failed_midway_the_promoted_bundle_is_read_anew(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    with_delta(store, catalogue)
    follower, registry = watcher(store)
    follower.refresh()
    served = follower.bundle
    assert served is not None

    def losing_a_row(change: Callable[[], LoadedBundle]) -> LoadedBundle:
        assert isinstance(served.index, AnnIndex)
        served.index.index.remove_ids(faiss.IDSelectorArray(np.array([77])))
        return change()

    follower.between = losing_a_row
    BundleLog(store).promote("v2")
    assert not follower.refresh()
    assert follower.bundle is None
    assert "bundle v2 is refused, none stays" in caplog.text
    assert registry.get_sample_value("weir_bundle_damaged_total") == 1
    assert registry.get_sample_value("weir_index_items") == 0
    assert follower.refresh()
    assert follower.bundle is not None
    assert (follower.bundle.version, follower.bundle.items) == ("v2", 200)


def test_without_room_for_two_the_served_bundle_goes_before_another_complete_one_is_read(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    with_delta(store, catalogue)
    registry, log = CollectorRegistry(), BundleLog(store)
    follower = BundleWatcher(store, BundleMetrics(registry), policy=policy("auto", 1 << 20))
    assert follower.refresh()
    log.promote("v2")
    assert follower.refresh()  # a delta needs no room
    write_bundle(store, "v3", catalogue, index="IVF4,Flat")
    damage(store, "v3")
    assert not follower.refresh()
    assert follower.bundle is not None
    assert "bundle v3 is refused, v2 stays" in caplog.text
    write_bundle(store, "v4", catalogue, index="IVF4,Flat")
    assert not follower.refresh()
    assert follower.bundle is None
    assert "v2 is dropped before v4 is read" in caplog.text
    assert follower.refresh()
    assert follower.bundle.version == "v4"
    assert registry.get_sample_value("weir_bundle_dropped_total") == 1


def test_other_processes_get_each_version_and_what_they_have_is_kept(store: Store, catalogue: Catalogue) -> None:
    with_delta(store, catalogue)
    follower, registry = watcher(store)
    shared: list[LoadedBundle] = []

    def share(bundle: LoadedBundle) -> LoadedBundle:
        # They may serve it before it counts as served here.
        assert registry.get_sample_value("weir_bundle_swaps_total") == len(shared)
        shared.append(replace(bundle, servable_at=0.0))
        return shared[-1]

    follower.share = share
    assert follower.refresh()
    BundleLog(store).promote("v2")
    assert follower.refresh()
    assert [bundle.version for bundle in shared] == ["v1", "v2"]
    assert follower.bundle is shared[-1]
    assert registry.get_sample_value("weir_bundle_deltas_total", {"how": "in_place"}) == 1


def test_a_version_that_the_others_cannot_get_is_tried_again(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    with_delta(store, catalogue)
    follower, _ = watcher(store)
    follower.refresh()
    BundleLog(store).promote("v2")

    def full(_: LoadedBundle) -> LoadedBundle:
        raise OSError("no memory for it")

    follower.share, before = full, follower.share
    assert not follower.refresh()
    assert "no memory for it" in caplog.text
    follower.share = before
    assert follower.refresh()
    assert follower.bundle is not None
    assert follower.bundle.version == "v2"


def test_a_bundle_is_taken_from_the_others_before_there_is_room_for_the_next(
    store: Store, catalogue: Catalogue
) -> None:
    write_bundle(store, "v1", catalogue)
    follower = BundleWatcher(store, BundleMetrics(CollectorRegistry()), policy=policy("auto", 1 << 20))
    drops: list[LoadedBundle | None] = []
    follower.drop = lambda: drops.append(follower.bundle)
    assert follower.refresh()
    write_bundle(store, "v2", catalogue)
    assert not follower.refresh()
    assert drops == [None]
