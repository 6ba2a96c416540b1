from dataclasses import replace

import pytest
import torch

from tests.trainer.step.test_training import configured
from tests.trainer.support import absorbed, batches_of
from tests.trainer.windows import FEATURES, WindowWriter, synthetic
from weir.contracts import Store
from weir.trainer.config import TrainerConfig
from weir.trainer.export.content import Content
from weir.trainer.export.soundness import fault_of, fault_of_items
from weir.trainer.items.rows import Reader
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import train_step

BAD = [torch.nan, torch.inf, -torch.inf, 1e30]


def fault_in(content: Content) -> str | None:
    """Return what the bundle of a content would not be served for."""
    return fault_of(content.state, content.touched) or fault_of_items(content)


@pytest.fixture
def state(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    writer.features = FEATURES
    synthetic(writer, windows=1)
    state = absorbed(store, config)
    for batch in batches_of(store, state)[:2]:
        train_step(state, batch, Workers())
    return state


def test_what_has_been_learnt_is_sound(state: TrainerState) -> None:
    """Features that are unknown are NaN in the table; that is no fault."""
    assert fault_in(Content.of(state)) is None


@pytest.mark.parametrize("bad", BAD)
def test_one_number_that_is_not_sound_is_found_wherever_it_is(state: TrainerState, bad: float) -> None:
    moments = state.optimizer.state_dict()
    places = {
        "embeddings.weight": state.embeddings.weight.view(-1)[-3:],
        "embeddings.squares": state.embeddings.squares[7:8],
        "optimizer.0.exp_avg": moments["0.exp_avg"].view(-1)[:1],
        "optimizer.0.exp_avg_sq": moments["0.exp_avg_sq"].view(-1)[:1],
    }
    places |= {f"tower.{name}": value.view(-1)[:1] for name, value in list(state.tower.state_dict().items())[:2]}
    assert state.featured is not None
    features = state.featured.tower.state_dict()
    places |= {f"features.{name}": value.view(-1)[:1] for name, value in list(features.items())[:1]}
    for name, place in places.items():
        before = place.clone()
        place.fill_(bad)
        assert fault_in(Content.of(state)) == f"{name} contains NaN or infinity, or its norm overflows"
        place.copy_(before)
    assert fault_in(Content.of(state)) is None


@pytest.mark.parametrize("bad", BAD)
def test_a_number_of_the_second_phase_that_is_not_sound_is_found(store: Store, state: TrainerState, bad: float) -> None:
    state = absorbed(store, configured(state.config, {"rescoring": {"kind": "mixture_of_logits"}}))
    train_step(state, batches_of(store, state)[0], Workers())
    assert state.second is not None
    assert fault_in(Content.of(state)) is None
    moments = state.second.optimizer.state_dict()["1.exp_avg"].view(-1)
    weights = state.second.scorer.user_components.weight.detach().view(-1)
    for name, place in (("rescoring.user_components.weight", weights), ("rescoring_optimizer.1.exp_avg", moments)):
        before = place[:1].clone()
        place[:1] = bad
        assert fault_in(Content.of(state)) == f"{name} contains NaN or infinity, or its norm overflows"
        place[:1] = before


@pytest.mark.parametrize("bad", BAD)
def test_of_touched_rows_one_number_that_is_not_sound_is_found(state: TrainerState, bad: float) -> None:
    state.featured = None
    state.touched.clear(Reader.BUNDLE)
    state.embeddings.touched.mark(state.table.live[[3, 7]])
    assert fault_in(Content.since(state)) is None
    state.embeddings.weight[state.live[7], 2] = bad
    found = fault_in(Content.since(state))
    assert found == "embeddings.weight contains NaN or infinity, or its norm overflows"


@pytest.mark.parametrize("bad", BAD[:3])
def test_an_item_that_is_not_sound_is_found_where_the_state_is_sound(state: TrainerState, bad: float) -> None:
    """As in a snapshot of it."""
    content = Content.of(state)
    assert fault_of_items(content) is None
    for name, array in (("embeddings", content.embeddings), ("vectors", content.vectors)):
        broken = array.copy()
        broken[5, 1] = bad
        found = fault_of_items(replace(content, **{name: broken}))
        assert found == f"its {name} contain NaN or infinity"
