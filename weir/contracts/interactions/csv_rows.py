"""CSV and TSV: the rules for rows of text, which logs and catalogues share.

A row ends at a line break (LF or CRLF) outside quotes. Blanks around a value do not belong to it, blanks within quotes
do. A quote at the start of a value opens a quoted value: two quotes in it stand for one, and only blanks may follow it.
Any other quote is a character of its value.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

__all__ = ["BLANKS", "DELIMITERS", "blanks_beside", "delimiter_of", "row_of", "rows_of_text"]

BLANKS: Final = " \t"
"""Characters to strip around a value, except the delimiter."""

DELIMITERS: Final = ",;\t|"
"""Possible delimiters of a .csv file; the first one wins a tie."""

_QUOTED: Final = re.compile(r'"((?:[^"]++|"")*+)"')
_END: Final = re.compile(r"\r*\n?\Z")
_LINE_END: Final = re.compile(r"\r*(?:\n|\Z)")


def delimiter_of(header: str) -> str:
    """Return the delimiter of a file, given its first row: the most frequent of `DELIMITERS` outside quotes."""
    unquoted = "".join(header.split('"')[::2])
    return max(DELIMITERS, key=unquoted.count)


def blanks_beside(delimiter: str) -> str:
    """Return the blanks of a file with this delimiter."""
    return BLANKS.replace(delimiter, "")


def row_of(text: str, delimiter: str) -> tuple[list[str], str]:
    """Return the values of a text that is one row, and the problem of the row, "" for a valid row."""
    values, _, problem = _row_at(text, 0, delimiter, _END)
    return values, problem


def rows_of_text(text: str, delimiter: str) -> Iterator[tuple[list[str], str]]:
    """Yield (values, problem) of each row of a text; the problem is "" for a valid row. Blank lines are skipped.

    A faulty row ends at the end of the line with the fault.
    """
    at = 0
    while at < len(text):
        values, at, problem = _row_at(text, at, delimiter, _LINE_END)
        if problem:
            at = text.find("\n", at) + 1 or len(text)
        if values not in ([], [""]):
            yield values, problem


def _row_at(text: str, at: int, delimiter: str, end: re.Pattern[str]) -> tuple[list[str], int, str]:
    """Return the values of the row at position `at`, the position after the row (or of its fault), and the fault."""
    blanks, (blank, unquoted) = blanks_beside(delimiter), _patterns(delimiter)
    values = list[str]()
    while True:
        at = _end_of(blank, text, at)
        if text.startswith('"', at):
            quoted = _QUOTED.match(text, at)
            if quoted is None:
                problem = f"the quote of value {len(values) + 1} does not close before the end of the file"
                return [*values, text[at:]], len(text), problem
            values.append(quoted[1].replace('""', '"'))
            at = _end_of(blank, text, quoted.end())
        else:
            stop = _end_of(unquoted, text, at)
            values.append(text[at:stop].rstrip(blanks))
            at = stop
        if found := end.match(text, at):
            return values, found.end(), ""
        if not text.startswith(delimiter, at):
            came = text[at : at + 20]
            where = f"value {len(values)} is followed by {came!r}; expected is {delimiter!r} or the end of the row"
            return values, at, f"{where} (LF or CRLF)" if came.startswith("\r") else where
        at += 1


def _end_of(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Return the end of the longest match at `start`, which may be empty."""
    found = pattern.match(text, start)
    return start if found is None else found.end()


@lru_cache
def _patterns(delimiter: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of blanks, and of a value without quotes."""
    return re.compile(f"[{blanks_beside(delimiter)}]*+"), re.compile(f"[^{re.escape(delimiter)}\r\n]*+")
