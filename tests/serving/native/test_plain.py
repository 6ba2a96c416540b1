"""On columns as by queries: the oracle is what `serving.retriever` answers to the same queries one by one."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts import BundleLog, ItemKeys, Store, hash_id
from serving.bundle import LoadedBundle
from serving.loading import load_bundle
from serving.native.columns import Found, Wanted, queries_of
from serving.native.plain import PlainRetriever
from serving.queries import Task
from serving.retriever import Retriever
from tests.serving.support import Catalogue, histories_of, write_bundle, write_window
from tests.serving.users import Event

T = 1_700_000_000_000
ITEMS = 60

Asked = tuple[str | list[str], int]
"""A user or a history, and how many items are wanted."""

histories = st.lists(st.integers(0, ITEMS + 5).map("item-{}".format), max_size=7)
queries = st.tuples(st.sampled_from(["ann", "eve", "nobody"]) | histories, st.integers(1, ITEMS + 10))


@pytest.fixture(scope="module", params=["Flat", "IVF4,Flat"])
def plain(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedBundle, PlainRetriever]:
    store = Store(str(tmp_path_factory.mktemp("store")))
    write_bundle(store, "v1", Catalogue.random(ITEMS), index=request.param)
    events = [Event("ann", f"item-{number}", T + number) for number in range(6)]
    write_window(store, 0, [*events, Event("eve", "gone", T)])
    return load_bundle(BundleLog(store), "v1"), PlainRetriever(Retriever(histories_of(store)))


def wanted(asked: list[Asked]) -> tuple[Wanted, list[list[str]]]:
    """Return queries as columns, and the ids of each history."""
    ids = [[] if isinstance(source, str) else source for source, _ in asked]
    keys = [[hash_id(each) for each in ([source] if isinstance(source, str) else source)] for source, _ in asked]
    columns = Wanted(
        np.array([key for own in keys for key in own], np.int64),
        np.array([len(own) for own in keys]),
        np.array([isinstance(source, str) for source, _ in asked]),
        np.array([k for _, k in asked]),
    )
    return columns, ids


def tasks(bundle: LoadedBundle, columns: Wanted, ids: list[list[str]]) -> list[Task]:
    """Return a task for each query."""
    return [Task(bundle, (query,)) for query in queries_of(columns, ids)]


def same(one: Found, other: Found) -> None:
    assert one.ids == other.ids
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5, atol=1e-6)
    for name in ("counts", "known", "fallback", "seen_bounded", "complete"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(asked=st.lists(queries, min_size=1, max_size=6))
def test_columns_find_what_queries_find(plain: tuple[LoadedBundle, PlainRetriever], asked: list[Asked]) -> None:
    bundle, retriever = plain
    columns, ids = wanted(asked)
    assert retriever.is_flat(bundle)
    flat, *seconds = retriever.flat(bundle, columns)
    same(flat, retriever.by_tasks(tasks(bundle, columns, ids))[0])
    assert all(0 <= each < 10 for each in seconds)
    assert not len(flat.cold)


def test_an_answer_is_split_by_query(plain: tuple[LoadedBundle, PlainRetriever]) -> None:
    bundle, retriever = plain
    columns, _ = wanted([("ann", 2), (["item-3"], 3), ("nobody", 1)])
    found, *_ = retriever.flat(bundle, columns)
    hits = list(found.hits())
    assert [len(hit.ids) for hit in hits] == [2, 3, 1]
    assert [each for hit in hits for each in hit.ids] == found.ids
    assert [hit.fallback for hit in hits] == [False, False, True]


def test_what_is_taken_down_is_not_found(plain: tuple[LoadedBundle, PlainRetriever]) -> None:
    bundle, retriever = plain
    columns, ids = wanted([("ann", 3), ("nobody", 3)])
    before, *_ = retriever.flat(bundle, columns)
    gone = ItemKeys(np.array([hash_id(before.ids[0]), hash_id(before.ids[3])]))
    without = PlainRetriever(Retriever(retriever.retriever.histories, taken_down=lambda _: gone))
    assert not without.is_flat(bundle)
    found, *_ = without.by_tasks(tasks(bundle, columns, ids))
    assert found.counts.tolist() == [3, 3]
    assert not {before.ids[0], before.ids[3]} & set(found.ids)
    assert found.ids[3:5] == before.ids[4:6]
    assert retriever.is_flat(bundle)
