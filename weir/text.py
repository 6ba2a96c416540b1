"""Data on a terminal: what comes from outside is shown verbatim, and has no effect on the terminal.

An id, a file name or a log line may hold escape sequences, characters that change the direction of writing, line
breaks, or what rich takes for markup or emoji codes. Whatever prints data passes it through here.
"""

import unicodedata
from typing import Final

from rich.text import Text

__all__ = ["plain", "visible"]

_INVISIBLE: Final = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Controls, format characters (bidirectional ones too), surrogates, separators of lines and paragraphs."""


def visible(text: object) -> str:
    r"""Return a text on one line, with every control character as an escape: ``\n``, ``\x1b``, ``\u202e``."""
    return "".join(
        sign.encode("unicode_escape").decode() if unicodedata.category(sign) in _INVISIBLE else sign
        for sign in str(text)
    )


def plain(text: object, style: str = "") -> Text:
    """Return `visible` text for rich, which interprets neither markup nor emoji codes in it."""
    return Text(visible(text), style=style)
