"""The processes that answer, as their parent sees them: a version is served by all of them or by none."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.processes.arrays import Package, SharedArrays
from weir.serving.processes.channel import Channel, Kind, Message
from weir.serving.processes.version import Models, SharedVersion

__all__ = ["Crew", "Seat"]

log = logging.getLogger(__name__)

_OPEN_SECONDS: Final = 120.0
"""In which a process must have opened a version: it maps it, and looks its rows up in the catalogue."""

_ANSWER_SECONDS: Final = 10.0


@dataclass(eq=False)
class Seat:
    """A process: `channel` leads to it, `end` ends it where it does not answer."""

    number: int
    channel: Channel
    end: Callable[[], None]

    def said(self, kind: Kind, seconds: float) -> bool:
        """Wait until the process has said something; no: it has ended, or hangs."""
        try:
            while (message := self.channel.receive(seconds)) is not None:
                if message.kind == kind:
                    return True
        except OSError:
            pass
        return False


@dataclass
class Crew:
    """Shares versions with the processes that have joined. Methods may be called by any thread.

    All processes open a version before any of them serves it. Then all are told, and each swaps by one assignment: for
    the time of a message one may answer from the version before.
    """

    arrays: SharedArrays = field(default_factory=SharedArrays)
    promoted: str | None = None
    _seats: list[Seat] = field(default_factory=list, init=False)
    _package: Package | None = field(default=None, init=False)
    _served: str | None = field(default=None, init=False)
    _changing: threading.Lock = field(default_factory=threading.Lock, init=False)

    def share(self, bundle: LoadedBundle, models: Models) -> LoadedBundle:
        """Have a version served; returns it with its arrays as all have them: mapped.

        Raises `OSError` where there is no memory for it; the version before stays then.
        """
        with self._changing:
            shared = SharedVersion.of(bundle, models, self.arrays)
            package = self.arrays.package(shared)
            opened: SharedVersion = self.arrays.mapped.open(package)
            self._package, self._served = package, bundle.version
            ready = self._all("opened", self._seats, Message("open", bundle.version, package), _OPEN_SECONDS)
            self._all("serving", ready, Message("serve", bundle.version), _ANSWER_SECONDS)
            return opened.kept(bundle)

    def drop(self) -> None:
        """Have nothing served."""
        with self._changing:
            self._package = self._served = None
            self._all("serving", self._seats, Message("drop", self.promoted), _ANSWER_SECONDS)

    def join(self, seat: Seat) -> None:
        """Let a process answer that has started: it serves what the others do before it takes calls."""
        if not seat.said("started", _OPEN_SECONDS):
            return
        with self._changing:
            if self._package is not None:
                opened = self._all("opened", [seat], Message("open", self._served, self._package), _OPEN_SECONDS)
                if not self._all("serving", opened, Message("serve", self._served), _ANSWER_SECONDS):
                    return
            self._seats += self._all("listening", [seat], Message("listen", self._served), _ANSWER_SECONDS)

    def has(self, seat: Seat) -> bool:
        """Say whether a process has joined, and has not left."""
        return seat in self._seats

    def leave(self, seat: Seat) -> None:
        """Forget a process that has ended."""
        with self._changing, suppress(ValueError):
            self._seats.remove(seat)

    def _all(self, answer: Kind, seats: Sequence[Seat], message: Message, seconds: float) -> list[Seat]:
        """Tell processes something and wait for their answers; returns those that gave it."""
        told = []
        for seat in seats:
            with suppress(OSError):
                seat.channel.send(message)
                told.append(seat)
        done = []
        for seat in told:
            if seat.said(answer, seconds):
                done.append(seat)
            else:
                log.error("process %d did not get to %r: it is ended", seat.number, answer)
                seat.end()
        return done
