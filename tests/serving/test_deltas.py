"""A bundle and its deltas answer as the complete bundle that holds the same."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.deltas import (
    KINDS,
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
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import BundleFile, BundleLog, CorruptArtefactError, Store
from weir.serving.bundles.loading import load_bundle
from weir.serving.errors import IncompatibleBundleError
from weir.serving.index.index import AnnIndex


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
