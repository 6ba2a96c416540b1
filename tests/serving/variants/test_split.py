"""Which of two bundles answers a call."""

from itertools import pairwise

import pytest

from tests.serving.support import Catalogue, write_bundle
from weir.contracts import BundleLog, Store, hash_id
from weir.contracts.variants import challenges, line_of, log_of
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.bundle import LoadedBundle
from weir.serving.client import by_embedding, by_history, by_item, by_user
from weir.serving.loading import load_bundle
from weir.serving.variants.split import chosen, only

SHARE = 0.5
USERS = [f"user-{number}" for number in range(40)]


@pytest.fixture
def both(store: Store, catalogue: Catalogue) -> tuple[LoadedBundle, LoadedBundle]:
    write_bundle(store, "v1", catalogue)
    write_bundle(line_of(store, "new"), "v1--new", catalogue, variant="new")
    return load_bundle(BundleLog(store), "v1"), load_bundle(log_of(store, "new"), "v1--new")


def asked(both: tuple[LoadedBundle, LoadedBundle], *queries: pb.Query, version: str = "", share: float = SHARE) -> str:
    return chosen(pb.RetrieveRequest(queries=queries, bundle_version=version), *both, share).version


def test_users_are_split_by_their_key(both: tuple[LoadedBundle, LoadedBundle]) -> None:
    wanted = ["v1--new" if challenges(hash_id(user), "new", SHARE) else "v1" for user in USERS]
    assert [asked(both, by_user(user)) for user in USERS] == wanted
    assert set(wanted) == {"v1", "v1--new"}
    assert {asked(both, by_user(user), share=0) for user in USERS} == {"v1"}
    assert {asked(both, by_user(user), share=1) for user in USERS} == {"v1--new"}


def test_the_first_user_of_a_call_decides_for_all_of_it(both: tuple[LoadedBundle, LoadedBundle]) -> None:
    """Whatever comes before and after: an answer names one bundle."""
    for first, second in pairwise(USERS):
        alone = asked(both, by_user(first))
        assert asked(both, by_history(["item-1"]), by_user(first), by_user(second)) == alone


def test_calls_without_a_user_are_the_champions(both: tuple[LoadedBundle, LoadedBundle]) -> None:
    assert asked(both, by_history(["item-1"]), by_item("item-2"), by_embedding([0.0] * 8), share=1) == "v1"
    assert asked(both, share=1) == "v1"


def test_vectors_are_the_champions_whoever_asks(both: tuple[LoadedBundle, LoadedBundle]) -> None:
    """They may come back as queries without their user."""
    assert chosen(pb.EmbedRequest(queries=[by_user("ann")]), *both, 1.0).version == "v1"


def test_a_pin_overrides_the_split(both: tuple[LoadedBundle, LoadedBundle]) -> None:
    for user in USERS:
        assert asked(both, by_user(user), version="v1") == "v1"
        assert asked(both, by_user(user), version="v1--new") == "v1--new"
    assert chosen(pb.EmbedRequest(bundle_version="v1--new"), *both, 0.0).version == "v1--new"
    # Neither: the request is refused later on, with the champion's version.
    assert asked(both, by_user("ann"), version="v0", share=1) == "v1"


def test_with_one_bundle_there_is_no_choice(both: tuple[LoadedBundle, LoadedBundle]) -> None:
    assert only(pb.RetrieveRequest(bundle_version="v9"), both[0]) is both[0]
