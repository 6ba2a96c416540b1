import numpy as np
import pytest
import torch

from tests.trainer.towers.plain import LENGTH, Array, PlainLayers, as_after_training, left_padded, sigmoid
from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers.esasrec import ESasRec


def tower(**settings: int) -> ESasRec:
    some = {"dimension": 8, "history_length": LENGTH, "heads": 2, "layers": 2}
    return as_after_training(ESasRec(TowerConfig.model_validate(some | settings)))


class Layers(PlainLayers):
    """The published layers, place by place and head by head."""

    def __init__(self, model: ESasRec, heads: int) -> None:
        super().__init__(model)
        self.layers, self.heads = len(model.blocks), heads

    def attention(self, name: str, x: Array) -> Array:
        entered = self.norm(f"{name}.norm", x)
        query, (key, value) = (
            self.linear(f"{name}.query", entered),
            np.split(self.linear(f"{name}.key_value", entered), 2, -1),
        )
        joined, width = np.zeros_like(x), x.shape[1] // self.heads
        for place in range(len(x)):
            for head in range(self.heads):
                part = slice(head * width, (head + 1) * width)
                weights = np.exp(key[: place + 1, part] @ query[place, part] / np.sqrt(width))
                joined[place, part] = weights @ value[: place + 1, part] / weights.sum()
        return self.linear(f"{name}.out", joined)

    def swiglu(self, name: str, x: Array) -> Array:
        gate, value = np.split(self.linear(f"{name}.enter", self.norm(f"{name}.norm", x)), 2, -1)
        return self.linear(f"{name}.leave", gate * sigmoid(gate) * value)

    def users(self, history: Array) -> Array:
        """Return the vectors (L, d) after each item of `history` (L, d)."""
        x = history + self.values["positions"][-len(history) :]
        for layer in range(self.layers):
            name = f"blocks.{layer}"
            x = x + sigmoid(self.linear(f"{name}.attention_gate", x)) * self.attention(name, x)
            x = x + sigmoid(self.linear(f"{name}.feed_forward_gate", x)) * self.swiglu(f"{name}.feed_forward", x)
        return self.norm("norm", x)


@pytest.mark.parametrize("expansion", [1, 3])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_vectors_are_those_of_the_published_layers(layers: int, heads: int, expansion: int) -> None:
    model = tower(layers=layers, heads=heads, expansion=expansion)
    history, mask = left_padded([7, 4, 1])
    users, newest = model.every_position(history, mask).detach(), model(history, mask).detach()
    for row, count in enumerate([7, 4, 1]):
        wanted = Layers(model, heads).users(history[row, -count:].numpy())
        np.testing.assert_allclose(users[row, -count:], wanted, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(newest[row], wanted[-1], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_a_closed_gate_passes_its_input_on() -> None:
    model = tower(layers=1)
    history, mask = left_padded([7, 4])
    (block,) = model.blocks
    for gate in (block.attention_gate, block.feed_forward_gate):
        assert isinstance(gate, torch.nn.Linear)
        gate.weight.zero_()
        gate.bias.fill_(-1e9)
    wanted = model.norm(history + model.positions)
    torch.testing.assert_close(model.every_position(history, mask)[mask], wanted[mask], rtol=0, atol=0)


def test_the_feed_forward_network_has_three_matrices_without_biases() -> None:
    wide, narrow = (sum(one.numel() for one in tower(expansion=width).parameters()) for width in (4, 1))
    assert wide - narrow == 2 * 3 * 8 * 3 * 8
