from pathlib import Path

import pytest

import weir.pipelines.holds
from tests.contracts.panes import a_pane, retire_before
from weir.contracts import LogState, Store, WindowCounts, WindowLog
from weir.contracts.checkpoint import CHECKPOINT_MARK, CheckpointMark
from weir.contracts.documents import write_document
from weir.contracts.places import GATE_WINDOWS, MonitorPlace
from weir.contracts.variants import line_of
from weir.pipelines.holds import Hold, holds


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path))
    for number in range(8):
        WindowLog(store).commit(a_pane(number, counts=WindowCounts(events=90, positives=80)))
    return store


def needed(store: Store) -> dict[str, int]:
    found = {hold.reader: hold.sequence for hold in holds(store, LogState.open(store))}
    assert found.pop("histories") == 0
    return found


def checkpoint(store: Store, step: int, sequence: int) -> None:
    mark = CheckpointMark(step=step, sequence=sequence, batch=0, trained_window="w", settings={}, tensors={}, files=())
    write_document(store, f"checkpoints/{step:010d}/{CHECKPOINT_MARK}", mark)


def test_the_trainer_of_a_variant_holds_windows_too(store: Store) -> None:
    checkpoint(store, 5, 7)
    checkpoint(line_of(store, "new"), 3, 4)
    assert needed(store)["trainer"] == 4
    [hold] = [hold for hold in holds(store, LogState.open(store)) if hold.reader == "trainer"]
    assert hold.why == "variants/new/checkpoints/0000000003 continues there"


def test_who_has_left_no_trace_needs_nothing(store: Store) -> None:
    assert needed(store) == {}


def test_the_trainer_needs_what_follows_its_oldest_checkpoint_and_the_gate_the_cases_before(store: Store) -> None:
    checkpoint(store, 10, 5)
    checkpoint(store, 20, 6)
    # 200 cases are those of three windows of 80.
    assert needed(store) == {"trainer": 5, "gate": 2}


def test_a_checkpoint_that_the_trainer_removes_meanwhile_holds_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(store, 10, 2)
    real = weir.pipelines.holds.checkpoint_names

    def then_the_trainer_goes_on(line: Store) -> list[str]:
        names = real(line)
        checkpoint(store, 20, 6)
        store.remove("checkpoints/0000000010")
        return names

    monkeypatch.setattr(weir.pipelines.holds, "checkpoint_names", then_the_trainer_goes_on)
    assert needed(store) == {"trainer": 6, "gate": 3}


def test_the_gate_looks_back_so_far_and_not_behind_the_horizon(store: Store) -> None:
    for number in range(8, 8 + GATE_WINDOWS):
        WindowLog(store).commit(a_pane(number, counts=WindowCounts()))
    checkpoint(store, 10, 5 + GATE_WINDOWS)
    assert needed(store)["gate"] == 5
    retire_before(store, 7, 70)
    assert needed(store)["gate"] == 7


def test_the_monitor_needs_what_it_has_not_measured_or_not_counted(store: Store) -> None:
    MonitorPlace(measured=6, counted=3).write(store)
    assert needed(store) == {"monitor": 4}


@pytest.mark.parametrize(
    ("name", "reader", "why"),
    [
        (f"checkpoints/0/{CHECKPOINT_MARK}", "trainer", "does not start with its checksum"),
        ("monitor/PLACE.json", "monitor", "does not start with its checksum"),
        ("monitor/a/0000.json", "monitor", "has noted no place"),
    ],
)
def test_who_cannot_say_how_far_it_is_needs_all(store: Store, name: str, reader: str, why: str) -> None:
    store.write(name, b"damaged")
    [hold] = [hold for hold in holds(store, LogState.open(store)) if hold.reader == reader]
    assert isinstance(hold, Hold)
    assert hold.sequence == 0
    assert why in hold.why
