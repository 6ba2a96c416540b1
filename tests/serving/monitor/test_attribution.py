"""Figures of attribution against a count list by list and event by event."""

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from weir.contracts import hash_id
from weir.contracts.served_lists import SERVED_SCHEMA, new_segment
from weir.serving.monitor.attribution import POSITIONS, Attribution

SECRET = "00112233445566778899aabbccddeeff"  # noqa: S105 - of a test


class World:
    """Segments of lists, and the events of a window."""

    def __init__(self, secret: str = "") -> None:
        self.secret, self.rows, self.events = secret, dict[str, list[dict[str, object]]](), list[tuple[object, ...]]()

    def segment(self) -> str:
        segment = new_segment(1_700_000_000 + len(self.rows))
        self.rows[segment] = []
        return segment

    def serve(
        self, segment: str, items: list[str], user: str | None = None, version: str = "v1", query: int = 0
    ) -> str:
        number = len(self.rows[segment]) if not query else len(self.rows[segment]) - query
        token = f"{version}/{segment}-{number:016x}"
        self.rows[segment].append(
            {
                "attribution_token": token,
                "query": query,
                "user_key": None if user is None else hash_id(user, self.secret),
                "served_at": 0,
                "bundle_version": version,
                "fallback": len(items) == 1,
                "item_ids": items,
            }
        )
        return token

    def click(self, token: str | None, item: str, user: str = "ann", label: int = 1) -> None:
        self.events.append((hash_id(user, self.secret), hash_id(item, self.secret), label, token))

    def lists(self, segment: str) -> pa.Table | None:
        return pa.Table.from_pylist(self.rows[segment], SERVED_SCHEMA) if segment in self.rows else None

    def window(self) -> pa.Table:
        users, items, labels, tokens = zip(*self.events, strict=True)
        self.events = []
        return pa.table(
            {
                "user_key": pa.array(users, pa.int64()),
                "item_key": pa.array(items, pa.int64()),
                "label": pa.array(labels, pa.int8()),
                "attribution_token": pa.array(tokens, pa.string()),
            }
        )

    def shown(self, kept: int | None = None) -> Attribution:
        attribution = Attribution(self.lists, self.secret, kept=kept)
        for segment in self.rows:
            lists = self.lists(segment)
            assert lists is not None
            attribution.show(segment, lists)
        return attribution


@pytest.mark.parametrize("secret", ["", SECRET])
def test_every_event_has_one_outcome(secret: str) -> None:
    world = World(secret)
    segment = world.segment()
    anns, anybodys = world.serve(segment, ["a", "b"], "ann"), world.serve(segment, ["b", "c"])
    world.click(anns, "b")
    world.click(anns, "b")
    world.click(anns, "b", user="bob")
    world.click(anns, "c")
    world.click(anybodys, "c", user="bob")
    world.click(anns, "a", label=-1)
    world.click(None, "a")
    world.click("v1/0123456789abcdef", "a")
    world.click("garbage", "a")
    world.click(f"v1/{segment}-00000000000000ff", "a")
    world.click(f"v1/{new_segment()}-0000000000000000", "a")
    attribution = world.shown()
    attribution.join(world.window())
    assert attribution.outcomes == {"joined": 2, "repeated": 1, "other_item": 2, "not_kept": 2, "unknown_list": 2}
    shown = attribution.bundles["v1"]
    assert (shown.lists, shown.clicked_lists, shown.click_through) == (2, 2, 1.0)
    assert shown.shown[:3].tolist() == [2, 2, 0]
    assert shown.clicked[:3].tolist() == [0, 2, 0]
    assert set(shown.items.tolist()) == {hash_id(item, secret) for item in "abc"}
    assert attribution.by_position() == [(2, 0), (2, 2)]


def test_a_click_finds_its_query_of_a_call_with_several() -> None:
    world = World()
    segment = world.segment()
    token = world.serve(segment, ["a", "b"], "ann")
    assert token == world.serve(segment, ["b", "a"], "bob", query=1) == world.serve(segment, ["c"], query=2)
    world.click(token, "a", user="bob")
    world.click(token, "c", user="bob")
    attribution = world.shown()
    attribution.join(world.window())
    shown = attribution.bundles["v1"]
    assert (shown.lists, shown.clicked_lists, shown.fallbacks) == (3, 2, 1)
    assert shown.clicked[:2].tolist() == [1, 1]


def test_figures_are_those_of_a_plain_count() -> None:
    rng, world = random.Random(5), World()
    lengths, clicks, clicked, lists = Counter[int](), Counter[int](), Counter[str](), Counter[str]()
    for _ in range(6):
        segment = world.segment()
        for _ in range(rng.randrange(1, 30)):
            version, length = rng.choice(["v1", "v2"]), rng.choice([0, 1, 5, 20, POSITIONS + 10])
            items = [f"item-{n}" for n in rng.sample(range(300), length)]
            token = world.serve(segment, items, version=version)
            lists[version] += 1
            lengths.update(range(length))
            chosen = rng.sample(range(length), min(length, rng.choice([0, 0, 1, 3])))
            for place in chosen:
                world.click(token, items[place], user=rng.choice("abc"))
            clicks.update(chosen)
            clicked[version] += bool(chosen)
    attribution = world.shown()
    attribution.join(world.window())
    for version in lists:
        shown = attribution.bundles[version]
        assert (shown.lists, shown.clicked_lists) == (lists[version], clicked[version])
        assert shown.click_through == clicked[version] / lists[version]
    total = sum(shown.shown for shown in attribution.bundles.values())
    assert np.array_equal(total, [lengths[place] for place in range(POSITIONS)])
    expected = [(lengths[place], clicks[place]) for place in range(POSITIONS) if lengths[place]]
    assert attribution.by_position() == expected


def test_only_the_newest_bundles_are_kept_and_lists_of_others_are_unknown() -> None:
    world = World()
    tokens = [world.serve(world.segment(), ["a"], version=f"v{number}") for number in range(4)]
    for token in tokens:
        world.click(token, "a")
    attribution = world.shown(kept=2)
    attribution.join(world.window())
    assert list(attribution.bundles) == ["v2", "v3"]
    assert attribution.outcomes == {"unknown_list": 2, "joined": 2}


def test_a_segment_that_was_never_counted_is_not_loaded() -> None:
    world = World()
    token = world.serve(world.segment(), ["a"])
    world.click(token, "a")

    def load(segment: str) -> pa.Table | None:
        raise AssertionError(f"{segment} is loaded")

    attribution = Attribution(load)
    attribution.join(world.window())
    assert attribution.outcomes == {"unknown_list": 1}
