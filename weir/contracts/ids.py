"""Which texts stand for no id: what exports write where an id is missing.

The text of an id, whatever the type of its column, is the one that `weir.contracts.arrow_columns.texts` returns.
"""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["MISSING_IDS", "MissingIds"]

Bool = npt.NDArray[np.bool_]

MISSING_IDS: Final = (
    *("NaN", "-NaN", "+NaN", "NaN(ind)", "-NaN(ind)", "NaN(snan)", "-NaN(snan)", "1.#IND", "-1.#IND", "1.#QNAN"),
    *("-1.#QNAN", "NA", "<NA>", "N/A", "#N/A", "NaT", "None", "NULL", "(null)", "[NULL]", "<null>", r"\N"),
    *("nil", "<nil>", "undefined"),
)
"""What pandas, R, SQL, spreadsheets, C, C++, Ruby, Go and JavaScript print for a missing value."""

_BLANKS: Final = (*range(9, 14), *range(28, 33))
_LEADS_OF_BLANKS: Final = (0xC2, 0xE1, 0xE2, 0xE3)
"""First bytes, in UTF-8, of the blanks beyond ASCII."""
_CONTINUATIONS: Final = range(0x80, 0xC0)
"""Last bytes of these."""


class MissingIds:
    """Texts that stand for no id, whatever the case of their ASCII letters and the blanks around them."""

    def __init__(self, spelled: Iterable[str]) -> None:
        folded = {_folded(text) for text in spelled} - {""}
        self._texts = pa.array(sorted(folded), pa.string())
        both = [raw for text in folded for raw in (text.encode(), text.encode().upper())]
        self._first = _marked([*(raw[0] for raw in both), *_BLANKS, *_LEADS_OF_BLANKS])
        self._last = _marked([*(raw[-1] for raw in both), *_BLANKS, *_CONTINUATIONS])

    def marks(self, texts: pa.Array, broken: Bool) -> tuple[Bool, Bool]:
        """Return which strings (n,) are blank, and which stand for no id.

        Neither are the empty string, null, and strings that are `broken` (n,), which are not UTF-8.
        """
        blank, missing = np.zeros(len(texts), np.bool_), np.zeros(len(texts), np.bool_)
        rows = self._likely(texts)
        if len(rows):
            likely = texts.take(pa.array(rows))
            sound = pc.if_else(pa.array(broken[rows]), None, likely)
            folded = pc.ascii_lower(pc.utf8_trim_whitespace(sound))
            is_blank = pc.and_(pc.equal(folded, ""), pc.not_equal(likely, ""))
            blank[rows] = pc.fill_null(is_blank, fill_value=False).to_numpy(zero_copy_only=False)
            missing[rows] = pc.is_in(folded, self._texts).to_numpy(zero_copy_only=False)
        return blank, missing

    def _likely(self, texts: pa.Array) -> npt.NDArray[np.int64]:
        """Return the rows whose first and last byte are a blank's, or those of a text for no id: few, in most logs."""
        _, bounds, data = texts.buffers()
        if bounds is None or data is None or not data.size:
            return np.empty(0, np.int64)
        offsets = np.frombuffer(bounds, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        raw = np.frombuffer(data, np.uint8)
        begins = self._first[raw.take(offsets[:-1], mode="clip")]
        if not begins.any():
            return np.empty(0, np.int64)
        return np.flatnonzero(begins & self._last[raw.take(offsets[1:] - 1, mode="clip")])


def _marked(values: Iterable[int]) -> Bool:
    table = np.zeros(256, np.bool_)
    table[list(values)] = True
    return table


def _folded(text: str) -> str:
    folded: Any = pc.ascii_lower(pc.utf8_trim_whitespace(pa.scalar(text)))
    return str(folded.as_py())
