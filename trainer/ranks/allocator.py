"""Settings of the C allocator: keep memory that a step frees for the next one."""

import ctypes
from contextlib import suppress
from typing import Final

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD: Final = -1, 128 << 20
_MMAP_THRESHOLD: Final = -3, 32 << 20
"""``mallopt(3)`` parameters, in bytes: free memory that is kept, and the block size from which blocks use mmap."""


def keep_freed_memory() -> None:
    """Keep freed memory in the C library.

    By default glibc returns the tensors of a step to the system and gets new pages for the next step, which the kernel
    fills with zeros: a tenth of a step's CPU time.
    """
    with suppress(AttributeError, OSError):  # another C library
        for parameter, size in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(parameter, size)
