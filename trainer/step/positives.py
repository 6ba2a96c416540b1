"""Read the positive examples of a committed window, as keys."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts import PADDING_KEY, ItemKeys, UserKeys, WindowLog, WindowManifest, columns
from weir.trainer.ranks.workers import Workers
from weir.trainer.step.spool import Spool
from weir.trainer.users.lines import Layout

__all__ = ["Positives", "read_positives"]

_WANTED: Final = [columns.USER_KEY, columns.ITEM_KEY, columns.HISTORY, columns.WEIGHT, columns.LABEL]


class Positives(NamedTuple):
    """Positive examples: `users` and `items` (n,), `histories` (n, L) and `weights` (n,).

    `exposed` (n, E) were shown beside them and not chosen, padded on the right; E is 0 unless requested.
    `features` (n, F) are encoded user features (`weir.trainer.users.lines`); F is 0 if the window has none.
    """

    users: UserKeys
    items: ItemKeys
    histories: ItemKeys
    weights: npt.NDArray[np.float32]
    exposed: ItemKeys
    features: npt.NDArray[np.int32]

    @classmethod
    def plain(cls, users: UserKeys, items: ItemKeys, histories: ItemKeys) -> "Positives":
        """Return examples of weight 1, without exposed items and features."""
        shown, said = np.empty((len(items), 0), np.int64), np.empty((len(items), 0), np.int32)
        return cls(users, items, histories, np.ones(len(items), np.float32), ItemKeys(shown), said)

    def each(self, made: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> "Positives":
        """Apply `made` to each column."""
        return Positives(*map(made, self))  # type: ignore[arg-type]


def read_positives(
    log: WindowLog,
    manifest: WindowManifest,
    history_length: int,
    exposed: int = 0,
    *,
    buckets: int = 0,
    workers: Workers | None = None,
) -> Positives:
    """Read a window's positives, shard by shard, with the newest `history_length` items of each history.

    Also reads the first `exposed` items shown beside each positive (none if the window was not joined with lists),
    and user features, whose values are hashed to `buckets` buckets; 0 skips them.

    All of it is spooled to disk: in ``TMPDIR``, 8 B per item of a history. Memory holds one shard's file as it is
    stored. With several ranks, each reads its contiguous part of the window's examples.

    Raises
    ------
    CorruptArtefactError
        If a file differs from the manifest.
    OSError
        If the disk is full.
    """
    layout = Layout.of(manifest.user_features, buckets)
    wanted = [*_WANTED, columns.EXPOSED] if exposed and manifest.exposed_items else _WANTED
    wanted = [*wanted, columns.USER_FEATURES] if layout.width else wanted
    length = min(history_length, manifest.history_length)
    users, items, histories, shown = (Spool(width, np.int64) for width in (1, 1, length, exposed))
    weights, features = Spool(1, np.float32), Spool(layout.width, np.int32)
    every = range(log.example_rows(manifest))
    for batch in log.example_batches(manifest, wanted, every[(workers or Workers()).part(len(every))]):
        found = batch.filter(pc.greater(batch[columns.LABEL], 0))
        for spool, name in ((users, columns.USER_KEY), (items, columns.ITEM_KEY), (weights, columns.WEIGHT)):
            spool.append(found[name].to_numpy())
        histories.append(_keys(found, columns.HISTORY)[:, -history_length:])
        shown.append(_shown(found, exposed))
        features.append(_said(found, layout, buckets))
    return Positives(
        UserKeys(users.finish()[:, 0]),
        ItemKeys(items.finish()[:, 0]),
        ItemKeys(histories.finish()),
        weights.finish()[:, 0],
        ItemKeys(shown.finish()),
        features.finish(),
    )


def _shown(batch: pa.RecordBatch, exposed: int) -> npt.NDArray[np.int64]:
    """Return the first items shown beside each example, (n, exposed)."""
    shown = np.full((len(batch), exposed), PADDING_KEY)
    if columns.EXPOSED in batch.schema.names:
        known = _keys(batch, columns.EXPOSED)[:, :exposed]
        shown[:, : known.shape[1]] = known
    return shown


def _said(batch: pa.RecordBatch, layout: Layout, buckets: int) -> npt.NDArray[np.int32]:
    """Return the encoded user features (n, F)."""
    if not layout.width:
        return np.empty((len(batch), 0), np.int32)
    return layout.encoded(batch[columns.USER_FEATURES], buckets)


def _keys(batch: pa.RecordBatch, column: str) -> npt.NDArray[np.int64]:
    """Return a column of fixed-size lists as an array (n, length)."""
    lists = batch[column]
    keys: npt.NDArray[np.int64] = lists.flatten().to_numpy()
    return keys.reshape(len(batch), lists.type.list_size)
