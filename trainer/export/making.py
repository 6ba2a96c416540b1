"""Background task that makes a bundle from a snapshot of the state."""

from collections.abc import Callable

from weir.contracts import BundleManifest
from weir.trainer.export.beside import beside

__all__ = ["Making"]


class Making:
    """Makes a bundle in a thread, as far as it needs no state; `make` returns the function that finishes it.

    It has the stream's priority: until it ends, no newer bundle is published.
    """

    def __init__(self, make: Callable[[], Callable[[], BundleManifest]]) -> None:
        self._make = make
        self._finish: Callable[[], BundleManifest] | None = None
        self._error: Exception | None = None
        self._thread = beside("weir-bundle-export", self._run, niceness=0)

    @property
    def running(self) -> bool:
        """Whether the thread is still running."""
        return self._thread.is_alive()

    def has_ended(self, within: float) -> bool:
        """Wait for at most this many seconds; return whether the thread has ended."""
        self._thread.join(within)
        return not self.running

    def finish(self) -> BundleManifest:
        """Wait for the thread, and finish in this one; raises the thread's error."""
        self._thread.join()
        if self._finish is None:
            raise self._error or RuntimeError("the thread that makes a bundle was ended")
        return self._finish()

    def _run(self) -> None:
        try:
            self._finish = self._make()
        except Exception as error:  # noqa: BLE001 - raised in `finish`
            self._error = error
