"""Changes of the state since the newest bundle, so that the cost of an export is proportional to the change.

With item features, every step moves every item a little, and so does every window that changes a feature's moments, so
touched rows are not all moved items. Each rank therefore stores the published vectors of its rows on disk, to compare
them.
"""

import json
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.contracts import ItemKeys
from weir.contracts.base.arrays import ascending
from weir.contracts.base.string_arrays import zeros_in_scratch
from weir.contracts.bundles.manifest import BundleRef
from weir.trainer.items.embeddings import Embeddings, Route
from weir.trainer.items.placement import Places
from weir.trainer.items.rows import Reader, TableRows, no_rows
from weir.trainer.items.table import TOO_MANY, ItemTable
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.dirty_rows import Fingerprint, TouchedOfAll, at_first
from weir.trainer.towers import project

__all__ = ["PublishedItems", "SinceBundle", "Vectors", "are_apart"]


_MOVED: Final = "moved"
_TAKE: Final = "take"
_AT_ONCE: Final = 1 << 14
"""Rows compared at a time: they fit in the processor's cache."""

Floats = npt.NDArray[np.float32]
Vectors = Callable[[Tensor], Tensor]
"""A function that returns the current vectors (n, d) of rows (n,) in this rank's shard."""


_SHARE: Final = 4
"""With more than 1 / `_SHARE` of all rows changed, the next bundle is complete anyway, and no rows are saved."""


class PublishedItems:
    """Stores the published vectors of items, in the shards of their rows, and finds the items that moved since.

    Unless noted otherwise, methods are collective, or called by rank 0 in `Workers.first`.

    Parameters
    ----------
    table, embeddings
        Items, and the shards of their rows.
    config
        Settings, for the allowed deviation of a vector (`publish_bound`) and the comparison of vectors.
    """

    def __init__(self, table: ItemTable, embeddings: Embeddings, config: TrainerConfig) -> None:
        self.table, self.embeddings, self._config = table, embeddings, config
        self._places: Places | None = None
        self._vectors: Floats = np.empty((0, 0), np.float32)

    @property
    def is_known(self) -> bool:
        """Whether published vectors are stored for the present size of the table; not collective."""
        return self._places == self.embeddings.places

    def take(self, rows: TableRows, vectors: Floats) -> None:
        """Store the published vectors (n, d) of distinct rows (n,)."""
        self.embeddings.workers.ask(_TAKE)
        self._take(rows, vectors)

    def moved(self, now: Vectors) -> TableRows:
        """Return on rank 0 the rows of all items whose vectors differ by more than the bound, ascending, (n,)."""
        self.embeddings.workers.ask(_MOVED)
        return self._moved(now)

    def answer(self, question: str, now: Vectors) -> bool:
        """Join the collective that rank 0 asks for in `Workers.first`; return False if it is another object's."""
        if question == _TAKE:
            self._take(TableRows(np.empty(0, np.int64)), np.empty((0, self.embeddings.weight.shape[1]), np.float32))
        elif question == _MOVED:
            self._moved(now)
        return question in {_TAKE, _MOVED}

    def _take(self, rows: TableRows, vectors: Floats) -> None:
        """Store published vectors at their ranks; collective."""
        places, workers = self.embeddings.places, self.embeddings.workers
        if not self.is_known:
            lines, width = len(places.here), self.embeddings.weight.shape[1]
            self._vectors = zeros_in_scratch(lines * width, np.float32).reshape(lines, width)
            self._places = places
        route = Route.of(torch.from_numpy(rows), places, workers)
        self._vectors[route.asked.numpy()] = route.push(torch.from_numpy(vectors)).numpy()

    def _moved(self, now: Vectors) -> TableRows:
        """Return on rank 0 the moved rows of all ranks; collective."""
        places, count = self.embeddings.places, len(self.embeddings.places.here)
        pieces = (torch.arange(first, min(first + _AT_ONCE, count)) for first in range(0, count, _AT_ONCE))
        here = torch.cat(
            [torch.empty(0, dtype=torch.int64), *(self._moved_of(places.rows_at(lines), now) for lines in pieces)]
        )
        return TableRows(ascending(at_first(self.embeddings.workers, here).numpy()))

    @torch.no_grad()
    def _moved_of(self, rows: Tensor, now: Vectors) -> Tensor:
        """Return which of the rows (n,) of this rank have items that moved, (m,)."""
        rows = rows[self.table.in_use.among(rows)]
        before = torch.from_numpy(self._vectors[self.embeddings.places.local(rows).numpy()])
        # A vector has the same bits in any batch of two or more rows, but not alone.
        after = now(rows.expand(2) if len(rows) == 1 else rows)[: len(rows)].float().cpu()
        pairs = (before, after), (self._projected(before), self._projected(after))
        far = np.logical_or(*(are_apart(old.numpy(), new.numpy(), self._config.publish_bound) for old, new in pairs))
        return rows[torch.from_numpy(far)]

    def _projected(self, vectors: Tensor) -> Tensor:
        """Return index vectors (n, d) from item vectors (n, d)."""
        return project(vectors, self._config.tower)


def are_apart(before: Floats, after: Floats, bound: float) -> npt.NDArray[np.bool_]:
    """Return which vectors (n, d) differ by more than `bound` times their length before, (n,)."""
    off, length = _squares(after - before), _squares(before)
    # Written as a negation so that NaN counts as moved.
    return ~(off <= bound * bound * length)


def _squares(vectors: Floats) -> Floats:
    """Return the squared length of each vector (n, d)."""
    squares: Floats = np.einsum("nd,nd->n", vectors, vectors)
    return squares


class SinceBundle:
    """Changes since the bundle `ref`: rows touched and keys evicted. `ref` is None if no bundle is known.

    Untouched rows differ from the bundle by at most `bound` (`publish_bound`). `items` are the published vectors, for
    models whose steps move items without touching their rows; they are not in checkpoints. `fingerprint` covers all
    rows.

    Parameters
    ----------
    touched
        Tracker of touched rows and evicted keys.
    config
        Settings of the run.
    """

    def __init__(self, touched: TouchedOfAll, config: TrainerConfig) -> None:
        self.ref: BundleRef | None = None
        self.bound, self.touched, self._config = 0.0, touched, config
        self.items = PublishedItems(touched.table, touched.embeddings, config)
        self.fingerprint = Fingerprint(touched.table, touched.embeddings)

    def begins_at(self, ref: BundleRef) -> bool:
        """Return whether untouched rows differ from the bundle `ref` by at most the current bound."""
        return self.ref == ref and self.bound <= self._config.publish_bound

    def note(self, ref: BundleRef, bound: float | None = None) -> None:
        """Record that the state equals the bundle `ref`, up to `bound` (default: the current setting).

        Collective, or called by rank 0 in `Workers.first`.
        """
        self.ref, self.bound = ref, self._config.publish_bound if bound is None else bound
        self.touched.clear(Reader.BUNDLE)

    def snapshot(self) -> None:
        """Start to track changes for `note_snapshot`. Collective, or called by rank 0 in `Workers.first`.

        Until `note_snapshot`, all data still refers to the previous bundle.
        """
        self.touched.clear(Reader.SNAPSHOT)

    def note_snapshot(self, ref: BundleRef) -> None:
        """Record that the snapshot was published as `ref`. Collective, or called by rank 0 in `Workers.first`."""
        self.ref, self.bound = ref, self._config.publish_bound
        self.touched.take_over()

    def answer(self, question: str, now: Vectors) -> bool:
        """Join the collective that rank 0 asks for in `Workers.first`; return False if it is another object's."""
        return self.items.answer(question, now) or self.fingerprint.answer(question)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the changes for a checkpoint; empty without a known bundle, or if there are too many.

        Collective, or called by rank 0 in `Workers.first`.
        """
        if self.ref is None:
            return {}
        rows, left = self.touched.rows(Reader.BUNDLE), self.touched.left()
        if _SHARE * len(rows) > self.touched.table.capacity or TOO_MANY in left:
            return {}
        encoded = bytearray(json.dumps({"ref": self.ref.model_dump(), "bound": self.bound}).encode())
        return {
            "of": torch.frombuffer(encoded, dtype=torch.uint8),
            "rows": torch.from_numpy(rows),
            "left": torch.from_numpy(left),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the result of `state_dict`; with an empty state, no bundle is known afterwards."""
        self.ref, rows, left = None, torch.from_numpy(no_rows()), torch.empty(0, dtype=torch.int64)
        if state:
            bundle = json.loads(state["of"].numpy().tobytes())
            self.ref, self.bound = BundleRef.model_validate(bundle["ref"]), bundle["bound"]
            rows, left = state["rows"], state["left"]
        self.touched.restart(Reader.BUNDLE, rows, ItemKeys(left.numpy()))
