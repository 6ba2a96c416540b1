"""Filters, availability and items taken down through the retriever, against a look at every item."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving import deltas
from tests.serving.colds import loaded, with_cold
from tests.serving.support import Catalogue, histories_of, write_bundle, write_window
from tests.serving.tagging import WAYS, Described, search_by
from tests.serving.users import Event
from weir.contracts import BundleLog, ItemKeys, Store, hash_id
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import Route, load_bundle
from weir.serving.bundles.watcher import Change, Start
from weir.serving.index.diversity import TagCap
from weir.serving.index.eligibility import NO_TAGS, CatalogueView, TagFilter
from weir.serving.search import retriever
from weir.serving.search.queries import ByEmbedding, ByHistory, ByUser, Hits, Query, Task
from weir.serving.search.retriever import Retriever

T = 1_700_000_000_000
NOW = 2_000.0
ITEMS = 200
NAMES = ["jazz", "blues", "new"]
SEEN = ["item-1", "item-4", "item-7"]
QUERY = ByHistory(("item-1", "item-4"), np.array([hash_id("item-1"), hash_id("item-4")], np.int64))

items = st.integers(0, ITEMS + 5).map("item-{}".format)
tag_sets = st.lists(st.sampled_from([*NAMES, "unheard-of"]), max_size=2, unique=True).map(tuple)


def keys(*ids: str) -> ItemKeys:
    return ItemKeys(np.array([hash_id(item) for item in ids], np.int64))


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return with_cold(Catalogue.random())


@pytest.fixture(scope="module", params=["Flat", "IVF4,Flat", "HNSW16", "Flat, cold", "IVF4,Flat, cold"])
def bundle(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, catalogue: Catalogue
) -> LoadedBundle:
    store = Store(str(tmp_path_factory.mktemp("store")))
    kind, _, cold = request.param.partition(", ")
    parameters = {"IVF4,Flat": {"nprobe": 4}, "HNSW16": {"efSearch": 400}}.get(kind, {})
    return loaded(store, catalogue, kind, cold=bool(cold), **parameters)


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(str(tmp_path_factory.mktemp("users")))
    write_window(store, 0, [Event("ann", item, T + n) for n, item in enumerate(SEEN)])
    return store


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retriever.time, "time", lambda: NOW)


def one(retriever: Retriever, task: Task) -> Hits:
    [answer] = retriever([task])
    return answer.hits[0]


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    says=st.builds(
        Described,
        st.dictionaries(items, st.sets(st.sampled_from(NAMES)), min_size=20),
        st.dictionaries(items, st.tuples(st.none() | st.just(1_999_000), st.just(2_000_000) | st.just(2_000_001))),
    ),
    wanted=st.builds(TagFilter, tag_sets, tag_sets, tag_sets),
    allowed=st.none() | st.lists(items, min_size=1, max_size=60),
    excluded=st.lists(items, max_size=20),
    down=st.lists(items, max_size=8),
    k=st.integers(1, 60),
    source=st.sampled_from(["history", "user", "stranger"]),
    exact=st.booleans(),
    exclude_seen=st.booleans(),
    cap=st.none() | st.builds(TagCap, st.integers(1, 4), st.sampled_from(["", "ja", "blues", "n", "none has it"])),
)
def test_all_that_restricts_an_answer_agrees_with_brute_force(
    *,
    bundle: LoadedBundle,
    users: Store,
    catalogue: Catalogue,
    says: Described,
    wanted: TagFilter,
    allowed: list[str] | None,
    excluded: list[str],
    down: list[str],
    k: int,
    source: str,
    exact: bool,
    exclude_seen: bool,
    cap: TagCap | None,
    way: str,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        search_by(way, patch)
        gone = keys(*down)
        asked = Retriever(histories_of(users), taken_down=lambda _: gone)
        task = Task(
            says.beside(bundle),
            (Query(QUERY if source == "history" else ByUser(hash_id("ann" if source == "user" else "stranger")), k),),
            exact=exact,
            exclude_seen=exclude_seen,
            excluded=keys(*excluded),
            allowed=None if allowed is None else keys(*allowed),
            tags=wanted,
            cap=cap,
        )
        hits = one(asked, task)
    seen = {"history": ["item-1", "item-4"], "user": SEEN, "stranger": []}[source] if exclude_seen else []
    passing = set(says.passing(catalogue.ids, wanted, round(NOW * 1000))) - {*excluded, *down, *seen}
    if allowed is not None:
        passing &= set(allowed)
    if source == "stranger":
        ranked = catalogue.most_popular(ITEMS)
    else:
        ranked = catalogue.top(catalogue.user(["item-1", "item-4"] if source == "history" else SEEN), ITEMS)
    left = [item for item in ranked if item in passing]
    assert hits.ids == (left[:k] if cap is None else says.spread(left, cap, k))
    assert hits.complete == (len(passing) >= k)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    runs=st.lists(st.integers(20, 90), min_size=1, max_size=5),
    cap=st.builds(TagCap, st.integers(1, 3), st.sampled_from(["", "run", "odd"])),
    k=st.integers(1, 20),
    known=st.booleans(),
    last=st.none() | st.integers(5, ITEMS - 2),
    tags=st.sampled_from([NO_TAGS, TagFilter(none=("odd-1",))]),
)
def test_tags_of_all_the_best_do_not_leave_too_few(
    *,
    bundle: LoadedBundle,
    users: Store,
    catalogue: Catalogue,
    runs: list[int],
    cap: TagCap,
    k: int,
    known: bool,
    last: int | None,
    tags: TagFilter,
) -> None:
    """The best items share a tag, those after them another one: one search is not enough, nor may a third be needed."""
    user = catalogue.user(SEEN)
    ranked = catalogue.top(user, ITEMS) if known else catalogue.most_popular(ITEMS)
    numbers = np.repeat(np.arange(len(runs)), runs)[:ITEMS].tolist()
    says = Described({item: [f"run-{n}", f"odd-{n % 2}"] for item, n in zip(ranked, numbers, strict=False)})
    threshold = None
    if known and last is not None:
        before, after = _scores(catalogue, user, ranked[last : last + 2])
        threshold = (before + after) / 2
    source = ByUser(hash_id("ann" if known else "stranger"))
    task = Task(says.beside(bundle), (Query(source, k),), cap=cap, threshold=threshold, tags=tags)
    hits = one(Retriever(histories_of(users)), task)
    left = [item for item in ranked if says.passes(item, tags, 0)]
    if threshold is not None and last is not None:
        left = [item for item in left if ranked.index(item) <= last]
    assert hits.ids == says.spread(left, cap, k)


@pytest.mark.parametrize("how", ["clone", "in_place"])
@pytest.mark.parametrize(("seed", "way"), [(0, "scanning"), (1, "gathering"), (2, "scanning")])
def test_tags_stay_with_their_items_through_deltas(
    store: Store, how: str, seed: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    search_by(way, monkeypatch)
    rng = np.random.default_rng(seed)
    manifest, catalogue = deltas.base(store, "IVF4,SQfp16", 60)
    names = [*catalogue.ids, *(f"new-{number}-{row}" for number in range(6) for row in range(90))]
    says = Described({item: rng.choice(NAMES, rng.integers(0, 4), replace=False).tolist() for item in names})
    log, asked = BundleLog(store), Retriever(histories_of(store))
    served = load_bundle(log, "v0", places=True)
    served.state.view = CatalogueView.of(says.catalogue(), served.rows, "")
    for number in range(1, 6):
        change = deltas.drawn(catalogue, rng, number)
        catalogue = deltas.changed(catalogue, change)
        manifest = deltas.write_delta(store, f"v{number}", manifest, catalogue, change)
        before, tagged = served, served.state.view
        if how == "clone":
            served = load_bundle(log, f"v{number}", served=before, places=True)
        else:
            route = Route.find(log, f"v{number}", before)
            start = Start.of(route)
            assert start is not None
            served = Change.prepare(start, route, 1).take()
        assert tagged is not None
        served.state.view = tagged.moved(before.rows, served.rows)
        dense = deltas.dense(catalogue)
        for wanted in (TagFilter(any=("jazz",)), TagFilter(all=("jazz", "new")), TagFilter(none=("blues",)), NO_TAGS):
            vector = deltas.QUERIES[number % len(deltas.QUERIES)]
            source = ByEmbedding(vector)
            hits = one(asked, Task(served, (Query(source, 10),), tags=wanted))
            passing = set(says.passing(dense.ids, wanted, 0))
            best = [item for item in dense.top(vector, len(dense.ids)) if item in passing]
            assert set(hits.ids) <= passing
            assert len(hits.ids) == min(10, len(passing))
            assert hits.complete == (len(passing) >= 10)
            if wanted != NO_TAGS:  # without a filter two of four lists are visited
                np.testing.assert_allclose(sorted(hits.scores), sorted(_scores(dense, vector, best[:10])), atol=2e-3)


def _scores(catalogue: Catalogue, vector: np.ndarray, items: list[str]) -> list[float]:
    unit = vector / np.linalg.norm(vector)
    return [float(catalogue.vectors[catalogue.ids.index(item)] @ unit) for item in items]


def test_queries_with_the_same_filter_share_a_search(bundle: LoadedBundle, users: Store) -> None:
    says = Described({f"item-{n}": ["jazz"] if n % 2 else ["blues"] for n in range(ITEMS)})
    held, asked = says.beside(bundle), Retriever(histories_of(users))
    task = Task(held, (Query(QUERY, 5),), tags=TagFilter(any=("jazz",)))
    tasks = [
        task,
        replace(task, tags=TagFilter(any=("blues",))),
        replace(task, queries=(Query(QUERY, 9),)),
        replace(task, tags=NO_TAGS),
    ]
    for alone, together in zip(tasks, asked(tasks), strict=True):
        assert one(asked, alone).ids == together.hits[0].ids


def test_an_item_taken_down_or_expired_is_gone_with_the_next_batch(
    bundle: LoadedBundle, users: Store, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = catalogue.user(["item-1", "item-4"])
    first, second, third = catalogue.top(user, 3)
    down: list[ItemKeys] = [keys()]
    held = Described({}, {second: (None, round(NOW * 1000) + 1500)}).beside(bundle)
    asked, task = Retriever(histories_of(users), taken_down=lambda _: down[0]), Task(held, (Query(QUERY, 3),))
    assert one(asked, task).ids == [first, second, third]
    down[0] = keys(first)
    assert one(asked, task).ids[:2] == [second, third]
    assert one(asked, replace(task, allowed=keys(first, third))).ids == [third]
    monkeypatch.setattr(retriever.time, "time", lambda: NOW + 1.6)
    assert one(asked, task).ids[0] == third
    down[0] = keys()
    assert one(asked, task).ids[:2] == [first, third]


def test_many_blocked_items_do_not_hide_the_others(store: Store, users: Store) -> None:
    """Where they are the nearest ones, and more than are fetched on top of k: as many are found as without them."""
    catalogue = Catalogue.random(items=5000)
    user = catalogue.user(["item-1", "item-4"])
    gone, best = keys(*catalogue.top(user, 1200)), catalogue.top(user, 1250)
    for kind, parameters in (("Flat", {}), ("IVF16,Flat", {"nprobe": 4}), ("HNSW16", {"efSearch": 100})):
        version = kind.partition(",")[0]
        write_bundle(store, version, catalogue, index=kind, parameters=parameters)
        loaded = load_bundle(BundleLog(store), version)
        task = Task(loaded, (Query(QUERY, 50),))
        without = one(Retriever(histories_of(users)), task)
        hits = one(Retriever(histories_of(users), taken_down=lambda _: gone), task)
        assert len(hits.ids) == 50
        assert len(set(hits.ids) & set(best[1200:])) >= min(48, len(set(without.ids) & set(best[:50]))), kind
