import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.kills import KilledError, killed_at
from tests.pipelines import aging, redacting, support
from tests.pipelines.redacting import USERS, Content, user
from weir.contracts import CommitLog, CorruptArtefactError, LogState, Store, WindowLog, hash_id, read_format
from weir.contracts.storage.local_files import is_draft, new_draft
from weir.contracts.verification import verify
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.batch.rebuild import RebuildError, WindowSource, prepare
from weir.pipelines.config import SketchConfig
from weir.pipelines.histories import compaction as merger
from weir.pipelines.maintenance.cleanup import Erasure, Removal
from weir.pipelines.maintenance.erased_files import REDACTED
from weir.pipelines.maintenance.erasure import forget_users
from weir.pipelines.maintenance.erasure_check import sightings
from weir.pipelines.maintenance.retention import plan_retirement, retire
from weir.pipelines.runs import run_registry as lock
from weir.pipelines.runs.run_registry import GRACE_SECONDS, mark, new_run, sweep, sweep_redactions
from weir.sketches import ExactCounter, load

EXACT: Any = {"sketch": SketchConfig(kind="exact"), "secret_keys": True, "user_shards": 3}


@pytest.fixture(scope="module", params=[{}, EXACT], ids=["hashed", "exact-secret"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A store of which nobody has been forgotten, and its settings."""
    folder = tmp_path_factory.mktemp("whole")
    redacting.build(folder, seed=len(request.param), **request.param)
    return folder, request.param


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of which nobody has been forgotten, with default settings."""
    folder = tmp_path_factory.mktemp("plain")
    redacting.build(folder)
    return folder


@pytest.fixture
def folder(plain: Path, tmp_path: Path) -> Path:
    shutil.copytree(plain, tmp_path / "copy")
    return tmp_path / "copy"


@examples(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(forgotten=st.lists(st.sets(st.integers(0, USERS - 1), min_size=1), min_size=1, max_size=2))
def test_who_is_forgotten_is_gone_and_everybody_else_is_as_before(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path, forgotten: list[set[int]]
) -> None:
    source, changes = whole
    folder = tmp_path / "store-of-this-example"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    store = redacting.store_of(folder)
    form = read_format(store)
    assert form is not None
    expected, ids = Content.of(store), set[str]()
    for numbers in forgotten:
        some = {user(number) for number in numbers}
        report = redacting.forget(folder, sorted(some), **changes)
        assert set(report.held) <= some - ids
        ids |= some
        expected = expected.without(some, form.key_secret)
        found = Content.of(store)
        assert (found.rows, found.users) == (expected.rows, expected.users)
        assert aging.leftovers(store) == []
    redacting.erase(folder)
    found = Content.of(store)
    assert (found.rows, found.users) == (expected.rows, expected.users)
    assert redacting.sighted(folder, sorted(ids)) == []
    assert aging.leftovers(store) == []


def test_only_files_that_hold_a_user_are_written_again(folder: Path) -> None:
    store = redacting.store_of(folder)
    before, files = WindowLog(store).committed(), {one.name for one in LogState.open(store).histories.files}
    report = redacting.forget(folder, [user(3)])
    key, rows = hash_id(user(3)), 0
    for old, new in zip(before, WindowLog(store).committed(), strict=True):
        held = WindowLog(store).all_examples(old, ["user_key"])["user_key"].to_pylist().count(key)
        assert (old.attempt != new.attempt) == (held > 0)
        assert (old.sequence, old.name, old.counts.late) == (new.sequence, new.name, new.counts.late)
        assert old.counts.events - new.counts.events == held
        rows += held
    assert rows == report.rows > 0
    state = LogState.open(store)
    left = {one.name for one in state.histories.files}
    shard = key % (1 << 64) % 2
    assert all(name.startswith(f"histories/{shard:05d}/") for name in files ^ left)
    assert len(files - left) == report.history_files


def test_what_is_said_of_others_stays_with_their_rows(tmp_path: Path) -> None:
    events = [redacting.events_of(0)[number] for number in range(30)]
    lines = [
        event.line()[:-2] + f', "age": {number}, "lives": ["{event.user}"]}}\n' for number, event in enumerate(events)
    ]
    support.write_lines(tmp_path / "log/a.jsonl", lines)
    named = {"user_features": {"categorical": ["lives"], "dense": ["age"]}}
    redacting.run(tmp_path, **named)
    store = redacting.store_of(tmp_path)
    [before] = WindowLog(store).committed()
    rows = WindowLog(store).all_examples(before).to_pylist()
    redacting.forget(tmp_path, [user(1)], **named)
    redacting.erase(tmp_path)
    [after] = WindowLog(store).committed()
    left = [row for row in rows if row["user_key"] != hash_id(user(1))]
    assert len(left) < len(rows)
    assert sorted(WindowLog(store).all_examples(after).to_pylist(), key=str) == sorted(left, key=str)
    assert after.user_features == before.user_features
    # The id is a value of a feature, too: it went with the rows.
    assert redacting.sighted(tmp_path, [user(1)]) == []


def test_exact_sketches_of_users_lose_their_keys(tmp_path: Path) -> None:
    redacting.build(tmp_path, parts=1, **EXACT)
    redacting.forget(tmp_path, [user(0)], **EXACT)
    log = WindowLog(redacting.store_of(tmp_path))
    for pane in log.committed():
        sketch = load(log.user_sketch(pane))
        assert isinstance(sketch, ExactCounter)
        rows = log.all_examples(pane).to_pylist()
        assert set(sketch.items()[0].tolist()) == {row["user_key"] for row in rows if row["label"] == 1}


def test_letters_lose_their_text_and_stay_refused(folder: Path) -> None:
    store = redacting.store_of(folder)
    before = redacting.letters_of(store)
    redacting.forget(folder, [user(1), user(2)])
    after = redacting.letters_of(store)
    changed = 0
    for old, new in zip(before, after, strict=True):
        named = user(1) in old.raw or user(2) in old.raw or "\\u0075ser-2" in old.raw
        if named:
            assert (new.raw, new.detail, new.size) == ("", REDACTED, old.size)
            changed += 1
        else:
            assert new == old
        assert (new.partition, new.position, new.reason) == (old.partition, old.position, old.reason)
    assert changed >= 6
    redacting.erase(folder)
    assert LogState.open(store).dead == len(after)
    redacting.run(folder)
    assert redacting.letters_of(store) == after


def test_nobody_who_is_held(folder: Path) -> None:
    store = redacting.store_of(folder)
    before = CommitLog(store).newest()
    report = redacting.forget(folder, ["nobody", "user-"])
    assert (report.commit, report.held) == (None, ())
    assert CommitLog(store).newest() == before
    assert aging.leftovers(store) == []


def test_the_pipeline_goes_on_and_counts_them_as_new_users(folder: Path) -> None:
    store = redacting.store_of(folder)
    counted = LogState.open(store).counts.events
    redacting.forget(folder, [user(1)])
    redacting.erase(folder)
    before = Content.of(store)
    # The log, which is not read again below what is counted; then late events and new ones.
    redacting.run(folder)
    assert LogState.open(store).counts.events == counted
    redacting.arrive(folder, 3)
    redacting.run(folder)
    assert LogState.open(store).counts.events == counted + len(redacting.events_of(3))
    after = Content.of(store)
    assert {at: after.rows[at] for at in before.rows} == before.rows
    key = hash_id(user(1))
    again = [row for at in after.rows.keys() - before.rows.keys() for row in after.rows[at] if row["user_key"] == key]
    assert again
    assert after.users[key][0][0] == sum(row["label"] == 1 for row in again)
    assert aging.leftovers(store) == []


def test_histories_that_are_built_again_do_not_have_them(folder: Path) -> None:
    store = redacting.store_of(folder)
    redacting.forget(folder, [user(1), user(4)])
    redacting.erase(folder)
    before = Content.of(store)
    for file in LogState.open(store).histories.files:
        store.remove(file.name)
    redacting.run(folder)
    after = Content.of(store)
    assert after.rows == before.rows
    assert {key: one[0] for key, one in after.users.items()} == {key: one[0] for key, one in before.users.items()}


def test_other_commits_come_first(folder: Path) -> None:
    """A pipeline starts, commits and merges while the windows are looked at."""
    store, commits = redacting.store_of(folder), CommitLog(redacting.store_of(folder))
    parts = [3, 4]

    def meanwhile(_done: int, _all: int) -> None:
        if parts:
            redacting.arrive(folder, parts.pop(0))
            redacting.run(folder)

    before = commits.newest()
    report = forget_users(store, redacting.settings(folder), redacting.forgotten(folder, [user(5)]), progress=meanwhile)
    assert report.commit == commits.newest() > before + 2
    assert LogState.open(store).counts.events == sum(len(redacting.events_of(part)) for part in range(5))
    assert aging.leftovers(store) == []
    redacting.erase(folder)
    assert redacting.sighted(folder, [user(5)]) == []
    assert aging.leftovers(store) == []


def test_one_redaction_at_a_time(folder: Path) -> None:
    store = redacting.store_of(folder)
    with lock.only_redaction(store):
        assert lock.is_redacting(store)
        with pytest.raises(lock.BusyStoreError, match=r"another `weir forget` is at work"):
            redacting.forget(folder, [user(1)])
        run = new_run()
        mark(store, run, redacts=True)
        assert run not in sweep(store)
    assert run in sweep(store)
    assert not lock.is_redacting(store)


@pytest.mark.parametrize("after", [redacting.erase, lambda folder: redacting.forget(folder, [user(1)])])
def test_old_drafts_of_killed_processes_go_too(folder: Path, after: Callable[[Path], object]) -> None:
    store = redacting.store_of(folder)
    name = next(name for name in store.glob("histories/*/*.users"))
    redacting.forget(folder, [user(1)])
    old, young = (new_draft(folder / "store" / name) for _ in range(2))
    for draft in (old, young):
        draft.write_bytes(store.read(name))
    os.utime(old, (time.time() - 2 * GRACE_SECONDS,) * 2)
    after(folder)
    assert not old.exists()
    [what] = [one.what for one in sightings(store, redacting.forgotten(folder, [user(1)])) if is_draft(one.name)]
    assert "once it is an hour old, the next `weir forget` removes it" in what


def test_a_damaged_file_is_named_and_nothing_is_forgotten(folder: Path) -> None:
    store = redacting.store_of(folder)
    pane = WindowLog(store).committed()[-1]
    name = f"{pane.folder}/{next(iter(pane.examples.values())).name}"
    data = store.read(name)
    store.write(name, data[:-1])
    with pytest.raises(CorruptArtefactError) as raised:
        redacting.forget(folder, [user(number) for number in range(USERS)])
    assert raised.value.path.endswith(name)
    store.write(name, data)
    assert LogState.open(store).redaction == -1
    assert aging.leftovers(store) == []


def test_redacted_windows_retire_like_others(folder: Path) -> None:
    store = redacting.store_of(folder)
    redacting.forget(folder, [user(1)])
    for part in range(3, 7):
        redacting.arrive(folder, part)
        redacting.run(folder)
    redacting.forget(folder, [user(2)])
    state = LogState.open(store)
    retire(store, state, plan_retirement(store, state, 30, None))
    assert aging.leftovers(store) == []
    Removal(store, state, grace_seconds=-1).run()
    assert aging.leftovers(store) == []
    first = WindowLog(store).committed()[0]
    assert first.sequence > 3
    assert {name.split("/")[1] for name in store.glob("windows/*/*")} == {
        pane.name.slice for pane in WindowLog(store).committed()
    }
    assert redacting.erase(folder) > 0
    assert redacting.sighted(folder, [user(1), user(2)]) != []  # user 1 came again
    assert redacting.sighted(folder, [user(2)]) == []
    assert aging.leftovers(store) == []


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    redacting.build(folder, parts=2, user_shards=1)
    return folder


def forget_and_erase(folder: Path) -> None:
    redacting.forget(folder, [user(1), user(2)], user_shards=1)
    redacting.erase(folder)


def test_killed_at_any_change_the_next_one_finishes_it(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "whole")
    forget_and_erase(tmp_path / "whole")
    expected = Content.of(redacting.store_of(tmp_path / "whole"))
    change, is_killed = 0, True
    while is_killed:
        copy = tmp_path / f"killed-{change}"
        shutil.copytree(small, copy)
        store = redacting.store_of(copy)
        try:
            with killed_at(change):
                forget_and_erase(copy)
            is_killed = False
        except KilledError:
            assert verify(store).findings == [], f"killed at change {change}"
            Content.of(store)
        sweep_redactions(store)
        assert aging.leftovers(store) == [], f"killed at change {change}"
        forget_and_erase(copy)
        found = Content.of(store)
        assert (found.rows, found.users) == (expected.rows, expected.users), f"killed at change {change}"
        assert redacting.sighted(copy, [user(1), user(2)]) == [], f"killed at change {change}"
        assert aging.leftovers(store) == []
        shutil.rmtree(copy)
        change += 1
    assert change > 25


def test_the_whole_of_a_shard_may_go(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merger, "REPLACED_SECONDS", -1.0)
    shutil.copytree(small, tmp_path / "copy")
    folder, ids = tmp_path / "copy", [user(number) for number in range(USERS)]
    store = redacting.store_of(folder)
    redacting.forget(folder, ids, user_shards=1)
    assert LogState.open(store).histories.shards == {}
    assert all(pane.counts.events == 0 and not pane.examples for pane in WindowLog(store))
    redacting.erase(folder)
    assert redacting.sighted(folder, ids) == []
    assert aging.leftovers(store) == []
    redacting.arrive(folder, 2)
    redacting.run(folder, user_shards=1)
    assert LogState.open(store).counts.events == sum(len(redacting.events_of(part)) for part in range(3))
    assert redacting.sighted(folder, ids) != []
    assert aging.leftovers(store) == []


def test_a_store_that_is_no_local_disk(small: Path, tmp_path: Path) -> None:
    local, store = redacting.store_of(small), Store(f"memory://{tmp_path.name}")
    for name in local.find():
        store.write(name, local.read(name))
    cache = {"cache_folder": str(tmp_path / "cache"), "user_shards": 1}
    users = redacting.forgotten(small, [user(1)])
    config = redacting.settings(small, **cache)
    expected = Content.of(local).without({user(1)})
    assert forget_users(store, config, users).commit is not None
    assert list((tmp_path / "cache").iterdir()) != []
    assert Erasure(store, -1.0, [config.cache]).run(LogState.open(store)) > 0
    assert sightings(store, users, caches=[config.cache]) == []
    assert aging.leftovers(store) == []
    found = WindowLog(store)
    assert {pane.sequence: found.all_examples(pane).to_pylist() for pane in found.committed()} == expected.rows


def test_a_rebuild_of_it_does_not_have_them(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "copy")
    folder, store = tmp_path / "copy", Store(str(tmp_path / "rebuilt"))
    origin = redacting.store_of(folder)

    def rebuild() -> None:
        config = prepare(origin, store, support.config(folder, window_seconds=30, user_shards=3))
        ingest(store, config, registry=CollectorRegistry(), source=WindowSource(origin, config))

    redacting.forget(folder, [user(1)], user_shards=1)
    redacting.erase(folder)
    rebuild()
    left = [row for rows in Content.of(origin).rows.values() for row in rows]
    assert sum(map(len, Content.of(store).rows.values())) == len(left) > 0
    redacting.forget(folder, [user(2)], user_shards=1)
    # Rows have other positions now.
    with pytest.raises(RebuildError, match="before users were forgotten"):
        rebuild()
