"""From the positives of a window to batches of table rows."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from contracts import PADDING_KEY, ItemKeys
from trainer.items.table import FIRST_ITEM, PADDING, ItemTable
from trainer.log_q.users import Users
from trainer.step.dealt import Dealt
from trainer.step.positives import Positives
from trainer.step.shared_window import SharedWindow
from trainer.step.shuffled import Ints, Shuffled

__all__ = ["Batch", "Examples", "batches"]


class Examples(NamedTuple):
    """Positives by table row: `positives` (n,), `histories` (n, L), `weights` and `user_counts` (n,), `exposed` (n, E).

    `user_counts` are the occurrences of each example's user in the stream, where a loss asks for them, else 1.
    """

    positives: Tensor
    histories: Tensor
    weights: Tensor
    user_counts: Tensor
    exposed: Tensor

    @classmethod
    def of(cls, found: Positives, table: ItemTable) -> "Examples":
        """Look up all keys; an item without a row of its own becomes the shared row."""
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
    """The B histories of one step over all ranks and what came after them; where `real` is False is padding.

    Of all ranks are `positives` and `real`, (B,), or (B, L) where every position of a history has a positive, and
    `weights` and `user_counts`, (B,). Of this rank's share (`Workers.share`) are the `histories` (s, L), the `known`
    (s, K), further positives of each row's user, and the `exposed` (s, E), shown beside each positive and not chosen;
    there are none where every position has a positive. `labels` tell which of the pairs (B,), or of all combinations
    (B, B), are positive, where a loss samples both kinds.
    """

    positives: Tensor
    histories: Tensor
    weights: Tensor
    real: Tensor
    user_counts: Tensor
    known: Tensor
    labels: Tensor = torch.empty(0, dtype=torch.bool)
    exposed: Tensor = torch.empty(0, 0, dtype=torch.int64)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device; a pinned one arrives while this process goes on."""
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))

    def pinned(self) -> "Batch":
        """Return the batch in memory that a GPU reads by itself."""
        return Batch(*(tensor.pin_memory() for tensor in self))


class _Columns(NamedTuple):
    """Of all n positives of a window: `rows`, `weights`, `user_counts` and the `lengths` of their histories, (n,)."""

    rows: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    user_counts: npt.NDArray[np.floating[Any]]
    lengths: npt.NDArray[np.int32]


def batches(
    found: SharedWindow,
    table: ItemTable,
    size: int,
    generator: torch.Generator,
    *,
    users: Users | None = None,
    start: int = 0,
) -> Iterator[Batch]:
    """Return the positives whose item has a row of its own, in a seeded order, from batch `start` on.

    The last batch is padded to the full size, so that every rank has as many rows in every step. Histories and exposed
    items go to the ranks that train on them, and wait there on disk: 4 B per item in ``TMPDIR``.

    All ranks call it together; the batches themselves are made without the others.

    Raises
    ------
    OSError
        If the disk is full.
    """
    columns = _columns(found, table, users)
    admitted = np.flatnonzero(columns.rows >= FIRST_ITEM)
    order = admitted[torch.randperm(len(admitted), generator=generator).numpy()]
    dealt = Dealt(order, size, found.workers)
    lines = _dealt(found, table, dealt)
    return _in_order(columns, dealt, lines, found.own.histories.shape[1], start)


def _columns(found: SharedWindow, table: ItemTable, users: Users | None) -> _Columns:
    own = found.own
    lengths = np.zeros(len(own.items), np.int32)
    for block in found.own_blocks():
        lengths[block] = (own.histories[block] != PADDING_KEY).sum(1)
    ones = np.broadcast_to(np.float32(1), len(found))
    return _Columns(
        found.whole(table.rows(own.items).astype(np.int32)),
        found.whole(np.array(own.weights)),  # a copy: it is read here and there
        ones if users is None else found.whole(users.counts(own.users)),
        found.whole(lengths),
    )


def _dealt(found: SharedWindow, table: ItemTable, dealt: Dealt) -> Shuffled:
    """Look up the rows of histories and exposed items, side by side, and give each line to the rank that wants it."""
    sides, places = (found.own.histories, found.own.exposed), dealt.places(len(found))[found.here]
    lines = Shuffled(dealt.lines, sum(keys.shape[1] for keys in sides), len(dealt.here))
    for block in found.own_blocks():
        rows = np.concatenate([table.rows(ItemKeys(keys[block])) for keys in sides], 1).astype(np.int32)
        lines.append(dealt.exchanged(places[block], rows))
    return lines


def _in_order(columns: _Columns, dealt: Dealt, lines: Shuffled, length: int, start: int) -> Iterator[Batch]:
    groups = lines.groups(start)
    for chosen in dealt.batches(start):
        # The last batch may have nothing for this rank.
        mine = torch.from_numpy(next(groups, lines.none)).long()
        used = max(int(columns.lengths[chosen].max()), 1)
        histories, exposed = mine.tensor_split([length], 1)
        yield _padded(columns, chosen, histories[:, length - used :], exposed, dealt)


def _padded(columns: _Columns, chosen: Ints, histories: Tensor, exposed: Tensor, dealt: Dealt) -> Batch:
    missing, absent = dealt.size - len(chosen), len(dealt.here) - len(histories)
    rows, weights, counts, _ = (torch.from_numpy(column[chosen]) for column in columns)
    histories = functional.pad(histories, (0, 0, 0, absent), value=PADDING)
    return Batch(
        functional.pad(rows.long(), (0, missing), value=PADDING),
        histories,
        functional.pad(weights, (0, missing)),
        torch.arange(dealt.size) < len(chosen),
        functional.pad(counts, (0, missing), value=1.0),
        histories,
        exposed=functional.pad(exposed, (0, 0, 0, absent), value=PADDING),
    )
