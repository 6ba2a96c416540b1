"""From a committed window to batches of table rows."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.nn import functional

from contracts import PADDING_KEY, ItemKeys, UserKeys, WindowLog, WindowManifest, columns
from trainer.items.table import FIRST_ITEM, PADDING, ItemTable
from trainer.log_q.users import Users

__all__ = ["Batch", "Examples", "Positives", "batches", "read_positives"]

_WANTED: Final = [columns.USER_KEY, columns.ITEM_KEY, columns.HISTORY, columns.WEIGHT, columns.LABEL]


class Positives(NamedTuple):
    """A window's positive examples as keys: `users` and `items` (n,), `histories` (n, L) and `weights` (n,).

    `exposed` (n, E) were shown beside them and not chosen, padded on the right; E is 0 where nobody asks for them.
    """

    users: UserKeys
    items: ItemKeys
    histories: ItemKeys
    weights: npt.NDArray[np.float32]
    exposed: ItemKeys


class Examples(NamedTuple):
    """The same as table rows: `positives` (n,), `histories` (n, L), `weights` and `user_counts` (n,), `exposed` (n, E).

    `user_counts` are the occurrences of each example's user in the stream, where a loss asks for them, else 1.
    """

    positives: Tensor
    histories: Tensor
    weights: Tensor
    user_counts: Tensor
    exposed: Tensor

    @classmethod
    def of(cls, found: Positives, table: ItemTable, users: Users | None = None) -> "Examples":
        """Look up all keys; an item without a row of its own becomes the shared row."""
        rows = torch.from_numpy(table.rows(found.items))
        histories = torch.from_numpy(table.rows(found.histories))
        weights = torch.from_numpy(found.weights.copy())
        counts = torch.ones_like(weights) if users is None else torch.from_numpy(users.counts(found.users))
        return cls(rows, histories, weights, counts, torch.from_numpy(table.rows(found.exposed)))

    def admitted(self) -> "Examples":
        """Return the examples whose positive has a row of its own; the others cannot be trained on."""
        kept = torch.nonzero(self.positives >= FIRST_ITEM)[:, 0]
        return self if len(kept) == len(self) else self.take(kept)

    def take(self, index: Tensor) -> "Examples":
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
        """Return the batch on a device."""
        return Batch(*(tensor.to(device) for tensor in self))


def read_positives(log: WindowLog, manifest: WindowManifest, history_length: int, exposed: int = 0) -> Positives:
    """Read a window's positives, shard by shard, with the newest `history_length` items of each history.

    With them come the first `exposed` items that each was shown with, none where the window was not joined with lists.

    Beside what it returns, twice for a moment, the memory is that of one shard's file.
    """
    wanted = [*_WANTED, columns.EXPOSED] if exposed and manifest.exposed_items else _WANTED
    parts = [
        _positives(log.examples(manifest, shard, wanted), history_length, exposed) for shard in log.shards(manifest)
    ]
    if not parts:
        return _positives(log.all_examples(manifest, wanted), history_length, exposed)
    users, items, histories, weights, shown = (np.concatenate(found) for found in zip(*parts, strict=True))
    return Positives(UserKeys(users), ItemKeys(items), ItemKeys(histories), weights, ItemKeys(shown))


def _positives(table: pa.Table, history_length: int, exposed: int) -> Positives:
    table = table.filter(pc.greater(table[columns.LABEL], 0)).combine_chunks()
    histories, shown = _keys(table, columns.HISTORY)[:, -history_length:], np.full((len(table), exposed), PADDING_KEY)
    if columns.EXPOSED in table.column_names:
        known = _keys(table, columns.EXPOSED)[:, :exposed]
        shown[:, : known.shape[1]] = known
    users, items, weights = (table[name].to_numpy() for name in (columns.USER_KEY, columns.ITEM_KEY, columns.WEIGHT))
    return Positives(users, items, ItemKeys(histories), weights, ItemKeys(shown))


def _keys(table: pa.Table, column: str) -> npt.NDArray[np.int64]:
    """Return a column of lists of equal length as (n, length)."""
    length = table.schema.field(column).type.list_size
    flat = pa.chunked_array(chunk.flatten() for chunk in table[column].chunks) if len(table) else None
    keys = np.empty(0, np.int64) if flat is None else flat.to_numpy()
    return keys.reshape(len(table), length)


def batches(examples: Examples, size: int, generator: torch.Generator, start: int = 0) -> Iterator[Batch]:
    """Yield examples in a seeded order, from batch `start` on.

    The last batch is padded to the full size, so that every rank has as many rows in every step.
    """
    order = torch.randperm(len(examples), generator=generator)
    for first in range(start * size, len(order), size):
        yield _padded(examples.take(order[first : first + size]), size)


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
