from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from trainer.config import TowerConfig
from trainer.towers import Tower, build_tower
from trainer.towers import compiled as module
from trainer.towers.compiled import compiled

CONFIG = TowerConfig(dimension=8, history_length=6)


def given(users: int, length: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(users + length)
    history = torch.randn(users, length, CONFIG.dimension, generator=draw, dtype=torch.float64)
    return history.requires_grad_(), torch.rand(users, length, generator=draw) > 0.3


def gradients(tower: Tower, vectors: Tensor, history: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(vectors.square().sum(), [history, *tower.parameters()], materialize_grads=True)
    return list(found)


def test_a_compiled_tower_does_what_the_tower_does_for_all_shapes() -> None:
    tower = build_tower(CONFIG, 0).double()
    fast = compiled(tower, CONFIG)
    assert compiled(tower, CONFIG) is fast
    for users, length in ((5, 6), (6, 3), (1, 4), (4, 1), (33, 5)):
        history, mask = given(users, length)
        mine, wanted = fast(history, mask), tower(history, mask)
        torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-12)
        for one, other in zip(gradients(tower, mine, history), gradients(tower, wanted, history), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_a_machine_without_a_compiler_is_told_what_to_do() -> None:
    with (
        patch.object(module, "which", return_value=None),
        pytest.raises(ValueError, match=r"compiled = true takes a C\+\+ compiler: install g\+\+"),
    ):
        compiled(build_tower(CONFIG, 0), CONFIG)
