"""Comparison of variants: one observation a user, by lists, clicks and paired recall."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.serving.process import ServerProcess
from tests.serving.support import HOUR_MS, Catalogue, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import CommitLog, Key, Store, hash_id
from weir.contracts.base.models import CommitRef
from weir.contracts.bundles.variants import CHAMPION, MAIN, Comparison, challenges, crown, line_of, version_of
from weir.contracts.served_lists import SERVED_SCHEMA
from weir.serving.client import RetrievalClient, RetrievalError
from weir.serving.monitor.attribution import Click
from weir.serving.monitor.comparison import (
    Comparing,
    Contest,
    CountedUsers,
    Observation,
    Pair,
    PairedHits,
    Sides,
    UserClicks,
    ask_both,
)
from weir.serving.monitor.config import MonitorConfig
from weir.serving.monitor.loop import Monitor
from weir.serving.monitor.metrics import MonitorMetrics, VariantMetrics
from weir.serving.monitor.recall import Example

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


T = 1_700_000_000_000 // HOUR_MS * HOUR_MS
CONTEST = Contest(("new",))
GOOD, BAD = Catalogue.random(seed=0), Catalogue.random(seed=1)


def comparing(store: Store, contest: Contest = CONTEST, **config: object) -> tuple[Comparing, CollectorRegistry]:
    registry = CollectorRegistry()
    settings = MonitorConfig.model_validate({"k": [5, 10, 20], **config})
    return Comparing(store, settings, contest, VariantMetrics(registry)), registry


def write_both(store: Store, trained: int = 0) -> None:
    for variant, catalogue in ((MAIN, BAD), ("new", GOOD)):
        name = version_of(f"v{trained}", variant)
        write_bundle(line_of(store, variant), name, catalogue, variant=variant, trained_sequence=trained)


def write_events(store: Store, sequence: int, count: int = 60) -> None:
    """Events of 20 users that the challenger guesses, and the champion does not."""
    random, events = np.random.default_rng(sequence), []
    for number in range(count):
        history = [GOOD.ids[row] for row in random.integers(0, 200, 3)]
        item = GOOD.top(GOOD.user(history), 5, history)[number % 5]
        events.append(Event(f"user-{number % 20}", item, T + sequence * HOUR_MS + number, history))
    write_window(store, sequence, events)


@contextmanager
def monitoring(store: Store, made: Comparing, target: str) -> Iterator[Monitor]:
    settings = made.config.model_copy(update={"target": target})
    with RetrievalClient(target, timeout=5) as client:
        yield Monitor(store, settings, client, MonitorMetrics(CollectorRegistry()), made)


def named_items(store: Store) -> None:
    """Let every item have a name: histories hold keys."""
    write_window(store, 0, [Event("all", item, T + 1) for item in GOOD.ids])


def test_a_better_challenger_is_found_and_every_window_counts_once(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    named_items(store)
    write_both(store)
    for sequence in range(1, 4):
        write_events(store, sequence)
    with ServerProcess(store, variants=("new",)) as server, caplog.at_level(logging.INFO):
        server.said("serving bundle v0--new")
        server.serving("v0")
        for _ in range(2):
            # The second monitor is one that was started again.
            made, registry = comparing(store)
            with monitoring(store, made, server.target) as monitor:
                monitor.step()
        found = Comparison.read(store, "new")
        assert found is not None
        assert (found.champion, found.k, found.sequence, found.windows) == (MAIN, 10, 3, 3)
        assert found.differences.count == found.hits["new"].count == 3 * 20
        assert found.measured("recall").word == "better"
        assert found.measured("recall").challenger == 1.0
        assert "better: recall@10 as served of new is 1.0000, of main 0.0" in caplog.text
        verdict = registry.get_sample_value("weir_variant_verdict", {"challenger": "new", "measure": "recall"})
        assert verdict is None or verdict == 1
        write_events(store, 4)
        with monitoring(store, made, server.target) as monitor:
            monitor.step()
        again = Comparison.read(store, "new")
    assert again is not None
    assert (again.sequence, again.differences.count) == (4, 4 * 20)
    assert registry.get_sample_value("weir_variant_verdict", {"challenger": "new", "measure": "recall"}) == 1


def test_windows_that_one_of_them_was_trained_on_do_not_count(store: Store) -> None:
    named_items(store)
    write_both(store, trained=1)
    for sequence in (1, 2):
        write_events(store, sequence)
    with ServerProcess(store, variants=("new",)) as server:
        server.said("serving bundle v1--new")
        server.serving("v1")
        with monitoring(store, comparing(store)[0], server.target) as monitor:
            monitor.step()
    found = Comparison.read(store, "new")
    assert found is not None
    assert (found.sequence, found.windows, found.differences.count) == (2, 1, 20)
    assert found.skipped["trained"] == 60 + 200  # the window of names, too


@pytest.mark.parametrize("new", [0, 2])
def test_a_comparison_on_lost_windows_starts_again(store: Store, new: int, caplog: pytest.LogCaptureFixture) -> None:
    write_events(store, 0)
    made, _ = comparing(store)
    assert made.sides is not None
    log = CommitLog(store)
    counted = Comparison(champion=MAIN, challenger="new", alpha=0.05, k=10, started_at=1.0, sequence=0, windows=1)
    there = CommitRef(number=0, checksum=log.at(1).checksum)
    counted.model_copy(update={"commit": there}).write(store)
    made, _ = comparing(store)
    assert made.sides is not None
    assert made._comparison is not None
    assert made._comparison.windows == 1
    store.remove("commits/HEAD")
    store.remove(CommitLog.name(0))
    for sequence in range(new):
        write_events(store, sequence, count=30)
    made, _ = comparing(store)
    assert made.sides is not None
    assert made._comparison is not None
    assert (made._comparison.windows, made._comparison.sequence) == (0, -1)
    assert "the comparison starts again" in caplog.text


def test_a_challenger_without_a_bundle_is_waited_for(store: Store) -> None:
    named_items(store)
    write_bundle(store, "v0", BAD)
    write_events(store, 1)
    with ServerProcess(store, variants=("new",)) as server:
        server.serving("v0")
        with monitoring(store, comparing(store)[0], server.target) as monitor:
            monitor.step()
    found = Comparison.read(store, "new")
    assert found is not None
    assert (found.windows, found.skipped) == (0, {"not_loaded": 260})


def test_clicks_of_a_user_count_once_across_restarts(store: Store) -> None:
    made, _ = comparing(store)
    ann, bob = hash_id("ann"), hash_id("bob")
    assert made.sides is not None
    made.count([Observation(ann, MAIN, 0.25), Observation(bob, "new", 1.0)])
    made, _ = comparing(store)
    assert made.sides is not None
    assert made.is_counted(ann)
    assert not made.is_counted(Key(99))
    made.count([Observation(ann, MAIN, 1.0), Observation(Key(99), MAIN, 0.75)])
    found = Comparison.read(store, "new")
    assert found is not None
    assert (found.clicks[MAIN].count, found.clicks[MAIN].total) == (2, 1.0)
    assert (found.clicks["new"].count, found.clicks["new"].total) == (1, 1.0)


def test_without_a_challenger_nothing_is_kept_or_shown(store: Store) -> None:
    made, registry = comparing(store, Contest())
    assert made.sides is None
    made.count([Observation(Key(1), MAIN, 1.0)])
    assert Comparison.read(store, "new") is None
    assert registry.get_sample_value("weir_variant_verdict", {"challenger": "new", "measure": "recall"}) is None


def test_a_comparison_ends_with_the_promotion(store: Store) -> None:
    write_both(store)
    made, registry = comparing(store)
    made.count([Observation(Key(1), MAIN, 1.0)])
    labels = {"challenger": "new", "measure": "clicks"}
    assert registry.get_sample_value("weir_variant_units", labels) == 1
    crown(store, "new", "ann@shop", "better")
    assert made.sides is None
    assert registry.get_sample_value("weir_variant_units", labels) is None
    found = Comparison.read(store, "new")
    assert found is not None
    assert found.clicks[MAIN].count == 1


def test_another_cutoff_is_another_comparison_and_another_level_is_not(store: Store) -> None:
    made, _ = comparing(store)
    made.count([Observation(Key(1), MAIN, 1.0)])
    made, _ = comparing(store, compare_alpha=0.01)
    made.count([Observation(Key(2), MAIN, 1.0)])
    found = Comparison.read(store, "new")
    assert found is not None
    assert (found.alpha, found.clicks[MAIN].count) == (0.01, 2)
    made, _ = comparing(store, k=[5])
    made.count([Observation(Key(3), MAIN, 1.0)])
    found = Comparison.read(store, "new")
    assert found is not None
    assert (found.k, found.clicks[MAIN].count) == (5, 1)


def test_damage_is_reported_once_and_stops_nothing(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.write("variants/new/COMPARISON.json", b"{}")
    made, _ = comparing(store)
    assert made.sides is not None
    assert "the comparison starts again" in caplog.text
    store.write(CHAMPION, b"{}")
    assert made.sides is None
    assert made.sides is None
    assert caplog.text.count("nothing is compared") == 1


KEYS = st.lists(st.integers(-(2**63), 2**63 - 1).map(Key), max_size=50)


@given(KEYS)
def test_who_is_counted_survives_a_restart(users: list[Key]) -> None:
    counted = CountedUsers("new")
    for user in users:
        counted.add(user)
    again = CountedUsers.decode("new", counted.encode())
    assert all(user in again for user in users)
    again.add(Key(7))
    assert Key(7) in again


def test_few_others_share_a_slot() -> None:
    """Of 10,000 counted users, fewer than 2 % of others are left out."""
    counted = CountedUsers("new")
    for number in range(10_000):
        counted.add(hash_id(f"user-{number}"))
    others = [hash_id(f"other-{number}") for number in range(10_000)]
    assert sum(other in counted for other in others) < 200
    assert sum(other in CountedUsers.decode("new", "") for other in others) == 0


def test_it_is_small_and_differs_by_challenger() -> None:
    counted = CountedUsers("new")
    users = [hash_id(f"user-{number}") for number in range(1000)]
    for user in users:
        counted.add(user)
    assert len(counted.encode()) < 10_000
    other = CountedUsers.decode("newer", counted.encode())
    assert sum(user in other for user in users) < 50


K = 5
OLD, NEW = Catalogue.random(seed=0), Catalogue.random(seed=1)
PAIR: Pair = ("v1", "v1--new")


@contextmanager
def serving_both(store: Store) -> Iterator[RetrievalClient]:
    for variant, catalogue in ((MAIN, OLD), ("new", NEW)):
        write_bundle(line_of(store, variant), version_of("v1", variant), catalogue, variant=variant)
    with ServerProcess(store, variants=("new",)) as server, RetrievalClient(server.target) as client:
        server.said("serving bundle v1--new")
        server.serving("v1")
        assert client.info().loaded == (("main", "v1"), ("new", "v1--new"))
        yield client


def examples(count: int) -> list[Example]:
    random = np.random.default_rng(0)
    made = []
    for number in range(count):
        history = [OLD.ids[row] for row in random.integers(0, 200, 3)]
        item = OLD.top(OLD.user(history), 10, history)[number % 10]
        made.append(Example(item, hash_id(item), history, 0, history, Key(number // 3)))
    return made


def test_hits_agree_with_brute_force_by_user(store: Store) -> None:
    events = examples(30)
    with serving_both(store) as client:
        found = ask_both(client, events, K, batch=7, pair=lambda: PAIR)
    assert not found.skipped
    wanted = [[one.item in each.top(each.user(one.history), K, one.history) for each in (OLD, NEW)] for one in events]
    assert np.allclose(found.means(), np.reshape(wanted, (10, 3, 2)).mean(axis=1))


def test_a_version_that_is_gone_skips_its_events_and_no_more(store: Store) -> None:
    pairs = iter([PAIR, ("v1", "v0--new"), ("v0", "v1--new"), "trained", PAIR])
    with serving_both(store) as client:
        found = ask_both(client, examples(25), K, batch=5, pair=lambda: next(pairs))
    assert found.skipped == {"swapped": 10, "trained": 5}
    assert sum(map(len, found.hits.values())) == 10


def test_without_events_there_are_no_means() -> None:
    assert PairedHits().means().shape == (0, 2)


def test_other_errors_are_the_callers(store: Store) -> None:
    with RetrievalClient("127.0.0.1:1", 0.5) as client, pytest.raises(RetrievalError):
        ask_both(client, examples(2), K, batch=5, pair=lambda: PAIR)
