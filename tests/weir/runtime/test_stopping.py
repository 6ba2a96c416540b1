import signal
import threading

import pytest

from weir.runtime.stopping import ended_by_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_event_and_is_what_it_was_afterwards(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with ended_by_signals() as stop:
        assert signal.getsignal(number) != before
        assert not stop.wait(0.01)
        signal.raise_signal(number)
        assert stop.wait(30)
    assert signal.getsignal(number) == before


def test_a_signal_may_come_while_the_main_thread_is_within_the_event() -> None:
    """`Event.wait` holds this lock at its beginning and at its end; a handler that sets the event waits for it, too."""
    with ended_by_signals() as stop:
        with stop._cond:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGTERM)
        assert stop.wait(30)


def test_a_second_signal_changes_nothing() -> None:
    with ended_by_signals() as stop:
        for _ in range(1000):
            signal.raise_signal(signal.SIGTERM)
        assert stop.wait(30)


def test_another_thread_asks_for_no_signals() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def ask() -> None:
        with ended_by_signals() as stop:
            found.append((signal.getsignal(signal.SIGTERM), stop.is_set()))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [(before, False)]


def test_an_event_of_the_caller_is_the_one_that_is_set(caplog: pytest.LogCaptureFixture) -> None:
    stop = threading.Event()
    with caplog.at_level("INFO"), ended_by_signals(stop) as same:
        signal.raise_signal(signal.SIGINT)
        assert stop.wait(30)
    assert same is stop
    assert "SIGINT: ending" in caplog.text
