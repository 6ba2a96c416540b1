"""A training of all lists beside the stream."""

import logging
import os
import threading
from contextlib import suppress
from typing import Any, Final

import faiss

from contracts.item_rows import ItemRows
from contracts.layers import Layers
from trainer.export.clusters import Clusters
from trainer.export.content import Content
from trainer.export.kept import Lists

__all__ = ["Training"]

logger = logging.getLogger(__name__)

_NICENESS: Final = 10
"""The stream comes first; where a thread cannot have a priority of its own, it shares the processor equally."""


class Training:
    """Trains lists on the items of an export, in a thread of its own; nothing waits for it, not even the end."""

    def __init__(self, empty: Any, kind: str, content: Content) -> None:
        self._lists: Lists | None = None
        self._thread = threading.Thread(
            target=self._train, args=(empty, kind, content), name="weir-index-training", daemon=True
        )
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    @property
    def result(self) -> Lists | None:
        """What it made; None while it runs, and if it failed."""
        return None if self.running else self._lists

    def _train(self, empty: Any, kind: str, content: Content) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        faiss.omp_set_num_threads(1)  # OpenMP keeps this per thread
        try:
            clusters, assigned = Clusters.trained(empty, kind, content.vectors)
        except Exception:
            logger.exception("the lists of the index could not be trained; the old ones stay")
            return
        self._lists = Lists(clusters, ItemRows.of(content.keys), Layers.of(content.vectors), assigned)
        logger.info("%s is trained on %d items; the next export takes it", kind, len(content.vectors))
