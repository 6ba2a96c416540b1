"""No orphans: the kernel ends a child when its parent dies, for whatever reason."""

import ctypes
import os
import signal
import sys
from typing import Final

__all__ = ["PARENT_VARIABLE", "die_with_parent", "follow_parent"]

PARENT_VARIABLE: Final = "_WEIR_PARENT"
"""Set by the supervisor to its process id; a child that finds it ends with that process."""

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel signal this process when its parent dies (Linux only; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)


def follow_parent() -> None:
    """End with the supervisor if one started this process; does not apply to processes started by this one."""
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is None:
        return
    die_with_parent()
    if os.getppid() != int(parent):
        # The parent died between the fork and the request to the kernel.
        sys.exit(1)
