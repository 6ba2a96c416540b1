"""What a state gets to know of a bundle that was written: that it is the newest, and what it says of each item.

Each rank compares its items with that where a step moves all of them (`trainer.state.published`).
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from contracts import ItemKeys
from contracts.bundle_manifest import BundleRef
from contracts.bundle_rows import BundleRows
from contracts.item_rows import FIRST_ITEM_ROW
from trainer.export.draft import Complete, Delta
from trainer.items.rows import FIRST_ITEM, TableRows
from trainer.state.trainer_state import TrainerState

__all__ = ["note_published", "publish_all"]

_AT_ONCE: Final = 1 << 16
"""Vectors sent to their ranks at a time: with 64 dimensions 16 MB."""

Rows = npt.NDArray[np.int64]


def note_published(draft: Complete | Delta, rows: BundleRows, ref: BundleRef | None) -> None:
    """Let the state of a draft know that it is published as the `rows` of a bundle; its `ref` is None if it is lost."""
    state = draft.content.state
    state.since.ref = None
    if state.featured is not None and state.config.publish_bound:
        if isinstance(draft, Complete) or draft.content.is_whole:
            publish_all(state, rows)
        else:
            for some in _pieces(draft.items):
                vectors = rows.embeddings[draft.places[some] + FIRST_ITEM_ROW]
                state.since.items.take(TableRows(draft.content.rows[some]), vectors)
    if ref is not None:
        state.since.note(ref)


def publish_all(state: TrainerState, rows: BundleRows) -> None:
    """Let the ranks of a state know what the rows of a bundle say of the items that have a table row."""
    for some in _pieces(rows.live):
        found = state.table.rows(ItemKeys(rows.keys[some]))
        known = found >= FIRST_ITEM
        state.since.items.take(TableRows(found[known]), rows.embeddings[some[known] + FIRST_ITEM_ROW])


def _pieces(rows: Rows) -> Iterator[Rows]:
    return (rows[first : first + _AT_ONCE] for first in range(0, len(rows), _AT_ONCE))
