import io
from typing import Any

import faiss
import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from contracts import BUNDLE_ITEMS_SCHEMA, BundleFile, BundleLog, BundleManifest, Store, hash_id
from tests.trainer.support import absorbed, batches_of
from tests.trainer.windows import WindowWriter, synthetic
from trainer.config import TrainerConfig
from trainer.distributed import Workers
from trainer.evaluation import Evaluation
from trainer.export import ExportError, bundle_version, export_bundle
from trainer.state import TrainerState
from trainer.step import train_step


@pytest.fixture
def state(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    manifest, *_ = synthetic(writer, windows=1)
    state = absorbed(store, config)
    for batch in batches_of(store, state):
        train_step(state, batch, Workers())
    state.position.learnt, state.position.learnt_sequence = str(manifest.name), manifest.sequence
    state.position.max_event_ms = manifest.max_event_ms
    return state


def array(store: Store, manifest: BundleManifest, name: str) -> Any:
    return np.load(io.BytesIO(BundleLog(store).read(manifest, name)))


def test_a_bundle_is_what_its_contract_says(store: Store, state: TrainerState) -> None:
    manifest, log = export_bundle(store, state), BundleLog(store)
    assert log.current() == manifest.version == "00000000-0000000013"
    embeddings, vectors = array(store, manifest, BundleFile.EMBEDDINGS), array(store, manifest, BundleFile.VECTORS)
    items = pq.read_table(pa.BufferReader(log.read(manifest, BundleFile.ITEMS)))
    assert items.schema.equals(BUNDLE_ITEMS_SCHEMA)
    n = len(state.table)
    assert (manifest.items, embeddings.shape, vectors.shape, items.num_rows) == (n, (n + 2, 8), (n, 8), n)
    assert (embeddings.dtype, vectors.dtype) == (np.float32, np.float32)
    assert not embeddings[0].any()
    assert embeddings[1].any()
    assert manifest.metric == "cosine"
    np.testing.assert_allclose(
        vectors, embeddings[2:] / np.linalg.norm(embeddings[2:], axis=1, keepdims=True), rtol=1e-5
    )
    index = faiss.deserialize_index(np.frombuffer(log.read(manifest, BundleFile.INDEX), np.uint8))
    np.testing.assert_array_equal(index.reconstruct_n(0, n), vectors)
    assert items["row"].to_pylist() == list(range(n))
    assert items["item_key"].to_pylist() == [hash_id(name) for name in items["item_id"].to_pylist()]
    np.testing.assert_allclose(items["popularity"].to_numpy(), state.frequencies.counts(items["item_key"].to_numpy()))


def test_what_is_served_scores_as_in_training(store: Store, state: TrainerState) -> None:
    """Histories by id, through the bundle's files alone, against the model in memory."""
    manifest, log = export_bundle(store, state), BundleLog(store)
    embeddings, vectors = array(store, manifest, BundleFile.EMBEDDINGS), array(store, manifest, BundleFile.VECTORS)
    items = pq.read_table(pa.BufferReader(log.read(manifest, BundleFile.ITEMS)))
    rows = {name: row + 2 for row, name in enumerate(items["item_id"].to_pylist())}
    asked = [[], ["i3"], ["i1", "unheard-of", "i4", "i8"]]
    place = np.array([[0] * (6 - len(ids)) + [rows.get(name, 1) for name in ids] for ids in asked])
    session = onnxruntime.InferenceSession(log.read(manifest, BundleFile.TOWER))
    (user,) = session.run(None, {"history": embeddings[place], "mask": place > 0})
    served = user / np.linalg.norm(user, axis=1, keepdims=True) @ vectors.T
    keys = np.array([[0] * (6 - len(ids)) + [hash_id(name) for name in ids] for ids in asked])
    table_rows = torch.from_numpy(state.table.rows(keys))
    state.tower.eval()
    with torch.no_grad():
        raw = state.tower(state.embeddings.weight[table_rows], table_rows > 0)
        live = state.embeddings.weight[torch.from_numpy(state.table.live)]
        wanted = torch.nn.functional.normalize(raw) @ torch.nn.functional.normalize(live).T
    np.testing.assert_allclose(served, wanted.numpy(), atol=1e-5)


def test_a_bundle_is_never_rewritten_and_a_missed_promotion_is_made_up(store: Store, state: TrainerState) -> None:
    first = export_bundle(store, state)
    # Killed between the commit and the promotion.
    store.remove("bundles/CURRENT")
    assert export_bundle(store, state) == first
    assert BundleLog(store).current() == first.version


def evaluation(recall: float) -> Evaluation:
    facts = {"window": "w/0", "sequence": 0, "step": 0, "events": 9, "known": 9, "items": 9, "seen_filtered": False}
    names = ("recall", "ndcg", "popularity_recall", "popularity_ndcg", "novelty_bits")
    return Evaluation.model_validate(facts | {name: dict.fromkeys((1, 5, 20), recall) for name in names})


def test_the_gate_holds_a_bundle_that_has_become_worse(store: Store, state: TrainerState) -> None:
    state.recent.append(evaluation(0.4))
    good = export_bundle(store, state)
    state.recent.clear()
    state.recent.append(evaluation(0.1))
    state.position.step += 1
    bad = export_bundle(store, state)
    assert not bad.promoted
    assert bad.verdict == "held: recall@5 is 0.1000, the current bundle's 0.4000, tolerance 0.5"
    assert BundleLog(store).current() == good.version
    assert BundleLog(store).manifest(bad.version) == bad


def test_nan_is_exported_for_inspection_but_not_promoted(store: Store, state: TrainerState) -> None:
    state.embeddings.weight[5] = torch.nan
    manifest = export_bundle(store, state)
    assert not manifest.promoted
    assert BundleLog(store).current() is None


def test_old_bundles_are_retired_in_the_order_of_export(store: Store, state: TrainerState) -> None:
    names = []
    for _ in range(5):
        names.append(bundle_version(state))
        export_bundle(store, state)
        state.position.step += 1
    assert names == sorted(names)
    assert BundleLog(store).versions() == names[-3:]


def test_an_empty_table_cannot_be_served(store: Store, config: TrainerConfig) -> None:
    with pytest.raises(ExportError, match="before the first window"):
        export_bundle(store, TrainerState.fresh(config))
