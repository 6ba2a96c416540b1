"""Batches of table rows, from the positives of a window."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from weir.contracts import PADDING_KEY, ItemKeys
from weir.trainer.items.table import FIRST_ITEM, PADDING, ItemTable
from weir.trainer.log_q.row_counts import Users
from weir.trainer.step.positives import Positives, SharedWindow
from weir.trainer.step.shuffling import Ints, ShardedBatches, Shuffled
from weir.trainer.towers.features import FeatureInputs
from weir.trainer.towers.user_features import FeaturedUsers, Layout, UserLines

__all__ = ["Batch", "Examples", "ahead", "batches"]


_USER_FIELDS: Final = ("user_buckets", "user_shares", "user_numbers")

_Reader = Callable[[npt.NDArray[np.int32]], FeatureInputs]


class Examples(NamedTuple):
    """Positives by table row: `positives` (n,), `histories` (n, L), `weights` and `user_counts` (n,), `exposed` (n, E).

    `user_counts` are the occurrences of each example's user in the stream if a loss needs them, else 1.
    """

    positives: Tensor
    histories: Tensor
    weights: Tensor
    user_counts: Tensor
    exposed: Tensor

    @classmethod
    def of(cls, found: Positives, table: ItemTable) -> "Examples":
        """Look up all keys; an item without its own row gets the shared row."""
        rows, histories, exposed = (
            torch.from_numpy(table.rows(keys)) for keys in (found.items, found.histories, found.exposed)
        )
        weights = torch.from_numpy(found.weights)
        return cls(rows, histories, weights, torch.ones_like(weights), exposed)

    def take(self, index: Tensor | slice) -> "Examples":
        """Return the examples at `index`."""
        return Examples(*(column[index] for column in self))

    def __len__(self) -> int:
        return len(self.positives)


class Batch(NamedTuple):
    """The B histories of one step over all ranks and their positives; `real` is False for padding.

    Over all ranks: `positives` and `real`, (B,), or (B, L) if every position of a history has a positive, and
    `weights` and `user_counts`, (B,). This rank's share (`Workers.share`) only: the `histories` (s, L), `known` (s, K),
    further positives of each row's user, and `exposed` (s, E), items shown beside each positive and not chosen; empty
    if every position has a positive. Also for this share, user features (`FeatureInputs`): `user_buckets` and
    `user_shares` (s, V), and `user_numbers` (s, D). `labels` are True for positive pairs, (B,), or combinations, (B,
    B), for losses that sample both labels.
    """

    positives: Tensor
    histories: Tensor
    weights: Tensor
    real: Tensor
    user_counts: Tensor
    known: Tensor
    labels: Tensor = torch.empty(0, dtype=torch.bool)
    exposed: Tensor = torch.empty(0, 0, dtype=torch.int64)
    user_buckets: Tensor = torch.empty(0, 0, dtype=torch.int32)
    user_shares: Tensor = torch.empty(0, 0)
    user_numbers: Tensor = torch.empty(0, 0)

    @property
    def features(self) -> FeatureInputs | None:
        """User features of the share; None if there are none."""
        if not self.user_buckets.numel():
            return None
        return FeatureInputs(self.user_buckets, self.user_shares, self.user_numbers)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device; from pinned memory the copy is asynchronous."""
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))

    def pinned(self) -> "Batch":
        """Return the batch in pinned memory."""
        return Batch(*(tensor.pin_memory() for tensor in self))


class _Columns(NamedTuple):
    """Columns of all n positives of a window: `rows`, `weights`, `user_counts` and history `lengths`, (n,)."""

    rows: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    user_counts: npt.NDArray[np.floating[Any]]
    lengths: npt.NDArray[np.int32]


class _Lines(NamedTuple):
    """Lines of histories, exposed items and user features, split at `cuts`; `reader` decodes the features."""

    every: Shuffled
    cuts: tuple[int, int]
    reader: _Reader


def batches(
    found: SharedWindow,
    table: ItemTable,
    size: int,
    generator: torch.Generator,
    *,
    users: Users | None = None,
    featured: FeaturedUsers | None = None,
    start: int = 0,
) -> Iterator[Batch]:
    """Yield batches of the positives whose item has its own row, in a seeded order, from batch `start` on.

    The last batch is padded to the full size, so that every rank has equally many rows in every step. Histories and
    exposed items are sent to the ranks that train on them, which spool them to disk: 4 B per item in ``TMPDIR``.

    With `featured`, batches contain user features. The call is collective; the iteration is not.

    Raises
    ------
    OSError
        If the disk is full.
    """
    columns = _columns(found, table, users)
    admitted = np.flatnonzero(columns.rows >= FIRST_ITEM)
    order = admitted[torch.randperm(len(admitted), generator=generator).numpy()]
    dealt = ShardedBatches(order, size, found.workers)
    reader = partial(_said, featured, found.layout) if featured is not None and found.layout.width else _nothing
    length, shown = (keys.shape[1] for keys in (found.own.histories, found.own.exposed))
    lines = _Lines(_dealt(found, table, dealt), (length, length + shown), reader)
    return _in_order(columns, dealt, lines, start)


def _columns(found: SharedWindow, table: ItemTable, users: Users | None) -> _Columns:
    own = found.own
    lengths = np.zeros(len(own.items), np.int32)
    for block in found.own_blocks():
        lengths[block] = (own.histories[block] != PADDING_KEY).sum(1)
    ones = np.broadcast_to(np.float32(1), len(found))
    return _Columns(
        found.whole(table.rows(own.items).astype(np.int32)),
        found.whole(np.array(own.weights)),  # a copy: mapped pages are read in random order
        ones if users is None else found.whole(users.counts(own.users)),
        found.whole(lengths),
    )


def _dealt(found: SharedWindow, table: ItemTable, dealt: ShardedBatches) -> Shuffled:
    """Look up the rows of histories and exposed items, and send each line to the rank that trains on it.

    A line also carries the encoded user features, unchanged.
    """
    sides, places = (found.own.histories, found.own.exposed), dealt.places(len(found))[found.here]
    width = sum(part.shape[1] for part in (*sides, found.own.features))
    lines = Shuffled(dealt.lines, width, len(dealt.here))
    for block in found.own_blocks():
        rows = [table.rows(ItemKeys(keys[block])).astype(np.int32) for keys in sides]
        lines.append(dealt.exchanged(places[block], np.concatenate([*rows, found.own.features[block]], 1)))
    return lines


def _in_order(columns: _Columns, dealt: ShardedBatches, lines: _Lines, start: int) -> Iterator[Batch]:
    groups = lines.every.groups(start)
    for chosen in dealt.batches(start):
        # The last batch may have no rows for this rank.
        mine = np.split(next(groups, lines.every.none), lines.cuts, 1)
        used = max(int(columns.lengths[chosen].max()), 1)
        mine[0] = mine[0][:, lines.cuts[0] - used :]
        yield _padded(columns, chosen, mine, lines.reader, dealt)


def _nothing(lines: npt.NDArray[np.int32]) -> FeatureInputs:
    none = torch.empty(len(lines), 0)
    return FeatureInputs(none.int(), none, none)


def _said(featured: FeaturedUsers, layout: Layout, lines: npt.NDArray[np.int32]) -> FeatureInputs:
    """Return the inputs of the user features in lines (s, F)."""
    return featured.inputs(UserLines(layout, lines))


def _padded(
    columns: _Columns, chosen: Ints, mine: list[npt.NDArray[np.int32]], reader: _Reader, dealt: ShardedBatches
) -> Batch:
    missing, absent = dealt.size - len(chosen), len(dealt.here) - len(mine[0])
    rows, weights, counts, _ = (torch.from_numpy(column[chosen]) for column in columns)
    # -1, all bits set, encodes no bucket and no number.
    features = np.pad(mine[2], ((0, absent), (0, 0)), constant_values=-1) if absent else mine[2]
    histories, exposed = (torch.from_numpy(part).long() for part in mine[:2])
    histories = functional.pad(histories, (0, 0, 0, absent), value=PADDING)
    return Batch(
        functional.pad(rows.long(), (0, missing), value=PADDING),
        histories,
        functional.pad(weights, (0, missing)),
        torch.arange(dealt.size) < len(chosen),
        functional.pad(counts, (0, missing), value=1.0),
        histories,
        exposed=functional.pad(exposed, (0, 0, 0, absent), value=PADDING),
        **dict(zip(_USER_FIELDS, reader(features), strict=True)),
    )


def ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the items of `batches`, each built by a thread in advance; for a GPU in pinned memory.

    An error in building a batch is raised in its place. The thread ends with this generator.
    """

    def make() -> Batch | None:
        batch = next(batches, None)
        return batch.pinned() if batch is not None and device.type == "cuda" else batch

    with ThreadPoolExecutor(1, "batches") as thread:
        waiting = thread.submit(make)
        while (batch := waiting.result()) is not None:
            waiting = thread.submit(make)
            yield batch
