"""The lists of an index, from export to export: real bundles of a state with an IVF index."""

import os
import time
from collections.abc import Callable

import faiss
import numpy as np
import pytest

from tests.trainer.support import absorbed, batches_of
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import PADDING_KEY, BundleFile, BundleLog, BundleManifest, ItemKeys, Store
from weir.contracts.base.arrays import Layers
from weir.contracts.bundles.rows import BundleRows, ItemRows
from weir.runtime.background import BackgroundTask
from weir.trainer.export import export_bundle
from weir.trainer.export.index import empty_index
from weir.trainer.export.planner import ExportPlanner
from weir.trainer.export.servable import Servable
from weir.trainer.export.snapshot import Lists, train_lists
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import train_step


@pytest.fixture
def state(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    synthetic(writer, windows=1)
    state = absorbed(
        store, TrainerConfig.model_validate({**config.model_dump(), "index": "IVF8,SQfp16", "bundle_chain": 0})
    )
    state.position.trained_sequence = 0
    for batch in batches_of(store, state):
        train_step(state, batch, Workers())
    return state


def index_of(store: Store, manifest: BundleManifest) -> faiss.IndexIVF:
    data = BundleLog(store).read(manifest, BundleFile.INDEX)
    return faiss.deserialize_index(np.frombuffer(data, np.uint8))


def centroids(index: faiss.IndexIVF) -> np.ndarray:
    return index.quantizer.reconstruct_n(0, index.nlist)


def move(state: TrainerState, item: int) -> None:
    """Turn an item's vector round."""
    state.embeddings.weight[state.live[item]] *= -1
    state.embeddings.touched.mark(state.table.live[[item]])
    state.position.step += 1


@pytest.mark.parametrize("process", ["same", "another", "opens beside"])
def test_only_what_moved_is_assigned_and_the_centroids_stay(store: Store, state: TrainerState, process: str) -> None:
    planner = ExportPlanner()
    first = export_bundle(store, state, planner=planner)
    assert first.index.fit is not None
    assert (first.index.type, first.index.fit.trained_lists) == ("IVF8,SQfp16", 8)
    assert first.index.fit.recall == first.index.fit.recall_trained
    move(state, 3)
    if process != "same":
        planner = ExportPlanner()
    if process == "opens beside":
        planner.start(BundleLog(store))
    second = export_bundle(store, state, planner=planner)
    assert second.index.fit is not None
    assert (second.index.fit.changed, second.index.fit.trained_at) == (1, first.index.fit.trained_at)
    old, new = index_of(store, first), index_of(store, second)
    np.testing.assert_array_equal(centroids(old), centroids(new))
    vectors = np.load(store.path(f"{second.folder}/{BundleFile.VECTORS}"))
    # An index that assigns every vector by itself is the same.
    old.reset()
    old.add(vectors)
    assert faiss.serialize_index(old).tobytes() == faiss.serialize_index(new).tobytes()


def test_a_bundle_without_a_fit_is_followed_by_a_training(store: Store, state: TrainerState) -> None:
    """As a version wrote it that kept no lists."""
    first, log = export_bundle(store, state), BundleLog(store)
    log.commit(first.model_copy(update={"index": first.index.model_copy(update={"fit": None})}))
    move(state, 3)
    second = export_bundle(store, state)
    assert second.index.fit is not None
    assert second.index.fit.changed == 0


def test_other_settings_train_other_lists(store: Store, state: TrainerState) -> None:
    planner = ExportPlanner()
    export_bundle(store, state, planner=planner)
    state.config = TrainerConfig.model_validate({**state.config.model_dump(), "index": "IVF4,SQfp16"})
    assert index_of(store, export_bundle(store, state, planner=planner)).nlist == 4
    state.config = TrainerConfig.model_validate({**state.config.model_dump(), "index": "Flat"})
    flat = export_bundle(store, state, planner=planner)
    assert (flat.index.type, flat.index.fit) == ("Flat", None)


def test_an_index_that_takes_more_items_is_flat_until_there_are_so_many(
    store: Store, state: TrainerState, caplog: pytest.LogCaptureFixture
) -> None:
    planner, items = ExportPlanner(), len(state.table)
    changed = {**state.config.model_dump(), "index": f"IVF{items + 1},Flat", "bundle_chain": 4}
    state.config = TrainerConfig.model_validate(changed)
    first = export_bundle(store, state, planner=planner)
    assert (first.index.type, first.index.fit, first.parent) == ("Flat", None, None)
    assert f"IVF{items + 1},Flat takes more items than the {items} there are: until then it is Flat" in caplog.text
    move(state, 3)
    second = export_bundle(store, state, planner=planner)
    assert (second.index.type, second.changed) == ("Flat", 1)
    state.table.admit(ItemKeys(np.array([1])), np.array(["one more"], object), 0)
    state.position.step += 1
    third = export_bundle(store, state, planner=planner)
    assert (third.index.type, third.items, third.parent) == (f"IVF{items + 1},Flat", items + 1, None)


def test_a_training_beside_is_taken_by_a_later_export(store: Store, state: TrainerState) -> None:
    now = [time.time()]
    planner = ExportPlanner(clock=lambda: now[0])
    first = export_bundle(store, state, planner=planner)
    assert first.index.fit is not None
    now[0] += 1 + (state.config.index_training_every_seconds or 0)
    move(state, 3)
    second = export_bundle(store, state, planner=planner)
    assert second.index.fit is not None
    assert second.index.fit.trained_at == first.index.fit.trained_at
    wait_for(lambda: not (planner._training and planner._training.running))
    move(state, 5)
    third = export_bundle(store, state, planner=planner)
    assert third.index.fit is not None
    assert third.index.fit.trained_at > first.index.fit.trained_at
    # What moved since the start of the training has been assigned.
    assert third.index.fit.changed == 1
    assert index_of(store, third).ntotal == third.items


def test_recall_is_measured_once_enough_rows_were_published(
    store: Store, state: TrainerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in 32 of 60 items are two, whichever process has published them."""
    figures = iter([0.9, 0.89, 0.88, 0.87])
    monkeypatch.setattr(Servable, "index_recall", lambda *_: next(figures))
    state.config = TrainerConfig.model_validate({**state.config.model_dump(), "bundle_chain": 16})
    planner, found = ExportPlanner(), []
    for item in range(5):
        fit = export_bundle(store, state, planner=planner).index.fit
        found.append(fit and fit.recall)
        move(state, item)
    assert found == [0.9, 0.9, 0.89, 0.89, 0.88]
    for recall, unmeasured in ((0.88, 1), (0.87, 0)):
        fit = export_bundle(store, state, planner=ExportPlanner()).index.fit
        assert fit is not None
        assert (fit.recall, fit.recall_trained, fit.unmeasured) == (recall, 0.9, unmeasured)
        move(state, 0)


def rows_of(vectors: np.ndarray) -> BundleRows:
    """Return what a bundle holds of vectors (n, d); the third row is gone."""
    keys = np.arange(1, len(vectors) + 1)
    keys[2] = PADDING_KEY
    ids, counts, embeddings = keys.astype(object), np.ones(len(keys)), np.vstack([vectors[:2], vectors])
    columns = (Layers.of(column) for column in (ids, keys, counts, vectors, embeddings))
    return BundleRows(*columns, ItemRows.of(ItemKeys(keys)))  # type: ignore[arg-type]


def test_a_training_gives_way_to_the_stream() -> None:
    """Its thread has a lower priority than the process, and does not keep the interpreter from other threads."""
    vectors = np.random.default_rng(0).standard_normal((40_000, 32)).astype(np.float32)
    training = train_lists(empty_index(32, "IVF512,SQfp16"), "IVF512,SQfp16", rows_of(vectors))
    own, turns = os.getpriority(os.PRIO_PROCESS, 0), 0
    wait_for(lambda: niceness(training) >= min(own + 10, 19))
    while training.running:
        time.sleep(0.001)
        turns += 1
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
    assert turns > 50
    lists = training.result()
    assert lists is not None
    assert lists.clusters.lists == 512
    keys = ItemKeys(np.array([1, 2, PADDING_KEY, 4]))
    known = lists.known(keys, vectors[:4], 0.0)
    # Only items that have a row are trained on.
    assert (known.lists >= 0).tolist() == [True, True, False, True]


def niceness(training: BackgroundTask[Lists | None]) -> int:
    thread = training._thread.native_id
    return os.getpriority(os.PRIO_PROCESS, thread) if thread else 0


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
