"""What the thread that searches waits on: a bell, beside which other work may wait."""

import threading
from typing import Protocol

__all__ = ["Bell", "Beside"]


class Beside(Protocol):
    """A bell, with work of its own that is answered on the thread that waits."""

    @property
    def waits(self) -> bool:
        """Whether work waits here."""

    def ring(self) -> None:
        """End the wait, or the next one where nobody waits; from any thread."""

    def wait(self) -> None:
        """Wait until the bell rings or work waits here."""

    def answer(self) -> None:
        """Answer a batch of what waits here."""

    def end(self) -> None:
        """Refuse what waits here and what comes: the thread that answers has ended."""


class Bell(Beside):
    """A bell alone."""

    waits = False

    def __init__(self) -> None:
        self._rung = threading.Event()

    def ring(self) -> None:  # noqa: D102 - see the protocol
        self._rung.set()

    def wait(self) -> None:  # noqa: D102
        self._rung.wait()
        self._rung.clear()

    def answer(self) -> None:
        """Do nothing: nothing waits here."""

    def end(self) -> None:
        """Do nothing: nothing waits here."""
