"""GPU memory check before each swap: does an index fit beside the served one, and in 32 or 16 bits."""

import ctypes
import os
from contextlib import suppress
from typing import Any, Final

import faiss

__all__ = ["GpuFullError", "gpu_bytes", "is_halved", "room"]

_RUNTIMES: Final = ("libcudart.so.12", "libcudart.so.13")

_SHARE: Final = 0.9
"""Share of the free memory that an index may take: searches need some, and lists grow by blocks."""

_PER_VECTOR: Final = 8
"""Bytes of a row's id in its list."""


class GpuFullError(RuntimeError):
    """An index does not fit into the free memory of the GPU; the message has both sizes."""


def room() -> int | None:
    """Return the bytes that an index may take on the first GPU now; None if CUDA cannot be asked."""
    for name in _RUNTIMES:
        with suppress(OSError, AttributeError):
            # The runtime that FAISS has loaded: another one would have a CUDA context of its own.
            runtime = ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            if not runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)):
                return int(_SHARE * free.value)
    return None


def gpu_bytes(index: Any, *, half: bool = False) -> int:
    """Estimate the GPU memory of a FAISS index in bytes; `half`: uncompressed vectors have 16 bits instead of 32."""
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is not None:
        return int(inverted.ntotal * (inverted.code_size + _PER_VECTOR) + 4 * inverted.nlist * inverted.d)
    return int(index.ntotal * index.d * (2 if half else 4))


def is_halved(index: Any, free: int | None) -> bool:
    """Return whether an index fits into `free` bytes only with 16-bit vectors; False if `free` is None (unknown).

    Raises
    ------
    GpuFullError
        If it does not fit with 16 bits either.
    """
    if free is None or gpu_bytes(index) <= free:
        return False
    least = gpu_bytes(index, half=True)
    if least <= free:
        return True
    raise GpuFullError(
        f"it takes {least / 2**20:,.0f} MiB at least, and {free / 2**20:,.0f} may be used on the GPU now"
    )
