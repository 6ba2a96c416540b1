import torch
from torch import nn

from trainer.config import TowerConfig
from trainer.items.table import PADDING
from trainer.ranking import user_vectors


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
