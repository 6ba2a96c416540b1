"""Training batches from a closed set of interactions, in another random order in each epoch."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch

from weir.trainer.items.table import FIRST_ITEM, PADDING
from weir.trainer.negatives.label_matrix import LabelMatrix, cross, naive
from weir.trainer.offline.data import Interactions, Ints, TooFewError
from weir.trainer.offline.splits import items_by_user, newest_rows
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.batches import Batch
from weir.trainer.step.seeds import Purpose, derive

__all__ = ["training_batches"]

_KNOWN: Final = 16
"""Number of positives of the user drawn with each pair."""


def training_batches(config: TrainerConfig, interactions: Interactions, train: Ints) -> Iterator[Batch]:
    """Yield batches without end: of histories with a positive at each position, or of (user, item) pairs.

    `config.batch_size` counts histories or pairs. All batches are full: the remainder of an epoch's random order is
    dropped.

    Raises
    ------
    TooFewError
        If no history is followed by a positive, because every user has a single interaction.
    """
    by_user = _ByUser(interactions, train)
    epoch = 0
    while True:
        draw = np.random.default_rng(derive(config.seed, Purpose.SHUFFLE, epoch))
        if config.loss.needs_labels:
            yield from by_user.cells(config, draw)
        else:
            yield from (by_user.pairs if config.tower.knows_users else by_user.histories)(config, draw)
        epoch += 1


class _ByUser:
    """The training interactions, by user and time; yields batches for each kind of training."""

    def __init__(self, interactions: Interactions, train: Ints) -> None:
        self.source = interactions.source
        by_user = items_by_user(interactions, train)
        self.users, self.rows = by_user.list_numbers, by_user.values + FIRST_ITEM
        self.starts, self.counts = by_user.offsets[:-1], by_user.lengths
        self.first_user_row = FIRST_ITEM + len(interactions.item_ids)

    def histories(self, config: TrainerConfig, draw: np.random.Generator) -> Iterator[Batch]:
        """Yield batches of segments of users' histories, cut anew in each epoch; a user's last two may overlap."""
        length = config.tower.history_length
        steps = np.arange(len(self.rows)) - self.starts[self.users]
        # A segment ends with its last positive; ends are `length` apart, and the user's newest item is one.
        left = self.counts[self.users] - 1 - steps
        shift = draw.integers(0, length, len(self.counts))[self.users]
        ends = np.flatnonzero((steps > 0) & ((left == 0) | ((left + shift) % length == 0)))
        if not len(ends):
            raise TooFewError(f"{self.source}: no user has two training interactions, as histories need; add some")
        for chosen in _shuffled(ends, config.batch_size, draw):
            users = self.users[chosen]
            items = newest_rows(self.rows, self.starts[users], chosen + 1, length + 1)
            histories, positives = items[:, :-1], items[:, 1:].clone()
            # A user's first item has no history to predict it from.
            positives[histories == PADDING] = PADDING
            counts = torch.from_numpy(self.counts[users]).float()
            yield Batch(positives, histories, torch.ones(len(users)), positives != PADDING, counts, histories)

    def pairs(self, config: TrainerConfig, draw: np.random.Generator) -> Iterator[Batch]:
        """Yield batches of the interactions in random order, each with 16 drawn positives of its user."""
        for chosen in _shuffled(np.arange(len(self.rows)), config.batch_size, draw):
            users = self.users[chosen]
            positives = torch.from_numpy(self.rows[chosen])
            others = self.starts[users, None] + draw.integers(0, self.counts[users, None], (len(users), _KNOWN))
            known = torch.from_numpy(self.rows[others])
            known = known.masked_fill(known == positives[:, None], PADDING)
            histories = torch.from_numpy(self.first_user_row + users)[:, None]
            ones, counts = torch.ones(len(users)), torch.from_numpy(self.counts[users]).float()
            yield Batch(positives, histories, ones, ones > 0, counts, known)

    def cells(self, config: TrainerConfig, draw: np.random.Generator) -> Iterator[Batch]:
        """Yield batches of cells of the label matrix of training users and items, as many as in an epoch of pairs."""
        size, torch_draw = config.batch_size, torch.Generator().manual_seed(int(draw.integers(2**62)))
        known_users, users = np.unique(self.users, return_inverse=True)
        known_rows, items = np.unique(self.rows, return_inverse=True)
        cells = np.unique(users * len(known_rows) + items)
        matrix = LabelMatrix(
            torch.from_numpy(cells // len(known_rows)),
            torch.from_numpy(cells % len(known_rows)),
            (len(known_users), len(known_rows)),
        )
        for _ in range(max(len(self.rows) // size, 1)):
            grid = config.loss.sampling == "cross"
            drawn = cross(matrix, (size, size), torch_draw) if grid else naive(matrix, size, torch_draw)
            labels = matrix.labels(drawn.rows[:, None] if grid else drawn.rows, drawn.cols)
            histories = torch.from_numpy(self.first_user_row + known_users)[drawn.rows][:, None]
            ones = torch.ones(size)
            rows = torch.from_numpy(known_rows)[drawn.cols]
            yield Batch(rows, histories, ones, ones > 0, ones, rows[:, None][:, :0], labels)


def _shuffled(positions: Ints, size: int, draw: np.random.Generator) -> Iterator[Ints]:
    """Yield full batches of the positions in random order; a single smaller batch if there are too few."""
    order = draw.permutation(positions)
    size = min(size, len(order))
    for first in range(0, len(order) - size + 1, size):
        yield order[first : first + size]
