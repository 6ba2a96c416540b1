"""User features from the log to the windows, by runs and by a stream, and from one set of names to another."""

import csv
import json
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client import CollectorRegistry

from tests.pipelines import support
from tests.pipelines.stream import simulation
from tests.readers.files import ORIGIN
from weir.contracts import FeatureNames, Store, WindowLog, WindowManifest, hash_id, interaction_schema
from weir.pipelines.batch.ingest import _Driver, ingest
from weir.pipelines.config import PipelineConfig
from weir.pipelines.metrics import PipelineMetrics
from weir.pipelines.stream.committer import commit_window
from weir.pipelines.stream.reader import Batch
from weir.pipelines.stream.slices import slices_of

NAMES = FeatureNames(categorical=["lives", "langs"], dense=["age"])
PARTITION = "kafka/c/t/id/0"


def events(seed: int = 0, count: int = 200) -> list[dict[str, Any]]:
    """Rows of five windows of ten seconds; what they say of their users is different each time."""
    draw = np.random.default_rng(seed)
    return [
        {
            "user_id": f"u{draw.integers(9)}",
            "item_id": f"i{draw.integers(7)}",
            "timestamp": 1000 * (ORIGIN + number // 4),
            "event_type": "click" if draw.random() < 0.8 else "skip",
            "event_id": str(number),
            "lives": None if draw.random() < 0.2 else [f"street {draw.integers(5)}"],
            "langs": ["de", "en", "fr"][: draw.integers(4)],
            "age": None if draw.random() < 0.2 else float(draw.integers(90)),
        }
        for number in range(count)
    ]


def settings(folder: Path, **changes: Any) -> PipelineConfig:
    return support.config(folder, user_features=NAMES.model_dump(), **changes)


def said(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in NAMES.all}


def check(store: Store, rows: list[dict[str, Any]]) -> list[WindowManifest]:
    """Every example has what its event says, and each manifest what its examples say."""
    expected = {hash_id(row["event_id"]): said(row) for row in rows}
    log, manifests = WindowLog(store), support.committed(store)
    for manifest in manifests:
        found = log.all_examples(manifest).to_pylist()
        assert all(row["user_features"] == expected.pop(row["event_key"]) for row in found)
        assert manifest.user_features.names == NAMES
        longest = max(len(row["user_features"]["langs"] or []) for row in found)
        assert manifest.user_features.categorical == {"lives": 1, "langs": max(longest, 1)}
        ages = [row["user_features"]["age"] for row in found if row["label"] > 0]
        known = [age for age in ages if age is not None]
        count, mean, squares = manifest.user_features.dense["age"]
        assert (count, round(mean, 9)) == (len(known), round(float(np.mean(known)), 9))
        assert squares == pytest.approx(len(known) * np.var(known))
    assert expected == {}
    return manifests


def write(log: Path, rows: list[dict[str, Any]]) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), log, row_group_size=16)
    elif log.suffix == ".csv":
        with log.open("w", newline="") as file:
            table = csv.DictWriter(file, [*rows[0]])
            table.writeheader()
            table.writerows(row | {name: (row[name] or [""])[0] for name in NAMES.categorical} for row in rows)
    else:
        support.write_lines(log, [json.dumps(row) + "\n" for row in rows])


def bring_in(store: Store, config: PipelineConfig) -> None:
    ingest(store, config, registry=CollectorRegistry())


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("shards", [1, 3])
def test_examples_have_what_came_with_their_events(tmp_path: Path, name: str, shards: int) -> None:
    rows, store = events(), Store(str(tmp_path / "store"))
    write(tmp_path / "log" / name, rows)
    bring_in(store, settings(tmp_path, user_shards=shards))
    assert len(check(store, rows)) == 5


def test_a_cell_of_a_table_of_text_is_a_list_of_one(tmp_path: Path) -> None:
    rows, store = [row | {"langs": row["langs"][:1] or None} for row in events()], Store(str(tmp_path / "store"))
    write(tmp_path / "log/a.csv", rows)
    bring_in(store, settings(tmp_path))
    assert len(check(store, rows)) == 5


def test_a_stream_gives_the_same_however_its_partitions_are_cut(tmp_path: Path) -> None:
    rows, store, other = events(), Store(str(tmp_path / "store")), Store(str(tmp_path / "other"))
    write(tmp_path / "log/a.jsonl", rows)
    bring_in(other, settings(tmp_path))
    config = simulation.settings(tmp_path).model_copy(update={"user_features": NAMES, "history_length": 3})
    simulation.start(store, config, [simulation.Partition(PARTITION, {})])
    labels = {"click": 1, "skip": -1}
    found = [
        {name: row[name] for name in ("user_id", "item_id", "timestamp", "event_id")}
        | {"label": labels[row["event_type"]], "weight": 1.0, "position": number, "user_features": said(row)}
        for number, row in enumerate(rows)
    ]
    valid = pa.RecordBatch.from_pylist(found, interaction_schema(FeatureNames(), NAMES))
    parts = [(start, min(start + 70, len(rows))) for start in range(0, len(rows), 70)]
    batches = [
        Batch(PARTITION, "job", start, stop, 0, len(rows), valid[start:stop], (), np.empty(0, np.int64))
        for start, stop in parts
    ]
    slices = [found for batch in batches for found in slices_of(batch, config.window_ms, "")]
    for start_ms in sorted({start_ms for start_ms, _ in slices}):
        commit_window(store, config, start_ms, [one for start, one in slices if start == start_ms])
    streamed = [manifest.user_features for manifest in check(store, rows)]
    assert [one.categorical for one in streamed] == [one.user_features.categorical for one in check(other, rows)]


def test_names_may_change_and_each_window_has_its_own(tmp_path: Path) -> None:
    rows, store = events(), Store(str(tmp_path / "store"))
    write(tmp_path / "log/a.jsonl", rows[:80])
    bring_in(store, support.config(tmp_path))
    write(tmp_path / "log/b.jsonl", rows[80:120])
    support.change_settings(store, settings(tmp_path))
    bring_in(store, settings(tmp_path))
    write(tmp_path / "log/c.jsonl", rows[120:])
    last = support.config(tmp_path, user_features={"dense": ["age"]})
    support.change_settings(store, last)
    bring_in(store, last)
    first, _, third, *rest = support.committed(store)
    assert "user_features" not in first.model_dump()
    assert "user_features" not in WindowLog(store).all_examples(first).column_names
    assert third.user_features.names == NAMES
    assert [one.user_features.names.all for one in rest] == [("age",)] * 2


@pytest.mark.parametrize("before", [{}, {"dense": ["age"]}, {"categorical": ["langs"], "dense": ["more"]}])
def test_a_process_with_other_names_reads_rows_again_that_another_had_in_hand(tmp_path: Path, before: Any) -> None:
    rows, store = events(), Store(str(tmp_path / "store"))
    write(tmp_path / "log/a.jsonl", rows[:100])
    killed = support.config(tmp_path, user_features=before)
    metrics = PipelineMetrics(CollectorRegistry())
    process = _Driver(store, killed, metrics, None, threading.Event())
    process.catch_up(support.discover(killed.log), flush=False, only_whole_lines=True)
    done = len(support.committed(store))
    assert store.glob("state/runs/*/*.arrow")
    write(tmp_path / "log/b.jsonl", rows[100:])
    support.change_settings(store, settings(tmp_path))
    bring_in(store, settings(tmp_path))
    first, later = support.committed(store)[:done], support.committed(store)[done:]
    assert {one.user_features.names for one in first} == {FeatureNames(**before)}
    assert {one.user_features.names for one in later} == {NAMES}
    expected = {hash_id(row["event_id"]): said(row) for row in rows}
    found = [row for one in later for row in WindowLog(store).all_examples(one).to_pylist()]
    assert all(row["user_features"] == expected[row["event_key"]] for row in found)
    assert len(found) + sum(one.counts.events for one in first) == len(rows)


def test_a_value_that_cannot_be_used_is_a_dead_letter_that_names_it(tmp_path: Path) -> None:
    rows, store = events(), Store(str(tmp_path / "store"))
    wrong = [rows[3] | {"age": "old"}, rows[4] | {"lives": ["a"] * 65}, rows[5] | {"langs": 7}]
    write(tmp_path / "log/a.jsonl", [*rows[:3], *wrong, *rows[6:]])
    bring_in(store, settings(tmp_path))
    check(store, [*rows[:3], *rows[6:]])
    assert [
        (letter.reason, name)
        for letter, name in zip(support.dead_letters(store), ("age", "lives", "langs"), strict=True)
        if name in letter.detail
    ] == [("wrong_type", "age"), ("feature_too_long", "lives"), ("wrong_type", "langs")]


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1e39])
def test_a_number_that_is_not_finite_is_a_dead_letter(tmp_path: Path, name: str, wrong: float) -> None:
    rows, store = [row | {"langs": None} for row in events(count=20)], Store(str(tmp_path / "store"))
    write(tmp_path / "log" / name, [*rows[:3], rows[3] | {"age": wrong}, *rows[4:]])
    bring_in(store, settings(tmp_path))
    check(store, [*rows[:3], *rows[4:]])
    [letter] = support.dead_letters(store)
    assert (letter.reason, letter.detail.startswith(f"age is {wrong}")) == ("non_finite_feature", True)
