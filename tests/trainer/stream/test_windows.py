""""""

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.contracts.panes import retire_before
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import CorruptArtefactError, Store, WindowLog, WindowManifest
from weir.runtime.stopping import ended_by_signals
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.positives import SharedWindow
from weir.trainer.stream.windows import ReadAhead, windows


def test_a_bounded_stream_ends_with_the_last_commit(store: Store, writer: WindowWriter) -> None:
    synthetic(writer, windows=3)
    found = windows(WindowLog(store), 0, Workers(), threading.Event(), follow=False, poll_seconds=0.01)
    assert [manifest.sequence for manifest in found if manifest is not None] == [1, 2]


def test_a_followed_stream_goes_on_with_new_commits_until_a_signal(store: Store, writer: WindowWriter) -> None:
    synthetic(writer, windows=1)
    with ended_by_signals() as stop:
        seen = []
        for manifest in windows(WindowLog(store), -1, Workers(), stop, follow=True, poll_seconds=0.01):
            if manifest is None and len(seen) == 1:
                synthetic(writer, windows=1, seed=2, step_ms=7_200_000)
            elif manifest is None:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                seen.append(manifest.sequence)
        assert stop.is_set()
    assert seen == [0, 1]


def test_a_signal_ends_a_backlog_between_two_windows(store: Store, writer: WindowWriter) -> None:
    synthetic(writer, windows=3)
    with ended_by_signals() as stop:
        stream = windows(WindowLog(store), -1, Workers(), stop, follow=False, poll_seconds=0.01)
        first = next(stream)
        assert first is not None
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(30)
        assert list(stream) == []


def sequences(store: Store, after: int) -> list[int]:
    found = windows(WindowLog(store), after, Workers(), threading.Event(), follow=False, poll_seconds=0.01)
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
    stream = windows(log, -1, Workers(), threading.Event(), follow=False, poll_seconds=0.01)
    for read in ([-1], [-1, 0], [-1, 0, 1]):
        next(stream)
        assert log.reads == read


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that read a window, in order."""
    names, read = list[str](), SharedWindow.read

    def noted(log: WindowLog, manifest: WindowManifest, config: TrainerConfig, workers: Workers) -> SharedWindow:
        names.append(threading.current_thread().name)
        return read(log, manifest, config, workers)

    monkeypatch.setattr(SharedWindow, "read", noted)
    return names


def same(mine: SharedWindow, other: SharedWindow) -> bool:
    return all(np.array_equal(*pair) for pair in zip(mine.own, other.own, strict=True))


def test_a_window_is_read_ahead_once(
    store: Store, writer: WindowWriter, config: TrainerConfig, readers: list[str]
) -> None:
    synthetic(writer, windows=3)
    log = WindowLog(store)
    windows, ahead = log.committed(), ReadAhead(log, config, Workers())
    for manifest in windows:
        found = ahead.read(manifest)
        assert same(found, SharedWindow.read(log, manifest, config, Workers()))
        ahead.start(manifest.sequence)
    ahead.read(windows[0])  # waits for the thread, which has found nothing
    here = threading.current_thread().name
    assert readers == [here, here, "read-ahead", here, "read-ahead", here, here]


def test_a_window_that_is_another_one_now_is_read_again(
    store: Store, writer: WindowWriter, config: TrainerConfig, readers: list[str]
) -> None:
    synthetic(writer, windows=2)
    log = WindowLog(store)
    first, second = log.committed()
    ahead = ReadAhead(log, config, Workers())
    ahead.start(first.sequence)
    ahead.read(second.model_copy(update={"max_event_ms": 0}))
    assert readers == ["read-ahead", threading.current_thread().name]


def test_what_is_damaged_is_named_when_its_turn_comes(
    store: Store, writer: WindowWriter, config: TrainerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    synthetic(writer, windows=2)
    log = WindowLog(store)
    first, second = log.committed()
    for file in Path(store.url, second.folder).glob("examples*"):
        file.write_bytes(b"damaged")
    ahead = ReadAhead(log, config, Workers())
    with caplog.at_level("INFO"):
        ahead.start(first.sequence)
        with pytest.raises(CorruptArtefactError):
            ahead.read(second)
    assert "the window after 0 was not read ahead: " in caplog.text
    assert len(ahead.read(first)) == first.counts.positives
