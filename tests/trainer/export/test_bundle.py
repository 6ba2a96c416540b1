import io
from typing import Any

import faiss
import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.trainer.step.test_model import configured
from tests.trainer.support import absorbed, batches_of, collapse
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import (
    BUNDLE_ITEMS_SCHEMA,
    BundleFile,
    BundleLog,
    BundleManifest,
    CorruptArtefactError,
    IndexRows,
    ItemKeys,
    Store,
    hash_id,
)
from weir.serving.bundles.loading import load_bundle
from weir.trainer.export import Content, ExportError, export_bundle
from weir.trainer.export.compaction import compact
from weir.trainer.export.onnx_models import scorer_to_onnx
from weir.trainer.export.planner import ExportPlanner
from weir.trainer.export.servable import Servable
from weir.trainer.export.snapshot import PublishedSnapshot
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import train_step
from weir.trainer.train import train


@pytest.fixture
def state(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    manifest, *_ = synthetic(writer, windows=1)
    state = absorbed(store, config)
    for batch in batches_of(store, state):
        train_step(state, batch, Workers())
    state.position.trained_window, state.position.trained_sequence = str(manifest.name), manifest.sequence
    state.position.max_event_ms = manifest.max_event_ms
    return state


def array(store: Store, manifest: BundleManifest, name: str) -> Any:
    return np.load(io.BytesIO(BundleLog(store).read(manifest, name)))


def test_a_bundle_is_what_its_contract_says(store: Store, state: TrainerState) -> None:
    manifest, log = export_bundle(store, state), BundleLog(store)
    assert log.current() == manifest.version == Content.of(state).version
    assert manifest.version.startswith("00000000-0000000013-")
    assert manifest.verdict == "promoted: the first bundle"
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


def test_a_bundle_is_used_without_the_server_as_the_page_says(store: Store, state: TrainerState) -> None:
    """docs/store.md: two rows in front of the embeddings, histories oldest first and padded on the left."""
    manifest, log = export_bundle(store, state), BundleLog(store)
    embeddings, length = array(store, manifest, BundleFile.EMBEDDINGS), manifest.history_length
    rows = np.array([7, 3, 11])
    history, mask = np.tile(embeddings[0], (1, length, 1)), np.zeros((1, length), np.bool_)
    history[0, -len(rows) :], mask[0, -len(rows) :] = embeddings[2 + rows], True
    tower = onnxruntime.InferenceSession(log.read(manifest, BundleFile.TOWER))
    (user,) = tower.run(["user"], {"history": history, "mask": mask})
    served = load_bundle(log, manifest.version).users_at([IndexRows(rows)])
    np.testing.assert_allclose(user / np.linalg.norm(user), served / np.linalg.norm(served), rtol=1e-4, atol=1e-5)
    (other,) = tower.run(["user"], {"history": history[:, ::-1].copy(), "mask": mask[:, ::-1].copy()})
    assert not np.allclose(other / np.linalg.norm(other), served / np.linalg.norm(served), atol=1e-2)


def test_a_bundle_says_nothing_of_what_it_does_not_have(store: Store, state: TrainerState) -> None:
    manifest = export_bundle(store, state)
    said = store.read(f"{manifest.folder}/MANIFEST.json")
    for name in (b"rescor", b"scorer", b"history_read"):
        assert name not in said


def test_a_bundle_reads_no_longer_histories_than_the_newest_windows_have(
    store: Store, config: TrainerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    synthetic(WindowWriter(store, history_length=4), windows=2)
    train(store, config)
    log = BundleLog(store)
    manifest = log.manifest(str(log.current()))
    assert (manifest.history_length, manifest.history_read, manifest.newest) == (6, 4, 4)
    assert caplog.text.count("trainer.tower.history_length is 6, but windows have histories of 4 items") == 1
    bundle = load_bundle(log, manifest.version)
    items = bundle.item_rows.keys[:6]
    longer, whole = (bundle.users(ItemKeys(history[None])) for history in (items, items[-4:]))
    np.testing.assert_array_equal(longer, whole)


def test_a_second_phase_is_part_of_complete_bundles_deltas_and_compacted_ones(
    store: Store, state: TrainerState
) -> None:
    on = {"rescoring": {"kind": "mixture_of_logits", "dimension": 4, "candidates": 7}}
    state, planner, log = absorbed(store, configured(state.config, on)), ExportPlanner(), BundleLog(store)
    state.position.trained_sequence = 0
    scorers = []
    for batch in batches_of(store, state)[:2]:
        train_step(state, batch, Workers())
        state.embeddings.touched.mark(state.table.live[:2])
        manifest = export_bundle(store, state, planner=planner)
        assert manifest.rescored == 7
        assert state.second is not None
        scorers.append(log.read(manifest, BundleFile.SCORER))
        assert scorers[-1] == scorer_to_onnx(state.second.scorer)
    assert manifest == log.manifest(manifest.version)
    assert scorers[0] != scorers[1]
    servable = Servable.open(log, manifest)
    whole = compact(log, PublishedSnapshot.of(servable), servable).servable
    assert whole.manifest.rescored == 7
    assert whole.scorer is not None
    assert log.read(whole.manifest, BundleFile.SCORER) == scorers[1]


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


def test_the_gate_holds_a_bundle_that_has_become_worse(store: Store, state: TrainerState) -> None:
    for _ in range(20):
        for batch in batches_of(store, state):
            train_step(state, batch, Workers())
    good, sound = export_bundle(store, state), state.tensors()
    sound = {name: value.clone() for name, value in sound.items()}
    collapse(state)
    state.position.step += 1
    bad = export_bundle(store, state)
    assert not bad.promoted
    assert bad.verdict.startswith("held: recall@5 is 0.")
    assert ", tolerance 0.5, on 400 cases" in bad.verdict
    assert BundleLog(store).current() == good.version
    assert BundleLog(store).manifest(bad.version) == bad
    # Held is not for ever.
    state = TrainerState.restore(state.config, sound, state.device)
    state.position.step += 2
    again = export_bundle(store, state)
    assert again.verdict.startswith("promoted: recall@5")
    assert BundleLog(store).current() == again.version


def test_another_training_into_the_same_store_never_serves_the_old_files(store: Store, state: TrainerState) -> None:
    """The same place in the stream, reached with other numbers or settings, has another name."""
    first = export_bundle(store, state)
    old = array(store, first, BundleFile.VECTORS)
    state.embeddings.weight[state.live[0]] += 0.25
    state.since.ref = None
    retrained = export_bundle(store, state)
    assert retrained.version != first.version
    assert retrained.version.rpartition("-")[0] == first.version.rpartition("-")[0]
    assert BundleLog(store).current() == retrained.version
    assert not np.array_equal(array(store, retrained, BundleFile.VECTORS), old)
    np.testing.assert_array_equal(array(store, first, BundleFile.VECTORS), old)
    state.config = TrainerConfig.model_validate({**state.config.model_dump(), "index": "IVF4,Flat"})
    other = export_bundle(store, state)
    assert other.index.type == "IVF4,Flat"
    assert BundleLog(store).current() == other.version


@pytest.mark.parametrize("damaged", ["CURRENT", "manifest", "index", "lost"])
def test_damage_to_what_is_promoted_does_not_freeze_publication(
    store: Store, state: TrainerState, damaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = export_bundle(store, state)
    name = {
        "CURRENT": "bundles/CURRENT",
        "manifest": f"{first.folder}/MANIFEST.json",
        "index": f"{first.folder}/{BundleFile.INDEX}",
        "lost": first.folder,
    }[damaged]
    if damaged == "lost":
        store.remove(name)
    else:
        data = bytearray(store.read(name))
        data[len(data) // 2] ^= 1
        store.write(name, bytes(data))
    state.position.step += 1
    second = export_bundle(store, state)
    assert second.verdict.startswith("promoted: the current bundle cannot be compared with (")
    assert BundleLog(store).current() == second.version
    assert name in caplog.text


@pytest.mark.parametrize(("damaged", "chain"), [(BundleFile.INDEX, 0), (BundleFile.ITEMS, 16)])
def test_a_bundle_that_cannot_be_read_back_is_not_promoted(
    store: Store, state: TrainerState, monkeypatch: pytest.MonkeyPatch, damaged: str, chain: int
) -> None:
    state.config = TrainerConfig.model_validate({**state.config.model_dump(), "bundle_chain": chain})
    first = export_bundle(store, state)
    state.position.step += 1
    write = Store.write_with

    def rotting(self: Store, name: str, fill: Any, *, rows: int = 0) -> Any:
        entry = write(self, name, fill, rows=rows)
        if name.endswith(damaged):
            data = self.read(name)
            self.write(name, data[:-1] + bytes([data[-1] ^ 1]), rows=rows)
        return entry

    monkeypatch.setattr(Store, "write_with", rotting)
    with pytest.raises(CorruptArtefactError, match=damaged):
        export_bundle(store, state)
    assert BundleLog(store).current() == first.version
    assert BundleLog(store).versions() == [first.version]


def test_a_damaged_manifest_of_the_same_bundle_is_written_again(store: Store, state: TrainerState) -> None:
    first = export_bundle(store, state)
    store.write(f"{first.folder}/MANIFEST.json", b"{}")
    second = export_bundle(store, state)
    assert second.files == first.files
    assert BundleLog(store).manifest(first.version) == second


def test_nan_is_exported_for_inspection_but_not_promoted(store: Store, state: TrainerState) -> None:
    state.embeddings.weight[5] = torch.nan
    manifest = export_bundle(store, state)
    assert not manifest.promoted
    assert manifest.verdict == "held: embeddings.weight contains NaN or infinity, or its norm overflows"
    assert BundleLog(store).current() is None


def test_old_bundles_are_retired_in_the_order_of_export(store: Store, state: TrainerState) -> None:
    state.config = TrainerConfig.model_validate({**state.config.model_dump(), "bundle_chain": 0})
    names = []
    for _ in range(5):
        names.append(export_bundle(store, state).version)
        state.position.step += 1
    assert names == sorted(names)
    assert BundleLog(store).versions() == names[-3:]


def test_an_empty_table_cannot_be_served(store: Store, config: TrainerConfig) -> None:
    with pytest.raises(ExportError, match="before the first window"):
        export_bundle(store, TrainerState.fresh(config))
