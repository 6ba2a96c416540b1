"""Owners of item keys: the item id that is first committed with a key owns it; rows of other ids are refused.

Two ids with one key would share a row of the item table and its training. This practically never happens by accident,
but somebody who chooses ids can cause it (`weir.contracts.base.keys`), so each id is compared with the owner by a
second hash, its check. Users are not compared: their ids are not stored, and a secret of the store protects keys.

Ids whose key has no committed owner claim it. An id with pending rows wins; else, of the run's ids with this key, the
id with the lowest check. So the order of reading does not matter.
"""

import hashlib
import logging
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from threading import Lock
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.contracts import CommitLog, CorruptArtefactError, Keys, Store, WindowLog
from weir.contracts.base import columns
from weir.contracts.base.models import CommitRef
from weir.contracts.commits.commit_log import LogMismatchError
from weir.contracts.storage.documents import seal, unseal
from weir.pipelines.runs.progress import Claims, Owners
from weir.readers import BlockId, DeadLetter, Fault, Int64, Letters, Reason

__all__ = ["COLLISION", "KeyOwners", "checks_of", "claimed", "letters_of", "new_claims", "of_others", "owners"]

logger = logging.getLogger(__name__)

Bool = npt.NDArray[np.bool_]

_NAME: Final = "state/item-keys"
_HEADER: Final = struct.Struct("<qq")
_PANES_BETWEEN_SAVES: Final = 64
_CACHED_CHECKS: Final = 1 << 17
"""Checks that a process caches, at 200 bytes each."""

COLLISION: Final = Fault(
    Reason.KEY_COLLISION,
    "the key of this item_id is that of another item: no accident, as a rule; "
    "a new store with pipeline.secret_keys = true has keys that cannot be aimed at",
)


def checks_of(ids: list[str]) -> Int64:
    """Return the second hash of each id, (n,): 64 bits of BLAKE2b, unrelated to the key."""
    return np.frombuffer(b"".join(map(_digest, ids)), "<i8")


@lru_cache(maxsize=_CACHED_CHECKS)
def _digest(raw: str) -> bytes:
    # A commit needs the check of an id three times, and most ids return in the next commit.
    return hashlib.blake2b(raw.encode(), digest_size=8).digest()


def _no_keys() -> Int64:
    return np.empty(0, np.int64)


@dataclass
class KeyOwners:
    """The owned item keys (n,), sorted, and the checks (n,) of the ids that own them, up to pane `sequence`.

    `commit` is the commit of that pane, None before the first.
    """

    store: Store
    sequence: int = -1
    keys: Keys = field(default_factory=_no_keys)
    checks: Int64 = field(default_factory=_no_keys)
    commit: CommitRef | None = None
    _saved: int = -1

    @classmethod
    def load(cls, store: Store) -> "KeyOwners":
        """Return the owners saved in the store; empty if the file is missing, damaged or of another commit log."""
        try:
            data = unseal(store.path(_NAME), store.read(_NAME))
            sequence, count = _HEADER.unpack_from(data)
            end = _HEADER.size + 2 * 8 * count
            values = np.frombuffer(data[:end], "<i8", offset=_HEADER.size).reshape(2, count)
            commit = CommitRef.model_validate_json(data[end:]) if data[end:] else None
            CommitLog(store).require(store.path(_NAME), sequence, commit)
        except FileNotFoundError:
            return cls(store)
        except (CorruptArtefactError, LogMismatchError, ValueError, struct.error) as error:
            logger.warning("owners of keys are read from the windows again: %s", error)
            return cls(store)
        return cls(store, sequence, values[0], values[1], commit, sequence)

    def catch_up(self, sequence: int) -> None:
        """Add the items of the panes up to `sequence`; a damaged item list is skipped with a warning."""
        if self.sequence > sequence:
            # The store was restored from an older copy: start again.
            self.sequence, self.keys, self.checks, self.commit, self._saved = -1, _no_keys(), _no_keys(), None, -1
        if self.sequence == sequence:
            return
        log = WindowLog(self.store)
        for pane in takewhile(lambda pane: pane.sequence <= sequence, log.follow(log.left(self.sequence))):
            try:
                items = log.items(pane)
            except CorruptArtefactError as error:
                logger.warning("its items own no keys: %s", error)
            else:
                self._add(items)
            self.sequence, self.commit = pane.sequence, log.last
        if self.sequence - self._saved >= _PANES_BETWEEN_SAVES:
            self.save()

    def _add(self, items: pa.Table) -> None:
        """Give each key without an owner to its id in a pane's item list (`ITEMS_SCHEMA`)."""
        items = items.filter(pa.array(self.is_unknown(items[columns.ITEM_KEY].to_numpy())))
        new, first = np.unique(items[columns.ITEM_KEY].to_numpy(), return_index=True)
        at = np.searchsorted(self.keys, new)
        self.keys = np.insert(self.keys, at, new)
        self.checks = np.insert(self.checks, at, checks_of(items[columns.ITEM_ID].take(pa.array(first)).to_pylist()))

    def save(self) -> None:
        """Save the owners in the store: they stay valid after the windows that listed the items have retired."""
        values = np.stack([self.keys, self.checks]).astype("<i8").tobytes()
        commit = b"" if self.commit is None else self.commit.model_dump_json().encode()
        self.store.write(_NAME, seal(_NAME, _HEADER.pack(self.sequence, len(self.keys)) + values + commit))
        self._saved = self.sequence

    def is_unknown(self, keys: Keys) -> Bool:
        """Mark the keys (n,) without an owner."""
        place = np.searchsorted(self.keys, keys)
        unknown: Bool = (np.append(self.keys, 0)[place] != keys) | (place == len(self.keys))
        return unknown

    def is_disputed(self, keys: Keys, checks: Int64) -> Bool:
        """Mark the keys (n,) whose owner has another check."""
        place = np.searchsorted(self.keys, keys)
        disputed: Bool = (np.append(self.checks, 0)[place] != checks) & ~self.is_unknown(keys)
        return disputed


_lock = Lock()
_owners: dict[str, KeyOwners] = {}
"""Store URL -> the cached owners of the one store that this process works on."""


def owners(store: Store, sequence: int) -> KeyOwners:
    """Return the key owners as of pane `sequence`; the process caches them between runs and reads only new panes."""
    with _lock:
        current = _owners.get(store.url) or KeyOwners.load(store)
        current.catch_up(sequence)
        _owners.clear()
        _owners[store.url] = current
        return current


def new_claims(rows: pa.RecordBatch, current: KeyOwners) -> Claims:
    """Return (item key, check) of each distinct item id of keyed rows whose key has no owner; shape (m, 2)."""
    ids, keys, _ = _distinct(rows)
    new = np.flatnonzero(current.is_unknown(keys))
    return np.stack([keys[new], checks_of(ids.take(pa.array(new)).to_pylist())], axis=1)


def claimed(rows: pa.RecordBatch, current: KeyOwners) -> Owners:
    """Return item key -> check for the keys without an owner in keyed rows that `of_others` has accepted."""
    return dict(new_claims(rows, current).tolist())


def of_others(rows: pa.RecordBatch, current: KeyOwners, claims: Mapping[int, int]) -> Bool:
    """Mark the keyed rows (n,) whose item key is owned, or claimed in `claims` (key -> check), by another id."""
    ids, keys, of_row = _distinct(rows)
    # Keys that are neither owned nor claimed cannot collide.
    compared = np.flatnonzero(~current.is_unknown(keys) | np.isin(keys, np.fromiter(claims, np.int64, len(claims))))
    checks = checks_of(ids.take(pa.array(compared)).to_pylist())
    pairs = zip(keys[compared].tolist(), checks.tolist(), strict=True)
    wrong = np.zeros(len(keys) + 1, np.bool_)
    wrong[compared] = current.is_disputed(keys[compared], checks)
    if claims:
        wrong[compared] |= np.array([claims.get(key, check) != check for key, check in pairs], np.bool_)
    return wrong[of_row]


def letters_of(partition: str, rows: pa.RecordBatch, fault: Fault = COLLISION) -> Letters:
    """Return the dead letters of refused keyed rows; the raw row of each letter is the item id only."""
    names = (columns.POSITION, columns.ITEM_ID, columns.TIMESTAMP)
    of_rows = zip(*(rows[name].to_pylist() for name in names), strict=True)
    letters = tuple(DeadLetter.of(partition, at, fault, raw.encode(), time) for at, raw, time in of_rows)
    return Letters(BlockId(partition, letters[0].position), letters)


def _distinct(rows: pa.RecordBatch) -> tuple[pa.Array, Int64, Int64]:
    """Return the distinct item ids (d), their keys (d,), and for each row the index of its id (n,).

    Windows name only the items of positives: the index is -1 for an unknown id.
    """
    encoded = rows.column(columns.ITEM_ID).dictionary_encode()
    of_row = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    keys = np.empty(len(encoded.dictionary) + 1, np.int64)
    keys[of_row] = rows.column(columns.ITEM_KEY).to_numpy()
    return encoded.dictionary, keys[:-1], of_row
