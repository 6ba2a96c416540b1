"""The device that a process computes on, and its memory."""

import ctypes
from contextlib import suppress
from typing import Final, Literal

import torch

__all__ = ["device_of", "keep_freed_memory"]


_TRIM_THRESHOLD: Final = -1, 128 << 20
_MMAP_THRESHOLD: Final = -3, 32 << 20
"""Parameters of ``mallopt(3)`` with values in bytes: free memory that is kept, and least size of blocks for mmap."""


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for this process.

    By default glibc returns the tensors of a step to the system and gets new pages for the next step, which the kernel
    fills with zeros: a tenth of a step's CPU time.
    """
    with suppress(AttributeError, OSError):  # another C library
        for parameter, size in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(parameter, size)


def device_of(setting: Literal["auto", "cpu", "cuda"], number: int = 0) -> torch.device:
    """Return the device for a setting; ``auto`` is the GPU `number` if the machine has one, else the CPU.

    Raises
    ------
    ValueError
        If ``cuda`` is set and the machine has no CUDA device.
    """
    if setting == "cuda" and not torch.cuda.is_available():
        raise ValueError("device = cuda, but this machine offers no CUDA device: set device = cpu or auto")
    return torch.device("cuda", number) if setting != "cpu" and torch.cuda.is_available() else torch.device("cpu")
