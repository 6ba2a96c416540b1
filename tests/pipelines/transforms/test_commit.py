"""One run is one commit, whole or not at all, whoever else writes."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pyarrow as pa

from weir.contracts import (
    ITEMS_SCHEMA,
    CommitLog,
    FeatureNames,
    LetterFile,
    LogState,
    SourceSpan,
    Store,
    WindowCounts,
    WindowLog,
    WindowName,
)
from weir.contracts.interactions.features import UserFeatures
from weir.contracts.storage.store import FileEntry
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.progress import LettersWritten, PartitionProgress, PendingRows, Progress
from weir.pipelines.runs.run import Base, Run
from weir.pipelines.transforms.commit import CommitRun, RunOutcome, RunPart, ShardReport, Start
from weir.readers import Format, Partition
from weir.sketches import CountMinSketch

CONFIG = PipelineConfig(window_seconds=10)
FILES = {"a": Partition("a", "a", Format.JSON_LINES, 9)}
RUN = Run("one", Base(), FILES, CONFIG.window_ms, 0, flush=True)
PROGRESS = Progress(25_000, {"a": PartitionProgress(9)})


def report(start: int, items: list[tuple[int, str, int]]) -> ShardReport:
    table = pa.Table.from_pylist([dict(zip(ITEMS_SCHEMA.names, row, strict=True)) for row in items], ITEMS_SCHEMA)
    count = sum(row[2] for row in items)
    return ShardReport(
        WindowName(start, start + 10_000), None, table, WindowCounts(events=count, positives=count), start, start + 5
    )


REPORTS: list[RunPart] = [
    Start(),
    report(20_000, [(5, "e", 1)]),
    report(0, [(3, "c", 2), (1, "a", 1)]),
    report(10_000, []),
    report(0, [(3, "c", 4)]),
]


def commit(store: Store, run: Run = RUN, made: list[RunPart] = REPORTS, progress: Progress = PROGRESS) -> RunOutcome:
    list(CommitRun(store, run, CONFIG).process((0, made), progress))
    return RunOutcome.of(store, run)


def following(store: Store, **changes: object) -> Run:
    return replace(RUN, base=Base.of(LogState.open(store), {"a"}), **changes)  # type: ignore[arg-type]


def test_the_panes_of_a_run_are_one_commit_in_order_of_time(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    outcome = commit(store)
    assert outcome.commit is not None
    assert [(pane.sequence, pane.start_ms, pane.pane) for pane in WindowLog(store)] == [
        (0, 0, 0),
        (1, 10_000, 0),
        (2, 20_000, 0),
    ]
    assert outcome.commit.sources == {"a": SourceSpan(start=0, stop=9, resume=9, size=9)}
    assert WindowLog(store).committed() == list(outcome.commit.panes)


def test_a_retry_finds_its_own_commit_and_no_second_one_is_made(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    first, again = commit(store), commit(store)
    assert again.commit is not None
    assert first.commit is not None
    assert again.commit.writer == first.commit.writer == "one"
    assert CommitLog(store).newest() == 0


def test_a_run_that_another_writer_was_ahead_of_changes_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    commit(store)
    before = store.read(CommitLog.name(0))
    outcome = commit(store, replace(RUN, id="two"))
    assert outcome.was_taken
    assert outcome.commit is None
    assert store.read(CommitLog.name(0)) == before
    assert CommitLog(store).newest() == 0


def test_items_of_shards_are_merged_and_windows_without_positives_have_an_empty_sketch(tmp_path: Path) -> None:
    log = WindowLog(Store(str(tmp_path)))
    commit(log.store)
    first, second, _ = log.committed()
    assert log.items(first).to_pylist() == [
        {"item_key": 1, "item_id": "a", "count": 1},
        {"item_key": 3, "item_id": "c", "count": 6},
    ]
    assert (first.counts.events, first.min_event_ms, first.max_event_ms) == (7, 0, 5)
    assert CountMinSketch.from_bytes(log.sketch(second)).total == 0
    assert first.sketch == {"kind": "count_min", "width": 65536, "depth": 4, "conservative": True}


def test_the_files_of_the_shards_are_listed_by_name(tmp_path: Path) -> None:
    names = ["c.parquet", "a.parquet", "b.parquet"]
    files = [FileEntry(name=name, size=1, checksum="", rows=1) for name in names]
    outcome = commit(Store(str(tmp_path)), made=[replace(report(0, []), file=file) for file in files])
    assert outcome.commit is not None
    [pane] = outcome.commit.panes
    assert [file.name for file in pane.files[:3]] == sorted(names)


def test_what_is_known_of_users_is_the_same_to_the_bit_in_any_order_of_the_reports(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"user_features": FeatureNames(categorical=["lives"], dense=["age"])})
    # Sums of these differ in their last bits from order to order.
    moments = [(3.0, 0.1, 0.3), (7.0, 1e9 / 3, 1e-3), (1.0, -0.7, 0.0)]
    reports: list[RunPart] = [
        replace(
            report(0, []),
            file=FileEntry(name=WindowName.examples(shard), size=1, checksum="", rows=1),
            user_features=UserFeatures(categorical={"lives": shard + 1}, dense={"age": moments[shard]}),
        )
        for shard in range(3)
    ]
    found = []
    for number, made in enumerate(permutations([*reports, report(0, [])])):
        store = Store(str(tmp_path / f"{number}"))
        list(CommitRun(store, RUN, config).process((0, [Start(), *made]), PROGRESS))
        found.append(WindowLog(store).committed()[0].user_features.model_dump_json())
    assert len(set(found)) == 1
    assert UserFeatures.model_validate_json(found[0]).categorical == {"lives": 3}
    assert UserFeatures.model_validate_json(found[0]).dense["age"][0] == 11


def test_a_window_without_an_example_names_the_features_too(tmp_path: Path) -> None:
    named = FeatureNames(categorical=["lives"], dense=["age"])
    store, config = Store(str(tmp_path)), CONFIG.model_copy(update={"user_features": named})
    list(CommitRun(store, RUN, config).process((0, [Start(), report(0, [])]), PROGRESS))
    assert WindowLog(store).committed()[0].user_features == UserFeatures.nothing(named)


def test_a_later_run_is_numbered_on_and_its_panes_name_those_before(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    commit(store)
    late: list[RunPart] = [replace(report(0, []), name=WindowName(0, 10_000, 1)), report(30_000, [])]
    commit(store, following(store, id="two"), late)
    found = [(m.sequence, m.start_ms, m.pane, m.previous, m.attempt) for m in WindowLog(store).committed()]
    assert found[3:] == [(3, 0, 1, 0, "two"), (4, 30_000, 0, -1, "two")]
    assert [(panes.count, panes.commit) for panes in LogState.open(store).panes] == [(2, 1), (1, 0), (1, 0), (1, 1)]


def test_dead_letters_alone_are_a_commit_without_a_pane_and_rows_in_hand_hold_the_position(tmp_path: Path) -> None:
    store, run = Store(str(tmp_path)), replace(RUN, flush=False, lateness_ms=50_000)
    file = LetterFile(name="dead-letters/a/0-one.jsonl", size=1, checksum="", rows=2, partition="a", reasons={"x": 2})
    progress = Progress(25_000, {"a": PartitionProgress(9, 2, {20_000: 4})})
    rows = PendingRows("a", 20_000, "state/runs/one/rows.arrow", 4)
    outcome = commit(store, run, [Start(), LettersWritten(file, 7), rows], progress)
    assert outcome.commit is not None
    assert outcome.commit.panes == ()
    assert outcome.open_rows == (rows,)
    assert outcome.spans["a"].model_dump(include={"stop", "resume", "dead", "letters"}) == {
        "stop": 9,
        "resume": 4,
        "dead": 2,
        "letters": {file.name: 7},
    }
    assert WindowLog(store).committed() == []


def test_a_run_with_nothing_to_say_makes_no_commit_unless_it_is_the_last(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    waiting = commit(store, replace(RUN, flush=False), [Start()], Progress(-1, {"a": PartitionProgress(9)}))
    assert waiting.commit is None
    assert waiting.spans["a"].stop == 9
    assert commit(store, RUN, [Start()], Progress(-1, {"a": PartitionProgress(9)})).commit is not None
    assert commit(store, following(store, id="two"), [Start()], Progress()).commit is None
    grown = following(store, id="three", partitions={"a": Partition("a", "a", Format.JSON_LINES, 12)})
    assert commit(store, grown, [Start()], Progress(-1, {"a": PartitionProgress(12)})).commit is not None
