"""``weir retire``, as a user types it."""

from pathlib import Path

import pytest

from tests.pipelines import aging
from tests.weir.cli.interactions import refused, told, weir
from weir.contracts import CommitLog, LogState, Store, WindowLog
from weir.contracts.commits import Cursor
from weir.contracts.places import MonitorPlace
from weir.pipelines.ingest import ingest

OPTIONS = ("--set", "pipeline.window_seconds=10", "--set", "pipeline.allowed_lateness_seconds=0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(5):
        aging.arrive(tmp_path, number)
        ingest(Store(str(tmp_path / "store")), aging.settings(tmp_path), registry=aging.CollectorRegistry())
    return tmp_path


def retire(folder: Path, *more: str) -> tuple[str, ...]:
    return ("retire", "--store", str(folder / "store"), "--set", f"pipeline.log={folder / 'log'}", *OPTIONS, *more)


def test_it_retires_and_removes_after_the_grace(folder: Path) -> None:
    store = Store(str(folder / "store"))
    MonitorPlace(measured=0, counted=0).write(store)
    shown = told(weir(*retire(folder, "--older-than", "20s", "--dry-run", "--json")))
    assert (shown["dry_run"], shown["retired"]["windows"], shown["held_back"]) == (True, 1, 1)
    assert [hold["reader"] for hold in shown["holds"]] == ["monitor"]
    assert LogState.open(store).horizon is None
    result = weir(*retire(folder, "--older-than", "20s"))
    assert result.exit_code == 0, result.output
    assert "1 window in 1 pane " in result.stdout
    assert "monitor: not measured" in result.stdout
    assert "the pipeline or the next `weir retire`" in result.stdout
    MonitorPlace(measured=4, counted=4).write(store)
    # Within the grace nothing more retires: its files would have to wait again.
    waiting = told(weir(*retire(folder, "--older-than", "20s", "--json")))
    assert (waiting["waiting_commits"], waiting["removed_commits"]) == (1, 0)
    assert CommitLog(store).next(Cursor()) is not None
    told(weir(*retire(folder, "--older-than", "20s", "--grace", "0s", "--json")))
    assert [pane.sequence for pane in WindowLog(store)] == [2, 3, 4]
    assert store.glob("commits/000000000[01].json") == []
    MonitorPlace().write(store)  # nothing was measured here
    assert weir("verify", "--store", folder / "store").exit_code == 0
    windows = told(weir("inspect", "windows", "--store", folder / "store", "--json"))
    assert [window["sequence"] for window in windows] == [2, 3, 4]


def test_where_a_topic_cannot_be_listed_nothing_of_it_is_forgotten(folder: Path) -> None:
    away = ("--set", "pipeline.log=kafka://127.0.0.1:1/clicks", "--set", "pipeline.kafka.timeout_seconds=0.2")
    MonitorPlace(measured=4, counted=4).write(Store(str(folder / "store")))
    before = LogState.open(Store(str(folder / "store"))).sources
    shown = told(weir(*retire(folder, "--older-than", "20s", "--json"), *away))
    assert shown["retired"]["windows"] == 2
    assert LogState.open(Store(str(folder / "store"))).sources.keys() == before.keys()


def test_it_says_what_it_needs(folder: Path) -> None:
    assert "give --older-than, or set pipeline.retention_days" in refused(weir(*retire(folder)), 2)
    assert "--older-than is '3 weeks', but must be" in refused(weir(*retire(folder, "--older-than", "3 weeks")), 2)
    assert "but windows stay open for 10 s" in refused(weir(*retire(folder, "--older-than", "5s")), 2)
    assert "there is no such store" in refused(weir(*retire(folder / "nothing", "--older-than", "5d")), 1)
