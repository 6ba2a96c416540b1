"""The features of the items of the table, by row; each rank keeps those of the rows whose embeddings it has.

The names come from the windows' manifests; a feature that appears later is added then. Values change between
windows only, from the committed windows alone, so whatever the number of ranks, a row has the same. A window costs
what it says of its items, and a step its rows: nothing is made of all rows.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from weir.contracts import FeatureNames
from weir.contracts.feature_weights import Moments, buckets_of
from weir.contracts.features import MAX_DENSE
from weir.trainer.items.feature_column import Column, Line
from weir.trainer.items.places import Places
from weir.trainer.items.route import Route, moved
from weir.trainer.items.rows import FIRST_ITEM, TableRows
from weir.trainer.ranks.workers import Workers

__all__ = ["FeatureTable", "LineKey"]

logger = logging.getLogger(__name__)

_ASK: Final = "features "
"""What rank 0 asks the others for, with a column and a line of it."""

_NAMES: Final = "names"
_MOMENTS: Final = "moments"


class LineKey(NamedTuple):
    """Names an array that ranks share: what each row has in the `column` with a number."""

    column: int
    line: Line


class FeatureTable:
    """Features by row of the item table; rows without an item have none.

    Parameters
    ----------
    buckets
        Values are hashed to numbers below it.
    capacity
        Rows of the item table.
    workers
        The ranks that share the rows; a single one if None.
    device
        Where the lines are.
    """

    def __init__(
        self, buckets: int, capacity: int, workers: Workers | None = None, device: torch.device | None = None
    ) -> None:
        self.buckets, self.device = buckets, device or torch.device("cpu")
        self.workers = workers or Workers()
        self.places = Places(capacity, self.workers.rank, self.workers.world_size)
        self._categorical: dict[str, Column] = {}
        self._dense: dict[str, Column] = {}
        self._moments: dict[str, Moments] = {}

    @property
    def names(self) -> FeatureNames:
        """The features seen so far, in order of their first appearance."""
        return FeatureNames(categorical=tuple(self._categorical), dense=tuple(self._dense))

    @property
    def moments(self) -> tuple[Moments, ...]:
        """Those of each dense feature, in the order of `names`."""
        return tuple(self._moments[name] for name in self._dense)

    @property
    def columns(self) -> list[Column]:
        """The features, in the order of `names`."""
        return [*self._categorical.values(), *self._dense.values()]

    @property
    def widths(self) -> list[int]:
        """How many values a row has at most, of each categorical feature; alike on all ranks."""
        return [column.values.shape[1] for column in self._categorical.values()]

    def grow(self, capacity: int) -> None:
        """Append empty rows up to `capacity`; rows move between ranks, so all call it together."""
        before = self.places
        if capacity == before.capacity:
            return
        self.places = replace(before, capacity=capacity)
        if before.ranks == 1:
            for column in self.columns:
                column.grow(capacity)
        elif self.columns:
            self._move(before)

    def _move(self, before: Places) -> None:
        found = iter(moved(map(self._of, self.lines.values()), before, self.places, self.workers))
        rows = self.places.rows_at(torch.arange(len(self.places.here)))
        new = torch.nonzero(rows >= before.capacity)[:, 0].to(self.device)
        for column in self.columns:
            column.values, column.told_ms = next(found), next(found)
            column.forget(new)

    def forget(self, rows: TableRows) -> None:
        """Clear rows that have a new owner, or none."""
        lines, _ = self._own(rows)
        for column in self.columns:
            column.forget(lines)

    def update(self, rows: TableRows, items: pa.Table, names: FeatureNames, event_ms: int) -> None:
        """Set the features of a window's items; the same on all ranks.

        Parameters
        ----------
        rows
            Table rows (n,) of the items; items without a row of their own are skipped.
        items
            Columns of `names`, of n rows; null keeps the known value.
        names
            Of the window's features; one that was of the other kind before is left out, with a warning.
        event_ms
            Newest event of the window; a window that comes late does not overwrite the values of a newer one.

        Raises
        ------
        ValueError
            If the windows have named more dense features than there is room for.
        """
        agreeing = names.agreeing(self.names)
        for name in sorted({*names.all} - {*agreeing.all}):
            logger.warning("item feature %s was of another kind before: it is left out; give it another name", name)
        for name in agreeing.categorical:
            column = self._categorical.setdefault(name, self._column(torch.int32))
            known = np.flatnonzero((rows >= FIRST_ITEM) & items[name].is_valid().to_numpy())
            lists = items[name].take(pa.array(known)).combine_chunks()
            # Of all ranks, so that rows are as wide on each.
            column.widen(pc.max(pc.list_value_length(lists)).as_py() or 1)
            lines, own = self._own(TableRows(rows[known]))
            values = buckets_of(name, lists.take(pa.array(own)), self.buckets)
            column.set(lines, torch.from_numpy(values).to(self.device), event_ms)
        for name in agreeing.dense:
            column = self._dense.setdefault(name, self._column(torch.float64))
            values = items[name].to_numpy()
            self._moments.setdefault(name, Moments()).add(values[~np.isnan(values)])
            known = np.flatnonzero((rows >= FIRST_ITEM) & ~np.isnan(values))
            lines, own = self._own(TableRows(rows[known]))
            column.set(lines, torch.from_numpy(values[known[own], None]).to(self.device), event_ms)
        if len(self._dense) > MAX_DENSE:
            raise ValueError(
                f"the windows name {len(self._dense)} dense features by now, at most {MAX_DENSE} have room"
            )

    def read(self, lines: Tensor) -> tuple[Tensor, Tensor]:
        """Return what this rank's lines (n,) have: the buckets of values, -1 for none, (n, V), and numbers (n, D)."""
        buckets = [column.values[lines] for column in self._categorical.values()]
        numbers = [column.values[lines] for column in self._dense.values()]
        empty = lines.new_empty(len(lines), 0)
        return torch.cat([empty.int(), *buckets], 1), torch.cat([empty.double(), *numbers], 1)

    def state_dict(self) -> dict[str, Tensor | npt.NDArray[Any]]:
        """Return the lines of this rank as arrays, for the checkpoint; empty where no feature has been seen."""
        return self._described({name: self._of(key) for name, key in self.lines.items()})

    def state_of(self, rows: TableRows) -> dict[str, Tensor | npt.NDArray[Any]]:
        """Return the same with the lines of some rows (n,), distinct, of all ranks; called as `Embeddings.fetch`."""
        return self._described({name: self.fetch(rows, key) for name, key in self.lines.items()})

    @property
    def lines(self) -> dict[str, LineKey]:
        """The arrays that ranks share, by their names in a checkpoint."""
        numbers = range(len(self.columns))
        return {f"{number}.{line}": LineKey(number, line) for number in numbers for line in get_args(Line)}

    def fetch(self, rows: TableRows, key: LineKey) -> Tensor:
        """Return what distinct rows (n,) have, (n, ...); called as `Embeddings.fetch`."""
        if not len(rows):  # its type and shape are the same on every rank
            return self._of(key)[:0]
        self.workers.ask(f"{_ASK}{key.column} {key.line}")
        return self._fetched(torch.from_numpy(rows).to(self.device), key)

    def answer(self, question: str) -> bool:
        """Take part in what rank 0 asks for alone, and say whether it did; for `Workers.first`."""
        if not question.startswith(_ASK):
            return False
        column, line = question.removeprefix(_ASK).split()
        self._fetched(torch.empty(0, dtype=torch.int64, device=self.device), LineKey(int(column), cast(Line, line)))
        return True

    def _fetched(self, rows: Tensor, key: LineKey) -> Tensor:
        return self.route(rows).fetch(self._of(key))

    def route(self, rows: Tensor) -> Route:
        """Return how distinct rows (n,), others on each rank, come here; all ranks call it together."""
        return Route.of(rows, self.places, self.workers)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over this rank's lines, as `state_dict` describes them."""
        if not state:
            return
        categorical, dense = json.loads(np.asarray(state[_NAMES]).tobytes())
        self._categorical = {name: self._column(torch.int32) for name in categorical}
        self._dense = {name: self._column(torch.float64) for name in dense}
        self._load_moments(state)
        for number, column in enumerate(self.columns):
            column.values, column.told_ms = (state[f"{number}.{line}"].to(self.device) for line in get_args(Line))

    def load_rows(self, rows: TableRows, state: Mapping[str, Any]) -> None:
        """Take over rows (n,) of this rank, of a table with the same features."""
        if not state:
            return
        self._load_moments(state)
        lines = self.places.local(torch.from_numpy(rows)).to(self.device)
        for name, key in self.lines.items():
            self._of(key)[lines] = state[name].to(self.device)

    def _load_moments(self, state: Mapping[str, Any]) -> None:
        moments = np.asarray(state[_MOMENTS]).tolist()
        self._moments = {name: Moments(*row) for name, row in zip(self._dense, moments, strict=True)}

    def _described(self, lines: Mapping[str, Tensor]) -> dict[str, Tensor | npt.NDArray[Any]]:
        """Return what says how to read the lines, and these; nothing where there are none."""
        if not lines:
            return {}
        names = json.dumps([list(self._categorical), list(self._dense)]).encode()
        moments = [(one.count, one.mean, one.squares) for one in self._moments.values()]
        table = np.array(moments, np.float64).reshape(-1, 3)
        return {_NAMES: np.frombuffer(bytearray(names), np.uint8), _MOMENTS: table, **lines}

    def _of(self, key: LineKey) -> Tensor:
        return self.columns[key.column].of(key.line)

    def _own(self, rows: TableRows) -> tuple[Tensor, npt.NDArray[np.int64]]:
        """Return the lines (m,) of those of rows (n,) that this rank keeps, and where these are among them."""
        every = torch.from_numpy(rows)
        own = self.places.own(every)
        return self.places.local(every[own]).to(self.device), own.numpy()

    def _column(self, dtype: torch.dtype) -> Column:
        return Column.empty(len(self.places.here), dtype, self.device)
