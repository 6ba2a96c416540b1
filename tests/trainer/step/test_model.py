"""What a step needs of a model: each loss trains with it, and a second phase learns beside the first."""

from typing import Any

import pytest
import torch

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


UNIFORM = {"in_batch": False, "uniform": 16}
OWN = {"in_batch": False, "uniform": 0, "per_row": 4}
BATCH = {"in_batch": True, "uniform": 0}
KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "limited": {"negatives": {"in_batch_limit": 8}},
    "deduplicated": {"negatives": {"deduplicate": True, "uniform": 0}},
    "unigram": {"negatives": {"density": "unigram", "correction": "standard"}},
    "full softmax": {"loss": {"kind": "full_softmax"}},
    "info_nce": {"loss": {"kind": "info_nce"}, "negatives": UNIFORM},
    "bce": {"loss": {"kind": "bce"}, "negatives": UNIFORM},
    "gbce": {"loss": {"kind": "gbce"}, "negatives": UNIFORM},
    "debiased": {"loss": {"kind": "debiased_contrastive"}, "negatives": UNIFORM},
    "debiased, extra positives": {"loss": {"kind": "debiased_contrastive", "extra_positives": 3}, "negatives": OWN},
    "hard": {"loss": {"kind": "hard_contrastive", "beta": 0.5}, "negatives": UNIFORM},
    # The anchor's own e^(1/temperature) stands in the numerator: a low temperature leaves little gradient.
    "debiased positive": {
        "loss": {"kind": "debiased_positive", "extra_positives": 2},
        "negatives": UNIFORM,
        "tower": {"temperature": 1.0},
    },
    "bpr": {"loss": {"kind": "bpr"}, "negatives": OWN | {"per_row": 1}},
    "bpr, bayesian": {"loss": {"kind": "bpr"}, "negatives": OWN | {"per_row": 1, "bayesian_candidates": 5}},
    "dpl": {"loss": {"kind": "dpl", "extra_positives": 2}, "negatives": OWN},
    "bir": {"loss": {"kind": "resampled_softmax"}, "negatives": BATCH},
    "xir": {"loss": {"kind": "resampled_softmax", "cache": 16}, "negatives": BATCH},
    "pointwise": {"loss": {"kind": "pointwise", "objective": "in_batch"}, "negatives": BATCH},
    "unbiased": {"loss": {"kind": "pointwise"}, "negatives": BATCH},
    "sogram": {"loss": {"kind": "sogram"}, "negatives": BATCH},
    "exposed": {"negatives": {"exposed": 2}},
    "exposed, bpr": {"loss": {"kind": "bpr"}, "negatives": OWN | {"per_row": 1, "exposed": 3, "exposed_weight": 0.5}},
    "rescored": {"rescoring": {"kind": "mixture_of_logits", "dimension": 4, "negatives": 30}},
}


def configured(config: TrainerConfig, sections: dict[str, dict[str, Any]]) -> TrainerConfig:
    plain = config.model_dump()
    for name, values in sections.items():
        plain[name] |= values
    return TrainerConfig.model_validate(plain)


def mean_rank(state: TrainerState, store: Store) -> float:
    """The mean rank of the window's positives."""
    state.tower.eval()
    ranks = []
    for batch in batches_of(store, state):
        items = torch.nn.functional.normalize(state.embeddings.weight, dim=1)
        vectors = torch.nn.functional.embedding(batch.histories, state.embeddings.weight)
        with torch.no_grad():
            scores = state.tower(vectors, batch.histories > 0) @ items[state.live].T
        own = scores.gather(1, torch.searchsorted(state.live, batch.positives)[:, None].clamp(max=len(state.live) - 1))
        ranks.append(((scores > own).sum(1) + 1)[batch.real].float())
    return float(torch.cat(ranks).mean())


@pytest.mark.parametrize("name", KINDS)
def test_training_ranks_the_positives_higher(
    store: Store, writer: WindowWriter, config: TrainerConfig, name: str
) -> None:
    synthetic(writer, windows=1, exposed=3)
    state = absorbed(store, configured(config, KINDS[name]))
    before = mean_rank(state, store)
    dealt = batches_of(store, state)
    results = [train_step(state, batch, Workers()) for _ in range(10) for batch in dealt]
    assert all(torch.isfinite(torch.tensor(result.loss)) for result in results)
    assert mean_rank(state, store) < 0.9 * before


@pytest.mark.parametrize("name", KINDS)
def test_a_lone_row_stops_nothing(store: Store, writer: WindowWriter, config: TrainerConfig, name: str) -> None:
    synthetic(writer, windows=1, exposed=3)
    state = absorbed(store, configured(config, KINDS[name]))
    batch = batches_of(store, state)[0]
    lone = torch.arange(len(batch.real)) == 0
    result = train_step(state, batch._replace(real=lone, positives=batch.positives * lone), Workers())
    assert torch.isfinite(torch.tensor(result.loss))
    assert state.embeddings.weight.isfinite().all()


def test_a_step_asks_for_memory_for_its_batch_and_not_for_the_table(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    synthetic(writer, windows=1)
    asked = []
    for capacity in (1 << 10, 1 << 20):
        state = absorbed(store, config)
        state.embeddings.grow(capacity)
        state.counts.kept.grow(capacity)
        first, second, *_ = batches_of(store, state)
        train_step(state, first, Workers())
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            train_step(state, second, Workers())
        asked.append(sum(max(event.self_cpu_memory_usage, 0) for event in profile.events() or ()))
    assert asked[0] > 0
    assert asked[1] == pytest.approx(asked[0], rel=0.01)
