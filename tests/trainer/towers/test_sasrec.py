import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers.esasrec import ESasRec
from weir.trainer.towers.sasrec import SasRec
from weir.trainer.towers.tower import Dense

both = pytest.mark.parametrize("cls", [SasRec, ESasRec])


def tower(cls: type[SasRec], layers: int = 2, length: int = 7) -> SasRec:
    torch.manual_seed(0)
    config = TowerConfig(dimension=8, history_length=length, layers=layers, heads=2, dropout=0.2)
    return cls(config).double().eval()


def left_padded(counts: list[int], length: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    mask = torch.arange(length) >= length - torch.tensor(counts)[:, None]
    return torch.randn(len(counts), length, 8, generator=draw, dtype=torch.float64), mask


@both
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_one_position_of_the_last_block_equals_the_whole_block(cls: type[SasRec], layers: int) -> None:
    model = tower(cls, layers)
    history, mask = left_padded([7, 3, 1], 7)
    place = torch.arange(7)
    x = history + model.positions
    allowed = (place[:, None] == place) | ((place[:, None] >= place) & mask[:, None])
    for block in model.blocks:
        x = block(x, Dense(x), allowed[:, None])
    torch.testing.assert_close(model(history, mask), model.norm(x)[:, -1], rtol=1e-12, atol=1e-12)


@both
def test_padding_and_its_length_do_not_matter(cls: type[SasRec]) -> None:
    model = tower(cls)
    history, mask = left_padded([3, 2], 7)
    wanted = model(history, mask)
    torch.testing.assert_close(model(history.masked_fill(~mask[..., None], 1e6), mask), wanted)
    torch.testing.assert_close(model(history[:, -3:], mask[:, -3:]), wanted)


@both
def test_an_empty_history_is_the_learned_cold_start_and_its_gradients_are_finite(cls: type[SasRec]) -> None:
    model = tower(cls).train()
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


@both
def test_order_matters(cls: type[SasRec]) -> None:
    model = tower(cls)
    history, mask = left_padded([7], 7)
    assert not torch.allclose(model(history, mask), model(history.flip(1), mask))


@both
@given(st.lists(st.integers(0, 7), min_size=1, max_size=4), st.integers(1, 7), st.integers(1, 3))
def test_every_position_is_the_newest_of_its_prefix_at_the_same_places(
    cls: type[SasRec], counts: list[int], end: int, layers: int
) -> None:
    model, short = tower(cls, layers), tower(cls, layers, length=end)
    short.load_state_dict(model.state_dict() | {"positions": model.positions[:end]})
    history, mask = left_padded(counts, 7)
    users = model.every_position(history, mask)
    torch.testing.assert_close(users[:, end - 1], short(history[:, :end], mask[:, :end]), rtol=1e-9, atol=1e-9)


@both
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_the_last_of_every_position_is_forward(cls: type[SasRec], counts: list[int]) -> None:
    model = tower(cls)
    history, mask = left_padded(counts, 5)
    torch.testing.assert_close(model.every_position(history, mask)[:, -1], model(history, mask), rtol=0, atol=1e-6)


@both
def test_a_later_item_changes_no_earlier_position_and_padding_none(cls: type[SasRec]) -> None:
    model = tower(cls)
    history, mask = left_padded([7, 4, 1], 7)
    history.requires_grad_()
    users = model.every_position(history, mask)
    for place in range(7):
        (gradient,) = torch.autograd.grad(users[:, place].square().sum(), history, retain_graph=True)
        seen = mask & (torch.arange(7) <= place)
        assert torch.equal(gradient.any(2), seen), place
    padded = model.every_position(history.masked_fill(~mask[..., None], 1e6), mask)
    assert torch.equal(padded, users)


@both
def test_positions_before_the_first_item_are_the_cold_start_and_gradients_are_finite(cls: type[SasRec]) -> None:
    model = tower(cls).train()
    history, mask = left_padded([0, 4], 7)
    history.requires_grad_()
    users = model.every_position(history, mask)
    assert torch.equal(users[~mask], model.cold_start.expand(10, -1))
    users.square().sum().backward()
    assert history.grad is not None
    assert not history.grad[~mask].any()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
