import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from typing import ClassVar

import pytest
from prometheus_client import Counter

from weir.serving.processes.link import ParentLink, ProcessLink, Start


@pytest.fixture(autouse=True)
def root() -> Iterator[logging.Logger]:
    found = logging.getLogger()
    handlers, level = found.handlers[:], found.level
    yield found
    found.handlers[:] = handlers
    found.setLevel(level)


def wait_for(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 10
    while not holds() and time.monotonic() < ends:
        time.sleep(0.01)


class Ends:
    """Both ends of a link, in one process; they stay open until that ends: a closed one has it end."""

    kept: ClassVar[list["Ends"]] = []

    def __init__(self) -> None:
        one, other = Pipe()
        self.parent, self.process = ProcessLink(3, one), ParentLink(other, patience=float("inf"))
        self.kept.append(self)


def test_the_metrics_of_a_process_are_those_of_its_registry_at_the_scrape() -> None:
    ends = Ends()
    ends.parent.start(("what", 1))
    start = ends.process.receive_start()
    assert (start.number, start.arguments) == (3, ("what", 1))
    counter = Counter("calls", "Calls.", registry=ends.process.registry)
    for calls in (1, 2):
        counter.inc()
        [family] = ends.parent.scraped(5)
        assert family.samples[0].value == calls


def test_a_process_that_does_not_answer_counts_as_it_last_did() -> None:
    one, other = Pipe()
    link = ProcessLink(0, one)
    link.start(())
    other.recv()
    asked = threading.Thread(target=lambda: (other.recv_bytes(), other.send(("metrics", ["first"]))))
    asked.start()
    assert link.scraped(5) == ["first"]
    asked.join()
    assert link.scraped(0.01) == ["first"]
    other.close()
    link.read_to_end()
    assert link.scraped(5) == ["first"]


def test_a_record_arrives_with_its_traceback_and_without_control_characters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ends = Ends()
    ends.parent.start(())
    before = logging.getLogger().handlers[:]
    ends.process.receive_start()
    [sender] = [handler for handler in logging.getLogger().handlers if handler not in before]
    logging.getLogger().removeHandler(sender)  # of this process it would send what it has received
    try:
        raise ValueError("bad \x1b[31m id")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
        sender.emit(logging.LogRecord("serving.x", logging.ERROR, "", 0, "a %s failed", ("call",), info))
    wait_for(lambda: bool(caplog.records))
    [record] = caplog.records
    assert (record.name, record.getMessage()) == ("serving.x", "process 3: a call failed")
    assert record.exc_text is not None
    assert "ValueError: bad \\x1b[31m id" in record.exc_text
    assert "\n" in record.exc_text


def test_levels_hold_in_all_processes(root: logging.Logger) -> None:
    ends = Ends()
    root.setLevel(logging.ERROR)
    logging.getLogger("noisy").setLevel(logging.CRITICAL)
    ends.parent.start(())
    root.setLevel(logging.INFO)
    logging.getLogger("noisy").setLevel(logging.NOTSET)
    ends.process.receive_start()
    assert root.level == logging.ERROR
    assert logging.getLogger("noisy").level == logging.CRITICAL


def test_without_its_parent_a_process_ends_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: signals.append(number))
    parent, its = Pipe()
    parent.send(Start(0, {}, ()))
    ParentLink(its, patience=float("inf")).receive_start()
    parent.close()
    wait_for(lambda: bool(signals))
    assert signals == [signal.SIGTERM]


def test_a_process_whose_event_loop_hangs_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int] = []
    signals: list[int] = []

    def end(status: int) -> None:
        statuses.append(status)
        raise OSError("it has ended")

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(os, "kill", lambda _, number: signals.append(number))
    parent, its = Pipe()
    parent.send(Start(0, {}, ()))
    ParentLink(its, patience=0.0).receive_start()
    wait_for(lambda: bool(signals))
    assert statuses == [1]
    parent.close()
