"""Answers on columns: the oracle is what `weir.serving.search.retriever` answers to the same queries one by one."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.rescorers import bilinear, form, with_scorer
from tests.serving.support import Catalogue, histories_of, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import BundleLog, ItemKeys, Store, hash_id
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.serving.native.columns import Found, Kind, Wanted, queries_of
from weir.serving.native.plain import PlainRetriever
from weir.serving.search.queries import ByEmbedding, ByHistory, ByItem, ByUser, Source, Task
from weir.serving.search.retriever import Retriever

PACKAGE = pytest.importorskip("weir_front", reason="needs the compiled front: make native, which needs Rust")
T = 1_700_000_000_000
ITEMS = 60
DIMENSION = 8
PARAMETERS: dict[str, dict[str, int | float]] = {"Flat": {}, "IVF4,Flat": {"nprobe": 2}}
READ = [None, 2]
"""Newest items of a history that the model was trained on, of those that its tower takes; None: all."""

Asked = tuple[Source, int]
"""What a query is made from, and how many items are wanted."""

USERS = ("ann", "eve", "nobody")
KINDS = {ByUser: Kind.USER, ByHistory: Kind.HISTORY, ByEmbedding: Kind.EMBEDDING, ByItem: Kind.ITEM}


def by_user(name: str) -> ByUser:
    return ByUser(hash_id(name))


def by_history(ids: Sequence[str]) -> ByHistory:
    return ByHistory(tuple(ids), ItemKeys(np.array([hash_id(each) for each in ids], np.int64)))


def by_item(name: str) -> ByItem:
    return ByItem(name, hash_id(name))


def by_embedding(seed: int) -> ByEmbedding:
    return ByEmbedding(np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32))


items = st.integers(0, ITEMS + 5).map("item-{}".format)
sources = st.one_of(
    st.sampled_from(USERS).map(by_user),
    st.lists(items, max_size=7).map(by_history),
    items.map(by_item),
    st.integers(0, 9).map(by_embedding),
)
queries = st.tuples(sources, st.integers(1, ITEMS + 10))


@pytest.fixture(scope="module", params=product(PARAMETERS, READ), ids="{0[0]}, {0[1]}".format)
def plain(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedBundle, PlainRetriever]:
    store = Store(str(tmp_path_factory.mktemp("store")))
    index, read = request.param
    catalogue = Catalogue.random(ITEMS)
    write_bundle(store, "v1", catalogue, index=index, parameters=PARAMETERS[index], history_read=read)
    events = [Event("ann", f"item-{number}", T + number) for number in range(6)]
    write_window(store, 0, [*events, Event("eve", "gone", T)])
    return load_bundle(BundleLog(store), "v1"), PlainRetriever(Retriever(histories_of(store)), PACKAGE)


def wanted(asked: list[Asked]) -> tuple[Wanted, list[list[str]]]:
    """Return queries as columns, and the ids of each."""
    keys = [keys_of(source) for source, _ in asked]
    embeddings = [source.values for source, _ in asked if isinstance(source, ByEmbedding)]
    columns = Wanted(
        np.array([key for own in keys for key in own], np.int64),
        np.array([len(own) for own in keys]),
        np.array([KINDS[type(source)] for source, _ in asked]),
        np.array([k for _, k in asked]),
        np.array(embeddings, np.float32).reshape(len(embeddings), DIMENSION if embeddings else 0),
    )
    return columns, [ids_of(source) for source, _ in asked]


def keys_of(source: Source) -> list[int]:
    match source:
        case ByUser() | ByItem():
            return [source.key]
        case ByHistory():
            return source.keys.tolist()
        case ByEmbedding():
            return []


def ids_of(source: Source) -> list[str]:
    match source:
        case ByHistory():
            return [*source.ids]
        case ByItem():
            return [source.id]
        case _:
            return []


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
    assert retriever.is_flat(bundle, columns)
    flat, *seconds = retriever.flat(bundle, columns)
    same(flat, retriever.by_tasks(tasks(bundle, columns, ids))[0])
    assert all(0 <= each < 10 for each in seconds)
    assert not len(flat.cold)


def test_an_answer_is_split_by_query(plain: tuple[LoadedBundle, PlainRetriever]) -> None:
    bundle, retriever = plain
    columns, _ = wanted([(by_user("ann"), 2), (by_history(["item-3"]), 3), (by_user("nobody"), 1)])
    found, *_ = retriever.flat(bundle, columns)
    hits = list(found.hits())
    assert [len(hit.ids) for hit in hits] == [2, 3, 1]
    assert [each for hit in hits for each in hit.ids] == found.ids
    assert [hit.fallback for hit in hits] == [False, False, True]


def test_what_is_scored_again_is_left_to_queries(store: Store) -> None:
    manifest = write_bundle(store, "v1", Catalogue.random(ITEMS))
    with_scorer(store, manifest, 20, bilinear(form()))
    bundle, histories = load_bundle(BundleLog(store), "v1"), histories_of(store)
    columns, _ = wanted([(by_history(["item-3"]), 3)])
    assert not PlainRetriever(Retriever(histories), PACKAGE).is_flat(bundle, columns)
    assert PlainRetriever(Retriever(histories, rescored=0), PACKAGE).is_flat(bundle, columns)


def test_lists_that_an_item_could_leave_too_few_items_are_left_to_queries(store: Store) -> None:
    write_bundle(store, "v1", Catalogue.random(ITEMS), index="IVF4,Flat", parameters={"nprobe": 1})
    bundle, retriever = load_bundle(BundleLog(store), "v1"), PlainRetriever(Retriever(histories_of(store)), PACKAGE)
    assert retriever.is_flat(bundle, wanted([(by_history(["item-3"]), 3)])[0])
    assert not retriever.is_flat(bundle, wanted([(by_history(["item-3"]), 3), (by_item("item-3"), 3)])[0])


def test_what_is_taken_down_is_not_found(plain: tuple[LoadedBundle, PlainRetriever]) -> None:
    bundle, retriever = plain
    columns, ids = wanted([(by_user("ann"), 3), (by_user("nobody"), 3)])
    before, *_ = retriever.flat(bundle, columns)
    gone = ItemKeys(np.array([hash_id(before.ids[0]), hash_id(before.ids[3])]))
    without = PlainRetriever(Retriever(retriever.retriever.histories, taken_down=lambda _: gone), PACKAGE)
    assert not without.is_flat(bundle, columns)
    found, *_ = without.by_tasks(tasks(bundle, columns, ids))
    assert found.counts.tolist() == [3, 3]
    assert not {before.ids[0], before.ids[3]} & set(found.ids)
    assert found.ids[3:5] == before.ids[4:6]
    assert retriever.is_flat(bundle, columns)
