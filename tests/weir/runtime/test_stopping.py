import signal
import threading

import pytest

from weir.runtime.stopping import ended_by_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_event_and_is_what_it_was_afterwards(number: signal.Signals) -> None:
    before, stop = signal.getsignal(number), threading.Event()
    with ended_by_signals(stop):
        assert not stop.wait(0.01)
        signal.raise_signal(number)
        assert stop.wait(30)
    assert signal.getsignal(number) == before


def test_a_signal_may_come_while_the_main_thread_is_within_the_event() -> None:
    """`Event.wait` holds this lock at its beginning and at its end; a handler that sets the event waits for it, too."""
    stop = threading.Event()
    with ended_by_signals(stop):
        with stop._cond:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGTERM)
        assert stop.wait(30)


def test_a_second_signal_changes_nothing() -> None:
    stop = threading.Event()
    with ended_by_signals(stop):
        for _ in range(1000):
            signal.raise_signal(signal.SIGTERM)
        assert stop.wait(30)


def test_another_thread_asks_for_no_signals() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def ask() -> None:
        with ended_by_signals(threading.Event()):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [before]
