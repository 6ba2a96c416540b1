"""Background task that opens the newest bundle of a store while a trainer starts."""

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
        # Awaited at exit, as it takes no longer than a start: an error there must not kill the thread halfway.
        self._thread = beside("weir-bundle-opening", partial(self._open, log), is_awaited=True)

    def result(self) -> tuple[Servable, Kept] | None:
        """Wait for the thread, and return the bundle as a servable and as kept for exports.

        None if there is no bundle, or it cannot be opened: users of the bundle try again and report the error.
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
