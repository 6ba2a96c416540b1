import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from tests.serving.support import Catalogue, mean_tower, write_bundle
from weir.contracts import BundleFile, BundleLog, BundleManifest, CorruptArtefactError, Store, hash_id
from weir.contracts.documents import write_document
from weir.serving.errors import IncompatibleBundleError
from weir.serving.index import AnnIndex, ExactIndex
from weir.serving.loading import load_bundle
from weir.serving.vectors import QueryVectors

FILES = [BundleFile.INDEX, BundleFile.ITEMS, BundleFile.EMBEDDINGS, BundleFile.VECTORS, BundleFile.TOWER]


def keys(*ids: str) -> np.ndarray:
    return np.array([hash_id(item) if item else 0 for item in ids], np.int64)


def test_rows_are_found_by_key(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    bundle = load_bundle(BundleLog(store), "v1")
    every = bundle.rows_of(keys(*catalogue.ids))
    np.testing.assert_array_equal(every, np.arange(len(catalogue.ids)))
    np.testing.assert_array_equal(bundle.rows_of(keys("nobody", "", "item-7")), [-1, -1, 7])
    assert bundle.ids[7] == "item-7"
    assert bundle.ids[bundle.popular.first(5)].tolist() == catalogue.most_popular(5)


@pytest.mark.parametrize("read", [None, 2, 9])
@pytest.mark.parametrize("history", [["item-1"], ["item-1", "nobody"], [f"item-{i}" for i in range(9)]])
def test_users_are_the_towers_vectors(store: Store, catalogue: Catalogue, history: list[str], read: int | None) -> None:
    write_bundle(store, "v1", catalogue, history_read=read)
    bundle = load_bundle(BundleLog(store), "v1")
    asked = keys(*history)
    vectors = QueryVectors(bundle)
    vectors.history(bundle.rows_of(asked))
    known = [item for item in history if item in catalogue.ids]
    for users in (bundle.users(asked[None]), vectors.made()):
        # The model knows nothing of histories that are longer than those it was trained on.
        np.testing.assert_allclose(users[0], catalogue.user(known[-(read or 9) :]), rtol=1e-5, atol=1e-6)


def test_only_the_cosine_metric_normalises(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue, metric="inner_product", tower=mean_tower(scale=3.0))
    user = load_bundle(BundleLog(store), "v1").users(keys("item-1")[None])
    np.testing.assert_allclose(user[0], 3 * catalogue.embeddings[3], rtol=1e-5)


def test_a_zero_vector_stays_finite(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    assert not load_bundle(BundleLog(store), "v1").normalised(np.zeros((1, 8), np.float32)).any()


def test_a_flat_index_keeps_one_copy_of_the_vectors(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "flat", catalogue)
    write_bundle(store, "ivf", catalogue, index="IVF4,Flat", parameters={"nprobe": 2})
    flat, ivf = (load_bundle(BundleLog(store), version) for version in ("flat", "ivf"))
    assert flat.index is flat.exact
    assert isinstance(ivf.index, AnnIndex)
    assert isinstance(ivf.exact, ExactIndex)


def test_an_empty_bundle_loads(store: Store) -> None:
    nothing = Catalogue([], np.empty((0, 8), np.float32), np.zeros((2, 8), np.float32), np.empty(0))
    write_bundle(store, "v1", nothing)
    assert load_bundle(BundleLog(store), "v1").items == 0


@pytest.mark.parametrize("name", FILES)
def test_every_damaged_byte_is_noticed(store: Store, catalogue: Catalogue, name: str) -> None:
    manifest = write_bundle(store, "v1", catalogue)
    path = Path(store.path(f"{manifest.folder}/{name}"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptArtefactError, match=name):
        load_bundle(BundleLog(store), "v1")


def changed(store: Store, manifest: BundleManifest, **update: object) -> None:
    BundleLog(store).commit(manifest.model_copy(update=update))


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_kind_is_incompatible(store: Store, catalogue: Catalogue, name: str) -> None:
    manifest = write_bundle(store, "v1", catalogue)
    entry = store.write(f"{manifest.folder}/{name}", b"something else, honestly listed")
    files = tuple(entry if file.name == name else file for file in manifest.files)
    changed(store, manifest, files=files)
    with pytest.raises(IncompatibleBundleError, match=name):
        load_bundle(BundleLog(store), "v1")


def test_files_of_two_bundles_do_not_mix(store: Store, catalogue: Catalogue) -> None:
    manifest = write_bundle(store, "v1", catalogue)
    other = write_bundle(store, "v2", Catalogue.random(items=100))
    for name in (BundleFile.INDEX, BundleFile.ITEMS, BundleFile.EMBEDDINGS, BundleFile.VECTORS):
        entry = store.write(f"{manifest.folder}/{name}", BundleLog(store).read(other, name))
        files = tuple(entry if file.name == name else file for file in manifest.files)
        changed(store, manifest, files=files)
        with pytest.raises(CorruptArtefactError, match=name):
            load_bundle(BundleLog(store), "v1")
        write_bundle(store, "v1", catalogue)


def test_a_tower_that_gives_nan_is_incompatible(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue, tower=mean_tower(scale=float("nan")))
    with pytest.raises(IncompatibleBundleError, match="not finite"):
        load_bundle(BundleLog(store), "v1")


def test_a_missing_file_and_a_missing_bundle_are_told_apart(store: Store, catalogue: Catalogue) -> None:
    manifest = write_bundle(store, "v1", catalogue)
    store.remove(f"{manifest.folder}/{BundleFile.TOWER}")
    with pytest.raises(CorruptArtefactError, match="missing"):
        load_bundle(BundleLog(store), "v1")
    with pytest.raises(FileNotFoundError):
        load_bundle(BundleLog(store), "v0")


def test_a_bundle_let_go_is_freed(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue, index="IVF4,Flat")
    bundle = load_bundle(BundleLog(store), "v1")
    vectors = weakref.ref(bundle.exact.vectors)
    del bundle
    gc.collect()
    assert vectors() is None


def test_a_manifest_in_the_folder_of_another_bundle_is_refused(store: Store, catalogue: Catalogue) -> None:
    manifest = write_bundle(store, "v1", catalogue)
    for entry in manifest.files:
        store.write(f"bundles/v2/{entry.name}", store.read(f"bundles/v1/{entry.name}"))
    write_document(store, "bundles/v2/MANIFEST.json", manifest)
    with pytest.raises(CorruptArtefactError, match=r"bundles/v2/MANIFEST.json: describes version v1"):
        load_bundle(BundleLog(store), "v2")


def test_a_popularity_that_is_no_number_is_incompatible(store: Store, catalogue: Catalogue) -> None:
    catalogue.popularity[3] = np.nan
    write_bundle(store, "v1", catalogue)
    with pytest.raises(IncompatibleBundleError, match=r"items.parquet: holds a popularity"):
        load_bundle(BundleLog(store), "v1")


def test_a_length_that_32_bits_do_not_hold_is_no_zero(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    bundle = load_bundle(BundleLog(store), "v1")
    assert bundle.manifest.metric == "cosine"
    for size in (1e-30, 1.0, 3e38):
        vector = np.full((1, bundle.manifest.dimension), size, np.float32)
        np.testing.assert_allclose(np.linalg.norm(bundle.normalised(vector)), 1.0, rtol=1e-6)
