import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts import Store, WindowLog, hash_id
from tests.trainer.windows import WindowWriter
from trainer.items.table import PADDING, SHARED, ItemTable
from trainer.step.batches import Batch, Examples, batches, read_positives


def some(n: int) -> Examples:
    histories = torch.tensor([[PADDING] * 4 + [row + 2] for row in range(n)]).view(n, 5)
    weights = torch.rand(n, generator=torch.Generator().manual_seed(n))
    exposed = (torch.arange(n)[:, None] + torch.arange(2)) * 3
    return Examples(torch.arange(n) + 2, histories, weights, torch.ones(n), exposed)


def dealt(n: int, size: int, start: int = 0) -> list[Batch]:
    return list(batches(some(n), size, torch.Generator().manual_seed(7), start))


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
        assert torch.equal(batch.exposed[batch.real], some(n).exposed[batch.positives[batch.real] - 2])
        assert (batch.exposed[~batch.real] == PADDING).all()
        torch.testing.assert_close(batch.weights[batch.real], some(n).weights[batch.positives[batch.real] - 2])


@given(st.integers(0, 40), st.integers(1, 12), st.integers(0, 5))
def test_starting_late_deals_the_rest(n: int, size: int, start: int) -> None:
    rest, whole = dealt(n, size, start), dealt(n, size)[start:]
    assert len(rest) == len(whole)
    for one, other in zip(rest, whole, strict=True):
        assert all(torch.equal(mine, wanted) for mine, wanted in zip(one, other, strict=True))


def test_histories_are_cut_to_the_longest_of_the_batch() -> None:
    assert dealt(3, 3)[0].histories.shape == (3, 1)
    none = torch.zeros(1, 0, dtype=torch.long)
    empty = Examples(torch.tensor([2]), torch.zeros(1, 5, dtype=torch.long), torch.ones(1), torch.ones(1), none)
    (batch,) = batches(empty, 2, torch.Generator())
    assert batch.histories.tolist() == [[PADDING], [PADDING]]


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
    assert list(batches(Examples.of(found, ItemTable()), 4, torch.Generator())) == []


def test_positives_without_a_row_are_left_out() -> None:
    examples = Examples(
        torch.tensor([SHARED, 2, SHARED, 5]),
        torch.arange(8).view(4, 2),
        torch.arange(4.0),
        torch.ones(4),
        torch.arange(12).view(4, 3),
    )
    admitted = examples.admitted()
    assert admitted.positives.tolist() == [2, 5]
    assert admitted.histories.tolist() == [[2, 3], [6, 7]]
    assert admitted.weights.tolist() == [1, 3]
    assert admitted.exposed.tolist() == [[3, 4, 5], [9, 10, 11]]


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
