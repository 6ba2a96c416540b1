"""What of a state its checkpoints hold: one with all rows, and deltas that each hold the rows changed since.

A delta takes the one before it into itself unless that is more than twice as large. So the sizes of a chain at least
halve from link to link: it is short, and each row is written again only a few times before a whole checkpoint is due.
Where every window touches the same rows, the chain is a single delta.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from weir.contracts.ascending import ascending
from weir.contracts.checkpoint import CheckpointRef
from weir.trainer.items.rows import TableRows

__all__ = ["Layout", "SavedChain", "SavedRows"]

_SHARE: Final = 4
"""A chain's deltas together hold at most one in so many rows of the table; then a whole checkpoint is due."""


class Layout(NamedTuple):
    """The rows of the table, type and shape of what has a line for each, by name, and all parts of the state."""

    capacity: int
    lines: dict[str, tuple[torch.dtype, tuple[int, ...]]]
    parts: tuple[str, ...] = ()


class SavedRows(NamedTuple):
    """A checkpoint, and the `rows` (n,) that it holds; a whole one counts none."""

    checkpoint: CheckpointRef
    rows: TableRows


@dataclass(frozen=True)
class SavedChain:
    """The `links` of a chain, the whole checkpoint first, and the `layout` of the state that they hold."""

    layout: Layout
    links: tuple[SavedRows, ...]

    def continued(self, layout: Layout, touched: TableRows) -> "tuple[SavedChain, TableRows] | None":
        """Return what a delta continues and the rows it holds; None where a whole checkpoint is due.

        Parameters
        ----------
        layout
            Of the state to be saved.
        touched
            Rows that have changed since the last link, (n,).
        """
        if layout != self.layout:
            return None
        links, rows = list(self.links), touched
        while len(links) > 1 and len(links[-1].rows) <= 2 * len(rows):
            rows = TableRows(ascending(np.concatenate([links.pop().rows, rows])))
        held = len(rows) + sum(len(link.rows) for link in links)
        return None if _SHARE * held > layout.capacity else (SavedChain(layout, tuple(links)), rows)

    def extended(self, checkpoint: CheckpointRef, rows: TableRows) -> "SavedChain":
        """Return the chain with one more link."""
        return SavedChain(self.layout, (*self.links, SavedRows(checkpoint, rows)))
