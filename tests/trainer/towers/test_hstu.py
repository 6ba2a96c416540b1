from typing import cast

import numpy as np
import pytest
import torch

from tests.trainer.towers.plain import LENGTH, Array, PlainLayers, as_after_training, left_padded, sigmoid
from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers.hstu import Hstu, Layer
from weir.trainer.towers.tower import Dense


def tower(**settings: float) -> Hstu:
    some = {"dimension": 8, "history_length": LENGTH, "heads": 2, "layers": 2, "dropout": 0.2}
    return as_after_training(Hstu(TowerConfig.model_validate(some | settings)))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


class Plain(PlainLayers):
    """Equations 2 to 4, place by place and head by head."""

    def __init__(self, model: Hstu, heads: int) -> None:
        super().__init__(model)
        self.layers, self.heads = len(model.layers), heads

    def layer(self, name: str, x: Array) -> Array:
        entered = self.norm(f"{name}.norm", x)
        gate, query = np.split(silu(self.linear(f"{name}.gate_query", entered)), 2, -1)
        value, key = np.split(silu(self.linear(f"{name}.value_key", entered)), 2, -1)
        joined, width = np.zeros_like(x), x.shape[1] // self.heads
        for place in range(len(x)):
            for head in range(self.heads):
                part = slice(head * width, (head + 1) * width)
                for other in range(place + 1):
                    bias = self.values[f"{name}.bias"][place - other]
                    weight = silu(query[place, part] @ key[other, part] + bias) / LENGTH
                    joined[place, part] += weight * value[other, part]
        return x + self.linear(f"{name}.out", self.norm(f"{name}.attended_norm", joined) * gate)

    def users(self, history: Array) -> Array:
        """Return the vectors (L, d) after each item of `history` (L, d)."""
        x = history
        for number in range(self.layers):
            x = self.layer(f"layers.{number}", x)
        return self.norm("norm", x)


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_vectors_are_those_of_the_published_layers(layers: int, heads: int) -> None:
    model = tower(layers=layers, heads=heads)
    history, mask = left_padded([7, 4, 1])
    users, newest = model.every_position(history, mask).detach(), model(history, mask).detach()
    for row, count in enumerate([7, 4, 1]):
        wanted = Plain(model, heads).users(history[row, -count:].numpy())
        np.testing.assert_allclose(users[row, -count:], wanted, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(newest[row], wanted[-1], rtol=1e-9, atol=1e-9)


def test_every_position_is_what_answers_for_the_history_up_to_it() -> None:
    model = tower()
    history, mask = left_padded([7])
    users = model.every_position(history, mask).detach()
    for place in range(1, LENGTH):
        part = history[:, :place], mask[:, :place]
        torch.testing.assert_close(users[:, place - 1], model(*part).detach(), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_weights_need_not_add_up_to_one() -> None:
    """A second time the same item adds to the first, as a softmax would not let it."""
    model = tower(layers=1, heads=1)
    layer = model.layers[0]
    assert isinstance(layer, Layer)
    layer.bias.zero_()
    layer.attended_norm = cast(torch.nn.LayerNorm, torch.nn.Identity())
    layer.out.bias.zero_()
    once = torch.randn(1, 1, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    twice, added = once.repeat(1, 2, 1), []
    for history in (once, twice):
        length = history.shape[1]
        seen, age = torch.ones(1, 1, length, dtype=torch.bool), torch.zeros(1, length, dtype=torch.int64)
        added.append(layer(once, Dense(history), age, seen) - once)
    torch.testing.assert_close(added[1], 2 * added[0])
