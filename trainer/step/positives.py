"""The positive examples of a committed window, as keys."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from contracts import PADDING_KEY, ItemKeys, UserKeys, WindowLog, WindowManifest, columns
from trainer.ranks.workers import Workers
from trainer.step.spool import Spool

__all__ = ["Positives", "read_positives"]

_WANTED: Final = [columns.USER_KEY, columns.ITEM_KEY, columns.HISTORY, columns.WEIGHT, columns.LABEL]


class Positives(NamedTuple):
    """Positive examples: `users` and `items` (n,), `histories` (n, L) and `weights` (n,).

    `exposed` (n, E) were shown beside them and not chosen, padded on the right; E is 0 where nobody asks for them.
    """

    users: UserKeys
    items: ItemKeys
    histories: ItemKeys
    weights: npt.NDArray[np.float32]
    exposed: ItemKeys

    def each(self, made: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> "Positives":
        """Return what is made of each column."""
        return Positives(*map(made, self))  # type: ignore[arg-type]


def read_positives(
    log: WindowLog,
    manifest: WindowManifest,
    history_length: int,
    exposed: int = 0,
    *,
    workers: Workers | None = None,
) -> Positives:
    """Read a window's positives, shard by shard, with the newest `history_length` items of each history.

    With them come the first `exposed` items that each was shown with, none where the window was not joined with lists.

    All of it is on disk: in ``TMPDIR``, 8 B per item of a history. In memory is one shard's file as it is stored. Of
    several ranks each reads its part of the window's examples, one part after another.

    Raises
    ------
    CorruptArtefactError
        If a file is not what the manifest says.
    OSError
        If the disk is full.
    """
    wanted = [*_WANTED, columns.EXPOSED] if exposed and manifest.exposed_items else _WANTED
    length = min(history_length, manifest.history_length)
    users, items, histories, shown = (Spool(width, np.int64) for width in (1, 1, length, exposed))
    weights = Spool(1, np.float32)
    every = range(log.example_rows(manifest))
    for batch in log.example_batches(manifest, wanted, every[(workers or Workers()).part(len(every))]):
        found = batch.filter(pc.greater(batch[columns.LABEL], 0))
        for spool, name in ((users, columns.USER_KEY), (items, columns.ITEM_KEY), (weights, columns.WEIGHT)):
            spool.append(found[name].to_numpy())
        histories.append(_keys(found, columns.HISTORY)[:, -history_length:])
        shown.append(_shown(found, exposed))
    return Positives(
        UserKeys(users.finish()[:, 0]),
        ItemKeys(items.finish()[:, 0]),
        ItemKeys(histories.finish()),
        weights.finish()[:, 0],
        ItemKeys(shown.finish()),
    )


def _shown(batch: pa.RecordBatch, exposed: int) -> npt.NDArray[np.int64]:
    """Return the first items that each was shown with, (n, exposed)."""
    shown = np.full((len(batch), exposed), PADDING_KEY)
    if columns.EXPOSED in batch.schema.names:
        known = _keys(batch, columns.EXPOSED)[:, :exposed]
        shown[:, : known.shape[1]] = known
    return shown


def _keys(batch: pa.RecordBatch, column: str) -> npt.NDArray[np.int64]:
    """Return a column of lists of equal length as (n, length)."""
    lists = batch[column]
    keys: npt.NDArray[np.int64] = lists.flatten().to_numpy()
    return keys.reshape(len(batch), lists.type.list_size)
