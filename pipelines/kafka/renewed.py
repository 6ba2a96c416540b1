"""A client of the brokers that is replaced by a new one once it has failed for some seconds."""

import logging
import time
from collections.abc import Callable
from threading import RLock
from typing import Final, Generic, TypeVar

__all__ = ["PATIENCE_SECONDS", "Renewed"]

logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 5.0
_LONGEST_SECONDS: Final = 15.0

T = TypeVar("T")


class Renewed(Generic[T]):
    """The client that `make` returns; after it has failed for five seconds, another one.

    A client of librdkafka (2.16) may never find its brokers again, though they are back and a new client reaches them
    at once: where the last broker's connection closes while an answer without brokers arrives, its search for brokers
    is cancelled for good. `drop` gets the client that is replaced. As long as none works, each gets twice the time of
    the one before, fifteen seconds at most. Safe to use from several threads.
    """

    def __init__(self, name: str, make: Callable[[], T], drop: Callable[[T], None]) -> None:
        self._name, self._make, self._drop = name, make, drop
        self._lock = RLock()
        self._failing_since: float | None = None
        self.unanswered_since: float | None = None
        """Since when this client, or those before it, have failed (wall clock, s); None while one works."""
        self._patience = PATIENCE_SECONDS
        self._client = make()

    @property
    def client(self) -> T:
        """The client to use now; a new one raises what `make` raises."""
        with self._lock:
            if self._failing_since is not None and time.monotonic() - self._failing_since >= self._patience:
                self._replace(time.monotonic() - self._failing_since)
            return self._client

    def _replace(self, seconds: float) -> None:
        level = logging.INFO if self._patience == PATIENCE_SECONDS else logging.DEBUG
        logger.log(level, "%s: a client has failed for %.0f s; a new one takes its place", self._name, seconds)
        before, self._client = self._client, self._make()
        self._failing_since, self._patience = None, min(2 * self._patience, _LONGEST_SECONDS)
        self._drop(before)

    def failed(self, client: T) -> None:
        """Take in that a client did not do what was asked of it; one that was replaced does not count."""
        with self._lock:
            if client is self._client and self._failing_since is None:
                self._failing_since = time.monotonic()
                self.unanswered_since = self.unanswered_since or time.time()

    def worked(self, client: T) -> None:
        """Take in that a client did what was asked of it."""
        with self._lock:
            if client is self._client:
                self._failing_since, self._patience = None, PATIENCE_SECONDS
                self.unanswered_since = None

    def close(self) -> None:
        """Drop the client."""
        self._drop(self._client)
