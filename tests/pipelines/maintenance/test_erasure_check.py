import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipelines import redacting
from tests.pipelines.redacting import user
from tests.pipelines.support import write_lines
from weir.contracts import LocalCache, LogState, Store, hash_id
from weir.pipelines.maintenance.erased_files import Forgotten
from weir.pipelines.maintenance.erasure_check import sightings


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of one window, in which user 1 has a line that was refused."""
    return redacting.build(tmp_path_factory.mktemp("one"), parts=1)


def names(store: Store, *ids: str, **more: LocalCache) -> set[str]:
    return {one.name for one in sightings(store, Forgotten.of(ids), caches=more.values())}


def test_every_kind_of_file_that_holds_a_user_is_named(store: Store) -> None:
    found = names(store, user(1))
    assert {name.split("/")[0] for name in found} == {"windows", "histories", "dead-letters"}
    shard = hash_id(user(1)) % (1 << 64) % 2
    assert all(f"/examples-{shard:05d}" in name for name in found if name.startswith("windows/"))
    assert names(store, "nobody") == set()
    # The id of an item is no user's, whatever holds its key.
    assert names(store, "item-1") == set()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("logs/server.log", b"refused a request of ann-7\n"),
        ("state/odd", b"\0\0" + hash_id("ann-7").to_bytes(8, "little", signed=True) + b"\0"),
        ("log/a.jsonl.gz", gzip.compress(b'{"user_id": "ann-7"}\n', mtime=0)),
        ("windows/x/.part.tmp", b"PAR1 torn"),
        ("checkpoints/1/0.bin", b"\xff\0" + hash_id("ann-7").to_bytes(8, "little", signed=True)),
    ],
)
def test_what_nobody_lists_is_read_too(store: Store, name: str, data: bytes) -> None:
    store.write(name, data)
    assert names(store, "ann-7") == {name}
    store.remove(name)
    assert names(store, "ann-7") == set()


def test_short_ids_count_where_a_log_has_them_as_users(store: Store) -> None:
    assert store.local_path is not None
    write_lines(store.local_path / "log/a.jsonl", ['{"user_id": 7, "item_id": "9"}\n'])
    pq.write_table(pa.table({"user_id": ["8"], "item_id": ["7"]}), store.local_path / "log/b.parquet")
    store.write("logs/x.log", b"7 events\n")
    try:
        assert names(store, "7") == {"log/a.jsonl"}
        assert names(store, "8") == {"log/b.parquet"}
        assert names(store, "9") == set()
    finally:
        for name in ("log", "logs"):
            store.remove(name)


def test_caches_of_this_machine_are_read(store: Store, tmp_path: Path) -> None:
    key = hash_id(user(2))
    file = LogState.open(store).histories.shards[key % (1 << 64) % 2][0]
    assert store.local_path is not None
    kept = tmp_path / f"{file.checksum}-{file.name.rpartition('/')[2]}"
    kept.write_bytes(store.read(file.name))
    cache = LocalCache(tmp_path)
    assert str(kept) in names(store, user(2), cache=cache)
    cache.discard(["histories/00000/another.users", file.name])
    assert not kept.exists()
    assert str(kept) not in names(store, user(2), cache=cache)
