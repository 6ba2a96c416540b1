"""Find the ends of rows of CSV and TSV, the line breaks outside quotes, without parsing values.

Adjacent quotes form a run. A run of even length changes nothing: it is an escaped quote or an empty value. An odd run
where a value may start (after a separator or line break, blanks aside) opens a quoted value, or closes one that ends
with a separator. An odd run elsewhere closes a quoted value or is part of an unquoted one: the text after it is outside
quotes, whatever comes before. So quotes can be followed from the nearest such run.
"""

import codecs
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.contracts.interactions.csv_rows import BLANKS
from weir.readers.blocks import Bool, Int64

__all__ = ["QuoteTracker"]

_QUOTE: Final = ord('"')
_BREAK: Final = ord("\n")
_TAIL: Final = 256


class QuoteTracker:
    """Tracks whether a text that comes in pieces, from the start of a row on, is inside or outside quotes.

    `delimiters` are the characters that may separate values.
    """

    def __init__(self, delimiters: str) -> None:
        self._delimiters = delimiters
        # A lone carriage return ends no row, but a quote after it counts as an opening one: the lines up to the closing
        # quote are then refused together.
        self._starts = f"\r\n{delimiters}".encode()
        self._blanks = "".join(sign for sign in BLANKS if sign not in delimiters).encode()
        self._is_new = True
        self._at_start = True
        self._held: tuple[bool, bool] | None = None
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether the text so far ends within quotes."""
        return self._after_held()

    def behind(self, window: bytes) -> "tuple[int, QuoteTracker] | None":
        """Return the last place in `window` where the text is outside quotes for certain, and a tracker from there on.

        `window` is any piece of a text, whatever comes before. None if no place is certain.
        """
        if b'"' not in window:
            return None
        starts, sizes, may_open = QuoteTracker(self._delimiters)._runs(np.frombuffer(window, np.uint8))
        certain = np.flatnonzero((sizes & 1 == 1) & ~may_open & (starts + sizes < len(window)))
        if not len(certain):
            return None
        found = QuoteTracker(self._delimiters)
        found._is_new = found._at_start = False
        return int(starts[certain[-1]] + sizes[certain[-1]]), found

    def skip(self, piece: bytes) -> None:
        """Add the next piece of the text without looking for line breaks."""
        piece = self._without_mark(piece)
        if b'"' in piece:
            self._states(np.frombuffer(piece, np.uint8))
        elif piece:
            self._is_open, self._held = self._after_held(), None
        self._note_end(piece)

    def breaks(self, piece: bytes) -> tuple[Int64, Bool]:
        """Add the next piece; return the places of its line breaks (n,), and a mask (n,) of breaks outside quotes."""
        piece = self._without_mark(piece)
        signs = np.frombuffer(piece, np.uint8)
        breaks = np.flatnonzero(signs == _BREAK)
        if b'"' not in piece:
            self.skip(piece)
            return breaks, np.full(len(breaks), not self._is_open)
        starts, states = self._states(signs)
        self._note_end(piece)
        return breaks, ~states[np.searchsorted(starts, breaks)]

    def _without_mark(self, piece: bytes) -> bytes:
        """Return a piece with blanks in place of a byte order mark, with which some programs start a file."""
        if self._is_new and piece.startswith(codecs.BOM_UTF8):
            piece = b" " * len(codecs.BOM_UTF8) + piece[len(codecs.BOM_UTF8) :]
        self._is_new = self._is_new and not piece
        return piece

    def _after_held(self) -> bool:
        """Return whether quotes are open after the run of quotes at the end of the last piece."""
        is_odd, may_open = self._held or (False, False)
        return self._is_open if not is_odd else may_open and not self._is_open

    def _states(self, signs: npt.NDArray[np.uint8]) -> tuple[Int64, Bool]:
        """Add a piece with quotes; return the starts of odd runs (n,), and where quotes are open (n + 1,).

        The second array is for the text before each run, and at the end. A run at the end may continue in the next
        piece.
        """
        starts, sizes, may_open = self._runs(signs)
        is_odd = sizes & 1 == 1
        if self._held is not None and starts[0] == 0:
            is_odd[0] ^= self._held[0]
            may_open[0] = self._held[1]
        else:
            self._is_open = self._after_held()
        self._held = None
        if starts[-1] + sizes[-1] == len(signs):
            self._held = bool(is_odd[-1]), bool(may_open[-1])
            is_odd[-1] = False
        if not is_odd.all():
            starts, may_open = starts[is_odd], may_open[is_odd]
        states = np.empty(len(starts) + 1, np.bool_)
        states[0] = self._is_open
        opening, closing = (may_open[1::2], may_open[::2]) if self._is_open else (may_open[::2], may_open[1::2])
        if opening.all() and not closing.any():
            # Usually each opening quote is followed by a closing one.
            states[1:] = may_open
        else:
            turns = np.cumsum(may_open)
            closed = np.maximum.accumulate(np.where(may_open, -1, np.arange(len(starts))))
            states[1:] = (turns - np.where(closed < 0, self._is_open, turns[closed])) & 1
        self._is_open = bool(states[-1])
        return starts, states

    def _runs(self, signs: npt.NDArray[np.uint8]) -> tuple[Int64, Int64, Bool]:
        """Return the runs of quotes (n,): their starts, their lengths, and whether each may open a value."""
        quotes = np.flatnonzero(signs == _QUOTE)
        first = np.flatnonzero(quotes[1:] - quotes[:-1] > 1) + 1
        if len(first) == len(quotes) - 1:
            starts, sizes = quotes, np.ones(len(quotes), np.int64)
        else:
            first = np.concatenate([[0], first])
            starts, sizes = quotes[first], np.diff(first, append=len(quotes))
        return starts, sizes, self._may_open(signs, starts)

    def _may_open(self, signs: npt.NDArray[np.uint8], starts: Int64) -> Bool:
        """Mark the runs of quotes (n,) that stand where a value may start, blanks aside."""
        before = signs[starts - 1]
        found = _is_any(before, self._starts)
        blank = _is_any(before, self._blanks)
        if starts[0] == 0:
            found[0], blank[0] = self._at_start, False
        if blank.any():
            others = np.flatnonzero(~_is_any(signs, self._blanks))
            place = np.searchsorted(others, starts[blank]) - 1
            known = _is_any(signs[others[place]], self._starts) if len(others) else self._at_start
            found[blank] = np.where(place < 0, self._at_start, known)
        return found

    def _note_end(self, piece: bytes) -> None:
        """Record whether a value may start after the piece."""
        last = (piece[-_TAIL:].rstrip(self._blanks) or piece.rstrip(self._blanks))[-1:]
        if last:
            self._at_start = last in self._starts


def _is_any(signs: npt.NDArray[np.uint8], values: bytes) -> Bool:
    """Mark the bytes (n,) that are among `values`."""
    marked = np.zeros(len(signs), np.bool_)
    for value in values:
        marked |= signs == value
    return marked
