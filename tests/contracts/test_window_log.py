from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from weir.contracts import (
    ITEMS_SCHEMA,
    CommitLog,
    CorruptArtefactError,
    FeatureNames,
    Store,
    WindowCounts,
    WindowLog,
    WindowManifest,
    WindowName,
    examples_schema,
    items_schema,
)
from weir.contracts.artefacts import write_table
from weir.contracts.user_features import UserFeatures

DAY = 86_400_000


@pytest.fixture
def log(tmp_path: Path) -> WindowLog:
    return WindowLog(Store(str(tmp_path)))


def examples(rows: int, length: int = 2) -> pa.Table:
    row = {"user_key": 1, "item_key": 2, "timestamp": 3, "history": [0] * length, "weight": 1.0, "label": 1}
    return pa.Table.from_pylist([row] * rows, examples_schema(length))


def write(log: WindowLog, sequence: int, *, day: int | None = None, pane: int = 0, **changes: Any) -> WindowManifest:
    start = DAY * (sequence if day is None else day)
    name, attempt = WindowName(start, start + DAY, pane), f"{sequence:04d}"
    items = pa.Table.from_pylist([{"item_key": 2, "item_id": "two", "count": 3}], ITEMS_SCHEMA)
    files = (
        write_table(log.store, f"{name.folder(attempt)}/{WindowName.examples(4, 'abcd')}", examples(2)),
        write_table(log.store, f"{name.folder(attempt)}/{WindowName.examples(0)}", examples(1)),
        write_table(log.store, f"{name.folder(attempt)}/{WindowName.items()}", items),
        log.store.write(f"{name.folder(attempt)}/{WindowName.sketch()}", b"sketch"),
    )
    manifest = WindowManifest(
        sequence=sequence,
        start_ms=start,
        end_ms=start + DAY,
        pane=pane,
        attempt=attempt,
        min_event_ms=start,
        max_event_ms=start + 5,
        committed_at=1.8e9,
        counts=WindowCounts(events=3, positives=3),
        history_length=2,
        sketch={"kind": "exact"},
        files=files,
    ).model_copy(update=changes)
    log.commit(manifest)
    return manifest


def test_the_sketch_of_users_is_read_as_it_was_written(log: WindowLog) -> None:
    manifest = write(log, 0)
    entry = log.store.write(f"{manifest.folder}/{WindowName.user_sketch()}", b"users")
    listed = manifest.model_copy(update={"files": (*manifest.files, entry)})
    assert log.user_sketch(listed) == b"users"
    log.store.write(f"{manifest.folder}/{WindowName.user_sketch()}", b"damaged")
    with pytest.raises(CorruptArtefactError, match="user-sketch"):
        log.user_sketch(listed)


def test_a_window_is_read_as_it_was_committed(log: WindowLog) -> None:
    manifest = write(log, 0)
    assert log.committed() == [manifest] == list(log)
    assert log.shards(manifest) == [0, 4]
    assert log.examples(manifest, 4).num_rows == 2
    assert log.all_examples(manifest, ["item_key"]).to_pydict() == {"item_key": [2, 2, 2]}
    parts = [batch.to_pydict() for batch in log.example_batches(manifest, ["item_key"])]
    assert parts == [{"item_key": [2]}, {"item_key": [2, 2]}]
    assert log.example_rows(manifest) == 3
    assert log.items(manifest).to_pylist() == [{"item_key": 2, "item_id": "two", "count": 3}]
    assert log.sketch(manifest) == b"sketch"


def test_item_features_are_in_the_manifest_and_beside_the_items(log: WindowLog) -> None:
    plain = write(log, 0)
    assert "item_features" not in plain.model_dump()
    assert log.item_features(plain).to_pylist() == [{"item_key": 2}]
    names = FeatureNames(categorical=["genre"], dense=["price"])
    rows = [{"item_key": 2, "item_id": "two", "count": 3, "genre": ["jazz"], "price": None}]
    table, name = pa.Table.from_pylist(rows, items_schema(names)), WindowName(DAY, 2 * DAY)
    entry = write_table(log.store, f"{name.folder('0001')}/{name.items()}", table)
    manifest = write(log, 1, item_features=names, files=(entry,))
    write_table(log.store, f"{name.folder('0001')}/{name.items()}", table)
    assert WindowLog(log.store).committed()[1] == manifest
    assert log.items(manifest).to_pylist() == [{"item_key": 2, "item_id": "two", "count": 3}]
    assert log.item_features(manifest).to_pylist() == [{"item_key": 2, "genre": ["jazz"], "price": None}]


def test_names_tell_the_time_and_sort_by_it() -> None:
    name = WindowName(956_620_800_000, 956_620_800_000 + DAY, 3)
    assert str(name) == "20000425T000000Z-20000426T000000Z/0003"
    assert name.folder("f00") == "windows/20000425T000000Z-20000426T000000Z/f00"
    assert sorted([WindowName(10, 20, 0), WindowName(0, 10, 1), WindowName(0, 10, 0)])[0] == WindowName(0, 10, 0)


def test_the_log_is_followed_from_any_place(log: WindowLog) -> None:
    first, second = write(log, 0, day=5), write(log, 1, day=4)
    late = [first.model_copy(update={"pane": 1, "attempt": f"late{n}"}) for n in (0, 1)]
    log.commit(*late)
    fourth = write(log, 4, day=7)
    for after, expected in ((-1, [0, 1, 2, 3, 4]), (0, [1, 2, 3, 4]), (2, [3, 4]), (3, [4]), (4, [])):
        for reader in (log, WindowLog(log.store)):
            assert [pane.sequence for pane in reader.committed(after)] == expected
    assert log.committed(after=0)[0] == second
    write(log, 5, day=8)
    assert [pane.sequence for pane in log.committed(after=fourth.sequence)] == [5]


def test_panes_before_a_damaged_commit_come_before_its_error(log: WindowLog) -> None:
    write(log, 0)
    write(log, 1)
    log.store.write(CommitLog.name(1), b"{}")
    followed = WindowLog(log.store).follow()
    assert next(followed).sequence == 0
    with pytest.raises(CorruptArtefactError, match=r"0000000001\.json"):
        next(followed)


def test_a_window_without_examples_has_an_empty_table(log: WindowLog) -> None:
    manifest = write(log, 0, files=())
    assert log.all_examples(manifest).schema == examples_schema(2)
    assert log.all_examples(manifest, ["label"]).column_names == ["label"]
    names = FeatureNames(categorical=["lives"], dense=["age"])
    said = write(log, 1, files=(), user_features=UserFeatures.nothing(names))
    assert WindowLog(log.store).committed()[1] == said
    assert log.all_examples(said).schema == examples_schema(2, user_features=names)


@pytest.mark.parametrize("name", ["examples-00004-abcd.parquet", "items.parquet", "sketch.bin"])
def test_an_altered_file_is_named(log: WindowLog, tmp_path: Path, name: str) -> None:
    manifest = write(log, 0)
    path = tmp_path / manifest.folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptArtefactError, match=name):
        (log.all_examples(manifest), log.items(manifest), log.sketch(manifest))
    with pytest.raises(CorruptArtefactError, match=name):
        (list(log.example_batches(manifest, ["label"])), log.items(manifest), log.sketch(manifest))


def test_a_file_with_other_rows_than_listed_is_named(log: WindowLog) -> None:
    manifest = write(log, 0)
    files = tuple(entry.model_copy(update={"rows": entry.rows + 1}) for entry in manifest.files)
    longer = manifest.model_copy(update={"files": files})
    for read in (lambda: log.examples(longer, 4, ["label"]), lambda: list(log.example_batches(longer, ["label"]))):
        with pytest.raises(CorruptArtefactError, match=r"has (1|2) rows, the manifest says (2|3)"):
            read()


def test_a_file_that_is_not_listed_is_named(log: WindowLog) -> None:
    with pytest.raises(CorruptArtefactError, match=r"does not list examples-00009\.parquet"):
        log.examples(write(log, 0), 9)
