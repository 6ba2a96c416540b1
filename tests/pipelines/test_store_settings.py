"""The settings of a store travel with it: a stage without them works as with them, and one with others is refused."""

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.kills import KilledError, killed_at
from tests.pipelines import support
from tests.pipelines.support import Event
from tests.pipelines.transforms.test_read import driver
from weir.contracts import CommitLog, LogState, Store, StoreFormat, WindowLog, hash_id, read_format
from weir.contracts.storage.documents import encode_document
from weir.contracts.storage.format import read_settings
from weir.contracts.storage.locks import locked
from weir.contracts.verification import verify
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig, SketchConfig
from weir.pipelines.layout import open_layout
from weir.pipelines.maintenance.change_settings import change
from weir.pipelines.runs.run_registry import BusyStoreError
from weir.pipelines.store_settings import FIXED, LASTING, OUTSIDE_PIPELINE, LayoutError, recorded, settled, values_of
from weir.readers import discover

OTHERS: dict[str, Any] = {
    "window_seconds": 20,
    "user_shards": 3,
    "sketch": SketchConfig(kind="exact"),
    "secret_keys": True,
    "columns": {"timestamp": "when"},
    "missing_ids": ("none",),
    "item_features": {"categorical": ["genre"]},
    "user_features": {"dense": ["price"]},
    "timestamp_unit": "s",
    "time_zone": "Europe/Berlin",
    "min_time": "2001-02-03T04:05:06Z",
    "max_time": "2033-02-03T04:05:06Z",
    "clock_tolerance_minutes": 11.5,
    "max_weight": 7.0,
    "event_types": {"click": "positive"},
    "unknown_event_type": "ignore",
    "allowed_lateness_seconds": 6,
    "history_length": 4,
    "late_items": 1,
    "seen_items": 999,
    "exposed_items": 2,
    "retention_days": 3.0,
    "erasure_days": 2.0,
}
"""Another value of each setting that lasts than `support.config` has."""

types = st.sampled_from(["positive", "negative", "ignore"])
chosen = st.fixed_dictionaries(
    {
        "window_seconds": st.sampled_from([7, 10, 30]),
        "event_types": st.fixed_dictionaries({"click": st.just("positive"), "skip": types}),
        "unknown_event_type": types,
        "item_features": st.sampled_from([{}, {"categorical": ["genre"]}, {"dense": ["price"]}]),
        "user_features": st.sampled_from([{}, {"dense": ["age"]}]),
        "history_length": st.integers(1, 5),
        "user_shards": st.integers(1, 3),
        "sketch": st.sampled_from([{"kind": "exact"}, {"width": 64, "depth": 2}]),
        "min_time": st.sampled_from(["1990-01-01T00:00:00Z", "2023-11-14T22:13:25Z"]),
        "retention_days": st.sampled_from([None, 0.001]),
    }
)
logs = st.lists(
    st.builds(
        Event,
        st.sampled_from(["ann", "bob", "cid"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 60),
        st.sampled_from(["click", "skip", "view"]),
        genre=st.just(("jazz",)),
        price=st.sampled_from([1.5, 2.5]),
    ),
    min_size=3,
    max_size=20,
)


def bring_in(store: Store, config: PipelineConfig) -> None:
    ingest(store, config, registry=CollectorRegistry())


def content(store: Store) -> list[Any]:
    """What the windows of a store hold, and when they retire."""
    log = WindowLog(store)
    panes = [
        (pane.start_ms, pane.end_ms, pane.history_length, pane.item_features, pane.user_features.names, pane.sketch)
        for pane in log.committed()
    ]
    rows = [(log.all_examples(pane).to_pylist(), log.items(pane).to_pylist()) for pane in log.committed()]
    horizon = LogState.open(store).horizon
    return [panes, rows, horizon and horizon.ms, support.dead_letters(store)]


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(chosen, logs, logs)
def test_a_pipeline_without_the_settings_of_its_store_goes_on_with_them(
    values: dict[str, Any], first: list[Event], later: list[Event]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values = values | {"log": str(folder / "log"), "metrics_port": 0, "allowed_lateness_seconds": 5}
        with_them = PipelineConfig.model_validate(values)
        without = PipelineConfig(log=values["log"], metrics_port=0)
        told, untold = Store(str(folder / "told")), Store(str(folder / "untold"))
        for batch, second in ((first, with_them), (later, without)):
            support.write_lines(folder / "log/a.jsonl", [event.line() for event in batch])
            bring_in(told, with_them)
            bring_in(untold, second)
        assert content(untold) == content(told)
        assert recorded(untold) == recorded(told)
        assert settled(untold, without).retention_days == with_them.retention_days


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one window that is committed and rows of another one that wait, by a process that was killed."""
    support.write_lines(tmp_path / "log/a.jsonl", [Event("ann", f"i{n}", n, "skip").line() for n in range(0, 30, 2)])
    found = Store(str(tmp_path / "store"))
    driver(found, support.config(tmp_path)).catch_up(discovered(tmp_path), flush=False, only_whole_lines=True)
    assert LogState.open(found).starts
    return found


def discovered(folder: Path) -> Any:
    return discover(str(folder / "log"))


def test_another_value_of_each_is_refused_by_name(tmp_path: Path, store: Store) -> None:
    assert {f"pipeline.{name}" for name in OTHERS} | set(OUTSIDE_PIPELINE) == set(LASTING)
    before = store.read("SETTINGS.json")
    ours = support.config(tmp_path)
    assert settled(store, ours) == ours
    for name, value in OTHERS.items():
        config = PipelineConfig.model_validate(ours.model_dump() | {name: value})
        with pytest.raises(LayoutError, match=rf"pipeline\.{name} is .*{store.url} was written with") as refused:
            ingest(store, config, registry=CollectorRegistry())
        way = "weir rebuild --from" if f"pipeline.{name}" in FIXED else "weir settings --store"
        assert way in str(refused.value)
        with pytest.raises(LayoutError, match=f"pipeline.{name}"):
            open_layout(store, config)
    assert store.read("SETTINGS.json") == before
    assert CommitLog(store).newest() == 0


def test_settings_of_what_is_written_change_by_one_command_only_from_the_next_window_on(
    tmp_path: Path, store: Store
) -> None:
    wanted: Any = {"pipeline.event_types": {"skip": "positive", "click": "ignore"}}
    before = content(store)[:2]
    made = change(store, wanted)
    assert made is not None
    first, newest = LogState.open(store).starts
    assert (made.commit, made.from_ms) == (1, newest + 10_000)
    assert made.before["pipeline.event_types"] == support.TYPES
    assert content(store)[:2] == before
    assert change(store, wanted) is None
    late = [Event("bob", "late", 3, "skip"), Event("bob", "late", 3, "click")]
    new = [Event("bob", f"i{n}", n, kind) for n in range(30, 60, 3) for kind in ("skip", "click")]
    support.write_lines(tmp_path / "log/a.jsonl", [event.line() for event in [*late, *new]])
    bring_in(store, PipelineConfig(log=str(tmp_path / "log"), metrics_port=0))
    labels = {
        start: Counter(label for *_, label in rows.elements()) for start, rows in support.stored_events(store).items()
    }
    # Late rows of a window that is committed come under the new settings; what it has stays.
    assert labels.pop(first // 1000) == Counter({-1: 5, 1: 1})
    assert labels.pop(newest // 1000) == Counter({-1: 5})
    assert all(set(rows) == {1} for rows in labels.values())
    assert sum(map(Counter.total, labels.values())) == 5 + 10
    assert verify(store).findings == []
    kept = read_settings(store)
    assert kept is not None
    assert kept.changes == (made,)


def test_a_row_counts_once_whatever_changes_while_it_waits(tmp_path: Path, store: Store) -> None:
    for name, value in OTHERS.items():
        if f"pipeline.{name}" in FIXED or name in {"columns", "timestamp_unit", "time_zone"}:
            continue
        change(store, {f"pipeline.{name}": values_of(support.config(tmp_path, **{name: value}))[f"pipeline.{name}"]})
    support.write_lines(tmp_path / "log/a.jsonl", [Event("ann", "last", 70).line()])
    bring_in(store, PipelineConfig(log=str(tmp_path / "log"), metrics_port=0))
    # Rows that waited are ignored as a type without a meaning, the others stay.
    found = support.stored_events(store)
    assert {row[1] for rows in found.values() for row in rows if row[3] == 1} == {hash_id("last")}
    assert all(count == 1 for rows in found.values() for count in rows.values())
    state = LogState.open(store)
    assert all(span.is_done for span in state.sources.values())
    assert (state.dead, len(recorded(store))) == (0, len(LASTING) - len(OUTSIDE_PIPELINE))


@pytest.mark.parametrize(
    ("name", "value"),
    [("timestamp_unit", "s"), ("time_zone", "Europe/Berlin"), ("columns", {"timestamp": "when"})],
)
def test_what_moves_rows_to_other_windows_changes_only_while_none_waits(
    tmp_path: Path, store: Store, name: str, value: Any
) -> None:
    wanted = values_of(support.config(tmp_path, **{name: value}))
    with pytest.raises(LayoutError, match=rf"pipeline\.{name}: rows of open windows"):
        change(store, wanted)
    bring_in(store, support.config(tmp_path))
    assert change(store, wanted) is not None


def test_what_cannot_change_needs_a_rebuild(tmp_path: Path, store: Store) -> None:
    before = recorded(store)
    for name in FIXED:
        short = name.removeprefix("pipeline.")
        with pytest.raises(LayoutError, match="weir rebuild --from"):
            change(store, {name: values_of(support.config(tmp_path, **{short: OTHERS[short]}))[name]})
    with pytest.raises(LayoutError, match="there is no such store"):
        change(Store(str(tmp_path / "none")), {"catalogue": "items.csv"})
    assert not (tmp_path / "none").exists()
    assert recorded(store) == before


def test_a_change_that_is_killed_leaves_the_old_settings_or_the_new(tmp_path: Path, store: Store) -> None:
    wanted: Any = {"pipeline.event_types": {"skip": "positive"}, "pipeline.history_length": 9}
    seen = []
    for point in range(9):
        before = recorded(store)
        try:
            with killed_at(point):
                change(store, wanted)
        except KilledError:
            assert recorded(store) in (before, before | wanted)
            seen.append(recorded(store) == before)
            bring_in(store, PipelineConfig(log=str(tmp_path / "log"), metrics_port=0))
            assert verify(store).findings == []
            wanted = {"pipeline.history_length": 10 + point}
        else:
            break
    assert seen[0]
    assert not all(seen)
    assert recorded(store)["pipeline.history_length"] == wanted["pipeline.history_length"]


@pytest.mark.parametrize("lock", ["state/driver.lock", "state/ingest.lock"])
def test_no_setting_of_rows_changes_while_a_pipeline_runs(store: Store, lock: str) -> None:
    with locked(store, lock):
        with pytest.raises(BusyStoreError):
            change(store, {"pipeline.history_length": 9})
        assert change(store, {"catalogue": "/items.csv"}) is not None
    assert recorded(store)["catalogue"] == "/items.csv"


@pytest.mark.parametrize("is_in_flight", [False, True])
def test_a_pipeline_commits_nothing_under_settings_that_have_changed(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, *, is_in_flight: bool
) -> None:
    process = driver(store, support.config(tmp_path))
    support.write_lines(tmp_path / "log/a.jsonl", [Event("ann", "last", 70).line()])
    real = support.run_once

    def run_once(*given: Any) -> None:
        change(store, {"pipeline.history_length": 9})
        real(*given)

    if is_in_flight:
        monkeypatch.setattr(sys.modules["weir.pipelines.batch.ingest"], "run_once", run_once)
    else:
        change(store, {"pipeline.history_length": 9})
    with pytest.raises(LayoutError, match=r"pipeline\.history_length: changed in .* start it again"):
        process.catch_up(discovered(tmp_path), flush=True, only_whole_lines=True)
    made = CommitLog(store).get(CommitLog(store).newest())
    assert (made.number, made.panes, made.sources) == (1, (), {})
    monkeypatch.undo()
    bring_in(store, PipelineConfig(log=str(tmp_path / "log"), metrics_port=0))
    assert [pane.history_length for pane in WindowLog(store).committed()][-1] == 9
    assert LogState.open(store).counts.events == 16


def test_a_store_of_an_older_version_records_them_at_the_next_start(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    older = encode_document(StoreFormat(layout=read_format(store).layout))  # type: ignore[union-attr]
    store.write("STORE.json", older)
    store.remove("SETTINGS.json")
    assert recorded(store).keys() == set(FIXED)
    named = {"catalogue": None, "takedown": "s3://shop/gone.txt"}
    for _ in range(2):
        ingest(store, support.config(tmp_path), registry=CollectorRegistry(), named=named)
    told = [line for line in caplog.messages if "travelled with it" in line]
    assert len(told) == 1
    assert "event_types" in told[0]
    # Its servers may name a catalogue of their own.
    assert recorded(store).keys() == {*LASTING} - {"catalogue"}


def test_a_store_is_told_what_its_first_commit_is_made_with(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    open_layout(store, support.config(tmp_path), {"catalogue": None})
    open_layout(store, support.config(tmp_path, history_length=9), {"catalogue": "/items.csv"})
    found = recorded(store)
    assert (found["pipeline.history_length"], found["catalogue"]) == (9, "/items.csv")
    assert read_format(store) is not None


@pytest.mark.parametrize("url", ["https://me:secret@shop/items.csv", "https://shop/items.csv?X-Amz-Signature=ab"])
def test_no_secret_goes_into_a_store(tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(str(tmp_path / "store"))
    open_layout(store, support.config(tmp_path), {"catalogue": url, "takedown": None})
    assert "catalogue" not in recorded(store)
    assert [line for line in caplog.messages if line.startswith("catalogue: its URL may hold a secret")]
    with pytest.raises(LayoutError, match="may hold a secret"):
        change(store, {"catalogue": url})
    assert b"secret" not in store.read("SETTINGS.json")
    assert b"Signature" not in store.read("SETTINGS.json")
