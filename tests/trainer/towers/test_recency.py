import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.towers.plain import LENGTH, Array, PlainLayers, as_after_training, left_padded
from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers.recency import Recency


def tower(**settings: float) -> Recency:
    some = {"dimension": 8, "history_length": LENGTH, "heads": 2, "layers": 2, "dropout": 0.2}
    return as_after_training(Recency(TowerConfig.model_validate(some | settings)))


class Plain(PlainLayers):
    """The tower, place by place and head by head."""

    def __init__(self, model: Recency, heads: int) -> None:
        super().__init__(model)
        self.layers, self.heads = len(model.blocks), heads

    def attention(self, name: str, x: Array) -> Array:
        entered = self.norm(f"{name}.norm", x)
        query, both = self.linear(f"{name}.query", entered), self.linear(f"{name}.key_value", entered)
        key, value = np.split(both, 2, -1)
        joined, width = np.zeros_like(x), x.shape[1] // self.heads
        for place in range(len(x)):
            for head in range(self.heads):
                part = slice(head * width, (head + 1) * width)
                logits = key[: place + 1, part] @ query[place, part] / np.sqrt(width)
                # The newest distance is 0: the place itself.
                weights = np.exp(logits + self.values["distances"][head, place::-1])
                joined[place, part] = weights @ value[: place + 1, part] / weights.sum()
        return self.linear(f"{name}.out", joined)

    def hidden(self, name: str, x: Array) -> Array:
        entered = self.linear(f"{name}.1", self.norm(f"{name}.0", x))
        gelu = entered * np.vectorize(lambda one: (1 + math.erf(one / math.sqrt(2))) / 2)(entered)
        return self.linear(f"{name}.3", gelu)

    def means(self, history: Array) -> Array:
        found = np.zeros((len(history), 2 * history.shape[1]))
        for place in range(len(history)):
            weights = np.exp(self.values["decays"][:, place::-1])
            found[place] = (weights / weights.sum(1, keepdims=True) @ history[: place + 1]).ravel()
        return np.asarray(found @ self.values["mix"].T)

    def users(self, history: Array) -> Array:
        """Return the vectors (L, d) after each item of `history` (L, d)."""
        x = history
        for layer in range(self.layers):
            x = x + self.attention(f"blocks.{layer}", x)
            x = x + self.hidden(f"blocks.{layer}.feed_forward", x)
        return self.norm("norm", x) + self.means(history)


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_vectors_are_those_computed_place_by_place(layers: int, heads: int) -> None:
    model = tower(layers=layers, heads=heads)
    history, mask = left_padded([7, 4, 1])
    users, newest = model.every_position(history, mask).detach(), model(history, mask).detach()
    for row, count in enumerate([7, 4, 1]):
        wanted = Plain(model, heads).users(history[row, -count:].numpy())
        np.testing.assert_allclose(users[row, -count:], wanted, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(newest[row], wanted[-1], rtol=1e-9, atol=1e-9)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=4), st.integers(1, 7), st.integers(1, 3))
def test_every_position_is_what_a_query_with_that_prefix_gets(counts: list[int], end: int, layers: int) -> None:
    model = tower(layers=layers)
    history, mask = left_padded(counts)
    users = model.every_position(history, mask)
    torch.testing.assert_close(users[:, end - 1], model(history[:, :end], mask[:, :end]), rtol=1e-9, atol=1e-9)


def test_order_matters() -> None:
    model = tower()
    history, mask = left_padded([7])
    assert not torch.allclose(model(history, mask), model(history.flip(1), mask))


def test_a_later_item_changes_no_earlier_position_and_padding_none() -> None:
    model = tower()
    history, mask = left_padded([7, 4, 1])
    history.requires_grad_()
    users = model.every_position(history, mask)
    for place in range(7):
        (gradient,) = torch.autograd.grad(users[:, place].square().sum(), history, retain_graph=True)
        assert torch.equal(gradient.any(2), mask & (torch.arange(7) <= place)), place
    assert torch.equal(model.every_position(history.masked_fill(~mask[..., None], 1e6), mask), users)


def test_positions_before_the_first_item_are_the_cold_start_and_gradients_are_finite() -> None:
    model = tower().train()
    history, mask = left_padded([0, 4])
    history.requires_grad_()
    users = model.every_position(history, mask)
    assert torch.equal(users[~mask], model.cold_start.expand(10, -1))
    users.square().sum().backward()
    assert history.grad is not None
    assert not history.grad[~mask].any()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@torch.no_grad()
def test_before_training_weights_halve_every_some_items() -> None:
    model = Recency(TowerConfig(dimension=8, history_length=21, heads=4))
    torch.testing.assert_close(model.decays.exp()[:, [2, 10, 20]], 2.0 ** -torch.tensor([[1, 5, 10], [0.2, 1, 2]]))
    torch.testing.assert_close(model.distances.exp()[:, 7], 2.0 ** -torch.tensor([1.0, 7, 1, 7]))
