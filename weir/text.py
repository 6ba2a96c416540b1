"""Data on a terminal: what comes from outside is shown verbatim, and has no effect on the terminal.

An id, a file name or a log line may hold escape sequences, characters that change the direction of writing, line
breaks, or what rich takes for markup or emoji codes. Whatever prints data passes it through here.
"""

import os
import shutil
import sys
import unicodedata
from pathlib import Path
from typing import Final

from rich.text import Text

__all__ = ["counted", "in_words", "plain", "program", "span", "visible"]

_INVISIBLE: Final = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Controls, format characters (bidirectional ones too), surrogates, separators of lines and paragraphs."""


_UNITS: Final = ((86_400, "days"), (3600, "hours"), (60, "minutes"))
_SYMBOLS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def program() -> str:
    """Return how this weir is started from here: `weir`, or where its script is if the path has none or another."""
    script, found = Path(sys.executable).with_name("weir"), shutil.which("weir")
    if not script.exists():
        return "weir" if found else f"{sys.executable} -m weir"
    if found and Path(found).absolute() == script.absolute():
        return "weir"
    return os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)


def in_words(seconds: float) -> str:
    """Return a length of time as people say it: `4.2 s`, `5 minutes`, `22 days`; in a unit of which it has two."""
    unit, name = next(((unit, name) for unit, name in _UNITS if seconds >= 2 * unit), (1, ""))
    return f"{seconds / unit:,.0f} {name}" if name else f"{seconds:.1f} s"


def span(seconds: float) -> str:
    """Return a length of time exactly: `12 h`, `2.5 d`; in the largest unit of which it has one."""
    unit, name = next((one for one in _SYMBOLS if seconds >= one[0]), _SYMBOLS[-1])
    return f"{seconds / unit:g} {name}"


def counted(count: int, name: str) -> str:
    """Return a number of things: `1 window`, `2,000 windows`."""
    return f"{count:,} {name}" + ("" if count == 1 else "s")


def visible(text: object) -> str:
    r"""Return a text on one line, with every control character as an escape: ``\n``, ``\x1b``, ``\u202e``."""
    return "".join(
        sign.encode("unicode_escape").decode() if unicodedata.category(sign) in _INVISIBLE else sign
        for sign in str(text)
    )


def plain(text: object, style: str = "") -> Text:
    """Return `visible` text for rich, which interprets neither markup nor emoji codes in it."""
    return Text(visible(text), style=style)
