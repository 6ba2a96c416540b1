""""""

import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import PADDING_KEY, ItemKeys, UserKeys
from weir.contracts.interactions.features import UserFeatures, buckets_of
from weir.sketches import CountMinSketch, FrequencyView
from weir.trainer.items.table import FIRST_ITEM, PADDING, ItemTable
from weir.trainer.log_q.row_counts import Users
from weir.trainer.ranks.workers import Workers
from weir.trainer.step.batches import Batch, Examples, ahead, batches
from weir.trainer.step.positives import Positives, SharedWindow
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
