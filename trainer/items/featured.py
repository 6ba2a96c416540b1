"""The features of the table's items and the tower that adds them to the embeddings, as one part of the state."""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import pyarrow as pa
from torch import Tensor, nn

from contracts import WindowManifest
from trainer.items.features import FeatureTable
from trainer.items.table import RowChanges, TableRows
from trainer.towers.item import FeatureInputs, ItemFeatures

__all__ = ["FeaturedItems"]


class FeaturedItems:
    """The part of the model that reads item features, beside the embeddings; the same on every rank.

    Parameters
    ----------
    table
        The features of each row.
    tower
        Adds it to the embeddings; its device and type are those of the embeddings.
    """

    def __init__(self, table: FeatureTable, tower: ItemFeatures) -> None:
        self.table = table
        self.tower = tower
        self._inputs = self._read()

    @classmethod
    def fresh(cls, buckets: int, weight: Tensor) -> "FeaturedItems":
        """Return the part as it starts, before the first feature, beside embeddings `weight` (capacity, d)."""
        tower = ItemFeatures(weight.shape[1], buckets).to(weight)
        return cls(FeatureTable(buckets, len(weight)), tower)

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that AdamW trains."""
        return list(self.tower.parameters())

    def compose(self, vectors: Tensor, rows: Tensor) -> Tensor:
        """Return embeddings (n, d) of `rows` (n,) with what the features add; differentiable."""
        composed: Tensor = self.tower(vectors, self._inputs.take(rows))
        return composed

    def ingest_window(
        self, manifest: WindowManifest, rows: TableRows, items: pa.Table | None, changes: RowChanges, capacity: int
    ) -> None:
        """Take in the features of a window's items, if it has any, after these have got their `rows` (n,)."""
        self.table.grow(capacity)
        self.table.forget(changes.evicted)
        self.table.forget(changes.admitted)
        if items is not None:
            self.table.update(rows, items, manifest.item_features, manifest.max_event_ms)
        self._inputs = self._read()

    def state_dict(self) -> dict[str, Tensor | npt.NDArray[Any]]:
        """Return table and tower as arrays, for the checkpoint."""
        parts = {"table": self.table.state_dict(), "tower": self.tower.state_dict()}
        return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` describes."""
        for prefix, part in (("table.", self.table), ("tower.", self.tower)):
            own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
            part.load_state_dict(own)
        self._inputs = self._read()

    def _read(self) -> FeatureInputs:
        weight = self.tower.dense.weight
        return self.table.inputs(weight.device, weight.dtype)
