"""How much an answer has where an index finds the nearest items only nearly, and little in one search."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.colds import loaded, with_cold
from tests.serving.support import Catalogue, histories_of, write_window
from tests.serving.tagging import Described
from tests.serving.users import Event
from weir.contracts import ItemKeys, Store, hash_id
from weir.serving.bundle import LoadedBundle
from weir.serving.queries import ByHistory, ByItem, ByUser, Query, Source, Task
from weir.serving.retriever import Retriever
from weir.serving.sieve import NO_TAGS, TagFilter
from weir.serving.spread import TagCap

T = 1_700_000_000_000
ITEMS = 200
NAMES = ["jazz", "blues", "new"]
SEEN = ["item-1", "item-4", "item-7"]
KINDS: dict[str, dict[str, int | float]] = {
    "IVF32,Flat": {"nprobe": 1},
    "IVF16,PQ4x4": {"nprobe": 2},
    "IVF16_HNSW4,SQ8": {"nprobe": 1},
    "PCA4,IVF8,Flat": {"nprobe": 1},
    "HNSW4": {},
    "PCA4,HNSW4": {},
    "PQ4x4": {},
}
SOURCES: dict[str, Source] = {
    "history": ByHistory(("item-1", "item-4"), np.array([hash_id("item-1"), hash_id("item-4")], np.int64)),
    "user": ByUser(hash_id("ann")),
    "stranger": ByUser(hash_id("stranger")),
    "item": ByItem("item-1", hash_id("item-1")),
}
LEFT_OUT = {"history": ["item-1", "item-4"], "user": SEEN, "stranger": [], "item": []}

items = st.integers(0, ITEMS + 5).map("item-{}".format)
tag_sets = st.lists(st.sampled_from(NAMES), max_size=2, unique=True).map(tuple)
caps = st.builds(TagCap, st.integers(1, 4), st.sampled_from(["", "ja", "none has it"]))


def keys(*ids: str) -> ItemKeys:
    return ItemKeys(np.array([hash_id(item) for item in ids], np.int64))


@pytest.fixture(scope="module", params=[*KINDS, *(f"{kind}; cold" for kind in KINDS)])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedBundle:
    """Half of the items are nearly the same one, so that lists are uneven, and graphs have parts of their own."""
    kind, _, cold = request.param.partition("; ")
    catalogue, store = with_cold(Catalogue.random(ITEMS)), Store(str(tmp_path_factory.mktemp("store")))
    catalogue.vectors[: ITEMS // 2] = catalogue.vectors[0]
    return loaded(store, catalogue, kind, cold=bool(cold), **KINDS[kind])


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(str(tmp_path_factory.mktemp("users")))
    write_window(store, 0, [Event("ann", item, T + n) for n, item in enumerate(SEEN)])
    return store


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tags=st.dictionaries(items, st.sets(st.sampled_from(NAMES))),
    wanted=st.just(NO_TAGS) | st.builds(TagFilter, tag_sets, tag_sets, tag_sets),
    excluded=st.lists(items, max_size=20),
    down=st.lists(items, max_size=8),
    asked=st.lists(st.tuples(st.sampled_from([*SOURCES]), st.integers(1, ITEMS + 10)), min_size=1, max_size=3),
    nprobe=st.sampled_from([0, 0, 1, 3]),
    exclude_seen=st.booleans(),
    cap=st.none() | caps,
)
def test_an_answer_has_k_items_or_all_there_are(
    *,
    bundle: LoadedBundle,
    users: Store,
    tags: dict[str, set[str]],
    wanted: TagFilter,
    excluded: list[str],
    down: list[str],
    asked: list[tuple[str, int]],
    nprobe: int,
    exclude_seen: bool,
    cap: TagCap | None,
) -> None:
    says, gone = Described(tags), keys(*down)
    task = Task(
        says.beside(bundle),
        tuple(Query(SOURCES[name], k) for name, k in asked),
        nprobe=nprobe,
        exclude_seen=exclude_seen,
        excluded=keys(*excluded),
        tags=wanted,
        cap=cap,
    )
    [answer] = Retriever(histories_of(users), taken_down=lambda _: gone)([task])
    every = set(says.passing([f"item-{number}" for number in range(ITEMS)], wanted, 0)) - {*excluded, *down}
    for (name, k), hits in zip(asked, answer.hits, strict=True):
        own = ["item-1"] if name == "item" else []
        passing = every - {*own, *(LEFT_OUT[name] if exclude_seen else ())}
        found = set(hits.ids)
        assert len(found) == len(hits.ids)
        assert found <= passing
        assert hits.complete == (len(passing) >= k)
        assert hits.scores == sorted(hits.scores, reverse=True)
        if cap is None:
            assert len(found) == min(k, len(passing))
        else:
            assert says.spread(hits.ids, cap, k) == hits.ids
            # No other item can be added to those that there are.
            left = sorted(passing - found)
            assert len(says.spread([*hits.ids, *left], cap, k)) == len(found)
