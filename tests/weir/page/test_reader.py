""""""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.pipelines import redacting
from tests.serving.support import Catalogue, write_bundle
from tests.weir.up.damage import DAMAGES, WINDOWS, named_nothing, whole_store
from weir.contracts import BundleLog, EventClock, Store, WindowLog, WindowManifest
from weir.contracts.bundles.bundle_log import Pin, Withdrawal
from weir.page.reader import ItemFeatures, NewestCommits, Reader
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.serving.client import RetrievalClient
from weir.store_status import StoreStatus

FIRST, SECOND = "00000000-0000000001", "00000001-0000000002"


@pytest.fixture(scope="module")
def client() -> Iterator[RetrievalClient]:
    """A client of a server that is not there."""
    with RetrievalClient("127.0.0.1:1", timeout=0.2) as found:
        yield found


def reader_of(store: Store, client: RetrievalClient) -> Reader:
    return Reader(store, client, NewestCommits(store, lines=True), ItemFeatures(store))


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


def write(log: Path, part: int) -> None:
    """Add ten events of ten minutes, and a broken line."""
    lines = [
        json.dumps({"user_id": "ann", "item_id": f"i{n}", "timestamp": 1_700_000_000 + 6000 * part + 60 * n})
        for n in range(10)
    ]
    (log / f"part-{part}.jsonl").write_text("\n".join([*lines, f'{{"user_id": "ann", broken {part}']) + "\n")


class Followed:
    """The newest commits of a store, as its status follows them."""

    def __init__(self, store: Store, *, lines: bool) -> None:
        self.status, self.newest = StoreStatus(store), NewestCommits(store, lines)

    def catch_up(self) -> list[WindowManifest]:
        commits = self.status.catch_up()
        panes = self.status.panes_of(commits)
        self.newest.add(commits, panes)
        return panes


def test_commits_are_taken_in_as_they_come_and_all_at_once_alike(tmp_path: Path) -> None:
    store, log = Store(str(tmp_path / "store")), tmp_path / "log"
    log.mkdir()
    pipeline = PipelineConfig(log=str(log), metrics_port=0)
    followed, blind = Followed(store, lines=True), Followed(store, lines=False)
    assert followed.catch_up() == []
    for part in range(3):
        write(log, part)
        ingest(store, pipeline, registry=CollectorRegistry())
        new = followed.catch_up()
        assert new == WindowLog(store).committed()[-len(new) :]
        assert followed.catch_up() == []
        blind.catch_up()
        fresh = Followed(store, lines=True)
        fresh.catch_up()
        assert (fresh.status.log, fresh.newest) == (followed.status.log, followed.newest)
        letters = followed.newest.letters
        assert [f"broken {at}" in letter["raw"] for at, letter in enumerate(letters)] == [True] * (part + 1)
    assert followed.status.log.counts.events == 30
    assert followed.status.log.dead == 3
    assert not blind.newest.letters
    newest = followed.newest
    last = newest.panes[-1]
    assert newest.committed_at(last.sequence) == last.committed_at
    assert newest.committed_at(last.sequence + 1) is None
    seconds = newest.seconds_to_commit(EventClock.of(store))
    assert seconds is not None
    assert seconds > 0


def test_lines_are_no_longer_shown_once_a_user_is_forgotten(tmp_path: Path) -> None:
    redacting.build(tmp_path)
    followed = Followed(redacting.store_of(tmp_path), lines=True)
    followed.catch_up()
    assert any(redacting.user(1) in letter["raw"] for letter in followed.newest.letters)
    redacting.forget(tmp_path, [redacting.user(1)])
    followed.catch_up()
    fresh = Followed(redacting.store_of(tmp_path), lines=True)
    fresh.catch_up()
    for shown in (followed, fresh):
        assert not any(redacting.user(1) in letter["raw"] for letter in shown.newest.letters)


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]), st.lists(st.sampled_from(["jazz", "dub"]), unique=True), st.integers(0, 9)
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=5)
@given(ROWS)
def test_an_item_has_the_newest_values_that_the_log_gave_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, list[str], int]]
) -> None:
    folder: Path = tmp_path_factory.mktemp("tags")
    lines = [
        {"user_id": "u", "item_id": item, "timestamp": 1_700_000_000 + 3600 * at, "genre": genre, "price": price}
        for at, (item, genre, price) in enumerate(rows)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = {"log": str(folder / "log.jsonl"), "metrics_port": 0, "window_seconds": 3600}
    features = {"item_features": {"categorical": ["genre"], "dense": ["price"]}}
    store = Store(str(folder / "store"))
    ingest(store, PipelineConfig.model_validate(config | features), registry=CollectorRegistry())
    tags = ItemFeatures(store)
    tags.add(WindowLog(store).committed())
    newest = {item: (genre, price) for item, genre, price in rows}
    for item in ("a", "b", "c", "unknown"):
        words = tags.of(item)
        if item not in newest:
            assert words == []
            continue
        genre, price = newest[item]
        assert words[-1] == f"price {price}"
        # An empty list says nothing new, so an earlier one stays within a window only.
        if genre:
            assert words[0].startswith("genre ")
            assert set(words[0].removeprefix("genre ").split(", ")) == set(genre)


def test_a_log_without_features_has_no_tags(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    (tmp_path / "log.jsonl").write_text('{"user_id": "u", "item_id": "a", "timestamp": 1700000000}\n')
    config = PipelineConfig(log=str(tmp_path / "log.jsonl"), metrics_port=0)
    ingest(store, config, registry=CollectorRegistry())
    tags = ItemFeatures(store)
    tags.add(WindowLog(store).committed())
    assert tags.of("a") == []
