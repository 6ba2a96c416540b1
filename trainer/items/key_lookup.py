"""Lookup of table rows by item key: a hash map of one rank's keys, and queries to the ranks that hold the keys.

Linear probing over whole batches: each round probes one slot per key that is not found yet, so the number of
Python steps is the longest probe sequence, not the number of keys. Find, insert and remove cost O(batch); the table is
rebuilt once half of its slots are used or deleted.
"""

from typing import Final, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.contracts import PADDING_KEY, ItemKeys
from weir.trainer.items.rows import TableRows, no_rows
from weir.trainer.ranks.workers import Workers

__all__ = ["Asked", "KeyMap", "KeyShare"]


Ints = npt.NDArray[np.int64]


_EMPTY: Final = -1
_GONE: Final = -2
"""A slot whose row was removed (tombstone): probing continues past it."""

_SMALLEST: Final = 64
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)

Slots = npt.NDArray[np.int64]


class Asked:
    """A batch of queries routed to their owning ranks, and the way back for the answers; collective.

    Parameters
    ----------
    workers
        The ranks.
    order
        Permutation that sorts this rank's queries (n,) by owning rank.
    send, receive
        Number of queries to each rank, and from each rank.
    values
        Queries of all ranks for this one to answer, (m,).
    """

    def __init__(self, workers: Workers, order: Ints, send: list[int], receive: list[int], values: Ints) -> None:
        self._workers, self.order, self.send, self.receive, self.values = workers, order, send, receive, values

    @classmethod
    def of(cls, values: Ints, owners: Ints, workers: Workers) -> Self:
        """Send integer queries (n,) to the ranks `owners` (n,)."""
        order = np.argsort(owners, kind="stable")
        send = np.bincount(owners, minlength=workers.world_size).tolist()
        receive = workers.counts(send)
        received = workers.exchange(torch.from_numpy(values[order]), send, receive)
        return cls(workers, order, send, receive, received.numpy())

    def answered(self, answers: Tensor) -> Tensor:
        """Send answers (m, ...) to `values` back, and return the answers to this rank's own queries, (n, ...)."""
        received = self._workers.exchange(answers, self.receive, self.send)
        own = torch.empty_like(received)
        own[torch.from_numpy(self.order)] = received
        return own


class KeyMap:
    """Hash table from keys to rows, which stores the rows only and reads their keys from an array of the caller.

    Parameters
    ----------
    keys
        Keys of all rows, (capacity,).
    rows
        Rows to insert, (n,), with distinct keys.
    """

    def __init__(self, keys: ItemKeys, rows: TableRows) -> None:
        self._lay_out(keys, rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the slots."""
        return self._slots.nbytes

    def find(self, keys: ItemKeys, wanted: ItemKeys) -> TableRows:
        """Return the row of each of the `wanted` keys (n,), -1 if absent, given the `keys` of all rows."""
        slots, found = self._home(wanted), np.full(len(wanted), -1, np.int64)
        open_ = np.arange(len(wanted))
        while len(open_):
            rows = self._slots[slots[open_]]
            # Empty and deleted slots are negative: `keys[rows]` is another row's key there, masked by `rows >= 0`.
            hit = (rows >= 0) & (keys[rows] == wanted[open_])
            found[open_[hit]] = rows[hit]
            open_ = open_[~hit & (rows != _EMPTY)]
            slots[open_] = (slots[open_] + 1) & self._mask
        return TableRows(found)

    def insert(self, keys: ItemKeys, rows: TableRows) -> None:
        """Add rows (n,) with distinct keys that are not in the table, given the `keys` of all rows."""
        if 2 * (self._used + len(rows)) > len(self._slots):
            held = self._slots[self._slots >= 0].astype(np.int64)
            self._lay_out(keys, TableRows(np.concatenate([held, rows])))
            return
        self._place(keys, rows)

    def remove(self, keys: ItemKeys, rows: TableRows) -> None:
        """Remove rows (n,), given the `keys` of all rows, in which the removed rows still have their keys."""
        slots, open_ = self._home(ItemKeys(keys[rows])), np.arange(len(rows))
        while len(open_):
            here = self._slots[slots[open_]] == rows[open_]
            self._slots[slots[open_[here]]] = _GONE
            open_ = open_[~here]
            slots[open_] = (slots[open_] + 1) & self._mask

    def _lay_out(self, keys: ItemKeys, rows: TableRows) -> None:
        """Rebuild the table with at least four slots per row."""
        size = max(_SMALLEST, 1 << (4 * len(rows) - 1).bit_length())
        self._slots = np.full(size, _EMPTY, np.int32)
        self._mask, self._shift = size - 1, np.uint64(64 - (size.bit_length() - 1))
        self._used = 0
        self._place(keys, rows)

    def _place(self, keys: ItemKeys, rows: TableRows) -> None:
        slots, open_ = self._home(ItemKeys(keys[rows])), np.arange(len(rows))
        while len(open_):
            at = slots[open_]
            free = self._slots[at] == _EMPTY
            self._slots[at[free]] = rows[open_[free]]  # of several rows on one slot, the last one written stays
            open_ = open_[self._slots[at] != rows[open_]]
            slots[open_] = (slots[open_] + 1) & self._mask
        self._used += len(rows)

    def _home(self, keys: ItemKeys) -> Slots:
        """Return the first probe slot of each key."""
        return ((keys.view(np.uint64) * _MULTIPLIER) >> self._shift).view(np.int64)


class KeyShare:
    """One rank's shard, by key, of the map from keys to table rows.

    Parameters
    ----------
    workers
        The ranks.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._keys, self._rows = ItemKeys(np.full(_SMALLEST, PADDING_KEY, np.int64)), np.zeros(_SMALLEST, np.int32)
        self._map, self._used, self._free = KeyMap(self._keys, no_rows()), 0, np.empty(0, np.int64)

    @classmethod
    def of(cls, keys: ItemKeys, rows: TableRows, workers: Workers) -> "KeyShare":
        """Build the shards from keys and rows (n,), different ones on each rank; collective."""
        share = cls(workers)
        pairs = workers.deliver(torch.from_numpy(np.stack([keys, rows], 1)), share._owners(keys)).numpy()
        share._insert(ItemKeys(pairs[:, 0].copy()), TableRows(pairs[:, 1]))
        return share

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self._map.nbytes + self._keys.nbytes + self._rows.nbytes

    def find(self, keys: ItemKeys) -> TableRows:
        """Return the rows of keys (n,), which may differ between ranks; -1 for absent keys; collective."""
        if self._workers.world_size == 1:
            return self._find(keys)
        asked = Asked.of(keys, self._owners(keys), self._workers)
        found = torch.from_numpy(self._find(ItemKeys(asked.values)).astype(np.int32))
        return TableRows(asked.answered(found).numpy().astype(np.int64))

    def find_alike(self, keys: ItemKeys) -> TableRows:
        """Return the rows of keys (n,), the same keys on all ranks; -1 for absent keys; collective."""
        found = np.zeros(len(keys), np.int64)
        own = self._own(keys)
        found[own] = 1 + self._find(ItemKeys(keys[own]))
        return TableRows(self._workers.sum(torch.from_numpy(found)).numpy() - 1)

    def insert(self, keys: ItemKeys, rows: TableRows) -> None:
        """Add absent keys (n,) with their rows; keys of other shards are ignored."""
        own = self._own(keys)
        self._insert(ItemKeys(keys[own]), TableRows(rows[own]))

    def remove(self, keys: ItemKeys) -> None:
        """Remove keys (n,); keys of other shards are ignored."""
        lines = self._map.find(self._keys, ItemKeys(keys[self._own(keys)]))
        self._map.remove(self._keys, lines)
        self._free = np.concatenate([self._free, lines])

    def _find(self, keys: ItemKeys) -> TableRows:
        """Return the rows of keys in this shard, -1 for absent keys."""
        lines = self._map.find(self._keys, keys)
        return TableRows(np.where(lines >= 0, self._rows[lines], -1))

    def _insert(self, keys: ItemKeys, rows: TableRows) -> None:
        """Add absent keys of this shard with their rows."""
        lines = self._lines(len(keys))
        self._keys[lines], self._rows[lines] = keys, rows
        self._map.insert(self._keys, TableRows(lines))

    def _lines(self, count: int) -> Ints:
        """Allocate `count` free lines."""
        again, self._free = np.split(self._free, [min(count, len(self._free))])
        missing = count - len(again)
        if (used := self._used + missing) > len(self._keys):
            more = (1 << (used - 1).bit_length()) - len(self._keys)
            self._keys, self._rows = ItemKeys(np.pad(self._keys, (0, more))), np.pad(self._rows, (0, more))
        lines = np.concatenate([again, np.arange(self._used, used)])
        self._used = used
        return lines

    def _owners(self, keys: ItemKeys) -> Ints:
        """Return the rank that holds each key."""
        # Keys are hashes, so the remainder is uniform.
        owners: Ints = (keys.view(np.uint64) % np.uint64(self._workers.world_size)).astype(np.int64)
        return owners

    def _own(self, keys: ItemKeys) -> npt.NDArray[np.bool_] | slice:
        """Return which keys are in this rank's shard."""
        return slice(None) if self._workers.world_size == 1 else self._owners(keys) == self._workers.rank
