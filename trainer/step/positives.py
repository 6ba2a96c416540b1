"""The positive examples of a committed window, as keys, shared out over all ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from weir.contracts import PADDING_KEY, ItemKeys, UserKeys, WindowLog, WindowManifest
from weir.contracts.base import columns
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.seeds import Purpose, generator
from weir.trainer.step.shuffling import Spool, blocks
from weir.trainer.towers.user_features import NO_FEATURES, Layout

__all__ = ["Positives", "SharedWindow", "read_positives"]


_COLUMNS: Final = [columns.USER_KEY, columns.ITEM_KEY, columns.HISTORY, columns.WEIGHT, columns.LABEL]


class Positives(NamedTuple):
    """Positive examples, as keys: `users`, `items` and `weights` (n,), and the users' items before, `histories` (n, L).

    `exposed` (n, E) are items shown beside the positive and not chosen, padded on the right; E is 0 unless requested.
    `features` (n, F) are encoded user features (`weir.trainer.towers.user_features`); F is 0 if the window has none.
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

    def each(self, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> "Positives":
        """Return the result of applying `change` to each column."""
        return Positives(*map(change, self))  # type: ignore[arg-type]


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

    The columns are spooled to disk in ``TMPDIR``, 8 B per item of a history; memory holds the file of one shard, as
    stored. With several ranks, each reads a contiguous part of the window's examples.

    Raises
    ------
    CorruptArtefactError
        If a file differs from the manifest.
    OSError
        If the disk is full.
    """
    layout = Layout.of(manifest.user_features, buckets)
    names = [*_COLUMNS, columns.EXPOSED] if exposed and manifest.exposed_items else _COLUMNS
    names = [*names, columns.USER_FEATURES] if layout.width else names
    length = min(history_length, manifest.history_length)
    users, items, histories, shown = (Spool(width, np.int64) for width in (1, 1, length, exposed))
    weights, features = Spool(1, np.float32), Spool(layout.width, np.int32)
    every = range(log.example_rows(manifest))
    for batch in log.example_batches(manifest, names, every[(workers or Workers()).part(len(every))]):
        chosen = batch.filter(pc.greater(batch[columns.LABEL], 0))
        for spool, name in ((users, columns.USER_KEY), (items, columns.ITEM_KEY), (weights, columns.WEIGHT)):
            spool.append(chosen[name].to_numpy())
        histories.append(_keys(chosen, columns.HISTORY)[:, -history_length:])
        shown.append(_shown(chosen, exposed))
        features.append(_encoded(chosen, layout, buckets))
    return Positives(
        UserKeys(users.finish()[:, 0]),
        ItemKeys(items.finish()[:, 0]),
        ItemKeys(histories.finish()),
        weights.finish()[:, 0],
        ItemKeys(shown.finish()),
        features.finish(),
    )


def _shown(batch: pa.RecordBatch, exposed: int) -> npt.NDArray[np.int64]:
    """Return the keys of the first items shown beside each example, (n, exposed), padded on the right."""
    shown = np.full((len(batch), exposed), PADDING_KEY)
    if columns.EXPOSED in batch.schema.names:
        keys = _keys(batch, columns.EXPOSED)[:, :exposed]
        shown[:, : keys.shape[1]] = keys
    return shown


def _encoded(batch: pa.RecordBatch, layout: Layout, buckets: int) -> npt.NDArray[np.int32]:
    """Return the encoded user features of a batch, (n, F)."""
    if not layout.width:
        return np.empty((len(batch), 0), np.int32)
    return layout.encoded(batch[columns.USER_FEATURES], buckets)


def _keys(batch: pa.RecordBatch, column: str) -> npt.NDArray[np.int64]:
    """Return a column of fixed-size lists as an array (n, length)."""
    lists = batch[column]
    keys: npt.NDArray[np.int64] = lists.flatten().to_numpy()
    return keys.reshape(len(batch), lists.type.list_size)


@dataclass(frozen=True, eq=False)
class SharedWindow:
    """The positives of a window, divided into contiguous parts in the order of ranks; `own` is this rank's part.

    `layout` describes the encoded user features. Methods that need other ranks' parts are collective.
    """

    own: Positives
    workers: Workers
    layout: Layout = NO_FEATURES

    @classmethod
    def read(cls, log: WindowLog, manifest: WindowManifest, config: TrainerConfig, workers: Workers) -> Self:
        """Read this rank's part of a window with the columns that the settings need; raises as `read_positives`."""
        length, exposed = config.tower.history_length, config.negatives.exposed
        buckets = config.features.buckets
        own = read_positives(log, manifest, length, exposed, buckets=buckets, workers=workers)
        return cls(own, workers, Layout.of(manifest.user_features, buckets))

    def __len__(self) -> int:
        return int(self.cuts[-1])

    @cached_property
    def cuts(self) -> npt.NDArray[np.int64]:
        """Start of each rank's part, and the end of the last one, (ranks + 1,)."""
        sizes = self.workers.gather(torch.tensor(len(self.own.items))).numpy()
        return np.concatenate([[0], np.cumsum(sizes)])

    @property
    def here(self) -> slice:
        """Slice of this rank's part among all positives."""
        return slice(*self.cuts[self.workers.rank : self.workers.rank + 2].tolist())

    def own_blocks(self) -> list[slice]:
        """Cut the own positives into blocks, equally many on all ranks: some may be empty; collective."""
        own, most = list(blocks(len(self.own.items))), int(np.diff(self.cuts).max())
        return own + [slice(0, 0)] * (len(list(blocks(most))) - len(own))

    def whole(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a column over all positives of the window (n,), given this rank's part of it; collective."""
        if self.workers.world_size == 1:
            return column
        values, at = np.empty(len(self), column.dtype), self.cuts[:-1].copy()
        for block in self.own_blocks():
            for rank, lines in enumerate(self.workers.collected(torch.from_numpy(np.ascontiguousarray(column[block])))):
                values[at[rank] : at[rank] + len(lines)] = lines.numpy()
                at[rank] += len(lines)
        return values

    def chosen(self, numbers: npt.NDArray[np.int64]) -> Positives:
        """Return the positives with these numbers (m,) in the window, in this order, on all ranks; collective."""
        owners = np.searchsorted(self.cuts, numbers, side="right") - 1
        mine = numbers[owners == self.workers.rank] - self.here.start
        place = np.argsort(np.argsort(owners, kind="stable"))
        return self.own.each(lambda column: self._collected(column[mine])[place])

    def sampled(self, seed: int, sequence: int, count: int) -> Positives:
        """Return up to `count` positives, drawn by seed and window `sequence`; collective.

        A smaller sample is a prefix of a larger one.
        """
        draw = generator(seed, Purpose.EVALUATION, sequence)
        return self.chosen(torch.randperm(len(self), generator=draw)[:count].numpy())

    def _collected(self, lines: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the lines of all ranks, in the order of ranks; collective."""
        return self.workers.collect(torch.from_numpy(np.ascontiguousarray(lines))).numpy()
