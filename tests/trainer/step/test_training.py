"""Every loss of the configuration trains in the stream: steps lower it, or raise the recall where it is not a mean."""

from typing import Any

import pytest
import torch

from tests.trainer.support import absorbed, batches_of
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import train_step

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
