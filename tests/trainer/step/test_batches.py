""""""

import errno
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.step.test_ranks import on_ranks
from tests.trainer.support import drawn
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import PADDING_KEY, ItemKeys, Store, UserKeys, WindowLog, hash_id
from weir.contracts.base import columns
from weir.contracts.interactions.features import UserFeatures, buckets_of
from weir.contracts.storage import artefacts
from weir.sketches import CountMinSketch, FrequencyView
from weir.trainer.items.table import FIRST_ITEM, PADDING, ItemTable
from weir.trainer.log_q.row_counts import Users
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step import shuffling as shuffled
from weir.trainer.step.batches import Batch, Examples, ahead, batches
from weir.trainer.step.positives import Positives, SharedWindow, read_positives
from weir.trainer.step.shuffling import ShardedBatches, Shuffled, Spool, blocks
from weir.trainer.towers.features import FeatureVectors
from weir.trainer.towers.user_features import FeaturedUsers, Layout

COUNT = 40
BUCKETS = 1 << 20
LAYOUT = Layout({"tag": 1}, ("age",))
TYPE = pa.struct([pa.field("tag", pa.list_(pa.string())), pa.field("age", pa.float64())])


def some(n: int, length: int = 5) -> Positives:
    """Return positives of the items 1, 2, ...: each has its own as the newest of its history."""
    items, padding = np.arange(1, n + 1), np.full((n, length - 1), PADDING_KEY)
    weights = np.random.default_rng(n).random(n, np.float32)
    exposed = 3 * (np.arange(n)[:, None] + np.arange(2)) + 1
    histories = np.concatenate([padding, items[:, None]], 1)
    said = LAYOUT.encoded(pa.array([{"tag": [str(item)], "age": item} for item in items.tolist()], TYPE), BUCKETS)
    return Positives(UserKeys(items % 7), ItemKeys(items), ItemKeys(histories), weights, ItemKeys(exposed), said)


def knowing(*keys: int) -> ItemTable:
    table = ItemTable()
    table.admit(ItemKeys(np.array(keys, np.int64)), np.array([str(key) for key in keys], object), 0)
    return table


TABLE = knowing(*range(1, COUNT + 1))
"""Of the item k, the row is k + 1."""


def dealt(n: int, size: int, start: int = 0, table: ItemTable = TABLE) -> list[Batch]:
    return list(batches(alone(some(n)), table, size, torch.Generator().manual_seed(7), start=start))


def alone(found: Positives) -> SharedWindow:
    return SharedWindow(found, Workers(), LAYOUT)


@given(st.integers(0, 40), st.integers(1, 12))
def test_every_example_is_dealt_once_and_all_batches_are_full(n: int, size: int) -> None:
    found = dealt(n, size)
    assert len(found) == -(-n // size)
    # Labels are for losses that sample cells, offline.
    assert all(len(column) == size for batch in found for column in batch._replace(labels=batch.real))
    real = [row for batch in found for row in batch.positives[batch.real].tolist()]
    assert sorted(real) == list(range(2, n + 2))
    for batch in found:
        assert not batch.weights[~batch.real].any()
        assert (batch.positives[~batch.real] == PADDING).all()
        assert torch.equal(batch.histories[batch.real][:, -1], batch.positives[batch.real])
        whole, numbers = Examples.of(some(n), TABLE), batch.positives[batch.real] - 2
        assert torch.equal(batch.exposed[batch.real], whole.exposed[numbers])
        assert (batch.exposed[~batch.real] == PADDING).all()
        assert torch.equal(batch.weights[batch.real], whole.weights[numbers])
        assert (batch.user_counts == 1).all()


@given(st.integers(0, 40), st.integers(1, 12), st.integers(0, 5))
def test_starting_late_deals_the_rest(n: int, size: int, start: int) -> None:
    rest, whole = dealt(n, size, start), dealt(n, size)[start:]
    assert len(rest) == len(whole)
    for one, other in zip(rest, whole, strict=True):
        assert all(torch.equal(mine, wanted) for mine, wanted in zip(one, other, strict=True))


def test_histories_are_cut_to_the_longest_of_the_batch() -> None:
    assert dealt(3, 3)[0].histories.shape == (3, 1)
    found = some(1)._replace(histories=ItemKeys(np.full((1, 5), PADDING_KEY)))
    (batch,) = batches(alone(found), TABLE, 2, torch.Generator())
    assert batch.histories.tolist() == [[PADDING], [PADDING]]


@given(st.sets(st.integers(1, COUNT)), st.integers(0, COUNT))
def test_positives_without_a_row_are_left_out(known: set[int], n: int) -> None:
    table = knowing(*sorted(known))
    rows = [row for batch in dealt(n, 4, table=table) for row in batch.positives[batch.real].tolist()]
    assert all(row >= FIRST_ITEM for row in rows)
    assert sorted(table.keys[rows].tolist()) == [key for key in sorted(known) if key <= n]


def test_users_are_counted_where_a_loss_asks_for_it() -> None:
    found, users = some(20), Users(FrequencyView(1.0))
    sketch = CountMinSketch(1 << 10)
    sketch.update(found.users)
    users.add(sketch.to_bytes(), found.users, 0)
    counts = users.counts(found.users)
    for batch in batches(alone(found), TABLE, 6, torch.Generator(), users=users):
        assert batch.user_counts[batch.real].tolist() == counts[batch.positives[batch.real].numpy() - 2].tolist()


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_each_example_comes_with_what_is_said_of_its_user(n: int, size: int, start: int) -> None:
    featured = FeaturedUsers(FeatureVectors(2, BUCKETS), 0)
    featured.take_in(UserFeatures(categorical={"tag": 1}, dense={"age": (2.0, 10.0, 8.0)}))
    for batch in batches(alone(some(n)), TABLE, size, torch.Generator().manual_seed(7), featured=featured, start=start):
        items = (batch.positives[batch.real] - 1).tolist()
        said = buckets_of("tag", pa.array([[str(item)] for item in items], pa.list_(pa.string())), BUCKETS)
        assert batch.user_buckets[batch.real][:, 1:].tolist() == said.tolist()
        assert batch.user_shares[batch.real].tolist() == [[0.0, 1.0]] * len(items)
        ages = [min(max((item - 10) / 2, -5.0), 5.0) for item in items]
        assert batch.user_numbers[batch.real][:, 0].tolist() == ages
        assert not batch.user_shares[~batch.real].any()
        assert not batch.user_numbers[~batch.real].any()


CPU = torch.device("cpu")


def test_batches_come_in_their_order() -> None:
    found = list(ahead(iter(dealt(23, 4)), CPU))
    for one, other in zip(found, dealt(23, 4), strict=True):
        assert all(torch.equal(mine, wanted) for mine, wanted in zip(one, other, strict=True))


def test_the_next_is_made_while_one_is_used() -> None:
    made = [threading.Event() for _ in range(3)]

    def making() -> Iterator[Batch]:
        for event, batch in zip(made, dealt(12, 4), strict=True):
            event.set()
            yield batch

    found = ahead(making(), CPU)
    next(found)
    assert made[1].wait(60)
    assert not made[2].is_set()  # one ahead, no more: a batch takes memory
    next(found)
    assert made[2].wait(60)


def test_what_making_a_batch_raises_comes_in_its_place() -> None:
    def making() -> Iterator[Batch]:
        yield dealt(4, 4)[0]
        raise OSError("the disk is full")

    found = ahead(making(), CPU)
    next(found)
    with pytest.raises(OSError, match="the disk is full"):
        next(found)


def test_the_thread_ends_with_the_generator() -> None:
    before = set(threading.enumerate())
    found = ahead(iter(dealt(40, 4)), CPU)
    next(found)
    (thread,) = set(threading.enumerate()) - before
    found.close()
    assert not thread.is_alive()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_for_a_gpu_batches_are_pinned() -> None:
    for batch in ahead(iter(dealt(8, 4)), torch.device("cuda")):
        assert all(tensor.is_pinned() for tensor in batch if tensor.numel())


@given(st.data(), st.integers(0, 30), st.integers(4, 9), st.integers(1, 4))
def test_the_shares_of_all_ranks_are_the_batches(data: st.DataObject, count: int, size: int, ranks: int) -> None:
    order = np.array(data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))], np.int64)
    dealt = [ShardedBatches(order, size, Workers(rank, ranks)) for rank in range(ranks)]
    assert sum(one.lines for one in dealt) == len(order)
    for one in dealt:
        found = list(one.batches(0))
        assert [number for chosen in found for number in chosen.tolist()] == order.tolist()
        assert [part.tolist() for part in one.batches(1)] == [part.tolist() for part in found[1:]]
        assert one.lines == sum(len(chosen[one.here.start : one.here.stop]) for chosen in found)
        places = one.places(count)
        assert {int(number): place for place, number in enumerate(order)} == {
            number: place for number, place in enumerate(places.tolist()) if place >= 0
        }


@given(st.data(), st.integers(0, 30), st.integers(1, 9))
def test_a_rank_alone_keeps_the_lines_that_have_a_place(data: st.DataObject, count: int, size: int) -> None:
    order = np.array(data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))], np.int64)
    dealt, lines = ShardedBatches(order, size, Workers()), 10 * np.arange(count, dtype=np.int32)[:, None]
    came = dealt.exchanged(dealt.places(count), lines)
    assert sorted(came.tolist()) == [[place, 10 * number] for place, number in enumerate(order.tolist())]


def gone_through(order: list[int], size: int, start: int = 0) -> list[list[list[int]]]:
    """Append lines in pieces, of which line i is [i, 10 i] and goes in the place order[i]; return the groups."""
    lines = Shuffled(len(order), 2, size)
    places = np.array(order, np.int32).reshape(-1, 1)
    every = np.concatenate([places, np.arange(len(order), dtype=np.int32)[:, None] * np.array([1, 10])], 1)
    for piece in np.array_split(every.astype(np.int32), 3):
        lines.append(piece)
    return [part.tolist() for part in lines.groups(start)]


@given(st.data(), st.integers(0, 30), st.integers(1, 7), st.integers(1, 20))
def test_lines_go_in_their_order(data: st.DataObject, count: int, size: int, part: int) -> None:
    order = data.draw(st.permutations(range(count)))
    start = data.draw(st.integers(0, 5))
    with patch.object(shuffled, "_PART", part):
        found = gone_through(order, size, start)
    goes = [[number, 10 * number] for number in np.argsort(order)]
    assert [line for group in found for line in group] == goes[start * size :]
    for place, group in enumerate(found):
        assert len(group) == size or place == len(found) - 1


def test_lines_without_numbers_have_an_order() -> None:
    lines = Shuffled(3, 0, 2)
    lines.append(np.array([[2], [0], [1]], np.int32))
    assert [group.shape for group in lines.groups()] == [(2, 0), (1, 0)]
    assert lines.none.shape == (0, 0)


def test_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert gone_through([1, 0], 2) == [[[1, 10], [0, 0]]]
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - closed below
    with patch.object(shuffled, "scratch", return_value=full):
        lines = Shuffled(1, 2, 1)
    with full, pytest.raises(OSError, match=r"No space left on device: .*TMPDIR names another"):
        lines.append(np.zeros((1, 3), np.int32))


@given(st.lists(st.integers(0, 5), max_size=5), st.integers(0, 3), st.sampled_from([np.int64, np.int32]))
def test_lines_come_back_in_their_order(parts: list[int], width: int, dtype: type[np.generic]) -> None:
    spool, draw = Spool(width, dtype), np.random.default_rng(3)
    lines = [draw.integers(0, 1 << 30, (count, width)) for count in parts]
    for part in lines:
        spool.append(part)
    found = spool.finish()
    assert found.dtype == dtype
    assert found.tolist() == np.concatenate([np.empty((0, width), np.int64), *lines]).tolist()


def test_a_column_of_a_larger_array_is_kept() -> None:
    spool, whole = Spool(2, np.int64), np.arange(12).reshape(3, 4)
    spool.append(whole[:, -2:])
    assert spool.finish().tolist() == [[2, 3], [6, 7], [10, 11]]


def test_a_spool_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = Spool(2, np.int64)
    spool.append(np.ones((3, 2), np.int64))
    found = spool.finish()
    assert list(tmp_path.iterdir()) == []
    assert found.sum() == 6


def test_a_spool_names_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - closed below
    with patch.object(tempfile, "TemporaryFile", return_value=full):
        spool = Spool(2, np.int64)
    with full, pytest.raises(OSError, match=f"No space left on device: '{tmp_path}, .*TMPDIR names another") as caught:
        spool.append(np.ones((3, 2), np.int64))
    assert caught.value.errno == errno.ENOSPC


@given(st.integers(0, 200_000))
def test_blocks_cover_all_lines_once(count: int) -> None:
    parts: list[Any] = [(block.start, block.stop) for block in blocks(count)]
    assert [first for first, _ in parts] == [0, *(stop for _, stop in parts)][: len(parts)]
    assert all(0 < stop - first <= 1 << 15 for first, stop in parts)
    assert sum(stop - first for first, stop in parts) == count


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
