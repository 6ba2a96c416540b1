"""The features of the items of the table, by row.

The names come from the windows' manifests; a feature that appears later is added then. Values change between
windows only, from the committed windows alone, so every rank that follows the commit order has the same.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from contracts import FeatureNames
from contracts.feature_weights import Moments, buckets_of
from contracts.features import MAX_DENSE
from trainer.items.table import FIRST_ITEM, TableRows
from trainer.towers.item import FeatureInputs

__all__ = ["FeatureTable"]

_NEVER: Final = np.iinfo(np.int64).min


@dataclass
class _Column:
    """One feature: its `values` (capacity, width), and the event time `set_ms` (capacity,) of each value's window."""

    unknown: int | float
    values: npt.NDArray[Any]
    set_ms: npt.NDArray[np.int64]

    def grow(self, capacity: int) -> None:
        missing = capacity - len(self.values)
        if not missing:
            return
        self.values = np.pad(self.values, ((0, missing), (0, 0)), constant_values=self.unknown)
        self.set_ms = np.pad(self.set_ms, (0, missing), constant_values=_NEVER)

    def forget(self, rows: TableRows) -> None:
        self.values[rows], self.set_ms[rows] = self.unknown, _NEVER

    def set(self, rows: TableRows, values: npt.NDArray[Any], event_ms: int) -> None:
        """Set rows (n,) to values (n, w), unless they have newer ones."""
        wider = values.shape[1] - self.values.shape[1]
        self.values = np.pad(self.values, ((0, 0), (0, max(wider, 0))), constant_values=self.unknown)
        new = self.set_ms[rows] <= event_ms
        self.forget(TableRows(rows[new]))
        self.values[rows[new], : values.shape[1]] = values[new]
        self.set_ms[rows[new]] = event_ms


class FeatureTable:
    """Features by row of the item table; rows without an item have none.

    Parameters
    ----------
    buckets
        Values are hashed to numbers below it.
    capacity
        Rows of the item table.
    """

    def __init__(self, buckets: int, capacity: int) -> None:
        self.buckets = buckets
        self.capacity = capacity
        self._categorical: dict[str, _Column] = {}
        self._dense: dict[str, _Column] = {}
        self._moments: dict[str, Moments] = {}

    @property
    def names(self) -> FeatureNames:
        """The features seen so far, in order of their first appearance."""
        return FeatureNames(categorical=tuple(self._categorical), dense=tuple(self._dense))

    @property
    def moments(self) -> tuple[Moments, ...]:
        """Those of each dense feature, in the order of `names`."""
        return tuple(self._moments[name] for name in self._dense)

    def grow(self, capacity: int) -> None:
        """Append empty rows up to `capacity`."""
        self.capacity = capacity
        for column in self._columns:
            column.grow(capacity)

    def forget(self, rows: TableRows) -> None:
        """Clear rows that have a new owner, or none."""
        for column in self._columns:
            column.forget(rows)

    def update(self, rows: TableRows, items: pa.Table, names: FeatureNames, event_ms: int) -> None:
        """Set the features of a window's items.

        Parameters
        ----------
        rows
            Table rows (n,) of the items; items without a row of their own are skipped.
        items
            Columns of `names`, of n rows; null keeps the known value.
        names
            Of the window's features.
        event_ms
            Newest event of the window; a window that comes late does not overwrite the values of a newer one.

        Raises
        ------
        ValueError
            If the windows have named more dense features than there is room for.
        """
        for name in names.categorical:
            column = self._categorical.setdefault(name, self._column(-1, np.int32))
            known = np.flatnonzero((rows >= FIRST_ITEM) & items[name].is_valid().to_numpy())
            lists = items[name].take(pa.array(known)).combine_chunks()
            column.set(TableRows(rows[known]), buckets_of(name, lists, self.buckets), event_ms)
        for name in names.dense:
            column = self._dense.setdefault(name, self._column(np.nan, np.float64))
            values = items[name].to_numpy()
            self._moments.setdefault(name, Moments()).add(values[~np.isnan(values)])
            known = np.flatnonzero((rows >= FIRST_ITEM) & ~np.isnan(values))
            column.set(TableRows(rows[known]), values[known, None], event_ms)
        if len(self._dense) > MAX_DENSE:
            raise ValueError(
                f"the windows name {len(self._dense)} dense features by now, at most {MAX_DENSE} have room"
            )

    def inputs(self, device: torch.device, dtype: torch.dtype) -> FeatureInputs:
        """Return all rows as the tower reads them: the mean over each feature's values, numbers standardised."""
        parts = [column.values for column in self._categorical.values()]
        present = [part >= 0 for part in parts]
        weights = [there / np.maximum(there.sum(1, keepdims=True), 1) for there in present]
        # A bag may not be without any place.
        none = np.zeros((self.capacity, 1), np.int32)
        dense = np.zeros((self.capacity, MAX_DENSE))
        for number, (name, column) in enumerate(self._dense.items()):
            dense[:, number] = self._moments[name].standardised(column.values[:, 0])
        return FeatureInputs(
            torch.from_numpy(np.maximum(np.concatenate([none, *parts], 1), 0)).to(device),
            torch.from_numpy(np.concatenate([none, *weights], 1)).to(device, dtype),
            torch.from_numpy(dense).to(device, dtype),
        )

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return the table as arrays, for the checkpoint; empty where no feature has been seen."""
        return self.state_of(TableRows(np.arange(self.capacity)))

    def state_of(self, rows: TableRows) -> dict[str, npt.NDArray[Any]]:
        """Return some rows (n,) of the table as arrays, with all names and moments."""
        if not self._columns:
            return {}
        names = json.dumps([list(self._categorical), list(self._dense)]).encode()
        moments = [(one.count, one.mean, one.squares) for one in self._moments.values()]
        flat: dict[str, npt.NDArray[Any]] = {
            "names": np.frombuffer(bytearray(names), np.uint8),
            "moments": np.array(moments, np.float64).reshape(-1, 3),
        }
        for number, column in enumerate(self._columns):
            flat |= {f"{number}.values": column.values[rows], f"{number}.told_ms": column.set_ms[rows]}
        return flat

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Take over the table that `state_dict` describes."""
        if not state:
            return
        categorical, dense = json.loads(np.asarray(state["names"]).tobytes())
        self._categorical = {name: self._column(-1, np.int32) for name in categorical}
        self._dense = {name: self._column(np.nan, np.float64) for name in dense}
        self._load_moments(state)
        for number, column in enumerate(self._columns):
            stored = (state[f"{number}.{name}"] for name in ("values", "told_ms"))
            column.values, column.set_ms = (np.asarray(array).copy() for array in stored)

    def load_rows(self, rows: TableRows, state: Mapping[str, npt.ArrayLike]) -> None:
        """Take over the rows (n,) that `state_of` describes, of a table with the same features."""
        if not state:
            return
        self._load_moments(state)
        for number, column in enumerate(self._columns):
            values, set_ms = (np.asarray(state[f"{number}.{name}"]) for name in ("values", "told_ms"))
            column.values[rows], column.set_ms[rows] = values, set_ms

    def _load_moments(self, state: Mapping[str, npt.ArrayLike]) -> None:
        moments = np.asarray(state["moments"]).tolist()
        self._moments = {name: Moments(*row) for name, row in zip(self._dense, moments, strict=True)}

    @property
    def _columns(self) -> list[_Column]:
        return [*self._categorical.values(), *self._dense.values()]

    def _column(self, unknown: float, kind: type[np.generic]) -> _Column:
        values = np.full((self.capacity, 1), unknown, kind)
        return _Column(unknown, values, np.full(self.capacity, _NEVER))
