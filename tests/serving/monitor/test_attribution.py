"""Attribution against a count list by list and event by event; clicks as they are followed."""

import logging
import random
import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from tests.serving.support import Catalogue, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import Store, hash_id
from weir.contracts.bundles.variants import Comparison, challenges
from weir.contracts.served_lists import SERVED_SCHEMA, ServedFile, new_segment, write_served
from weir.serving.monitor import click_follower as clicks
from weir.serving.monitor.attribution import POSITIONS, Attribution
from weir.serving.monitor.click_follower import ClickFollower
from weir.serving.monitor.comparison import Comparing, Contest
from weir.serving.monitor.config import MonitorConfig
from weir.serving.monitor.metrics import AttributionMetrics, VariantMetrics

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


T = 1_700_000_000_000


def serve(
    store: Store,
    *items: str,
    segment: str | None = None,
    version: str = "v1",
    user: str | None = None,
    at: int = T,
) -> tuple[str, ServedFile]:
    """Write a list as a server does, in a file of its own; return its token."""
    segment = segment or new_segment(time.time() + 2)
    token = f"{version}/{segment}-{0:016x}"
    row = {
        "attribution_token": token,
        "query": 0,
        "user_key": None if user is None else hash_id(user),
        "served_at": at,
        "bundle_version": version,
        "fallback": False,
        "item_ids": list(items),
    }
    return token, write_served(store, segment, pa.Table.from_pylist([row], SERVED_SCHEMA))


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def follower(store: Store, registry: CollectorRegistry, delay: float = 0.0) -> ClickFollower:
    return ClickFollower(store, delay, AttributionMetrics(registry))


def outcome(registry: CollectorRegistry, name: str) -> float | None:
    return registry.get_sample_value("weir_attribution_clicks_total", {"outcome": name})


def test_lists_and_clicks_become_figures(store: Store, registry: CollectorRegistry, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    following = follower(store, registry)
    following.step()  # there is no store yet
    write_window(store, 0, [Event("ann", "item-1", T, (), 1, "v1/never")])
    following.step()
    token, _ = serve(store, "item-1", "item-2")
    serve(store, "item-2")
    write_window(store, 1, [Event("ann", "item-2", T, token=token), Event("bob", "item-9", T)])
    following.step()
    bundle = {"bundle": "v1"}
    assert registry.get_sample_value("weir_attribution_lists", bundle) == 2
    assert registry.get_sample_value("weir_attribution_click_through", bundle) == 0.5
    assert registry.get_sample_value("weir_attribution_coverage", bundle) == 2 / len(catalogue.ids)
    positions = [registry.get_sample_value("weir_attribution_position_click_through", {"position": n}) for n in "123"]
    assert positions == [0.0, 1.0, None]
    assert (outcome(registry, "joined"), outcome(registry, "not_kept")) == (1, 0)
    following.step()
    assert outcome(registry, "joined") == 1
    write_window(store, 2, [Event("ann", "item-1", T, token=token)])
    following.step()
    assert outcome(registry, "joined") == 2


def test_a_window_waits_for_the_lists_that_led_to_it(
    store: Store, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clicks, "_SECONDS_BETWEEN_LOOKS", 0.0)
    write_window(store, 0, [])
    following = follower(store, registry, delay=3600.0)
    following.step()
    segment = new_segment(time.time() + 2)
    write_window(store, 1, [Event("ann", "a", T, token=f"v1/{segment}-{0:016x}")])
    serve(store, "b")
    following.step()
    assert outcome(registry, "joined") == outcome(registry, "unknown_list") == 0
    serve(store, "a", segment=segment)
    following.delay_seconds = 0.0
    following.step()
    assert outcome(registry, "joined") == 1


def test_what_was_there_before_it_started_is_left_to_inspect(store: Store, registry: CollectorRegistry) -> None:
    token, _ = serve(store, "a", segment=new_segment(time.time() - 5))
    write_window(store, 0, [Event("ann", "a", T, token=token)])
    following = follower(store, registry)
    following.step()
    write_window(store, 1, [Event("ann", "a", T, token=token)])
    following.step()
    assert registry.get_sample_value("weir_attribution_lists", {"bundle": "v1"}) is None
    assert outcome(registry, "joined") == 0


def test_a_damaged_file_is_left_out_and_named_once(
    store: Store, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    write_window(store, 0, [])
    following = follower(store, registry)
    following.step()
    token, file = serve(store, "a")
    other, _ = serve(store, "b")
    store.write(file.name, b"PAR1")
    write_window(store, 1, [Event("ann", "a", T, token=token), Event("ann", "b", T, token=other)])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            following.step()
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [file.name in record.getMessage() for record in warnings] == [True]
    assert (outcome(registry, "joined"), outcome(registry, "unknown_list")) == (1, 1)


def test_an_unreadable_store_is_told_once_and_tried_again(
    store: Store, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_window(store, 0, [])
    following = follower(store, registry)
    following.step()
    token, _ = serve(store, "a")
    write_window(store, 1, [Event("ann", "a", T, token=token)])

    def fail(*_: object) -> None:
        raise OSError("the network is down")

    with monkeypatch.context() as patch:
        patch.setattr(clicks, "served_files", fail)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                following.step()
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    assert registry.get_sample_value("weir_attribution_errors_total") == 3
    following.step()
    assert outcome(registry, "joined") == 1


def test_lines_of_bundles_have_figures_of_their_own(store: Store, registry: CollectorRegistry) -> None:
    write_window(store, 0, [])
    following = follower(store, registry)
    following.step()
    token, _ = serve(store, "item-1", version="v1--new")
    serve(store, "item-1", version="v2--new")
    serve(store, "item-1")
    write_window(store, 1, [Event("ann", "item-1", T, token=token)])
    following.step()
    found = {
        line: [
            registry.get_sample_value(f"weir_attribution_variant_{name}", {"variant": line})
            for name in ("lists", "click_through")
        ]
        for line in ("main", "new")
    }
    assert found == {"main": [1, 0], "new": [2, 0.5]}


def test_a_challenger_is_compared_by_what_users_click(store: Store, registry: CollectorRegistry) -> None:
    """From files of lists and windows of events to the observations of two users, once."""
    write_window(store, 0, [])
    users = {challenges(hash_id(name), "new", 0.5): name for name in ("ann", "bob", "eve", "dan", "joe")}
    versions = {False: "v1", True: "v1--new"}
    comparing = Comparing(store, MonitorConfig(), Contest(("new",)), VariantMetrics(registry))
    following = ClickFollower(store, 0.0, AttributionMetrics(registry), comparing, compare_seconds=0.2)
    following.step()
    now = round(1000 * time.time())
    tokens = {
        side: serve(store, "item-1", version=versions[side], user=users[side], at=now)[0] for side in (False, True)
    }
    write_window(store, 1, [Event(users[True], "item-1", T, token=tokens[True])])
    following.step()
    assert Comparison.read(store, "new") is None
    time.sleep(0.5)
    for _ in range(2):
        following.step()
        found = Comparison.read(store, "new")
        assert found is not None
        assert {line: (one.count, one.total) for line, one in found.clicks.items()} == {"main": (1, 0), "new": (1, 1)}
