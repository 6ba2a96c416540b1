"""What a state gets to know of the newest bundle: that it is of this state, and what it says of each item.

Each rank compares its items with that where a step moves all of them (`weir.trainer.state.published`).
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
"""Vectors sent to their ranks at a time: with 64 dimensions 16 MB."""

Rows = npt.NDArray[np.int64]


def recognise(log: BundleLog, state: TrainerState) -> None:
    """Find out whether a state that was loaded is that of the newest bundle, before anything changes it.

    A run that is asked to stop exports after its last checkpoint, which does not know of that bundle. Called as
    `name_of`.
    """
    for newest in log.manifests()[-1:] if len(state.table) else ():
        with suppress(CorruptArtefactError, FileNotFoundError):
            is_known(state, *log.manifest_and_ref(newest.version))


def is_known(state: TrainerState, newest: BundleManifest, ref: BundleRef) -> bool:
    """Say whether it is known what has changed since the newest bundle; nothing has in a state that gives its name."""
    if state.since.begins_at(ref):
        return True
    if newest.recipe is None or not newest.version.startswith(place_of(state)):
        # Mostly so, and no digest has to be made, which costs a look at all rows.
        return False
    if newest.version == version_of(name_of(state, at_all=True), newest.variant):
        state.since.note(ref, float(newest.recipe.settings["publish_bound"]))
    return state.since.begins_at(ref)


def note_published(draft: Complete | Delta, rows: BundleRows, ref: BundleRef) -> None:
    """Let the state of a draft know that it, or what was a snapshot of it, is published as the `rows` of a bundle."""
    state = draft.content.state
    state.since.ref = None  # until all is noted
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
    """Let the ranks of a state know what the rows of a bundle say of the items that have a table row."""
    for some in _pieces(rows.live):
        found = state.table.rows(ItemKeys(rows.keys[some]))
        known = found >= FIRST_ITEM
        state.since.items.take(TableRows(found[known]), rows.embeddings[some[known] + FIRST_ITEM_ROW])


def _pieces(rows: Rows) -> Iterator[Rows]:
    return (rows[first : first + _AT_ONCE] for first in range(0, len(rows), _AT_ONCE))
