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
    """Positive examples with items as table rows.

    `positives` (n,) are the items, `histories` (n, L) the users' items before, `exposed` (n, E) the items shown beside
    the positive and not chosen. `user_counts` (n,) are the occurrences of each example's user in the stream if the loss
    needs them, else 1.
    """

    positives: Tensor
    histories: Tensor
    weights: Tensor
    user_counts: Tensor
    exposed: Tensor

    @classmethod
    def of(cls, found: Positives, table: ItemTable) -> "Examples":
        """Look up the table rows of all keys; an item without its own row gets the shared row."""
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
    """The examples of one step: B over all ranks, s in this rank's share (`Workers.share`). Items are table rows.

    Attributes
    ----------
    positives, real
        Item of each example over all ranks, and False for padding, (B,); (B, L) if every position of a history has a
        positive.
    weights, user_counts
        Over all ranks, (B,); see `Examples`.
    histories
        Users' items before, in this share, (s, L).
    known
        Further positives of each user, in this share, (s, K).
    exposed
        Items shown beside each positive and not chosen, in this share, (s, E); empty if every position has a positive.
    labels
        For losses that sample both labels: which (user, item) pairs, (B,), or combinations, (B, B), are positive.
    user_buckets, user_shares, user_numbers
        User features of this share (`FeatureInputs`), (s, V), (s, V) and (s, D).
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
        """User features of this rank's share; None if the batch has none."""
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
    """Columns over all positives of a window, (n,): item `rows`, `weights`, `user_counts` and history `lengths`."""

    rows: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    user_counts: npt.NDArray[np.floating[Any]]
    lengths: npt.NDArray[np.int32]


class _Lines(NamedTuple):
    """Examples of this rank on disk: lines of history, exposed items and user features, split at the columns `cuts`.

    `reader` decodes the features.
    """

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
    """Yield batches of the positives whose item has its own table row, in a random order, from batch `start` on.

    The last batch is padded to the full `size`, so that every rank has the same number of rows in every step. Histories
    and exposed items are sent to the ranks that train on them and spooled to disk there, 4 B per item in ``TMPDIR``.
    With `users`, batches have user counts; with `featured`, user features. The call is collective, the iteration not.

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
    """Return the columns over all positives of a window; collective."""
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
    """Send the line of each example to the rank that trains on it, and return this rank's lines, on disk.

    A line has the table rows of history and exposed items, and the encoded user features.
    """
    sides, places = (found.own.histories, found.own.exposed), dealt.places(len(found))[found.here]
    width = sum(part.shape[1] for part in (*sides, found.own.features))
    lines = Shuffled(dealt.lines, width, len(dealt.here))
    for block in found.own_blocks():
        rows = [table.rows(ItemKeys(keys[block])).astype(np.int32) for keys in sides]
        lines.append(dealt.exchanged(places[block], np.concatenate([*rows, found.own.features[block]], 1)))
    return lines


def _in_order(columns: _Columns, dealt: ShardedBatches, lines: _Lines, start: int) -> Iterator[Batch]:
    """Yield the batches from `start` on, with histories cut to the longest in the batch."""
    groups = lines.every.groups(start)
    for chosen in dealt.batches(start):
        # The last batch may have no rows for this rank.
        mine = np.split(next(groups, lines.every.none), lines.cuts, 1)
        used = max(int(columns.lengths[chosen].max()), 1)
        mine[0] = mine[0][:, lines.cuts[0] - used :]
        yield _padded(columns, chosen, mine, lines.reader, dealt)


def _nothing(lines: npt.NDArray[np.int32]) -> FeatureInputs:
    """Return empty inputs for models without user features."""
    none = torch.empty(len(lines), 0)
    return FeatureInputs(none.int(), none, none)


def _said(featured: FeaturedUsers, layout: Layout, lines: npt.NDArray[np.int32]) -> FeatureInputs:
    """Decode the user features in lines (s, F)."""
    return featured.inputs(UserLines(layout, lines))


def _padded(
    columns: _Columns, chosen: Ints, mine: list[npt.NDArray[np.int32]], reader: _Reader, dealt: ShardedBatches
) -> Batch:
    """Return the batch of the `chosen` examples, padded to full size; `mine` are this rank's lines, split at `cuts`."""
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
    """Yield the same batches, each built in advance by a thread; in pinned memory if `device` is a GPU.

    An error while a batch is built is raised when the batch is due. The thread ends with this generator.
    """

    def make() -> Batch | None:
        batch = next(batches, None)
        return batch.pinned() if batch is not None and device.type == "cuda" else batch

    with ThreadPoolExecutor(1, "batches") as thread:
        waiting = thread.submit(make)
        while (batch := waiting.result()) is not None:
            waiting = thread.submit(make)
            yield batch
