"""Read a checkpoint and its chain of deltas; of sharded arrays, only this rank's lines.

A delta is read after the previous one was applied and freed, so a rank holds its lines of one delta at a time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import torch
from torch import Tensor

from weir.contracts import Store
from weir.contracts.checkpoint import CheckpointMark, CheckpointRef
from weir.trainer.items.embeddings import Line
from weir.trainer.items.own_lines import OwnLines, OwnListed, OwnPlaces, OwnStripes, own_table
from weir.trainer.items.places import Places
from weir.trainer.items.rows import TableRows, no_rows
from weir.trainer.items.stripes import Stripes
from weir.trainer.log_q.units import Line as UnitLine
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.codec import ROWS, Delta
from weir.trainer.state.saved import Layout, SavedChain, SavedRows
from weir.trainer.state.shared import is_feature_line
from weir.trainer.state.tensor_files import read_tensors

__all__ = ["StoredLinks"]


@dataclass(frozen=True)
class StoredLinks:
    """The `links` of a chain, the full checkpoint first, for one of the ranks that share its rows.

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
        """The rows of all ranks that each delta stores."""
        return [self._listed(number) for number in range(1, len(self.links))]

    def whole(self) -> dict[str, Tensor]:
        """Read the full checkpoint."""
        embeddings = OwnPlaces(self._places, by_place=True)
        table = OwnStripes(self._stripes, self._places.capacity)
        return self._read(0, self._own(0, embeddings, OwnPlaces(self._places, by_place=False), table))

    def deltas(self) -> Iterator[Delta]:
        """Read the deltas one after another."""
        for number, listed in enumerate(self.listed, start=1):
            yield self._delta(number, listed)

    def _delta(self, number: int, listed: TableRows) -> Delta:
        places, stripes = self._places, self._stripes
        by_place = OwnListed(listed, lambda rows: places.own(torch.from_numpy(rows)).numpy())
        by_stripe = OwnListed(listed, lambda rows: stripes.own(rows).nonzero()[0])
        tensors = self._read(number, {ROWS: by_stripe} | self._own(number, by_place, by_place, by_stripe))
        own = dict.fromkeys(("embeddings", "counts", "features"), by_place.rows)
        return Delta(tensors, listed, own | {"table": TableRows(tensors.pop(ROWS).numpy())})

    def saved(self, layout: Layout) -> SavedChain:
        """Return the chain that the state's next checkpoint may extend."""
        rows = zip(self.links, [no_rows(), *self.listed], strict=True)
        return SavedChain(layout, tuple(SavedRows(one, held) for (one, _), held in rows))

    @property
    def _places(self) -> Places:
        (capacity,) = self.marks[0].tensors["embeddings.squares"].shape
        return Places(capacity, self.workers.rank, self.workers.world_size)

    @property
    def _stripes(self) -> Stripes:
        return Stripes(self.workers.rank, self.workers.world_size)

    def _listed(self, number: int) -> TableRows:
        one, mark = self.links[number]
        first = {ROWS: mark.tensors[ROWS]}
        return TableRows(read_tensors(self.store, f"checkpoints/{one.name}", first, mark.files)[ROWS].numpy())

    def _own(
        self, number: int, embeddings: OwnLines, others: OwnLines, table: OwnStripes | OwnListed
    ) -> dict[str, OwnLines]:
        """Return the shard reader of each tensor by name, given the readers for embeddings and table.

        `others` reads counts and features.
        """
        own = {f"embeddings.{line}": embeddings for line in get_args(Line)}
        own |= {f"counts.{line}": others for line in get_args(UnitLine)}
        own |= {name: others for name in self.marks[number].tensors if is_feature_line(name)}
        return own | {f"table.{array}": lines for array, lines in own_table(table).items()}

    def _read(self, number: int, own: Mapping[str, OwnLines]) -> dict[str, Tensor]:
        one, mark = self.links[number]
        return read_tensors(self.store, f"checkpoints/{one.name}", mark.tensors, mark.files, own)
