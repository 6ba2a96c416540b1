"""Lengths of time as people say them."""

from typing import Final

__all__ = ["in_words"]

_UNITS: Final = ((172_800.0, 86_400.0, "days"), (7200.0, 3600.0, "h"), (120.0, 60.0, "min"))
"""From how many seconds on, of how many seconds, which unit: no figure is below 2."""


def in_words(seconds: float) -> str:
    """Return seconds with three digits or fewer and the unit that suits them: ``3.5 s``, ``12 min``, ``317 days``."""
    for least, unit, name in _UNITS:
        if seconds >= least:
            found = seconds / unit
            return f"{found:.1f} {name}" if found < 10 and name != "min" else f"{found:,.0f} {name}"
    return f"{seconds:.1f} s"
