"""What the tests of towers share: histories, parameters as after training, and their layers in numpy."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.trainer.towers import Tower

Array = npt.NDArray[np.float64]
T = TypeVar("T", bound=Tower)

LENGTH = 7


def as_after_training(model: T) -> T:
    """Give a tower parameters that all differ, in float64."""
    draw = torch.Generator().manual_seed(0)
    model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    return model


def left_padded(counts: list[int], length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Return random histories of so many items each, and their masks."""
    draw = torch.Generator().manual_seed(1)
    mask = torch.arange(length) >= length - torch.tensor(counts)[:, None]
    return torch.randn(len(counts), length, 8, generator=draw, dtype=torch.float64), mask


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


class PlainLayers:
    """The layers of a tower for one history without padding."""

    def __init__(self, model: Tower) -> None:
        self.values: dict[str, Array] = {name: value.numpy() for name, value in model.state_dict().items()}

    def linear(self, name: str, x: Array) -> Array:
        return np.asarray(x @ self.values[f"{name}.weight"].T + self.values.get(f"{name}.bias", 0.0))

    def norm(self, name: str, x: Array) -> Array:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return np.asarray(scaled * self.values[f"{name}.weight"] + self.values[f"{name}.bias"])
