"""Exports between complete bundles: what moved, came and went, published against the bundle before."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.support import absorbed, batches_of
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import PADDING_KEY, BundleLog, BundleManifest, ItemKeys, Store
from weir.contracts.verification import verify
from weir.serving.bundles.loading import load_bundle
from weir.trainer.export import Content, export_bundle
from weir.trainer.export.planner import ExportPlanner
from weir.trainer.export.servable import Servable
from weir.trainer.items.rows import TableRows
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import train_step


def with_settings(state: TrainerState, **settings: Any) -> None:
    state.config = TrainerConfig.model_validate({**state.config.model_dump(), **settings})


@pytest.fixture(params=["auto", "IVF8,SQfp16"])
def state(store: Store, writer: WindowWriter, config: TrainerConfig, request: pytest.FixtureRequest) -> TrainerState:
    synthetic(writer, windows=1)
    state = absorbed(store, config)
    with_settings(state, index=request.param)
    for batch in batches_of(store, state):
        train_step(state, batch, Workers())
    state.position.trained_sequence = 0
    return state


def turn(state: TrainerState, *items: int, by: float = 2.0) -> None:
    """Move the vectors of items to a new place in the stream."""
    for item in items:
        row = state.embeddings.weight[state.live[item]]
        row += by * row.norm() * torch.nn.functional.normalize(torch.arange(1.0, len(row) + 1), dim=0)
    state.embeddings.touched.mark(state.table.live[list(items)])
    state.position.step += 1


def replace_item(state: TrainerState, item: int, key: int, name: str) -> None:
    """Give an item's table row to another one."""
    set_item(state, state.table.live[item], key, name)


def set_item(state: TrainerState, row: int, key: int, name: str) -> None:
    """Give a table row to an item, or, for `PADDING_KEY`, to none."""
    if (before := state.table.keys[row]) != PADDING_KEY:
        state.table.left.add(ItemKeys(np.array([before])), state.table.capacity)
    state.table.keys[row] = key
    state.table.ids.put(TableRows(np.array([row])), np.array([name], object))
    state.table.index()
    state.table.touched.mark(np.array([row]))


def parent_of(manifest: BundleManifest) -> str | None:
    return manifest.parent.version if manifest.parent else None


def assert_published(store: Store, manifest: BundleManifest, state: TrainerState, bound: float = 0.0) -> None:
    """Compare what a server loads with the state, item by item."""
    bundle, content = load_bundle(BundleLog(store), manifest.version), Content.of(state)
    rows = bundle.rows_of(content.keys)
    assert bundle.items == len(rows) == len(set(rows.tolist()))
    assert (rows >= 0).all()
    np.testing.assert_allclose(bundle.exact.vectors[rows], content.vectors, atol=bound)
    off = np.linalg.norm(bundle.embeddings[rows + 2] - content.embeddings[2:], axis=1)
    assert (off <= bound * np.linalg.norm(bundle.embeddings[rows + 2], axis=1) + 1e-12).all()
    assert bundle.ids[rows].tolist() == state.table.ids.of(state.table.live).tolist()
    found = bundle.index.search(content.vectors, 1, nprobe=bundle.index.lists).rows[:, 0]
    if not bound:
        assert (found == rows).mean() > 0.95


@pytest.mark.parametrize("restarted", [False, True])
def test_what_moved_came_and_went_is_published(store: Store, state: TrainerState, *, restarted: bool) -> None:
    planner = ExportPlanner()
    first = export_bundle(store, state, planner=planner)
    assert (first.parent, first.schema_version, first.depth) == (None, 1, 0)
    turn(state, 3, 9)
    second = export_bundle(store, state, planner=ExportPlanner() if restarted else planner)
    assert (parent_of(second), second.base, second.depth) == (first.version, first.version, 1)
    assert (second.schema_version, second.changed, second.removed) == (2, 2, 0)
    assert (first.moved, second.moved) == (None, 2 / second.items)
    assert_published(store, second, state)
    replace_item(state, 5, 12345, "another")
    turn(state, 7)
    third = export_bundle(store, state, planner=ExportPlanner() if restarted else planner)
    assert (parent_of(third), third.base, third.depth) == (second.version, first.version, 2)
    # The new item has the row of the one that is gone.
    assert (third.changed, third.removed, third.items) == (2, 0, first.items)
    assert_published(store, third, state)
    assert BundleLog(store).current() == third.version
    assert verify(store).findings == []


def test_a_row_without_an_item_is_taken_by_a_later_one(store: Store, state: TrainerState) -> None:
    planner = ExportPlanner()
    first = export_bundle(store, state, planner=planner)
    row = state.table.live[4]
    key, name = int(state.table.keys[row]), str(state.table.ids.kept[row])
    replace_item(state, 4, 0, "")
    turn(state, 8)
    second = export_bundle(store, state, planner=planner)
    assert (second.items, second.changed, second.removed) == (first.items - 1, 1, 1)
    assert_published(store, second, state)
    set_item(state, row, key, name)
    state.position.step += 1
    third = export_bundle(store, state, planner=planner)
    assert (third.items, third.changed, third.removed) == (first.items, 1, 0)
    assert_published(store, third, state)
    assert len(load_bundle(BundleLog(store), third.version).rows) == first.items


def test_an_item_that_has_got_another_table_row_is_neither_new_nor_gone(store: Store, state: TrainerState) -> None:
    """It has expired and come back between two exports, and its row belongs to another one."""
    planner = ExportPlanner()
    first = export_bundle(store, state, planner=planner)
    row, other = state.table.live[4], state.table.live[-1] + 1
    set_item(state, other, int(state.table.keys[row]), str(state.table.ids.kept[row]))
    state.embeddings.weight[other] = state.embeddings.weight[row]
    set_item(state, row, 12345, "another")
    turn(state, 4)
    second = export_bundle(store, state, planner=planner)
    assert (second.changed, second.removed, second.items) == (1, 0, first.items + 1)
    assert planner.compared == 2 / second.items
    assert_published(store, second, state)


def test_what_is_off_by_less_than_the_bound_is_not_published(store: Store, state: TrainerState) -> None:
    planner = ExportPlanner()
    with_settings(state, publish_bound=0.05)
    export_bundle(store, state, planner=planner)
    turn(state, 2, by=0.01)
    turn(state, 3, by=0.5)
    second = export_bundle(store, state, planner=planner)
    assert second.changed == 1
    assert_published(store, second, state, bound=0.05)
    # Small moves add up: the bound is against what was published.
    for _ in range(10):
        turn(state, 2, by=0.01)
    third = export_bundle(store, state, planner=planner)
    assert third.changed == 1
    assert_published(store, third, state, bound=0.05)


def test_a_long_chain_and_a_large_delta_end_in_a_complete_bundle(store: Store, state: TrainerState) -> None:
    planner = ExportPlanner()
    with_settings(state, bundle_chain=2)
    made = []
    for item in range(4):
        made.append(export_bundle(store, state, planner=planner))
        turn(state, item)
    assert [one.depth for one in made] == [0, 1, 2, 0]
    turn(state, *range(20))
    assert export_bundle(store, state, planner=planner).depth == 0


def test_the_deltas_of_a_chain_describe_no_more_rows_than_the_complete_bundle(
    store: Store, state: TrainerState
) -> None:
    planner, made = ExportPlanner(), [export_bundle(store, state)]
    fifth = made[0].items // 5
    for _ in range(6):
        # Turned round, not to one place: there they would be too close to tell apart.
        state.embeddings.weight[state.live[:fifth]] *= -1
        turn(state, *range(fifth), by=0.0)
        made.append(export_bundle(store, state, planner=planner))
    assert [one.changed for one in made[1:6]] == [fifth] * 5
    assert [one.depth for one in made] == [0, 1, 2, 3, 4, 5, 0]
    assert 5 * fifth <= made[0].items < 6 * fifth
    assert_published(store, made[-1], state)


def test_a_chain_is_kept_as_long_as_what_is_built_on_it(store: Store, state: TrainerState) -> None:
    planner, log = ExportPlanner(), BundleLog(store)
    with_settings(state, bundles_kept=1, bundle_chain=3)
    made = []
    for item in range(6):
        made.append(export_bundle(store, state, planner=planner).version)
        turn(state, item)
    assert [log.manifest(version).depth for version in log.versions()] == [0, 1]
    assert log.versions() == made[-2:]
    assert verify(store).findings == []


def test_the_gate_judges_a_delta(store: Store, state: TrainerState) -> None:
    planner = ExportPlanner()
    for _ in range(20):
        for batch in batches_of(store, state):
            train_step(state, batch, Workers())
    good = export_bundle(store, state, planner=planner)
    for parameter in state.tower.parameters():
        parameter.data.mul_(-1)
    turn(state, 1)
    bad = export_bundle(store, state, planner=planner)
    assert bad.depth == 1
    assert bad.verdict.startswith("held: recall@5")
    assert BundleLog(store).current() == good.version
    # What is held is built on all the same.
    for parameter in state.tower.parameters():
        parameter.data.mul_(-1)
    turn(state, 1)
    better = export_bundle(store, state, planner=planner)
    assert (parent_of(better), better.promoted) == (bad.version, True)
    assert_published(store, better, state)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_lost_parent_is_followed_by_a_complete_bundle(store: Store, state: TrainerState, *, restarted: bool) -> None:
    planner = ExportPlanner()
    first = export_bundle(store, state, planner=planner)
    turn(state, 3)
    second = export_bundle(store, state, planner=planner)
    store.remove(first.folder)
    assert [(one.name, str(one.kind)) for one in verify(store).findings] == [
        (f"{first.folder}/MANIFEST.json", "missing")
    ]
    turn(state, 4)
    third = export_bundle(store, state, planner=ExportPlanner() if restarted else planner)
    assert (second.depth, third.depth) == (1, 0)
    assert BundleLog(store).current() == third.version
    assert_published(store, third, state)


def test_what_answers_for_the_gate_is_what_is_read_from_the_store(store: Store, state: TrainerState) -> None:
    planner, log = ExportPlanner(), BundleLog(store)
    for item in range(3):
        newest = export_bundle(store, state, planner=planner)
        turn(state, item)
    kept, fresh = planner.open(log, newest), Servable.open(log, newest)
    queries = Content.of(state).vectors
    for mine, other in zip(kept.index.search(queries, 5), fresh.index.search(queries, 5), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_nan_is_never_built_on(store: Store, state: TrainerState) -> None:
    planner = ExportPlanner()
    export_bundle(store, state, planner=planner)
    sound = state.embeddings.weight[state.live[3]].clone()
    state.embeddings.weight[state.live[3]] = torch.nan
    state.embeddings.touched.mark(state.table.live[[3]])
    state.position.step += 1
    assert not export_bundle(store, state, planner=planner).promoted
    state.embeddings.weight[state.live[3]] = sound
    state.position.step += 1
    third = export_bundle(store, state, planner=planner)
    assert (third.depth, third.promoted) == (0, True)
