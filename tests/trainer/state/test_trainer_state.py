from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.trainer import support
from tests.trainer.support import absorbed, batches_of, same_tensors
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import ItemKeys, Store, WindowLog, hash_id
from weir.contracts.bundles.checkpoint import read_checkpoint_chain
from weir.contracts.bundles.manifest import BundleRef
from weir.trainer.items.key_lookup import KeyShare
from weir.trainer.items.rows import Reader
from weir.trainer.items.table import FIRST_ITEM, PADDING, SHARED
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.ingestion import ingest_window
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import train_step

DAY = 86_400_000


def absorb(state: TrainerState, writer: WindowWriter, items: str, day: int, *, pane: int = 0) -> tuple[int, int]:
    """Commit a window of the named items and take it in; return how many rows were given and taken."""
    times = np.full(len(items), day * DAY)
    manifest = writer.commit(["u"] * len(items), list(items), times, span=(day * DAY, (day + 1) * DAY), pane=pane)
    sketch = writer.store.read(f"{manifest.folder}/{manifest.name.sketch()}")
    distinct = sorted(set(items))
    arrays = (
        np.array([hash_id(name) for name in distinct]),
        np.array(distinct, object),
        np.array([items.count(name) for name in distinct]),
    )
    changes = ingest_window(state, manifest, sketch, arrays)
    return len(changes.admitted), len(changes.evicted)


def live(state: TrainerState) -> str:
    return "".join(sorted(state.table.ids.of(state.table.live)))


def test_every_item_is_admitted_at_once_by_default_late_panes_included(writer: WindowWriter) -> None:
    state = TrainerState.fresh(TrainerConfig(half_life_seconds=60))
    assert absorb(state, writer, "aab", 5) == (2, 0)
    assert absorb(state, writer, "c", 1, pane=1) == (1, 0)
    assert live(state) == "abc"


def test_an_item_is_admitted_when_it_has_been_seen_often_enough_lately(writer: WindowWriter) -> None:
    state = TrainerState.fresh(TrainerConfig(admit_after=2.5, half_life_seconds=86400))
    absorb(state, writer, "aaab", 0)
    assert live(state) == "a"
    # One of day 0 counts half on day 1: 0.5 + 1 is not enough, (0.5 + 1) / 2 + 2 is.
    absorb(state, writer, "b", 1)
    assert live(state) == "a"
    absorb(state, writer, "bb", 2)
    assert live(state) == "ab"


def test_items_expire_by_event_time_and_return_as_new(writer: WindowWriter) -> None:
    state = TrainerState.fresh(TrainerConfig(item_ttl_seconds=2 * 86400))
    absorb(state, writer, "ab", 0)
    row = int(state.table.rows(np.array([hash_id("a")]))[0])
    state.embeddings.weight[row] = 7
    absorb(state, writer, "b", 2)
    assert live(state) == "ab"
    assert absorb(state, writer, "b", 3) == (0, 1)
    assert live(state) == "b"
    assert state.table.rows(np.array([hash_id("a")])).tolist() == [SHARED]
    assert absorb(state, writer, "a", 3) == (1, 0)
    assert state.table.rows(np.array([hash_id("a")])).tolist() == [row]
    assert not (state.embeddings.weight[row] == 7).any()


def test_new_embeddings_have_the_length_of_the_settings(writer: WindowWriter) -> None:
    weights = []
    for number, scale in enumerate((1.0, 0.1)):
        state = TrainerState.fresh(TrainerConfig.model_validate({"optimizer": {"embedding_scale": scale}}))
        absorb(state, writer, "abc", number)
        weights.append(state.embeddings.weight[: FIRST_ITEM + 3])
    shared = [weight[SHARED] for weight in weights]
    torch.testing.assert_close(shared[1], 0.1 * shared[0])
    assert 0.5 < float(weights[0][FIRST_ITEM:].norm(dim=1).mean()) < 1.5
    assert 0.05 < float(weights[1][FIRST_ITEM:].norm(dim=1).mean()) < 0.15


def test_the_embeddings_grow_with_the_table_and_log_q_covers_it(writer: WindowWriter) -> None:
    state = TrainerState.fresh(TrainerConfig())
    many = [chr(0x4E00 + number) for number in range(1500)]
    absorb(state, writer, "".join(many), 0)
    assert len(state.table) == 1500
    assert state.table.capacity == len(state.embeddings.weight) == 2048
    rows = torch.from_numpy(state.table.live)
    assert abs(float(state.log_q[rows].exp().sum()) - 1) < 1e-4
    assert (state.embeddings.weight[rows] != 0).any(1).all()
    assert not state.embeddings.weight[PADDING].any()
    assert int(rows.min()) == FIRST_ITEM


def test_log_q_is_the_share_of_each_item_in_the_batches(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    synthetic(writer, windows=1, events=640)
    state = absorbed(store, config)
    drawn = torch.cat([batch.positives for batch in batches_of(store, state)])
    share = torch.bincount(drawn, minlength=state.table.capacity)[state.table.live] / len(drawn)
    torch.testing.assert_close(state.log_q[state.live].exp(), share, rtol=1e-3, atol=1e-4)


def test_a_state_survives_its_tensors_and_goes_on_bit_for_bit(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    synthetic(writer, windows=1)
    state = absorbed(store, config)
    dealt = batches_of(store, state)
    for batch in dealt[:3]:
        train_step(state, batch, Workers())
    copied = {name: value.clone() for name, value in state.tensors().items()}
    other = TrainerState.restore(config, copied, torch.device("cpu"))
    assert same_tensors(state.tensors(), other.tensors()) == []
    for batch in dealt[3:]:
        train_step(state, batch, Workers())
        train_step(other, batch, Workers())
    assert same_tensors(state.tensors(), other.tensors()) == []
    every = torch.arange(state.table.capacity)
    assert torch.equal(state.log_q[every], other.log_q[every])


def test_keys_are_indexed_once_however_many_deltas_follow(
    store: Store, writer: WindowWriter, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic(writer, windows=2, items=40)
    synthetic(writer, first=2, windows=2, items=8)
    state, log, checkpoints = TrainerState.fresh(config), WindowLog(store), CheckpointLog(store)
    checkpoints.save(state, Workers())
    for manifest in log.committed():
        support.absorb(state, log, manifest)
        state.position.sequence += 1
        name = checkpoints.save(state, Workers())
    assert len(read_checkpoint_chain(store, name)) > 2
    with monkeypatch.context() as patch:
        patch.setattr(KeyShare, "of", made := Mock(side_effect=KeyShare.of))
        other = checkpoints.load(config, Workers())
    assert other is not None
    assert made.call_count == 1
    assert same_tensors(state.tensors(), other.tensors()) == []
    keys = ItemKeys(state.table.keys[state.table.live])
    assert other.table.rows(keys).tolist() == state.table.live.tolist()


def test_the_cache_of_a_table_that_lost_all_items_begins_anew(writer: WindowWriter) -> None:
    """Rows that nobody owns any more must never come out of it, whatever is admitted later."""
    loss, negatives = {"kind": "resampled_softmax", "cache": 16}, {"uniform": 0}
    settings = {"loss": loss, "negatives": negatives, "item_ttl_seconds": 86400, "admit_after": 2.0}
    state = TrainerState.fresh(TrainerConfig.model_validate(settings | {"half_life_seconds": 86400}))
    absorb(state, writer, "aabbcc", 0)
    assert state.cache is not None
    assert absorb(state, writer, "d", 3) == (0, 3)
    assert state.cache is None
    absorb(state, writer, "ee", 4)
    assert state.cache is not None
    for _ in range(5):
        assert torch.isin(state.cache.items, state.live).all()
        state.cache.redraw()


def test_rows_touched_since_a_bundle_outlive_checkpoints_and_restarts(store: Store, config: TrainerConfig) -> None:
    synthetic(WindowWriter(store), windows=1)
    state = absorbed(store, config)
    ref = BundleRef(version="one", checksum="1")
    state.since.note(ref)
    assert state.touched.rows(Reader.BUNDLE).tolist() == []
    assert set(state.table.live) <= set(state.touched.rows(Reader.CHECKPOINT))
    train_step(state, batches_of(store, state)[0], Workers())
    touched = state.touched.rows(Reader.BUNDLE).tolist()
    assert touched
    CheckpointLog(store).save(state, Workers())
    assert state.touched.rows(Reader.CHECKPOINT).tolist() == []
    assert (state.since.ref, state.touched.rows(Reader.BUNDLE).tolist()) == (ref, touched)
    loaded = CheckpointLog(store).load(config, Workers())
    assert loaded is not None
    assert (loaded.since.ref, loaded.touched.rows(Reader.BUNDLE).tolist()) == (ref, touched)
    assert loaded.touched.rows(Reader.CHECKPOINT).tolist() == []
