"""A training of all lists beside the stream."""

import logging
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from contracts import ItemKeys
from contracts.item_rows import ItemRows
from contracts.layers import Layers
from trainer.export.beside import beside
from trainer.export.clusters import Clusters
from trainer.export.kept import ByRow, Lists

__all__ = ["Training"]

logger = logging.getLogger(__name__)


class Training:
    """Trains lists on the items of an export, `keys` (n,) and `vectors` (n, d), in a thread that nothing waits for."""

    def __init__(self, empty: Any, kind: str, keys: ItemKeys, vectors: npt.NDArray[np.float32]) -> None:
        self._lists: Lists | None = None
        self._thread = beside("weir-index-training", partial(self._train, empty, kind, keys, vectors))

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    def wait(self) -> None:
        """Wait for its end."""
        self._thread.join()

    @property
    def result(self) -> Lists | None:
        """What it made; None while it runs, and if it failed."""
        return None if self.running else self._lists

    def _train(self, empty: Any, kind: str, keys: ItemKeys, vectors: npt.NDArray[np.float32]) -> None:
        try:
            clusters, assigned = Clusters.trained(empty, kind, vectors)
        except Exception:
            logger.exception("the lists of the index could not be trained; the old ones stay")
            return
        self._lists = Lists(clusters, ItemRows.of(keys), Layers.of(vectors), ByRow.of(assigned))
        logger.info("%s is trained on %d items; the next export takes it", kind, len(vectors))
