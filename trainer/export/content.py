"""What an export reads of a state, and the name that follows from it."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import xxhash
from torch import Tensor

from contracts import BUNDLE_ITEMS_SCHEMA, PADDING_KEY, ItemKeys, columns
from contracts.ascending import ascending
from trainer.config import EARLIER
from trainer.export.fingerprint import Fingerprint, Hashes, hashes_of
from trainer.items.rows import FIRST_ITEM, Reader, TableRows
from trainer.state.codec import Stateful, flatten
from trainer.state.trainer_state import TrainerState
from trainer.step.spool import Spool
from trainer.towers import project

__all__ = ["Content"]

Floats = npt.NDArray[np.float32]

_AT_ONCE: Final = 1 << 16
"""Rows fetched at a time, at most: with 64 dimensions 16 MB."""

_DIGITS: Final = 8
"""Of the digest in a name: only bundles of one position in the stream need to differ."""


@dataclass(frozen=True, eq=False)
class Content:
    """What a bundle takes from a state: of all items, or of those whose table rows were touched.

    `embeddings` (2 + n, d) begin with the two special rows, and `vectors` (n, d) have none; both are in the order of
    `rows` (n,), table rows that items own, ascending. `touched` are all rows that were looked at and `left` the keys of
    items that these do not hold any more; None where the content is whole.
    """

    state: TrainerState
    rows: TableRows
    embeddings: Floats
    vectors: Floats
    fingerprint: Fingerprint
    touched: TableRows | None = None
    left: ItemKeys | None = None

    @classmethod
    def of(cls, state: TrainerState) -> "Content":
        """Read a whole state."""
        table, rows = state.table, state.table.live
        keys = table.keys_of(rows)
        embeddings, vectors, hashes = _read(state, rows, keys)
        return cls(state, rows, embeddings, vectors, Fingerprint.of(table.capacity, rows, keys, hashes))

    @classmethod
    def since(cls, state: TrainerState, fingerprint: Fingerprint) -> "Content":
        """Read the rows that may have changed since the fingerprint was taken, and bring it up to date."""
        table, touched = state.table, state.touched(Reader.BUNDLE)
        if state.featured is not None:
            touched = TableRows(ascending(np.concatenate([touched, state.of_bundle.moved(state.kept_vectors)])))
        keys = table.keys_of(touched)
        rows, keys = TableRows(touched[keys != PADDING_KEY]), ItemKeys(keys[keys != PADDING_KEY])
        embeddings, vectors, hashes = _read(state, rows, keys)
        fingerprint.grow(table.capacity)
        left = fingerprint.update(touched, rows, keys, hashes)
        return cls(state, rows, embeddings, vectors, fingerprint, touched, left)

    @property
    def is_whole(self) -> bool:
        """Whether it holds all items."""
        return self.touched is None

    def whole(self) -> "Content":
        """Return the content of all items."""
        if self.is_whole:
            return self
        rows = self.state.table.live
        embeddings, vectors, _ = _read(self.state, rows)
        return Content(self.state, rows, embeddings, vectors, self.fingerprint)

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
        """The items' keys, (n,), which the table has; called as its `keys_of`."""
        return self.state.table.keys_of(self.rows)

    def items(self, chosen: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> pa.Table:
        """Return ``items.parquet`` (`BUNDLE_ITEMS_SCHEMA`) with the `chosen` items (m,) at index rows `rows` (m,)."""
        table = self.state.table
        places = TableRows(self.rows[chosen])
        values: dict[str, Any] = {
            columns.ROW: rows.astype(np.int32),
            columns.ITEM_ID: table.ids.of(places).tolist(),
            columns.ITEM_KEY: table.keys_of(places),
            columns.POPULARITY: self.state.counts[torch.from_numpy(places)].cpu().numpy(),
        }
        return pa.table(values, schema=BUNDLE_ITEMS_SCHEMA)

    def _digest(self) -> str:
        state, digest = self.state, xxhash.xxh3_128()
        # What is as it was before there was a choice is left out: older versions have named bundles without it.
        named = [item for item in state.config.defining().items() if item not in EARLIER.items()]
        settings = dict(named) | {"index": state.config.index, "nprobe": state.config.nprobe}
        # Their sum tells counts apart that were read at other times.
        counted = {"time_ms": state.frequencies.time_ms, "log_total": state.counts.log_total}
        digest.update(json.dumps(settings | counted | {"items": self.fingerprint.value}, sort_keys=True).encode())
        served: dict[str, Stateful] = {"tower": state.tower, "frequencies": state.frequencies}
        if state.second is not None:
            served["scorer"] = state.second.scorer
        if state.featured is not None:
            # Their values by item are not in it: they show in what was trained on them.
            digest.update(state.featured.weights.encode())
        parts = flatten(served)
        for name, value in sorted(parts.items()):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(_array(value)).data)
        digest.update(np.ascontiguousarray(self.embeddings[:FIRST_ITEM]).data)
        return str(digest.hexdigest()[:_DIGITS])


@torch.no_grad()
def _read(state: TrainerState, rows: TableRows, keys: ItemKeys | None = None) -> tuple[Floats, Floats, Hashes]:
    """Return the embeddings (2 + n, d) of the special rows and of `rows` (n,), the vectors (n, d), and hashes (n,).

    Hashes are made where there are `keys` (n,): of what belongs to a row alone, without what features add to it. All
    are mapped files, which come piece by piece: no memory has to hold those of all ranks.
    """
    embeddings, vectors = (Spool(state.embeddings.weight.shape[1], np.float32) for _ in range(2))
    hashes, every, done = Spool(1, np.uint64), np.concatenate([np.arange(FIRST_ITEM), rows]), 0
    # On the CPU, the vector of a row is the same, bit for bit, among however many others it is made, but not alone.
    for number, some in enumerate(np.array_split(every, -(-len(every) // _AT_ONCE))):
        index, first = torch.as_tensor(some, device=state.device), 0 if number else FIRST_ITEM
        own, featured = state.embeddings.fetch(index), state.featured
        piece = own.cpu() if featured is None else state.compose(own, featured.fetch(index)).cpu()
        embeddings.append(_array(piece))
        vectors.append(_array(project(piece[first:], state.config.tower)))
        if keys is not None:
            found = ItemKeys(keys[done : done + len(own) - first])
            hashes.append(hashes_of(found, _array(own[first:]))[:, None])
            done += len(found)
    return np.asarray(embeddings.finish()), np.asarray(vectors.finish()), np.asarray(hashes.finish())[:, 0]


def _array(value: Tensor) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = (value.float() if value.is_floating_point() else value).detach().cpu().numpy()
    return found
