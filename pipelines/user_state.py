"""The histories of a user shard before a run, rebuilt from what has been committed.

A snapshot only spares reading old windows again: it describes committed windows up to a sequence, the later ones
are replayed, and one that is missing, damaged or of another shape is rebuilt from the first window on.
"""

import io
import logging
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from contracts import (
    CorruptArtefactError,
    Events,
    Histories,
    ItemKeys,
    Label,
    Store,
    UserKeys,
    WindowLog,
    WindowManifest,
    columns,
)
from contracts.documents import seal, unseal

__all__ = ["ArtefactUserState", "UserState"]

logger = logging.getLogger(__name__)

_SEQUENCE: Final = b"weir.sequence"
_REPLAYED: Final = [columns.USER_KEY, columns.ITEM_KEY, columns.TIMESTAMP, columns.LABEL]


class UserState(Protocol):
    """Where a run finds the histories of its users."""

    def load(self, shard: int, sequence: int) -> Histories:
        """Return the histories of a user shard as of the pane of this sequence, -1 for before the first."""


@dataclass
class ArtefactUserState:
    """Histories from the store's windows, with a snapshot per shard in ``state/histories/``."""

    store: Store
    length: int
    _log: WindowLog = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._log = WindowLog(self.store)

    def load(self, shard: int, sequence: int) -> Histories:
        """Return the histories of a user shard as of the pane of this sequence, and leave a snapshot of them."""
        histories, known = self._snapshot(shard, sequence)
        if known < sequence:
            for manifest in takewhile(lambda pane: pane.sequence <= sequence, self._log.follow(after=known)):
                self._replay(histories, manifest, shard)
            self._save(shard, histories, sequence)
        return histories

    def _replay(self, histories: Histories, manifest: WindowManifest, shard: int) -> None:
        if shard in self._log.shards(manifest):
            rows = self._log.examples(manifest, shard, _REPLAYED)
            positive = pc.equal(rows[columns.LABEL], int(Label.POSITIVE))
            users, items, times = (rows[name].to_numpy() for name in _REPLAYED[:3])
            histories.extend(Events(users, items, times, positive.to_numpy()))

    def _snapshot(self, shard: int, newest: int) -> tuple[Histories, int]:
        name = _name(shard)
        try:
            table = pq.read_table(pa.BufferReader(unseal(self.store.path(name), self.store.read(name))))
            sequence = int(table.schema.metadata[_SEQUENCE])
            users, items, times = (_matrix(column.combine_chunks()) for column in table.columns)
            if items.shape[1] == self.length and sequence <= newest:
                return Histories(UserKeys(users[:, 0]), ItemKeys(items), times), sequence
            problem = f"holds {items.shape[1]} items per user as of commit {sequence}"
        except FileNotFoundError:
            return Histories.empty(self.length), -1
        except (CorruptArtefactError, pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            problem = str(error)
        logger.warning("%s is not used (%s): histories are rebuilt from the windows", self.store.path(name), problem)
        return Histories.empty(self.length), -1

    def _save(self, shard: int, histories: Histories, sequence: int) -> None:
        fields = {
            "users": pa.array(histories.users),
            "items": pa.FixedSizeListArray.from_arrays(histories.items.ravel(), self.length),
            "times": pa.FixedSizeListArray.from_arrays(histories.times.ravel(), self.length),
        }
        table = pa.table(fields).replace_schema_metadata({_SEQUENCE: str(sequence)})
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd", use_dictionary=False)
        self.store.write(_name(shard), seal(_name(shard), buffer.getvalue()))


def _name(shard: int) -> str:
    return f"state/histories/shard-{shard:05d}.parquet"


def _matrix(column: pa.Array) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    width = column.type.list_size if pa.types.is_fixed_size_list(column.type) else 1
    flat = column.flatten() if width > 1 or pa.types.is_fixed_size_list(column.type) else column
    values: np.ndarray[tuple[int, int], np.dtype[np.int64]] = flat.to_numpy().reshape(len(column), width).copy()
    return values
