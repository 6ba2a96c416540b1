"""What the monitor counts of a challenger, against a real server: once each, across restarts, and by the roles."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tests.serving.process import ServerProcess
from tests.serving.support import HOUR_MS, Catalogue, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import CommitLog, Key, Store, hash_id
from weir.contracts.commit import CommitRef
from weir.contracts.comparison import Comparison
from weir.contracts.variants import CHAMPION, MAIN, crown, line_of, version_of
from weir.serving.client import RetrievalClient
from weir.serving.monitor.config import MonitorConfig
from weir.serving.monitor.loop import Monitor
from weir.serving.monitor.metrics import MonitorMetrics
from weir.serving.monitor.variants.clicks import Observation
from weir.serving.monitor.variants.comparing import Comparing, Contest
from weir.serving.monitor.variants.metrics import VariantMetrics

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
