"""The newest bundle of a store, opened beside what a trainer does before its first window."""

import logging
from functools import partial

from weir.contracts import BundleLog
from weir.trainer.export.beside import beside
from weir.trainer.export.kept import Kept
from weir.trainer.export.servable import Servable

__all__ = ["Opening"]

logger = logging.getLogger(__name__)


class Opening:
    """Opens the newest bundle in a thread."""

    def __init__(self, log: BundleLog) -> None:
        self._found: tuple[Servable, Kept] | None = None
        # It takes no longer than a start does, whose error must not end in the middle of it.
        self._thread = beside("weir-bundle-opening", partial(self._open, log), is_awaited=True)

    def result(self) -> tuple[Servable, Kept] | None:
        """Wait for its end, and return the bundle as it answers and as it is kept.

        None where there is none, or it cannot be opened: whoever needs it tries again, and says what that means.
        """
        self._thread.join()
        return self._found

    def _open(self, log: BundleLog) -> None:
        try:
            for newest in log.manifests()[-1:]:
                servable = Servable.open(log, newest)
                self._found = servable, Kept.of(servable)
        except Exception:
            logger.debug("the newest bundle cannot be opened", exc_info=True)
