""""""

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.serving.rescorers import bilinear, form
from tests.serving.support import Catalogue, mean_tower, write_bundle
from weir.contracts import BundleFile, BundleLog, BundleManifest, CorruptArtefactError, IndexRows, Store, hash_id
from weir.contracts.storage.documents import write_document
from weir.serving.bundles import bundle as module
from weir.serving.bundles.bundle import Scorer, Tower
from weir.serving.bundles.loading import load_bundle
from weir.serving.errors import IncompatibleBundleError
from weir.serving.index.index import AnnIndex, ExactIndex
from weir.serving.search.planning import QueryVectors

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


VECTORS = np.random.default_rng(1).standard_normal((30, 8)).astype(np.float32)


@pytest.mark.parametrize("at_once", [1, 12, 1 << 16])
def test_it_scores_the_candidates_of_each_query_however_many_at_a_time(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(module, "_PAIRS", at_once)
    draw = np.random.default_rng(2)
    queries, rows = draw.standard_normal((7, 8)).astype(np.float32), draw.integers(-1, 30, (7, 5))
    found = Scorer(bilinear(form()))(queries, ExactIndex(VECTORS), IndexRows(rows))
    wanted = np.einsum("nd,nkd->nk", queries @ form(), VECTORS[rows])
    np.testing.assert_allclose(found[rows >= 0], wanted[rows >= 0], rtol=1e-4, atol=1e-5)
    assert found.dtype == np.float32


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_has_no_scores(shape: tuple[int, int]) -> None:
    rows = IndexRows(np.zeros(shape, np.int64))
    assert Scorer(bilinear(form()))(VECTORS[: shape[0]], ExactIndex(VECTORS), rows).shape == shape


def test_what_is_no_scorer_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot read"):
        Scorer(b"no model")
    with pytest.raises(ValueError, match=r"has inputs \('history', 'mask'\)"):
        Scorer(mean_tower())


def test_it_runs_any_batch() -> None:
    tower = Tower(mean_tower())
    history = np.random.default_rng(0).standard_normal((3, 4, 8)).astype(np.float32)
    mask = np.array([[False, False, True, True], [True] * 4, [False] * 4])
    masked = (history * mask[..., None]).sum(axis=1) / np.maximum(mask.sum(axis=1, keepdims=True), 1)
    np.testing.assert_allclose(tower(history, mask), masked, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tower(history[:1], mask[:1]), masked[:1], rtol=1e-5, atol=1e-6)


def test_bytes_that_are_no_model_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot read"):
        Tower(b"no model")


def test_a_model_with_other_inputs_is_refused() -> None:
    node = helper.make_node("Identity", ["features"], ["user"])
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 8]) for name in ("features", "user")]
    graph = helper.make_graph([node], "other", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(ValueError, match="features"):
        Tower(model.SerializeToString())


def test_the_runtime_tells_nobody_about_the_models_it_loads(tmp_path: Path) -> None:
    """Where it does, it leaves a device id and its unsent messages in the home directory."""
    # The runtime is silent under CI by itself.
    inherited = {name: value for name, value in os.environ.items() if name not in {"CI", "ORT_DISABLE_TELEMETRY"}}
    environment = inherited | {"HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}
    for imported, silent in (
        ("weir.serving.bundles.bundle", True),
        ("weir.trainer.export.servable", True),
        ("onnxruntime", False),
    ):
        subprocess.run([sys.executable, "-c", f"import {imported}"], env=environment, check=True, timeout=120)
        assert (list(tmp_path.rglob("*")) == []) is silent, module
