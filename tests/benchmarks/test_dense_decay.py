import torch

from benchmarks.dense_decay import RATE, dense_adam
from weir.trainer.items.embeddings import Embeddings


def test_all_rows_move_as_dense_adam_moves_them() -> None:
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 3, generator=draw)
    alone = torch.nn.Parameter(weight.clone())
    adam, table = torch.optim.Adam([alone], lr=RATE, weight_decay=0.1), Embeddings(weight)
    with dense_adam(0.1):
        for rows in ([1, 3], [3], [4, 1]):
            gradient = torch.randn(len(rows), 3, generator=draw)
            table.adagrad_step(torch.tensor(rows), gradient, 9.0, 1.0, 0.0)
            alone.grad = torch.zeros(5, 3)
            alone.grad[rows] = gradient
            adam.step()
    torch.testing.assert_close(table.weight, alone.detach())


def test_the_trainer_has_its_own_step_back_afterwards() -> None:
    before = Embeddings.adagrad_step
    with dense_adam(0.1):
        assert Embeddings.adagrad_step is not before
    assert Embeddings.adagrad_step is before
