"""Lengths of time as people type them: ``30d``, ``12h``, ``90m``, ``60s``."""

import re
from typing import Final

from weir.errors import UsageError

__all__ = ["AGES", "seconds_of"]

AGES: Final = "30d, 12h, 90m, 60s"

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds_of(text: str, option: str) -> float:
    """Return the seconds of what came with an option; raises `UsageError`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None:
        raise UsageError(f"{option} is {text!r}, but must be a number and s, m, h or d, such as 30d or 12h")
    return float(found[1]) * _SECONDS[found[2]]
