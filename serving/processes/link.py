"""What the processes of a server tell their parent beside their versions: their log and, when it asks, their metrics.

The parent alone writes the log and answers scrapes. Where it has ended, the others end.
"""

import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, Metric

__all__ = ["ParentLink", "ProcessLink", "Start"]

log = logging.getLogger(__name__)

_LOG: Final = "log"
_METRICS: Final = "metrics"


class Start(NamedTuple):
    """The first that a process hears: its number from 0, the levels of loggers, and what it is to run with."""

    number: int
    levels: dict[str, int]
    arguments: tuple[Any, ...]


class _Sender(logging.Handler):
    """Sends records to the parent, with their traceback as text."""

    def __init__(self, send: Callable[[tuple[str, Any]], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        sent = logging.makeLogRecord({**record.__dict__, "msg": text, "args": None, "exc_info": None})
        if record.exc_info:
            sent.exc_text = _visible(logging.Formatter().formatException(record.exc_info))
        try:
            self._send((_LOG, sent))
        except Exception:  # noqa: BLE001 - whatever a record holds: logging must not fail
            self.handleError(record)


@dataclass
class ParentLink:
    """The end of a process that answers. Its event loop calls `beat`, at least every `patience` seconds."""

    connection: Connection
    patience: float = 30.0
    registry: CollectorRegistry = field(default_factory=lambda: CollectorRegistry(auto_describe=True))
    _sending: threading.Lock = field(default_factory=threading.Lock, init=False)
    _beat: float = field(default_factory=time.monotonic, init=False)

    def receive_start(self) -> Start:
        """Wait for the first message, and send records of the log from then on."""
        start: Start = self.connection.recv()
        for name, level in start.levels.items():
            logging.getLogger(name).setLevel(level)
        logging.getLogger().addHandler(_Sender(self._send))
        threading.Thread(target=self._answer, name="weir-link", daemon=True).start()
        return start

    def beat(self) -> None:
        """Say that the event loop runs."""
        self._beat = time.monotonic()

    def _answer(self) -> None:
        """Answer scrapes until the parent ends, and then end in order; at once where the event loop hangs."""
        try:
            while True:
                if self.connection.poll(1.0):
                    self.connection.recv_bytes()
                    self._send((_METRICS, list(self.registry.collect())))
                if time.monotonic() - self._beat > self.patience:
                    log.error("the event loop has not run for %.0f s; this process ends", self.patience)
                    os._exit(1)
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGTERM)

    def _send(self, message: tuple[str, Any]) -> None:
        with self._sending:
            self.connection.send(message)


@dataclass
class ProcessLink:
    """The parent's end of one process; a thread reads it until the process has ended."""

    number: int
    connection: Connection
    metrics: list[Metric] = field(default_factory=list)
    """As of the last scrape."""
    _answers: "queue.SimpleQueue[list[Metric]]" = field(default_factory=queue.SimpleQueue, init=False)
    _asking: threading.Lock = field(default_factory=threading.Lock, init=False)

    def start(self, arguments: tuple[Any, ...]) -> None:
        """Tell the process what it is to run with, and listen to it from then on."""
        loggers = logging.root.manager.loggerDict
        levels = {name: one.level for name, one in loggers.items() if isinstance(one, logging.Logger) and one.level}
        self.connection.send(Start(self.number, {**levels, "": logging.root.level}, arguments))
        self._thread = threading.Thread(target=self._read, name=f"weir-process-{self.number}", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Ask for metrics; raises `OSError` where the process has ended."""
        self.connection.send_bytes(b"")

    def scraped(self, seconds: float) -> list[Metric]:
        """Return the metrics; where they do not come in time, those of the last scrape."""
        with self._asking:
            try:
                while not self._answers.empty():
                    self._answers.get_nowait()
                self.ask()
                self.metrics = self._answers.get(timeout=seconds)
            except (OSError, queue.Empty):
                pass
            return self.metrics

    def read_to_end(self) -> None:
        """Wait until everything is read that a process has said which has ended."""
        self._thread.join()

    def _read(self) -> None:
        try:
            while True:
                kind, what = self.connection.recv()
                if kind == _METRICS:
                    self._answers.put(what)
                else:
                    what.msg = f"process {self.number}: {what.msg}"
                    logging.getLogger(what.name).handle(what)
        except (EOFError, OSError):
            self.connection.close()


def _visible(text: str) -> str:
    """Return a traceback without control characters of its own: what a store holds may be in it."""
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)
