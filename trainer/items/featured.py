"""The features of the table's items and the tower that adds them to the embeddings, as one part of the state."""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import pyarrow as pa
from torch import Tensor, nn

from weir.contracts import WindowManifest
from weir.contracts.feature_weights import FeatureWeights
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.feature_inputs import inputs_of
from weir.trainer.items.features import FeatureTable
from weir.trainer.items.route import Route
from weir.trainer.items.table import RowChanges, TableRows
from weir.trainer.towers.features import FeatureInputs, FeatureVectors

__all__ = ["FeaturedItems"]


class FeaturedItems:
    """The part of the model that reads item features, beside the embeddings; its tower is the same on every rank.

    Parameters
    ----------
    table
        The features of each row.
    tower
        Adds it to the embeddings; its device and type are those of the embeddings.
    """

    def __init__(self, table: FeatureTable, tower: FeatureVectors) -> None:
        self.table = table
        self.tower = tower

    @classmethod
    def fresh(cls, buckets: int, embeddings: Embeddings) -> "FeaturedItems":
        """Return the part as it starts, before the first feature, for the rows of `embeddings`."""
        weight = embeddings.weight
        tower = FeatureVectors(weight.shape[1], buckets).to(weight)
        return cls(FeatureTable(buckets, embeddings.capacity, embeddings.workers, weight.device), tower)

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that AdamW trains."""
        return list(self.tower.parameters())

    def compose(self, vectors: Tensor, features: FeatureInputs) -> Tensor:
        """Return embeddings (n, d) with what the features of the same items add; differentiable."""
        composed: Tensor = self.tower(vectors, features)
        return composed

    def kept(self, rows: Tensor) -> FeatureInputs:
        """Return the features of the items of rows (n,) that this rank keeps."""
        return self.inputs(*self.table.read(self.table.places.local(rows)))

    def fetched(self, route: Route) -> FeatureInputs:
        """Return those of a route's rows (n,), given one for the places of the table."""
        return self.inputs(*route.answered(*self.table.read(route.asked)))

    def answer(self, question: str) -> bool:
        """Take part in what rank 0 asks of the table alone, and say whether it did; for `Workers.first`."""
        return self.table.answer(question)

    def inputs(self, buckets: Tensor, numbers: Tensor) -> FeatureInputs:
        """Return what the tower reads of n items, given what `FeatureTable.read` says of them."""
        return inputs_of(self.table, buckets, numbers, self.tower.dense.weight.dtype)

    @property
    def weights(self) -> FeatureWeights:
        """What makes an item of its features alone."""
        values, dense = (one.weight.detach().float().cpu().numpy() for one in (self.tower.values, self.tower.dense))
        return FeatureWeights(self.table.names, values, dense, self.table.moments)

    def ingest_window(
        self, manifest: WindowManifest, rows: TableRows, items: pa.Table | None, changes: RowChanges, capacity: int
    ) -> None:
        """Take in the features of a window's items, if it has any, after these have got their `rows` (n,)."""
        self.table.grow(capacity)
        self.table.forget(changes.evicted)
        self.table.forget(changes.admitted)
        if items is not None:
            self.table.update(rows, items, manifest.item_features, manifest.max_event_ms)

    def state_dict(self) -> dict[str, Tensor | npt.NDArray[Any]]:
        """Return table and tower as arrays, for the checkpoint."""
        return self._joined(self.table.state_dict())

    def state_of(self, rows: TableRows) -> dict[str, Tensor | npt.NDArray[Any]]:
        """Return some rows (n,) of the table, and the tower."""
        return self._joined(self.table.state_of(rows))

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` describes."""
        self.table.load_state_dict(_part(state, "table."))
        self.tower.load_state_dict(_part(state, "tower."))

    def load_rows(self, rows: TableRows, state: Mapping[str, Tensor]) -> None:
        """Take over the rows (n,) and the tower that `state_of` describes."""
        self.table.load_rows(rows, _part(state, "table."))
        self.tower.load_state_dict(_part(state, "tower."))

    def _joined(self, table: Mapping[str, Tensor | npt.NDArray[Any]]) -> dict[str, Tensor | npt.NDArray[Any]]:
        parts: dict[str, Mapping[str, Tensor | npt.NDArray[Any]]] = {"table": table, "tower": self.tower.state_dict()}
        return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}


def _part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
