""""""

import numpy as np
import pytest
import torch

from tests.trainer.step.test_ranks import on_ranks
from tests.trainer.support import drawn
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store, WindowLog, hash_id
from weir.contracts.base import columns
from weir.contracts.storage import artefacts
from weir.trainer.items.table import ItemTable
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.batches import Examples, batches
from weir.trainer.step.positives import SharedWindow, read_positives


@pytest.mark.parametrize("length", [2, 10, 99])
def test_a_window_gives_its_positives_with_their_newest_history(store: Store, length: int) -> None:
    writer = WindowWriter(store, history_length=3)
    positive = np.array([True, True, False, True, True])
    weights = np.array([1, 2, 3, 4, 5])
    manifest = writer.commit(["a"] * 5, list("vwxyz"), np.arange(5), positive=positive, weights=weights)
    found = read_positives(WindowLog(store), manifest, length)
    pad, v, w, y, z = 0, *(hash_id(name) for name in "vwyz")
    assert found.items.tolist() == [v, w, y, z]
    assert found.weights.tolist() == [1, 2, 4, 5]
    wanted = np.array([[pad, pad, pad], [pad, pad, v], [pad, v, w], [v, w, y]])[:, -length:]
    assert found.histories.tolist() == wanted.tolist()


def test_a_window_without_positives_is_empty(store: Store, writer: WindowWriter) -> None:
    manifest = writer.commit(["a"], ["x"], np.array([5]), positive=np.array([False]))
    found = read_positives(WindowLog(store), manifest, 4)
    assert len(found.items) == 0
    assert found.histories.shape == (0, 4)
    assert list(batches(SharedWindow(found, Workers()), ItemTable(), 4, torch.Generator())) == []


@pytest.mark.parametrize("exposed", [0, 1, 2, 5])
def test_a_window_gives_what_its_positives_were_shown_with(store: Store, exposed: int) -> None:
    writer = WindowWriter(store, history_length=3)
    writer.exposed = [[f"{item}-{number}" for number in range(2)] for item in "vwx"]
    manifest = writer.commit(["a"] * 3, list("vwx"), np.arange(3), positive=np.array([True, False, True]))
    found = read_positives(WindowLog(store), manifest, 3, exposed)
    shown = [[hash_id(f"{item}-{number}") for number in range(2)] + [0] * 3 for item in "vx"]
    assert found.exposed.tolist() == [keys[:exposed] for keys in shown]
    assert [len(column) for column in Examples.of(found, ItemTable())] == [2] * 5


def test_a_window_that_was_not_joined_with_lists_shows_nothing(store: Store, writer: WindowWriter) -> None:
    manifest = writer.commit(["a"] * 2, ["x", "y"], np.arange(2))
    assert read_positives(WindowLog(store), manifest, 4, 3).exposed.tolist() == [[0] * 3] * 2


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_a_window_is_read_a_part_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(artefacts, "_ROWS", at_once)
    writer, draw = WindowWriter(store, history_length=3), np.random.default_rng(5)
    writer.exposed = [[f"i{number}"] for number in draw.integers(0, 9, 40)]
    users, items = (draw.integers(0, 9, 40) for _ in range(2))
    positive, weights = draw.random(40) < 0.6, draw.random(40)
    manifest = writer.commit(
        [f"u{user}" for user in users],
        [f"i{item}" for item in items],
        np.arange(40),
        positive=positive,
        weights=weights,
    )
    log = WindowLog(store)
    table = log.all_examples(manifest)
    wanted = table.filter(table[columns.LABEL].to_numpy() > 0)
    found = read_positives(log, manifest, 2, 1)
    for ranks in (1, 3, 7):
        parts = [read_positives(log, manifest, 2, 1, workers=Workers(rank, ranks)) for rank in range(ranks)]
        together = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        assert all(np.array_equal(one, other) for one, other in zip(together, found, strict=True))
    assert found.users.tolist() == wanted[columns.USER_KEY].to_pylist()
    assert found.items.tolist() == wanted[columns.ITEM_KEY].to_pylist()
    assert found.weights.tolist() == wanted[columns.WEIGHT].to_pylist()
    assert found.histories.tolist() == [keys[-2:] for keys in wanted[columns.HISTORY].to_pylist()]
    assert found.exposed.tolist() == wanted[columns.EXPOSED].to_pylist()


def test_ranks_that_share_a_window_have_all_of_it(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    # Some ranks have no part of the first, and none has a positive of the second.
    writer.commit(["a"], ["x"], np.array([5]))
    writer.commit(["a"], ["x"], np.array([6]), positive=np.array([False]), span=(3_600_000, 7_200_000))
    synthetic(writer, first=2, windows=1, events=75, exposed=3, said=True)
    negatives = config.negatives.model_copy(update={"exposed": 2})
    shared = config.model_copy(update={"negatives": negatives, "batch_size": 11})
    on_ranks(3, "windows_of_ranks.py", store.url, shared.model_dump_json())


def test_a_sample_is_the_beginning_of_a_larger_one(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    (manifest,) = synthetic(writer, windows=1, events=60)
    every = drawn(store, manifest, config, 100)
    assert len(every.items) == 60
    few = drawn(store, manifest, config, 7)
    assert all(np.array_equal(one, other) for one, other in zip(few, (column[:7] for column in every), strict=True))
    assert not np.array_equal(every.items, drawn(store, manifest, config.model_copy(update={"seed": 1}), 100).items)
