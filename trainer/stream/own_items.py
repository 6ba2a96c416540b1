"""The items of one rank as columns of scores, and their order by popularity."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from weir.trainer.items.places import Places
from weir.trainer.state.trainer_state import TrainerState

__all__ = ["OwnItems"]


@dataclass(frozen=True, eq=False)
class OwnItems:
    """The items whose embeddings a rank keeps, in the order in which it keeps them.

    Parameters
    ----------
    rows
        Their table rows, (v,).
    counts
        Their occurrences, (v,).
    places
        Where rows are.
    """

    rows: Tensor
    counts: Tensor
    places: Places

    @classmethod
    def of(cls, state: TrainerState) -> "OwnItems":
        """Return those of this rank."""
        places = state.embeddings.places
        rows = state.table.in_use.at(places).to(state.device)
        return cls(rows, state.counts.at(places.local(rows)), places)

    def __len__(self) -> int:
        return len(self.rows)

    def columns(self, rows: Tensor) -> Tensor:
        """Return the columns of `rows`, of their shape; -1 for those that are not here."""
        if not len(self):
            return torch.full_like(rows, -1)
        column = torch.searchsorted(self._places, self.places.key(rows.contiguous())).clamp(max=len(self) - 1)
        return torch.where(self.rows[column] == rows, column, -1)

    def more_popular(self, rows: Tensor, counts: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return how many items here come before those of `rows`, (n,), by count, and by row where counts are equal.

        Parameters
        ----------
        rows
            Of items of any rank, (n,).
        counts
            Their occurrences, (n,).
        hidden
            Columns that do not count, (n, L), distinct, -1 for none.
        """
        keys = self._keys(counts, rows)
        found = torch.searchsorted(self._ordered, keys)
        if hidden is not None and len(self):
            found = found - ((hidden >= 0) & (self._own_keys[hidden.clamp(min=0)] < keys[:, None])).sum(1)
        return found

    def _keys(self, counts: Tensor, rows: Tensor) -> Tensor:
        """Return numbers (n,) that order items by count, highest first, then by row."""
        group, is_known = torch.searchsorted(self._counts_down, -counts), torch.zeros_like(rows, dtype=torch.bool)
        if len(self):
            is_known = self._counts_down[group.clamp(max=len(self._counts_down) - 1)] == -counts
        # A count that no item here has is before all of the next lower one.
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
        """The different counts, negative, so that they ascend."""
        down: Tensor = torch.unique(-self.counts)
        return down
