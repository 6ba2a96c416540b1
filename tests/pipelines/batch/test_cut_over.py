"""After the cut-over the log goes on in the rebuild: nothing is lost, nothing counts twice."""

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
from tests.pipelines.transforms.test_read import add, batches, driver
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import CommitLog, CorruptArtefactError, LogState, Store
from weir.contracts.commits import commit_log as commits
from weir.contracts.commits.commit import KNOWN, MOVED
from weir.contracts.verification import verify
from weir.pipelines.batch import cut_over as cutting
from weir.pipelines.batch.cut_over import cut_over
from weir.pipelines.batch.ingest import _Driver, ingest
from weir.pipelines.batch.rebuild import RebuildError, prepare
from weir.pipelines.config import PipelineConfig
from weir.pipelines.maintenance.erased_files import Forgotten
from weir.pipelines.maintenance.erasure import RedactionReport, forget_users
from weir.pipelines.metrics import PipelineMetrics
from weir.pipelines.sources.source import MovedStoreError
from weir.readers import discover


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.sampled_from(["a.jsonl", "b.jsonl"]), batches, st.booleans()), min_size=1, max_size=3),
    batches,
    st.sampled_from([3, 10, 25]),
    st.booleans(),
)
def test_the_log_goes_on_where_it_stood(todo: list[Any], later: list[Event], window: int, from_log: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, written = Path(name), list[Event]()
        origin, store = Store(str(folder / "origin")), Store(str(folder / "store"))
        (folder / "log").mkdir()
        config = support.config(folder)
        process = driver(origin, config)
        for number, (kind, batch, flush) in enumerate(todo):
            add(folder / "log", kind, number, batch)
            written += batch
            process.catch_up(discover(config.log), flush=flush, only_whole_lines=True)
        other = support.config(folder, window_seconds=window, user_shards=3, history_length=4)
        other = prepare(origin, store, other)
        cut_over(origin, store, other, from_log=from_log)
        add(folder / "log", "a.jsonl", 0, later)
        written += later
        # The pipeline of the origin has not noticed anything, or starts again.
        with pytest.raises(MovedStoreError, match=f"has moved to {folder.resolve()}/store"):
            process.catch_up(discover(config.log), flush=True, only_whole_lines=True)
        with pytest.raises(MovedStoreError, match="has moved to"):
            driver(origin, config)
        for _ in range(2):
            ingest(store, other, registry=CollectorRegistry())
            assert support.stored_events(store) == support.expected_events(written, window)
        support.check_counts(store)
        support.check_histories(store, 4)
        state = LogState.open(store)
        assert all(span.is_done and not span.inherited for span in state.sources.values())
        assert bool(state.moved_from) != from_log
        assert [verify(one).findings for one in (origin, store)] == [[], []]


@pytest.fixture
def origin(tmp_path: Path) -> Store:
    add(tmp_path / "log", "a.jsonl", 0, [Event("ann", f"item-{number % 7}", number) for number in range(30)])
    store = Store(str(tmp_path / "origin"))
    process = driver(store, support.config(tmp_path))
    process.catch_up(discover(str(tmp_path / "log")), flush=False, only_whole_lines=True)
    return store


@pytest.mark.parametrize("step", ["_leave", "_hand_over"])
@pytest.mark.parametrize("is_after", [False, True])
def test_a_cut_over_that_was_killed_is_run_again(
    tmp_path: Path, origin: Store, monkeypatch: pytest.MonkeyPatch, step: str, is_after: bool
) -> None:
    store = Store(str(tmp_path / "store"))
    config = prepare(origin, store, support.config(tmp_path, window_seconds=15))
    whole = getattr(cutting, step)

    def killed(*given: Any) -> None:
        if is_after:
            whole(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cutting, step, killed)
        with pytest.raises(KeyboardInterrupt):
            cut_over(origin, store, config)
    if not (step == "_hand_over" and is_after):
        with pytest.raises(MovedStoreError, match="is being rebuilt"):
            ingest(store, config, registry=CollectorRegistry())
    cut_over(origin, store, config)
    moved = [CommitLog(one).newest() for one in (origin, store)]
    cut_over(origin, store, config)
    assert [CommitLog(one).newest() for one in (origin, store)] == moved
    ingest(store, config, registry=CollectorRegistry())
    events = [Event("ann", f"item-{number % 7}", number) for number in range(30)]
    assert support.stored_events(store) == support.expected_events(events, 15)


def test_a_store_whose_users_are_forgotten_meanwhile_does_not_move(
    tmp_path: Path, origin: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, leave = Store(str(tmp_path / "store")), cutting._leave
    config = prepare(origin, store, support.config(tmp_path, window_seconds=15))

    def late(*given: Any) -> None:
        forget(origin, config)
        leave(*given)

    with monkeypatch.context() as patch:
        patch.setattr(cutting, "_leave", late)
        with pytest.raises(RebuildError, match=r"users were forgotten since .*; rebuild it into a new folder"):
            cut_over(origin, store, config)
    assert not LogState.open(origin).moved_to


def test_nobody_is_forgotten_between_the_steps_of_a_cut_over(
    tmp_path: Path, origin: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "store"))
    config = prepare(origin, store, support.config(tmp_path, window_seconds=15))
    leave = cutting._leave

    def killed(*given: Any) -> None:
        leave(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cutting, "_leave", killed)
        with pytest.raises(KeyboardInterrupt):
            cut_over(origin, store, config)
    ends = f"run `weir rebuild --from {origin.url} --to .*/store --cut-over` first, with the settings of the rebuild"
    with pytest.raises(MovedStoreError, match=ends):
        forget(origin, config)
    cut_over(origin, store, config)
    assert [forget(one, config).rows for one in (origin, store)] == [20, 20]  # of closed windows


def forget(store: Store, config: PipelineConfig) -> RedactionReport:
    """Forget the user who has all events."""
    return forget_users(store, config, Forgotten.of(["ann"]))


def test_a_store_moves_once_and_to_where_there_is_a_bundle(tmp_path: Path, origin: Store) -> None:
    first, second = Store(str(tmp_path / "first")), Store(str(tmp_path / "second"))
    write_bundle(origin, "v1", Catalogue.random())
    config = prepare(origin, first, support.config(tmp_path))
    prepare(origin, second, config)
    with pytest.raises(RebuildError, match="has no promoted bundle to answer from"):
        cut_over(origin, first, config)
    assert not LogState.open(origin).moved_to
    for store in (first, second):
        write_bundle(store, "v1", Catalogue.random())
    cut_over(origin, first, config)
    with pytest.raises(RebuildError, match=f"has moved to {tmp_path.resolve()}/first already"):
        cut_over(origin, second, config)


def test_a_rebuild_that_has_read_less_of_the_log_takes_nothing_over(tmp_path: Path, origin: Store) -> None:
    store = Store(str(tmp_path / "store"))
    add(tmp_path / "other", "b.jsonl", 0, [Event("bob", "item-1", 3)])
    config = prepare(origin, store, support.config(tmp_path, log=str(tmp_path / "other")))
    with pytest.raises(
        RebuildError, match=r"a\.jsonl: the old store has read this partition of the log to \d+, its rebuild less"
    ):
        cut_over(origin, store, config, from_log=True)
    assert not LogState.open(origin).moved_to


def test_of_a_file_that_was_rewritten_the_newest_content_counts(tmp_path: Path, origin: Store) -> None:
    store = Store(str(tmp_path / "store"))
    (tmp_path / "log/a.jsonl").write_text(Event("bob", "item-1", 3).line())
    ingest(origin, support.config(tmp_path), registry=CollectorRegistry())
    assert "a.jsonl@2" in LogState.open(origin).sources
    cut_over(origin, store, prepare(origin, store, support.config(tmp_path)), from_log=True)
    assert LogState.open(origin).moved_to == str(tmp_path.resolve() / "store")


def test_a_moved_store_can_be_rebuilt_and_moved_again(tmp_path: Path, origin: Store) -> None:
    first, second = Store(str(tmp_path / "first")), Store(str(tmp_path / "second"))
    config = prepare(origin, first, support.config(tmp_path, window_seconds=4))
    cut_over(origin, first, config)
    last = prepare(first, second, support.config(tmp_path, window_seconds=60))
    cut_over(first, second, last)
    ingest(second, last, registry=CollectorRegistry())
    events = [Event("ann", f"item-{number % 7}", number) for number in range(30)]
    assert support.stored_events(second) == support.expected_events(events, 60)


def test_readers_that_do_not_know_moves_do_not_pass_them(
    tmp_path: Path, origin: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "store"))
    cut_over(origin, store, prepare(origin, store, support.config(tmp_path)))
    monkeypatch.setattr(commits, "KNOWN", KNOWN - {MOVED})
    for one in (origin, store):
        with pytest.raises(CorruptArtefactError, match="needs moved, unknown to this version: upgrade weir"):
            LogState.open(one)


def test_a_run_in_progress_gives_way(tmp_path: Path, origin: Store) -> None:
    store = Store(str(tmp_path / "store"))
    config = support.config(tmp_path)

    class Overtaken(_Driver):
        def _run(self, plan: Any) -> bool:
            cut_over(origin, store, prepare(origin, store, config))
            return super()._run(plan)

    slow = Overtaken(origin, config, PipelineMetrics(CollectorRegistry()), None, threading.Event())
    with pytest.raises(MovedStoreError, match="has moved to"):
        slow.catch_up(discover(config.log), flush=True, only_whole_lines=True)
    assert verify(origin).findings == []
    ingest(store, config, registry=CollectorRegistry())
    events = [Event("ann", f"item-{number % 7}", number) for number in range(30)]
    assert support.stored_events(store) == support.expected_events(events)
