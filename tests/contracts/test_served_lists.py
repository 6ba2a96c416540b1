"""Served lists: their files, and the list of a call that an event joins by its token."""

import random
import time

import pyarrow as pa
import pytest

from weir.contracts import CorruptArtefactError, Store, hash_id
from weir.contracts.served_lists import (
    SERVED_SCHEMA,
    ServedFile,
    ServedList,
    hour_of,
    joined_list,
    lists_by_token,
    new_segment,
    read_segment,
    read_served,
    segment_of,
    served_files,
    served_hours,
    served_token,
    write_served,
)
from weir.contracts.verification import Kind, verify

SECRET = "00112233445566778899aabbccddeeff"  # noqa: S105 - of a test


def served(token: str, query: int, items: list[str], user: int | None) -> dict[str, object]:
    values = [token, query, user, 0, "v1", False, items]
    return dict(zip(SERVED_SCHEMA.names, values, strict=True))


@pytest.mark.parametrize("secret", ["", SECRET])
def test_lists_are_found_by_token_with_the_keys_of_the_store(secret: str) -> None:
    rows = [served("t", 0, ["a", "b"], 7), served("other", 0, ["c"], 7), served("t", 1, ["c"], None)]
    found = lists_by_token(pa.Table.from_pylist(rows, SERVED_SCHEMA), {"t", "no such token"}, secret)
    a, b, c = (hash_id(item, secret) for item in "abc")
    assert dict(found) == {"t": [ServedList("v1", 0, 7, [a, b]), ServedList("v1", 1, None, [c])]}


def test_an_event_joins_the_first_list_that_holds_its_item_and_is_its_users() -> None:
    anns, bobs, anybodys = (ServedList("v1", n, user, [1, 2]) for n, user in enumerate([7, 8, None]))
    assert joined_list([anns, bobs, anybodys], 8, 2) is bobs
    assert joined_list([anns, bobs, anybodys], 9, 2) is anybodys
    assert joined_list([anns, bobs], 9, 2) is None
    assert joined_list([anns, bobs, anybodys], 8, 3) is None


NOW = 1_700_000_000
SEGMENT = "20231114T221320Z-f0ceea1c"
"""As `new_segment(NOW)` makes them; always the same, since it is part of the names of tests."""


def lists(count: int, user: int | None = 7) -> pa.Table:
    rows = [
        {
            "attribution_token": f"v1/{SEGMENT}-{n:016x}",
            "query": 0,
            "user_key": user,
            "served_at": NOW * 1000,
            "bundle_version": "v1",
            "fallback": False,
            "item_ids": [f"item-{n}", "ä"],
        }
        for n in range(count)
    ]
    return pa.Table.from_pylist(rows, SERVED_SCHEMA)


@pytest.fixture
def store(tmp_path: object) -> Store:
    return Store(f"{tmp_path}/store")


def test_what_is_written_is_read_by_segment_and_by_hour(store: Store) -> None:
    file = write_served(store, SEGMENT, lists(3))
    assert file.name.startswith("served/20231114T22/20231114T221320Z-")
    assert ServedFile.of(file.name) == file
    assert served_files(store) == served_files(store, hour_of(NOW)) == [file]
    assert served_files(store, hour_of(NOW + 3600)) == []
    assert served_hours(store) == {"20231114T22": "served/20231114T22"}
    assert read_segment(store, SEGMENT).equals(lists(3))
    assert read_served(store, file, ["user_key"]).column_names == ["user_key"]
    assert read_segment(store, new_segment(NOW)) is None


def test_the_file_with_fewer_rows_is_read_while_both_are_there(store: Store) -> None:
    whole, less = write_served(store, SEGMENT, lists(12)), write_served(store, SEGMENT, lists(2))
    assert served_files(store) == [less]
    assert read_segment(store, SEGMENT).num_rows == 2
    store.remove(less.name)
    assert served_files(store) == [whole]
    store.remove(whole.name)
    assert read_served(store, whole) is None


@pytest.mark.parametrize(
    "token",
    [
        *("", "v1", "v1/0123456789abcdef", f"v1/{SEGMENT}", f"v1/{SEGMENT}-0123456789ABCDEF", f"v1/../{SEGMENT}-12"),
        f"v1/{SEGMENT}-0123456789abcdef/", f"v1/{SEGMENT}-0123456789abcdef\n", "v1/*-0123456789abcdef",
    ],
)  # fmt: skip
def test_tokens_from_outside_name_no_file(token: str) -> None:
    assert segment_of(token) is None


def test_a_token_says_where_its_lists_are() -> None:
    assert segment_of(served_token("a/b", SEGMENT, "0123456789abcdef")) == SEGMENT
    assert served_token("v1", "", "0123456789abcdef") == "v1/0123456789abcdef"


def test_every_flipped_bit_cut_or_swap_is_refused_and_named_by_verify(store: Store) -> None:
    rng, segments = random.Random(1), [new_segment(NOW + n) for n in range(2)]
    first, second = (write_served(store, segment, lists(5 + n)) for n, segment in enumerate(segments))
    whole = {file.name: store.read(file.name) for file in (first, second)}
    assert verify(store).findings == []
    assert verify(store).files == 2
    damages = [whole[second.name], whole[first.name][:-1], b""]
    for _ in range(20):
        data = bytearray(whole[first.name])
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        damages.append(bytes(data))
    for damaged in damages:
        store.write(first.name, damaged)
        with pytest.raises(CorruptArtefactError, match=first.name):
            read_served(store, first)
        assert [(one.kind, one.name) for one in verify(store).findings] == [(Kind.DAMAGED, first.name)]


def test_a_name_that_says_another_number_of_rows_is_refused(store: Store) -> None:
    file = write_served(store, SEGMENT, lists(2))
    other = file._replace(name=file.name.replace("-000000002-", "-000000003-"), rows=3)
    store.write(other.name, store.read(file.name))
    with pytest.raises(CorruptArtefactError, match="has 2 rows, its name says 3"):
        read_served(store, other)


def test_segments_begin_with_their_moment() -> None:
    assert new_segment().startswith(hour_of(time.time())[:8])
    assert new_segment(NOW) != new_segment(NOW)
