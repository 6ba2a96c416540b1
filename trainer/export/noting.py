"""Sync the trainer state with the newest published bundle: whether it is of this state, and the published vectors.

If steps move all items, each rank compares its items with the published ones (`weir.trainer.state.published`).
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.contracts import BundleLog, BundleManifest, CorruptArtefactError, ItemKeys
from weir.contracts.bundle_manifest import BundleRef
from weir.contracts.bundle_rows import BundleRows
from weir.contracts.item_rows import FIRST_ITEM_ROW
from weir.contracts.variants import version_of
from weir.trainer.export.draft import Complete, Delta
from weir.trainer.export.naming import name_of, place_of
from weir.trainer.items.rows import FIRST_ITEM, TableRows
from weir.trainer.state.trainer_state import TrainerState

__all__ = ["is_known", "note_published", "publish_all", "recognise"]

_AT_ONCE: Final = 1 << 16
"""Vectors sent to their ranks at a time: 16 MB with 64 dimensions."""

Rows = npt.NDArray[np.int64]


def recognise(log: BundleLog, state: TrainerState) -> None:
    """Check whether a loaded state is that of the newest bundle, before the state changes.

    A stopped run exports after its last checkpoint, which does not record that bundle. Called as
    `name_of`.
    """
    for newest in log.manifests()[-1:] if len(state.table) else ():
        with suppress(CorruptArtefactError, FileNotFoundError):
            is_known(state, *log.manifest_and_ref(newest.version))


def is_known(state: TrainerState, newest: BundleManifest, ref: BundleRef) -> bool:
    """Return whether the changes since the newest bundle are known; if the state has its name, there are none."""
    if state.since.begins_at(ref):
        return True
    if newest.recipe is None or not newest.version.startswith(place_of(state)):
        # The usual case, without the cost of a digest over all rows.
        return False
    if newest.version == version_of(name_of(state, at_all=True), newest.variant):
        state.since.note(ref, float(newest.recipe.settings["publish_bound"]))
    return state.since.begins_at(ref)


def note_published(draft: Complete | Delta, rows: BundleRows, ref: BundleRef) -> None:
    """Record in the state that it, or its snapshot, was published as the `rows` of a bundle."""
    state = draft.content.state
    state.since.ref = None  # until everything is recorded
    if state.featured is not None and state.config.publish_bound:
        if isinstance(draft, Complete) or draft.content.is_whole:
            publish_all(state, rows)
        else:
            for some in _pieces(draft.items):
                vectors = rows.embeddings[draft.places[some] + FIRST_ITEM_ROW]
                state.since.items.take(TableRows(draft.content.rows[some]), vectors)
    if draft.content.described is None:
        state.since.note(ref)
    else:
        state.since.note_snapshot(ref)


def publish_all(state: TrainerState, rows: BundleRows) -> None:
    """Send the vectors of a bundle's rows to the ranks that own the items' table rows."""
    for some in _pieces(rows.live):
        found = state.table.rows(ItemKeys(rows.keys[some]))
        known = found >= FIRST_ITEM
        state.since.items.take(TableRows(found[known]), rows.embeddings[some[known] + FIRST_ITEM_ROW])


def _pieces(rows: Rows) -> Iterator[Rows]:
    return (rows[first : first + _AT_ONCE] for first in range(0, len(rows), _AT_ONCE))
