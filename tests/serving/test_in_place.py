"""A bundle and its deltas answer as the complete bundle that holds the same."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.deltas import (
    KINDS,
    QUERIES,
    Change,
    assert_same,
    base,
    changed,
    dense,
    drawn,
    write_array,
    write_delta,
    write_same_centroids,
)
from tests.serving.support import Catalogue, histories_of, user_weights, write_bundle
from weir.contracts import BundleFile, BundleLog, BundleManifest, CorruptArtefactError, Store
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import Memory, Route, load_bundle
from weir.serving.bundles.watcher import Change as ChangeInPlace
from weir.serving.bundles.watcher import DamagedIndexError, DeltaPolicy, Start
from weir.serving.errors import BundleVersionNotLoadedError, IncompatibleBundleError, NoBundleError
from weir.serving.index.index import AnnIndex
from weir.serving.search.queries import ByEmbedding, Query, Task
from weir.serving.search.retriever import Retriever


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_a_chain_answers_as_the_complete_bundle_of_the_same_vectors(kind: str, seed: int, deltas: int) -> None:
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        manifest, catalogue = base(store, kind)
        first, log = manifest, BundleLog(store)
        served = load_bundle(log, "v0")
        for number in range(1, deltas + 1):
            change = drawn(catalogue, rng, number)
            catalogue = changed(catalogue, change)
            manifest = write_delta(store, f"v{number}", manifest, catalogue, change)
            served = load_bundle(log, manifest.version, served=served)
        write_same_centroids(store, "complete", first, dense(catalogue))
        complete = load_bundle(log, "complete")
        # Applied one by one beside what is served, and read at once after a restart.
        for mine in (served, load_bundle(log, manifest.version)):
            assert mine.version == manifest.version
            assert_same(mine, complete, dense(catalogue).ids)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_served_stays_as_it_is_and_is_shared(store: Store, kind: str) -> None:
    manifest, catalogue = base(store, kind)
    log, other = BundleLog(store), Store(f"{store.url}-other")
    served = load_bundle(log, "v0")
    change = Change([1, 2, 3], {4: "new", 40: "further"}, [5])
    write_delta(store, "v1", manifest, changed(catalogue, change), change)
    later = load_bundle(log, "v1", served=served)
    assert later.rows.vectors.base is served.rows.vectors.base
    assert later.embeddings.base is served.embeddings.base
    assert later.ids.base is served.ids.base
    base(other, kind)
    assert_same(served, load_bundle(BundleLog(other), "v0"), catalogue.ids)


def test_a_delta_of_a_delta_is_applied_to_its_grandparent(store: Store) -> None:
    manifest, catalogue = base(store, "IVF4,Flat")
    served = load_bundle(BundleLog(store), "v0")
    for number in (1, 2):
        change = Change([number], {}, [10 + number], number)
        catalogue = changed(catalogue, change)
        manifest = write_delta(store, f"v{number}", manifest, catalogue, change)
    later = load_bundle(BundleLog(store), "v2", served=served)
    assert later.rows.vectors.base is served.rows.vectors.base
    assert later.items == 38


def test_another_chain_is_read_whole(store: Store) -> None:
    manifest, catalogue = base(store)
    change = Change([1], {}, [])
    write_delta(store, "v1", manifest, changed(catalogue, change), change)
    served = load_bundle(BundleLog(store), "v1")
    write_bundle(store, "w0", Catalogue.random(seed=9))
    assert load_bundle(BundleLog(store), "w0", served=served).items == 200
    back = load_bundle(BundleLog(store), "v0", served=served)
    assert_same(back, load_bundle(BundleLog(store), "v0"), catalogue.ids)


def test_appended_lists_are_searched(store: Store) -> None:
    manifest, catalogue = base(store, "IVF4,Flat")
    change = Change([7], {}, [])
    catalogue = changed(catalogue, change)
    made = write_delta(store, "v1", manifest, catalogue, change, centroids=catalogue.vectors[7:8])
    # Its list is the one that was appended.
    entry = write_array(store, f"bundles/v1/{BundleFile.LISTS}", np.array([4], np.int32))
    files = tuple(entry if file.name == BundleFile.LISTS else file for file in made.files)
    BundleLog(store).commit(made.model_copy(update={"files": files}))
    bundle = load_bundle(BundleLog(store), "v1")
    assert bundle.index.lists == 5
    assert isinstance(bundle.index, AnnIndex)
    found = bundle.index.search(catalogue.vectors[7:8], 1, nprobe=1)
    assert found.rows.tolist() == [[7]]


FILES = [
    BundleFile.ITEMS,
    BundleFile.EMBEDDINGS,
    BundleFile.VECTORS,
    BundleFile.REMOVED,
    BundleFile.LISTS,
    BundleFile.TOWER,
]


@pytest.mark.parametrize("name", FILES)
def test_every_damaged_byte_of_a_delta_is_noticed(store: Store, name: str) -> None:
    manifest, catalogue = base(store, "IVF4,Flat")
    change = Change([1], {}, [3])
    write_delta(store, "v1", manifest, changed(catalogue, change), change)
    path = Path(store.path(f"bundles/v1/{name}"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptArtefactError, match=f"v1/{name}"):
        load_bundle(BundleLog(store), "v1", served=load_bundle(BundleLog(store), "v0"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (Change([], {41: "new"}, []), "adds rows, but not all of 40 to 41"),
        (Change([], {40: "item-3"}, []), "adds an item that is there already"),
        (Change([1], {}, [1]), "names rows twice"),
        (Change([], {}, [40]), "without an item"),
        (Change([], {}, [2, 2]), "names rows twice"),
    ],
)
def test_a_delta_that_does_not_fit_is_refused(store: Store, change: Change, problem: str) -> None:
    manifest, catalogue = base(store)
    made = changed(catalogue, Change(change.rows, change.new, []))
    write_delta(store, "v1", manifest, made, change, items=len(catalogue.ids))
    with pytest.raises(IncompatibleBundleError, match=problem):
        load_bundle(BundleLog(store), "v1")


def test_lists_that_there_are_not_and_other_counts_are_refused(store: Store) -> None:
    manifest, catalogue = base(store, "IVF4,Flat")
    change, log = Change([1], {}, []), BundleLog(store)
    made = write_delta(store, "v1", manifest, changed(catalogue, change), change)
    entry = write_array(store, f"bundles/v1/{BundleFile.LISTS}", np.array([4], np.int32))
    files = tuple(entry if file.name == BundleFile.LISTS else file for file in made.files)
    log.commit(made.model_copy(update={"files": files}))
    with pytest.raises(IncompatibleBundleError, match=r"lists.npy: cannot be used: names no lists"):
        load_bundle(log, "v1")
    made = write_delta(store, "v1", manifest, changed(catalogue, change), change)
    log.commit(made.model_copy(update={"items": 39}))
    with pytest.raises(IncompatibleBundleError, match="makes 40 items, the manifest says 39"):
        load_bundle(log, "v1")


def test_a_lost_parent_is_named(store: Store) -> None:
    manifest, catalogue = base(store)
    change = Change([1], {}, [])
    write_delta(store, "v1", manifest, changed(catalogue, change), change)
    store.remove("bundles/v0")
    with pytest.raises(CorruptArtefactError, match=r"bundles/v0/MANIFEST.json: is missing, and bundle v1 changes it"):
        load_bundle(BundleLog(store), "v1")


IVF = ["IVF4,Flat", "IVF4,SQfp16", "IVF4,SQ8"]


def prepared(log: BundleLog, version: str, served: LoadedBundle) -> ChangeInPlace:
    route = Route.find(log, version, served)
    start = Start.of(route)
    assert start is not None
    return ChangeInPlace.prepare(start, route, 1)


def chained(store: Store, catalogue: Catalogue, first: BundleManifest, changes: list[Change]) -> Catalogue:
    """Write the deltas v1, v2, ... and return the catalogue after them."""
    manifest = first
    for number, change in enumerate(changes, 1):
        catalogue = changed(catalogue, change)
        manifest = write_delta(store, f"v{number}", manifest, catalogue, change)
    return catalogue


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(IVF), st.integers(0, 2**32 - 1), st.integers(1, 4), st.booleans())
def test_a_chain_taken_in_place_answers_as_clones_and_as_the_complete_bundle(
    kind: str, seed: int, deltas: int, at_once: bool
) -> None:
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        store, log = Store(folder), BundleLog(Store(folder))
        first, catalogue = base(store, kind)
        served, beside = load_bundle(log, "v0", places=True), load_bundle(log, "v0")
        manifest = first
        for number in range(1, deltas + 1):
            change = drawn(catalogue, rng, number)
            catalogue = changed(catalogue, change)
            manifest = write_delta(store, f"v{number}", manifest, catalogue, change)
            beside = load_bundle(log, manifest.version, served=beside)
            if not at_once:
                served = prepared(log, manifest.version, served).take()
        if at_once:
            served = prepared(log, manifest.version, served).take()
        write_same_centroids(store, "complete", first, dense(catalogue))
        complete = load_bundle(log, "complete")
        assert served.version == manifest.version
        for other in (beside, complete):
            assert_same(served, other, dense(catalogue).ids)


def test_appended_lists_are_searched_as_in_a_clone(store: Store) -> None:
    first, catalogue = base(store, "IVF4,SQfp16")
    log, change = BundleLog(store), Change(list(range(5, 15)), {40: "new"}, [20])
    catalogue = changed(catalogue, change)
    made = write_delta(store, "v1", first, catalogue, change, centroids=catalogue.vectors[[7, 40]])
    lists = np.array([4] * 5 + [5] * 6, np.int32)
    entry = write_array(store, f"bundles/v1/{BundleFile.LISTS}", lists)
    files = tuple(entry if file.name == BundleFile.LISTS else file for file in made.files)
    log.commit(made.model_copy(update={"files": files}))
    beside = load_bundle(log, "v1", served=load_bundle(log, "v0"))
    served = prepared(log, "v1", load_bundle(log, "v0", places=True)).take()
    assert served.index.lists == beside.index.lists == 6
    for nprobe in (1, 2, 6):
        mine, theirs = (one.index.search(QUERIES, 12, nprobe) for one in (served, beside))
        np.testing.assert_allclose(mine.scores, theirs.scores, atol=1e-6)
        np.testing.assert_array_equal(mine.rows, theirs.rows)


def test_the_index_is_the_same_object_and_the_clone_of_a_changed_one_can_be_changed(store: Store) -> None:
    first, catalogue = base(store, "IVF4,Flat")
    log, changes = BundleLog(store), [Change([1, 2], {40: "new"}, [5], 1), Change([3], {}, [40], 2)]
    catalogue = chained(store, catalogue, first, [*changes, Change([9], {5: "again"}, [], 3)])
    served = load_bundle(log, "v0", places=True)
    later = prepared(log, "v1", served).take()
    assert isinstance(served.index, AnnIndex)
    assert isinstance(later.index, AnnIndex)
    assert later.index.index is served.index.index
    cloned = load_bundle(log, "v2", served=later)
    assert_same(prepared(log, "v3", cloned).take(), load_bundle(log, "v3"), dense(catalogue).ids)


def test_what_waits_is_answered_from_the_version_that_has_the_index(store: Store) -> None:
    first, catalogue = base(store, "IVF4,Flat")
    moved = Change(list(range(30)), {}, [], 5)
    chained(store, catalogue, first, [moved, Change([1], {}, [], 6)])
    log = BundleLog(store)
    served = load_bundle(log, "v0", places=True)
    task = Task(served, (Query(ByEmbedding(QUERIES[0]), 7),), exact=False, nprobe=4)
    retriever = Retriever(histories_of(store))
    [before] = retriever([task])
    newest = prepared(log, "v2", prepared(log, "v1", served).take()).take()
    [after] = retriever([task])
    assert (before.version, after.version) == ("v0", "v2")
    wanted = newest.exact.search(newest.normalised(QUERIES[:1]), 7)
    assert after.hits[0].ids == newest.ids[wanted.rows[0]].tolist() != before.hits[0].ids
    with pytest.raises(BundleVersionNotLoadedError, match="'v0' is not loaded; the loaded one is 'v2': pin that, or"):
        retriever([replace(task, pinned=True)])


def test_a_delta_that_does_not_fit_changes_nothing(store: Store) -> None:
    first, catalogue = base(store, "IVF4,Flat")
    log, change = BundleLog(store), Change([1], {}, [3])
    made = write_delta(store, "v1", first, changed(catalogue, change), change)
    served = load_bundle(log, "v0", places=True)
    entry = write_array(store, f"bundles/v1/{BundleFile.LISTS}", np.array([4], np.int32))
    files = tuple(entry if file.name == BundleFile.LISTS else file for file in made.files)
    log.commit(made.model_copy(update={"files": files}))
    with pytest.raises(CorruptArtefactError, match=r"v1/lists\.npy.*others than 0 to 3"):
        prepared(log, "v1", served)
    log.commit(made.model_copy(update={"files": files, "items": 40}))
    with pytest.raises(CorruptArtefactError, match="makes 39 items, the manifest says 40"):
        prepared(log, "v1", served)
    assert_same(served, load_bundle(log, "v0"), catalogue.ids)
    assert served.answering() is served


def test_an_index_whose_change_fails_midway_is_not_searched_again(store: Store) -> None:
    first, catalogue = base(store, "IVF4,Flat")
    chained(store, catalogue, first, [Change([1], {}, [3]), Change([2], {}, [], 1)])
    log = BundleLog(store)
    served = load_bundle(log, "v0", places=True)
    later = prepared(log, "v1", served).take()
    change = prepared(log, "v2", later)
    assert isinstance(later.index, AnnIndex)
    later.index.index.reset()
    with pytest.raises(DamagedIndexError, match="v1 cannot be searched any more"):
        change.take()
    for bundle in (served, later):
        task = Task(bundle, (Query(ByEmbedding(QUERIES[0]), 3),))
        with pytest.raises(NoBundleError):
            Retriever(histories_of(store))([task])


def test_an_index_that_is_not_whole_is_not_changed(store: Store) -> None:
    first, catalogue = base(store, "IVF4,Flat")
    chained(store, catalogue, first, [Change([1], {}, [3])])
    log = BundleLog(store)
    served = load_bundle(log, "v0", places=True)
    assert isinstance(served.index, AnnIndex)
    served.index.index.reset()
    with pytest.raises(CorruptArtefactError, match="the index has 0 vectors, its bundle 40 items"):
        prepared(log, "v1", served)


@pytest.mark.parametrize("kind", ["Flat", "HNSW8", "IVF4,Flat"])
def test_only_lists_that_keep_places_are_changed_in_place(store: Store, kind: str) -> None:
    first, catalogue = base(store, kind)
    log, change = BundleLog(store), Change([1], {}, [])
    write_delta(store, "v1", first, changed(catalogue, change), change)
    for places in (True, False):
        served = load_bundle(log, "v0", places=places)
        assert (Start.of(Route.find(log, "v1", served)) is not None) == (places and "IVF" in kind)
    assert Start.of(Route.find(log, "v1", None)) is None


def test_another_kind_of_search_is_loaded_beside(store: Store) -> None:
    first, catalogue = base(store, "IVF4,Flat")
    log, change = BundleLog(store), Change([1], {}, [])
    other = first.index.model_copy(update={"parameters": {}})
    write_delta(store, "v1", first, changed(catalogue, change), change, index=other)
    assert Start.of(Route.find(log, "v1", load_bundle(log, "v0", places=True))) is None


GIB = 1 << 30


@pytest.mark.parametrize(
    ("how", "changes", "limit", "in_place"),
    [
        ("auto", 20_000, GIB, True),
        ("auto", 20_001, GIB, False),
        ("auto", 20_001, 1 << 20, True),
        ("in_place", 20_001, GIB, True),
        ("clone", 1, 1 << 20, False),
    ],
)
def test_large_changes_are_made_beside_where_memory_allows(
    store: Store, how: str, changes: int, limit: int, in_place: bool
) -> None:
    first, catalogue = base(store, "IVF4,Flat")
    log, change = BundleLog(store), Change([1], {}, [])
    write_delta(store, "v1", first, changed(catalogue, change), change)
    route = Route.find(log, "v1", load_bundle(log, "v0", places=True))
    large = route.deltas[0].manifest.model_copy(update={"changed": changes})
    route = replace(route, chain=[route.chain[0], replace(route.chain[1], manifest=large)])
    policy = DeltaPolicy(how, Memory(limit))  # type: ignore[arg-type]
    assert (policy.in_place(route) is not None) == in_place


@pytest.mark.parametrize("how", ["beside", "in_place"])
def test_a_delta_brings_what_user_features_say_now(store: Store, how: str) -> None:
    manifest, catalogue = base(store, "IVF4,Flat")
    log = BundleLog(store)
    served = load_bundle(log, "v0", places=True)
    assert served.user_features is None
    change = Change([1, 2, 3], {4: "new", 40: "further"}, [5])
    said = store.write(f"bundles/v1/{BundleFile.USER_FEATURES}", user_weights().encode())
    written = write_delta(store, "v1", manifest, changed(catalogue, change), change, promote=False)
    log.commit(written.model_copy(update={"files": (*written.files, said)}))
    route = Route.find(log, "v1", served)
    if how == "beside":
        after = route.load("cpu", 1)
    else:
        start = Start.of(route)
        assert start is not None
        after = ChangeInPlace.prepare(start, route, 1).take()
    assert after.user_features is not None
    assert after.user_features.encode() == user_weights().encode()
