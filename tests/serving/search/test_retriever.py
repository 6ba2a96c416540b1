""""""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.colds import loaded, with_cold
from tests.serving.support import Catalogue, histories_of, user_weights, write_bundle, write_window
from tests.serving.tagging import Described
from tests.serving.users import BOUND, HISTORY_LENGTH, Event
from weir.contracts import BundleLog, ItemKeys, Store, hash_id
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.serving.index.diversity import TagCap
from weir.serving.index.eligibility import NO_TAGS, TagFilter
from weir.serving.index.index import AnnIndex, Found
from weir.serving.search.queries import ByEmbedding, ByHistory, ByItem, ByUser, Features, Hits, Query, Source, Task
from weir.serving.search.retriever import Retriever

T = 1_700_000_000_000


def keys(*ids: str) -> np.ndarray:
    return np.array([hash_id(item) for item in ids], np.int64)


def history(*ids: str) -> ByHistory:
    return ByHistory(ids, keys(*ids))


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.random()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, catalogue: Catalogue) -> tuple[LoadedBundle, Retriever]:
    store = Store(str(tmp_path_factory.mktemp("store")))
    write_bundle(store, "v1", catalogue, index="IVF4,Flat", parameters={"nprobe": 4})
    events = [Event("ann", "item-1", T), Event("ann", "item-2", T + 1), Event("ann", "item-3", T + 2, label=-1)]
    write_window(store, 0, [*events, Event("eve", "gone", T), Event("sad", "item-9", T, label=-1)])
    return load_bundle(BundleLog(store), "v1"), Retriever(histories_of(store))


@pytest.fixture(scope="module")
def bundle(shared: tuple[LoadedBundle, Retriever]) -> LoadedBundle:
    return shared[0]


@pytest.fixture(scope="module")
def retriever(shared: tuple[LoadedBundle, Retriever]) -> Retriever:
    return shared[1]


def one(retriever: Retriever, task: Task) -> Hits:
    [answer] = retriever([task])
    [hits] = answer.hits
    return hits


def test_every_source_gives_the_brute_force_answer(
    retriever: Retriever, bundle: LoadedBundle, catalogue: Catalogue
) -> None:
    vector = np.random.default_rng(3).standard_normal(8).astype(np.float32)
    sources: list[tuple[Source, np.ndarray, list[str]]] = [
        (ByUser(hash_id("ann")), catalogue.user(["item-1", "item-2"]), []),
        (history("item-5", "item-6"), catalogue.user(["item-5", "item-6"]), []),
        (ByEmbedding(vector), vector / np.linalg.norm(vector), []),
        (ByItem("item-8", hash_id("item-8")), catalogue.vectors[8], ["item-8"]),
    ]
    queries = tuple(Query(source, 7) for source, _, _ in sources)
    [answer] = retriever([Task(bundle, queries)])
    for hits, (_, expected, without) in zip(answer.hits, sources, strict=True):
        assert hits.ids == catalogue.top(expected, 7, without)
        scores = [float(catalogue.vectors[catalogue.ids.index(item)] @ expected) for item in hits.ids]
        np.testing.assert_allclose(hits.scores, scores, rtol=1e-4, atol=1e-5)
        assert hits.vector is not None
        np.testing.assert_allclose(hits.vector, expected, rtol=1e-4, atol=1e-5)
        assert not hits.fallback


def test_features_are_added_to_what_the_tower_makes_of_a_history(
    tmp_path: Path, catalogue: Catalogue, retriever: Retriever
) -> None:
    """Stored and given histories, users of whom nothing else is known, and queries without any, in one batch."""
    store, weights = Store(str(tmp_path)), user_weights()
    write_bundle(store, "v1", catalogue, user_features=weights)
    bundle = load_bundle(BundleLog(store), "v1")
    said: Features = {"country": ("de",), "langs": ("de", "en"), "age": 31.0, "size": 3.0}
    columns = {"country": [["de"]], "langs": [["de", "en"]], "age": [31.0]}
    added = weights.embeddings(pa.table(columns))[0]
    sources: list[tuple[Source, Features, np.ndarray | None]] = [
        (ByUser(hash_id("ann")), said, catalogue.embeddings[[3, 4]].mean(0) + added),
        (history("item-5", "what"), said, catalogue.embeddings[7] + added),
        (ByUser(hash_id("nobody")), said, added),
        (history(), said, added),
        (ByUser(hash_id("nobody")), {"size": 3.0, "age": ("old",)}, None),
        (ByUser(hash_id("ann")), {}, catalogue.embeddings[[3, 4]].mean(0)),
    ]
    queries = tuple(Query(source, 7, features) for source, features, _ in sources)
    [answer] = retriever([Task(bundle, queries)])
    for hits, (_, _, vector) in zip(answer.hits, sources, strict=True):
        assert hits.fallback == (vector is None)
        if vector is None:
            assert hits.ids == catalogue.most_popular(7)
            continue
        expected = vector / np.linalg.norm(vector)
        assert hits.ids == catalogue.top(expected, 7)
        assert hits.vector is not None
        np.testing.assert_allclose(hits.vector, expected, rtol=1e-4, atol=1e-5)
    assert [hits.missing_features for hits in answer.hits] == [["size"]] * 4 + [["size", "age"], []]
    assert answer.hits[1].missing == ["what"]
    # A query without features is answered as without the others.
    assert one(retriever, Task(bundle, queries[-1:])).scores == answer.hits[-1].scores


def test_seen_items_are_left_out_on_demand(retriever: Retriever, bundle: LoadedBundle, catalogue: Catalogue) -> None:
    ann = Task(bundle, (Query(ByUser(hash_id("ann")), 200),), exclude_seen=True)
    seen = ["item-1", "item-2", "item-3"]
    assert one(retriever, ann).ids == catalogue.top(catalogue.user(["item-1", "item-2"]), 200, seen)
    given_history = Task(bundle, (Query(history("item-1", "item-4"), 5),), exclude_seen=True)
    best = catalogue.top(catalogue.user(["item-1", "item-4"]), 5, ["item-1", "item-4"])
    assert one(retriever, given_history).ids == best


def test_older_items_than_the_tower_reads_are_seen_too(
    retriever: Retriever, bundle: LoadedBundle, catalogue: Catalogue
) -> None:
    long = [f"item-{i}" for i in range(40)]
    hits = one(retriever, Task(bundle, (Query(history(*long), 200),), exclude_seen=True))
    assert hits.ids == catalogue.top(catalogue.user(long), 200, long)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    allowed=st.lists(st.integers(0, 230), max_size=30),
    excluded=st.lists(st.integers(0, 230), max_size=30),
    k=st.integers(1, 60),
    exact=st.booleans(),
    seen=st.booleans(),
    threshold=st.one_of(st.none(), st.floats(-1, 1, width=32)),
)
def test_filters_agree_with_brute_force(
    *,
    retriever: Retriever,
    bundle: LoadedBundle,
    catalogue: Catalogue,
    allowed: list[int],
    excluded: list[int],
    k: int,
    exact: bool,
    seen: bool,
    threshold: float | None,
) -> None:
    without = {f"item-{i}" for i in excluded} | ({"item-1", "item-4"} if seen else set())
    within = {f"item-{i}" for i in allowed} if allowed else set(catalogue.ids)
    task = Task(
        bundle,
        (Query(history("item-1", "item-4"), k),),
        exact=exact,
        exclude_seen=seen,
        threshold=threshold,
        excluded=keys(*(f"item-{i}" for i in excluded)),
        allowed=keys(*(f"item-{i}" for i in allowed)) if allowed else None,
    )
    hits = one(retriever, task)
    user = catalogue.user(["item-1", "item-4"])
    ranked = [item for item in catalogue.top(user, 500) if item in within and item not in without]
    scores = {item: float(catalogue.vectors[catalogue.ids.index(item)] @ user) for item in ranked}
    expected = ranked[:k] if threshold is None else [item for item in ranked if scores[item] >= threshold][:k]
    if threshold is None or all(abs(score - threshold) > 1e-5 for score in scores.values()):
        assert hits.ids == expected
    assert hits.scores == sorted(hits.scores, reverse=True)


def test_missing_items_are_named_and_change_nothing(
    retriever: Retriever, bundle: LoadedBundle, catalogue: Catalogue
) -> None:
    hits = one(retriever, Task(bundle, (Query(history("who", "item-4", "what"), 5),)))
    assert hits.missing == ["who", "what"]
    assert hits.ids == catalogue.top(catalogue.user(["item-4"]), 5)
    # One of them at the end used to take the place of the item that says most.
    assert hits.vector is not None
    np.testing.assert_allclose(hits.vector, catalogue.user(["item-4"]), rtol=1e-5)


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        (ByUser(hash_id("stranger")), []),
        (ByUser(hash_id("eve")), []),
        (history(), []),
        (history("who", "what"), ["who", "what"]),
        (ByItem("who", hash_id("who")), ["who"]),
    ],
)
def test_the_unknown_get_popular_items(
    retriever: Retriever, bundle: LoadedBundle, catalogue: Catalogue, source: Source, missing: list[str]
) -> None:
    hits = one(retriever, Task(bundle, (Query(source, 6),), threshold=1e9))
    assert hits.fallback
    assert hits.ids == catalogue.most_popular(6)
    assert hits.scores == [200.0, 199.0, 198.0, 197.0, 196.0, 195.0]
    assert hits.missing == missing
    popular = catalogue.most_popular(3)
    fewer = Task(bundle, (Query(source, 6),), excluded=keys(popular[0]), allowed=keys(*reversed(popular), "nobody"))
    assert one(retriever, fewer).ids == popular[1:]


def test_what_a_user_disliked_is_no_history_but_is_left_out(
    retriever: Retriever, bundle: LoadedBundle, catalogue: Catalogue
) -> None:
    hits = one(retriever, Task(bundle, (Query(ByUser(hash_id("sad")), 200),), exclude_seen=True))
    assert hits.fallback
    assert hits.ids == catalogue.most_popular(200, ["item-9"])


def test_without_find_there_are_vectors_only(retriever: Retriever, bundle: LoadedBundle, catalogue: Catalogue) -> None:
    task = Task(bundle, (Query(history("item-5"), 3), Query(history("who"), 3)), find=False)
    [answer] = retriever([task])
    assert [hits.ids for hits in answer.hits] == [[], []]
    assert answer.hits[0].vector is not None
    np.testing.assert_allclose(answer.hits[0].vector, catalogue.user(["item-5"]), rtol=1e-5)
    assert answer.hits[1].fallback


def test_a_batch_answers_as_its_tasks_alone_would(retriever: Retriever, bundle: LoadedBundle) -> None:
    base = Task(bundle, (Query(history("item-5", "item-9"), 3), Query(ByUser(hash_id("stranger")), 4)))
    tasks = [
        base,
        replace(base, exact=True),
        replace(base, nprobe=1, queries=(Query(history("item-1"), 50),)),
        replace(base, exclude_seen=True, queries=(Query(ByUser(hash_id("ann")), 8), *base.queries)),
        replace(base, allowed=keys("item-3", "item-4")),
        replace(base, allowed=keys("item-5"), excluded=keys("item-5")),
        replace(base, find=False),
        replace(base, threshold=0.5),
    ]
    for alone, together in zip(tasks, retriever(tasks), strict=True):
        [expected] = retriever([alone])
        for left, right in zip(expected.hits, together.hits, strict=True):
            assert (left.ids, left.missing, left.fallback) == (right.ids, right.missing, right.fallback)
            np.testing.assert_allclose(left.scores, right.scores, rtol=1e-5)


def test_tasks_of_two_bundles_are_each_answered_from_their_own(store: Store, retriever: Retriever) -> None:
    old, new = Catalogue.random(prefix="old"), Catalogue.random(dimension=5, seed=1, prefix="new")
    write_bundle(store, "old", old)
    write_bundle(store, "new", new)
    log = BundleLog(store)
    bundles = {"old": (load_bundle(log, "old"), old), "new": (load_bundle(log, "new"), new)}
    order = ["old", "new", "old", "new"]
    tasks = [Task(bundles[name][0], (Query(history(f"{name}-3"), 5),)) for name in order]
    for name, answer in zip(order, retriever(tasks), strict=True):
        assert answer.hits[0].ids == bundles[name][1].top(bundles[name][1].user([f"{name}-3"]), 5)


def test_an_empty_catalogue_answers_with_nothing(store: Store, retriever: Retriever) -> None:
    nothing = Catalogue([], np.empty((0, 8), np.float32), np.zeros((2, 8), np.float32), np.empty(0))
    write_bundle(store, "v1", nothing)
    loaded = load_bundle(BundleLog(store), "v1")
    queries = (Query(ByEmbedding(np.ones(8, np.float32)), 5), Query(history("item-1"), 5))
    [answer] = retriever([Task(loaded, queries)])
    assert [hits.ids for hits in answer.hits] == [[], []]


def test_what_the_index_cannot_find_is_searched_exactly(
    store: Store, retriever: Retriever, catalogue: Catalogue
) -> None:
    write_bundle(store, "v1", catalogue, index="IVF8,Flat", parameters={"nprobe": 1})
    loaded = load_bundle(BundleLog(store), "v1")
    assert isinstance(loaded.index, AnnIndex)
    loaded.index.limit = 20  # as on a GPU, where it is 2048
    user = catalogue.user(["item-5"])
    excluded = catalogue.top(user, 15)
    few = Task(loaded, (Query(history("item-5"), 20),))
    many = Task(loaded, (Query(history("item-5"), 30),))
    struck = Task(loaded, (Query(history("item-5"), 10),), excluded=keys(*excluded))
    wide = Task(loaded, (Query(history("item-5"), 10),), nprobe=8)
    answers = retriever([few, many, struck, wide])
    assert answers[1].hits[0].ids == catalogue.top(user, 30)
    assert answers[2].hits[0].ids == catalogue.top(user, 10, excluded)
    assert answers[3].hits[0].ids == catalogue.top(user, 10)
    # The neighbours' searches stay approximate.
    assert answers[0].hits[0].ids == one(retriever, few).ids != catalogue.top(user, 20)


def test_all_that_a_user_has_seen_is_left_out_whatever_the_history_holds(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    seen = [f"item-{n}" for n in range(BOUND)]
    write_window(store, 0, [Event("ann", item, T + n) for n, item in enumerate(seen[:3])])
    write_window(store, 1, [Event("ann", item, T + 9 + n) for n, item in enumerate(seen[3:])])
    loaded, retriever = load_bundle(BundleLog(store), "v1"), Retriever(histories_of(store))
    ann = Query(ByUser(hash_id("ann")), 200)
    hits = one(retriever, Task(loaded, (ann,), exclude_seen=True))
    assert len(seen) > HISTORY_LENGTH
    assert hits.ids == catalogue.top(catalogue.user(seen), 200, seen)
    assert not hits.seen_bounded
    assert one(retriever, Task(loaded, (ann,))).ids == catalogue.top(catalogue.user(seen), 200)


def test_an_answer_says_that_not_all_that_was_seen_is_known(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    events = [Event("ann", f"item-{n}", T + n) for n in range(BOUND + 2)]
    write_window(store, 0, [*events, Event("bob", "item-1", T), Event("sad", "item-9", T, label=-1)])
    loaded, retriever = load_bundle(BundleLog(store), "v1"), Retriever(histories_of(store))
    queries = tuple(Query(ByUser(hash_id(user)), 200) for user in ("bob", "ann", "stranger", "sad"))
    [asked, plain] = retriever([Task(loaded, queries, exclude_seen=True), Task(loaded, queries)])
    assert [hits.seen_bounded for hits in asked.hits] == [False, True, False, False]
    assert not any(hits.seen_bounded for hits in plain.hits)
    known = [f"item-{n}" for n in range(2, BOUND + 2)]
    assert asked.hits[1].ids == catalogue.top(catalogue.user(known), 200, known)


def test_a_thousand_seen_items_do_not_hide_the_best_of_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst case: the seen items are the nearest ones, and fill the lists that a search visits."""
    monkeypatch.setattr("tests.serving.users.BOUND", 1000)
    catalogue = Catalogue.random(items=20_000)
    write_bundle(store, "v1", catalogue, index="IVF64,Flat", parameters={"nprobe": 2})
    recent = ["item-7", "item-8", "item-9", "item-10"]
    user = catalogue.user(recent)
    seen = list(dict.fromkeys([*catalogue.top(user, 996, recent), *recent]))
    write_window(store, 0, [Event("ann", item, T + n) for n, item in enumerate(seen)])
    loaded, retriever = load_bundle(BundleLog(store), "v1"), Retriever(histories_of(store))
    ann, bob = Query(ByUser(hash_id("ann")), 100), Query(history("item-5"), 100)
    [answer] = retriever([Task(loaded, (ann, bob), exclude_seen=True)])
    best = catalogue.top(user, 100, seen)
    assert len(set(answer.hits[0].ids) & set(best)) >= 98
    assert not set(answer.hits[0].ids) & set(seen)
    # One who shares the batch is searched for as if alone.
    assert answer.hits[1].ids == one(retriever, Task(loaded, (bob,), exclude_seen=True)).ids


def test_lists_are_added_for_excluded_items_unless_the_request_says_how_many(
    store: Store, retriever: Retriever, catalogue: Catalogue
) -> None:
    write_bundle(store, "v1", catalogue, index="IVF32,Flat", parameters={"nprobe": 2})
    loaded = load_bundle(BundleLog(store), "v1")
    visited = []
    search = loaded.index.search

    def counted(queries: np.ndarray, k: int, nprobe: int = 0) -> Found:
        visited.append(nprobe)
        return search(queries, k, nprobe)

    loaded.index.search = counted  # type: ignore[method-assign]
    for excluded, nprobe in ((0, 0), (1, 0), (3, 0), (6, 0), (3, 2)):
        few = keys(*(f"item-{n}" for n in range(excluded)))
        retriever([Task(loaded, (Query(history("item-50"), 5),), nprobe=nprobe, excluded=few)])
    assert visited == [0, 4, 8, 16, 2]
    struck = catalogue.top(catalogue.user(["item-50"]), 20)
    hits = one(retriever, Task(loaded, (Query(history("item-50"), 5),), excluded=keys(*struck)))
    assert len(visited) == 5, "all lists are as good as an exact search"
    assert hits.ids == catalogue.top(catalogue.user(["item-50"]), 5, struck)


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


def keys_of(*ids: str) -> ItemKeys:
    return ItemKeys(np.array([hash_id(item) for item in ids], np.int64))


@pytest.fixture(scope="module", params=[*KINDS, *(f"{kind}; cold" for kind in KINDS)])
def uneven_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedBundle:
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
    uneven_bundle: LoadedBundle,
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
    says, gone = Described(tags), keys_of(*down)
    task = Task(
        says.beside(uneven_bundle),
        tuple(Query(SOURCES[name], k) for name, k in asked),
        nprobe=nprobe,
        exclude_seen=exclude_seen,
        excluded=keys_of(*excluded),
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
