"""A store of format 1, as version 0.1.0 wrote it, is brought to format 2 with all that it holds."""

import json
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.pipelines import support
from weir.contracts import CommitLog, CorruptArtefactError, LogState, Store, WindowLog
from weir.contracts.migration import migrate
from weir.contracts.verification import verify
from weir.pipelines.ingest import ingest

ARCHIVE = Path(__file__).parents[1] / "data" / "store-format-1.tar.gz"
SETTINGS = {"window_seconds": 60, "user_shards": 2, "history_length": 4, "event_types": {}, "chunk_bytes": 8 << 20}


@pytest.fixture
def old(tmp_path: Path) -> Store:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return Store(str(tmp_path / "store"))


def written(folder: Path) -> Counter[tuple[str, str, int]]:
    lines = [json.loads(line) for path in (folder / "log").iterdir() for line in path.open() if line[0] == "{"]
    return Counter((line["user_id"], line["item_id"], 1000 * line["timestamp"]) for line in lines)


def stored(store: Store) -> Counter[tuple[int, int, int]]:
    log, found = WindowLog(store), Counter[tuple[int, int, int]]()
    for manifest in log:
        rows = log.all_examples(manifest, ["user_key", "item_key", "timestamp"])
        found.update(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return found


def test_everything_is_there_afterwards_and_nothing_is_counted_again(old: Store, tmp_path: Path) -> None:
    before = {name: old.read(name) for name in old.glob("windows/*/*/*") if not name.endswith("MANIFEST.json")}
    assert migrate(old, user_shards=2) == 6
    assert {name: old.read(name) for name in old.glob("windows/*/*/*")} == before
    assert verify(old).findings == []
    expected = Counter(
        {(support.hash_id(user), support.hash_id(item), ms): n for (user, item, ms), n in written(tmp_path).items()}
    )
    assert stored(old) == expected
    state = LogState.open(old)
    assert (state.counts.events, state.dead) == (240, 2)
    assert all(span.is_done for span in state.sources.values())
    config = support.config(tmp_path, **SETTINGS)
    assert ingest(old, config, registry=CollectorRegistry()).read == 0
    support.write_lines(tmp_path / "log/part-2.jsonl", [support.Event("user-1", "item-1", 30).line()])
    summary = ingest(old, config, registry=CollectorRegistry())
    assert (summary.valid, summary.late, summary.dead) == (1, 1, 0)
    support.check_histories(old, 4, since=state.cursor.sequence)


def test_the_layout_is_taken_over_and_refuses_other_settings(old: Store, tmp_path: Path) -> None:
    migrate(old, user_shards=2)
    with pytest.raises(ValueError, match="window_seconds is 10"):
        ingest(old, support.config(tmp_path, user_shards=2), registry=CollectorRegistry())


def test_migrating_twice_or_after_a_kill_is_the_same(old: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class KilledError(Exception):
        pass

    def killed(*_: object) -> bool:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("weir.contracts.migration._rewrap", killed)
        with pytest.raises(KilledError):
            migrate(old, user_shards=2)
    assert migrate(old, user_shards=2) == 6
    log = CommitLog(old)
    assert migrate(old, user_shards=2) == 0
    assert log.newest() == 6
    assert verify(old).findings == []


def test_a_damaged_or_lost_manifest_is_named_and_nothing_is_lost(old: Store) -> None:
    name = old.glob("windows/*/*/MANIFEST.json")[2]
    data = old.read(name)
    old.write(name, data[:50])
    with pytest.raises(CorruptArtefactError, match=name):
        migrate(old, user_shards=2)
    old.remove(name)
    with pytest.raises(CorruptArtefactError, match="has no manifest with sequence"):
        migrate(old, user_shards=2)
    old.write(name, data)
    assert migrate(old, user_shards=2) == 6


def test_an_empty_store_has_nothing_to_migrate(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert migrate(store, user_shards=2) == 0
    assert WindowLog(store).committed() == []
