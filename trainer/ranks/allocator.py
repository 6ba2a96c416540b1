"""Memory that a step frees, and the next one asks for."""

import ctypes
from contextlib import suppress
from typing import Final

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD: Final = -1, 128 << 20
_MMAP_THRESHOLD: Final = -3, 32 << 20
"""Parameters of ``mallopt(3)``, in bytes: how much of what is free stays, and which blocks go back in any case."""


def keep_freed_memory() -> None:
    """Have the C library keep what a step frees.

    glibc returns the tensors of a step to the system and gets new pages for those of the next one, which the kernel
    fills with zeros: a tenth of a step's CPU.
    """
    with suppress(AttributeError, OSError):  # another C library
        for parameter, size in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(parameter, size)
