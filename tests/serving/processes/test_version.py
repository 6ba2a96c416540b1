from pathlib import Path

import faiss
import numpy as np
import pytest

from tests.serving.deltas import KINDS, QUERIES, assert_same, base, changed, dense, drawn, write_delta
from tests.serving.support import Catalogue, mean_tower, user_weights, write_bundle
from weir.contracts import BundleFile, BundleLog, Store
from weir.contracts.base.string_arrays import Texts
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.serving.index.index import AnnIndex
from weir.serving.processes.arrays import MappedArrays, SharedArrays
from weir.serving.processes.version import Models, SharedVersion


def opened(bundle: LoadedBundle, arrays: SharedArrays, reader: MappedArrays) -> tuple[LoadedBundle, LoadedBundle]:
    """Return a bundle as a process has it, and as its builder keeps it."""
    package = arrays.package(SharedVersion.of(bundle, Models(mean_tower()), arrays))
    return reader.open(package).opened(1), arrays.mapped.open(package).kept(bundle)


@pytest.mark.parametrize("kind", [*KINDS, "HNSW8"])
def test_an_opened_version_answers_as_the_bundle_does(store: Store, kind: str) -> None:
    write_bundle(store, "v0", made := Catalogue.random(items=60), index=kind)
    bundle = load_bundle(BundleLog(store), "v0")
    found, kept = opened(bundle, SharedArrays(), MappedArrays())
    assert found.servable_at == bundle.servable_at
    for one in (found, kept):
        assert_same(one, bundle, made.ids)


def test_every_process_knows_what_user_features_say(store: Store) -> None:
    write_bundle(store, "v0", Catalogue.random(items=60), user_features=user_weights())
    found, kept = opened(load_bundle(BundleLog(store), "v0"), SharedArrays(), MappedArrays())
    for one in (found, kept):
        assert one.user_features is not None
        assert one.user_features.encode() == user_weights().encode()


@pytest.mark.parametrize("kind", KINDS)
def test_it_follows_a_chain_of_deltas(store: Store, kind: str) -> None:
    manifest, catalogue = base(store, kind)
    arrays, reader, random = SharedArrays(), MappedArrays(), np.random.default_rng(2)
    kept = load_bundle(BundleLog(store), "v0", places=True)
    kept = opened(kept, arrays, reader)[1]
    for number in range(1, 6):
        change = drawn(catalogue, random, number)
        catalogue = changed(catalogue, change)
        manifest = write_delta(store, f"v{number}", manifest, catalogue, change)
        there = load_bundle(BundleLog(store), f"v{number}", served=kept)
        found, kept = opened(there, arrays, reader)
        assert_same(found, load_bundle(BundleLog(store), f"v{number}"), dense(catalogue).ids)


def test_what_deltas_do_not_change_is_the_same_object_in_all_versions(store: Store) -> None:
    """`weir.contracts.base.arrays` and the catalogue tell by it that two versions share a base."""
    catalogue = Catalogue.random(items=10_000)
    manifest = write_bundle(store, "v0", catalogue)
    arrays, reader = SharedArrays(), MappedArrays()
    first, kept = opened(load_bundle(BundleLog(store), "v0"), arrays, reader)
    change = drawn(catalogue, np.random.default_rng(0), 1)
    write_delta(store, "v1", manifest, changed(catalogue, change), change)
    second, _ = opened(load_bundle(BundleLog(store), "v1", served=kept), arrays, reader)
    for name in ("keys", "vectors", "embeddings", "popularity"):
        assert getattr(second.rows, name).base is getattr(first.rows, name).base
    assert second.popular.order is first.popular.order


def test_the_places_of_rows_stay_with_who_changes_them(store: Store) -> None:
    base(store, "IVF4,SQfp16")
    bundle = load_bundle(BundleLog(store), "v0", places=True)
    found, kept = opened(bundle, SharedArrays(), MappedArrays())
    assert bundle.changeable is not None
    assert kept.changeable is not None
    assert found.changeable is None
    assert isinstance(found.index, AnnIndex)
    assert found.index.chooses_lists
    np.testing.assert_array_equal(found.index.lists_of(np.arange(40)), kept.changeable.lists_of(np.arange(40)))


def test_the_lists_are_mapped(store: Store) -> None:
    """They lie in the file's pages: its number is among those of the mapping that holds their address."""
    write_bundle(store, "v0", Catalogue.random(items=5000), index="IVF4,SQfp16")
    found, _ = opened(load_bundle(BundleLog(store), "v0"), SharedArrays(), MappedArrays())
    assert isinstance(found.index, AnnIndex)
    address = int(faiss.rev_swig_ptr(found.index.index.invlists.get_codes(0), 1).ctypes.data)
    ranges = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    [name] = [line[-2] for line in ranges if int(line[0].split("-")[0], 16) <= address < int(line[0].split("-")[1], 16)]
    assert "memfd:weir-" in name
    assert isinstance(found.rows.ids.base, Texts)


def test_a_bundle_without_items_is_opened(store: Store) -> None:
    manifest, catalogue = base(store, "Flat", items=3)
    change = drawn(catalogue, np.random.default_rng(0), 1)
    change.rows, change.new, change.removed = [], {}, [0, 1, 2]
    write_delta(store, "v1", manifest, changed(catalogue, change), change)
    found, _ = opened(load_bundle(BundleLog(store), "v1"), SharedArrays(), MappedArrays())
    assert found.items == 0
    assert BundleFile.TOWER in {entry.name for entry in found.manifest.files}
    assert found.users(np.array([[1, 2]])).shape == (1, QUERIES.shape[1])
