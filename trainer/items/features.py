"""Item features by table row, sharded over ranks like the embeddings.

Feature names come from the windows' manifests; a new feature is added when it first appears. Values change only between
windows, and depend only on the committed windows, hence not on the number of ranks. The cost is proportional to the
items of a window and the rows of a step, not to the size of the table.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, cast, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.nn import functional

from weir.contracts import FeatureNames
from weir.contracts.interactions.features import MAX_DENSE, Moments, buckets_of
from weir.trainer.items.embeddings import Route, moved
from weir.trainer.items.placement import Places
from weir.trainer.items.rows import FIRST_ITEM, TableRows
from weir.trainer.ranks.workers import Workers

__all__ = ["NEVER", "Column", "FeatureLine", "FeatureTable", "LineKey"]

logger = logging.getLogger(__name__)


NEVER: Final = torch.iinfo(torch.int64).min
"""Event time of a line that was never set."""

FeatureLine = Literal["values", "told_ms"]
"""Arrays of a column, by their names in a checkpoint."""


_ASK: Final = "features "
"""Prefix of rank 0's query for `fetch`; column and array follow."""

_NAMES: Final = "names"
_MOMENTS: Final = "moments"


@dataclass
class Column:
    """The values of one item feature; a line is a row of this rank's shard.

    `values` (lines, width) are left-aligned and filled up with `unknown`; `told_ms` (lines,) is the event time of the
    window that set a line.
    """

    unknown: int | float
    values: Tensor
    told_ms: Tensor

    @classmethod
    def empty(cls, lines: int, dtype: torch.dtype, device: torch.device) -> "Column":
        """Return a column of `lines` empty rows."""
        unknown = torch.nan if dtype.is_floating_point else -1
        values = torch.full((lines, 1), unknown, dtype=dtype, device=device)
        return cls(unknown, values, torch.full((lines,), NEVER, device=device))

    def of(self, line: FeatureLine) -> Tensor:
        """Return the array of that name, (lines, ...)."""
        return self.values if line == "values" else self.told_ms

    def grow(self, lines: int) -> None:
        """Append empty rows up to `lines`."""
        missing = lines - len(self.values)
        self.values = functional.pad(self.values, (0, 0, 0, missing), value=self.unknown)
        self.told_ms = functional.pad(self.told_ms, (0, missing), value=NEVER)

    def widen(self, width: int) -> None:
        """Pad each table row with `unknown` to at least `width` values; never narrow."""
        self.values = functional.pad(self.values, (0, max(width - self.values.shape[1], 0)), value=self.unknown)

    def forget(self, lines: Tensor) -> None:
        """Clear lines (n,)."""
        self.values[lines], self.told_ms[lines] = self.unknown, NEVER

    def set(self, lines: Tensor, values: Tensor, event_ms: int) -> None:
        """Set distinct lines (n,) to values (n, w), except lines with newer values; call `widen` to w before."""
        new = self.told_ms[lines] <= event_ms
        self.forget(lines[new])
        self.values[lines[new], : values.shape[1]] = values[new]
        self.told_ms[lines[new]] = event_ms


class LineKey(NamedTuple):
    """Key of a sharded array: the number of the `column`, and the name of its array, `line`."""

    column: int
    line: FeatureLine


class FeatureTable:
    """Item features by row of the item table, for this rank's rows; rows without an item are empty.

    Parameters
    ----------
    buckets
        Number of buckets to which the values of categorical features are hashed.
    capacity
        Rows of the item table.
    workers
        The ranks that share the rows; a single one if None.
    device
        Device of the columns.
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
        """Moments of each dense feature, in the order of `names`."""
        return tuple(self._moments[name] for name in self._dense)

    @property
    def columns(self) -> list[Column]:
        """The feature columns, in the order of `names`."""
        return [*self._categorical.values(), *self._dense.values()]

    @property
    def widths(self) -> list[int]:
        """Largest number of values per row of each categorical feature; the same on all ranks."""
        return [column.values.shape[1] for column in self._categorical.values()]

    def grow(self, capacity: int) -> None:
        """Append empty rows up to `capacity`; rows move between ranks, so this is collective."""
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
        """Move rows between ranks after the table has grown from `before`; collective."""
        arrays = iter(moved(map(self._of, self.lines.values()), before, self.places, self.workers))
        rows = self.places.rows_at(torch.arange(len(self.places.here)))
        new = torch.nonzero(rows >= before.capacity)[:, 0].to(self.device)
        for column in self.columns:
            column.values, column.told_ms = next(arrays), next(arrays)
            column.forget(new)

    def forget(self, rows: TableRows) -> None:
        """Clear rows (n,); rows of other ranks are ignored."""
        lines, _ = self._own(rows)
        for column in self.columns:
            column.forget(lines)

    def update(self, rows: TableRows, items: pa.Table, names: FeatureNames, event_ms: int) -> None:
        """Set the features of a window's items; called with the same arguments on all ranks.

        Parameters
        ----------
        rows
            Table rows (n,) of the items; items without their own row are skipped.
        items
            Columns of `names`, of n rows; null keeps the stored value.
        names
            Names of the window's features; a feature that was of the other kind before is skipped, with a warning.
        event_ms
            Newest event of the window; a late window does not overwrite values of a newer one.

        Raises
        ------
        ValueError
            If the windows have named more than `MAX_DENSE` dense features.
        """
        agreeing = names.agreeing(self.names)
        for name in sorted({*names.all} - {*agreeing.all}):
            logger.warning("item feature %s was of another kind before: it is left out; give it another name", name)
        for name in agreeing.categorical:
            column = self._categorical.setdefault(name, self._column(torch.int32))
            known = np.flatnonzero((rows >= FIRST_ITEM) & items[name].is_valid().to_numpy())
            lists = items[name].take(pa.array(known)).combine_chunks()
            # Computed before the shard is selected, so that columns are equally wide on all ranks.
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
        """Return the features at `lines` (n,) of the shard: buckets (n, V), -1 for none, and numbers (n, D)."""
        buckets = [column.values[lines] for column in self._categorical.values()]
        numbers = [column.values[lines] for column in self._dense.values()]
        empty = lines.new_empty(len(lines), 0)
        return torch.cat([empty.int(), *buckets], 1), torch.cat([empty.double(), *numbers], 1)

    def state_dict(self) -> dict[str, Tensor | npt.NDArray[Any]]:
        """Return this rank's columns as arrays, for the checkpoint; empty before the first feature."""
        return self._described({name: self._of(key) for name, key in self.lines.items()})

    def state_of(self, rows: TableRows) -> dict[str, Tensor | npt.NDArray[Any]]:
        """Return the columns at distinct rows (n,) of any rank. Collective, or by rank 0 in `Workers.first`."""
        return self._described({name: self.fetch(rows, key) for name, key in self.lines.items()})

    @property
    def lines(self) -> dict[str, LineKey]:
        """The sharded arrays, by their names in a checkpoint."""
        numbers = range(len(self.columns))
        return {f"{number}.{line}": LineKey(number, line) for number in numbers for line in get_args(FeatureLine)}

    def fetch(self, rows: TableRows, key: LineKey) -> Tensor:
        """Return the array of `key` at distinct rows (n,). Collective, or called by rank 0 in `Workers.first`."""
        if not len(rows):  # its type and shape are the same on every rank
            return self._of(key)[:0]
        self.workers.ask(f"{_ASK}{key.column} {key.line}")
        return self._fetched(torch.from_numpy(rows).to(self.device), key)

    def answer(self, question: str) -> bool:
        """Join the collective that rank 0 asks for in `Workers.first`; return False if it is another object's."""
        if not question.startswith(_ASK):
            return False
        column, line = question.removeprefix(_ASK).split()
        self._fetched(
            torch.empty(0, dtype=torch.int64, device=self.device), LineKey(int(column), cast(FeatureLine, line))
        )
        return True

    def _fetched(self, rows: Tensor, key: LineKey) -> Tensor:
        """Return the array of `key` at distinct rows (n,) of each rank; collective."""
        return self.route(rows).fetch(self._of(key))

    def route(self, rows: Tensor) -> Route:
        """Return the `Route` to the shards of distinct rows (n,), which may differ between ranks; collective."""
        return Route.of(rows, self.places, self.workers)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load this rank's columns from the result of `state_dict`."""
        if not state:
            return
        categorical, dense = json.loads(np.asarray(state[_NAMES]).tobytes())
        self._categorical = {name: self._column(torch.int32) for name in categorical}
        self._dense = {name: self._column(torch.float64) for name in dense}
        self._load_moments(state)
        for number, column in enumerate(self.columns):
            column.values, column.told_ms = (
                state[f"{number}.{line}"].to(self.device) for line in get_args(FeatureLine)
            )

    def load_rows(self, rows: TableRows, state: Mapping[str, Any]) -> None:
        """Load the result of `state_of` for rows (n,) of this rank, from a table with the same features."""
        if not state:
            return
        self._load_moments(state)
        lines = self.places.local(torch.from_numpy(rows)).to(self.device)
        for name, key in self.lines.items():
            self._of(key)[lines] = state[name].to(self.device)

    def _load_moments(self, state: Mapping[str, Any]) -> None:
        """Load the moments of the dense features."""
        moments = np.asarray(state[_MOMENTS]).tolist()
        self._moments = {name: Moments(*row) for name, row in zip(self._dense, moments, strict=True)}

    def _described(self, lines: Mapping[str, Tensor]) -> dict[str, Tensor | npt.NDArray[Any]]:
        """Return arrays together with the names and moments of the features; empty without arrays."""
        if not lines:
            return {}
        names = json.dumps([list(self._categorical), list(self._dense)]).encode()
        moments = [(feature.count, feature.mean, feature.squares) for feature in self._moments.values()]
        table = np.array(moments, np.float64).reshape(-1, 3)
        return {_NAMES: np.frombuffer(bytearray(names), np.uint8), _MOMENTS: table, **lines}

    def _of(self, key: LineKey) -> Tensor:
        """Return this rank's array with that key."""
        return self.columns[key.column].of(key.line)

    def _own(self, rows: TableRows) -> tuple[Tensor, npt.NDArray[np.int64]]:
        """Return the lines (m,) of this rank's rows among `rows` (n,), and their indices in `rows`, (m,)."""
        every = torch.from_numpy(rows)
        own = self.places.own(every)
        return self.places.local(every[own]).to(self.device), own.numpy()

    def _column(self, dtype: torch.dtype) -> Column:
        return Column.empty(len(self.places.here), dtype, self.device)
