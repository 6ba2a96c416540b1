"""The features of the table's items and the tower that adds them to the embeddings, as one part of the state."""

import pyarrow as pa
from torch import Tensor, nn

from contracts import WindowManifest
from trainer.items.features import FeatureTable
from trainer.items.table import RowChanges, Rows
from trainer.towers.item import FeatureInputs, ItemFeatures

__all__ = ["FeaturedItems"]


class FeaturedItems:
    """What a stream whose windows carry features has beside the embeddings; the same on every rank.

    Parameters
    ----------
    table
        What is known of each row.
    tower
        Adds it to the embeddings; its device and type are those of the embeddings.
    """

    def __init__(self, table: FeatureTable, tower: ItemFeatures) -> None:
        self.table = table
        self.tower = tower
        self._inputs = self._read()

    @classmethod
    def fresh(cls, buckets: int, weight: Tensor) -> "FeaturedItems":
        """Return the part before the first feature, beside embeddings `weight` (capacity, d)."""
        tower = ItemFeatures(weight.shape[1], buckets).to(weight)
        return cls(FeatureTable(buckets, len(weight)), tower)

    def parameters(self) -> list[nn.Parameter]:
        """Return what AdamW learns."""
        return list(self.tower.parameters())

    def compose(self, vectors: Tensor, rows: Tensor) -> Tensor:
        """Return embeddings (n, d) of `rows` (n,) with what the features add; differentiable."""
        composed: Tensor = self.tower(vectors, self._inputs.take(rows))
        return composed

    def absorb(
        self, manifest: WindowManifest, rows: Rows, items: pa.Table | None, changes: RowChanges, capacity: int
    ) -> None:
        """Take in the features of a window's items, if it has any, after these have got their `rows` (n,)."""
        self.table.grow(capacity)
        self.table.forget(changes.evicted)
        self.table.forget(changes.admitted)
        if items is not None:
            self.table.tell(rows, items, manifest.item_features, manifest.max_event_ms)
        self._inputs = self._read()

    def state(self) -> dict[str, Tensor]:
        """Return table and tower as tensors, for the checkpoint."""
        flat = {f"table.{name}": value for name, value in self.table.state().items()}
        return flat | {f"tower.{name}": value.detach() for name, value in self.tower.state_dict().items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` describes."""
        parts: dict[str, dict[str, Tensor]] = {"table": {}, "tower": {}}
        for name, value in state.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        self.table = FeatureTable.restore(self.table.buckets, self.table.capacity, parts["table"])
        self.tower.load_state_dict(parts["tower"])
        self._inputs = self._read()

    def _read(self) -> FeatureInputs:
        weight = self.tower.dense.weight
        return self.table.inputs(weight.device, weight.dtype)
