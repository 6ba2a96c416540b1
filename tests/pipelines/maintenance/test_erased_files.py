""""""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines import redacting
from weir.contracts import CorruptArtefactError, Store, UserKeys, hash_id, shards_of
from weir.contracts.served_lists import SERVED_SCHEMA, new_segment, read_served, served_files, write_served
from weir.contracts.verification import verify
from weir.pipelines.maintenance.erased_files import Forgotten, forget_served


@pytest.mark.parametrize(
    ("ids", "text", "named"),
    [
        (["user-1"], '{"user_id": "user-1"}', {"user-1"}),
        (["user-1"], '{"user_id": "user-12"}', set()),
        (["user-1"], '{"user_id": "a-user-1"}', set()),
        (["7"], '{"user_id": 7, "item_id": "x', {"7"}),
        (["7"], '{"user_id": 77}', set()),
        (["ann@example.org"], "torn: ann@example.org,", {"ann@example.org"}),
        (["ann@example.org"], "ann@example.organ", set()),
        (["ann@example.org"], "joann@example.org", set()),
        (["ann b", "ann"], '["ann b"]', {"ann b", "ann"}),
        (["zoë"], '{"user_id": "zo\\u00eb"', {"zoë"}),
        (["😀x"], '{"user_id": "\\ud83d\\ude00x"', {"😀x"}),
        (['a"b'], '{"user_id": "a\\"b"}', {'a"b'}),
        (['a"b'], '"a""b",item-1,1700000000', {'a"b'}),
        (["§§"], "x §§ y", {"§§"}),
        (["a", "b", "a"], "a c", {"a"}),
        (["user"], "", set()),
    ],
)
def test_an_id_is_named_as_a_whole_word(ids: list[str], text: str, named: set[str]) -> None:
    assert Forgotten.of(ids).named_in(text) == named


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1), st.booleans())
def test_a_line_of_json_names_its_user_however_it_is_spelt(ids: list[str], ascii_only: bool) -> None:
    forgotten = Forgotten.of(ids)
    for one in ids:
        assert one in forgotten.named_in(json.dumps({"user_id": one, "item_id": "i"}, ensure_ascii=ascii_only))


def test_keys_are_those_of_the_store() -> None:
    ids = [f"user-{number}" for number in range(50)]
    for secret in ("", "ab" * 16):
        forgotten = Forgotten.of([*ids, ids[0]], secret)
        assert forgotten.ids == tuple(ids)
        assert forgotten.keys.tolist() == [hash_id(one, secret) for one in ids]
        shards = forgotten.by_shard(4)
        assert sorted(key for keys in shards.values() for key in keys.tolist()) == sorted(forgotten.keys.tolist())
        for shard, keys in shards.items():
            assert (shards_of(keys, 4) == shard).all()
            assert (np.diff(keys) > 0).all()


NOW = 1_700_000_000


def lists(*users: str | None) -> pa.Table:
    rows = [
        {
            "attribution_token": f"v1/{n}",
            "query": 0,
            "user_key": None if user is None else hash_id(user),
            "served_at": NOW,
            "bundle_version": "v1",
            "fallback": False,
            "item_ids": [f"item-{n}"],
        }
        for n, user in enumerate(users)
    ]
    return pa.Table.from_pylist(rows, SERVED_SCHEMA)


def keys(*users: str) -> UserKeys:
    return Forgotten.of(users).keys


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three files: of ann and others, of ann alone, and of others."""
    store = Store(str(tmp_path / "store"))
    for number, users in enumerate([("ann", None, "bob", "ann"), ("ann",), ("bob", None)]):
        write_served(store, new_segment(NOW + number), lists(*users))
    return store


def stored(store: Store) -> list[list[tuple[int | None, list[str]]]]:
    found = []
    for file in served_files(store):
        table = read_served(store, file)
        assert table is not None
        found.append(list(zip(table["user_key"].to_pylist(), table["item_ids"].to_pylist(), strict=True)))
    return found


def test_only_files_with_the_user_are_written_again(store: Store) -> None:
    untouched, bob = served_files(store)[2], hash_id("bob")
    removed = forget_served(store, keys("ann", "eve"))
    assert (removed.files, removed.lists, removed.users) == (2, 3, {hash_id("ann")})
    assert stored(store) == [[(None, ["item-1"]), (bob, ["item-2"])], [(bob, ["item-0"]), (None, ["item-1"])]]
    assert untouched in served_files(store)
    assert verify(store).findings == []
    assert forget_served(store, keys("ann")) == (0, 0, frozenset())


def test_killed_between_the_two_files_it_ends_the_next_time(store: Store) -> None:
    old = served_files(store)[0]
    data = store.read(old.name)
    forget_served(store, keys("ann"))
    expected = stored(store)
    store.write(old.name, data)
    assert stored(store) == expected
    assert forget_served(store, keys("ann")).files == 1
    assert stored(store) == expected
    assert not store.exists(old.name)


def test_a_damaged_file_is_named(store: Store) -> None:
    name = served_files(store)[0].name
    store.write(name, b"PAR1")
    with pytest.raises(CorruptArtefactError, match=name):
        forget_served(store, keys("ann"))


def test_a_redaction_takes_them_along_and_absence_proves_it(tmp_path: Path) -> None:
    store = redacting.build(tmp_path, parts=1)
    key = hash_id(redacting.user(1))
    table = lists("ann", redacting.user(1), None)
    file = write_served(store, new_segment(NOW), table)
    assert file.name in redacting.sighted(tmp_path, [redacting.user(1)])
    report = redacting.forget(tmp_path, [redacting.user(1), "ann"])
    assert report.held == (redacting.user(1), "ann")
    assert (report.served_files, report.served_lists) == (1, 2)
    assert stored(store) == [[(None, ["item-2"])]]
    redacting.erase(tmp_path)
    assert redacting.sighted(tmp_path, [redacting.user(1), "ann"]) == []
    assert key not in [user for rows in stored(store) for user, _ in rows]
