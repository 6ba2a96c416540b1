"""The interaction (contract 1): one line of the log, the rules for its values, and texts that mean a missing id.

Raw ids are non-empty UTF-8 strings; `weir.contracts.interactions.arrow_columns.texts` spells ids of other column types.
Timestamps are event time in milliseconds since 1970 (UTC).
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts.base import columns
from weir.contracts.interactions.features import NO_FEATURES, FeatureNames

__all__ = ["INTERACTION_SCHEMA", "MAX_ID_BYTES", "MISSING_IDS", "Label", "MissingIds", "interaction_schema"]

Bool = npt.NDArray[np.bool_]
MAX_ID_BYTES: Final = 512
"""Longest id in UTF-8 bytes; a longer one is a fault of the producer and goes to the dead letters."""
MISSING_IDS: Final = (
    *("NaN", "-NaN", "+NaN", "NaN(ind)", "-NaN(ind)", "NaN(snan)", "-NaN(snan)", "1.#IND", "-1.#IND", "1.#QNAN"),
    *("-1.#QNAN", "NA", "<NA>", "N/A", "#N/A", "NaT", "None", "NULL", "(null)", "[NULL]", "<null>", r"\N"),
    *("nil", "<nil>", "undefined"),
)
"""Texts that pandas, R, SQL, spreadsheets, C, C++, Ruby, Go and JavaScript print for a missing value."""
_BLANKS: Final = (*range(9, 14), *range(28, 33))
_LEADS_OF_BLANKS: Final = (0xC2, 0xE1, 0xE2, 0xE3)
"""First bytes, in UTF-8, of blanks beyond ASCII."""
_CONTINUATIONS: Final = range(0x80, 0xC0)
"""Last bytes, in UTF-8, of blanks beyond ASCII."""


class MissingIds:
    """Texts that mean a missing id, ignoring the case of ASCII letters and surrounding blanks."""

    def __init__(self, spelled: Iterable[str]) -> None:
        folded = {_folded(text) for text in spelled} - {""}
        self._texts = pa.array(sorted(folded), pa.string())
        both = [raw for text in folded for raw in (text.encode(), text.encode().upper())]
        self._first = _marked([*(raw[0] for raw in both), *_BLANKS, *_LEADS_OF_BLANKS])
        self._last = _marked([*(raw[-1] for raw in both), *_BLANKS, *_CONTINUATIONS])

    def marks(self, texts: pa.Array, broken: Bool) -> tuple[Bool, Bool]:
        """Return a mask (n,) of the strings that are blank, and a mask (n,) of the strings that mean a missing id.

        Empty strings, nulls, and strings marked `broken` (n,), which are not UTF-8, are in neither mask.
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
        """Return the few rows whose first and last byte occur in blanks or in texts that mean a missing id."""
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
    """Return a table of all bytes (256,) that marks the given ones."""
    table = np.zeros(256, np.bool_)
    table[list(values)] = True
    return table


def _folded(text: str) -> str:
    """Return a text without surrounding blanks and with ASCII letters in lower case, as Arrow does both."""
    folded: Any = pc.ascii_lower(pc.utf8_trim_whitespace(pa.scalar(text)))
    return str(folded.as_py())


class Label(IntEnum):
    """The label of an event type."""

    POSITIVE = 1
    NEGATIVE = -1
    IGNORE = 0


INTERACTION_SCHEMA: Final = pa.schema(
    [
        pa.field(columns.USER_ID, pa.string(), nullable=False),
        pa.field(columns.ITEM_ID, pa.string(), nullable=False),
        pa.field(columns.TIMESTAMP, pa.int64(), nullable=False),
        pa.field(columns.EVENT_ID, pa.string()),
        pa.field(columns.LABEL, pa.int8(), nullable=False),
        pa.field(columns.WEIGHT, pa.float32(), nullable=False),
        pa.field(columns.ATTRIBUTION_TOKEN, pa.string()),
        pa.field(columns.POSITION, pa.int64(), nullable=False),
    ]
)
"""A validated interaction; `position` is its place in the source partition (byte offset or row number)."""


def interaction_schema(features: FeatureNames, user_features: FeatureNames = NO_FEATURES) -> pa.Schema:
    """Return `INTERACTION_SCHEMA`, plus structs of the row's item features and user features, if any."""
    structs = ((columns.FEATURES, features), (columns.USER_FEATURES, user_features))
    fields = [pa.field(name, pa.struct(names.fields), nullable=False) for name, names in structs if names.all]
    return pa.schema([*INTERACTION_SCHEMA, *fields]) if fields else INTERACTION_SCHEMA
