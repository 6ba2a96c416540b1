from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.serving.support import Catalogue, write_bundle
from tests.weir.up.damage import DAMAGES, WINDOWS, named_nothing, whole_store
from weir.contracts import BundleLog, Store
from weir.contracts.bundle import Pin, Withdrawal
from weir.page.commits import NewestCommits
from weir.page.reader import Reader
from weir.page.tags import Tags
from weir.serving.client import RetrievalClient

FIRST, SECOND = "00000000-0000000001", "00000001-0000000002"


@pytest.fixture(scope="module")
def client() -> Iterator[RetrievalClient]:
    """A client of a server that is not there."""
    with RetrievalClient("127.0.0.1:1", timeout=0.2) as found:
        yield found


def reader_of(store: Store, client: RetrievalClient) -> Reader:
    return Reader(store, client, NewestCommits(store, lines=True), Tags(store))


DAMAGED = {name: damage for name, damage in DAMAGES.items() if damage is not named_nothing}
"""That CURRENT names nothing is the server's to say."""


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_part_is_named_and_the_others_are_still_seen(
    damage: Callable[[Store], str], tmp_path: Path, client: RetrievalClient
) -> None:
    store = whole_store(str(tmp_path))
    name = damage(store)
    seen = reader_of(store, client).read()
    (problem,) = seen.problems
    assert name in problem
    parts = {
        "commits": seen.log.cursor.sequence == WINDOWS,
        "bundles": seen.newest is not None,
        "CLOCK.json": seen.clock.replayed() == 1.0,
    }
    # CURRENT says which bundle is promoted, not which there are.
    lost = {name.partition("/")[0]} & set(parts) if name != "bundles/CURRENT" else set()
    assert {part for part, is_seen in parts.items() if not is_seen} == lost


def test_an_empty_store_without_a_server_has_nothing_and_no_problem(tmp_path: Path, client: RetrievalClient) -> None:
    seen = reader_of(Store(str(tmp_path)), client).read()
    assert (seen.newest, seen.held, seen.served, seen.recalls, seen.problems) == (None, None, None, (), ())
    assert seen.log.cursor.sequence == 0


def test_it_says_why_the_newest_bundle_is_held(tmp_path: Path, client: RetrievalClient) -> None:
    store = whole_store(str(tmp_path))
    bundles, reader = BundleLog(store), reader_of(store, client)
    assert reader.read().held is None
    made = write_bundle(store, SECOND, Catalogue.random(12), trained_sequence=WINDOWS - 1, promote=False)
    seen = reader.read()
    assert seen.newest == made
    assert seen.held is None, "it passed the gate, and is about to be promoted"
    bundles.commit(made.model_copy(update={"promoted": False, "verdict": "held: worse than before"}))
    reader = reader_of(store, client)
    assert reader.read().held == "held: worse than before"
    lost = {"version": SECOND, "fallback": FIRST, "window": "w", "sequence": 1, "cases": 9, "at": 0.0}
    bundles.withdraw(Withdrawal.model_validate(lost | {"verdict": "withdrawn: it lost recall"}))
    assert reader.read().held == "withdrawn: it lost recall"
    bundles.set_pin(Pin(version=FIRST, by="ann", at=0.0, why="a look at it"))
    assert "pinned to 00000000-0000000001 by ann" in str(reader.read().held)
