"""Background task that trains all lists of an IVF index."""

import logging
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from weir.contracts import ItemKeys
from weir.contracts.bundle_rows import BundleRows
from weir.contracts.item_rows import ItemRows
from weir.contracts.layers import Layers
from weir.trainer.export.beside import beside
from weir.trainer.export.clusters import Clusters
from weir.trainer.export.kept import ByRow, Lists
from weir.trainer.step.spool import Spool, blocks

__all__ = ["Training"]

logger = logging.getLogger(__name__)


class Training:
    """Trains lists on the `rows` of a bundle, in a thread that is not awaited at exit."""

    def __init__(self, empty: Any, kind: str, rows: BundleRows) -> None:
        self._lists: Lists | None = None
        self._thread = beside("weir-index-training", partial(self._train, empty, kind, rows))

    @property
    def running(self) -> bool:
        """Whether the training is still running."""
        return self._thread.is_alive()

    @property
    def result(self) -> Lists | None:
        """The trained lists; None while running, or if it failed."""
        return None if self.running else self._lists

    def _train(self, empty: Any, kind: str, rows: BundleRows) -> None:
        try:
            live = rows.live
            keys, vectors = ItemKeys(rows.keys[live]), _on_disk(rows.vectors, live)
            clusters, assigned = Clusters.trained(empty, kind, vectors)
        except Exception:
            logger.exception("the lists of the index could not be trained; the old ones stay")
            return
        self._lists = Lists(clusters, ItemRows.of(keys), Layers.of(vectors), ByRow.of(assigned))
        logger.info("%s is trained on %d items; the next export takes it", kind, len(vectors))


def _on_disk(vectors: Layers[np.float32], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return the vectors (n, d) of rows (n,) as a memory-mapped array."""
    spool = Spool(vectors.base.shape[1], np.float32)
    for some in blocks(len(rows)):
        spool.append(vectors[rows[some]])
    return np.asarray(spool.finish())
