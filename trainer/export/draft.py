"""What an export is going to write: a complete bundle, or a delta against the newest one."""

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
    """The lists of an IVF index, and that of each of a content's items, (n,)."""

    clusters: Clusters
    assigned: Assigned


@dataclass(frozen=True, eq=False)
class Complete:
    """An index over all items of a whole content, in order; `placed` where its lists can be kept.

    `index` makes it, to be written and let go. `moved` is `Difference.share`.
    """

    content: Content
    index: Callable[[], Any]
    info: IndexInfo
    placed: Placed | None = None
    moved: float | None = None


class Chain(NamedTuple):
    """What the store has of the bundle `ref`: the complete one it builds on, by how many deltas, of how many rows."""

    ref: BundleRef
    base: str
    deltas: int
    rows: int


@dataclass(frozen=True, eq=False)
class Delta:
    """The `items` (m,) of a content to publish, the rows of its n items, `places` (n,), and the rows to remove.

    `parent` is what they change, stored as `chain` says. `placed` where the index has lists, `appended` (c, d) the
    centroids that a repair has added.
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
        """Return the rows without an item after it, ascending."""
        free = ascending(np.concatenate([self.parent.free, self.removed]))
        # As a rule there are none, and many places.
        return np.setdiff1d(free, self.places[self.items]) if len(free) else free


@dataclass(frozen=True, eq=False)
class Difference:
    """How a state differs from the bundle that is kept, found in a content: all of its items, or those touched since.

    `rows` (n,) are the published rows of the content's items, -1 for new ones; `moved` (n,) are those that are off by
    more than the bound; `removed` are rows whose items are gone, ascending; `items` counts those of the state.
    """

    kept: Kept
    rows: Rows
    moved: npt.NDArray[np.bool_]
    removed: Rows
    items: int

    @classmethod
    def of(cls, kept: Kept, content: Content, bound: float) -> Self:
        """Compare every item of a content."""
        rows = rows_of(kept.rows.item_rows, content.keys)
        there = np.flatnonzero(rows >= 0)
        moved = np.zeros(len(rows), np.bool_)
        moved[there] = kept.moved(rows[there], content, there, bound)
        removed = _missing(kept, rows[there]) if content.left is None else _gone(kept, content, content.left)
        return cls(kept, rows, moved, removed, content.total)

    @property
    def share(self) -> float:
        """The share of all items that are new or have moved."""
        return np.count_nonzero((self.rows < 0) | self.moved) / self.items

    def rows_for(self, also: npt.NDArray[np.bool_]) -> tuple[Rows, Rows, Rows]:
        """Return the items to publish, `also` (n,) among them, the rows of the n items, and the rows to remove.

        New items take the rows of those that are gone, then rows that are empty, then further ones.
        """
        items = np.flatnonzero((self.rows < 0) | self.moved | also)
        rows = self.rows.copy()
        new = np.flatnonzero(rows < 0)
        further = np.arange(len(self.kept.rows), len(self.kept.rows) + len(new))
        rows[new] = np.concatenate([self.removed, self.kept.free, further])[: len(new)]
        return items, rows, self.removed[len(new) :]


def _missing(kept: Kept, there: Rows) -> Rows:
    """Return the rows that hold items, but none of those that are `there` (n,)."""
    is_gone = np.zeros(len(kept.rows), np.bool_)
    is_gone[kept.rows.live] = True
    is_gone[there] = False
    return np.flatnonzero(is_gone)


def _gone(kept: Kept, content: Content, left: ItemKeys) -> Rows:
    """Return the rows of items, among those that have `left` their table rows, that have got no other one."""
    gone = ItemKeys(left[content.state.table.rows(left) == SHARED])
    rows = rows_of(kept.rows.item_rows, gone)
    return np.sort(rows[rows >= 0])  # `left` has each key once
