"""CSV and TSV: the one rule for what a row of text says, for logs and for catalogues.

A row ends at a line break (LF or CRLF) outside quotes. Blanks around a value are no part of it, those within quotes
are. A quote where a value starts opens a quoted value, in which two quotes stand for one, and behind which only blanks
may stand; any other quote is a character of its value.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

__all__ = ["BLANKS", "DELIMITERS", "blanks_beside", "delimiter_of", "row_of", "rows_of_text"]

BLANKS: Final = " \t"
"""What may stand around a value, unless it separates values."""

DELIMITERS: Final = ",;\t|"
"""What separates values in a file that ends in .csv; the first one wins a tie."""

_QUOTED: Final = re.compile(r'"((?:[^"]++|"")*+)"')
_END: Final = re.compile(r"\r*\n?\Z")
_LINE_END: Final = re.compile(r"\r*(?:\n|\Z)")


def delimiter_of(header: str) -> str:
    """Return what separates the values of a file, given its first row: the commonest of `DELIMITERS` outside quotes."""
    unquoted = "".join(header.split('"')[::2])
    return max(DELIMITERS, key=unquoted.count)


def blanks_beside(delimiter: str) -> str:
    """Return the blanks of a file whose values are separated so."""
    return BLANKS.replace(delimiter, "")


def row_of(text: str, delimiter: str) -> tuple[list[str], str]:
    """Return the values of a text that is one row, and what is wrong with it, "" for nothing."""
    values, _, problem = _row_at(text, 0, delimiter, _END)
    return values, problem


def rows_of_text(text: str, delimiter: str) -> Iterator[tuple[list[str], str]]:
    """Yield of each row of a text its values, and what is wrong with it; blank lines are no rows.

    A row with a fault ends with the line in which it is met.
    """
    at = 0
    while at < len(text):
        values, at, problem = _row_at(text, at, delimiter, _LINE_END)
        if problem:
            at = text.find("\n", at) + 1 or len(text)
        if values not in ([], [""]):
            yield values, problem


def _row_at(text: str, at: int, delimiter: str, end: re.Pattern[str]) -> tuple[list[str], int, str]:
    """Return the values of the row at a place, the place behind it or of its fault, and the fault."""
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
    """Return where the longest match from a place on ends, which may be empty."""
    found = pattern.match(text, start)
    return start if found is None else found.end()


@lru_cache
def _patterns(delimiter: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of blanks, and of a value without quotes."""
    return re.compile(f"[{blanks_beside(delimiter)}]*+"), re.compile(f"[^{re.escape(delimiter)}\r\n]*+")
