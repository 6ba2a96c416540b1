import os
import signal
import threading

from contracts import Store, WindowLog
from tests.trainer.windows import WindowWriter, synthetic
from trainer.ranks.workers import Workers
from trainer.stream.windows import StopSignal, windows


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
