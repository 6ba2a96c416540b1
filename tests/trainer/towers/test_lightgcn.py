import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.towers.lightgcn import Graph, Rows

ITEMS, USERS = range(2, 6), range(6, 10)
CAPACITY = 12


def rows(*numbers: int) -> Rows:
    return np.array(numbers, dtype=np.int64)


def dense(users: Rows, items: Rows, weight: np.ndarray, layers: int) -> np.ndarray:
    """Return the paper's sums, node by node."""
    neighbours: dict[int, set[int]] = {row: set() for row in range(len(weight))}
    for user, item in zip(users.tolist(), items.tolist(), strict=True):
        neighbours[user].add(item)
        neighbours[item].add(user)
    found = [weight]
    for _ in range(layers):
        following = np.zeros_like(weight)
        for row, others in neighbours.items():
            for other in others:
                following[row] += found[-1][other] / np.sqrt(len(others)) / np.sqrt(len(neighbours[other]))
        found.append(following)
    return np.asarray(np.mean(found, axis=0))


pairs = st.lists(st.tuples(st.sampled_from(USERS), st.sampled_from(ITEMS)), max_size=20)


@given(pairs, st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_the_mean_of_the_layers_is_the_papers_sum_over_neighbours(
    pairs: list[tuple[int, int]], layers: int, seed: int
) -> None:
    users, items = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    weight = np.random.default_rng(seed).normal(size=(CAPACITY, 3))
    graph = Graph(users, items, CAPACITY, dtype=torch.float64)
    found = graph.propagate(torch.from_numpy(weight), layers)
    np.testing.assert_allclose(found.numpy(), dense(users, items, weight, layers), rtol=1e-12, atol=1e-12)


def test_the_gradient_is_that_of_finite_differences() -> None:
    graph = Graph(rows(6, 6, 7, 8, 6), rows(2, 3, 3, 4, 2), CAPACITY, dtype=torch.float64)
    weight = torch.randn(CAPACITY, 3, dtype=torch.float64, requires_grad=True)
    for layers in (0, 1, 3):
        assert torch.autograd.gradcheck(lambda weight, layers=layers: graph.propagate(weight, layers), weight)
        assert torch.autograd.gradgradcheck(lambda weight, layers=layers: graph.propagate(weight, layers), weight)


def test_single_precision_and_a_gradient_that_is_not_contiguous() -> None:
    users, items = rows(6, 6, 7, 8), rows(2, 3, 3, 4)
    weight = torch.randn(CAPACITY, 3, requires_grad=True)
    found = Graph(users, items, CAPACITY).propagate(weight, 2)
    np.testing.assert_allclose(found.detach(), dense(users, items, weight.detach().numpy(), 2), rtol=1e-5, atol=1e-6)
    found.sum().backward()
    assert weight.grad is not None
    np.testing.assert_allclose(weight.grad, dense(users, items, np.ones((CAPACITY, 3)), 2), rtol=1e-5, atol=1e-6)


def test_neither_repetition_nor_order_matters_and_the_weight_stays() -> None:
    users, items = rows(6, 6, 7, 8), rows(2, 3, 3, 4)
    weight = torch.randn(CAPACITY, 3)
    before = weight.clone()
    once = Graph(users, items, CAPACITY).propagate(weight, 2)
    assert torch.equal(weight, before)
    twice = Graph(np.tile(users[::-1], 2), np.tile(items[::-1], 2), CAPACITY).propagate(weight, 2)
    assert torch.equal(once, twice)


def test_a_row_without_an_edge_comes_out_divided_and_reaches_no_other() -> None:
    graph = Graph(rows(6), rows(2), CAPACITY)
    weight = torch.ones(CAPACITY, 3, requires_grad=True)
    found = graph.propagate(weight, 3)
    torch.testing.assert_close(found[0], torch.full((3,), 0.25))
    found[2:7].sum().backward()
    assert weight.grad is not None
    assert not weight.grad[7:].any()


def test_narrow_integers_do_not_overflow_in_a_large_table() -> None:
    users, items, weight = rows(99_999, 99_998), rows(2, 3), torch.randn(100_000, 2)
    wanted = Graph(users, items, len(weight)).propagate(weight, 1)
    narrow = Graph(users.astype(np.int32), items.astype(np.int32), len(weight))
    assert torch.equal(narrow.propagate(weight, 1), wanted)


@pytest.mark.parametrize(
    ("users", "items", "message"),
    [
        (rows(6, 7), rows(2), r"users \(2,\) and items \(1,\) must be one-dimensional and equally long"),
        (rows(6, 12), rows(2, 3), "users holds row 12, the table has rows 0 to 11"),
        (rows(6, 7), rows(2, -1), "items holds row -1, the table has rows 0 to 11"),
        (rows(6, 2), rows(2, 3), "row 2 belongs to a user and to an item"),
    ],
)
def test_interactions_that_fit_no_table_are_refused(users: Rows, items: Rows, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Graph(users, items, CAPACITY)


def test_weights_of_another_table_and_negative_layers_are_refused() -> None:
    graph = Graph(rows(6), rows(2), CAPACITY)
    with pytest.raises(ValueError, match="the weight has 5 rows, the graph was built for 12"):
        graph.propagate(torch.ones(5, 3), 1)
    with pytest.raises(ValueError, match="layers must be 0 or more, got -1"):
        graph.propagate(torch.ones(CAPACITY, 3), -1)
