from dataclasses import replace

import pytest

from tests.serving.support import write_window
from tests.serving.users import Event
from weir.contracts import CommitLog, EventClock, Store, WindowLog
from weir.serving.client import Info
from weir.serving.monitor.freshness import Coverage, seconds_to_servable

T = 1_700_000_000_000
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
        write_window(store, sequence, [Event("ann", "a", T)])
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
    manifest = write_window(store, 0, [Event("ann", "a", T + 1000 * n) for n in range(101)])
    info = replace(INFO, servable_time=T / 1000 + 160)
    seconds, told = seconds_to_servable(store, WindowLog(store), manifest, info)
    assert len(seconds) == 100
    assert (told.seconds_min, told.seconds_median, told.seconds_max) == pytest.approx((60, 110, 160), abs=0.01)
    assert told.quantiles == pytest.approx(range(60, 161, 5), abs=0.01)
    EventClock(event_origin=T / 1000, wall_origin=500.0, speed=10).save(store)
    _, replayed = seconds_to_servable(store, WindowLog(store), manifest, replace(INFO, servable_time=520.0))
    assert (replayed.seconds_min, replayed.seconds_max) == pytest.approx((10, 20), abs=0.01)
    assert (replayed.bundle_version, replayed.servable_at) == ("v1", 520.0)


def test_an_empty_window_took_no_time(store: Store) -> None:
    seconds, told = seconds_to_servable(store, WindowLog(store), write_window(store, 0, []), INFO)
    assert not len(seconds)
    assert told.seconds_max == 0
