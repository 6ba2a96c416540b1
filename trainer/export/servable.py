"""A bundle as it is served: its own ids, tower and index, read back from its files."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import faiss
import numpy as np
import numpy.typing as npt
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
from onnx.reference import ReferenceEvaluator

from contracts import (
    BundleFile,
    BundleLog,
    BundleManifest,
    CorruptArtefactError,
    ItemKeys,
    columns,
)
from contracts.item_rows import ItemRows
from trainer.export.cases import Cases

__all__ = ["Servable"]

_ROWS: Final = 256

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Servable:
    """A bundle that answers: `embeddings` is (2 + items, d)."""

    manifest: BundleManifest
    tower: ReferenceEvaluator
    index: Any
    embeddings: Floats
    item_rows: ItemRows

    @classmethod
    def open(cls, log: BundleLog, manifest: BundleManifest) -> "Servable":
        """Read a bundle's files; raises `CorruptArtefactError` for a file that is damaged or unusable."""

        def decoded(name: str, decoder: Callable[[bytes], Any]) -> Any:
            data = log.read(manifest, name)
            try:
                return decoder(data)
            except Exception as error:  # each format's library has errors of its own
                path = log.store.path(f"{manifest.folder}/{name}")
                raise CorruptArtefactError(path, f"cannot be used: {error}") from error

        item_rows = ItemRows.of(decoded(BundleFile.ITEMS, _keys))
        return cls(
            manifest,
            decoded(BundleFile.TOWER, lambda data: ReferenceEvaluator(onnx.ModelProto.FromString(data))),
            decoded(BundleFile.INDEX, lambda data: faiss.deserialize_index(np.frombuffer(data, np.uint8))),
            decoded(BundleFile.EMBEDDINGS, lambda data: np.load(io.BytesIO(data), allow_pickle=False)),
            item_rows,
        )

    def hits(self, cases: Cases, k: int) -> npt.NDArray[np.bool_]:
        """Return whether each case's item is among the first `k` that the index finds after its history, (n,)."""
        parts = [cases.take(slice(first, first + _ROWS)) for first in range(0, len(cases), _ROWS)]
        return np.concatenate([np.empty(0, np.bool_), *(self._hits(part, k) for part in parts)])

    def _hits(self, cases: Cases, k: int) -> npt.NDArray[np.bool_]:
        _, rows = self.index.search(self._users(cases.histories), min(k, len(self.item_rows.keys)))
        wanted = self.item_rows.look_up(cases.items)
        hit: npt.NDArray[np.bool_] = (rows == wanted[:, None]).any(1) & (wanted >= 0)
        return hit

    def _users(self, histories: ItemKeys) -> Floats:
        """Return the tower's vectors (n, d) as they are searched with."""
        rows, mask = self.item_rows.tower_inputs(histories, self.manifest.history_length)
        (users,) = self.tower.run(None, {"history": self.embeddings[rows], "mask": mask})
        if self.manifest.metric == "cosine":
            users = users / np.maximum(np.linalg.norm(users, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return np.ascontiguousarray(users, np.float32)


def _keys(data: bytes) -> ItemKeys:
    keys: ItemKeys = pq.read_table(pa.BufferReader(data), columns=[columns.ITEM_KEY])[columns.ITEM_KEY].to_numpy()
    return keys
