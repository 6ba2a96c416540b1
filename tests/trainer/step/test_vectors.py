"""What the towers and the loss read of a step, however it is divided."""

import pytest
import torch

from tests.trainer.support import absorbed, batches_of
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store
from weir.trainer.losses.inputs import LossInputs, LossResult
from weir.trainer.losses.step_loss import step_loss
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.inputs import sample_inputs
from weir.trainer.step.step import compute_gradients, train_step
from weir.trainer.towers import in_training
from weir.trainer.towers.recency import Recency


@pytest.mark.parametrize("kind", ["recency", "sasrec"])
def test_a_tower_that_reads_in_parts_has_the_same_gradients(
    kind: str, store: Store, writer: WindowWriter, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic(writer, windows=1, events=75)
    config = config.model_copy(update={"tower": config.tower.model_copy(update={"kind": kind, "dropout": 0.0})})
    state = absorbed(store, config, dtype=torch.float64)
    batch = batches_of(store, state)[0]
    whole = compute_gradients(state, batch, Workers())
    # Five histories of 32 at a time.
    monkeypatch.setitem(in_training._AT_ONCE, "cpu", 5 * batch.histories.shape[1] * config.tower.dimension)
    monkeypatch.setattr(Recency, "reads_items", False)
    parts = compute_gradients(state, batch, Workers())
    for one, other in zip([*whole.tower, whole.embeddings], [*parts.tower, parts.embeddings], strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-12)


def test_a_shared_negative_comes_once_with_its_number_and_its_hits_count_as_often(
    store: Store, writer: WindowWriter, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic(writer, windows=1)
    state, seen = absorbed(store, config), list[LossInputs]()
    batch = batches_of(store, state)[0]

    def spy(step: LossInputs, config: TrainerConfig) -> LossResult:
        seen.append(step)
        return step_loss(step, config)

    monkeypatch.setattr("weir.trainer.step.step.step_loss", spy)
    sampled = sample_inputs(state, batch, Workers())
    columns, forbidden = sampled.columns, sampled.share.rows.forbidden
    assert columns is not None
    assert forbidden is not None
    hits = int((columns[None, :, None] == forbidden[:, None, :]).any(2).sum())
    result = train_step(state, batch, Workers())
    [step] = seen
    assert step.times is not None
    assert len(step.times) == len(step.given("columns")) == len(columns.unique()) < len(columns)
    assert int(step.times.sum()) == len(columns)
    # A row's own column, of which it has one, is no accident.
    assert result.accidental_hits == hits - len(batch.positives)
