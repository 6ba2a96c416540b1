"""Whether an index has room on the GPU, and in which precision: asked before each swap, beside the one before."""

import ctypes
import os
from contextlib import suppress
from typing import Any, Final

import faiss

__all__ = ["GpuFullError", "gpu_bytes", "is_halved", "room"]

_RUNTIMES: Final = ("libcudart.so.12", "libcudart.so.13")

_SHARE: Final = 0.9
"""Of the free memory that an index may take: searches need some, and lists grow by blocks."""

_PER_VECTOR: Final = 8
"""A row's number in its list."""


class GpuFullError(RuntimeError):
    """An index has no room on the GPU beside what is there; the message says how much each takes."""


def room() -> int | None:
    """Return the bytes that an index may take on the first GPU now; None where CUDA does not say."""
    for name in _RUNTIMES:
        with suppress(OSError, AttributeError):
            # FAISS has loaded it; another one would see another context.
            runtime = ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            if not runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)):
                return int(_SHARE * free.value)
    return None


def gpu_bytes(index: Any, *, half: bool = False) -> int:
    """Estimate what a FAISS index takes on a GPU; `half`: vectors that are stored whole, in 16 bits instead of 32."""
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is not None:
        return int(inverted.ntotal * (inverted.code_size + _PER_VECTOR) + 4 * inverted.nlist * inverted.d)
    return int(index.ntotal * index.d * (2 if half else 4))


def is_halved(index: Any, free: int | None) -> bool:
    """Say whether an index has to be stored in 16 bits to have room in so many bytes; None: nobody knows how many.

    Raises
    ------
    GpuFullError
        If it has no room even so.
    """
    if free is None or gpu_bytes(index) <= free:
        return False
    least = gpu_bytes(index, half=True)
    if least <= free:
        return True
    raise GpuFullError(
        f"it takes {least / 2**20:,.0f} MiB at least, and {free / 2**20:,.0f} may be used on the GPU now"
    )
