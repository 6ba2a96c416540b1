""""""

import json
import math
import subprocess
import sys
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.ranks import run_on_ranks
from tests.trainer.support import absorbed, batches_of
from tests.trainer.windows import FEATURES, WindowWriter, synthetic
from weir.contracts import Store
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.table import PADDING
from weir.trainer.losses import exclude_positive, sampled_softmax
from weir.trainer.losses.inputs import LossInputs, LossResult
from weir.trainer.losses.step_loss import step_loss
from weir.trainer.negatives import Draw, PerRow, Pool, draw_uniform, shared_pool
from weir.trainer.ranks.workers import Workers, deterministic
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.adamw import AdamW
from weir.trainer.step.batches import Batch
from weir.trainer.step.seeds import Purpose, derive, generator
from weir.trainer.step.step import StepResult, compute_gradients, sum_over_ranks, train_step

RATES = st.floats(1e-5, 1.0)
"""Learning rates, and weight decays."""


def drawn(seed: int, dtype: torch.dtype) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw, dtype=dtype) for shape in ((3, 5), (7,), (2, 2, 2))]


@settings(deadline=None)
@given(rate=RATES, decay=RATES, seed=st.integers(0, 99), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_each_step_is_that_of_torch(rate: float, decay: float, seed: int, dtype: torch.dtype) -> None:
    """Bit for bit, with parameters that come later."""
    own, its = drawn(seed, dtype), [one.requires_grad_() for one in drawn(seed, dtype)]
    optimizer, oracle = AdamW(own[:2], rate, decay), torch.optim.AdamW(its[:2], lr=rate, weight_decay=decay, fused=True)
    for step in range(5):
        if step == 2:
            optimizer.extend(own[2:])
            oracle.add_param_group({"params": its[2:]})
        gradients = drawn(seed + step + 1, dtype)[: len(optimizer.parameters)]
        optimizer.step(gradients)
        for parameter, gradient in zip(its, gradients, strict=False):
            parameter.grad = gradient
        oracle.step()
        assert all(map(torch.equal, own, its))
    slots = oracle.state_dict()["state"]
    state = {f"{number}.{name}": value for number, slot in slots.items() for name, value in slot.items()}
    mine = optimizer.state_dict()
    assert mine.keys() == state.keys()
    assert all(torch.equal(mine[name], state[name]) for name in state)


def test_a_saved_one_goes_on_as_it_would_have() -> None:
    kept, first = drawn(0, torch.float32), drawn(0, torch.float32)
    through, saved = AdamW(kept, 0.1, 0.1), AdamW(first, 0.1, 0.1)
    through.step(drawn(1, torch.float32))
    saved.step(drawn(1, torch.float32))
    loaded = AdamW(first, 0.1, 0.1)
    loaded.load_state_dict(saved.state_dict())
    for optimizer in (through, loaded):
        optimizer.step(drawn(2, torch.float32))
    assert all(map(torch.equal, kept, first))
    assert all(map(torch.equal, through.state_dict().values(), loaded.state_dict().values()))


def test_what_has_not_moved_has_no_state() -> None:
    early, late = drawn(0, torch.float32)[:2]
    optimizer = AdamW([early], 0.1, 0.1)
    assert optimizer.state_dict() == {}
    optimizer.step([torch.ones_like(early)])
    optimizer.extend([late])
    state = optimizer.state_dict()
    assert list(state) == ["0.step", "0.exp_avg", "0.exp_avg_sq"]
    loaded = AdamW([early, late], 0.1, 0.1)
    loaded.load_state_dict(state)
    assert list(loaded.state_dict()) == list(state)


def test_there_may_be_nothing_to_move() -> None:
    optimizer = AdamW([], 0.1, 0.1)
    optimizer.step([])
    assert optimizer.state_dict() == {}


@pytest.mark.parametrize("wrong", [[], [torch.ones(2), torch.ones(2)]])
def test_each_parameter_has_one_gradient(wrong: list[Tensor]) -> None:
    with pytest.raises(ValueError, match=f"1 parameters, but {len(wrong)} gradients"):
        AdamW([torch.ones(2)], 0.1, 0.1).step(wrong)


def test_no_compiler_is_loaded_for_it() -> None:
    """It is what `torch.optim` is not used for."""
    step = (
        "import sys, torch; from weir.trainer.step.adamw import AdamW; "
        "AdamW([torch.ones(1)], 1, 1).step([torch.ones(1)])"
    )
    subprocess.run([sys.executable, "-c", f"{step}; assert 'torch._dynamo' not in sys.modules"], check=True)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def changed(config: TrainerConfig, **sections: dict[str, Any]) -> TrainerConfig:
    plain = config.model_dump()
    for name, values in sections.items():
        plain[name] |= values
    return TrainerConfig.model_validate(plain)


def resampling(config: TrainerConfig) -> TrainerConfig:
    """Return settings under which batch and cache are resampled."""
    return changed(config, negatives={"uniform": 0}, loss={"kind": "resampled_softmax", "cache": 8})


def on_ranks(ranks: int, script: str, store: Store, config: TrainerConfig, out: Path) -> None:
    """Run a script of this folder."""
    run_on_ranks(ranks, Path(__file__).with_name(script), store.url, config.model_dump_json(), str(out), seconds=120)


def naive_loss(state: TrainerState, batch: Batch, weight: torch.Tensor) -> torch.Tensor:
    """The loss of a step, example by example, over the dense table."""
    config, total = state.config, torch.zeros((), dtype=weight.dtype)
    live = torch.from_numpy(state.table.live)
    draw = generator(config.seed, Purpose.NEGATIVES, state.position.step)
    columns = [int(row) for row in batch.positives[batch.real]] if config.negatives.in_batch else []
    columns += draw_uniform(live, config.negatives.uniform, draw).tolist()
    pool = Pool.of(batch.positives, batch.real).others
    density = shared_pool(config.negatives, state.log_q, live).log_q(torch.arange(len(weight)), pool)

    def item(row: int) -> torch.Tensor:
        return weight[row] / weight[row].norm() if config.tower.normalised else weight[row]

    known_rows = batch.known.tolist()
    for (positive, history, factor, real), known in zip(
        zip(*(column.tolist() for column in batch[:4]), strict=True), known_rows, strict=True
    ):
        if not real:
            continue
        rows = torch.tensor(history)
        user = state.tower(weight[rows][None], (rows != PADDING)[None])[0]
        user = user / user.norm() if config.tower.normalised else user
        banned = {positive, *(known if config.negatives.mask_history else [])}
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


def test_known_positives_that_do_not_take_part_mask_nothing(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    synthetic(writer, windows=1, events=70)
    state = absorbed(store, changed(config, tower={"dropout": 0.0}), dtype=torch.float64)
    batch = batches_of(store, state)[0]
    # Without padding the first place among the step's rows is an item's.
    full = torch.where(batch.histories == PADDING, int(state.live[0]), batch.histories)
    batch = batch._replace(histories=full, known=full)
    rows = compute_gradients(state, batch, Workers()).rows
    assert rows[0] == state.live[0]
    absent = state.live[~torch.isin(state.live, rows)]
    assert len(absent) > 1
    # Half of what is known has no part in the step.
    known = batch.known.clone()
    known[:, ::2] = absent[torch.arange(len(known)) % len(absent)][:, None]
    batch = batch._replace(known=known)
    found = compute_gradients(state, batch, Workers())
    weight = state.embeddings.weight.clone().requires_grad_()
    loss = naive_loss(state, batch, weight)
    assert found.totals[0].item() == pytest.approx(loss.item(), rel=1e-9)
    dense = torch.zeros_like(weight)
    dense[found.rows] = found.embeddings
    torch.testing.assert_close(dense, torch.autograd.grad(loss, weight)[0], rtol=1e-9, atol=1e-12)


def inputs_of_a_step(store: Store, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch) -> list[LossInputs]:
    """Train one step; return what the loss saw."""
    state, seen = absorbed(store, config), list[LossInputs]()

    def spy(step: LossInputs, config: TrainerConfig) -> LossResult:
        seen.append(step)
        return step_loss(step, config)

    monkeypatch.setattr("weir.trainer.step.step.step_loss", spy)
    train_step(state, batches_of(store, state)[0], Workers())
    return seen


def test_resampling_draws_where_the_logits_are(
    store: Store, writer: WindowWriter, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic(writer, windows=1)
    seen = inputs_of_a_step(store, resampling(config), monkeypatch)
    assert [step.generator.device for step in seen] == [step.users.device for step in seen] == [torch.device("cpu")]


def test_dropout_and_resampling_draw_by_seed_purpose_step_and_rank(
    store: Store, writer: WindowWriter, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic(writer, windows=1)
    config = resampling(config).model_copy(update={"seed": 17})
    [step] = inputs_of_a_step(store, config, monkeypatch)
    assert step.generator.initial_seed() == derive(17, Purpose.RESAMPLING, 0, 0)
    assert torch.initial_seed() == derive(17, Purpose.DROPOUT, 0, 0)


def test_the_hardest_likely_negative_is_never_the_positive(
    store: Store, writer: WindowWriter, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(self: PerRow, positives: torch.Tensor, real: torch.Tensor, draw: torch.Generator) -> Draw:
        others = torch.where(positives == self.live[0], self.live[1], self.live[0])
        items = positives[:, None].repeat(1, self.count)
        items[:, 2::4] = others[:, None]
        return Draw(items, torch.ones_like(items, dtype=torch.bool))

    synthetic(writer, windows=1)
    monkeypatch.setattr(PerRow, "draw", draw)
    negatives = {"in_batch": False, "uniform": 0, "per_row": 2, "bayesian_candidates": 4}
    [step] = inputs_of_a_step(store, changed(config, negatives=negatives, loss={"kind": "bpr"}), monkeypatch)
    assert step.own is not None
    assert step.own.shape[1] == 2
    assert not (step.own == step.positives[:, None]).all(2).any()


@pytest.mark.gpu
@needs_gpu
def test_resampling_learns_on_a_gpu(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    synthetic(writer, windows=1)
    state = absorbed(store, resampling(config), device=torch.device("cuda"))
    assert all(isfinite(train_step(state, batch, Workers()).loss) for batch in batches_of(store, state))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
def test_two_runs_come_to_the_same_bits(store: Store, writer: WindowWriter, config: TrainerConfig, device: str) -> None:
    synthetic(writer, windows=1)

    def trained() -> list[torch.Tensor]:
        state = absorbed(store, config, device=torch.device(device))
        with deterministic():
            for batch in batches_of(store, state):
                train_step(state, batch, Workers())
        return [state.embeddings.weight, state.embeddings.squares, *state.tower.parameters()]

    assert all(map(torch.equal, trained(), trained()))


@pytest.mark.parametrize("features", [{}, FEATURES], ids=["no features", "features"])
def test_two_ranks_compute_what_one_rank_does(
    store: Store, writer: WindowWriter, config: TrainerConfig, tmp_path: Path, features: dict[str, dict[str, Any]]
) -> None:
    writer.features = features
    synthetic(writer, windows=1, events=75)
    config = changed(config, tower={"dropout": 0.0}, rescoring={"kind": "mixture_of_logits", "negatives": 20})
    on_ranks(2, "gradients_of_ranks.py", store, config, tmp_path)
    state = absorbed(store, config, dtype=torch.float64)
    dealt = batches_of(store, state)
    assert not dealt[-1].real.all()
    alone = [compute_gradients(state, batch, Workers()) for batch in (dealt[0], dealt[-1])]
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    for one, left, right in zip(alone, first, second, strict=True):
        rows, embeddings, tower, totals, *_, rescoring, lengths = left
        # Each rank has the gradients of the rows that it keeps.
        rows, order = torch.cat([rows, right[0]]).sort()
        embeddings = torch.cat([embeddings, right[1]])[order]
        assert torch.equal(rows, one.rows)
        wanted = [one.embeddings, *one.tower, *one.second, one.totals[:2]]
        for mine, ours in zip([embeddings, *tower, *rescoring, totals[:2]], wanted, strict=True):
            torch.testing.assert_close(mine, ours, rtol=0, atol=1e-12)
        assert math.isclose(math.hypot(*lengths), one.lengths[0], rel_tol=1e-12)
        # One rank was told to stop: all know.
        assert totals[2] == 1
        assert all(torch.equal(a, b) for a, b in zip(tower, right[2], strict=True))


def test_a_batch_and_a_table_that_other_ranks_share_do_not_go_together(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    synthetic(writer, windows=1)
    state = absorbed(store, config)
    with pytest.raises(ValueError, match="2 ranks share the batch, but 1 the item table"):
        train_step(state, batches_of(store, state)[0], Workers(0, 2))


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


def test_embeddings_decay_in_the_steps_that_move_them(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    synthetic(writer, windows=1)
    settings = {"embedding_decay": 0.3, "max_gradient_norm": None}
    state = absorbed(store, changed(config, optimizer=settings))
    batch = batches_of(store, state)[0]
    found, before = compute_gradients(state, batch, Workers()), state.embeddings.weight.clone()
    rows = found.rows[found.rows != PADDING]
    slope = found.embeddings[found.rows != PADDING] + 0.3 * before[rows]
    train_step(state, batch, Workers())
    # The first step of Adagrad has the rate as its length, whatever the gradient's.
    step = state.config.optimizer.embedding_learning_rate * slope / slope.square().mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(state.embeddings.weight[rows], before[rows] - step)


def test_steps_lower_the_loss(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    synthetic(writer, windows=1)
    state = absorbed(store, config)
    dealt = batches_of(store, state)
    losses = [train_step(state, batch, Workers()).loss for _ in range(8) for batch in dealt]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


def everything_of(state: TrainerState) -> dict[str, bytes]:
    """Return all that a step may change, bit by bit."""
    return {name: value.numpy().tobytes() for name, value in state.tensors().items() if name != "progress"}


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("loss", ["sampled_softmax", "resampled_softmax"])
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(
    store: Store, writer: WindowWriter, config: TrainerConfig, weight: float, loss: str
) -> None:
    synthetic(writer, windows=1)
    state = absorbed(store, config if loss == "sampled_softmax" else resampling(config))
    first, second, *_ = batches_of(store, state)
    train_step(state, first, Workers())
    before = everything_of(state)
    weights = second.weights.clone()
    weights[3:5] = weight
    result = train_step(state, second._replace(weights=weights), Workers())
    assert result.refused
    assert everything_of(state) == before
    # The batch is done with, so that no restart comes back to it.
    assert (state.position.step, state.position.batch) == (2, 2)
    assert not train_step(state, second, Workers()).refused
    assert everything_of(state) != before


def test_a_loss_that_is_not_finite_on_one_rank_is_refused_on_all(
    store: Store, writer: WindowWriter, config: TrainerConfig, tmp_path: Path
) -> None:
    synthetic(writer, windows=1)
    on_ranks(2, "refusals_of_ranks.py", store, config, tmp_path)
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    before, refused, after, refused_too, trained = first
    assert (refused, refused_too) == (True, False)
    assert before == after != trained


def test_gradients_are_scaled_down_to_the_maximum_norm_and_else_left_alone(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    synthetic(writer, windows=1)

    def after(limit: float | None, weight: float) -> tuple[StepResult, TrainerState]:
        state = absorbed(store, changed(config, optimizer={"max_gradient_norm": limit}))
        batch = batches_of(store, state)[0]
        return train_step(state, batch._replace(weights=weight * batch.weights), Workers()), state

    plain, free = after(None, 1.0)
    at_limit, bounded = after(plain.norm, 1.0)
    assert (plain.clipped, at_limit.clipped) == (False, False)
    assert everything_of(free) == everything_of(bounded)
    # Whatever the weight, the step is that of the gradient of this norm.
    result, clipped = after(plain.norm, 1e6)
    assert result.clipped
    assert result.norm == pytest.approx(1e6 * plain.norm, rel=1e-4)
    # AdamW divides by the gradient's size, so that a first step says little of it; the moments do.
    moments = [name for name in free.tensors() if name.endswith((".exp_avg", ".exp_avg_sq", ".squares"))]
    assert len(moments) > 10
    for name in moments:
        torch.testing.assert_close(clipped.tensors()[name], free.tensors()[name], rtol=1e-3, atol=1e-7)


def test_one_rank_copies_nothing_and_knows_the_length() -> None:
    table, rows, gradient = Embeddings(torch.zeros(8, 2)), torch.tensor([5, 2]), torch.tensor([[3e30, 0], [0, 4e30]])
    shared = [torch.ones(3), torch.ones(())]
    sums = sum_over_ranks(table, table.route(rows), gradient, shared, Workers())
    assert sums.rows is rows
    assert sums.embeddings is gradient
    assert sums.shared is shared
    # Squares of float32 would overflow.
    assert math.isclose(sums.lengths[0], 5e30, rel_tol=1e-6)
