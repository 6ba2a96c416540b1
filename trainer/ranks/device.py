"""The device that a process computes on."""

from typing import Literal

import torch

__all__ = ["device_of"]


def device_of(wanted: Literal["auto", "cpu", "cuda"], number: int = 0) -> torch.device:
    """Return the device that a setting asks for: for ``auto`` the GPU with this number where there are any.

    Raises
    ------
    ValueError
        If ``cuda`` is asked for where there is none.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError("device = cuda, but this machine offers no CUDA device: set device = cpu or auto")
    return torch.device("cuda", number) if wanted != "cpu" and torch.cuda.is_available() else torch.device("cpu")
