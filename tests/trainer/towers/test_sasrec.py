import pytest
import torch
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
