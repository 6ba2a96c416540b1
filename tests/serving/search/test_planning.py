"""What a plan says before anything is searched; that its answer is right is in `test_retriever`."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.serving.support import Catalogue, write_bundle
from weir.contracts import BundleLog, ItemKeys, SeenItems, Store, UserKeys, hash_id
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.serving.histories.files import KnownUsers
from weir.serving.index.eligibility import Eligibility
from weir.serving.search.planning import Planner
from weir.serving.search.queries import ByEmbedding, ByHistory, ByItem, ByUser, Query, Source, Task

ITEMS = 2_000


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.random(ITEMS)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, catalogue: Catalogue) -> LoadedBundle:
    store = Store(str(tmp_path_factory.mktemp("store")))
    write_bundle(store, "v1", catalogue)
    return load_bundle(BundleLog(store), "v1")


def keys(*ids: str) -> ItemKeys:
    return ItemKeys(np.array([hash_id(one) for one in ids], np.int64))


def by_history(*ids: str) -> ByHistory:
    return ByHistory(ids, keys(*ids))


@dataclass
class Users:
    """Every user has clicked item-1, and has seen that, item-7 twice, and an item that is gone; notes who asks."""

    asked: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def look_up(self, users: UserKeys, asked: np.ndarray) -> KnownUsers:
        self.asked.append((users.tolist(), asked.tolist()))
        seen = keys("item-7", "item-1", "gone", "item-7")
        offsets = np.arange(len(asked) + 1, dtype=np.int64) * len(seen)
        bounded = np.ones(len(asked), bool)
        return KnownUsers(
            ItemKeys(np.tile(keys("item-1"), (len(users), 1))),
            SeenItems(ItemKeys(np.tile(seen, len(asked))), offsets, bounded),
        )


def planner(bundle: LoadedBundle, down: int = 0, candidates: int = 0) -> Planner:
    sieve = Eligibility.of(bundle.rows, None, keys(*(f"item-{number}" for number in range(down))), 0.0)
    return Planner(bundle, Users(), sieve, candidates)


def test_users_of_a_batch_are_looked_up_at_once_and_what_they_saw_only_where_it_is_left_out(
    bundle: LoadedBundle,
) -> None:
    users = [ByUser(number) for number in range(1, 5)]
    plain = Task(bundle, (Query(users[0], 3), Query(by_history("item-2"), 3), Query(users[1], 3)))
    hiding = Task(bundle, (Query(users[2], 3), Query(users[3], 3)), exclude_seen=True)
    planning = planner(bundle)
    plans, vectors = planning.plan([(task, query) for task in (plain, hiding) for query in task.queries])
    assert planning.histories.asked == [([1, 2, 3, 4], [2, 3])]
    assert [plan.excluded.tolist() for plan in plans] == [[], [], [], [1, 7, 7], [1, 7, 7]]
    assert [plan.seen_bounded for plan in plans] == [False, False, False, True, True]
    assert vectors.shape == (5, 8)


def test_without_users_nobody_is_looked_up(bundle: LoadedBundle) -> None:
    planning = planner(bundle)
    planning.plan([(Task(bundle, ()), Query(by_history("item-2"), 3))])
    assert planning.histories.asked == []


@pytest.mark.parametrize(
    ("source", "missing", "excluded", "candidates"),
    [
        (by_history("item-9", "what", "item-4"), ["what"], [4, 9], 50),
        (by_history("what"), ["what"], [], 0),
        (ByItem("item-6", hash_id("item-6")), [], [6], 0),
        (ByItem("what", hash_id("what")), ["what"], [], 0),
        (ByEmbedding(np.ones(8, np.float32)), [], [], 50),
    ],
)
def test_a_plan_says_what_is_unknown_what_to_leave_out_and_how_many_to_score_again(
    bundle: LoadedBundle, source: Source, missing: list[str], excluded: list[int], candidates: int
) -> None:
    task = Task(bundle, (Query(source, 3),), exclude_seen=True)
    [plan], vectors = planner(bundle, candidates=50).plan([(task, task.queries[0])])
    assert (plan.missing, plan.excluded.tolist(), plan.candidates) == (missing, excluded, candidates)
    assert (plan.place, len(vectors)) == ((0, 1) if excluded or candidates else (-1, 0))


@pytest.mark.parametrize(("down", "left_out_one_by_one"), [(0, True), (3, True), (1000, True), (1001, False)])
def test_a_few_blocked_rows_are_left_out_by_each_plan_and_many_by_a_filter(
    bundle: LoadedBundle, down: int, left_out_one_by_one: bool
) -> None:
    task, planning = Task(bundle, (Query(by_history("item-1500"), 3),)), planner(bundle, down)
    [plan], _ = planning.plan([(task, task.queries[0])])
    passing = planning.passing(task)
    assert plan.excluded.tolist() == (list(range(down)) if left_out_one_by_one else [])
    assert (passing is None) == left_out_one_by_one
    if passing is not None:
        assert passing.array.tolist() == list(range(down, ITEMS))


def test_what_a_task_lets_pass_is_found_once(bundle: LoadedBundle) -> None:
    task, planning = Task(bundle, (), allowed=keys("item-4", "item-2", "what", "item-0")), planner(bundle, down=1)
    passing = planning.passing(task)
    assert passing is not None
    assert passing.array.tolist() == [2, 4]
    assert planning.passing(task) is passing
