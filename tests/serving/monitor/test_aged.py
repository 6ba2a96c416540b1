"""Kept bundles against brute force: each has other vectors, so that each answers otherwise."""

import time

import numpy as np
import pytest

from tests.serving.support import HOUR_MS, Catalogue, write_bundle, write_window
from tests.serving.users import HISTORY_LENGTH, Event
from weir.contracts import BundleLog, CorruptArtefactError, Store, Withdrawal, hash_id
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.serving.monitor import aged
from weir.serving.monitor.aged import Judged, Sampling, judged

START = 1_700_000_000_000 // HOUR_MS * HOUR_MS
WINDOWS = 4
EVERYTHING = Sampling(events=1000, k=5)
CATALOGUES = [Catalogue.random(40, seed=seed) for seed in range(WINDOWS)]


def log_of(users: int = 12) -> list[list[Event]]:
    """Each user's events of all windows, with the true history of each; some skip windows, one item is negative."""
    random = np.random.default_rng(7)
    before: dict[str, list[str]] = {}
    windows = []
    for number in range(WINDOWS):
        made = []
        for place in range(40):
            user, item = f"user-{random.integers(users)}", f"item-{random.integers(40)}"
            label, known = (-1 if random.random() < 0.1 else 1), before.setdefault(user, [])
            at = START + number * HOUR_MS + place * 80_000
            made.append(Event(user, item, at, known[-HISTORY_LENGTH:], label))
            if label > 0:
                known.append(item)
        windows.append(made)
    return windows


LOG = log_of()


@pytest.fixture
def filled(store: Store) -> Store:
    """Four windows, and a bundle trained on each of the first three and all before it."""
    for number, events in enumerate(LOG):
        write_window(store, number, events)
        if number < WINDOWS - 1:
            newest = START + (number + 1) * HOUR_MS - 60_000
            write_bundle(store, f"v{number}", CATALOGUES[number], trained_sequence=number, max_event_ms=newest)
    return store


def known_at(user: str, ms: int) -> list[str]:
    """The last positives of a user before a moment, from the whole log."""
    return [e.item for events in LOG for e in events if (e.user, e.label) == (user, 1) and e.time_ms < ms][
        -HISTORY_LENGTH:
    ]


def truth(window: int, bundle: int, cut: int | None) -> list[bool]:
    """Whether brute force finds the next item, with histories up to the start of the window `cut`, or whole ones."""
    catalogue, found = CATALOGUES[bundle], []
    for event in LOG[window]:
        if event.label > 0:
            history = known_at(event.user, event.time_ms if cut is None else START + cut * HOUR_MS)
            top = catalogue.top(catalogue.user(history), 5, history) if history else catalogue.most_popular(5)
            found.append(event.item in top)
    return found


def test_answers_of_every_age_agree_with_brute_force(filled: Store) -> None:
    found = judged(filled, EVERYTHING)
    assert [one.window.sequence for one in found] == [1, 2, 3]
    for one in found:
        at = one.window.sequence
        expected = {}
        for age in range(1, at + 1):
            expected["bundle", age] = truth(at, at - age, None)
            expected["both", age] = truth(at, at - age, at - age + 1)
            expected["history", age] = truth(at, at - 1, at - age + 1)
        expected["history", 0] = truth(at, at - 1, None)
        assert {key: hits.tolist() for key, hits in one.hits.items()} == expected
        assert one.users.tolist() == [hash_id(e.user) for e in LOG[at] if e.label > 0]
    assert any(one.hits["bundle", 1].tolist() != one.hits["history", 1].tolist() for one in found)


def test_samples_and_ages_are_bounded(filled: Store) -> None:
    found = judged(filled, Sampling(windows=2, ages=2, events=7, k=5))
    assert [one.window.sequence for one in found] == [2, 3]
    assert {len(hits) for one in found for hits in one.hits.values()} == {7}
    assert max(age for one in found for _, age in one.hits) == 2
    again = judged(filled, Sampling(windows=2, ages=2, events=7, k=5))
    assert [comparable(one) for one in again] == [comparable(one) for one in found]


def comparable(one: Judged) -> tuple[object, ...]:
    return one.users.tolist(), {key: hits.tolist() for key, hits in one.hits.items()}


def test_bundles_that_were_not_served_are_not_asked(filled: Store) -> None:
    withdrawal = Withdrawal(
        version="v1", fallback="v0", window="w", sequence=2, cases=1, at=time.time(), verdict="rolled back"
    )
    BundleLog(filled).withdraw(withdrawal)
    found = judged(filled, EVERYTHING)
    assert [(one.window.sequence, sorted({age for aged, age in one.hits if aged == "bundle"})) for one in found] == [
        (1, [1]),
        (3, [1, 3]),
    ]


def test_bundles_that_retire_meanwhile_are_not_asked(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def when_one_has_gone(log: BundleLog, version: str, served: LoadedBundle | None) -> LoadedBundle:
        filled.remove("bundles/v1")
        return load_bundle(log, version, served=served)

    monkeypatch.setattr(aged, "load_bundle", when_one_has_gone)
    found = judged(filled, EVERYTHING)
    assert [(one.window.sequence, sorted({age for _, age in one.hits})) for one in found] == [
        (1, [0, 1]),
        (3, [0, 1, 2, 3]),
    ]


def test_a_damaged_bundle_is_named(filled: Store) -> None:
    filled.write("bundles/v1/vectors.npy", b"damaged")
    with pytest.raises(CorruptArtefactError, match=r"bundles/v1/vectors\.npy"):
        judged(filled, EVERYTHING)


def test_nothing_came_after_the_only_bundle(store: Store) -> None:
    write_window(store, 0, LOG[0])
    write_bundle(store, "v0", CATALOGUES[0], max_event_ms=START + HOUR_MS - 1)
    assert judged(store, EVERYTHING) == []
