"""Count units and chosen half-lives by row, in the same shards as the embeddings."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from weir.trainer.items.embeddings import Route, moved
from weir.trainer.items.placement import LiveRows, Places
from weir.trainer.items.rows import TableRows
from weir.trainer.ranks.workers import Workers

__all__ = ["Line", "Units"]

Line = Literal["units", "chosen"]
"""Names of the arrays by row."""

Ints = npt.NDArray[np.int64]


class Units:
    """One rank's shard of the counts, a line per row: `units` (lines, half-lives), and the `chosen` half-life (lines,).

    Parameters
    ----------
    half_lives
        Number of half-lives.
    device
        Device of the arrays.
    workers
        The ranks that share the rows.
    """

    def __init__(self, half_lives: int, device: torch.device, workers: Workers) -> None:
        self.workers, self.places = workers, Places(0)
        self.units = torch.zeros((0, half_lives), dtype=torch.float64, device=device)
        self.chosen = torch.zeros(0, dtype=torch.int8, device=device)

    @property
    def stored(self) -> tuple[Line, ...]:
        """Names of the arrays that a checkpoint stores: `chosen` only with several half-lives."""
        return get_args(Line)[: self.units.shape[1]]

    def of(self, line: str) -> Tensor:
        """Return the array named `line` of this rank's shard."""
        return self.units if line == "units" else self.chosen

    def clear(self, capacity: int) -> None:
        """Reset to zeros, for a table of `capacity` rows."""
        self._place(capacity)
        lines = len(self.places.here)
        self.units, self.chosen = self.units.new_zeros(lines, self.units.shape[1]), self.chosen.new_zeros(lines)

    def _place(self, capacity: int) -> None:
        """Set the shard for a table of `capacity` rows."""
        self.places = Places(capacity, self.workers.rank, self.workers.world_size)

    def grow(self, capacity: int) -> None:
        """Append zero rows up to `capacity`; rows move between ranks, so this is collective."""
        before = self.places
        missing = capacity - before.capacity
        if not missing:
            return
        self.places = replace(before, capacity=capacity)
        if before.ranks == 1:
            self.units = functional.pad(self.units, (0, 0, 0, missing))
            self.chosen = functional.pad(self.chosen, (0, missing))
        else:
            self.units, self.chosen = moved((self.units, self.chosen), before, self.places, self.workers)

    def own(self, rows: TableRows) -> tuple[Ints, Ints]:
        """Return the lines (m,) of this rank's rows among `rows` (n,), and their indices in `rows`, (m,)."""
        every = torch.from_numpy(rows)
        own = self.places.own(every)
        return self.places.local(every[own]).numpy(), own.numpy()

    def live(self, in_use: LiveRows) -> tuple[TableRows, Ints]:
        """Return this rank's rows in use, and their lines, (v,)."""
        rows = in_use.at(self.places)
        return TableRows(rows.numpy()), self.places.local(rows).numpy()

    def fetch(self, rows: TableRows, line: Line) -> Tensor:
        """Return the array named `line` at distinct rows (n,). Collective, or called by rank 0 in `Workers.first`."""
        if not len(rows):  # its type and shape are the same on every rank
            return self.of(line)[:0]
        self.workers.ask(line)
        return self._fetched(torch.from_numpy(rows).to(self.units.device), line)

    def answer(self, line: str) -> None:
        """Join the `fetch` of the array `line` that rank 0 calls in `Workers.first`."""
        self._fetched(torch.empty(0, dtype=torch.int64, device=self.units.device), line)

    def _fetched(self, rows: Tensor, line: str) -> Tensor:
        """Return the array named `line` at distinct rows (n,) of each rank; collective."""
        return self.route(rows).fetch(self.of(line))

    def route(self, rows: Tensor) -> Route:
        """Return the `Route` to the shards of distinct rows (n,), which may differ between ranks; collective."""
        return Route.of(rows, self.places, self.workers)

    def load(self, capacity: int, state: Mapping[str, Tensor]) -> None:
        """Load this rank's lines of a table of `capacity` rows."""
        self._place(capacity)
        device, self.units = self.units.device, state["units"].to(self.units.device)
        self.chosen = state["chosen"].to(device) if "chosen" in state else self.chosen.new_zeros(len(self.units))

    def load_rows(self, rows: TableRows, state: Mapping[str, Tensor]) -> None:
        """Load rows (n,) of this rank."""
        here = self.places.local(torch.from_numpy(rows)).to(self.units.device)
        for line in self.stored:
            self.of(line)[here] = state[line].to(self.units.device)
