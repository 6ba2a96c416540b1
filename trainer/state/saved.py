"""Chain of checkpoints: a full one, and deltas that each store the rows changed since.

A new delta absorbs the last one unless that is more than twice as large. So sizes at least halve from link to link:
chains are short, and each row is rewritten only a few times before the next full checkpoint.
If every window touches the same rows, the chain is a single delta.
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
"""A full checkpoint is due when the deltas of a chain together exceed this fraction of the table's rows, 1 / 4."""


class Layout(NamedTuple):
    """Capacity of the table, type and shape of each array with a line per row, and the names of all parts."""

    capacity: int
    lines: dict[str, tuple[torch.dtype, tuple[int, ...]]]
    parts: tuple[str, ...] = ()


class SavedRows(NamedTuple):
    """A checkpoint and the `rows` (n,) that it stores; empty for a full checkpoint."""

    checkpoint: CheckpointRef
    rows: TableRows


@dataclass(frozen=True)
class SavedChain:
    """The `links` of a chain, the full checkpoint first, and the `layout` of the saved state."""

    layout: Layout
    links: tuple[SavedRows, ...]

    def continued(self, layout: Layout, touched: TableRows) -> "tuple[SavedChain, TableRows] | None":
        """Return the chain that a delta extends and the delta's rows; None if a full checkpoint is due.

        Parameters
        ----------
        layout
            Layout of the state to save.
        touched
            Rows changed since the last link, (n,).
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
