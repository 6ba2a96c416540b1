"""The device that a process computes on."""

from typing import Literal

import torch

__all__ = ["device_of"]


def device_of(wanted: Literal["auto", "cpu", "cuda"], number: int = 0) -> torch.device:
    """Return the device for a setting; ``auto`` is the GPU `number` if the machine has one, else the CPU.

    Raises
    ------
    ValueError
        If ``cuda`` is set and the machine has no CUDA device.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError("device = cuda, but this machine offers no CUDA device: set device = cpu or auto")
    return torch.device("cuda", number) if wanted != "cpu" and torch.cuda.is_available() else torch.device("cpu")
