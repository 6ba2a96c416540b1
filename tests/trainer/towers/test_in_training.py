import gc
from unittest.mock import patch
from weakref import ref

import pytest
import torch
from torch import Tensor

from weir.trainer.settings.towers import TowerKind
from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers import Tower, build_tower
from weir.trainer.towers import in_training as module
from weir.trainer.towers.in_training import in_parts, in_training
from weir.trainer.towers.tower import Dense

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
    fast = in_training(tower, CONFIG, compiled=True)
    assert in_training(tower, CONFIG, compiled=True) is fast
    for users, length in ((5, 6), (6, 3), (1, 4), (4, 1), (33, 5)):
        history, mask = given(users, length)
        mine, wanted = fast(Dense(history), mask), tower(history, mask)
        torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-12)
        for one, other in zip(gradients(tower, mine, history), gradients(tower, wanted, history), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_a_machine_without_a_compiler_is_told_what_to_do() -> None:
    with (
        patch.object(module, "which", return_value=None),
        pytest.raises(ValueError, match=r"compiled = true takes a C\+\+ compiler: install g\+\+"),
    ):
        in_training(build_tower(CONFIG, 0), CONFIG, compiled=True)


@pytest.mark.parametrize("kind", ["recency", "sasrec"])
def test_where_nothing_is_asked_for_a_tower_reads_as_it_does_in_parts(
    kind: TowerKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CONFIG.model_copy(update={"kind": kind})
    tower = build_tower(config, 0).double()
    history, mask = given(33, 5)
    monkeypatch.setitem(module._AT_ONCE, "cpu", 7 * 5 * config.dimension)
    assert [len(part) for part, _ in in_parts(Dense(history), mask)] == [7, 7, 7, 7, 5]
    mine, wanted = in_training(tower, config, compiled=False)(Dense(history), mask), tower(history, mask)
    torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-12)
    for one, other in zip(gradients(tower, mine, history), gradients(tower, wanted, history), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_a_tower_that_has_been_read_is_let_go() -> None:
    tower = build_tower(CONFIG, 0)
    known = ref(tower)
    history, mask = given(2, 3)
    in_training(tower, CONFIG, compiled=False)(Dense(history.float()), mask)
    del tower
    gc.collect()
    assert known() is None


def test_products_of_bfloat16_give_vectors_and_gradients_of_the_type_of_the_parameters() -> None:
    tower = build_tower(CONFIG, 0)
    history, mask = given(33, 5)
    history = history.detach().float().requires_grad_()
    halved = in_training(tower, CONFIG, compiled=False, precision="bfloat16")
    mine, wanted = halved(Dense(history), mask), tower(history, mask)
    assert not torch.equal(mine, wanted)
    torch.testing.assert_close(mine, wanted, rtol=0.02, atol=0.02)
    for one, other in zip(gradients(tower, mine, history), gradients(tower, wanted, history), strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() <= 0.03 * other.norm() + 1e-3
