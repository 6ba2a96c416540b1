import pytest

from tests.trainer.support import absorbed
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, Store
from weir.trainer.config import TrainerConfig
from weir.trainer.export import export_bundle
from weir.trainer.export.opened import OpenBundles


@pytest.fixture
def log(store: Store, writer: WindowWriter, config: TrainerConfig) -> BundleLog:
    synthetic(writer, windows=1)
    state = absorbed(store, TrainerConfig.model_validate({**config.model_dump(), "bundle_chain": 0, "bundles_kept": 9}))
    state.position.trained_sequence = 0
    for _ in range(5):
        export_bundle(store, state)
        state.position.step += 1
    return BundleLog(store)


def test_the_three_that_were_used_last_are_not_read_again(log: BundleLog) -> None:
    opened = OpenBundles()
    first, second, third, fourth, _ = log.manifests()
    one = opened.open(log, first)
    for other in (second, third):
        opened.open(log, other)
    assert opened.open(log, first) is one
    opened.open(log, fourth)
    assert opened.open(log, first) is one
    before = opened.open(log, third)
    opened.open(log, second)
    assert opened.open(log, third) is before
    for other in (second, fourth):
        opened.open(log, other)
    assert opened.open(log, first) is not one


def test_what_was_just_written_is_read_from_its_files(log: BundleLog) -> None:
    opened, newest = OpenBundles(), log.manifests()[-1]
    one = opened.open(log, newest)
    again = opened.read(log, newest)
    assert again is not one
    assert opened.open(log, newest) is one
    assert opened.add(again) is opened.open(log, newest)
