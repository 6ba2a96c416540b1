"""Item ids by table row, sharded over ranks, and their packed form: sizes and concatenated UTF-8 bytes.

Ids are needed only to save and export, so each rank keeps the ids of its own rows.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from weir.trainer.items.key_lookup import Asked
from weir.trainer.items.rows import RowSharding, TableRows, no_rows
from weir.trainer.ranks.workers import Workers

__all__ = ["IDS", "ItemIds", "pack_ids", "unpack_ids"]

Ids = npt.NDArray[np.object_]

IDS: Final = "ids"
"""Query of rank 0 to the other ranks; see `Workers.first`."""

_AT_ONCE: Final = 1 << 16


class ItemIds:
    """The item id of each table row, None without an item; `kept` holds the ids of this rank's rows (`RowSharding`).

    Parameters
    ----------
    capacity
        Rows of the table.
    workers
        The ranks that share the ids; a single one if None.
    """

    def __init__(self, capacity: int, workers: Workers | None = None) -> None:
        self._workers = workers or Workers()
        self._stripes = RowSharding(self._workers.rank, self._workers.world_size)
        self.kept: Ids = np.full(self._stripes.count(capacity), None, object)

    def put(self, rows: TableRows, ids: Ids | None) -> None:
        """Set the ids of rows (n,), or clear them with None; rows of other ranks are ignored."""
        own = self._stripes.own(rows)
        self.kept[self._stripes.lines(TableRows(rows[own]))] = None if ids is None else ids[own]

    def put_packed(self, rows: TableRows, sizes: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> None:
        """Set the ids of this rank's rows (n,) from the packed form of `pack_ids`."""
        start = 0
        for first in range(0, len(rows), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            end = start + int(sizes[some].clip(0).sum())
            self.kept[self._stripes.lines(TableRows(rows[some]))] = unpack_ids(sizes[some], data[start:end])
            start = end

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` rows."""
        more = self._stripes.count(capacity) - len(self.kept)
        self.kept = np.concatenate([self.kept, np.full(more, None, object)])

    def of(self, rows: TableRows) -> Ids:
        """Return the ids of rows (n,). Collective, or called by rank 0 in `Workers.first`."""
        if self._workers.world_size == 1 or not len(rows):
            return self.kept[rows]
        self._workers.ask(IDS)
        return self._exchanged(rows)

    def answer(self) -> None:
        """Join the call of `of` that rank 0 makes in `Workers.first`, as its callback `answer`."""
        self._exchanged(no_rows())

    def _exchanged(self, rows: TableRows) -> Ids:
        """Return the ids of this rank's query rows (n,), and answer the queries of other ranks."""
        workers = self._workers
        asked = Asked.of(rows, self._stripes.owners(rows), workers)
        sizes, data = map(torch.from_numpy, pack_ids(self.kept[self._stripes.lines(TableRows(asked.values))]))
        # Sizes arrive in the order of ranks, as the bytes do.
        received = workers.exchange(sizes, asked.receive, asked.send)
        bytes_here, bytes_there = _bytes(sizes, asked.receive), _bytes(received, asked.send)
        ids = np.empty(len(rows), object)
        ids[asked.order] = unpack_ids(received.numpy(), workers.exchange(data, bytes_here, bytes_there).numpy())
        return ids


def _bytes(sizes: torch.Tensor, counts: list[int]) -> list[int]:
    """Return the number of bytes of each rank's ids, from the sizes of all ids (n,) and the ids per rank."""
    return [int(part.clip(0).sum()) for part in torch.split(sizes, counts)]


def pack_ids(ids: Ids) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the sizes in bytes (n,) of ids (n,), -1 for None, and their concatenated UTF-8 bytes."""
    packed = pa.array(ids, pa.large_string())
    if not len(ids):
        return np.empty(0, np.int32), np.empty(0, np.uint8)
    valid, offsets, data = packed.buffers()
    sizes = np.diff(np.frombuffer(offsets, np.int64, len(ids) + 1)).astype(np.int32)
    if valid is not None:
        sizes[packed.is_null().to_numpy(zero_copy_only=False)] = -1
    used = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8, int(sizes.clip(0).sum()))
    # Arrow's buffers are read-only, tensors are writable.
    return sizes, used.copy()


def unpack_ids(sizes: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> Ids:
    """Return the ids (n,) from the result of `pack_ids`."""
    offsets = np.concatenate([[0], np.cumsum(sizes.clip(0), dtype=np.int64)])
    packed = pa.LargeStringArray.from_buffers(len(sizes), pa.py_buffer(offsets), pa.py_buffer(data))
    ids: Ids = packed.to_numpy(zero_copy_only=False).astype(object)
    ids[sizes < 0] = None
    return ids
