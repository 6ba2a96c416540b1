import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trainer.towers import SasRec


def tower(layers: int = 2, length: int = 7) -> SasRec:
    torch.manual_seed(0)
    return SasRec(dimension=8, history_length=length, layers=layers, heads=2, dropout=0.2).double().eval()


def left_padded(counts: list[int], length: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    mask = torch.arange(length) >= length - torch.tensor(counts)[:, None]
    return torch.randn(len(counts), length, 8, generator=draw, dtype=torch.float64), mask


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_one_position_of_the_last_block_equals_the_whole_block(layers: int) -> None:
    model = tower(layers)
    history, mask = left_padded([7, 3, 1], 7)
    place = torch.arange(7)
    x = history + model.positions
    allowed = (place[:, None] == place) | ((place[:, None] >= place) & mask[:, None])
    for block in model.blocks:
        x = block(x, x, allowed)
    torch.testing.assert_close(model(history, mask), model.norm(x)[:, -1], rtol=1e-12, atol=1e-12)


def test_padding_and_its_length_do_not_matter() -> None:
    model = tower()
    history, mask = left_padded([3, 2], 7)
    wanted = model(history, mask)
    torch.testing.assert_close(model(history.masked_fill(~mask[..., None], 1e6), mask), wanted)
    torch.testing.assert_close(model(history[:, -3:], mask[:, -3:]), wanted)


def test_an_empty_history_is_the_learnt_cold_start_and_its_gradients_are_finite() -> None:
    model = tower().train()
    history, mask = left_padded([0, 4], 7)
    history.requires_grad_()
    user = model(history, mask)
    assert torch.equal(user[0], model.cold_start)
    user.square().sum().backward()
    assert history.grad is not None
    assert history.grad.isfinite().all()
    assert not history.grad[0].any()
    assert model.cold_start.grad is not None
    assert model.cold_start.grad.any()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_order_matters() -> None:
    model = tower()
    history, mask = left_padded([7], 7)
    assert not torch.allclose(model(history, mask), model(history.flip(1), mask))


@given(st.lists(st.integers(0, 7), min_size=1, max_size=4), st.integers(1, 7), st.integers(1, 3))
def test_every_position_is_the_newest_of_its_prefix_at_the_same_places(
    counts: list[int], end: int, layers: int
) -> None:
    model, short = tower(layers), tower(layers, length=end)
    short.load_state_dict(model.state_dict() | {"positions": model.positions[:end]})
    history, mask = left_padded(counts, 7)
    users = model.every_position(history, mask)
    torch.testing.assert_close(users[:, end - 1], short(history[:, :end], mask[:, :end]), rtol=1e-9, atol=1e-9)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_the_last_of_every_position_is_forward(counts: list[int]) -> None:
    model = tower()
    history, mask = left_padded(counts, 5)
    torch.testing.assert_close(model.every_position(history, mask)[:, -1], model(history, mask), rtol=0, atol=1e-6)


def test_a_later_item_changes_no_earlier_position_and_padding_none() -> None:
    model = tower()
    history, mask = left_padded([7, 4, 1], 7)
    history.requires_grad_()
    users = model.every_position(history, mask)
    for place in range(7):
        (gradient,) = torch.autograd.grad(users[:, place].square().sum(), history, retain_graph=True)
        seen = mask & (torch.arange(7) <= place)
        assert torch.equal(gradient.any(2), seen), place
    padded = model.every_position(history.masked_fill(~mask[..., None], 1e6), mask)
    assert torch.equal(padded, users)


def test_positions_before_the_first_item_are_the_cold_start_and_gradients_are_finite() -> None:
    model = tower().train()
    history, mask = left_padded([0, 4], 7)
    history.requires_grad_()
    users = model.every_position(history, mask)
    assert torch.equal(users[~mask], model.cold_start.expand(10, -1))
    users.square().sum().backward()
    assert history.grad is not None
    assert not history.grad[~mask].any()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
