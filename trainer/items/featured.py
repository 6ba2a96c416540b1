"""Item features as a part of the state: the feature table, and the tower that adds features to embeddings."""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn

from weir.contracts import WindowManifest
from weir.contracts.interactions.features import LARGEST, FeatureWeights
from weir.trainer.items.embeddings import Embeddings, Route
from weir.trainer.items.features import FeatureTable
from weir.trainer.items.table import RowChanges, TableRows
from weir.trainer.towers.features import FeatureInputs, FeatureVectors, feature_inputs

__all__ = ["FeaturedItems", "inputs_of"]


def inputs_of(table: FeatureTable, buckets: Tensor, numbers: Tensor, dtype: torch.dtype) -> FeatureInputs:
    """Return the inputs of n items from the buckets (n, V) and numbers (n, D) of `FeatureTable.read`."""
    parts = torch.split(buckets, table.widths, 1) if table.widths else ()
    return feature_inputs(parts, _standardised(table, numbers), dtype)


def _standardised(table: FeatureTable, numbers: Tensor) -> Tensor:
    """Return the numbers (n, D) of all dense features, standardised as by `Moments.standardised`."""
    moments = [(feature.mean, feature.deviation) for feature in table.moments]
    mean, deviation = numbers.new_tensor(moments).view(-1, 2).T
    scaled = ((numbers - mean) / deviation).clamp(-LARGEST, LARGEST).nan_to_num()
    return torch.where(deviation > 0, scaled, 0.0)


class FeaturedItems:
    """Item features by row, sharded over ranks, and the tower that adds them to embeddings, replicated on every rank.

    Parameters
    ----------
    table
        Features by row, sharded over ranks.
    tower
        Module that adds features to embeddings, on their device and of their type.
    """

    def __init__(self, table: FeatureTable, tower: FeatureVectors) -> None:
        self.table = table
        self.tower = tower

    @classmethod
    def fresh(cls, buckets: int, embeddings: Embeddings) -> "FeaturedItems":
        """Return an empty feature table and untrained module for the rows of `embeddings`."""
        weight = embeddings.weight
        tower = FeatureVectors(weight.shape[1], buckets).to(weight)
        return cls(FeatureTable(buckets, embeddings.capacity, embeddings.workers, weight.device), tower)

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that AdamW trains."""
        return list(self.tower.parameters())

    def compose(self, vectors: Tensor, features: FeatureInputs) -> Tensor:
        """Return embeddings (n, d) plus the vectors of the same items' features; differentiable."""
        composed: Tensor = self.tower(vectors, features)
        return composed

    def kept(self, rows: Tensor) -> FeatureInputs:
        """Return the features of rows (n,) in this rank's shard."""
        return self.inputs(*self.table.read(self.table.places.local(rows)))

    def fetched(self, route: Route) -> FeatureInputs:
        """Return the features of a route's rows (n,); collective."""
        return self.inputs(*route.answered(*self.table.read(route.asked)))

    def answer(self, question: str) -> bool:
        """Join the collective that rank 0 asks for in `Workers.first`; return False if not for the feature table."""
        return self.table.answer(question)

    def inputs(self, buckets: Tensor, numbers: Tensor) -> FeatureInputs:
        """Return the tower's inputs for n items from the result of `FeatureTable.read`."""
        return inputs_of(self.table, buckets, numbers, self.tower.dense.weight.dtype)

    @property
    def weights(self) -> FeatureWeights:
        """Weights with which a server computes the vectors of features, for example of cold items."""
        values, dense = (layer.weight.detach().float().cpu().numpy() for layer in (self.tower.values, self.tower.dense))
        return FeatureWeights(self.table.names, values, dense, self.table.moments)

    def ingest_window(
        self, manifest: WindowManifest, rows: TableRows, items: pa.Table | None, changes: RowChanges, capacity: int
    ) -> None:
        """Add the features of a window's items, if it has any, after the item table was changed.

        `rows` (n,) are the table rows of the items, `capacity` is the size of the item table.
        """
        self.table.grow(capacity)
        self.table.forget(changes.evicted)
        self.table.forget(changes.admitted)
        if items is not None:
            self.table.update(rows, items, manifest.item_features, manifest.max_event_ms)

    def state_dict(self) -> dict[str, Tensor | npt.NDArray[Any]]:
        """Return feature table and tower as arrays, for a checkpoint."""
        return self._joined(self.table.state_dict())

    def state_of(self, rows: TableRows) -> dict[str, Tensor | npt.NDArray[Any]]:
        """Return some rows (n,) of the feature table, and the tower, as arrays."""
        return self._joined(self.table.state_of(rows))

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the result of `state_dict`."""
        self.table.load_state_dict(_part(state, "table."))
        self.tower.load_state_dict(_part(state, "tower."))

    def load_rows(self, rows: TableRows, state: Mapping[str, Tensor]) -> None:
        """Load the rows (n,) and the tower from the result of `state_of`."""
        self.table.load_rows(rows, _part(state, "table."))
        self.tower.load_state_dict(_part(state, "tower."))

    def _joined(self, table: Mapping[str, Tensor | npt.NDArray[Any]]) -> dict[str, Tensor | npt.NDArray[Any]]:
        """Return the arrays of the table and the tower by ``<part>.<name>``."""
        parts: dict[str, Mapping[str, Tensor | npt.NDArray[Any]]] = {"table": table, "tower": self.tower.state_dict()}
        return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}


def _part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
