"""The monitor's part in attribution, on a real store: when it joins what, and what it shows."""

import logging
import time

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from tests.serving.support import Catalogue, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import Store, hash_id
from weir.contracts.bundles.variants import Comparison, challenges
from weir.contracts.served_lists import SERVED_SCHEMA, ServedFile, new_segment, write_served
from weir.serving.monitor import clicks
from weir.serving.monitor.clicks import ClickFollower
from weir.serving.monitor.comparison import Comparing, Contest
from weir.serving.monitor.config import MonitorConfig
from weir.serving.monitor.metrics import AttributionMetrics, VariantMetrics

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
