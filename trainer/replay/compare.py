"""Compare a stored bundle with a state, row by row, and the models."""

import numpy as np
import numpy.typing as npt

from weir.contracts import BundleFile, BundleLog, BundleManifest
from weir.contracts.item_rows import FIRST_ITEM_ROW
from weir.contracts.variants import version_of
from weir.trainer.export.content import Content
from weir.trainer.export.scorer import scorer_to_onnx
from weir.trainer.export.servable import Servable
from weir.trainer.export.tower import tower_to_onnx
from weir.trainer.items.rows import SHARED
from weir.trainer.state.trainer_state import TrainerState

__all__ = ["differences"]

Floats = npt.NDArray[np.float32]


def differences(log: BundleLog, manifest: BundleManifest, state: TrainerState) -> list[str]:
    """Return a sentence for each part of a bundle, including its chain, that the state does not reproduce bit for bit.

    Raises
    ------
    CorruptArtefactError
        If the stored bundle is damaged.
    """
    content = Content.of(state)
    found = _of_items(Servable.open(log, manifest), content)
    if log.read(manifest, BundleFile.TOWER) != tower_to_onnx(state.tower, state.config.tower):
        found.append("the user tower differs")
    if state.second is not None and log.read(manifest, BundleFile.SCORER) != scorer_to_onnx(state.second.scorer):
        found.append("the scorer differs")
    users = state.featured_users
    if users is not None and log.read(manifest, BundleFile.USER_FEATURES) != users.weights.encode():
        found.append("what user features say differs")
    if (version := version_of(content.version, manifest.variant)) != manifest.version:
        found.append(f"the state differs: its bundle would be named {version}")
    return found


def _of_items(stored: Servable, content: Content) -> list[str]:
    rows = stored.rows.live
    keys = stored.rows.keys[rows]
    places = content.state.table.rows(keys)
    here = places != SHARED
    found = _counted(int((~here).sum()), "items are not in the table any more")
    found += _counted(len(content.rows) - int(here.sum()), "items of the table are not stored")
    own = np.searchsorted(content.rows, places[here])
    special = np.arange(FIRST_ITEM_ROW)
    embeddings = (
        np.concatenate([stored.rows.embeddings[special], stored.rows.embeddings[rows[here] + FIRST_ITEM_ROW]]),
        np.concatenate([content.embeddings[special], content.embeddings[own + FIRST_ITEM_ROW]]),
    )
    found += _unequal("embeddings", *embeddings)
    return found + _unequal("vectors", stored.rows.vectors[rows[here]], content.vectors[own])


def _counted(number: int, what: str) -> list[str]:
    return [f"{number:,} {what}"] if number else []


def _unequal(name: str, stored: Floats, made: Floats) -> list[str]:
    """Return the number of rows (n, d) that differ in any bit, and the largest distance, as a sentence."""
    other = (stored.view(np.uint32) != made.view(np.uint32)).any(axis=1)
    if not other.any():
        return []
    off = float(np.linalg.norm(stored[other] - made[other], axis=1).max())
    return [f"{int(other.sum()):,} of {len(stored):,} {name} differ, by {off:.3g} at most"]
