from pathlib import Path

import pytest

from tests.serving.support import write_window
from tests.weir.up.damage import recall
from weir.contracts import CorruptArtefactError, Store, WindowManifest
from weir.serving.monitor.newest import NewestRecalls, mean_recall
from weir.serving.monitor.results import save


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
