import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.support import absorbed
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleFile, BundleLog, Store
from weir.trainer.config import TrainerConfig
from weir.trainer.export import export_bundle
from weir.trainer.export.opening import Opening
from weir.trainer.state.trainer_state import TrainerState


@pytest.fixture
def state(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    synthetic(writer, windows=1)
    state = absorbed(store, config)
    state.position.trained_sequence = 0
    return state


def test_the_newest_bundle_is_opened_and_not_the_one_that_is_served(store: Store, state: TrainerState) -> None:
    export_bundle(store, state)
    state.position.step += 1
    newest, log = export_bundle(store, state), BundleLog(store)
    log.promote(log.versions()[0])
    found = Opening(log).result()
    assert found is not None
    assert [one.manifest for one in found] == [newest, newest]


def test_without_a_bundle_there_is_nothing_to_open(store: Store) -> None:
    assert Opening(BundleLog(store)).result() is None


ENDS = """
import sys, time
from weir.contracts import BundleLog, Store
from weir.trainer.export.opening import Opening
from weir.trainer.export.servable import Servable
opened = Servable.open
def late(*given):
    try:
        time.sleep(1)
        return opened(*given)
    finally:
        print("ended")
Servable.open = late
Opening(BundleLog(Store(sys.argv[1])))
sys.exit(3)
"""


def test_a_process_that_ends_meanwhile_does_so_afterwards(store: Store, state: TrainerState) -> None:
    export_bundle(store, state)
    command = [sys.executable, "-c", ENDS, store.url]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (3, "ended\n")


def test_a_bundle_that_is_damaged_is_left_to_whoever_needs_it(store: Store, state: TrainerState) -> None:
    Path(store.path(f"{export_bundle(store, state).folder}/{BundleFile.ITEMS}")).write_bytes(b"other")
    assert Opening(BundleLog(store)).result() is None
