"""Lines of bundles: where they lie, who plays which role, and who is answered from which."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.test_bundle import write
from weir.contracts import CorruptArtefactError, Key, Store, hash_id
from weir.contracts.variants import (
    CHAMPION,
    MAIN,
    Champion,
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
