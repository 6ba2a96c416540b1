"""One observation a user: which lists count, when, and what was clicked of them."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from weir.contracts import Key, hash_id
from weir.contracts.served import SERVED_SCHEMA
from weir.contracts.variants import challenges, version_of
from weir.serving.monitor.attribution import Click
from weir.serving.monitor.variants.clicks import Observation, Sides, UserClicks

SIDES = Sides("main", "new", 0.5)
SECONDS = 100.0
BEGIN = 1_800_000_000.0


def users_of(line: str, count: int) -> list[str]:
    names = (f"user-{number}" for number in range(1000))
    wanted = [name for name in names if challenges(hash_id(name), "new", 0.5) is (line == "new")]
    return wanted[:count]


ANN, ABE = users_of("main", 2)
BOB, BEA = users_of("new", 2)


def lists(*rows: tuple[str, str | None, float, str, list[str]]) -> pa.Table:
    """Lists by token, user, seconds since the beginning, line and items; the query is the place in the token's rows."""
    made, places = [], dict[str, int]()
    for token, user, at, line, items in rows:
        places[token] = places.get(token, -1) + 1
        made.append(
            {
                "attribution_token": token,
                "query": places[token],
                "user_key": None if user is None else hash_id(user),
                "served_at": datetime.fromtimestamp(BEGIN + at, UTC),
                "bundle_version": version_of("v1", line),
                "fallback": False,
                "item_ids": items,
            }
        )
    return pa.Table.from_pylist(made, SERVED_SCHEMA)


def click(token: str, user: str, item: str) -> Click:
    return Click(token, hash_id(item), hash_id(user))


def following(counted: set[Key] | None = None) -> UserClicks:
    known = counted or set()
    return UserClicks(SIDES, SECONDS, known.__contains__)


def test_a_user_is_one_observation_whatever_the_number_of_lists() -> None:
    clicks = following()
    clicks.show(lists(("a", ANN, 0, "main", ["x", "y"]), ("b", BOB, 1, "new", ["x", "y"])))
    clicks.show(lists(*((f"c{number}", ANN, 10 + number, "main", ["x"]) for number in range(3))))
    clicks.join([click("a", ANN, "y"), click("a", ANN, "y"), click("a", ANN, "x"), click("c1", ANN, "x")])
    assert clicks.settled(BEGIN + 2 * SECONDS) == []
    assert clicks.settled(BEGIN + 2 * SECONDS + 0.5) == [Observation(hash_id(ANN), "main", 0.5)]
    assert clicks.settled(BEGIN + 2 * SECONDS + 1.5) == [Observation(hash_id(BOB), "new", 0.0)]
    assert clicks.settled(BEGIN + 1e6) == []


def test_only_lists_of_the_first_seconds_count() -> None:
    clicks = following()
    clicks.show(lists(("a", ANN, 0, "main", ["x"]), ("b", ANN, SECONDS + 1, "main", ["x"])))
    clicks.join([click("b", ANN, "x")])
    assert clicks.settled(BEGIN + 1000) == [Observation(hash_id(ANN), "main", 0.0)]


def test_lists_of_the_other_side_and_of_nobody_do_not_count() -> None:
    """As in a call of several users, from a pinned bundle, or before the challenger was loaded."""
    clicks = following()
    clicks.show(lists(("a", ANN, 0, "new", ["x"]), ("b", BOB, 0, "main", ["x"]), ("c", None, 0, "main", ["x"])))
    assert clicks.settled(BEGIN + 1000) == []


@pytest.mark.parametrize("wrong", [("a", ABE, "x"), ("a", ANN, "z"), ("other", ANN, "x")])
def test_a_click_of_another_user_item_or_list_is_none(wrong: tuple[str, str, str]) -> None:
    clicks = following()
    clicks.show(lists(("a", ANN, 0, "main", ["x"])))
    clicks.join([click(*wrong)])
    assert clicks.settled(BEGIN + 1000) == [Observation(hash_id(ANN), "main", 0.0)]


def test_each_list_of_a_call_counts_for_its_own_user() -> None:
    clicks = following()
    clicks.show(lists(("a", BOB, 0, "new", ["x"]), ("a", BEA, 0, "new", ["x"])))
    clicks.join([click("a", BEA, "x")])
    found = {one.user: one.clicked for one in clicks.settled(BEGIN + 1000)}
    assert found == {hash_id(BOB): 0.0, hash_id(BEA): 1.0}


def test_who_has_been_counted_does_not_count_again() -> None:
    clicks = following({hash_id(ANN)})
    clicks.show(lists(("a", ANN, 0, "main", ["x"]), ("b", ABE, 0, "main", ["x"])))
    assert [one.user for one in clicks.settled(BEGIN + 1000)] == [hash_id(ABE)]
