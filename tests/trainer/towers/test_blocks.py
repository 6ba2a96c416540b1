"""One position that attends, against all positions at once; weights by distance."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.towers.plain import LENGTH as LENGTH_OF_PLAIN
from tests.trainer.towers.plain import left_padded
from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers.blocks import Attention
from weir.trainer.towers.recency import Recency
from weir.trainer.towers.tower import Dense

USERS, LENGTH, DIMENSION = 5, 7, 12


def bias_of(kind: str, heads: int, draw: torch.Generator) -> Tensor:
    """Return what every place sees, itself at least: as booleans for all heads, or as numbers for each."""
    seen = torch.eye(LENGTH, dtype=torch.bool) | (torch.rand(USERS, 1, LENGTH, LENGTH, generator=draw) < 0.5)
    if kind == "allowed":
        return seen
    numbers = torch.randn(USERS, heads, LENGTH, LENGTH, dtype=torch.float64, generator=draw)
    return numbers.masked_fill(~seen, -torch.inf)


@pytest.mark.parametrize("kind", ["allowed", "numbers"])
@pytest.mark.parametrize("heads", [1, 3])
def test_one_place_reads_what_it_reads_among_all(heads: int, kind: str) -> None:
    draw = torch.Generator().manual_seed(heads)
    block = Attention(TowerConfig(dimension=DIMENSION, heads=heads)).double()
    memory = torch.randn(USERS, LENGTH, DIMENSION, dtype=torch.float64, generator=draw).requires_grad_()
    bias = bias_of(kind, heads, draw)
    above = torch.randn(USERS, DIMENSION, dtype=torch.float64, generator=draw)
    among_all = block.attend(memory, Dense(memory), bias)[:, -1]
    alone = block.attend(memory[:, -1:], Dense(memory), bias[:, :, -1:])[:, 0]
    torch.testing.assert_close(alone, among_all, rtol=0, atol=1e-12)
    pairs = (torch.autograd.grad(one, [memory, *block.parameters()], above) for one in (alone, among_all))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_the_bias_of_keys_gets_no_gradient_at_all() -> None:
    block, memory = Attention(TowerConfig(dimension=DIMENSION)), torch.randn(USERS, LENGTH, DIMENSION)
    seen = torch.ones(USERS, 1, 1, LENGTH, dtype=torch.bool)
    block.attend(memory[:, -1:], Dense(memory), seen).sum().backward()
    assert block.key_value.bias.grad is not None
    of_keys, of_values = block.key_value.bias.grad.chunk(2)
    assert not of_keys.any()
    assert of_values.all()


TOWER = Recency(TowerConfig(dimension=8, history_length=LENGTH_OF_PLAIN))


@given(st.lists(st.integers(0, LENGTH_OF_PLAIN), min_size=1, max_size=4), st.integers(1, LENGTH_OF_PLAIN))
def test_a_place_sees_itself_and_the_items_before_it(counts: list[int], length: int) -> None:
    _, mask = left_padded([min(count, length) for count in counts], length)
    age, seen = TOWER.see(mask)
    for place in range(length):
        assert age[place, : place + 1].tolist() == list(range(place, -1, -1))
        for row, items in enumerate(mask.tolist()):
            wanted = [other == place or (other < place and items[other]) for other in range(length)]
            assert seen[row, place].tolist() == wanted
    newest_age, newest_seen = TOWER.see(mask, newest=True)
    assert (newest_age == age[-1:]).all()
    assert (newest_seen == seen[:, -1:]).all()
