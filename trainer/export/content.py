"""The arrays of a bundle, and the name that follows from them."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import xxhash

from contracts import BUNDLE_ITEMS_SCHEMA, ItemKeys, columns
from trainer.items.table import FIRST_ITEM, TableRows
from trainer.state.trainer_state import TrainerState
from trainer.towers import project

__all__ = ["Content"]

_DIGITS: Final = 8
"""Of the digest in a name: only bundles of one position in the stream need to differ."""


@dataclass(frozen=True, eq=False)
class Content:
    """The arrays of a state's bundle: `embeddings` (2 + items, d) and `vectors` (items, d), in order of table rows."""

    state: TrainerState
    embeddings: npt.NDArray[np.float32]
    vectors: npt.NDArray[np.float32]

    @classmethod
    @torch.no_grad()
    def of(cls, state: TrainerState) -> "Content":
        """Read a state."""
        embeddings = state.item_vectors(TableRows(np.concatenate([np.arange(FIRST_ITEM), state.table.live])))
        vectors = project(embeddings[FIRST_ITEM:], state.config.tower)
        return cls(state, embeddings.float().cpu().numpy(), vectors.float().cpu().numpy())

    @cached_property
    def version(self) -> str:
        """The bundle's name: the position in the stream, so that names sort by it, and a digest of what is served.

        A run killed after an export makes the same bits again, hence the same name; other settings or another
        training give another name, whatever the store holds.
        """
        at = self.state.position
        return f"{max(at.trained_sequence, 0):08d}-{at.step:010d}-{self._digest()}"

    @property
    def keys(self) -> ItemKeys:
        """The items' keys, (items,)."""
        return ItemKeys(self.state.table.keys[self.state.table.live])

    def items(self, chosen: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> pa.Table:
        """Return ``items.parquet`` (`BUNDLE_ITEMS_SCHEMA`) with the `chosen` items (m,) at index rows `rows` (m,)."""
        table = self.state.table
        places = table.live[chosen]
        values: dict[str, Any] = {
            columns.ROW: rows.astype(np.int32),
            columns.ITEM_ID: table.ids[places].tolist(),
            columns.ITEM_KEY: table.keys[places],
            columns.POPULARITY: self.state.counts[places],
        }
        return pa.table(values, schema=BUNDLE_ITEMS_SCHEMA)

    def _digest(self) -> str:
        config, digest = self.state.config, xxhash.xxh3_128()
        settings = config.defining() | {"index": config.index, "nprobe": config.nprobe}
        digest.update(json.dumps(settings, sort_keys=True).encode())
        for name, value in sorted(self.state.tower.state_dict().items()):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(value.detach().float().cpu().numpy()).data)
        live = self.state.table.live
        for array in (self.embeddings, self.vectors, self.state.table.keys[live], self.state.counts[live]):
            digest.update(np.ascontiguousarray(array).data)
        return str(digest.hexdigest()[:_DIGITS])
