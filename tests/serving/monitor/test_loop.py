"""The monitor against a real server process, its figures against brute force; the time until events are servable."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from tests.contracts.panes import retire_before
from tests.serving.colds import COLD, names, with_cold, write_warm
from tests.serving.process import ServerProcess
from tests.serving.support import HOUR_MS, Catalogue, user_weights, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import BundleLog, CommitLog, EventClock, Store, WindowLog, hash_id
from weir.contracts.base.models import CommitRef
from weir.contracts.commits.retention_horizon import MonitorPlace
from weir.serving.bundles.catalogue import CatalogueFiles
from weir.serving.client import Info, RetrievalClient
from weir.serving.monitor.config import MonitorConfig
from weir.serving.monitor.loop import Coverage, Monitor, seconds_to_servable
from weir.serving.monitor.metrics import MonitorMetrics
from weir.serving.monitor.results import WindowRecall, recorded, save

T = 1_700_000_000_000 // HOUR_MS * HOUR_MS
K = (2, 5, 20)
NOTHING = {
    "sequence": -1,
    "window": "a/0000",
    "measured_at": 0,
    "bundle_versions": (),
    "examples": {},
    "index": {},
    "model": {},
    "served": {},
    "popularity": {},
}
"""A result that there was before; it must be read first."""

HALF_LIFE = 10_000
"""Seconds: so short that counts which differ do so by far more than a sketch rounds."""


@contextmanager
def following(store: Store, target: str, **config: object) -> Iterator[tuple[Monitor, CollectorRegistry]]:
    registry = CollectorRegistry()
    ours = {"target": target, "k": K, "queries_per_request": 7, "popularity_half_life_seconds": HALF_LIFE}
    settings = MonitorConfig.model_validate({**ours, **config})
    with RetrievalClient(target, timeout=5) as client:
        yield Monitor(store, settings, client, MonitorMetrics(registry)), registry


def newest_commit(store: Store) -> CommitRef:
    log = CommitLog(store)
    number = log.newest()
    return CommitRef(number=number, checksum=log.at(number + 1).checksum)


def events(catalogue: Catalogue, sequence: int, count: int = 40) -> list[Event]:
    """Events whose items the tower can guess more or less, some of them repeats, some of new users."""
    random = np.random.default_rng(sequence)
    made = []
    for number in range(count):
        history = [catalogue.ids[i] for i in random.integers(0, 60, number % 4)]
        near = catalogue.top(catalogue.user(history), 30) if history else catalogue.ids
        made.append(Event(f"user-{number}", near[random.integers(0, 30)], T + sequence * HOUR_MS + number, history))
    return made


def expected(catalogue: Catalogue, examples: list[Event], named: set[str]) -> dict[str, dict[int, float]]:
    """Recall worked out by brute force; items never seen in a window have no id and drop out of histories."""
    model, served = [], []
    for event in examples:
        history = [item for item in event.history if item in named]
        if history:
            user = catalogue.user(history)
            model.append(catalogue.top(user, 20).index(event.item) if event.item in catalogue.top(user, 20) else 99)
            shown = catalogue.top(user, 20, history)
        else:
            shown = catalogue.most_popular(20)
        served.append(shown.index(event.item) if event.item in shown else 99)
    return {
        name: {k: float(np.mean([rank < k for rank in ranks])) for k in K}
        for name, ranks in (("model", model), ("served", served))
    }


def test_figures_agree_with_brute_force(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    windows = [events(catalogue, sequence) for sequence in range(3)]
    for sequence, window in enumerate(windows):
        write_window(store, sequence, window)
    with ServerProcess(store) as server:
        server.serving("v1")
        with following(store, server.target) as (monitor, registry):
            assert monitor.step() == 3
            assert monitor.step() == 0
            results = recorded(store)
    assert results[0].examples.skipped == {"trained": 40}
    assert results[0].model == {}
    named: set[str] = {event.item for event in windows[0]}
    for sequence in (1, 2):
        named |= {event.item for event in windows[sequence]}
        truth = expected(catalogue, windows[sequence], named)
        assert results[sequence].model == pytest.approx(truth["model"])
        assert results[sequence].served == pytest.approx(truth["served"])
        # Each user has one event of the window: nothing of its history is new.
        assert results[sequence].committed == results[sequence].served
        assert results[sequence].bundle_versions == ("v1",)
        assert results[sequence].index == dict.fromkeys(K, 1.0)
    assert results[1].popularity == pytest.approx(popular(windows[:1], windows[1]))
    assert results[2].popularity == pytest.approx(popular(windows[:2], windows[2]))
    check_metrics(registry, results)


def test_it_asks_with_what_events_say_of_their_users_within_the_servers_limits(
    store: Store, catalogue: Catalogue
) -> None:
    """Of one event the features alone find the item, of the other nothing is known; a request takes two of them."""
    weights = user_weights()
    write_bundle(store, "v1", catalogue, user_features=weights)
    write_window(store, 0, [])
    said = {"country": ["de"], "langs": ["de", "en", "fr"], "age": 31.0}
    added = weights.embeddings(pa.table({"country": [["de"]], "langs": [["de", "en", "fr"]], "age": [31.0]}))[0]
    [best, *_] = catalogue.top(added / np.linalg.norm(added), 1)
    window = [Event(f"user-{number}", best, T + HOUR_MS + number, said=said) for number in range(9)]
    write_window(store, 1, [*window, Event("user-9", best, T + HOUR_MS + 9)])
    with ServerProcess(store, limits={"max_feature_values": 10}) as server:
        server.serving("v1")
        with following(store, server.target, queries_per_request=16) as (monitor, registry):
            assert monitor.step() == 2
            assert registry.get_sample_value("weir_monitor_errors_total") == 0
    found = recorded(store)[1]
    assert (found.examples.served, found.examples.model) == (10, 9)
    assert found.model == dict.fromkeys(K, 1.0)
    in_popular = {k: best in catalogue.most_popular(k) for k in K}
    assert found.served == {k: pytest.approx(0.9 + 0.1 * in_popular[k]) for k in K}


def test_committed_histories_and_ages_agree_with_brute_force(store: Store, catalogue: Catalogue) -> None:
    """Two events a user and window: the first is unknown while the window is open."""
    trained_until = T + HOUR_MS - 1000
    write_bundle(store, "v1", catalogue, max_event_ms=trained_until)
    write_window(store, 0, [Event("ann", item, T) for item in catalogue.ids])
    window = []
    for number in range(20):
        old, new = catalogue.ids[number], catalogue.ids[number + 30]
        item = catalogue.top(catalogue.user([old, new]), 5, [old, new])[number % 5]
        at = T + HOUR_MS + 100_000 * number
        window += [Event(f"user-{number}", new, at, [old]), Event(f"user-{number}", item, at + 90_000, [old, new])]
    write_window(store, 1, window)
    with ServerProcess(store) as server:
        server.serving("v1")
        with following(store, server.target) as (monitor, registry):
            monitor.step()
    result, named = recorded(store)[1], set(catalogue.ids)
    stale = [Event(event.user, event.item, event.time_ms, event.history[:1]) for event in window]
    assert result.served == pytest.approx(expected(catalogue, window, named)["served"])
    assert result.committed == pytest.approx(expected(catalogue, stale, named)["served"])
    assert result.committed != result.served
    for of, events_, start in (("bundle", window, trained_until), ("history", stale, T + HOUR_MS)):
        for low, high in ((-1, 60), (60, 300), (300, 1800), (1800, 7200)):
            inside = [event for event in events_ if low < (event.time_ms - start) / 1000 <= high]
            labels = {"of": of, "up_to": str(high)}
            assert (registry.get_sample_value("weir_recall_freshness_events_total", labels) or 0) == len(inside)
            if inside:
                hits = registry.get_sample_value("weir_recall_freshness_hits_total", {**labels, "k": "5"})
                assert hits == pytest.approx(len(inside) * expected(catalogue, inside, named)["served"][5])


def popular(before: list[list[Event]], window: list[Event]) -> dict[int, float]:
    """The baseline from exact counts; the order among equal counts is the monitor's: that of first sight."""
    counts: dict[str, float] = {}
    fade = 0.5 ** (3600 / HALF_LIFE)
    for one in before:
        counts = {item: fade * count for item, count in counts.items()}
        fresh = [event.item for event in one]
        for item in sorted(set(fresh), key=hash_id):
            counts[item] = counts.get(item, 0) + fresh.count(item)
    order = sorted(counts, key=lambda item: -counts[item])
    return {k: float(np.mean([event.item in order[:k] for event in window])) for k in K}


def check_metrics(registry: CollectorRegistry, results: list[WindowRecall]) -> None:
    for kind in ("index", "model", "served", "committed", "popularity"):
        # The windows are small: all of their events together.
        found = [(getattr(one, kind), one.cases(kind)) for one in results if getattr(one, kind)]
        for k in K:
            mean = sum(means[k] * cases for means, cases in found) / sum(cases for _, cases in found)
            assert registry.get_sample_value(f"weir_recall_{kind}", {"k": str(k)}) == pytest.approx(mean)
    assert registry.get_sample_value("weir_recall_skipped_total", {"reason": "trained"}) == 40
    assert registry.get_sample_value("weir_recall_examples_total", {"kind": "served"}) == 80
    assert registry.get_sample_value("weir_recall_sequence") == 2


def test_a_coarse_index_shows_in_its_own_figure(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue, index="IVF8,Flat", parameters={"nprobe": 1})
    window = events(catalogue, 1)
    write_window(store, 0, [])
    write_window(store, 1, window)
    with ServerProcess(store) as server:
        server.serving("v1")
        with following(store, server.target) as (monitor, _):
            monitor.step()
    result = recorded(store)[1]
    assert result.model == pytest.approx(expected(catalogue, window, {event.item for event in window})["model"])
    assert 0 < result.index[20] < 1


def test_a_restart_goes_on_after_the_last_result(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    for sequence in range(3):
        write_window(store, sequence, events(catalogue, sequence))
    with ServerProcess(store) as server:
        server.serving("v1")
        with following(store, server.target) as (monitor, _):
            monitor.step()
        first = recorded(store)
        write_window(store, 3, events(catalogue, 3))
        with following(store, server.target) as (monitor, registry):
            assert monitor.step() == 4
            assert registry.get_sample_value("weir_recall_windows_total") == 1
            served = registry.get_sample_value("weir_recall_served", {"k": "20"})
        again = recorded(store)
    # The new window does not stand alone: the earlier ones are read from the store.
    assert served == pytest.approx(np.mean([one.served[20] for one in again[1:]]))
    assert again[:3] == first
    assert again[3].popularity == pytest.approx(popular([events(catalogue, s) for s in range(3)], events(catalogue, 3)))


def test_it_waits_for_the_first_bundle_and_skips_nothing(store: Store, catalogue: Catalogue) -> None:
    write_window(store, 0, events(catalogue, 0))
    write_window(store, 1, events(catalogue, 1))
    with ServerProcess(store) as server, following(store, server.target) as (monitor, registry):
        assert monitor.step() == 0
        assert registry.get_sample_value("weir_monitor_errors_total") == 1
        write_bundle(store, "v1", catalogue)
        server.serving("v1")
        assert monitor.step() == 2
        results = recorded(store)
    assert results[0].freshness is not None
    assert results[0].freshness.bundle_version == "v1"
    assert results[1].examples.served == 40


def test_freshness_is_told_when_a_bundle_covers_the_window(store: Store, catalogue: Catalogue) -> None:
    EventClock(event_origin=T / 1000, wall_origin=1_000_000.0, speed=1.0).save(store)
    write_bundle(store, "v1", catalogue)
    for sequence in range(3):
        write_window(store, sequence, events(catalogue, sequence))
    with ServerProcess(store) as server, following(store, server.target) as (monitor, registry):
        server.serving("v1")
        monitor.step()
        assert registry.get_sample_value("weir_event_to_servable_seconds_count") == 0
        write_bundle(store, "v2", catalogue, trained_sequence=1)
        server.serving("v2")
        monitor.step()
        assert registry.get_sample_value("weir_event_to_servable_seconds_count") == 100
    fresh = [result.freshness for result in recorded(store)]
    assert fresh[0] is None
    assert fresh[1] is not None
    assert fresh[2] is None
    happened = 1_000_000.0 + 3600
    assert fresh[1].seconds_max == pytest.approx(fresh[1].servable_at - happened, abs=0.001)
    assert fresh[1].seconds_max - fresh[1].seconds_min == pytest.approx(0.039, abs=0.002)


def test_answers_of_a_bundle_without_manifest_do_not_count(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    write_window(store, 0, [])
    write_window(store, 1, events(catalogue, 1))
    with ServerProcess(store) as server, following(store, server.target) as (monitor, _):
        server.serving("v1")
        write_bundle(store, "v2", catalogue, promote=False)
        BundleLog(store).store.remove("bundles/v1")
        monitor.step()
    assert recorded(store)[1].examples.skipped == {"retired": 40}


def test_settings_beyond_the_servers_limits_are_refused(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    with ServerProcess(store, limits={"max_k": 10}) as server:
        server.serving("v1")
        with following(store, server.target) as (monitor, _), pytest.raises(ValueError, match=r"monitor\.k"):
            monitor.step()


class ForeignError(Exception):
    """As libraries of object stores raise: no `OSError`."""


def test_errors_of_any_kind_are_survived_and_told_once(
    store: Store, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_bundle(store, "v1", catalogue)
    write_window(store, 0, [])
    write_window(store, 1, events(catalogue, 1))
    read = Store.read

    def throttled(self: Store, name: str) -> bytes:
        raise ForeignError("slow down")

    with ServerProcess(store) as server:
        server.serving("v1")
        save(store, WindowRecall.model_validate(NOTHING))
        with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
            patched.setattr(Store, "read", throttled)
            with following(store, server.target) as (monitor, registry):
                assert [monitor.step() for _ in range(3)] == [0, 0, 0]
                patched.setattr(Store, "read", read)
                assert monitor.step() == 2
        assert registry.get_sample_value("weir_monitor_errors_total") == 3
        assert [r.getMessage() for r in caplog.records] == ["waiting after commit -1: ForeignError: slow down"]
    assert recorded(store)[-1].examples.served == 40


def test_a_damaged_result_is_named(store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture) -> None:
    write_bundle(store, "v1", catalogue)
    store.write("monitor/a/0000.json", b"{")
    with ServerProcess(store) as server, caplog.at_level(logging.WARNING):
        server.serving("v1")
        with following(store, server.target) as (monitor, _):
            assert [monitor.step() for _ in range(2)] == [0, 0]
            [record] = caplog.records
            assert f"left out: {store.path('monitor/a/0000.json')}: does not start" in record.getMessage()
            store.remove("monitor/a/0000.json")
            write_window(store, 0, [])
            assert monitor.step() == 1


def test_requests_keep_to_the_servers_cost(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    write_window(store, 0, [])
    write_window(store, 1, events(catalogue, 1))
    with ServerProcess(store, limits={"max_cost": 1000}) as server:
        server.serving("v1")
        with following(store, server.target, queries_per_request=16) as (monitor, registry):
            assert monitor.step() == 2
            assert registry.get_sample_value("weir_monitor_errors_total") == 0
    assert recorded(store)[1].examples.served == 40


def test_a_restart_reads_only_the_windows_since_its_stored_popularity(
    store: Store, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.serving.monitor.loop._WINDOWS_BETWEEN_SAVES", 2)
    write_bundle(store, "v1", catalogue)
    for sequence in range(3):
        write_window(store, sequence, events(catalogue, sequence))
    with ServerProcess(store) as server:
        server.serving("v1")
        with following(store, server.target) as (monitor, _):
            assert monitor.step() == 3
        place = MonitorPlace.read(store)
        assert place is not None
        assert (place.measured, place.counted) == (2, 1)
        write_window(store, 3, events(catalogue, 3))
        with following(store, server.target) as (monitor, registry):
            # The window after the stored popularity is counted again, the new one measured.
            assert monitor.step() == 2
            assert registry.get_sample_value("weir_recall_windows_total") == 1
    before = [events(catalogue, sequence) for sequence in range(3)]
    assert recorded(store)[3].popularity == pytest.approx(popular(before, events(catalogue, 3)))


def test_killed_before_it_noted_its_place_it_measures_no_window_twice(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    for sequence in range(3):
        write_window(store, sequence, events(catalogue, sequence))
    with ServerProcess(store) as server:
        server.serving("v1")
        with following(store, server.target) as (monitor, _):
            monitor.step()
        first = recorded(store)
        MonitorPlace(measured=0).write(store)
        with following(store, server.target) as (monitor, registry):
            assert monitor.step() == 3
            assert registry.get_sample_value("weir_recall_windows_total") == 0
    assert recorded(store) == first


def test_a_damaged_place_is_found_again_from_the_results(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    write_bundle(store, "v1", catalogue)
    write_window(store, 0, events(catalogue, 0))
    with ServerProcess(store) as server:
        server.serving("v1")
        with following(store, server.target) as (monitor, _):
            monitor.step()
        store.write("monitor/PLACE.json", b"damaged")
        write_window(store, 1, events(catalogue, 1))
        with following(store, server.target) as (monitor, registry):
            monitor.step()
            assert registry.get_sample_value("weir_recall_windows_total") == 1
    assert "PLACE.json: does not start with its checksum" in caplog.text
    place = MonitorPlace.read(store)
    assert place is not None
    assert (place.measured, place.commit) == (1, newest_commit(store))


def test_it_starts_with_what_is_left(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    for sequence in range(4):
        write_window(store, sequence, events(catalogue, sequence))
    with ServerProcess(store) as server:
        server.serving("v1")
        with following(store, server.target) as (monitor, registry):
            retire_before(store, 2, T + 2 * HOUR_MS)
            monitor.step()
            assert registry.get_sample_value("weir_monitor_errors_total") == 0
    assert [result.sequence for result in recorded(store)] == [2, 3]


@pytest.mark.parametrize("new", [0, 1, 3])
def test_a_log_that_lost_its_newest_commits_is_noticed_and_measured_as_the_error_says(
    store: Store, catalogue: Catalogue, caplog: pytest.LogCaptureFixture, new: int
) -> None:
    write_bundle(store, "v1", catalogue)
    for sequence in range(3):
        write_window(store, sequence, events(catalogue, sequence))
    with ServerProcess(store) as server:
        server.serving("v1")
        with following(store, server.target) as (monitor, _):
            monitor.step()
            monitor.popularity.save(store)
        store.remove("commits/HEAD")
        store.remove(CommitLog.name(2))
        for sequence in range(2, 2 + new):
            write_window(store, sequence, events(catalogue, sequence + 10))
        with following(store, server.target) as (monitor, registry):
            assert monitor.step() == monitor.step() == 0
            assert registry.get_sample_value("weir_monitor_errors_total") == 2
        assert f"{store.path('monitor')}: commit 2 was read" in caplog.text
        assert "remove monitor/, and all windows that the log holds are measured again" in caplog.text
        store.remove("monitor")
        with following(store, server.target) as (monitor, registry):
            assert monitor.step() == 2 + new
            assert registry.get_sample_value("weir_monitor_errors_total") == 0
    assert [result.sequence for result in recorded(store)] == list(range(2 + new))
    windows = [events(catalogue, one if one < 2 else one + 10) for one in range(2 + new)]
    assert recorded(store)[-1].popularity == pytest.approx(popular(windows[:-1], windows[-1]))


def test_answers_of_a_bundle_that_was_trained_on_another_log_do_not_count(store: Store, catalogue: Catalogue) -> None:
    write_window(store, 0, events(catalogue, 0))
    write_bundle(store, "v1", catalogue, trained_commit=CommitRef(number=0, checksum="0" * 32))
    write_window(store, 1, events(catalogue, 1))
    with ServerProcess(store) as server:
        server.serving("v1")
        with following(store, server.target) as (monitor, _):
            monitor.step()
    assert [result.examples.skipped for result in recorded(store)] == [{"other_log": 40}] * 2


def test_cold_items_count_as_found(store: Store, tmp_path: Path) -> None:
    """The next item of each event is one that no bundle has, and the catalogue has."""
    catalogue = with_cold(Catalogue.random())
    write_warm(store, "v1", catalogue, "Flat")
    path = tmp_path / "items.jsonl"
    features = (dict(zip(names().dense, one, strict=True)) for one in catalogue.embeddings[2:].tolist())
    lines = (json.dumps({"item_id": item, **one}) for item, one in zip(catalogue.ids, features, strict=True))
    path.write_text("\n".join(lines))
    cold = set(catalogue.ids[-COLD:])
    made = []
    for number, item in enumerate(catalogue.ids[:30]):
        shown = [one for one in catalogue.top(catalogue.user([item]), 21) if one != item][:20]
        made += [Event(f"user-{number}", one, T + HOUR_MS + number, [item]) for one in shown if one in cold][:1]
    assert len(made) > 10
    write_window(store, 0, [Event("u", item, T) for item in catalogue.ids])
    write_window(store, 1, made)
    files = CatalogueFiles(str(path), features=names())
    with ServerProcess(store, files) as server:
        server.serving("v1")
        while server.metric("weir_cold_items") != COLD:
            time.sleep(0.02)
        with following(store, server.target) as (monitor, _):
            monitor.step()
    result = recorded(store)[1]
    assert result.examples.served == len(made)
    assert (result.served[20], result.committed[20]) == (1.0, 1.0)


START_MS = 1_700_000_000_000
INFO = Info(
    bundle_version="v1",
    sketch_version="",
    trained_sequence=0,
    index_type="Flat",
    index_parameters={},
    items=1,
    dimension=1,
    metric="cosine",
    max_event_time=0,
    servable_time=0,
    evaluation={},
    limits={},
    software_version="",
    bundle_software_version="",
)


def covered(coverage: Coverage, trained: int) -> list[int]:
    return [manifest.sequence for manifest in coverage.newly_covered(replace(INFO, trained_sequence=trained))]


@pytest.fixture
def windows(store: Store) -> WindowLog:
    for sequence in range(6):
        write_window(store, sequence, [Event("ann", "a", START_MS)])
    return WindowLog(store)


def test_windows_are_told_once_from_the_first_bundle_that_covers_them(windows: WindowLog) -> None:
    coverage = Coverage(windows)
    assert covered(coverage, 1) == []
    assert covered(coverage, 1) == []
    assert covered(coverage, 3) == [2, 3]
    assert covered(coverage, 2) == []
    assert covered(coverage, 4) == [4]


def test_the_first_bundle_of_a_server_seen_without_one_counts(windows: WindowLog) -> None:
    coverage = Coverage(windows)
    coverage.nothing_served()
    assert covered(coverage, 1) == [0, 1]
    coverage.nothing_served()
    assert covered(coverage, 2) == [2]
    restarted = Coverage(windows, reported=2)
    restarted.nothing_served()
    assert covered(restarted, 4) == [3, 4]


def test_a_server_that_stays_behind_costs_no_request(
    windows: WindowLog, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    coverage, read = Coverage(windows), list[str]()
    covered(coverage, 1)
    really = Store.read
    monkeypatch.setattr(Store, "read", lambda self, name: read.append(name) or really(self, name))
    assert covered(coverage, 1) == []
    assert read == []
    assert covered(coverage, 2) == [2]
    assert read[-1] == CommitLog.name(3)


def test_seconds_are_the_observers(store: Store) -> None:
    manifest = write_window(store, 0, [Event("ann", "a", START_MS + 1000 * n) for n in range(101)])
    info = replace(INFO, servable_time=START_MS / 1000 + 160)
    seconds, told = seconds_to_servable(store, WindowLog(store), manifest, info)
    assert len(seconds) == 100
    assert (told.seconds_min, told.seconds_median, told.seconds_max) == pytest.approx((60, 110, 160), abs=0.01)
    assert told.quantiles == pytest.approx(range(60, 161, 5), abs=0.01)
    EventClock(event_origin=START_MS / 1000, wall_origin=500.0, speed=10).save(store)
    _, replayed = seconds_to_servable(store, WindowLog(store), manifest, replace(INFO, servable_time=520.0))
    assert (replayed.seconds_min, replayed.seconds_max) == pytest.approx((10, 20), abs=0.01)
    assert (replayed.bundle_version, replayed.servable_at) == ("v1", 520.0)


def test_an_empty_window_took_no_time(store: Store) -> None:
    seconds, told = seconds_to_servable(store, WindowLog(store), write_window(store, 0, []), INFO)
    assert not len(seconds)
    assert told.seconds_max == 0
