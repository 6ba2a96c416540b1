"""Log a problem once, although it recurs at every poll."""

import logging
from dataclasses import dataclass, field
from typing import Final

from weir.contracts import CorruptArtefactError
from weir.serving.client import RetrievalError

__all__ = ["Problems"]

_REMEMBERED: Final = 64
"""Distinct problems that are remembered: a store whose messages never repeat must not fill the memory."""


@dataclass
class Problems:
    """Logs each distinct problem once, until the next success.

    Expected errors of a store or server take one line; any other comes with its traceback.
    """

    log: logging.Logger
    _told: set[str] = field(default_factory=set, init=False)

    def report(self, error: Exception, message: str, *, level: int = logging.ERROR) -> bool:
        """Log ``message: error`` unless it was logged before; return whether it was new."""
        problem = f"{type(error).__name__}: {error}"
        if problem in self._told:
            return False
        if len(self._told) >= _REMEMBERED:
            self._told.clear()
        self._told.add(problem)
        expected = isinstance(error, CorruptArtefactError | OSError | RetrievalError)
        self.log.log(level, "%s: %s", message, error if expected else problem, exc_info=None if expected else error)
        return True

    def over(self) -> None:
        """Forget all problems after a success: later failures are logged again."""
        self._told.clear()
