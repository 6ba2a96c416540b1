import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.trainer.ranking.ranked import lists, random_cases, random_scores
from weir.trainer.items.table import PADDING
from weir.trainer.ranking import Cases, Lists, distinct, highest, rank, user_vectors
from weir.trainer.settings.trainer import TowerConfig

seeds = st.integers(0, 10_000)


@given(seeds, st.integers(1, 5), st.integers(1, 2000), st.integers(1, 9), st.booleans())
def test_the_highest_are_those_of_a_sorted_list(seed: int, rows: int, columns: int, k: int, ties: bool) -> None:
    draw = np.random.default_rng(seed)
    scores = torch.from_numpy(draw.integers(0, 9, (rows, columns)) if ties else draw.normal(size=(rows, columns)))
    values, found = highest(scores.float(), k)
    assert values.tolist() == scores.float().sort(1, descending=True)[0][:, :k].tolist()
    assert scores.float().gather(1, found).tolist() == values.tolist()
    assert all(len(set(row)) == min(k, columns) for row in found.tolist())


@given(seeds, st.sampled_from([300, 2000]))
def test_the_highest_are_those_of_topk_where_some_are_no_numbers(seed: int, columns: int) -> None:
    draw = np.random.default_rng(seed)
    scores = torch.from_numpy(draw.choice([float("nan"), float("inf"), -float("inf"), 0.5, -2.0], (3, columns), p=[
        0.002, 0.002, 0.9, 0.046, 0.05]))  # fmt: skip
    torch.testing.assert_close(highest(scores, 5)[0], scores.topk(5)[0], rtol=0, atol=0, equal_nan=True)


@given(st.lists(st.lists(st.integers(-1, 4), min_size=6, max_size=6), min_size=1, max_size=4))
def test_distinct_columns_are_a_set(rows: list[list[int]]) -> None:
    for row, found in zip(rows, distinct(torch.tensor(rows)).tolist(), strict=True):
        assert sorted(column for column in found if column >= 0) == sorted(set(row) - {-1})
        assert len(found) == len(row)


def one_case(relevant: list[int]) -> Cases:
    return Cases(np.array([0]), Lists(np.array([0, len(relevant)]), np.array(relevant)))


@given(
    seed=seeds,
    ties=st.booleans(),
    hide=st.booleans(),
    restrict=st.booleans(),
    depth=st.sampled_from([1, 3, 12, 20]),
)
def test_ranks_and_tops_are_those_of_a_sorted_list(
    *, seed: int, ties: bool, hide: bool, restrict: bool, depth: int
) -> None:
    draw = np.random.default_rng(seed)
    cases = random_cases(draw, 9, 12, 4)
    scores = random_scores(draw, 9, 12, ties=ties)
    by_user = [draw.choice(12, draw.integers(0, 12), replace=False) for _ in range(9)]
    seen: list[list[int]] = [by_user[user].tolist() if hide else [] for user in cases.users]
    index = draw.permutation(12)[:7] if restrict else None
    hidden = Lists.grouped(np.repeat(np.arange(9), [len(own) for own in by_user]), np.concatenate(by_user), 9)
    ranked = rank(
        cases,
        lambda block: scores[block],
        12,
        depth=depth,
        seen=(lambda block: hidden.take(cases.users[block])) if hide else None,
        index=index,
        block_scores=int(draw.integers(1, 60)),
    )
    expected: list[int] = []
    for case, relevant in enumerate(lists(cases)):
        left = [i for i in ranked.index.tolist() if i in relevant or i not in seen[case]]
        order = sorted(left, key=lambda item: (-scores[case, item].item(), item))[:depth]
        assert ranked.top[case].tolist() == order + [-1] * (depth - len(order))
        expected += [order.index(item) + 1 if item in order else depth + 1 for item in relevant]
    assert ranked.ranks.tolist() == expected
    assert ranked.index.tolist() == (list(range(12)) if index is None else sorted(index.tolist()))


def test_equal_scores_go_by_code_whatever_the_sign_of_zero() -> None:
    scores = torch.tensor([[-0.0, 0.0, -1.0, 0.0, -0.0, -1.0]])
    ranked = rank(one_case([3, 4]), lambda block: scores[block], 6, depth=5)
    assert ranked.top.tolist() == [[0, 1, 3, 4, 2]]
    assert ranked.ranks.tolist() == [3, 4]


def test_scores_that_are_no_numbers_are_missed_and_never_recommended() -> None:
    scores = torch.tensor([[float("nan"), 1.0, float("inf"), -float("inf")]])
    ranked = rank(one_case([0, 1, 2, 3]), lambda block: scores[block], 4, depth=3)
    assert ranked.top.tolist() == [[1, -1, -1]]
    assert ranked.ranks.tolist() == [4, 1, 4, 4]


def test_the_scores_of_the_caller_are_left_alone() -> None:
    scores = torch.arange(4.0).expand(2, -1)
    cases = Cases(np.array([0, 1]), Lists(np.array([0, 1, 2]), np.array([0, 1])))
    ranked = rank(cases, lambda block: scores[block], 4, depth=2, seen=Lists(np.arange(3), np.array([3, 2])).take)
    assert scores.tolist() == [[0, 1, 2, 3]] * 2
    assert ranked.top.tolist() == [[2, 1], [3, 1]]


def test_blocks_hold_no_more_scores_than_allowed() -> None:
    blocks: list[list[int]] = []

    def scores(block: torch.Tensor) -> torch.Tensor:
        blocks.append(block.tolist())
        return torch.zeros(len(block), 5, requires_grad=True)

    cases = Cases(np.zeros(7, np.int64), Lists(np.arange(8), np.zeros(7, np.int64)))
    rank(cases, scores, 5, depth=1, block_scores=17)
    assert blocks == [[0, 1, 2], [3, 4, 5], [6]]


def test_scores_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scores of 1 cases have shape \(1, 3\); expected \(1, 4\)"):
        rank(one_case([0]), lambda block: torch.zeros(len(block), 3), 4, depth=1)


class Mean(nn.Module):
    def forward(self, history: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (history * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def test_users_are_what_the_tower_reads_without_padding_as_the_search_compares_them() -> None:
    vectors = torch.tensor([[9.0, 9.0], [0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    histories = torch.tensor([[PADDING, 2], [2, 3]])
    plain = user_vectors(Mean(), TowerConfig(normalised=False), vectors, histories)
    assert plain.tolist() == [[3, 0], [1.5, 2]]
    unit = user_vectors(Mean(), TowerConfig(), vectors, histories)
    torch.testing.assert_close(unit, torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
