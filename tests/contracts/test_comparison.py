"""The verdict on a challenger: from the evidence, in words, and how often it is wrong under continuous looking."""

from pathlib import Path

import numpy as np
import pytest

from weir.contracts import Store
from weir.contracts.comparison import Comparison
from weir.contracts.confidence import Running

ALPHA = 0.05
RUNS = 100


def of_recall(champion: np.ndarray, challenger: np.ndarray) -> Comparison:
    """What is kept of the mean hits (n,) of users within windows."""
    hits = {"main": Running().add(champion), "new": Running().add(challenger)}
    differences = Running().add((challenger - champion + 1) / 2)
    return Comparison(champion="main", challenger="new", hits=hits, differences=differences)


def of_clicks(champion: np.ndarray, challenger: np.ndarray) -> Comparison:
    clicks = {"main": Running().add(champion), "new": Running().add(challenger)}
    return Comparison(champion="main", challenger="new", clicks=clicks)


def test_a_clear_difference_gets_a_verdict_with_its_sign() -> None:
    random = np.random.default_rng(0)
    low, high = ((random.random(3000) < share).astype(float) for share in (0.1, 0.3))
    for made in (of_recall, of_clicks):
        measure = "recall" if made is of_recall else "clicks"
        assert made(low, high).measured(measure).word == "better"
        assert made(high, low).measured(measure).word == "worse"
        assert made(low[:20], high[:20]).measured(measure).word == "not yet"


def test_nothing_seen_is_no_verdict() -> None:
    nothing = Comparison(champion="main", challenger="new")
    for measure in ("recall", "clicks"):
        found = nothing.measured(measure)
        assert (found.word, found.interval, found.units) == ("not yet", (-1.0, 1.0), 0)


def test_means_and_differences_agree() -> None:
    champion, challenger = np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.5, 0.5])
    for found in (
        of_recall(champion, challenger).measured("recall"),
        of_clicks(champion, challenger).measured("clicks"),
    ):
        assert found.champion == pytest.approx(0.5)
        assert found.challenger == pytest.approx(2 / 3)
        assert found.interval.low < 2 / 3 - 0.5 < found.interval.high


def test_the_sentence_says_all_of_it() -> None:
    random = np.random.default_rng(0)
    found = of_recall(*((random.random(3000) < share).astype(float) for share in (0.1, 0.3)))
    low, high = found.measured("recall").interval
    assert found.sentence("recall").startswith("better: recall@20 as served of new is 0.")
    assert f"the difference is from {low:+.4f} to {high:+.4f}, at any look with probability 0.95, on 3,000" in (
        found.sentence("recall")
    )


def test_it_is_stored_whole(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert Comparison.read(store, "new") is None
    found = of_clicks(np.array([0.25]), np.array([0.75, 1.0]))
    found.write(store)
    assert Comparison.read(store, "new") == found


def test_users_who_differ_cause_no_false_verdict_on_recall() -> None:
    """Both bundles are equal, and a user's ten events of a window share their luck: at every window one looks.

    The naive interval, over events and at each look by itself, calls one of the two better in most of the runs.
    """
    random, wrong, naive = np.random.default_rng(2), 0, 0
    for _ in range(RUNS):
        differences = random.choice([-1.0, 0.0, 1.0], p=[0.1, 0.8, 0.1], size=(40, 40))
        running, called = Running(), False
        for window in differences:
            running = running.add((window + 1) / 2)
            found = Comparison(champion="main", challenger="new", alpha=ALPHA, differences=running)
            called = called or found.measured("recall").word != "not yet"
        wrong += called
        events = np.repeat(differences.ravel(), 10)
        counts = np.arange(1, len(events) + 1)
        means = np.cumsum(events) / counts
        errors = np.sqrt(np.maximum(np.cumsum(events**2) / counts - means**2, 1e-12) / counts)
        naive += bool((np.abs(means) > 1.96 * errors)[399::400].any())
    assert wrong / RUNS <= ALPHA
    assert naive / RUNS > 10 * ALPHA


def test_heavy_users_cause_no_false_verdict_on_clicks() -> None:
    """No bundle is better, but a few users click on everything and come often: each counts once.

    The naive comparison of all lists takes the side that has more of them for better.
    """
    random, wrong, naive = np.random.default_rng(3), 0, 0
    for _ in range(RUNS):
        users = 600
        habit = np.where(random.random(users) < 0.05, 0.9, 0.1)
        lists = np.where(habit > 0.5, 50, 2)
        clicked = random.binomial(lists, habit)
        side = random.random(users) < 0.5
        called = False
        for seen in range(50, users + 1, 50):
            shares, sides = (clicked / lists)[:seen], side[:seen]
            found = of_clicks(shares[~sides], shares[sides])
            called = called or found.measured("clicks").word != "not yet"
        wrong += called
        rates = [clicked[one].sum() / lists[one].sum() for one in (side, ~side)]
        error = sum(rate * (1 - rate) / lists[one].sum() for rate, one in zip(rates, (side, ~side), strict=True)) ** 0.5
        naive += abs(rates[0] - rates[1]) > 1.96 * error
    assert wrong / RUNS <= ALPHA
    assert naive / RUNS > 5 * ALPHA
