""""""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.support import write_window
from tests.serving.users import Event
from tests.weir.up.damage import recall
from weir.contracts import CorruptArtefactError, Store, WindowManifest
from weir.serving.monitor.results import (
    UP_TO,
    AgeHits,
    Examples,
    NewestRecalls,
    WindowRecall,
    ages_of,
    by_age,
    first_rows,
    load,
    mean_recall,
    recorded,
    save,
)


def result(sequence: int, window: str) -> WindowRecall:
    return WindowRecall(
        sequence=sequence,
        window=window,
        measured_at=1.5,
        bundle_versions=("v1",),
        examples=Examples(sampled=3, model=2, served=3, popularity=3, skipped={"swapped": 1}),
        index={10: 1.0},
        model={10: 0.5},
        served={10: 0.25},
        popularity={},
    )


def test_results_come_back_in_commit_order(store: Store) -> None:
    manifests = [write_window(store, sequence, [], start_ms=start) for sequence, start in ((0, 9 * 10**9), (1, 10**9))]
    results = [result(m.sequence, str(m.name)) for m in manifests]
    assert recorded(store) == []
    assert load(store, manifests[0]) is None
    for one in results:
        save(store, one)
    assert recorded(store) == results
    assert load(store, manifests[1]) == results[1]
    assert store.glob("monitor/*/*.json") == sorted(f"monitor/{m.name}.json" for m in manifests)


def test_a_damaged_result_is_left_out_and_named(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    manifests = [write_window(store, sequence, []) for sequence in range(2)]
    for manifest in manifests:
        save(store, result(manifest.sequence, str(manifest.name)))
    name = f"monitor/{manifests[0].name}.json"
    for data in (b"", b"\xff", b"[]", store.read(name)[:-9]):
        caplog.clear()
        store.write(name, data)
        assert [one.sequence for one in recorded(store)] == [1]
        assert name in caplog.text
        with pytest.raises(CorruptArtefactError, match=name):
            load(store, manifests[0])


T = 1_700_000_000_000

ages = st.floats(-1e6, 1e7)


@given(st.lists(st.tuples(ages, st.booleans())))
def test_every_answer_of_an_age_is_in_one_range(answers: list[tuple[float, bool]]) -> None:
    found = by_age("bundle", np.array([age for age, _ in answers]), {20: [float(hit) for _, hit in answers]})
    low = -1.0
    for up_to in (*UP_TO, None):
        high = np.inf if up_to is None else up_to
        inside = [hit for age, hit in answers if age >= 0 and low < age <= high]
        one = next((one for one in found if one.up_to == up_to), None)
        assert (one is None) == (not inside)
        if one is not None:
            assert (one.cases, one.hits) == (len(inside), {20: sum(inside)})
        low = high


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=20))
def test_the_first_event_of_a_user_is_the_earliest(events: list[tuple[int, int]]) -> None:
    users, times = (np.array([event[place] for event in events], np.int64) for place in (0, 1))
    found = first_rows(users, times).tolist()
    for user, row in zip(users.tolist(), found, strict=True):
        assert row == min((i for i in range(len(events)) if users[i] == user), key=lambda i: (times[i], i))


def test_bundles_are_as_old_as_their_newest_event_and_histories_as_the_window(store: Store) -> None:
    window = write_window(store, 0, [Event("ann", "a", T)], start_ms=T)
    hits = {"served": {20: [1.0, 0.0]}, "committed": {20: [0.0, 0.0]}}
    assert ages_of(window, [T + 61_000, T + 3_000], [T - 1_000, T - 57_000], hits) == (
        AgeHits(of="bundle", up_to=60, cases=1, hits={20: 0}),
        AgeHits(of="bundle", up_to=300, cases=1, hits={20: 1}),
        AgeHits(of="history", up_to=60, cases=1, hits={20: 0}),
        AgeHits(of="history", up_to=300, cases=1, hits={20: 0}),
    )


@pytest.mark.parametrize(("pane", "times"), [(1, [T]), (0, [])], ids=["late events", "no answer"])
def test_there_is_nothing_to_count(store: Store, pane: int, times: list[int]) -> None:
    window = write_window(store, 0, []).model_copy(update={"pane": pane})
    hits: dict[str, dict[int, list[float]]] = {"served": {20: [1.0] * len(times)}, "committed": {}}
    assert ages_of(window, times, times, hits) == ()


def test_recalls_are_means_over_events_of_the_newest_windows() -> None:
    recalls = [recall(0, "a", 0.9, 1000), recall(1, "b", 0.5, 100), recall(2, "c", None, 0), recall(3, "d", 0.2, 300)]
    assert mean_recall(recalls, "model", 20, last=2) == pytest.approx((0.5 * 100 + 0.2 * 300) / 400)
    assert mean_recall(recalls, "index", 20, last=1) == pytest.approx(0.2)
    assert mean_recall(recalls, "model", 10) is None
    assert mean_recall([], "model", 20) is None


def windows(store: Store, count: int) -> list[WindowManifest]:
    return [write_window(store, sequence, []) for sequence in range(count)]


def measure(store: Store, *manifests: WindowManifest) -> None:
    for manifest in manifests:
        save(store, recall(manifest.sequence, str(manifest.name)))


def sequences(measured: NewestRecalls) -> list[int]:
    return [result.sequence for result in measured.recalls]


def test_results_come_in_commit_order_as_they_are_written(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    made, measured = windows(store, 4), NewestRecalls(store)
    measured.expect(made)
    measured.catch_up()
    assert sequences(measured) == []
    measure(store, *made[:2])
    measured.catch_up()
    assert sequences(measured) == [0, 1]
    measure(store, *made[2:])
    measured.catch_up()
    assert sequences(measured) == [0, 1, 2, 3]


def test_windows_that_the_monitor_left_behind_are_passed_over(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    made, measured = windows(store, 5), NewestRecalls(store)
    measured.expect(made)
    measure(store, made[1], made[2], made[4])
    measured.catch_up()
    assert sequences(measured) == [1, 2, 4]


def test_a_damaged_result_is_named_once_and_the_next_one_is_read(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    made, measured = windows(store, 3), NewestRecalls(store)
    measured.expect(made)
    measure(store, *made)
    name = f"monitor/{made[1].name}.json"
    store.write(name, b"\xff{")
    with pytest.raises(CorruptArtefactError, match=name):
        measured.catch_up()
    measured.catch_up()
    assert sequences(measured) == [0, 2]


def test_of_an_old_store_only_the_newest_are_read(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    made, measured = windows(store, 30), NewestRecalls(store, kept=20)
    measure(store, *made)
    measured.expect(made)
    measured.catch_up()
    assert sequences(measured) == list(range(10, 30))
