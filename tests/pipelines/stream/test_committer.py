from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as trials
from hypothesis import strategies as st

from tests.pipelines.stream.simulation import Job, Partition, random_log, settings, start, truth
from tests.pipelines.support import (
    check_counts,
    check_histories,
    committed,
    dead_letters,
    expected_events,
    stored_events,
)
from tests.readers.files import ORIGIN, Event
from weir.contracts import Commit, CommitLog, LogState, Retirement, Store
from weir.contracts.commits.commit import MOVED
from weir.contracts.commits.commit_log import Cursor
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.run_registry import append, only_writer
from weir.pipelines.sources.source import MovedStoreError
from weir.pipelines.stream.committer import UnknownPartitionError, commit_window
from weir.pipelines.stream.slices import OutOfOrderError, Slice, slices_of
from weir.pipelines.transforms import split


def check(store: Store, log: list[Partition]) -> None:
    """Every row of the log is accounted for exactly once."""
    events, refused, skipped = truth(log)
    assert stored_events(store) == {at: found for at, found in expected_events(events).items() if found}
    letters = dead_letters(store)
    for one in log:
        assert sorted(letter.position for letter in letters if letter.partition == one.key) == refused[one.key]
    state = LogState.open(store)
    for one in log:
        span = state.sources[one.key]
        assert (span.stop, span.resume, span.open, span.unlisted) == (one.size, one.size, {}, None)
        assert (span.dead, span.skipped) == (len(refused[one.key]), skipped[one.key])
    ignored = sum(event.type == "view" for event in events)
    counts = [pane.counts for pane in committed(store)]
    assert sum(one.events + one.duplicates + one.ignored for one in counts) == len(events)
    assert sum(one.ignored for one in counts) <= ignored
    check_counts(store)
    check_histories(store, 3, late_items=2)


@trials(
    max_examples=15, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(st.integers(0, 1 << 32))
def test_whatever_the_engine_does_every_row_is_accounted_for_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    random, folder = Random(seed), tmp_path_factory.mktemp("stream")
    store, config, log = Store(str(folder / "store")), settings(folder), random_log(random, 300)
    start(store, config, log)
    jobs = [Job(store, config, log, random)]
    for _ in range(60):
        job = random.choice(jobs)
        job.read()
        if random.random() < 0.4:
            job.advance()
        if random.random() < 0.4:
            try:
                job.commit()
            except OutOfOrderError:
                jobs[jobs.index(job)] = Job(store, config, log, random)
        if random.random() < 0.08:
            # A job starts again; the one before may be dead, or only thought so.
            jobs = [*random.sample(jobs, k=random.randrange(len(jobs) + 1)), Job(store, config, log, random)]
    last = Job(store, config, log, random)
    last.read(to_end=True)
    last.commit(to_end=True)
    check(store, log)


def test_a_zombie_that_goes_on_after_the_end_changes_nothing(tmp_path: Path) -> None:
    random = Random(7)
    store, config, log = Store(str(tmp_path / "store")), settings(tmp_path), random_log(random, 400)
    start(store, config, log)
    zombie = Job(store, config, log, random)
    for _ in range(12):
        zombie.read()
    job = Job(store, config, log, random)
    job.read(to_end=True)
    job.commit(to_end=True)
    before = LogState.open(store).number
    zombie.commit(to_end=True)
    zombie.read(to_end=True)
    zombie.commit(to_end=True)
    assert LogState.open(store).number == before
    check(store, log)


def a_store(folder: Path) -> tuple[Store, PipelineConfig, Partition]:
    log = Partition("kafka/c/t/id/0", {at: Event("ann", f"i{at}", 5 * at) for at in range(6)})
    store, config = Store(str(folder / "store")), settings(folder)
    start(store, config, [log])
    return store, config, log


def windows(log: Partition, config: PipelineConfig, begin: int, end: int, watermark: int = 0) -> dict[int, Slice]:
    return dict(slices_of(log.batch(begin, end, watermark), config.window_ms, ""))


def test_a_window_that_needs_another_first_writes_nothing(tmp_path: Path) -> None:
    store, config, log = a_store(tmp_path)
    with pytest.raises(OutOfOrderError, match="positions 4 to 6 came, 0 is next"):
        commit_window(store, config, 0, [windows(log, config, 4, 6)[0]])
    assert not store.glob("windows/*/*/*")


def test_a_partition_of_which_no_commit_knows_is_refused(tmp_path: Path) -> None:
    store, config, log = a_store(tmp_path)
    other = replace(windows(log, config, 0, 6)[0], partition="kafka/c/t/id/9")
    with pytest.raises(UnknownPartitionError, match="id/9"):
        commit_window(store, config, 0, [other])


def test_a_commit_that_another_writer_takes_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, config, log = a_store(tmp_path)
    append_first = CommitLog.append
    taken = []

    def race(self: CommitLog, commit: Commit) -> Cursor:
        if not taken:
            taken.append(commit.writer)
            other = commit.model_copy(
                update={"writer": "other", "panes": (), "sources": {}, "histories": (), "covered": 0, "requires": ()}
            )
            append_first(self, other)
        return append_first(self, commit)

    monkeypatch.setattr(CommitLog, "append", race)
    for start_ms, one in windows(log, config, 0, 6).items():
        commit_window(store, config, start_ms, [one])
    check(store, [log])
    assert not [name for name in store.find() if taken[0] in name]


def test_a_store_that_another_pipeline_locks_is_waited_for(tmp_path: Path) -> None:
    store, config, log = a_store(tmp_path)
    slices = windows(log, config, 0, 6)
    with ThreadPoolExecutor() as pool:
        with only_writer(store):
            waits = [pool.submit(commit_window, store, config, at, [one]) for at, one in list(slices.items())[:1]]
            with pytest.raises(TimeoutError):
                waits[0].result(0.3)
        assert waits[0].result(30) is not None


def test_a_store_whose_log_has_moved_takes_no_window(tmp_path: Path) -> None:
    store, config, log = a_store(tmp_path)
    append(CommitLog(store), LogState.open(store), MOVED, moved_to="elsewhere")
    with pytest.raises(MovedStoreError, match="elsewhere"):
        commit_window(store, config, 0, [windows(log, config, 0, 6)[0]])


def test_rows_of_windows_that_have_retired_are_dead_letters(tmp_path: Path) -> None:
    store, config, log = a_store(tmp_path)
    state = LogState.open(store)
    horizon = Retirement(
        number=state.cursor.number, sequence=0, checksum=state.cursor.checksum, ms=(ORIGIN + 10) * 1000
    )
    append(CommitLog(store), state, retires=horizon)
    for start_ms, one in windows(log, config, 0, 6, (ORIGIN + 100) * 1000).items():
        commit_window(store, config, start_ms, [one])
    letters = dead_letters(store)
    assert [(one.position, one.reason) for one in letters] == [(0, "before_retention"), (1, "before_retention")]
    assert LogState.open(store).counts.events == 4


def test_an_item_with_the_key_of_another_is_a_dead_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, config, log = a_store(tmp_path)
    monkeypatch.setattr(split, "hash_ids", lambda ids, _: np.zeros(len(ids), np.int64))
    for start_ms, one in windows(log, config, 0, 6).items():
        commit_window(store, config, start_ms, [one])
    assert len(dead_letters(store)) == 5
    assert LogState.open(store).counts.events == 1


def test_a_job_whose_first_batch_brings_nothing_new_takes_over_all_the_same(tmp_path: Path) -> None:
    store, config, log = a_store(tmp_path)
    start_ms = ORIGIN * 1000

    def slices_by(job: str, begin: int, end: int, watermark: int) -> dict[int, Slice]:
        return dict(slices_of(log.batch(begin, end, watermark, job), config.window_ms, ""))

    commit_window(store, config, start_ms, [slices_by("one", 0, 6, start_ms)[start_ms]])
    again = slices_by("other", 2, 4, start_ms)
    commit_window(store, config, start_ms, [again[start_ms]])
    later = slices_by("other", 4, 6, start_ms + 10_000)
    commit_window(store, config, start_ms + 10_000, [again[start_ms + 10_000], later[start_ms + 10_000]])
    commit_window(store, config, start_ms + 20_000, [later[start_ms + 20_000]])
    check(store, [log])
