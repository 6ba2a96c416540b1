"""Served lists of forgotten users go, those of others stay as they are."""

from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipelines import redacting
from weir.contracts import CorruptArtefactError, Store, UserKeys, hash_id
from weir.contracts.served import SERVED_SCHEMA, new_segment, read_served, served_files, write_served
from weir.contracts.verification import verify
from weir.pipelines.forgotten import Forgotten
from weir.pipelines.served_lists import forget_served

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
