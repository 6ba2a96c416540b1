"""The rebuild of a store: under equal settings its equal, under others what the log itself would have given."""

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.pipelines import support
from tests.pipelines.support import Event
from tests.pipelines.transforms.test_read import FEATURES, add, batches, with_features
from weir.contracts import CommitLog, EventClock, LogState, Store, WindowCounts, WindowLog, WindowManifest, read_format
from weir.contracts.commits.commit_log import LogMismatchError
from weir.contracts.verification import verify
from weir.pipelines.batch.ingest import _Driver, ingest
from weir.pipelines.batch.rebuild import RebuildError, WindowSource, prepare
from weir.pipelines.config import PipelineConfig
from weir.pipelines.maintenance.erased_files import Forgotten
from weir.pipelines.maintenance.erasure import forget_users
from weir.pipelines.metrics import PipelineMetrics
from weir.pipelines.sources.log import UselessLogError
from weir.pipelines.sources.source import MovedStoreError

EVENTS = [
    with_features(
        Event(
            user=("ann", "bob", "cyd", "Ürsel")[number * 7 % 4],
            item=f"item-{number * 5 % 9}",
            second=number // 2,
            type=("click", "click", "skip", "view")[number % 4],
            event_id=f"e{number}" if number % 3 else None,
        )
    )
    for number in range(120)
]


def bring_in(store: Store, config: PipelineConfig) -> None:
    ingest(store, config, registry=CollectorRegistry())


def rebuild(origin: Store, store: Store, config: PipelineConfig) -> PipelineConfig:
    config = prepare(origin, store, config)
    ingest(store, config, source=WindowSource(origin, config), registry=CollectorRegistry())
    return config


def content(store: Store, manifest: WindowManifest) -> dict[str, Any]:
    """All that a pane holds, but for what counts rows that are no events."""
    log = WindowLog(store)
    return {
        "window": (manifest.start_ms, manifest.end_ms, manifest.pane, manifest.min_event_ms, manifest.max_event_ms),
        "counts": manifest.counts.model_copy(update={"ignored": 0, "duplicates": 0}),
        "shards": {shard: log.examples(manifest, shard).to_pylist() for shard in log.shards(manifest)},
        "items": log.items(manifest).to_pylist(),
        "user features": manifest.user_features,
        "features": log.item_features(manifest).to_pylist(),
        "sketches": (log.sketch(manifest), log.user_sketch(manifest)),
    }


def by_window(store: Store) -> dict[int, list[tuple[Any, ...]]]:
    """Window start -> its rows, whatever the panes and shards."""
    log, found = WindowLog(store), dict[int, list[tuple[Any, ...]]]()
    for manifest in support.committed(store):
        rows = [tuple(map(str, row.values())) for row in log.all_examples(manifest).to_pylist()]
        found[manifest.start_ms] = sorted(found.get(manifest.start_ms, []) + rows)
    return found


@pytest.mark.parametrize("of", ["item_features", "user_features"])
@pytest.mark.parametrize(("run_bytes", "secret_keys"), [(1 << 28, False), (16_000, True)])
def test_under_equal_settings_all_windows_are_equal(tmp_path: Path, run_bytes: int, secret_keys: bool, of: str) -> None:
    add(tmp_path / "log", "parquet", 0, [*EVENTS, *EVENTS[40:50]])
    named = {of: FEATURES}
    config = support.config(tmp_path, secret_keys=secret_keys, **named)
    origin, store = Store(str(tmp_path / "origin")), Store(str(tmp_path / "store"))
    bring_in(origin, config)
    EventClock(event_origin=1.0, wall_origin=2.0, speed=3.0).save(origin)
    # Whoever forgets the secret of the keys is spared: it comes with them.
    rebuild(origin, store, support.config(tmp_path, run_bytes=run_bytes, **named))
    given, found = support.committed(origin), support.committed(store)
    assert [content(store, pane) for pane in found] == [content(origin, pane) for pane in given]
    assert read_format(store).key_secret == read_format(origin).key_secret  # type: ignore[union-attr]
    assert EventClock.of(store) == EventClock.of(origin)
    assert verify(store).findings == []
    assert len({pane.attempt for pane in found}) == (1 if run_bytes > 16_000 else 5)
    rebuild(origin, store, support.config(tmp_path, **named))
    assert support.committed(store) == found


@pytest.mark.parametrize("window_seconds", [5, 20, 7])
def test_under_other_settings_windows_are_those_of_the_log(tmp_path: Path, window_seconds: int) -> None:
    add(tmp_path / "log", "a.jsonl", 0, EVENTS)
    origin, store, direct = (Store(str(tmp_path / name)) for name in ("origin", "store", "direct"))
    bring_in(origin, support.config(tmp_path))
    other = support.config(
        tmp_path, window_seconds=window_seconds, user_shards=3, history_length=5, sketch={"kind": "exact"}
    )
    rebuild(origin, store, other)
    bring_in(direct, other)
    # No user has two events at one time: ties of users in other shards may be ordered otherwise.
    assert by_window(store) == by_window(direct)
    log = WindowLog(store)
    for one, pane in zip(support.committed(direct), support.committed(store), strict=True):
        assert log.items(pane) == WindowLog(direct).items(one)
        assert (log.sketch(pane), log.user_sketch(pane)) == (
            WindowLog(direct).sketch(one),
            WindowLog(direct).user_sketch(one),
        )
    support.check_counts(store)


def test_user_features_that_the_origin_has_not_read_are_unknown(tmp_path: Path) -> None:
    add(tmp_path / "log", "a.jsonl", 0, EVENTS)
    origin, store = (Store(str(tmp_path / name)) for name in ("origin", "store"))
    bring_in(origin, support.config(tmp_path, user_features={"dense": ["price"]}))
    wanted = {"categorical": ["genre"], "dense": ["price"]}
    rebuild(origin, store, support.config(tmp_path, user_features=wanted))
    for one, pane in zip(support.committed(origin), support.committed(store), strict=True):
        given, found = (WindowLog(where).all_examples(of) for where, of in ((origin, one), (store, pane)))
        expected = [row | {"genre": None} for row in given["user_features"].to_pylist()]
        assert found["user_features"].to_pylist() == expected
        assert pane.user_features.dense == one.user_features.dense
        assert pane.user_features.categorical == {"genre": 1}


def test_features_of_longer_windows_are_the_newest_known(tmp_path: Path) -> None:
    add(tmp_path / "log", "a.jsonl", 0, EVENTS)
    origin, store, direct = (Store(str(tmp_path / name)) for name in ("origin", "store", "direct"))
    bring_in(origin, support.config(tmp_path, item_features=FEATURES))
    # What the origin has not read is unknown.
    wanted = {"categorical": ["genre", "mood"], "dense": ["price"]}
    rebuild(origin, store, support.config(tmp_path, window_seconds=30, item_features=wanted))
    bring_in(direct, support.config(tmp_path, window_seconds=30, item_features=wanted))
    for one, pane in zip(support.committed(direct), support.committed(store), strict=True):
        assert WindowLog(store).item_features(pane) == WindowLog(direct).item_features(one)


steps = st.lists(st.tuples(batches, st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=4)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps, st.sampled_from([3, 10, 25]), st.sampled_from([600, 1 << 28]))
def test_a_rebuild_follows_its_origin_however_often_it_starts_again(todo: list[Any], window: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, written = Path(name), list[Event]()
        origin, store = Store(str(folder / "origin")), Store(str(folder / "store"))
        given = support.config(folder)
        other = support.config(folder, window_seconds=window, user_shards=3, history_length=4, run_bytes=size)
        for number, (batch, flush, also_flush, restart) in enumerate(todo):
            add(folder / "log", f"{number}.jsonl", number, batch)
            written += batch
            support.run(origin, given, flush=flush)
            if number == 0:
                other = prepare(origin, store, other)
            if restart or number == 0:
                process = driver(origin, store, other)
            process.catch_up(process.source.discover(), flush=also_flush, only_whole_lines=True)
        support.run(origin, given)
        process.catch_up(process.source.discover(), flush=True, only_whole_lines=True)
        assert support.stored_events(store) == support.expected_events(written, window)
        support.check_counts(store)
        support.check_histories(store, 4)
        assert all(span.is_done for span in LogState.open(store).sources.values())
        assert sum((pane.counts for pane in support.committed(store)), WindowCounts()).duplicates == 0


def driver(origin: Store, store: Store, config: PipelineConfig) -> _Driver:
    metrics = PipelineMetrics(CollectorRegistry())
    return _Driver(store, config, metrics, None, threading.Event(), WindowSource(origin, config))


@pytest.fixture
def origin(tmp_path: Path) -> Store:
    add(tmp_path / "log", "a.jsonl", 0, EVENTS[:20])
    store = Store(str(tmp_path / "origin"))
    bring_in(store, support.config(tmp_path, item_features=FEATURES))
    return store


def test_what_cannot_be_a_rebuild_is_refused_by_name(tmp_path: Path, origin: Store) -> None:
    config = support.config(tmp_path)
    nowhere = Store(str(tmp_path / "nowhere"))
    for source, store, problem in (
        (nowhere, Store(str(tmp_path / "store")), "nowhere: there is no store to rebuild"),
        (origin, Store(f"{tmp_path}/log/../origin"), "cannot be rebuilt into itself"),
    ):
        with pytest.raises(RebuildError, match=problem):
            rebuild(source, store, config)
    taken = Store(str(tmp_path / "taken"))
    bring_in(taken, config)
    with pytest.raises(RebuildError, match="holds rows of a log"):
        rebuild(origin, taken, config)
    hidden = Store(str(tmp_path / "hidden"))
    bring_in(hidden, support.config(tmp_path, secret_keys=True))
    with pytest.raises(RebuildError, match="keys have another secret"):
        rebuild(hidden, taken, config)
    said = Store(str(tmp_path / "said"))
    bring_in(said, support.config(tmp_path, user_features={"dense": ["price"]}))
    with pytest.raises(RebuildError, match="user feature price is dense"):
        rebuild(
            said, Store(str(tmp_path / "kinds")), support.config(tmp_path, user_features={"categorical": ["price"]})
        )
    with pytest.raises(RebuildError, match="item feature price is dense"):
        rebuild(
            origin, Store(str(tmp_path / "kind")), support.config(tmp_path, item_features={"categorical": ["price"]})
        )


def test_a_rebuild_takes_rows_of_one_store_only(tmp_path: Path, origin: Store) -> None:
    config, store, other = support.config(tmp_path), Store(str(tmp_path / "store")), Store(str(tmp_path / "other"))
    rebuild(origin, store, config)
    bring_in(other, config)
    with pytest.raises(RebuildError, match="rebuild of another store"):
        rebuild(other, store, config)
    with pytest.raises(MovedStoreError, match="is being rebuilt"):
        bring_in(store, config)


def test_a_rebuild_that_follows_ends_where_users_are_forgotten(tmp_path: Path, origin: Store) -> None:
    """Rows that wait for the end of their window are read again by their positions, which are others then."""
    store, config = Store(str(tmp_path / "store")), support.config(tmp_path, window_seconds=30)
    process = driver(origin, store, prepare(origin, store, config))
    process.catch_up(process.source.discover(), flush=False, only_whole_lines=True)
    assert forget_users(origin, support.config(tmp_path), Forgotten.of(["ann"])).rows
    with pytest.raises(RebuildError, match=r"origin: users were forgotten since .*; rebuild it into a new folder"):
        process.source.discover()


@pytest.mark.parametrize("follow", [False, True])
def test_a_rebuild_from_a_log_without_a_valid_row_commits_nothing(tmp_path: Path, *, follow: bool) -> None:
    path = tmp_path / "log/a.jsonl"
    support.write_lines(path, [event.line() for event in EVENTS])
    origin, store = Store(str(tmp_path / "store")), Store(str(tmp_path / "new"))
    config = support.config(tmp_path, poll_seconds=0.02, idle_seconds=0.2)
    bring_in(origin, config)
    os.utime(path, (0, 0))
    with pytest.raises(UselessLogError, match="ahead_of_arrival"):
        ingest(store, prepare(origin, store, config), follow=follow, registry=CollectorRegistry())
    assert not store.glob("commits/*")
    assert not store.exists("dead-letters")


@pytest.mark.parametrize("new", [0, 1, 2])
def test_an_origin_that_lost_the_newest_windows_that_were_taken_is_refused(tmp_path: Path, new: int) -> None:
    origin, store = Store(str(tmp_path / "origin")), Store(str(tmp_path / "rebuilt"))
    config = support.config(tmp_path)
    for number in range(3):
        support.write_lines(tmp_path / "log/events.jsonl", [event.line() for event in EVENTS[40 * number :][:40]])
        bring_in(origin, config)
    rebuild(origin, store, config)
    before = support.committed(store)
    newest = CommitLog(origin).newest()
    origin.remove("commits/HEAD")
    origin.remove(CommitLog.name(newest))
    for number in range(new):
        pane = support.committed(origin)[-1].model_copy(update={"attempt": f"f{number}"})
        WindowLog(origin).commit(pane)
    with pytest.raises(LogMismatchError, match="rebuild it into a new folder") as refused:
        rebuild(origin, store, config)
    assert refused.value.reason == ("other_commit" if new else "log_ends_before")
    assert support.committed(store) == before
