import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts import Store
from tests.trainer.support import absorbed, batches_of
from tests.trainer.windows import FEATURES, WindowWriter, synthetic
from trainer.batches import Batch
from trainer.config import TrainerConfig
from trainer.distributed import Workers
from trainer.item_table import PADDING
from trainer.losses import exclude_positive, sampled_softmax
from trainer.negatives import Pool, draw_uniform, shared_pool
from trainer.seeds import Purpose, generator
from trainer.state import TrainerState
from trainer.step import compute_gradients, train_step

ROOT = Path(__file__).parents[2]


def changed(config: TrainerConfig, **sections: dict[str, Any]) -> TrainerConfig:
    plain = config.model_dump()
    for name, values in sections.items():
        plain[name] |= values
    return TrainerConfig.model_validate(plain)


def naive_loss(state: TrainerState, batch: Batch, weight: torch.Tensor) -> torch.Tensor:
    """The loss of a step, example by example, over the dense table."""
    config, total = state.config, torch.zeros((), dtype=weight.dtype)
    live = torch.from_numpy(state.table.live)
    draw = generator(config.seed, Purpose.NEGATIVES, state.position.step)
    columns = [int(row) for row in batch.positives[batch.real]] if config.negatives.in_batch else []
    columns += draw_uniform(live, config.negatives.uniform, draw).tolist()
    pool = Pool.of(batch.positives, batch.real).others
    density = shared_pool(config.negatives, state.log_q, live).log_q(torch.arange(len(state.log_q)), pool)

    def item(row: int) -> torch.Tensor:
        return weight[row] / weight[row].norm() if config.tower.normalised else weight[row]

    for positive, history, factor, real in zip(*(column.tolist() for column in batch[:4]), strict=True):
        if not real:
            continue
        rows = torch.tensor(history)
        user = state.tower(weight[rows][None], (rows != PADDING)[None])[0]
        user = user / user.norm() if config.tower.normalised else user
        banned = {positive, *(history if config.negatives.mask_history else [])}
        kept = [row for row in columns if row not in banned]
        pos = (user @ item(positive) / config.tower.temperature)[None]
        neg = torch.stack([user @ item(row) for row in kept])[None] / config.tower.temperature
        log_q_pos, log_q_neg = density[[positive]], density[kept]
        if config.negatives.correction == "improved":
            log_q_neg = exclude_positive(log_q_neg, log_q_pos)
        kind = config.negatives.correction
        total = total + factor * sampled_softmax(pos, neg, log_q_pos=log_q_pos, log_q_neg=log_q_neg, correction=kind)[0]
    return total / batch.real.sum()


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"negatives": {"correction": "standard", "mask_history": False}},
        {"negatives": {"correction": "none", "uniform": 0}},
        {"negatives": {"in_batch": False}},
        {"tower": {"kind": "mean_pooling", "normalised": False, "temperature": 1.0}},
    ],
)
def test_gradients_are_those_of_the_loss_written_down_plainly(
    store: Store, writer: WindowWriter, config: TrainerConfig, sections: dict[str, dict[str, Any]]
) -> None:
    synthetic(writer, windows=1, events=70)
    config = changed(config, **{**sections, "tower": {"dropout": 0.0, **sections.get("tower", {})}})
    state = absorbed(store, config, dtype=torch.float64)
    batch = batches_of(store, state)[-1]
    batch = batch._replace(weights=torch.linspace(0.5, 2, len(batch.weights)) * batch.real)
    found = compute_gradients(state, batch, Workers())
    weight = state.embeddings.weight.clone().requires_grad_()
    loss = naive_loss(state, batch, weight)
    wanted = torch.autograd.grad(loss, [weight, *state.tower.parameters()], allow_unused=True, materialize_grads=True)
    assert found.totals[0].item() == pytest.approx(loss.item(), rel=1e-9)
    dense = torch.zeros_like(weight)
    dense[found.rows] = found.embeddings
    for mine, oracle in zip([dense, *found.tower], wanted, strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("features", [{}, FEATURES], ids=["no features", "features"])
def test_two_ranks_compute_what_one_rank_does(
    store: Store, writer: WindowWriter, config: TrainerConfig, tmp_path: Path, features: dict[str, dict[str, Any]]
) -> None:
    writer.features = features
    synthetic(writer, windows=1, events=75)
    config = changed(config, tower={"dropout": 0.0})
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = [str(ROOT / "tests/trainer/gradients_of_ranks.py"), store.url, config.model_dump_json(), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(command + script, env=environment, check=True, timeout=120, capture_output=True)
    state = absorbed(store, config, dtype=torch.float64)
    dealt = batches_of(store, state)
    assert not dealt[-1].real.all()
    alone = [compute_gradients(state, batch, Workers()) for batch in (dealt[0], dealt[-1])]
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    for one, left, right in zip(alone, first, second, strict=True):
        rows, embeddings, tower, totals, _ = left
        assert torch.equal(rows, one.rows)
        wanted = [one.embeddings, *one.tower, one.totals[:2]]
        for mine, ours in zip([embeddings, *tower, totals[:2]], wanted, strict=True):
            torch.testing.assert_close(mine, ours, rtol=0, atol=1e-12)
        # One rank was told to stop: all know.
        assert totals[2] == 1
        assert all(torch.equal(a, b) for a, b in zip([*tower, embeddings], [*right[2], right[1]], strict=True))


def test_a_step_moves_what_took_part_only(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    synthetic(writer, windows=1)
    state = absorbed(store, config)
    batch = batches_of(store, state)[0]
    rows = compute_gradients(state, batch, Workers()).rows
    before = state.embeddings.weight.clone()
    result = train_step(state, batch, Workers())
    moved = (state.embeddings.weight != before).any(1).nonzero()[:, 0]
    assert set(moved.tolist()) <= set(rows.tolist()) - {PADDING}
    assert set(batch.positives.tolist()) <= set(moved.tolist())
    assert (state.position.step, state.position.batch) == (1, 1)
    assert result.loss == pytest.approx(float(result.loss))
    assert not result.stop
    assert result.accidental_hits > 0


def test_steps_lower_the_loss(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    synthetic(writer, windows=1)
    state = absorbed(store, config)
    dealt = batches_of(store, state)
    losses = [train_step(state, batch, Workers()).loss for _ in range(8) for batch in dealt]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size = 33 does not divide by the 2 ranks"):
        Workers(1, 2).share(33)
