"""Objects loaded from files and reloaded when these change: certificates, keys, tokens."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

__all__ = ["FromFiles"]

log = logging.getLogger(__name__)

Made = TypeVar("Made")

_LOOK_SECONDS: Final = 1.0
_Stamp = tuple[tuple[int, int, int], ...]


class FromFiles(Generic[Made]):
    """An object that `make` creates from files, and creates again when they change; on failure, the old one stays.

    While several files are replaced one by one, they do not match for a moment: `make` must fail then. Thread-safe.

    Parameters
    ----------
    what
        Its name in the log.
    files
        Checked for changes at most once in `seconds`, one second by default.
    make
        Creates the object; raises `OSError` or `ValueError` for unusable files.
        It is first called by the constructor, which raises its error.
    """

    def __init__(
        self, what: str, files: Sequence[Path], make: Callable[[], Made], seconds: float | None = None
    ) -> None:
        self._what, self._files, self._make, self._seconds = what, files, make, seconds
        self._problem = ""
        self._lock = threading.Lock()
        self._stamp = _stamp(files)
        self._looked = time.monotonic()
        self._made = make()

    def get(self) -> Made:
        """Return the object from the newest usable files; the same one as long as nothing has changed."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= (_LOOK_SECONDS if self._seconds is None else self._seconds):
                self._looked = now
                self._look()
            return self._made

    def _look(self) -> None:
        try:
            stamp = _stamp(self._files)
            if stamp == self._stamp:
                return
            # Set before the files are read: a change meanwhile is noticed at the next check.
            self._stamp = stamp
            self._made = self._make()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a file, what was read before is good
            self._stamp = ()
            if str(error) != self._problem:
                log.error("%s: cannot be read again, what was read before stays: %s", self._what, error)
            self._problem = str(error)
        else:
            self._problem = ""
            log.info("%s: read again", self._what)


def _stamp(files: Sequence[Path]) -> _Stamp:
    found = [file.stat() for file in files]
    return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)
