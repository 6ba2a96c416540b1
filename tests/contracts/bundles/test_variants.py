"""Variants and their comparison: roles, the verdict in words, and its error rate under continuous looking."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.bundles.test_bundle_log import write
from weir.contracts import CorruptArtefactError, Key, Store, hash_id
from weir.contracts.base.statistics import Running
from weir.contracts.bundles.variants import (
    CHAMPION,
    MAIN,
    Champion,
    Comparison,
    Roles,
    VariantError,
    challenges,
    champions_log,
    crown,
    line_of,
    lines,
    log_of,
    log_of_version,
    roles_in,
    slot_of,
    variant_of,
    version_of,
)
from weir.contracts.verification import Kind, verify

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


USERS = [hash_id(f"user-{number}") for number in range(20_000)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def promoted(store: Store, variant: str, version: str = "0001") -> str:
    log = log_of(store, variant)
    name = version_of(version, variant)
    write(log, name, created_at=1.0)
    log.promote(name)
    return name


def test_each_line_has_bundles_of_its_own(store: Store) -> None:
    mine, its = promoted(store, MAIN), promoted(store, "new")
    assert (mine, its) == ("0001", "0001--new")
    assert log_of(store, MAIN).versions() == ["0001"]
    assert log_of(store, "new").versions() == ["0001--new"]
    assert log_of(store, "new").root == store
    assert line_of(store, "new").path("bundles/CURRENT") == store.path("variants/new/bundles/CURRENT")
    assert lines(store) == [MAIN, "new"]
    assert log_of_version(store, its).manifest(its).version == its
    assert verify(store).findings == []


def test_damage_in_a_line_is_found(store: Store) -> None:
    promoted(store, "new")
    path = Path(store.path("variants/new/bundles/0001--new/MANIFEST.json"))
    path.write_bytes(path.read_bytes()[:-3])
    assert [one.name for one in verify(store).findings] == ["variants/new/bundles/0001--new/MANIFEST.json"]


def test_a_broken_chain_of_a_line_is_found(store: Store) -> None:
    base = promoted(store, "new")
    log = log_of(store, "new")
    parent = log.manifest_and_ref(base)[1]
    delta = write(log, "0002--new", created_at=2.0, schema_version=2, parent=parent, base=base, depth=1)
    log.promote(delta.version)
    assert verify(store).findings == []
    assert [one.version for one in log.chain(delta)] == [base, delta.version]
    assert log.retire(keep=1) == []
    Path(store.path(f"variants/new/bundles/{base}/MANIFEST.json")).unlink()
    assert [(one.kind, one.name) for one in verify(store).findings if one.kind == Kind.MISSING] == [
        (Kind.MISSING, f"variants/new/bundles/{base}/MANIFEST.json")
    ]


@given(st.from_regex(r"\A[0-9]{4}-[0-9]{4}-[0-9a-f]{8}\Z"), st.from_regex(r"\A[a-z0-9]+(-[a-z0-9]+)*\Z"))
def test_a_version_tells_its_line(version: str, variant: str) -> None:
    assert variant_of(version_of(version, variant)) == variant
    assert variant_of(version) == MAIN


def test_the_variant_of_the_settings_challenges_until_it_is_the_champion(store: Store) -> None:
    promoted(store, MAIN)
    promoted(store, "new")
    assert roles_in(store, ()) == Roles(MAIN, None)
    assert roles_in(store, ("new",)) == Roles(MAIN, "new")
    assert crown(store, "new", "ann@shop", "better").beaten == (MAIN,)
    assert roles_in(store, ("new",)) == Roles("new", None)
    assert roles_in(store, ("new", "newer")) == Roles("new", "newer")
    assert champions_log(store).current() == "0001--new"
    crown(store, MAIN, "ann@shop", "it was a mistake")
    assert roles_in(store, ("new",)) == Roles(MAIN, None)
    assert Champion.read(store).beaten == ("new",)


def test_crowning_again_changes_nothing(store: Store) -> None:
    promoted(store, "new")
    first = crown(store, "new", "ann@shop", "better")
    assert crown(store, "new", "bob@shop", "again") == first == Champion.read(store)


def test_roles_that_are_not_clear_are_refused(store: Store) -> None:
    with pytest.raises(VariantError, match=r"a and b could all challenge main; one at a time may"):
        roles_in(store, ("a", "b"))
    promoted(store, "new")
    crown(store, "new", "ann@shop", "better")
    with pytest.raises(VariantError, match=r"CHAMPION\.json: new is served to all, but trainer\.variants has no such"):
        roles_in(store, ())


def test_a_line_without_a_bundle_is_not_crowned(store: Store) -> None:
    with pytest.raises(VariantError, match=r"variants/new/bundles: holds no promoted bundle of new"):
        crown(store, "new", "ann@shop", "better")
    assert not store.exists(CHAMPION)


def test_a_damaged_champion_is_named(store: Store) -> None:
    store.write(CHAMPION, b"{}")
    with pytest.raises(CorruptArtefactError, match=r"variants/CHAMPION\.json"):
        roles_in(store, ())


def test_the_split_is_stable_and_has_the_share() -> None:
    """Written down once: another hash would send users to the other side in the middle of a comparison."""
    assert [challenges(Key(user), "new", 0.5) for user in (1, 2, 3, 4, 5, 6, 7, 8)] == PINNED
    for share in (0.0, 0.1, 0.5, 1.0):
        assert np.mean([challenges(user, "new", share) for user in USERS]) == pytest.approx(share, abs=0.01)


def test_a_larger_share_keeps_the_users_of_a_smaller_one() -> None:
    assert all(challenges(user, "new", 0.6) for user in USERS if challenges(user, "new", 0.3))


def test_the_split_is_independent_of_other_splits() -> None:
    """Of an earlier challenger's, of shards of users, and of slots: within four standard errors of a half."""
    now = np.array([challenges(user, "new", 0.5) for user in USERS])
    others = [
        np.array([challenges(user, "old", 0.5) for user in USERS]),
        np.array([int(user) % 2 == 0 for user in USERS]),
        np.array([slot_of(user, "new", 2) == 0 for user in USERS]),
    ]
    for other in others:
        assert np.mean(now == other) == pytest.approx(0.5, abs=4 * 0.5 / len(USERS) ** 0.5)


PINNED = [True, False, False, False, True, True, False, False]
