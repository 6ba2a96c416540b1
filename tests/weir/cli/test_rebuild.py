"""``weir rebuild``, as a user types it."""

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.readers.files import ORIGIN, Event, write_lines
from tests.weir.cli.interactions import refused, told, weir
from weir.contracts import LogState, Store, WindowLog, read_format
from weir.pipelines.config import PipelineConfig
from weir.pipelines.ingest import ingest
from weir.pipelines.sources import MovedStoreError

EVENTS = [Event(f"user-{number % 5}", f"item-{number % 11}", 40 * number) for number in range(60)]


def bring_in(store: Path, **changes: Any) -> int:
    """Ingest the log beside a store, and return the number of events."""
    settings = {"user_shards": 3, "sketch": {"kind": "exact"}, "history_length": 7, "metrics_port": 0}
    config = PipelineConfig.model_validate({"log": str(store.parent / "log"), **settings, **changes})
    return ingest(Store(str(store)), config, registry=CollectorRegistry()).valid


@pytest.fixture
def old(tmp_path: Path) -> Path:
    write_lines(tmp_path / "log/a.jsonl", [event.line() for event in EVENTS])
    assert bring_in(tmp_path / "old", window_seconds=600) == 60
    return tmp_path / "old"


def layout(store: Path) -> Any:
    found = read_format(Store(str(store)))
    assert found is not None
    assert found.layout is not None
    return found.layout.model_dump()


def starts(store: Path) -> list[int]:
    return [start // 1000 for start in LogState.open(Store(str(store))).starts]


def test_what_is_not_set_stays_and_the_log_goes_on_after_the_cut_over(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    given = ["--from", old, "--to", new, "--set", "pipeline.window_seconds=1200"]
    done = told(weir("rebuild", *given, "--json"))
    assert (done["valid"], done["moved"]) == (60, False)
    assert layout(new) == layout(old) | {"window_ms": 1_200_000}
    assert starts(new) == sorted({(ORIGIN + event.second) // 1200 * 1200 for event in EVENTS})
    with pytest.raises(MovedStoreError, match="is being rebuilt"):
        bring_in(new, window_seconds=1200)
    said = weir("rebuild", *given, "--cut-over")
    assert said.exit_code == 0, said.output
    assert f"{old} has ended: run the pipeline, trainer and servers with --store {new}" in " ".join(said.stdout.split())
    with pytest.raises(MovedStoreError, match=f"has moved to {new}"):
        bring_in(old, window_seconds=600)
    write_lines(tmp_path / "log/a.jsonl", [Event("user-1", "item-1", 3000).line()])
    assert bring_in(new, window_seconds=1200) == 1
    [first, *_] = WindowLog(Store(str(new))).committed()
    assert first.history_length == 7
    assert json.loads(weir("verify", "--store", new, "--json").stdout)["findings"] == []


def test_user_features_stay_unless_the_settings_name_others(tmp_path: Path) -> None:
    write_lines(tmp_path / "log/a.jsonl", [Event("ann", f"i{number}", number, price=1.5).line() for number in range(9)])
    bring_in(tmp_path / "old", user_features={"dense": ["price"]})
    others = 'pipeline.user_features={"categorical": ["genre"], "dense": []}'
    for name, more in (("same", []), ("other", ["--set", others])):
        told(weir("rebuild", "--from", tmp_path / "old", "--to", tmp_path / name, *more, "--json"))
    found = {name: WindowLog(Store(str(tmp_path / name))).committed() for name in ("old", "same", "other")}
    assert [one.user_features.dense for one in found["old"]] == [{"price": (9.0, 1.5, 0.0)}]
    assert [one.user_features for one in found["same"]] == [one.user_features for one in found["old"]]
    assert [one.user_features.names.all for one in found["other"]] == [("genre",)]


def test_a_log_can_be_replayed_instead(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    given = ["--from", old, "--to", new, "--log", tmp_path / "log", "--set", "pipeline.window_seconds=300"]
    assert told(weir("rebuild", *given, "--json"))["valid"] == 60
    assert told(weir("rebuild", *given, "--cut-over", "--json"))["moved"]
    assert starts(new) == sorted({(ORIGIN + event.second) // 300 * 300 for event in EVENTS})
    assert LogState.open(Store(str(old))).moved_to == str(new)


def test_wrong_usage_is_told_in_a_line(tmp_path: Path) -> None:
    given = ["--from", tmp_path / "none", "--to", tmp_path / "new"]
    assert "there is no store to rebuild" in refused(weir("rebuild", *given), 1)
    assert "end the process that follows" in refused(weir("rebuild", *given, "--follow", "--cut-over"), 2)
