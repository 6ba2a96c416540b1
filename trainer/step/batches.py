"""From the positives of a window to batches of table rows."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from contracts import ItemKeys
from trainer.items.table import FIRST_ITEM, PADDING, ItemTable
from trainer.log_q.users import Users
from trainer.step.positives import Positives
from trainer.step.shuffled import Ints, Shuffled
from trainer.step.spool import blocks

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

    `positives` and `real` are (B,), or (B, L) where every position of a history has a positive; `histories` (B, L),
    `weights` and `user_counts` (B,). `known` (B, K) are further positives of each row's user. `labels` tell which of
    the pairs (B,), or of all combinations (B, B), are positive, where a loss samples both kinds. `exposed` (B, E) were
    shown beside each positive and not chosen; there are none where every position has a positive.
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


def batches(
    found: Positives,
    table: ItemTable,
    size: int,
    generator: torch.Generator,
    *,
    users: Users | None = None,
    start: int = 0,
) -> Iterator[Batch]:
    """Return the positives whose item has a row of its own, in a seeded order, from batch `start` on.

    The last batch is padded to the full size, so that every rank has as many rows in every step. Histories and exposed
    items wait on disk: 4 B per item in ``TMPDIR``.

    Raises
    ------
    OSError
        If the disk is full.
    """
    rows = table.rows(found.items)
    admitted = np.flatnonzero(rows >= FIRST_ITEM)
    order = admitted[torch.randperm(len(admitted), generator=generator).numpy()]
    ones = np.broadcast_to(np.float32(1), len(rows))
    # A copy: it is read here and there.
    columns = rows, np.array(found.weights), ones if users is None else users.counts(found.users)
    lines, length = _shuffled(found, table, order, size), found.histories.shape[1]
    parts = _in_order(columns, lines, length, start * size)
    return (_padded(part.take(slice(at, at + size)), size) for part in parts for at in range(0, len(part), size))


def _shuffled(found: Positives, table: ItemTable, order: Ints, size: int) -> Shuffled:
    """Look up the rows of histories and exposed items, side by side."""
    sides = found.histories, found.exposed
    lines = Shuffled(order, len(found.items), sum(keys.shape[1] for keys in sides), size)
    for block in blocks(len(found.items)):
        lines.append(np.concatenate([table.rows(ItemKeys(keys[block])) for keys in sides], 1))
    return lines


def _in_order(columns: tuple[npt.NDArray[Any], ...], lines: Shuffled, length: int, start: int) -> Iterator[Examples]:
    """Yield examples in their order, as many at a time as `lines` has in a part."""
    for chosen, part in lines.parts(start):
        positives, weights, counts = (torch.from_numpy(column[chosen]) for column in columns)
        histories, exposed = torch.from_numpy(part).long().tensor_split([length], 1)
        yield Examples(positives, histories, weights, counts, exposed)


def _padded(examples: Examples, size: int) -> Batch:
    missing = size - len(examples)
    real = torch.arange(size) < len(examples)
    positives = functional.pad(examples.positives, (0, missing), value=PADDING)
    histories = functional.pad(_trimmed(examples.histories), (0, 0, 0, missing), value=PADDING)
    weights = functional.pad(examples.weights, (0, missing))
    counts = functional.pad(examples.user_counts, (0, missing), value=1.0)
    exposed = functional.pad(examples.exposed, (0, 0, 0, missing), value=PADDING)
    return Batch(positives, histories, weights, real, counts, histories, exposed=exposed)


def _trimmed(histories: Tensor) -> Tensor:
    """Cut the columns off that are padding in every row of the batch; one is left."""
    used = int((histories != PADDING).any(0).sum())
    return histories[:, -max(used, 1) :]
