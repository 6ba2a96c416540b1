"""The positive examples of a committed window, as keys."""

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

    `exposed` (n, E) were shown beside them and not chosen, padded on the right; E is 0 where nobody asks for them.
    `features` (n, F) are lines of user features (`weir.trainer.users.lines`); F is 0 where the window has none.
    """

    users: UserKeys
    items: ItemKeys
    histories: ItemKeys
    weights: npt.NDArray[np.float32]
    exposed: ItemKeys
    features: npt.NDArray[np.int32]

    @classmethod
    def plain(cls, users: UserKeys, items: ItemKeys, histories: ItemKeys) -> "Positives":
        """Return examples of weight 1, of which nothing else is known."""
        shown, said = np.empty((len(items), 0), np.int64), np.empty((len(items), 0), np.int32)
        return cls(users, items, histories, np.ones(len(items), np.float32), ItemKeys(shown), said)

    def each(self, made: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> "Positives":
        """Return what is made of each column."""
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

    With them come the first `exposed` items that each was shown with, none where the window was not joined with lists,
    and user features, whose values are hashed to numbers below `buckets`; 0: nobody asks for them.

    All of it is on disk: in ``TMPDIR``, 8 B per item of a history. In memory is one shard's file as it is stored. Of
    several ranks each reads its part of the window's examples, one part after another.

    Raises
    ------
    CorruptArtefactError
        If a file is not what the manifest says.
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
    """Return the first items that each was shown with, (n, exposed)."""
    shown = np.full((len(batch), exposed), PADDING_KEY)
    if columns.EXPOSED in batch.schema.names:
        known = _keys(batch, columns.EXPOSED)[:, :exposed]
        shown[:, : known.shape[1]] = known
    return shown


def _said(batch: pa.RecordBatch, layout: Layout, buckets: int) -> npt.NDArray[np.int32]:
    """Return the lines (n, F) of user features."""
    if not layout.width:
        return np.empty((len(batch), 0), np.int32)
    return layout.encoded(batch[columns.USER_FEATURES], buckets)


def _keys(batch: pa.RecordBatch, column: str) -> npt.NDArray[np.int64]:
    """Return a column of lists of equal length as (n, length)."""
    lists = batch[column]
    keys: npt.NDArray[np.int64] = lists.flatten().to_numpy()
    return keys.reshape(len(batch), lists.type.list_size)
