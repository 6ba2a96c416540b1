"""Answers of a bundle with a second phase, against brute force: the best of the index, by scores worked out here."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.deltas import base, changed, dense, drawn, write_delta
from tests.serving.rescorers import bilinear, form, with_scorer
from tests.serving.support import Catalogue, histories_of, mean_tower, user_weights, write_bundle, write_window
from tests.serving.tagging import Described
from tests.serving.users import Event
from weir.contracts import BundleLog, Store, hash_id
from weir.contracts.base.errors import IncompatibleBundleError
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import Route, load_bundle
from weir.serving.bundles.watcher import Change as ChangeInPlace
from weir.serving.bundles.watcher import Start
from weir.serving.index.diversity import TagCap
from weir.serving.index.eligibility import CatalogueView
from weir.serving.processes.arrays import MappedArrays, SharedArrays
from weir.serving.processes.version import Models, SharedVersion
from weir.serving.search.cost import task_cost
from weir.serving.search.queries import ByEmbedding, ByHistory, ByItem, ByUser, Hits, Query, Source, Task
from weir.serving.search.retriever import Retriever

T = 1_700_000_000_000
CANDIDATES = 20


def history(*ids: str) -> ByHistory:
    return ByHistory(ids, np.array([hash_id(item) for item in ids], np.int64))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.random(items=120)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, catalogue: Catalogue) -> tuple[LoadedBundle, Retriever]:
    store = Store(str(tmp_path_factory.mktemp("store")))
    manifest = write_bundle(store, "v1", catalogue, index="IVF4,Flat", parameters={"nprobe": 4})
    with_scorer(store, manifest, CANDIDATES, bilinear(form()))
    write_window(store, 0, [Event("ann", f"item-{number}", T + number) for number in range(5)])
    return load_bundle(BundleLog(store), "v1"), Retriever(histories_of(store))


def ranked(
    catalogue: Catalogue, vector: np.ndarray, k: int, without: Sequence[str] = (), candidates: int = CANDIDATES
) -> list[tuple[str, float]]:
    """The answer and its scores, by brute force."""
    best = catalogue.top(vector, max(k, candidates), without)
    places = [catalogue.ids.index(item) for item in best]
    scores = catalogue.vectors[places] @ (vector @ form())
    order = np.argsort(-scores, kind="stable")[:k]
    return [(best[place], float(scores[place])) for place in order]


def asked(retriever: Retriever, task: Task) -> Hits:
    [answer] = retriever([task])
    return answer.hits[0]


def same(hits: Hits, wanted: list[tuple[str, float]]) -> None:
    assert hits.ids == [item for item, _ in wanted]
    np.testing.assert_allclose(hits.scores, [score for _, score in wanted], rtol=1e-3, atol=1e-4)


def test_users_and_embeddings_are_scored_again_and_neighbours_of_items_and_popular_items_are_not(
    served: tuple[LoadedBundle, Retriever], catalogue: Catalogue
) -> None:
    bundle, retriever = served
    vector = np.random.default_rng(3).standard_normal(8).astype(np.float32)
    vector /= np.linalg.norm(vector)
    again: list[tuple[Source, np.ndarray]] = [
        (ByUser(hash_id("ann")), catalogue.user([f"item-{number}" for number in range(5)])),
        (history("item-5", "item-6"), catalogue.user(["item-5", "item-6"])),
        (ByEmbedding(5 * vector), vector),
    ]
    others: list[Source] = [ByItem("item-8", hash_id("item-8")), ByUser(hash_id("nobody"))]
    queries = tuple(Query(source, 7) for source in [*(source for source, _ in again), *others])
    [answer] = retriever([Task(bundle, queries)])
    for hits, (_, user) in zip(answer.hits[:3], again, strict=True):
        same(hits, ranked(catalogue, user, 7))
    assert answer.hits[3].ids == catalogue.top(catalogue.vectors[8], 7, ["item-8"])
    assert answer.hits[4].ids == catalogue.most_popular(7)
    # A vector that was given out asks what its history asks.
    vectors = asked(retriever, Task(bundle, (Query(again[1][0], 7),), find=False)).vector
    assert vectors is not None
    same(asked(retriever, Task(bundle, (Query(ByEmbedding(vectors), 7),))), ranked(catalogue, again[1][1], 7))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    allowed=st.lists(st.integers(0, 130), max_size=60),
    excluded=st.lists(st.integers(0, 130), max_size=40),
    k=st.integers(1, 60),
    wishes=st.fixed_dictionaries({"exact": st.booleans(), "exclude_seen": st.booleans()}),
    threshold=st.one_of(st.none(), st.floats(-2, 2, width=32)),
)
def test_filters_thresholds_and_excluded_items_agree_with_brute_force(
    *,
    served: tuple[LoadedBundle, Retriever],
    catalogue: Catalogue,
    allowed: list[int],
    excluded: list[int],
    k: int,
    wishes: dict[str, bool],
    threshold: float | None,
) -> None:
    bundle, retriever = served
    without = {f"item-{i}" for i in excluded} | ({"item-7", "item-4"} if wishes["exclude_seen"] else set())
    within = {f"item-{i}" for i in allowed} if allowed else set(catalogue.ids)
    task = Task(
        bundle,
        (Query(history("item-7", "item-4"), k),),
        threshold=threshold,
        excluded=np.array([hash_id(f"item-{i}") for i in excluded], np.int64),  # type: ignore[arg-type]
        allowed=np.array([hash_id(item) for item in sorted(within)], np.int64) if allowed else None,  # type: ignore[arg-type]
        **wishes,  # type: ignore[arg-type]
    )
    hidden = [item for item in catalogue.ids if item in without or item not in within]
    wanted = ranked(catalogue, catalogue.user(["item-7", "item-4"]), k, hidden)
    same(asked(retriever, task), [one for one in wanted if threshold is None or one[1] >= np.float32(threshold)])


@pytest.mark.parametrize(("setting", "candidates"), [(0, 0), (3, 3), (1000, 1000), (None, CANDIDATES)])
def test_the_server_may_score_more_or_fewer_again_or_none(
    served: tuple[LoadedBundle, Retriever], catalogue: Catalogue, setting: int | None, candidates: int
) -> None:
    bundle, retriever = served
    retriever, user = replace(retriever, rescored=setting), catalogue.user(["item-1"])
    hits = asked(retriever, Task(bundle, (Query(history("item-1"), 6),)))
    if candidates:
        same(hits, ranked(catalogue, user, 6, candidates=candidates))
    else:
        assert hits.ids == catalogue.top(user, 6)
        np.testing.assert_allclose(hits.scores, sorted(catalogue.vectors @ user)[:-7:-1], rtol=1e-4)


def test_queries_of_a_batch_do_not_touch_each_other(
    served: tuple[LoadedBundle, Retriever], catalogue: Catalogue
) -> None:
    bundle, retriever = served
    tasks = [
        Task(bundle, (Query(history(f"item-{place}", "item-1"), 1 + place),), exclude_seen=bool(place % 2))
        for place in range(30)
    ]
    for place, (task, answer) in enumerate(zip(tasks, retriever(tasks), strict=True)):
        alone = asked(retriever, task)
        assert answer.hits[0].ids == alone.ids, place
        np.testing.assert_allclose(answer.hits[0].scores, alone.scores, rtol=1e-4, atol=1e-5)


def test_a_cap_on_tags_takes_the_candidates_in_the_new_order(
    served: tuple[LoadedBundle, Retriever], catalogue: Catalogue
) -> None:
    """Where the candidates are not enough, the search goes on, and what it finds is scored as well."""
    bundle, retriever = served
    rare = {item for place, item in enumerate(catalogue.ids) if place % 20 == 1}
    says = Described({item: {"rare" if item in rare else "usual"} for item in catalogue.ids})
    bundle = replace(bundle, state=replace(bundle.state, view=CatalogueView.of(says.catalogue(), bundle.rows, "")))
    user = catalogue.user(["item-1"])
    hits = asked(retriever, Task(bundle, (Query(history("item-1"), 6),), cap=TagCap(3)))
    first = [item for item, _ in ranked(catalogue, user, 24)]
    assert [item for item in hits.ids if item not in rare] == [item for item in first if item not in rare][:3]
    assert sum(item in rare for item in hits.ids) == 3 > sum(item in rare for item in first)
    scores = catalogue.vectors[[catalogue.ids.index(item) for item in hits.ids]] @ (user @ form())
    np.testing.assert_allclose(hits.scores, scores, rtol=1e-3, atol=1e-4)
    assert sorted(hits.scores, reverse=True) == hits.scores


def test_users_of_whom_features_alone_are_known_are_scored_again(store: Store, catalogue: Catalogue) -> None:
    manifest = write_bundle(
        store, "v1", catalogue, index="IVF4,Flat", parameters={"nprobe": 4}, user_features=user_weights()
    )
    with_scorer(store, manifest, CANDIDATES, bilinear(form()))
    bundle, retriever = load_bundle(BundleLog(store), "v1"), Retriever(histories_of(store))
    added = user_weights().embeddings(pa.table({"country": [["de"]], "age": [31.0]}))[0]
    nobody = Query(ByUser(hash_id("nobody")), 7, {"country": ("de",), "age": 31.0})
    hits = asked(retriever, Task(bundle, (nobody,)))
    assert not hits.fallback
    same(hits, ranked(catalogue, added / np.linalg.norm(added), 7))


def test_a_delta_brings_its_own_scorer_beside_the_served_version_or_in_place(store: Store) -> None:
    first, catalogue = base(store, "IVF4,Flat")
    first, random = with_scorer(store, first, CANDIDATES, bilinear(form())), np.random.default_rng(5)
    change = drawn(catalogue, random, 1)
    catalogue = changed(catalogue, change)
    with_scorer(store, write_delta(store, "v1", first, catalogue, change), CANDIDATES, bilinear(-form()))
    log, retriever = BundleLog(store), Retriever(histories_of(store))
    served = load_bundle(log, "v0", places=True)
    query = ByEmbedding(random.standard_normal(8).astype(np.float32))
    beside = asked(retriever, Task(load_bundle(log, "v1", served=served), (Query(query, 9),)))
    route = Route.find(log, "v1", served)
    start = Start.of(route)
    assert start is not None
    in_place = asked(retriever, Task(ChangeInPlace.prepare(start, route, 1).take(), (Query(query, 9),)))
    assert beside.ids == in_place.ids
    there, vector = dense(catalogue), query.values / np.linalg.norm(query.values)
    places = [there.ids.index(item) for item in beside.ids]
    np.testing.assert_allclose(beside.scores, there.vectors[places] @ (vector @ -form()), rtol=1e-3, atol=1e-4)


def test_processes_that_share_a_version_score_again(
    served: tuple[LoadedBundle, Retriever], catalogue: Catalogue
) -> None:
    bundle, retriever = served
    arrays = SharedArrays()
    shared = SharedVersion.of(bundle, Models(mean_tower(), bilinear(form())), arrays)
    opened = MappedArrays().open(arrays.package(shared)).opened(1)
    assert opened.rescored == CANDIDATES
    same(
        asked(retriever, Task(opened, (Query(history("item-3"), 8),))), ranked(catalogue, catalogue.user(["item-3"]), 8)
    )


def test_a_scorer_that_cannot_be_used_is_incompatible(store: Store, catalogue: Catalogue) -> None:
    for scorer, problem in ((b"no model", "cannot be used"), (bilinear(np.nan * form()), "not finite")):
        with_scorer(store, write_bundle(store, "v1", catalogue), 5, scorer)
        with pytest.raises(IncompatibleBundleError, match=f"scorer.onnx: .*{problem}"):
            load_bundle(BundleLog(store), "v1")


def test_candidates_cost(served: tuple[LoadedBundle, Retriever]) -> None:
    bundle, _ = served
    one, other = (Task(each, (Query(history("item-1"), 5),)) for each in (bundle, replace(bundle, scorer=None)))
    assert task_cost(one) == pytest.approx(task_cost(other) + 0.4 * CANDIDATES)
