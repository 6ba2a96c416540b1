""""""

import shutil
from pathlib import Path
from typing import Any

import pytest

import weir.pipelines.maintenance.retention
from tests.contracts.bundles.test_bundle_log import write
from tests.contracts.panes import a_pane, retire_before
from tests.kills import KilledError, killed_at
from tests.pipelines import aging, support
from tests.pipelines.support import Event
from weir.contracts import CommitLog, CorruptArtefactError, LogState, RetiredError, Store, WindowCounts, WindowLog
from weir.contracts.bundles.checkpoint import CHECKPOINT_MARK, CheckpointMark
from weir.contracts.bundles.variants import line_of, log_of
from weir.contracts.commits.commit_log import Cursor
from weir.contracts.commits.retention_horizon import GATE_WINDOWS, MonitorPlace
from weir.contracts.storage.documents import write_document
from weir.pipelines.histories import compaction as merger
from weir.pipelines.maintenance.cleanup import Removal
from weir.pipelines.maintenance.retention import Hold, holds, plan_retirement, retire


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
    real = weir.pipelines.maintenance.retention.checkpoint_names

    def then_the_trainer_goes_on(line: Store) -> list[str]:
        names = real(line)
        checkpoint(store, 20, 6)
        store.remove("checkpoints/0000000010")
        return names

    monkeypatch.setattr(weir.pipelines.maintenance.retention, "checkpoint_names", then_the_trainer_goes_on)
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


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of nine windows that nothing has retired from."""
    folder = tmp_path_factory.mktemp("old")
    for number in range(9):
        aging.arrive(folder, number)
        aging.run(folder)
    return folder


@pytest.fixture
def folder(old: Path, tmp_path: Path) -> Path:
    shutil.copytree(old, tmp_path / "copy")
    return tmp_path / "copy"


def store_of(folder: Path) -> Store:
    return Store(str(folder / "store"))


def size(store: Store) -> tuple[int, int]:
    assert store.local_path is not None
    found = list(store.local_path.rglob("*"))
    return len(found), sum(path.stat().st_size for path in found if path.is_file())


def test_the_store_of_a_steady_stream_has_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merger, "REPLACED_SECONDS", -1.0)
    sizes, events = [], 0
    for number in range(17):
        aging.arrive(tmp_path, number)
        aging.run(tmp_path)
        events += len(aging.events_of(number))
        aging.age(tmp_path)
        sizes.append(size(store_of(tmp_path)))
        assert aging.leftovers(store_of(tmp_path)) == []
    state = LogState.open(store_of(tmp_path))
    assert (state.counts.events, state.dead) == (events, 17)
    assert len(state.starts) <= 6
    assert len(state.sources) <= 7
    for middle, late in zip(zip(*sizes[7:12], strict=True), zip(*sizes[12:], strict=True), strict=True):
        assert max(late) <= 1.03 * max(middle)
    assert sizes[-1][1] < 1.5 * sizes[6][1]


def test_nothing_retires_that_is_young_enough(folder: Path) -> None:
    state = LogState.open(store_of(folder))
    plan = plan_retirement(store_of(folder), state, 1000, None)
    assert (plan.retirement, plan.panes, plan.held) == (None, 0, 0)


def test_what_retires_is_what_lies_before_the_horizon(folder: Path) -> None:
    store = store_of(folder)
    before = list(WindowLog(store))
    state = LogState.open(store)
    plan = plan_retirement(store, state, aging.KEPT, {"part-0008.jsonl"})
    retire(store, state, plan)
    assert state.horizon is not None
    cutoff = (state.max_event_ms - 1000 * aging.KEPT) // 10_000 * 10_000
    assert state.horizon.ms == cutoff
    assert [pane for pane in before if pane.start_ms >= cutoff] == list(WindowLog(store))
    assert plan.panes == len(before) - len(list(WindowLog(store)))
    assert state == LogState.open(store)
    gone = {f"part-{number:04d}.jsonl" for number in range(plan.panes)}
    assert set(plan.retirement.sources if plan.retirement else ()) == gone


def test_followers_are_told_what_has_retired(folder: Path) -> None:
    store = store_of(folder)
    first, log = CommitLog(store).next(Cursor()), WindowLog(store)
    assert first is not None
    aging.age(folder)
    # Within the grace, what has retired can be read.
    assert CommitLog(store).next(Cursor()) == first
    aging.age(folder)
    with pytest.raises(RetiredError, match=r"commit 0 has retired: the log starts at commit 4, pane 4, events of 20"):
        CommitLog(store).next(Cursor())
    with pytest.raises(RetiredError, match="pane 3 has retired"):
        log.committed(after=2)
    assert log.left(2) == 3
    assert [pane.sequence for pane in log.committed(3)] == [4, 5, 6, 7, 8]
    assert [pane.sequence for pane in WindowLog(store)] == [4, 5, 6, 7, 8]
    assert [pane.sequence for pane in WindowLog(store).newest(3)] == [6, 7, 8]


@pytest.mark.parametrize("lost", ["HEAD", "horizon"])
def test_head_is_only_a_hint(folder: Path, lost: str) -> None:
    store, log = store_of(folder), CommitLog(store_of(folder))
    aging.retire_and_remove(folder)
    expected = LogState.open(store)
    if lost == "HEAD":
        store.remove("commits/HEAD")
    else:
        # As a writer leaves it that had read it before the retirement.
        head = log.head()
        assert head is not None
        log.point(head.model_copy(update={"horizon": None, "base": None}))
    assert LogState.open(store) == expected
    assert [pane.sequence for pane in WindowLog(store)] == [4, 5, 6, 7, 8]
    assert aging.leftovers(store) == []
    if lost == "horizon":
        with pytest.raises(RetiredError):
            log.next(Cursor())


def test_events_before_the_horizon_are_dead_letters_and_late_ones_behind_it_count(folder: Path) -> None:
    store = store_of(folder)
    aging.retire_and_remove(folder)
    before = LogState.open(store)
    late = aging.events_of(6)
    new = Event("user-1", "item-1", 65, "click", "new")
    old = [Event("user-1", "item-1", second, "click", f"old-{second}") for second in (0, 31, 39)]
    support.write_lines(folder / "log/late.jsonl", [event.line() for event in [*late, new, *old]])
    aging.run(folder)
    state = LogState.open(store)
    assert state.counts.events == before.counts.events + 1
    assert state.counts.duplicates == before.counts.duplicates + len(late)
    found = [letter for letter in support.dead_letters(store) if letter.partition == "late.jsonl"]
    assert [letter.reason for letter in found] == ["before_retention"] * 3
    assert "1970" not in found[0].detail
    assert state.dead == before.dead + 3
    assert [pane.pane for pane in WindowLog(store).newest(1)] == [1]


def test_a_file_that_comes_back_is_not_counted_again(folder: Path) -> None:
    store = store_of(folder)
    aging.retire_and_remove(folder)
    before = LogState.open(store)
    for number in (1, 8):
        lines = [event.line() for event in aging.events_of(number)]
        aging.part(folder, number).unlink(missing_ok=True)
        support.write_lines(aging.part(folder, number), [*lines, *lines[::3], "no json\n"])
    aging.run(folder)
    state = LogState.open(store)
    assert state.counts == before.counts
    # 20 events, 7 repetitions and a line that is no JSON.
    assert state.dead == before.dead + 28
    aging.run(folder)
    assert LogState.open(store).dead == state.dead


def changes_of(folder: Path, tmp_path: Path) -> int:
    """How many changes a retirement and its removal make."""
    shutil.copytree(folder, tmp_path / "counted")
    for change in range(1000):
        try:
            with killed_at(change):
                aging.retire_and_remove(tmp_path / "counted")
        except KilledError:
            shutil.rmtree(tmp_path / "counted")
            shutil.copytree(folder, tmp_path / "counted")
        else:
            return change
    raise AssertionError("it never ends")


def names(store: Store) -> set[str]:
    """Files and folders, but for what tells runs apart."""
    assert store.local_path is not None
    found = {str(path.relative_to(store.local_path)) for path in store.local_path.rglob("*")}
    return {name for name in found if not name.endswith(".lock")}


def test_evaluations_of_variants_go_with_their_window(folder: Path) -> None:
    store = store_of(folder)
    write(log_of(store, "new"), "0001--new")
    log_of(store, "new").promote("0001--new")
    results = {pane.sequence: f"variants/new/evaluations/{pane.name}.json" for pane in WindowLog(store)}
    for name in results.values():
        store.write(name, b"{}")
    aging.retire_and_remove(folder)
    left = {pane.sequence for pane in WindowLog(store)}
    assert left < results.keys()
    assert {sequence for sequence, name in results.items() if store.exists(name)} == left


def test_killed_at_any_change_the_next_one_finishes_it(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "whole")
    aging.retire_and_remove(tmp_path / "whole")
    expected = names(store_of(tmp_path / "whole"))
    total = changes_of(folder, tmp_path)
    assert total > 40
    for change in range(total):
        copy = tmp_path / f"killed-{change}"
        shutil.copytree(folder, copy)
        with pytest.raises(KilledError), killed_at(change):
            aging.retire_and_remove(copy)
        store = store_of(copy)
        assert aging.leftovers(store) == [], f"killed at change {change}"
        seen = [pane.sequence for pane in WindowLog(store)]
        assert seen[-5:] == [4, 5, 6, 7, 8]
        aging.retire_and_remove(copy)
        assert names(store) == expected, f"killed at change {change}"
        assert Removal(store, LogState.open(store)).waiting() == []
        shutil.rmtree(copy)


@pytest.mark.parametrize("change", [2, 9, 25])
def test_a_pipeline_starts_after_any_kill(folder: Path, change: int) -> None:
    before = LogState.open(store_of(folder)).counts.events
    with pytest.raises(KilledError), killed_at(change):
        aging.retire_and_remove(folder)
    aging.arrive(folder, 9)
    aging.run(folder)
    assert LogState.open(store_of(folder)).counts.events == before + len(aging.events_of(9))
    assert aging.leftovers(store_of(folder)) == []


def test_a_pipeline_retires_by_itself(folder: Path) -> None:
    settings: Any = aging.settings(folder, retention_days=aging.KEPT / 86_400)
    support.change_settings(store_of(folder), settings)
    aging.arrive(folder, 9)
    aging.ingest(store_of(folder), settings, registry=aging.CollectorRegistry())
    assert [pane.sequence for pane in WindowLog(store_of(folder))] == [5, 6, 7, 8, 9]
    # What has retired stays for the time of grace.
    assert CommitLog(store_of(folder)).next(Cursor()) is not None


def test_histories_are_never_built_from_what_is_left(folder: Path) -> None:
    store = store_of(folder)
    aging.retire_and_remove(folder)
    state = LogState.open(store)
    assert state.horizon is not None
    known = next(state.histories.files)
    store.remove(known.name)
    with pytest.raises(CorruptArtefactError, match=r"have retired: restore it from a copy") as raised:
        aging.run(folder)
    assert raised.value.path.endswith(known.name)
    assert LogState.open(store).number == state.number
