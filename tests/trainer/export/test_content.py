""""""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from tests.trainer.step.test_training import configured
from tests.trainer.support import absorbed, batches_of
from tests.trainer.windows import FEATURES, WindowWriter, synthetic
from weir.contracts import Store
from weir.trainer.export import content
from weir.trainer.export.content import Content, fault_of, fault_of_items
from weir.trainer.items.rows import Reader, TableRows
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import RescoringConfig, TrainerConfig
from weir.trainer.state import items as item_writer
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import train_step
from weir.trainer.towers import project


@pytest.fixture
def state(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    synthetic(writer, windows=1)
    return absorbed(store, config)


def test_the_same_state_has_the_same_name_also_from_a_checkpoint(state: TrainerState) -> None:
    restored = TrainerState.restore(state.config, state.tensors(), torch.device("cpu"))
    assert Content.of(restored).version == Content.of(state).version == Content.of(state).version


def test_settings_at_the_values_that_a_name_leaves_out_change_no_name(state: TrainerState) -> None:
    optimizer = {"embedding_memory": 1.0, "embedding_decay": 0.0, "embedding_scale": 1.0}
    other_settings(precision="float32", optimizer=optimizer)(state)
    left_out = {"precision", *(f"optimizer.{name}" for name in optimizer)}
    left_out |= {f"rescoring.{name}" for name in RescoringConfig.model_fields}
    version = Content.of(state).version
    settings = {name: value for name, value in state.config.defining().items() if name not in left_out}
    with patch.object(TrainerConfig, "defining", return_value=settings):
        assert Content.of(state).version == version
    other_settings(optimizer={"embedding_decay": 0.5})(state)
    assert Content.of(state).version != version


def test_what_a_second_phase_would_be_changes_a_name_where_there_is_one(state: TrainerState) -> None:
    names = []
    for kind, dimension in product(("none", "mixture_of_logits"), (8, 16)):
        other_settings(rescoring={"kind": kind, "dimension": dimension})(state)
        names.append(Content.of(state).version)
    assert names[0] == names[1]
    assert len({*names}) == 3


def other_settings(**changes: object) -> Callable[[TrainerState], None]:
    def change(state: TrainerState) -> None:
        state.config = TrainerConfig.model_validate({**state.config.model_dump(), **changes})

    return change


def last_bit_of_an_embedding(state: TrainerState) -> None:
    row = state.live[3]
    state.embeddings.weight[row, 0] = torch.nextafter(state.embeddings.weight[row, 0], torch.tensor(9.0))


def a_parameter_of_the_tower(state: TrainerState) -> None:
    with torch.no_grad():
        next(state.tower.parameters()).view(-1)[0] += 1


def a_count(state: TrainerState) -> None:
    state.frequencies.add(state.frequencies.memories[0].sketch.to_bytes(), state.frequencies.time_ms)


def an_item(state: TrainerState) -> None:
    state.table.keys[state.table.live[0]] += 1


@pytest.mark.parametrize(
    "change",
    [
        last_bit_of_an_embedding,
        a_parameter_of_the_tower,
        a_count,
        an_item,
        other_settings(seed=1),
        other_settings(index="IVF4,Flat"),
        other_settings(nprobe=3),
    ],
)
def test_whatever_is_served_otherwise_has_another_name(
    state: TrainerState, change: Callable[[TrainerState], None]
) -> None:
    before = Content.of(state).version
    change(state)
    after = Content.of(state).version
    assert after != before
    assert after.rpartition("-")[0] == before.rpartition("-")[0] == "00000000-0000000000"


def test_another_second_phase_has_another_name(store: Store, state: TrainerState) -> None:
    before, config = Content.of(state).version, configured(state.config, {"rescoring": {"kind": "mixture_of_logits"}})
    state = absorbed(store, config)
    names = [before, Content.of(state).version]
    assert state.second is not None
    with torch.no_grad():
        state.second.scorer.user_components.bias[0] += 1
    assert len({*names, Content.of(state).version}) == 3


def test_names_sort_in_the_order_of_the_stream(state: TrainerState) -> None:
    names = []
    for sequence, step in [(0, 5), (0, 50), (1, 51), (9, 100), (10, 1000)]:
        state.position.trained_sequence, state.position.step = sequence, step
        state.embeddings.weight[state.live[0]] = float(np.random.default_rng(step).random())
        names.append(Content.of(state).version)
    assert names == sorted(names)


def test_settings_that_only_say_when_and_where_change_no_name(state: TrainerState) -> None:
    before = Content.of(state).version
    other_settings(bundles_kept=9, metrics_port=9999, gate_tolerance=0.1)(state)
    assert Content.of(state).version == before


def test_touched_rows_give_the_lines_and_the_name_of_a_whole_content(state: TrainerState) -> None:
    before = Content.of(state)
    state.touched.clear(Reader.BUNDLE)
    assert Content.since(state).version == before.version
    touched = state.live[[3, 9, 40]].numpy()
    state.embeddings.adagrad_step(torch.from_numpy(touched), torch.ones(3, state.embeddings.weight.shape[1]), 0.1)
    part, whole = Content.since(state), Content.of(state)
    assert (part.is_whole, whole.is_whole) == (False, True)
    assert part.version == whole.version != before.version
    chosen = np.searchsorted(whole.rows, touched)
    assert part.keys.tolist() == whole.keys[chosen].tolist()
    np.testing.assert_array_equal(part.vectors, whole.vectors[chosen])
    np.testing.assert_array_equal(part.embeddings, whole.embeddings[[0, 1, *(chosen + 2)]])
    np.testing.assert_array_equal(part.whole().vectors, whole.vectors)


@pytest.mark.parametrize("at_once", [3, 1 << 16])
def test_a_snapshot_says_of_items_what_the_state_said_then(state: TrainerState, at_once: int) -> None:
    whole, some = Content.of(state), np.array([0, 9, 3, 40])
    wanted = whole.items(some, np.arange(4))
    with patch.object(content, "_AT_ONCE", at_once):
        snapshot = whole.snapshot()
    assert snapshot.keys.tolist() == whole.keys.tolist()
    state.table.keys[:] = 0
    state.table.ids.kept[:] = None
    state.counts.kept.units[:] = 0
    found = snapshot.items(some, np.arange(4))
    assert found == wanted
    assert found.schema == wanted.schema


@pytest.mark.parametrize("at_once", [3, 7])
@pytest.mark.parametrize("features", [FEATURES, None])
def test_pieces_give_the_lines_and_the_name_that_all_rows_at_once_give(
    store: Store, writer: WindowWriter, config: TrainerConfig, at_once: int, features: Any
) -> None:
    writer.features = features or writer.features
    synthetic(writer, windows=1)
    state = absorbed(store, config)
    if state.featured is not None:
        for parameter in state.featured.parameters():
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    version, live = Content.of(state).version, state.table.live
    with patch.object(content, "_AT_ONCE", at_once), patch.object(item_writer, "_AT_ONCE", at_once):
        found = Content.of(state)
        # Of items with features those are read that have moved since a bundle, and there is none.
        touched = Content.since(state) if state.featured is None else found
    for part in (found, touched):
        assert part.rows.tolist() == live.tolist()
        _assert_lines(state, part)
    assert found.version == version


def _assert_lines(state: TrainerState, found: Content) -> None:
    with torch.no_grad():
        whole = state.item_vectors(TableRows(np.concatenate([[0, 1], found.rows])))
        np.testing.assert_array_equal(found.embeddings, whole)
        np.testing.assert_array_equal(found.vectors, project(whole[2:], state.config.tower))


BAD = [torch.nan, torch.inf, -torch.inf, 1e30]


def fault_in(content: Content) -> str | None:
    """Return what the bundle of a content would not be served for."""
    return fault_of(content.state, content.touched) or fault_of_items(content)


@pytest.fixture
def state_soundness(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    writer.features = FEATURES
    synthetic(writer, windows=1)
    state_soundness = absorbed(store, config)
    for batch in batches_of(store, state_soundness)[:2]:
        train_step(state_soundness, batch, Workers())
    return state_soundness


def test_what_has_been_learnt_is_sound(state_soundness: TrainerState) -> None:
    """Features that are unknown are NaN in the table; that is no fault."""
    assert fault_in(Content.of(state_soundness)) is None


@pytest.mark.parametrize("bad", BAD)
def test_one_number_that_is_not_sound_is_found_wherever_it_is(state_soundness: TrainerState, bad: float) -> None:
    moments = state_soundness.optimizer.state_dict()
    places = {
        "embeddings.weight": state_soundness.embeddings.weight.view(-1)[-3:],
        "embeddings.squares": state_soundness.embeddings.squares[7:8],
        "optimizer.0.exp_avg": moments["0.exp_avg"].view(-1)[:1],
        "optimizer.0.exp_avg_sq": moments["0.exp_avg_sq"].view(-1)[:1],
    }
    places |= {
        f"tower.{name}": value.view(-1)[:1] for name, value in list(state_soundness.tower.state_dict().items())[:2]
    }
    assert state_soundness.featured is not None
    features = state_soundness.featured.tower.state_dict()
    places |= {f"features.{name}": value.view(-1)[:1] for name, value in list(features.items())[:1]}
    for name, place in places.items():
        before = place.clone()
        place.fill_(bad)
        assert fault_in(Content.of(state_soundness)) == f"{name} contains NaN or infinity, or its norm overflows"
        place.copy_(before)
    assert fault_in(Content.of(state_soundness)) is None


@pytest.mark.parametrize("bad", BAD)
def test_a_number_of_the_second_phase_that_is_not_sound_is_found(
    store: Store, state_soundness: TrainerState, bad: float
) -> None:
    state_soundness = absorbed(store, configured(state_soundness.config, {"rescoring": {"kind": "mixture_of_logits"}}))
    train_step(state_soundness, batches_of(store, state_soundness)[0], Workers())
    assert state_soundness.second is not None
    assert fault_in(Content.of(state_soundness)) is None
    moments = state_soundness.second.optimizer.state_dict()["1.exp_avg"].view(-1)
    weights = state_soundness.second.scorer.user_components.weight.detach().view(-1)
    for name, place in (("rescoring.user_components.weight", weights), ("rescoring_optimizer.1.exp_avg", moments)):
        before = place[:1].clone()
        place[:1] = bad
        assert fault_in(Content.of(state_soundness)) == f"{name} contains NaN or infinity, or its norm overflows"
        place[:1] = before


@pytest.mark.parametrize("bad", BAD)
def test_of_touched_rows_one_number_that_is_not_sound_is_found(state_soundness: TrainerState, bad: float) -> None:
    state_soundness.featured = None
    state_soundness.touched.clear(Reader.BUNDLE)
    state_soundness.embeddings.touched.mark(state_soundness.table.live[[3, 7]])
    assert fault_in(Content.since(state_soundness)) is None
    state_soundness.embeddings.weight[state_soundness.live[7], 2] = bad
    found = fault_in(Content.since(state_soundness))
    assert found == "embeddings.weight contains NaN or infinity, or its norm overflows"


@pytest.mark.parametrize("bad", BAD[:3])
def test_an_item_that_is_not_sound_is_found_where_the_state_is_sound(state_soundness: TrainerState, bad: float) -> None:
    """As in a snapshot of it."""
    content = Content.of(state_soundness)
    assert fault_of_items(content) is None
    for name, array in (("embeddings", content.embeddings), ("vectors", content.vectors)):
        broken = array.copy()
        broken[5, 1] = bad
        found = fault_of_items(replace(content, **{name: broken}))
        assert found == f"its {name} contain NaN or infinity"
