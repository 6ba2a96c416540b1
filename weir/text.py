"""Format data for terminal and shell: external text is escaped, so that it cannot affect the terminal.

An id, a file name or a log line may hold escape sequences, characters that change the writing direction, line breaks,
or text that rich interprets as markup or emoji codes. All code that prints data must pass it through here.
"""

import json
import os
import shlex
import shutil
import sys
import unicodedata
from pathlib import Path
from typing import Final

from rich.text import Text

__all__ = [
    "as_yaml",
    "counted",
    "escaped",
    "in_words",
    "operand",
    "option",
    "plain",
    "program",
    "setting",
    "shell",
    "span",
    "visible",
]

_INVISIBLE: Final = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories: controls, format characters (bidirectional too), surrogates, line and paragraph separators."""


_UNITS: Final = ((86_400, "days"), (3600, "hours"), (60, "minutes"))
_SYMBOLS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def program() -> str:
    """Return the shell command that starts this weir: ``weir``, or the script's path if PATH has another or no weir."""
    script, found = Path(sys.executable).with_name("weir"), shutil.which("weir")
    if not script.exists():
        return "weir" if found else f"{shell(sys.executable)} -m weir"
    if found and Path(found).absolute() == script.absolute():
        return "weir"
    return shell(os.path.relpath(script) if script.is_relative_to(Path.cwd()) else script)


def shell(text: object) -> str:
    """Quote a text as one visible shell word, which gives the same text when pasted into a shell.

    Invisible characters, such as line breaks, are spelled as bytes for printf. Only line breaks at the end are lost.
    """
    word = str(text)
    if visible(word) == word:
        return shlex.quote(word)
    signs = (sign if visible(sign) == sign and sign not in "'%\\-" else _octal(sign) for sign in word)
    return f"\"$(printf '{''.join(signs)}')\""


def operand(*texts: str) -> str:
    """Return texts as the operands of a command line, quoted for a shell; after ``--`` if one starts with a dash."""
    words = " ".join(map(shell, texts))
    return f"-- {words}" if any(text.startswith("-") for text in texts) else words


def setting(assignment: str) -> str:
    """Return the option ``--set`` with an assignment, KEY=VALUE, quoted for a shell."""
    key, _, value = assignment.partition("=")
    section, _, name = key.rpartition(".")
    is_visible = visible(value) == value or not section
    return f"--set {shell(assignment if is_visible else f'{section}={as_yaml({name: value})}')}"


def option(name: str, value: str) -> str:
    """Return a command-line option with its value, quoted for a shell."""
    return setting(value) if name == "--set" else f"{name} {shell(value)}"


def as_yaml(value: object) -> str:
    """Return a value as YAML on one line, which is also JSON."""
    return escaped(json.dumps(value, ensure_ascii=False))


def escaped(text: str) -> str:
    """Return JSON with its invisible characters escaped, because YAML rejects some of them and folds others."""
    return "".join(
        f"\\u{ord(sign):04x}" if "\x7e" < sign <= "\uffff" and (sign >= "\ufffe" or visible(sign) != sign) else sign
        for sign in text
    )


def _octal(sign: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(sign))


def in_words(seconds: float) -> str:
    """Format a duration in words, in the largest unit that gives at least two: `4.2 s`, `5 minutes`, `22 days`."""
    unit, name = next(((unit, name) for unit, name in _UNITS if seconds >= 2 * unit), (1, ""))
    return f"{seconds / unit:,.0f} {name}" if name else f"{seconds:.1f} s"


def span(seconds: float) -> str:
    """Format a duration in the largest unit that gives at least one: `12 h`, `2.5 d`."""
    unit, name = next((one for one in _SYMBOLS if seconds >= one[0]), _SYMBOLS[-1])
    return f"{seconds / unit:g} {name}"


def counted(count: int, name: str) -> str:
    """Format a count with its noun: `1 window`, `2,000 windows`."""
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
