"""Which list of a call an event joins, by token."""

import pyarrow as pa
import pytest

from weir.contracts import hash_id
from weir.contracts.served import SERVED_SCHEMA
from weir.contracts.served_lists import ServedList, joined_list, lists_by_token

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
