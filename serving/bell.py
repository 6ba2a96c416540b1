"""Wake-up of the search thread, and an interface for work of another front that it answers too."""

import threading
from typing import Protocol

__all__ = ["Bell", "Beside"]


class Beside(Protocol):
    """A wake-up that also holds work of its own, answered by the waiting thread."""

    @property
    def waits(self) -> bool:
        """Whether work waits here."""

    def ring(self) -> None:
        """Wake the waiting thread, or make its next wait return at once; callable from any thread."""

    def wait(self) -> None:
        """Block until `ring` is called or work waits here."""

    def answer(self) -> None:
        """Answer a batch of the waiting work."""

    def end(self) -> None:
        """Refuse waiting and future work: the answering thread has ended."""


class Bell(Beside):
    """A wake-up without work of its own."""

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
