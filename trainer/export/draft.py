"""What an export is going to write: a complete bundle, or a delta against the newest one."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from contracts import IndexInfo
from contracts.bundle_manifest import BundleRef
from trainer.export.clusters import Assigned, Clusters
from trainer.export.content import Content
from trainer.export.kept import Kept, rows_of

__all__ = ["Complete", "Delta", "Difference", "Placed"]

Rows = npt.NDArray[np.int64]


class Placed(NamedTuple):
    """The lists of an IVF index, and that of each of a content's items, (n,)."""

    clusters: Clusters
    assigned: Assigned


@dataclass(frozen=True, eq=False)
class Complete:
    """An index over all items of a content, in order; `placed` where its lists can be kept, `moved` as `Difference`."""

    index: Any
    info: IndexInfo
    placed: Placed | None = None
    moved: float | None = None


@dataclass(frozen=True, eq=False)
class Delta:
    """The `items` (m,) of a content to publish, the rows of all of its items, `places` (n,), and the rows to remove.

    `parent` is what they change, stored as `ref` says. `placed` where the index has lists, `appended` (c, d) the
    centroids that a repair has added.
    """

    parent: Kept
    ref: BundleRef
    info: IndexInfo
    items: Rows
    places: Rows
    removed: Rows
    placed: Placed | None = None
    appended: npt.NDArray[np.float32] | None = None
    moved: float | None = None


@dataclass(frozen=True, eq=False)
class Difference:
    """How a content differs from the bundle that is kept.

    `rows` (items,) are the published rows of the content's items, -1 for new ones; `moved` (items,) are those that are
    off by more than the bound; `removed` are rows whose items are gone.
    """

    kept: Kept
    rows: Rows
    moved: npt.NDArray[np.bool_]
    removed: Rows

    @classmethod
    def of(cls, kept: Kept, content: Content, bound: float) -> Self:
        """Compare every item."""
        rows = rows_of(kept.rows.item_rows, content.keys)
        there = np.flatnonzero(rows >= 0)
        moved = np.zeros(len(rows), np.bool_)
        moved[there] = kept.moved(rows[there], content, there, bound)
        is_gone = np.zeros(len(kept.rows), np.bool_)
        is_gone[kept.rows.live] = True
        is_gone[rows[there]] = False
        return cls(kept, rows, moved, np.flatnonzero(is_gone))

    @property
    def share(self) -> float:
        """The share of the content's items that are new or have moved."""
        return float(((self.rows < 0) | self.moved).mean())

    def rows_for(self, also: npt.NDArray[np.bool_]) -> tuple[Rows, Rows, Rows]:
        """Return the items to publish, `also` (n,) among them, the rows of all items (n,), and the rows to remove.

        New items take the rows of those that are gone, then rows that are empty, then further ones.
        """
        items = np.flatnonzero((self.rows < 0) | self.moved | also)
        rows = self.rows.copy()
        new = np.flatnonzero(rows < 0)
        is_live = np.zeros(len(self.kept.rows), np.bool_)
        is_live[self.kept.rows.live] = True
        further = np.arange(len(self.kept.rows), len(self.kept.rows) + len(new))
        rows[new] = np.concatenate([self.removed, np.flatnonzero(~is_live), further])[: len(new)]
        return items, rows, self.removed[len(new) :]
