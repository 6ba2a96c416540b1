"""Processes that end with their parent; loads nothing else, so that help appears at once."""

import ctypes
import os
import signal
import sys
from typing import Final

__all__ = ["PARENT_VARIABLE", "die_with_parent", "follow_parent"]

PARENT_VARIABLE: Final = "_WEIR_PARENT"
"""Environment variable that tells a child the supervisor's process id, so that it ends with the supervisor."""

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Make the kernel send this process a signal when its parent dies (Linux only, no effect elsewhere)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)


def follow_parent() -> None:
    """Make this process end with its supervisor, if it has one; processes that this process starts are not affected."""
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is None:
        return
    die_with_parent()
    if os.getppid() != int(parent):
        # The parent died between the fork and the call of `prctl`.
        sys.exit(1)
