"""A commit log that is not the one of the newest checkpoint: training refuses it by name, and goes on as it says."""

import logging
import shutil
from pathlib import Path

import pytest

from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, CommitLog, Store
from weir.contracts.bundles.checkpoint import checkpoint_names
from weir.contracts.commits.commit_log import HEAD, LogMismatchError
from weir.trainer.export import export
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.train import train

WINDOWS = 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainerConfig]:
    """A store with a checkpoint and a bundle after each window."""
    folder = tmp_path_factory.mktemp("trained") / "store"
    store = Store(str(folder))
    small = TrainerConfig(device="cpu", batch_size=32, evaluation_examples=20, checkpoints_kept=WINDOWS, metrics_port=0)
    tower = small.tower.model_copy(update={"kind": "mean_pooling", "dimension": 8, "history_length": 5})
    config = small.model_copy(update={"tower": tower})
    writer = WindowWriter(store)
    for number in range(WINDOWS):
        synthetic(writer, first=number, windows=1, events=60, seed=number)
        train(store, config)
    return folder, config


def lose(store: Store, commits: int) -> None:
    """Remove the newest commits, as a copy has it that is older than they are; HEAD is no part of it."""
    store.remove(HEAD)
    for number in range(WINDOWS - commits, WINDOWS):
        store.remove(CommitLog.name(number))


def write_anew(store: Store, commits: int, new: int) -> None:
    """Commit other windows in the place of lost ones."""
    writer = WindowWriter(store)
    writer.sequence = WINDOWS - commits
    synthetic(writer, first=WINDOWS + 10, windows=new, events=60, seed=99)


@pytest.mark.parametrize(("lost", "new"), [(1, 0), (1, 1), (1, 3), (2, 1), (2, 4), (4, 0), (4, 4), (4, 6)])
def test_it_is_refused_by_name_and_what_the_error_says_works(
    trained: tuple[Path, TrainerConfig], tmp_path: Path, lost: int, new: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole, config = trained
    store = Store(str(shutil.copytree(whole, tmp_path / "store")))
    lose(store, lost)
    write_anew(store, lost, new)
    newest = checkpoint_names(store)[-1]
    for run in (train, export):
        with pytest.raises(LogMismatchError, match=newest) as refused:
            run(store, config)
        assert refused.value.reason == ("other_commit" if new >= lost else "log_ends_before")
    assert checkpoint_names(store)[-1] == newest, "a refused run saves nothing"
    # The error names each folder to remove.
    for name in checkpoint_names(store):
        if f"checkpoints/{name} " in f"{refused.value} ":
            store.remove(f"checkpoints/{name}")
    assert len(checkpoint_names(store)) == (WINDOWS - lost or WINDOWS)
    if lost == WINDOWS:
        assert f"remove {store.path('checkpoints')}/, " in str(refused.value)
        store.remove("checkpoints")
    with caplog.at_level(logging.WARNING):
        summary = train(store, config)
    assert summary.windows == new
    if summary.windows:
        mark = checkpoint_names(store)[-1].split("-")
        assert int(mark[1]) == WINDOWS - lost + new
        assert "it stays promoted, and is not tested up to pane" in caplog.text
        assert BundleLog(store).manifest(str(summary.bundle)).trained_sequence == WINDOWS - lost + new - 1


def test_a_run_that_follows_notices_that_the_log_ends_before_it(
    trained: tuple[Path, TrainerConfig], tmp_path: Path
) -> None:
    whole, config = trained
    store = Store(str(shutil.copytree(whole, tmp_path / "store")))
    polls = 0

    def lose_while_it_waits(*_: object) -> None:
        nonlocal polls
        polls += 1
        if polls == 2:
            lose(store, 2)
        assert polls < 40, "it waits on as if all were well"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weir.trainer.stream.windows.time.sleep", lose_while_it_waits)
        with pytest.raises(LogMismatchError) as refused:
            train(store, config, follow=True)
    assert refused.value.reason == "log_ends_before"


def test_a_checkpoint_of_an_earlier_version_is_compared_by_number(
    trained: tuple[Path, TrainerConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, config = trained
    store = Store(str(shutil.copytree(whole, tmp_path / "store")))
    store.remove("checkpoints")
    monkeypatch.setattr("weir.contracts.commits.window_log.WindowLog.last", None)
    train(store, config)
    monkeypatch.undo()
    assert train(store, config).windows == 0
    lose(store, 1)
    with pytest.raises(LogMismatchError) as refused:
        train(store, config)
    assert refused.value.reason == "log_ends_before"
