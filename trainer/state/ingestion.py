"""Ingestion of a window into the state before training: admission, eviction, frequencies and features."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from weir.contracts import ItemKeys, UserKeys, WindowManifest
from weir.trainer.items.rows import FIRST_ITEM, TableRows, no_rows
from weir.trainer.items.table import RowChanges
from weir.trainer.losses import ItemCache
from weir.trainer.state.trainer_state import TrainerState, start_features, start_user_features
from weir.trainer.step.seeds import Purpose, generator

__all__ = ["ingest_window"]


def ingest_window(
    state: TrainerState,
    manifest: WindowManifest,
    sketch: bytes,
    items: tuple[ItemKeys, npt.NDArray[np.object_], npt.NDArray[np.int64]],
    *,
    users: tuple[bytes, UserKeys] | None = None,
    features: pa.Table | None = None,
) -> RowChanges:
    """Add a window's items and frequencies to a state, before any step on the window; collective.

    Table rows change owners only here. Returns the admitted and the evicted rows.

    Parameters
    ----------
    state
        The state, the same on all ranks.
    manifest
        The window's manifest.
    sketch
        The window's serialised item sketch.
    items
        Keys, ids and counts (each (n,)) of the window's ``items.parquet``.
    users
        The serialised sketch of users and the users' keys; required if the loss needs user counts.
    features
        The newest features of the same items, if the window has any.
    """
    keys, ids, occurrences = items
    state.frequencies.add(sketch, manifest.max_event_ms)
    if state.users is not None and users is not None:
        state.users.add(*users, manifest.max_event_ms)
    # A late pane counts little in the decayed view, but its occurrences are certain.
    estimates = state.frequencies.estimates(keys)
    seen = np.maximum(state.frequencies.agreed(estimates), occurrences) >= state.config.admit_after
    changes = _change_rows(state, manifest, keys, ids, seen)
    rows = state.table.rows_alike(keys)
    has_row = rows >= FIRST_ITEM
    changed = state.counts.follow(TableRows(rows[has_row]), estimates[has_row], changes)
    state.embeddings.touch(torch.from_numpy(changed))
    _renew_cache(state, changes)
    _ingest_features(state, manifest, rows, features, changes)
    _ingest_user_features(state, manifest)
    return changes


def _change_rows(
    state: TrainerState,
    manifest: WindowManifest,
    keys: ItemKeys,
    ids: npt.NDArray[np.object_],
    seen: npt.NDArray[np.bool_],
) -> RowChanges:
    """Evict items that have not occurred for the time to live, and admit items that are `seen` (n,) often enough."""
    table, config, now = state.table, state.config, manifest.max_event_ms
    table.touch(keys, now)
    ttl = config.item_ttl_seconds
    evicted = no_rows() if ttl is None else table.expire(round(state.frequencies.time_ms - 1000 * ttl))
    admitted = table.admit(ItemKeys(keys[seen]), ids[seen], now)
    state.embeddings.grow(table.capacity)
    draw = generator(config.seed, Purpose.ROWS, manifest.sequence)
    state.embeddings.initialise(admitted, draw, config.optimizer.embedding_scale)
    return RowChanges(admitted, evicted)


def _ingest_features(
    state: TrainerState, manifest: WindowManifest, rows: TableRows, features: pa.Table | None, changes: RowChanges
) -> None:
    """Set the features of the items of `rows`; item features start with the first window that has any."""
    if features is not None and state.featured is None and state.config.features.buckets:
        start_features(state)
    if state.featured is not None:
        state.featured.ingest_window(manifest, rows, features, changes, state.table.capacity)


def _ingest_user_features(state: TrainerState, manifest: WindowManifest) -> None:
    """Register a window's user features; user features start with the first window that has any."""
    if not (manifest.user_features.names.all and state.config.features.buckets):
        return
    (state.featured_users or start_user_features(state)).take_in(manifest.user_features)


def _renew_cache(state: TrainerState, changes: RowChanges) -> None:
    """Update the item cache for admitted and evicted items; without items there is no cache."""
    if not state.config.loss.cache:
        return
    if not len(state.table):
        state.cache = None
        return
    if state.cache is None:
        draw = generator(state.config.seed, Purpose.CACHE)
        state.cache = ItemCache(state.config.loss.cache, state.table.capacity, draw, ids=state.live.cpu())
        return
    state.cache.add(state.table.capacity - len(state.cache.counts), in_use=False)
    state.cache.restore(torch.from_numpy(changes.admitted))
    # A row both evicted and admitted in this window has a new item: `restore` resets it, and it must not be removed.
    state.cache.remove(torch.from_numpy(np.setdiff1d(changes.evicted, changes.admitted)))
