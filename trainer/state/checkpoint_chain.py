"""Chains of checkpoints: a full checkpoint and its deltas; each rank reads its own rows.

A new delta replaces the previous delta, and includes its rows, unless that is more than twice as large. So sizes at
least halve from delta to delta: chains are short, and each row is rewritten only a few times before the next full
checkpoint. If every window touches the same rows, the chain has a single delta.

A delta is read after the previous one was applied and freed, so a rank has its rows of one delta in memory at a time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from weir.contracts import Store
from weir.contracts.base.arrays import ascending
from weir.contracts.bundles.checkpoint import CheckpointMark, CheckpointRef
from weir.trainer.items.embeddings import Embeddings, Line
from weir.trainer.items.featured import FeaturedItems
from weir.trainer.items.features import FeatureLine
from weir.trainer.items.placement import Places
from weir.trainer.items.rows import RowSharding, TableRows, no_rows
from weir.trainer.items.shard_reader import OwnListed, OwnPlaces, OwnRowSharding, ShardSelection, own_table
from weir.trainer.items.stored import SharedLines, described, fetched, tabled
from weir.trainer.items.table import ItemTable
from weir.trainer.log_q.row_counts import RowCounts, counted
from weir.trainer.log_q.units import Line as UnitLine
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.tensor_files import ROWS, Delta, read_tensors

__all__ = ["Layout", "SavedChain", "SavedRows", "StoredLinks", "is_feature_line", "lines_of_all", "lines_of_some"]


_SHARE: Final = 4
"""A full checkpoint is due when the deltas of a chain together have more than 1 / `_SHARE` of the table's rows."""


_FEATURES: Final = "features.table"


class Layout(NamedTuple):
    """What two states must have in common to exchange rows.

    Capacity of the table, dtype and shape of each array with a line per row, and the names of all parts.
    """

    capacity: int
    lines: dict[str, tuple[torch.dtype, tuple[int, ...]]]
    parts: tuple[str, ...] = ()


class SavedRows(NamedTuple):
    """A checkpoint and the `rows` (n,) that it stores; for a full checkpoint, `rows` is empty."""

    checkpoint: CheckpointRef
    rows: TableRows


@dataclass(frozen=True)
class SavedChain:
    """The `links` of a chain, the full checkpoint first, and the `layout` of the saved state."""

    layout: Layout
    links: tuple[SavedRows, ...]

    def continued(self, layout: Layout, touched: TableRows) -> "tuple[SavedChain, TableRows] | None":
        """Return the chain that a delta extends and the delta's rows; None if a full checkpoint is due.

        Parameters
        ----------
        layout
            Layout of the state to save.
        touched
            Rows changed since the last link, (n,).
        """
        if layout != self.layout:
            return None
        links, rows = list(self.links), touched
        while len(links) > 1 and len(links[-1].rows) <= 2 * len(rows):
            rows = TableRows(ascending(np.concatenate([links.pop().rows, rows])))
        stored = len(rows) + sum(len(link.rows) for link in links)
        return None if _SHARE * stored > layout.capacity else (SavedChain(layout, tuple(links)), rows)

    def extended(self, checkpoint: CheckpointRef, rows: TableRows) -> "SavedChain":
        """Return the chain with one more link."""
        return SavedChain(self.layout, (*self.links, SavedRows(checkpoint, rows)))


def lines_of_all(table: ItemTable, counts: RowCounts, featured: FeaturedItems | None) -> dict[str, SharedLines]:
    """Return the sharded arrays at all rows, by flat name, except the embeddings, which each rank writes itself."""
    return _named("table", tabled(table)) | _named("counts", counted(counts)) | _features(featured)


def lines_of_some(
    rows: TableRows, embeddings: Embeddings, table: ItemTable, counts: RowCounts, featured: FeaturedItems | None
) -> dict[str, SharedLines]:
    """Return the sharded arrays at distinct rows (n,), by flat name."""
    items = _named("table", tabled(table, rows)) | _named("counts", counted(counts, rows))
    return _named("embeddings", fetched(embeddings, rows)) | items | _features(featured, rows)


def _features(featured: FeaturedItems | None, rows: TableRows | None = None) -> dict[str, SharedLines]:
    """Return the arrays of item features at some rows or all, by flat name; empty without features."""
    return {} if featured is None else _named(_FEATURES, described(featured.table, rows))


def is_feature_line(name: str) -> bool:
    """Return whether a flat name denotes an array of a feature column."""
    return name.startswith(f"{_FEATURES}.") and name.rpartition(".")[2] in get_args(FeatureLine)


def _named(part: str, lines: Mapping[str, SharedLines]) -> dict[str, SharedLines]:
    """Return arrays by flat name, ``<part>.<name>``."""
    return {f"{part}.{name}": array for name, array in lines.items()}


@dataclass(frozen=True)
class StoredLinks:
    """Reader of a stored chain for one rank; `links` are its checkpoints, the full one first.

    All reads raise `CorruptArtefactError` for a missing or corrupt file.
    """

    store: Store
    links: tuple[tuple[CheckpointRef, CheckpointMark], ...]
    workers: Workers

    @property
    def marks(self) -> list[CheckpointMark]:
        """The mark of each link."""
        return [mark for _, mark in self.links]

    @cached_property
    def listed(self) -> list[TableRows]:
        """The rows that each delta stores, of all ranks."""
        return [self._listed(number) for number in range(1, len(self.links))]

    def whole(self) -> dict[str, Tensor]:
        """Read this rank's part of the full checkpoint, as tensors by flat name."""
        embeddings = OwnPlaces(self._places, by_place=True)
        table = OwnRowSharding(self._stripes, self._places.capacity)
        return self._read(0, self._own(0, embeddings, OwnPlaces(self._places, by_place=False), table))

    def deltas(self) -> Iterator[Delta]:
        """Read this rank's part of the deltas, one after another."""
        for number, listed in enumerate(self.listed, start=1):
            yield self._delta(number, listed)

    def _delta(self, number: int, listed: TableRows) -> Delta:
        """Read this rank's part of a delta that stores the rows `listed` (n,)."""
        places, stripes = self._places, self._stripes
        by_place = OwnListed(listed, lambda rows: places.own(torch.from_numpy(rows)).numpy())
        by_stripe = OwnListed(listed, lambda rows: stripes.own(rows).nonzero()[0])
        tensors = self._read(number, {ROWS: by_stripe} | self._own(number, by_place, by_place, by_stripe))
        own = dict.fromkeys(("embeddings", "counts", "features"), by_place.rows)
        return Delta(tensors, listed, own | {"table": TableRows(tensors.pop(ROWS).numpy())})

    def saved(self, layout: Layout) -> SavedChain:
        """Return the chain that the state's next checkpoint may extend."""
        rows = zip(self.links, [no_rows(), *self.listed], strict=True)
        return SavedChain(layout, tuple(SavedRows(checkpoint, stored) for (checkpoint, _), stored in rows))

    @property
    def _places(self) -> Places:
        """Shard of this rank among the rows of the full checkpoint."""
        (capacity,) = self.marks[0].tensors["embeddings.squares"].shape
        return Places(capacity, self.workers.rank, self.workers.world_size)

    @property
    def _stripes(self) -> RowSharding:
        return RowSharding(self.workers.rank, self.workers.world_size)

    def _listed(self, number: int) -> TableRows:
        """Read the rows that a delta stores."""
        checkpoint, mark = self.links[number]
        first = {ROWS: mark.tensors[ROWS]}
        return TableRows(read_tensors(self.store, f"checkpoints/{checkpoint.name}", first, mark.files)[ROWS].numpy())

    def _own(
        self, number: int, embeddings: ShardSelection, others: ShardSelection, table: OwnRowSharding | OwnListed
    ) -> dict[str, ShardSelection]:
        """Return the shard reader of each tensor by name, given the readers for embeddings and table.

        `others` reads counts and features.
        """
        own = {f"embeddings.{line}": embeddings for line in get_args(Line)}
        own |= {f"counts.{line}": others for line in get_args(UnitLine)}
        own |= {name: others for name in self.marks[number].tensors if is_feature_line(name)}
        return own | {f"table.{array}": lines for array, lines in own_table(table).items()}

    def _read(self, number: int, own: Mapping[str, ShardSelection]) -> dict[str, Tensor]:
        """Read the tensors of a link; for the names in `own`, only this rank's rows."""
        checkpoint, mark = self.links[number]
        return read_tensors(self.store, f"checkpoints/{checkpoint.name}", mark.tensors, mark.files, own)
