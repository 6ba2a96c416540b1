"""What is made of files, and made again when they change: certificates, keys, tokens."""

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
    """What `make` makes of the files as they are now; where they cannot be used, of what they were before.

    Files that are replaced one after the other do not fit together for a moment: what is made of them must fail then.
    It may be shared between threads.

    Parameters
    ----------
    what
        Names it in the log.
    files
        Looked at once a second at most, or as often as `seconds` says.
    make
        Raises `OSError` or `ValueError` for what cannot be used.
        It is called here for the first time, and that error is raised.
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
        """Return the newest that can be used; the same object as long as nothing has changed."""
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
            # Taken before the files are read: what changes meanwhile is read at the next look.
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
