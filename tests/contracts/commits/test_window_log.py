""""""

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.contracts.panes import a_pane, retire_before
from weir.contracts import (
    ITEMS_SCHEMA,
    CommitLog,
    CorruptArtefactError,
    FeatureNames,
    HistoryFile,
    LetterFile,
    LogState,
    Store,
    WindowCounts,
    WindowLog,
    WindowManifest,
    WindowName,
    examples_schema,
    items_schema,
)
from weir.contracts.commits.commit import KNOWN, REDACTION, RedactedPane, RewrittenLetters, SourceSpan
from weir.contracts.commits.commit_log import Cursor
from weir.contracts.interactions.features import UserFeatures
from weir.contracts.storage.artefacts import write_table
from weir.contracts.verification import verify

FILE: Any = {"size": 3, "checksum": "0" * 32}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def log(store: Store) -> WindowLog:
    log = WindowLog(store)
    for sequence in range(4):
        log.commit(a_pane(sequence))
    return log


def redact(store: Store, *sequences: int, attempt: str = "new", **fields: Any) -> int:
    """Commit other files for some panes; return the number of the commit."""
    panes = WindowLog(store).committed()
    redacted = tuple(
        RedactedPane(pane=panes[at].model_copy(update={"attempt": attempt}), replaces=panes[at].folder)
        for at in sequences
    )
    changes = {"forgets": 1, "redacts": redacted, "requires": (REDACTION,)} | fields
    return WindowLog(store).commit(**changes).number


def attempts(panes: Any) -> list[str]:
    return [pane.attempt for pane in panes]


def test_whoever_starts_later_reads_other_files(store: Store, log: WindowLog) -> None:
    redact(store, 1, 3)
    expected = ["a0", "new", "a2", "new"]
    assert attempts(WindowLog(store)) == expected
    assert attempts(WindowLog(store).follow(after=2)) == ["new"]
    assert attempts(WindowLog(store).newest(2)) == ["a2", "new"]
    redact(store, 3, attempt="newer")
    assert attempts(WindowLog(store)) == ["a0", "new", "a2", "newer"]
    assert [pane.sequence for pane in WindowLog(store)] == [0, 1, 2, 3]


def test_a_follower_at_the_end_sees_no_pane_twice(store: Store, log: WindowLog) -> None:
    assert attempts(log.follow()) == ["a0", "a1", "a2", "a3"]
    redact(store, 2)
    assert log.next(3) == ()
    log.commit(a_pane(4))
    assert attempts(log.next(3)) == ["a4"]
    # What it has passed it knows, too.
    assert attempts(log.next(1)) == ["new"]


def test_a_follower_that_goes_back_knows_redactions_that_it_has_not_passed(store: Store, log: WindowLog) -> None:
    redact(store, 1)
    log.commit(a_pane(4))
    follower = WindowLog(store)
    assert attempts(follower.follow(after=3)) == ["a4"]
    redact(store, 2, attempt="newer")
    assert follower.next(4) == ()
    log.commit(a_pane(5))
    assert attempts(follower.follow(after=4)) == ["a5"]
    assert attempts(follower.follow()) == ["a0", "new", "newer", "a3", "a4", "a5"]


def test_a_follower_far_behind_looks_now_and_then(
    store: Store, log: WindowLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attempts(log.next(-1)) == ["a0"]
    redact(store, 1, 2)
    assert attempts(log.next(0)) == ["a1"]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 601)
    assert attempts(log.next(1)) == ["new"]


def test_a_damaged_newest_commit_is_told_when_its_turn_comes(store: Store, log: WindowLog) -> None:
    number = redact(store, 1)
    log.commit(a_pane(4))
    store.write(CommitLog.name(number + 1), b"nonsense")
    panes = WindowLog(store).follow()
    assert [next(panes).sequence for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(CorruptArtefactError, match=rf"{number + 1:010d}\.json"):
        next(panes)


def test_all_later_commits_require_it(store: Store, log: WindowLog) -> None:
    assert REDACTION in KNOWN
    number = redact(store, 1)
    later = log.commit(a_pane(4))
    assert (later.redaction, later.newest_redaction, later.requires) == (number, number, (REDACTION,))
    assert CommitLog(store).get(number).redaction == -1
    assert CommitLog(store).get(number).newest_redaction == number
    assert log.commit(a_pane(5), requires=("histories",)).requires == ("histories", REDACTION)


def test_the_state_says_what_waits_for_its_removal(store: Store, log: WindowLog) -> None:
    kept, other = "dead-letters/p/0-a-run.jsonl", "dead-letters/p/9-b-run.jsonl"
    span = SourceSpan(start=0, stop=9, resume=0, size=9, dead=2, letters={kept: 3, other: 5},
                      letter_checksums={kept: "k", other: "o"})  # fmt: skip
    letters = tuple(LetterFile(**FILE, name=name, rows=1, partition="p", reasons={"r": 1}) for name in (kept, other))
    log.commit(sources={"p": span}, letters=letters)
    new = RewrittenLetters(**FILE, name="dead-letters/p/0-c-run.jsonl", rows=1, partition="p", reasons={"r": 1},
                           replaces=kept)  # fmt: skip
    number = redact(store, 1, rewritten=(new,))
    folder = a_pane(1).folder
    state = LogState.open(store)
    assert (state.redaction, state.redacted) == (number, {1: number})
    assert state.erasing.keys() == {folder, kept}
    assert state.dead == 2
    assert state.sources["p"].letters == {new.name: 3, other: 5}
    assert state.sources["p"].letter_checksums == {new.name: FILE["checksum"], other: "o"}
    log.commit(dropped=(folder,))
    assert LogState.open(store).erasing.keys() == {kept}
    retire_before(store, 3, 30)
    assert LogState.open(store).redacted == {}
    assert attempts(WindowLog(store)) == ["a3"]


def test_a_file_of_users_may_go_without_another_in_its_place(store: Store) -> None:
    files = [HistoryFile(**FILE, name=f"histories/0/{name}", rows=1, shard=0, length=1) for name in "abc"]
    WindowLog(store).commit(histories=tuple(files), requires=("histories",))
    WindowLog(store).commit(forgets=1, removed=(files[1].name,), requires=(REDACTION,))
    state = LogState.open(store)
    assert [file.name for file in state.histories.shards[0]] == [files[0].name, files[2].name]
    assert state.histories.replaced.keys() == {files[1].name}
    WindowLog(store).commit(forgets=1, removed=(files[0].name, files[2].name), requires=(REDACTION,))
    assert LogState.open(store).histories.shards == {}


def test_replaced_files_may_be_there_or_not(store: Store) -> None:
    log, old, new = WindowLog(store), a_pane(0), a_pane(0, attempt="new")
    entry = store.write(f"{old.folder}/items.parquet", b"old")
    other = store.write(f"{new.folder}/items.parquet", b"new")
    log.commit(old.model_copy(update={"files": (entry,)}))
    redacted = RedactedPane(pane=new.model_copy(update={"files": (other,)}), replaces=old.folder)
    log.commit(forgets=1, redacts=(redacted,), requires=(REDACTION,))
    assert verify(store).findings == []
    store.write(f"{old.folder}/items.parquet", b"odd")
    assert [finding.kind for finding in verify(store).findings] == ["damaged"]
    store.remove(old.folder)
    assert verify(store).findings == []
    store.remove(new.folder)
    assert [(finding.kind, finding.name) for finding in verify(store).findings] == [
        ("missing", f"{new.folder}/items.parquet")
    ]


def test_an_older_version_stops(store: Store, log: WindowLog, monkeypatch: pytest.MonkeyPatch) -> None:
    number = redact(store, 1)
    monkeypatch.setattr("weir.contracts.commits.commit_log.KNOWN", KNOWN - {REDACTION})
    commits = CommitLog(store)
    with pytest.raises(CorruptArtefactError, match="needs redaction, unknown to this version"):
        commits.next(commits.at(number))
    assert commits.next(Cursor()) is not None


DAY = 86_400_000


@pytest.fixture
def window_log(tmp_path: Path) -> WindowLog:
    return WindowLog(Store(str(tmp_path)))


def examples(rows: int, length: int = 2) -> pa.Table:
    row = {"user_key": 1, "item_key": 2, "timestamp": 3, "history": [0] * length, "weight": 1.0, "label": 1}
    return pa.Table.from_pylist([row] * rows, examples_schema(length))


def write(
    window_log: WindowLog, sequence: int, *, day: int | None = None, pane: int = 0, **changes: Any
) -> WindowManifest:
    start = DAY * (sequence if day is None else day)
    name, attempt = WindowName(start, start + DAY, pane), f"{sequence:04d}"
    items = pa.Table.from_pylist([{"item_key": 2, "item_id": "two", "count": 3}], ITEMS_SCHEMA)
    files = (
        write_table(window_log.store, f"{name.folder(attempt)}/{WindowName.examples(4, 'abcd')}", examples(2)),
        write_table(window_log.store, f"{name.folder(attempt)}/{WindowName.examples(0)}", examples(1)),
        write_table(window_log.store, f"{name.folder(attempt)}/{WindowName.items()}", items),
        window_log.store.write(f"{name.folder(attempt)}/{WindowName.sketch()}", b"sketch"),
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
    window_log.commit(manifest)
    return manifest


def test_the_sketch_of_users_is_read_as_it_was_written(window_log: WindowLog) -> None:
    manifest = write(window_log, 0)
    entry = window_log.store.write(f"{manifest.folder}/{WindowName.user_sketch()}", b"users")
    listed = manifest.model_copy(update={"files": (*manifest.files, entry)})
    assert window_log.user_sketch(listed) == b"users"
    window_log.store.write(f"{manifest.folder}/{WindowName.user_sketch()}", b"damaged")
    with pytest.raises(CorruptArtefactError, match="user-sketch"):
        window_log.user_sketch(listed)


def test_a_window_is_read_as_it_was_committed(window_log: WindowLog) -> None:
    manifest = write(window_log, 0)
    assert window_log.committed() == [manifest] == list(window_log)
    assert window_log.shards(manifest) == [0, 4]
    assert window_log.examples(manifest, 4).num_rows == 2
    assert window_log.all_examples(manifest, ["item_key"]).to_pydict() == {"item_key": [2, 2, 2]}
    parts = [batch.to_pydict() for batch in window_log.example_batches(manifest, ["item_key"])]
    assert parts == [{"item_key": [2]}, {"item_key": [2, 2]}]
    assert window_log.example_rows(manifest) == 3
    assert window_log.items(manifest).to_pylist() == [{"item_key": 2, "item_id": "two", "count": 3}]
    assert window_log.sketch(manifest) == b"sketch"


def test_item_features_are_in_the_manifest_and_beside_the_items(window_log: WindowLog) -> None:
    plain = write(window_log, 0)
    assert "item_features" not in plain.model_dump()
    assert window_log.item_features(plain).to_pylist() == [{"item_key": 2}]
    names = FeatureNames(categorical=["genre"], dense=["price"])
    rows = [{"item_key": 2, "item_id": "two", "count": 3, "genre": ["jazz"], "price": None}]
    table, name = pa.Table.from_pylist(rows, items_schema(names)), WindowName(DAY, 2 * DAY)
    entry = write_table(window_log.store, f"{name.folder('0001')}/{name.items()}", table)
    manifest = write(window_log, 1, item_features=names, files=(entry,))
    write_table(window_log.store, f"{name.folder('0001')}/{name.items()}", table)
    assert WindowLog(window_log.store).committed()[1] == manifest
    assert window_log.items(manifest).to_pylist() == [{"item_key": 2, "item_id": "two", "count": 3}]
    assert window_log.item_features(manifest).to_pylist() == [{"item_key": 2, "genre": ["jazz"], "price": None}]


def test_names_tell_the_time_and_sort_by_it() -> None:
    name = WindowName(956_620_800_000, 956_620_800_000 + DAY, 3)
    assert str(name) == "20000425T000000Z-20000426T000000Z/0003"
    assert name.folder("f00") == "windows/20000425T000000Z-20000426T000000Z/f00"
    assert sorted([WindowName(10, 20, 0), WindowName(0, 10, 1), WindowName(0, 10, 0)])[0] == WindowName(0, 10, 0)


def test_the_log_is_followed_from_any_place(window_log: WindowLog) -> None:
    first, second = write(window_log, 0, day=5), write(window_log, 1, day=4)
    late = [first.model_copy(update={"pane": 1, "attempt": f"late{n}"}) for n in (0, 1)]
    window_log.commit(*late)
    fourth = write(window_log, 4, day=7)
    for after, expected in ((-1, [0, 1, 2, 3, 4]), (0, [1, 2, 3, 4]), (2, [3, 4]), (3, [4]), (4, [])):
        for reader in (window_log, WindowLog(window_log.store)):
            assert [pane.sequence for pane in reader.committed(after)] == expected
    assert window_log.committed(after=0)[0] == second
    write(window_log, 5, day=8)
    assert [pane.sequence for pane in window_log.committed(after=fourth.sequence)] == [5]


def test_panes_before_a_damaged_commit_come_before_its_error(window_log: WindowLog) -> None:
    write(window_log, 0)
    write(window_log, 1)
    window_log.store.write(CommitLog.name(1), b"{}")
    followed = WindowLog(window_log.store).follow()
    assert next(followed).sequence == 0
    with pytest.raises(CorruptArtefactError, match=r"0000000001\.json"):
        next(followed)


def test_a_window_without_examples_has_an_empty_table(window_log: WindowLog) -> None:
    manifest = write(window_log, 0, files=())
    assert window_log.all_examples(manifest).schema == examples_schema(2)
    assert window_log.all_examples(manifest, ["label"]).column_names == ["label"]
    names = FeatureNames(categorical=["lives"], dense=["age"])
    said = write(window_log, 1, files=(), user_features=UserFeatures.nothing(names))
    assert WindowLog(window_log.store).committed()[1] == said
    assert window_log.all_examples(said).schema == examples_schema(2, user_features=names)


@pytest.mark.parametrize("name", ["examples-00004-abcd.parquet", "items.parquet", "sketch.bin"])
def test_an_altered_file_is_named(window_log: WindowLog, tmp_path: Path, name: str) -> None:
    manifest = write(window_log, 0)
    path = tmp_path / manifest.folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptArtefactError, match=name):
        (window_log.all_examples(manifest), window_log.items(manifest), window_log.sketch(manifest))
    with pytest.raises(CorruptArtefactError, match=name):
        (
            list(window_log.example_batches(manifest, ["label"])),
            window_log.items(manifest),
            window_log.sketch(manifest),
        )


def test_a_file_with_other_rows_than_listed_is_named(window_log: WindowLog) -> None:
    manifest = write(window_log, 0)
    files = tuple(entry.model_copy(update={"rows": entry.rows + 1}) for entry in manifest.files)
    longer = manifest.model_copy(update={"files": files})
    for read in (
        lambda: window_log.examples(longer, 4, ["label"]),
        lambda: list(window_log.example_batches(longer, ["label"])),
    ):
        with pytest.raises(CorruptArtefactError, match=r"has (1|2) rows, the manifest says (2|3)"):
            read()


def test_a_file_that_is_not_listed_is_named(window_log: WindowLog) -> None:
    with pytest.raises(CorruptArtefactError, match=r"does not list examples-00009\.parquet"):
        window_log.examples(write(window_log, 0), 9)
