import numpy as np
import pytest

from tests.trainer.support import drawn
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store, WindowLog
from weir.trainer.config import TrainerConfig
from weir.trainer.export.cases import Cases, RecentCases
from weir.trainer.step.positives import read_positives


def noted(store: Store, config: TrainerConfig, last: int) -> RecentCases:
    """What a run has that was trained on all windows up to `last` itself."""
    recent, log = RecentCases(store, config), WindowLog(store)
    for manifest in log.committed()[: last + 1]:
        recent.note(manifest, drawn(store, manifest, config))
    return recent


def same(one: Cases, other: Cases) -> bool:
    is_same = one.features.layout == other.features.layout
    pairs = zip((*one[:2], one.features.lines), (*other[:2], other.features.lines), strict=True)
    return is_same and all(np.array_equal(left, right) for left, right in pairs)


@pytest.mark.parametrize(("events", "taken"), [(5, 200), (30, 210), (150, 300), (400, 400), (1500, 1000)])
def test_the_newest_window_counts_and_small_ones_are_pooled(
    store: Store, writer: WindowWriter, config: TrainerConfig, events: int, taken: int
) -> None:
    windows = -(-200 // events) + 2
    synthetic(writer, windows=windows, events=events)
    cases = noted(store, config, windows - 1).up_to(windows - 1)
    assert (len(cases), cases.histories.shape) == (taken, (taken, 6))
    newest = read_positives(WindowLog(store), WindowLog(store).committed()[-1], 6)
    assert np.isin(cases.items[: min(events, 1000)], newest.items).all()


def test_a_restart_chooses_the_same(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    synthetic(writer, windows=8, events=30)
    synthetic(writer, first=8, windows=4, events=30, said=True)
    assert noted(store, config, 9).up_to(9).features.lines.any()
    assert same(noted(store, config, 9).up_to(9), RecentCases(store, config).up_to(9))
    # Half of it known, half of it read.
    resumed, log = RecentCases(store, config), WindowLog(store)
    for manifest in log.committed()[8:10]:
        resumed.note(manifest, drawn(store, manifest, config))
    assert same(resumed.up_to(9), noted(store, config, 9).up_to(9))


def test_no_more_is_kept_than_may_be_asked_for(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    synthetic(writer, windows=12, events=60)
    recent = noted(store, config, 11)
    for window in WindowLog(store).committed():
        store.remove(window.folder)
    assert len(recent.up_to(11)) == 240
    assert len(recent.up_to(7)) == 0


def test_before_the_first_window_and_without_it_there_is_nothing(store: Store, config: TrainerConfig) -> None:
    for sequence in (-1, 0, 7):
        cases = RecentCases(store, config).up_to(sequence)
        assert (len(cases), cases.histories.shape) == (0, (0, 6))


def test_a_damaged_window_ends_the_pool(
    store: Store, writer: WindowWriter, config: TrainerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    synthetic(writer, windows=3, events=50)
    damaged = WindowLog(store).committed()[1]
    store.write(f"{damaged.folder}/{damaged.name.examples(0)}", b"nothing")
    assert len(RecentCases(store, config).up_to(2)) == 50
    assert "without the cases of window 1 and before" in caplog.text
