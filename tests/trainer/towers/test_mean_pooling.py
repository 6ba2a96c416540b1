import torch

from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers.mean_pooling import MeanPooling


def test_it_sees_the_mean_of_the_real_items_only() -> None:
    torch.manual_seed(0)
    model = MeanPooling(TowerConfig(dimension=6, layers=2, dropout=0.3)).eval()
    history = torch.randn(2, 5, 6)
    mask = torch.tensor([[False, False, True, True, True], [False] * 4 + [True]])
    user = model(history, mask)
    one = torch.ones(1, 1, dtype=torch.bool)
    torch.testing.assert_close(user[:1], model(history[:1, 2:].mean(1, keepdim=True), one))
    torch.testing.assert_close(user[1:], model(history[1:, 4:], one))
    torch.testing.assert_close(model(history.flip(1), mask.flip(1)), user)


def test_an_empty_history_is_the_learned_cold_start() -> None:
    model = MeanPooling(TowerConfig(dimension=6, layers=1, dropout=0.0))
    history = torch.randn(1, 5, 6, requires_grad=True)
    user = model(history, torch.zeros(1, 5, dtype=torch.bool))
    assert torch.equal(user[0], model.cold_start)
    user.sum().backward()
    assert history.grad is not None
    assert not history.grad.any()


def test_every_position_is_the_vector_of_its_prefix() -> None:
    torch.manual_seed(0)
    model = MeanPooling(TowerConfig(dimension=6, layers=2, dropout=0.3)).double().eval()
    history = torch.randn(4, 5, 6, dtype=torch.float64)
    mask = torch.arange(5) >= torch.tensor([[0], [2], [4], [5]])
    users = model.every_position(history, mask)
    for end in range(1, 6):
        torch.testing.assert_close(users[:, end - 1], model(history[:, :end], mask[:, :end]))
    assert torch.equal(model.every_position(history.masked_fill(~mask[..., None], 1e6), mask), users)
