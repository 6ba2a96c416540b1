from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from contracts import (
    ITEMS_SCHEMA,
    CorruptArtefactError,
    FeatureNames,
    SourceSpan,
    Store,
    WindowCounts,
    WindowLog,
    WindowManifest,
    WindowName,
    examples_schema,
    items_schema,
)
from contracts.artefacts import write_table

DAY = 86_400_000


@pytest.fixture
def log(tmp_path: Path) -> WindowLog:
    return WindowLog(Store(str(tmp_path)))


def examples(rows: int, length: int = 2) -> pa.Table:
    row = {"user_key": 1, "item_key": 2, "timestamp": 3, "history": [0] * length, "weight": 1.0, "label": 1}
    return pa.Table.from_pylist([row] * rows, examples_schema(length))


def test_windows_from_before_there_were_user_sketches_have_none(log: WindowLog) -> None:
    manifest = write(log, 0)
    assert log.user_sketch(manifest) is None
    entry = log.store.write(f"{manifest.name.folder}/{WindowName.user_sketch()}", b"users")
    listed = manifest.model_copy(update={"files": (*manifest.files, entry)})
    assert log.user_sketch(listed) == b"users"
    log.store.write(f"{manifest.name.folder}/{WindowName.user_sketch()}", b"damaged")
    with pytest.raises(CorruptArtefactError, match="user-sketch"):
        log.user_sketch(listed)


def write(log: WindowLog, sequence: int, *, day: int | None = None, pane: int = 0, **changes: Any) -> WindowManifest:
    start = DAY * (sequence if day is None else day)
    name = WindowName(start, start + DAY, pane)
    items = pa.Table.from_pylist([{"item_key": 2, "item_id": "two", "count": 3}], ITEMS_SCHEMA)
    files = (
        write_table(log.store, f"{name.folder}/{WindowName.examples(4)}", examples(2)),
        write_table(log.store, f"{name.folder}/{WindowName.examples(0)}", examples(1)),
        write_table(log.store, f"{name.folder}/{WindowName.items()}", items),
        log.store.write(f"{name.folder}/{WindowName.sketch()}", b"sketch"),
    )
    manifest = WindowManifest(
        sequence=sequence,
        run=sequence,
        last_of_run=True,
        start_ms=start,
        end_ms=start + DAY,
        pane=pane,
        min_event_ms=start,
        max_event_ms=start + 5,
        committed_at=1.8e9,
        counts=WindowCounts(events=3, positives=3),
        sources={"log.jsonl": SourceSpan(start=0, stop=90, resume=90, size=90)},
        history_length=2,
        sketch={"kind": "exact"},
        files=files,
    ).model_copy(update=changes)
    log.commit(manifest)
    return manifest


def test_a_window_is_read_as_it_was_committed(log: WindowLog) -> None:
    manifest = write(log, 0)
    assert log.committed() == [manifest] == list(log)
    assert log.shards(manifest) == [0, 4]
    assert log.examples(manifest, 4).num_rows == 2
    assert log.all_examples(manifest, ["item_key"]).to_pydict() == {"item_key": [2, 2, 2]}
    assert log.items(manifest).to_pylist() == [{"item_key": 2, "item_id": "two", "count": 3}]
    assert log.sketch(manifest) == b"sketch"


def test_item_features_stand_in_the_manifest_and_beside_the_items(log: WindowLog) -> None:
    plain = write(log, 0)
    assert "item_features" not in log.store.read(f"{plain.name.folder}/MANIFEST.json").decode()
    assert log.item_features(plain).to_pylist() == [{"item_key": 2}]
    names = FeatureNames(categorical=["genre"], dense=["price"])
    rows = [{"item_key": 2, "item_id": "two", "count": 3, "genre": ["jazz"], "price": None}]
    table, name = pa.Table.from_pylist(rows, items_schema(names)), WindowName(DAY, 2 * DAY)
    entry = write_table(log.store, f"{name.folder}/{name.items()}", table)
    manifest = write(log, 1, item_features=names, files=(entry,))
    write_table(log.store, f"{name.folder}/{name.items()}", table)
    assert WindowLog(log.store).committed()[1] == manifest
    assert log.items(manifest).to_pylist() == [{"item_key": 2, "item_id": "two", "count": 3}]
    assert log.item_features(manifest).to_pylist() == [{"item_key": 2, "genre": ["jazz"], "price": None}]


def test_names_tell_the_time_and_sort_by_it() -> None:
    name = WindowName(956_620_800_000, 956_620_800_000 + DAY, 3)
    assert name.folder == "windows/20000425T000000Z-20000426T000000Z/0003"
    assert sorted([WindowName(10, 20, 0), WindowName(0, 10, 1), WindowName(0, 10, 0)])[0] == WindowName(0, 10, 0)


def test_without_its_manifest_a_window_does_not_exist(log: WindowLog) -> None:
    manifest = write(log, 0)
    log.store.remove(f"{manifest.name.folder}/MANIFEST.json")
    assert log.committed() == []


def test_commit_order_is_followed_and_a_gap_is_waited_for(log: WindowLog) -> None:
    write(log, 0, day=5)
    write(log, 2, day=4)
    assert [m.sequence for m in log.committed()] == [0]
    assert log.committed(after=0) == []
    write(log, 1, day=5, pane=1)
    assert [m.sequence for m in log.committed()] == [0, 1, 2]
    assert [m.sequence for m in log.committed(after=0)] == [1, 2]


def test_two_pipelines_on_one_store_are_found_out(log: WindowLog) -> None:
    write(log, 0, day=1)
    write(log, 0, day=2)
    with pytest.raises(CorruptArtefactError, match="do two pipelines write to this store"):
        log.committed()


def test_a_window_without_examples_has_an_empty_table(log: WindowLog) -> None:
    manifest = write(log, 0, files=())
    assert log.all_examples(manifest).schema == examples_schema(2)
    assert log.all_examples(manifest, ["label"]).column_names == ["label"]


@pytest.mark.parametrize("name", ["examples-00004.parquet", "items.parquet", "sketch.bin"])
def test_an_altered_file_is_named(log: WindowLog, tmp_path: Path, name: str) -> None:
    manifest = write(log, 0)
    path = tmp_path / manifest.name.folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptArtefactError, match=name):
        (log.all_examples(manifest), log.items(manifest), log.sketch(manifest))


def test_a_damaged_manifest_is_named(log: WindowLog, tmp_path: Path) -> None:
    manifest = write(log, 0)
    path = tmp_path / manifest.name.folder / "MANIFEST.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(CorruptArtefactError, match=r"MANIFEST\.json: is not a valid manifest"):
        log.committed()


def test_a_manifest_of_another_schema_version_is_refused(log: WindowLog) -> None:
    fields = write(log, 0).model_dump() | {"schema_version": 2}
    with pytest.raises(ValidationError, match="schema_version"):
        WindowManifest.model_validate(fields)


def test_a_file_that_is_not_listed_is_named(log: WindowLog) -> None:
    with pytest.raises(CorruptArtefactError, match=r"does not list examples-00009\.parquet"):
        log.examples(write(log, 0), 9)
