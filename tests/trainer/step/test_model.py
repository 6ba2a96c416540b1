"""The second phase beside the first one: it learns, and the first one does not notice."""

import pytest
import torch

from tests.trainer.step.test_training import configured
from tests.trainer.support import absorbed, batches_of, same_tensors
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.model import SecondPhase, rescored_columns
from weir.trainer.step.step import StepResult, train_step

OF_SECOND = ("rescoring.", "rescoring_optimizer.")


@pytest.fixture
def both(config: TrainerConfig) -> TrainerConfig:
    return configured(config, {"rescoring": {"kind": "mixture_of_logits", "dimension": 4, "negatives": 20}})


def trained(state: TrainerState, store: Store, steps: int) -> list[StepResult]:
    dealt = batches_of(store, state)
    return [train_step(state, dealt[state.position.step % len(dealt)], Workers()) for _ in range(steps)]


def of_first(state: TrainerState) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.tensors().items() if not name.startswith(OF_SECOND)}


def test_the_first_phase_is_bit_for_bit_what_it_is_alone(
    store: Store, writer: WindowWriter, config: TrainerConfig, both: TrainerConfig
) -> None:
    """Also where gradients are clipped."""
    synthetic(writer, windows=1)
    for limit in (3.0, 0.5):
        alone, beside = (
            absorbed(store, configured(one, {"optimizer": {"max_gradient_norm": limit}})) for one in (config, both)
        )
        found, other = (trained(state, store, 12) for state in (alone, beside))
        assert [one.norm for one in found] == [one.norm for one in other]
        assert limit == 3.0 or any(one.clipped for one in found)
        assert same_tensors(alone.tensors(), of_first(beside)) == []
        assert beside.tensors().keys() - alone.tensors().keys()


def test_the_second_phase_learns_to_tell_positives_from_negatives(
    store: Store, writer: WindowWriter, both: TrainerConfig
) -> None:
    synthetic(writer, windows=1)
    both = configured(both, {"rescoring": {"learning_rate": 0.01}})
    state = absorbed(store, configured(both, {"negatives": {"correction": "standard"}}))
    trained(state, store, 120)
    assert separation(state, store) > 2 * abs(separation(absorbed(store, both), store)) + 0.5


def separation(state: TrainerState, store: Store) -> float:
    """By how much the positives of a window score higher than other items do, on average."""
    state.tower.eval()
    batch, found = batches_of(store, state)[0], []
    assert state.second is not None
    with torch.no_grad():
        vectors = torch.nn.functional.embedding(batch.histories, state.embeddings.weight)
        users = torch.nn.functional.normalize(state.tower(vectors, batch.histories > 0), dim=1)
        items = torch.nn.functional.normalize(state.embeddings.weight, dim=1)
        scores = state.second.scorer.every_pair(users, items[state.live])
    for row, (real, positive) in enumerate(zip(batch.real, batch.positives, strict=True)):
        if real:
            own = scores[row, torch.searchsorted(state.live, positive)]
            found.append(own - scores[row].mean())
    return float(torch.stack(found).mean())


def test_gradients_of_the_second_phase_are_limited_by_themselves(config: TrainerConfig, both: TrainerConfig) -> None:
    assert SecondPhase.fresh(config, torch.device("cpu"), torch.float32) is None
    for size, limit, wanted in ((7.0, 3.0, 3.0), (7.0, None, 7.0), (2.0, 3.0, 2.0)):
        second = SecondPhase.fresh(both, torch.device("cpu"), torch.float64)
        assert second is not None
        parameters = second.optimizer.parameters
        before, draw = [one.detach().clone() for one in parameters], torch.Generator().manual_seed(0)
        gradients = [torch.randn(one.shape, generator=draw, dtype=torch.float64) for one in parameters]
        norm = torch.cat([one.flatten() for one in gradients]).norm()
        second.move([size / norm * one for one in gradients], limit)
        # After the first step these are a tenth of the gradients.
        means = [value.flatten() for name, value in second.optimizer.state_dict().items() if name.endswith("exp_avg")]
        assert 10 * float(torch.cat(means).norm()) == pytest.approx(wanted, rel=1e-5)
        assert not any(torch.equal(one, two) for one, two in zip(before, parameters, strict=True))


def test_a_second_phase_that_is_not_finite_is_not_trained_nor_is_the_first(
    store: Store, writer: WindowWriter, both: TrainerConfig
) -> None:
    synthetic(writer, windows=1)
    state = absorbed(store, both)
    assert state.second is not None
    with torch.no_grad():
        state.second.scorer.user_components.weight[0, 0] = torch.inf
    before = {name: value.clone() for name, value in state.tensors().items()}
    (result,) = trained(state, store, 1)
    assert result.refused
    assert set(same_tensors(before, state.tensors())) <= {"progress"}


def test_the_second_phase_sees_a_bounded_random_part_of_the_negatives(
    config: TrainerConfig, both: TrainerConfig
) -> None:
    columns = torch.arange(100, 150)
    assert rescored_columns(config, columns, 0) is None
    assert rescored_columns(both, None, 0) is None
    drawn = [rescored_columns(both, columns, step) for step in (0, 0, 1)]
    assert all(one is not None and len(set(one.tolist()) & set(columns.tolist())) == 20 for one in drawn)
    assert torch.equal(*drawn[:2])  # type: ignore[arg-type]
    assert not torch.equal(*drawn[1:])  # type: ignore[arg-type]
    few = rescored_columns(both, columns[:3], 0)
    assert few is not None
    assert sorted(few.tolist()) == [100, 101, 102]


def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(store: Store, writer: WindowWriter, both: TrainerConfig) -> None:
    synthetic(writer, windows=1)
    state, log = absorbed(store, both), CheckpointLog(store)
    trained(state, store, 5)
    log.save(state, Workers())
    trained(state, store, 5)
    loaded = log.load(both, Workers())
    assert loaded is not None
    assert not same_tensors(loaded.tensors(), loaded.tensors())
    assert "rescoring.user_components.weight" in same_tensors(loaded.tensors(), state.tensors())
    trained(loaded, store, 5)
    assert same_tensors(loaded.tensors(), state.tensors()) == []
