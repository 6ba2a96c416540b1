"""A bundle that is made beside the stream, of what was read of a state."""

from collections.abc import Callable

from weir.contracts import BundleManifest
from weir.trainer.export.beside import beside

__all__ = ["Making"]


class Making:
    """Makes a bundle in a thread, as far as that needs no state; `make` returns what is to be done with it then.

    It has the stream's priority: until it ends, nothing newer is published.
    """

    def __init__(self, make: Callable[[], Callable[[], BundleManifest]]) -> None:
        self._make = make
        self._finish: Callable[[], BundleManifest] | None = None
        self._error: Exception | None = None
        self._thread = beside("weir-bundle-export", self._run, niceness=0)

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    def has_ended(self, within: float) -> bool:
        """Wait so many seconds at most, and say whether it has ended."""
        self._thread.join(within)
        return not self.running

    def finish(self) -> BundleManifest:
        """Wait for its end, and do the rest in this thread; raises what it has raised."""
        self._thread.join()
        if self._finish is None:
            raise self._error or RuntimeError("the thread that makes a bundle was ended")
        return self._finish()

    def _run(self) -> None:
        try:
            self._finish = self._make()
        except Exception as error:  # noqa: BLE001 - it is raised where the bundle is asked for
            self._error = error
