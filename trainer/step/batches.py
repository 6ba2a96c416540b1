"""From the positives of a window to batches of table rows."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from weir.contracts import PADDING_KEY, ItemKeys
from weir.trainer.items.table import FIRST_ITEM, PADDING, ItemTable
from weir.trainer.log_q.users import Users
from weir.trainer.step.dealt import Dealt
from weir.trainer.step.positives import Positives
from weir.trainer.step.shared_window import SharedWindow
from weir.trainer.step.shuffled import Ints, Shuffled
from weir.trainer.towers.features import FeatureInputs
from weir.trainer.users.featured import FeaturedUsers
from weir.trainer.users.lines import Layout, UserLines

__all__ = ["Batch", "Examples", "batches"]

_USER_FIELDS: Final = ("user_buckets", "user_shares", "user_numbers")

_Reader = Callable[[npt.NDArray[np.int32]], FeatureInputs]


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
    there are none where every position has a positive. So is what the log says of the users (`FeatureInputs`):
    `user_buckets` and `user_shares` (s, V), and `user_numbers` (s, D). `labels` tell which of the pairs (B,), or of all
    combinations (B, B), are positive, where a loss samples both kinds.
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
        """What the log says of the users; None where it says nothing of any."""
        if not self.user_buckets.numel():
            return None
        return FeatureInputs(self.user_buckets, self.user_shares, self.user_numbers)

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


class _Lines(NamedTuple):
    """Lines of histories, exposed items and user features, which `cuts` part, and what reads the latter."""

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
    """Return the positives whose item has a row of its own, in a seeded order, from batch `start` on.

    The last batch is padded to the full size, so that every rank has as many rows in every step. Histories and exposed
    items go to the ranks that train on them, and wait there on disk: 4 B per item in ``TMPDIR``.

    With `featured`, batches say what it reads of the users. All ranks call it together; the batches themselves are made
    without the others.

    Raises
    ------
    OSError
        If the disk is full.
    """
    columns = _columns(found, table, users)
    admitted = np.flatnonzero(columns.rows >= FIRST_ITEM)
    order = admitted[torch.randperm(len(admitted), generator=generator).numpy()]
    dealt = Dealt(order, size, found.workers)
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
        found.whole(np.array(own.weights)),  # a copy: it is read here and there
        ones if users is None else found.whole(users.counts(own.users)),
        found.whole(lengths),
    )


def _dealt(found: SharedWindow, table: ItemTable, dealt: Dealt) -> Shuffled:
    """Look up the rows of histories and exposed items, and give each line to the rank that wants it.

    Beside them, a line has the user features as they are.
    """
    sides, places = (found.own.histories, found.own.exposed), dealt.places(len(found))[found.here]
    width = sum(part.shape[1] for part in (*sides, found.own.features))
    lines = Shuffled(dealt.lines, width, len(dealt.here))
    for block in found.own_blocks():
        rows = [table.rows(ItemKeys(keys[block])).astype(np.int32) for keys in sides]
        lines.append(dealt.exchanged(places[block], np.concatenate([*rows, found.own.features[block]], 1)))
    return lines


def _in_order(columns: _Columns, dealt: Dealt, lines: _Lines, start: int) -> Iterator[Batch]:
    groups = lines.every.groups(start)
    for chosen in dealt.batches(start):
        # The last batch may have nothing for this rank.
        mine = np.split(next(groups, lines.every.none), lines.cuts, 1)
        used = max(int(columns.lengths[chosen].max()), 1)
        mine[0] = mine[0][:, lines.cuts[0] - used :]
        yield _padded(columns, chosen, mine, lines.reader, dealt)


def _nothing(lines: npt.NDArray[np.int32]) -> FeatureInputs:
    none = torch.empty(len(lines), 0)
    return FeatureInputs(none.int(), none, none)


def _said(featured: FeaturedUsers, layout: Layout, lines: npt.NDArray[np.int32]) -> FeatureInputs:
    """Return what lines (s, F) say of users."""
    return featured.inputs(UserLines(layout, lines))


def _padded(columns: _Columns, chosen: Ints, mine: list[npt.NDArray[np.int32]], reader: _Reader, dealt: Dealt) -> Batch:
    missing, absent = dealt.size - len(chosen), len(dealt.here) - len(mine[0])
    rows, weights, counts, _ = (torch.from_numpy(column[chosen]) for column in columns)
    # All ones are no bucket, and no number.
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
