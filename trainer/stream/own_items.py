"""The items of one rank's shard as columns of a score matrix, and their popularity ranking."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from weir.trainer.items.places import Places
from weir.trainer.state.trainer_state import TrainerState

__all__ = ["OwnItems"]


@dataclass(frozen=True, eq=False)
class OwnItems:
    """The items of a rank's shard, in its local order.

    Parameters
    ----------
    rows
        Their table rows, (v,).
    counts
        Their decayed counts, (v,).
    places
        Sharding of the rows.
    """

    rows: Tensor
    counts: Tensor
    places: Places

    @classmethod
    def of(cls, state: TrainerState) -> "OwnItems":
        """Return the items of this rank."""
        places = state.embeddings.places
        rows = state.table.in_use.at(places).to(state.device)
        return cls(rows, state.counts.at(places.local(rows)), places)

    def __len__(self) -> int:
        return len(self.rows)

    def columns(self, rows: Tensor) -> Tensor:
        """Return the columns of `rows`, in their shape; -1 for rows of other ranks."""
        if not len(self):
            return torch.full_like(rows, -1)
        column = torch.searchsorted(self._places, self.places.key(rows.contiguous())).clamp(max=len(self) - 1)
        return torch.where(self.rows[column] == rows, column, -1)

    def more_popular(self, rows: Tensor, counts: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return the number of items here that rank before those of `rows`, (n,), by count, then by row.

        Parameters
        ----------
        rows
            Rows of items of any rank, (n,).
        counts
            Their counts, (n,).
        hidden
            Columns to exclude, (n, L), distinct, -1 for none.
        """
        keys = self._keys(counts, rows)
        found = torch.searchsorted(self._ordered, keys)
        if hidden is not None and len(self):
            found = found - ((hidden >= 0) & (self._own_keys[hidden.clamp(min=0)] < keys[:, None])).sum(1)
        return found

    def _keys(self, counts: Tensor, rows: Tensor) -> Tensor:
        """Return keys (n,) that sort items by count, highest first, then by row."""
        group, is_known = torch.searchsorted(self._counts_down, -counts), torch.zeros_like(rows, dtype=torch.bool)
        if len(self):
            is_known = self._counts_down[group.clamp(max=len(self._counts_down) - 1)] == -counts
        # A count that no item here has sorts before all items of the next lower count.
        return group * self.places.capacity + rows * is_known

    @cached_property
    def _places(self) -> Tensor:
        return self.places.key(self.rows)

    @cached_property
    def _own_keys(self) -> Tensor:
        return self._keys(self.counts, self.rows)

    @cached_property
    def _ordered(self) -> Tensor:
        return self._own_keys.sort().values

    @cached_property
    def _counts_down(self) -> Tensor:
        """The distinct counts, negated and ascending."""
        down: Tensor = torch.unique(-self.counts)
        return down
