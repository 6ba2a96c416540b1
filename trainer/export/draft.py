"""Export plan: a complete bundle, or a delta against the newest one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from weir.contracts import IndexInfo, ItemKeys
from weir.contracts.ascending import ascending
from weir.contracts.bundle_manifest import BundleRef
from weir.trainer.export.clusters import Assigned, Clusters
from weir.trainer.export.content import Content
from weir.trainer.export.kept import Kept, rows_of
from weir.trainer.items.rows import SHARED

__all__ = ["Chain", "Complete", "Delta", "Difference", "Placed"]

Rows = npt.NDArray[np.int64]


class Placed(NamedTuple):
    """The lists of an IVF index, and the list of each of a content's items, (n,)."""

    clusters: Clusters
    assigned: Assigned


@dataclass(frozen=True, eq=False)
class Complete:
    """Plan of a complete bundle: an index over all items of a whole content, in order; `placed` if lists are kept.

    `index` builds it when it is written, so that it is freed afterwards. `moved` is `Difference.share`.
    """

    content: Content
    index: Callable[[], Any]
    info: IndexInfo
    placed: Placed | None = None
    moved: float | None = None


class Chain(NamedTuple):
    """The stored chain of the bundle `ref`: its complete base, the number of deltas, and the rows in them."""

    ref: BundleRef
    base: str
    deltas: int
    rows: int


@dataclass(frozen=True, eq=False)
class Delta:
    """Plan of a delta: the `items` (m,) of a content to publish, the index rows `places` (n,) of all, rows to remove.

    `parent` is the bundle it changes, stored as `chain`. `placed` is set if the index has lists; `appended` (c, d) are
    centroids added by a repair.
    """

    content: Content
    parent: Kept
    chain: Chain
    info: IndexInfo
    items: Rows
    places: Rows
    removed: Rows
    placed: Placed | None = None
    appended: npt.NDArray[np.float32] | None = None
    moved: float | None = None

    def free(self) -> Rows:
        """Return the rows without an item after the delta, ascending."""
        free = ascending(np.concatenate([self.parent.free, self.removed]))
        # Usually there are none, but many places.
        return np.setdiff1d(free, self.places[self.items]) if len(free) else free


@dataclass(frozen=True, eq=False)
class Difference:
    """Difference between a state and the kept bundle, from a content of all items, or of those touched since.

    `rows` (n,) are the published rows of the content's items, -1 for new ones; `moved` (n,) marks items that differ by
    more than the bound; `removed` are rows of removed items, ascending; `items` is the number of items of the state.
    """

    kept: Kept
    rows: Rows
    moved: npt.NDArray[np.bool_]
    removed: Rows
    items: int

    @classmethod
    def of(cls, kept: Kept, content: Content, bound: float) -> Self:
        """Compare every item of a content with the kept bundle."""
        rows = rows_of(kept.rows.item_rows, content.keys)
        there = np.flatnonzero(rows >= 0)
        moved = np.zeros(len(rows), np.bool_)
        moved[there] = kept.moved(rows[there], content, there, bound)
        removed = _missing(kept, rows[there]) if content.left is None else _gone(kept, content, content.left)
        return cls(kept, rows, moved, removed, content.total)

    @property
    def share(self) -> float:
        """Share of all items that are new or have moved."""
        return np.count_nonzero((self.rows < 0) | self.moved) / self.items

    def rows_for(self, also: npt.NDArray[np.bool_]) -> tuple[Rows, Rows, Rows]:
        """Return the items to publish, including `also` (n,), the rows of all n items, and the rows to remove.

        New items take rows of removed items first, then empty rows, then new rows.
        """
        items = np.flatnonzero((self.rows < 0) | self.moved | also)
        rows = self.rows.copy()
        new = np.flatnonzero(rows < 0)
        further = np.arange(len(self.kept.rows), len(self.kept.rows) + len(new))
        rows[new] = np.concatenate([self.removed, self.kept.free, further])[: len(new)]
        return items, rows, self.removed[len(new) :]


def _missing(kept: Kept, there: Rows) -> Rows:
    """Return the rows in use except `there` (n,)."""
    is_gone = np.zeros(len(kept.rows), np.bool_)
    is_gone[kept.rows.live] = True
    is_gone[there] = False
    return np.flatnonzero(is_gone)


def _gone(kept: Kept, content: Content, left: ItemKeys) -> Rows:
    """Return the index rows of evicted items that were not admitted again."""
    gone = ItemKeys(left[content.state.table.rows(left) == SHARED])
    rows = rows_of(kept.rows.item_rows, gone)
    return np.sort(rows[rows >= 0])  # `left` has each key once
