import os
import signal
import threading

import pytest

from tests.contracts.panes import retire_before
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store, WindowLog, WindowManifest
from weir.trainer.ranks.workers import Workers
from weir.trainer.stream.windows import StopSignal, windows


def test_a_bounded_stream_ends_with_the_last_commit(store: Store, writer: WindowWriter) -> None:
    synthetic(writer, windows=3)
    with StopSignal() as stop:
        found = windows(WindowLog(store), 0, Workers(), stop, follow=False, poll_seconds=0.01)
        assert [manifest.sequence for manifest in found if manifest is not None] == [1, 2]


def test_a_followed_stream_goes_on_with_new_commits_until_a_signal(store: Store, writer: WindowWriter) -> None:
    synthetic(writer, windows=1)
    with StopSignal() as stop:
        seen = []
        for manifest in windows(WindowLog(store), -1, Workers(), stop, follow=True, poll_seconds=0.01):
            if manifest is None and len(seen) == 1:
                synthetic(writer, windows=1, seed=2, step_ms=7_200_000)
            elif manifest is None:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                seen.append(manifest.sequence)
        assert stop.requested
    assert seen == [0, 1]


def test_a_signal_ends_a_backlog_between_two_windows(store: Store, writer: WindowWriter) -> None:
    synthetic(writer, windows=3)
    with StopSignal() as stop:
        stream = windows(WindowLog(store), -1, Workers(), stop, follow=False, poll_seconds=0.01)
        first = next(stream)
        assert first is not None
        os.kill(os.getpid(), signal.SIGTERM)
        assert list(stream) == []


def test_handlers_are_put_back_and_threads_do_without() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
    failures: list[BaseException] = []

    def enter() -> None:
        try:
            with StopSignal() as stop:
                assert not stop.requested
        except BaseException as error:  # noqa: BLE001 - told to the main thread
            failures.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert failures == []


def sequences(store: Store, after: int) -> list[int]:
    with StopSignal() as stop:
        found = windows(WindowLog(store), after, Workers(), stop, follow=False, poll_seconds=0.01)
        return [manifest.sequence for manifest in found if manifest is not None]


def test_windows_that_have_retired_are_named_and_left_out(
    store: Store, writer: WindowWriter, caplog: pytest.LogCaptureFixture
) -> None:
    synthetic(writer, windows=5)
    assert sequences(store, -1) == [0, 1, 2, 3, 4]
    assert caplog.text == ""
    retire_before(store, 3, 3 * 3_600_000)
    assert sequences(store, -1) == [3, 4]
    assert "panes 0 to 2 have retired and are not trained on: training goes on with window 1970" in caplog.text
    assert sequences(store, 0) == [3, 4]
    assert "panes 1 to 2 have retired" in caplog.text
    caplog.clear()
    assert sequences(store, 2) == [3, 4]
    assert caplog.text == ""


class CountingLog(WindowLog):
    """Keeps how far the stream was when each commit was read."""

    reads: list[int]

    def next(self, after: int = -1) -> tuple[WindowManifest, ...]:
        self.reads.append(after)
        return super().next(after)


def test_a_backlog_is_taken_in_commit_by_commit(store: Store, writer: WindowWriter) -> None:
    synthetic(writer, windows=4)
    log = CountingLog(store)
    log.reads = []
    with StopSignal() as stop:
        stream = windows(log, -1, Workers(), stop, follow=False, poll_seconds=0.01)
        for read in ([-1], [-1, 0], [-1, 0, 1]):
            next(stream)
            assert log.reads == read
