"""From a committed window to batches of table rows."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from contracts import Keys, WindowLog, WindowManifest, columns
from trainer.item_table import FIRST_ITEM, PADDING, ItemTable

__all__ = ["Batch", "Examples", "Positives", "batches", "read_positives"]


class Positives(NamedTuple):
    """A window's positive examples as keys: `items` (n,), `histories` (n, L) and `weights` (n,)."""

    items: Keys
    histories: Keys
    weights: npt.NDArray[np.float32]


class Examples(NamedTuple):
    """The same as table rows: `positives` (n,), `histories` (n, L) and `weights` (n,)."""

    positives: Tensor
    histories: Tensor
    weights: Tensor

    @classmethod
    def of(cls, found: Positives, table: ItemTable) -> "Examples":
        """Look up all keys; an item without a row of its own becomes the shared row."""
        rows = torch.from_numpy(table.rows(found.items))
        return cls(rows, torch.from_numpy(table.rows(found.histories)), torch.from_numpy(found.weights.copy()))

    def admitted(self) -> "Examples":
        """Return the examples whose positive has a row of its own; the others cannot be learnt from."""
        return self.take(torch.nonzero(self.positives >= FIRST_ITEM)[:, 0])

    def take(self, index: Tensor) -> "Examples":
        """Return the examples at `index`."""
        return Examples(self.positives[index], self.histories[index], self.weights[index])

    def __len__(self) -> int:
        return len(self.positives)


class Batch(NamedTuple):
    """The B rows of one step over all ranks; where `real` is False a row is padding and counts for nothing."""

    positives: Tensor
    histories: Tensor
    weights: Tensor
    real: Tensor

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        return Batch(*(tensor.to(device) for tensor in self))


def read_positives(log: WindowLog, manifest: WindowManifest, history_length: int) -> Positives:
    """Read a window's positives, shard by shard, with the newest `history_length` items of each history."""
    wanted = [columns.ITEM_KEY, columns.HISTORY, columns.WEIGHT, columns.LABEL]
    table = log.all_examples(manifest, wanted)
    table = table.filter(pc.greater(table[columns.LABEL], 0)).combine_chunks()
    flat = pa.chunked_array(chunk.flatten() for chunk in table[columns.HISTORY].chunks) if len(table) else None
    keys = np.empty(0, np.int64) if flat is None else flat.to_numpy()
    histories = keys.reshape(len(table), manifest.history_length)[:, -history_length:]
    return Positives(table[columns.ITEM_KEY].to_numpy(), histories, table[columns.WEIGHT].to_numpy())


def batches(examples: Examples, size: int, generator: torch.Generator, start: int = 0) -> Iterator[Batch]:
    """Deal examples out in a seeded order, from batch `start` on.

    The last batch is padded to the full size, so that every rank has as many rows in every step.
    """
    order = torch.randperm(len(examples), generator=generator)
    for first in range(start * size, len(order), size):
        yield _padded(examples.take(order[first : first + size]), size)


def _padded(examples: Examples, size: int) -> Batch:
    missing = size - len(examples)
    real = torch.arange(size) < len(examples)
    positives = torch.nn.functional.pad(examples.positives, (0, missing), value=PADDING)
    histories = torch.nn.functional.pad(_trimmed(examples.histories), (0, 0, 0, missing), value=PADDING)
    return Batch(positives, histories, torch.nn.functional.pad(examples.weights, (0, missing)), real)


def _trimmed(histories: Tensor) -> Tensor:
    """Cut the columns off that are padding in every row of the batch; one is left."""
    used = int((histories != PADDING).any(0).sum())
    return histories[:, -max(used, 1) :]
