"""Windows that are read ahead are those that are read when their turn comes; what goes wrong ahead comes up then."""

import threading
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import CorruptArtefactError, Store, WindowLog, WindowManifest
from weir.trainer.config import TrainerConfig
from weir.trainer.ranks.workers import Workers
from weir.trainer.step.shared_window import SharedWindow
from weir.trainer.stream.read_ahead import ReadAhead


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
