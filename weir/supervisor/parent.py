"""No orphans: a child asks the kernel to end it when its parent dies, however the parent dies."""

import ctypes
import os
import signal
import sys
from typing import Final

__all__ = ["PARENT_VARIABLE", "die_with_parent", "follow_parent"]

PARENT_VARIABLE: Final = "_WEIR_PARENT"
"""Set by the supervisor to its process id; a child that finds it dies with that process."""

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Have this process sent a signal when its parent dies (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)


def follow_parent() -> None:
    """Die with the supervisor, if one started this process; processes started from here on are not concerned."""
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is None:
        return
    die_with_parent()
    if os.getppid() != int(parent):
        # It died between the fork and now, when nobody was told.
        sys.exit(1)
