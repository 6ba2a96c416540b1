"""Logs a failure once, although it recurs at every poll."""

import logging
from dataclasses import dataclass, field
from typing import Final

from weir.contracts import CorruptArtefactError

__all__ = ["LogOnce"]

_REMEMBERED: Final = 64
"""Most distinct failures that are remembered, as messages that never repeat must not fill the memory."""


@dataclass
class LogOnce:
    """Logs each distinct failure once, until the next success.

    A failure of a store or of the system (`OSError`) is logged in one line, any other failure with its traceback.
    `expected` are further types of errors that are logged in one line.
    """

    log: logging.Logger
    expected: tuple[type[Exception], ...] = ()
    _logged: set[str] = field(default_factory=set, init=False)

    def failed(self, error: Exception, message: str, *, level: int = logging.ERROR) -> bool:
        """Log ``message: error`` unless it was logged before; return whether it was logged now."""
        failure = f"{type(error).__name__}: {error}"
        if failure in self._logged:
            return False
        if len(self._logged) >= _REMEMBERED:
            self._logged.clear()
        self._logged.add(failure)
        expected = isinstance(error, (CorruptArtefactError, OSError, *self.expected))
        self.log.log(level, "%s: %s", message, error if expected else failure, exc_info=None if expected else error)
        return True

    def succeeded(self) -> None:
        """Forget all failures: later ones are logged again."""
        self._logged.clear()
