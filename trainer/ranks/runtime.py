"""The process around a run: reproducible arithmetic."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["deterministic"]


@contextmanager
def deterministic() -> Iterator[None]:
    """Ask torch for algorithms whose results do not vary between runs (a GPU may not have one of each)."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn" if torch.cuda.is_available() else "error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
