import torch

from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers.matrix_factorisation import MatrixFactorisation


def test_a_user_is_her_row_and_an_unknown_one_zeros() -> None:
    tower = MatrixFactorisation(TowerConfig())
    assert not list(tower.parameters())
    table = torch.randn(5, 3, requires_grad=True)
    history, mask = table[torch.tensor([[4], [2], [0]])], torch.tensor([[True], [True], [False]])
    users = tower(history, mask)
    assert torch.equal(users, torch.stack([table[4], table[2], torch.zeros(3)]))
    users.sum().backward()
    assert table.grad is not None
    assert table.grad.any(1).tolist() == [False, False, True, False, True]


def test_in_a_padded_window_the_newest_entry_counts() -> None:
    history, mask = torch.randn(2, 4, 3), torch.tensor([[False, False, False, True], [False] * 4])
    assert torch.equal(MatrixFactorisation(TowerConfig())(history, mask), torch.stack([history[0, 3], torch.zeros(3)]))
