"""Claims on item keys: two ids of one key must not share a row, so that the rows of one of them are refused.

The owner is the id that a commit listed first (`pipelines.key_owners`); of keys that nobody owns yet, an id whose rows
are in hand; else, of the ids that one run brings, that with the lowest check, whatever the order of reading.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from contracts import columns
from logs import BlockId, DeadLetter, Fault, Int64, Letters, Reason
from pipelines.key_owners import KeyOwners, checks_of
from pipelines.progress import Claims

__all__ = ["COLLISION", "claimed", "letters_of", "new_claims", "of_others"]

Bool = npt.NDArray[np.bool_]

COLLISION: Final = Fault(
    Reason.KEY_COLLISION,
    "the key of this item_id is that of another item: no accident, as a rule; "
    "a new store with pipeline.secret_keys = true has keys that nobody can aim at",
)


def new_claims(rows: pa.RecordBatch, known: KeyOwners) -> Iterator[Claims]:
    """Yield the claims of keyed rows on keys that nobody owns; ids of one key are in different ones."""
    ids, keys, _ = _distinct(rows)
    new = np.flatnonzero(known.is_unknown(keys))
    checks = checks_of([ids[place] for place in new.tolist()])
    left, keys = np.arange(len(new)), keys[new]
    while len(left):
        _, first = np.unique(keys[left], return_index=True)
        yield dict(zip(keys[left[first]].tolist(), checks[left[first]].tolist(), strict=True))
        left = np.delete(left, first)


def claimed(rows: pa.RecordBatch, known: KeyOwners) -> Claims:
    """Return the claims of keyed rows that have been accepted: each key has one id."""
    return next(new_claims(rows, known), {})


def of_others(rows: pa.RecordBatch, known: KeyOwners, claims: Mapping[int, int]) -> Bool:
    """Mark the keyed rows (n,) whose item key belongs to another id, or is claimed by another."""
    ids, keys, of_row = _distinct(rows)
    checks = checks_of(ids)
    wrong = known.is_disputed(keys, checks)
    if claims:
        pairs = zip(keys.tolist(), checks.tolist(), strict=True)
        wrong |= np.array([claims.get(key, check) != check for key, check in pairs], np.bool_)
    marked: Bool = wrong[of_row]
    return marked


def letters_of(partition: str, rows: pa.RecordBatch, fault: Fault = COLLISION) -> Letters:
    """Return the dead letters of refused rows; of a keyed row they keep the id of the item."""
    pairs = zip(rows[columns.POSITION].to_pylist(), rows[columns.ITEM_ID].to_pylist(), strict=True)
    letters = tuple(DeadLetter.of(partition, at, fault, raw.encode()) for at, raw in pairs)
    return Letters(BlockId(partition, letters[0].position), letters)


def _distinct(rows: pa.RecordBatch) -> tuple[list[str], Int64, Int64]:
    """Return the distinct item ids (d), their keys (d,), and for each row the place of its id (n,)."""
    encoded = rows.column(columns.ITEM_ID).dictionary_encode()
    of_row = encoded.indices.to_numpy().astype(np.int64)
    _, first = np.unique(of_row, return_index=True)
    return encoded.dictionary.to_pylist(), rows.column(columns.ITEM_KEY).to_numpy()[first], of_row
