import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from weir.contracts import ITEMS_SCHEMA, Store, WindowCounts, WindowLog, WindowManifest, WindowName
from weir.contracts.artefacts import write_table
from weir.pipelines.drift import RecentItems

MINUTE = 60_000


def commit(log: WindowLog, minute: int, items: dict[int, int], *, pane: int = 0, minutes: int = 10) -> WindowManifest:
    name = WindowName(minute * MINUTE, (minute + minutes) * MINUTE, pane)
    rows: list[dict[str, Any]] = [{"item_key": key, "item_id": str(key), "count": n} for key, n in items.items()]
    sequence = len(log.committed())
    manifest = WindowManifest(
        sequence=sequence,
        attempt=f"{sequence:04d}",
        start_ms=name.start_ms,
        end_ms=name.end_ms,
        pane=pane,
        min_event_ms=name.start_ms,
        max_event_ms=name.start_ms,
        committed_at=0,
        counts=WindowCounts(),
        history_length=1,
        sketch={},
        files=(
            write_table(
                log.store, f"{name.folder(f'{sequence:04d}')}/{name.items()}", pa.Table.from_pylist(rows, ITEMS_SCHEMA)
            ),
        ),
    )
    log.commit(manifest)
    return manifest


@pytest.fixture
def log(tmp_path: Path) -> WindowLog:
    return WindowLog(Store(str(tmp_path)))


def test_nothing_to_compare(log: WindowLog) -> None:
    recent = RecentItems(log)
    assert all(map(math.isnan, recent.drift()))
    recent.add([commit(log, 0, {1: 5})])
    assert all(map(math.isnan, recent.drift()))


def test_consecutive_windows_are_compared_and_the_hour_before_counts_as_seen(log: WindowLog) -> None:
    recent = RecentItems(log)
    for minute, items in [(0, {8: 1}), (10, {7: 1}), (60, {1: 4}), (70, {1: 4, 7: 3, 8: 2, 9: 1})]:
        recent.add([commit(log, minute, items)])
    # Item 7 is an hour old and known, 8 is older and forgotten, 9 is new.
    assert recent.drift().unseen == pytest.approx(0.3)
    assert 0 < recent.drift().distance < 1
    recent.add([commit(log, 80, {1: 40, 7: 30, 8: 20, 9: 10})])
    assert recent.drift() == (0, 0)


def test_panes_of_a_window_are_one_and_late_ones_change_the_past(log: WindowLog) -> None:
    recent = RecentItems(log)
    recent.add([commit(log, 0, {1: 2}), commit(log, 10, {1: 1, 2: 1})])
    assert recent.drift().unseen == 0.5
    recent.add([commit(log, 10, {3: 2}, pane=1)])
    assert recent.drift().unseen == 0.75
    recent.add([commit(log, 0, {2: 1, 3: 9}, pane=1)])
    assert recent.drift().unseen == 0


def test_after_a_silence_the_last_window_counts(log: WindowLog) -> None:
    recent = RecentItems(log)
    recent.add([commit(log, 0, {1: 1}), commit(log, 10, {2: 3}), commit(log, 5_000, {1: 1, 2: 3})])
    assert recent.drift().unseen == 0.25


def test_a_new_process_knows_what_an_old_one_knew(log: WindowLog) -> None:
    recent = RecentItems(log)
    for minute in range(0, 300, 10):
        recent.add([commit(log, minute, {minute // 30: 3, minute // 70: 2, 99: 1})])
    assert RecentItems(log).drift() == recent.drift()
    assert len(recent._windows) == 7


def test_long_windows_look_back_by_their_length(log: WindowLog) -> None:
    day = 24 * 60
    recent = RecentItems(log)
    recent.add([commit(log, number * day, {number: 1, 9: 1}, minutes=day) for number in range(4)])
    assert recent.drift().unseen == 0.5
    recent.add([commit(log, 4 * day, {2: 1, 3: 1}, minutes=day)])
    assert recent.drift().unseen == 0.5


def test_a_damaged_window_is_left_out_aloud(log: WindowLog, caplog: pytest.LogCaptureFixture) -> None:
    manifest = commit(log, 0, {1: 1})
    log.store.write(f"{manifest.folder}/items.parquet", b"damage")
    recent = RecentItems(log)
    assert "left out of the drift" in caplog.text
    recent.add([commit(log, 10, {1: 1}), commit(log, 20, {1: 1, 2: 1})])
    assert recent.drift().unseen == 0.5
