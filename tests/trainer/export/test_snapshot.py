""""""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.support import absorbed
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleFile, BundleLog, Store
from weir.contracts.base.arrays import Layers
from weir.trainer.export import export_bundle
from weir.trainer.export.index import Assigned
from weir.trainer.export.snapshot import ByRow, OpenBundles, have_moved, open_newest
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.01, 0.2]))
def test_a_vector_has_moved_where_it_is_further_off_than_the_bound(seed: int, bound: float) -> None:
    rng = np.random.default_rng(seed)
    old = rng.normal(size=(40, 5)).astype(np.float32)
    new = (old + rng.choice([0.0, 0.005, 0.05, 1.0], (40, 1)) * rng.normal(size=(40, 5))).astype(np.float32)
    mine, other = rng.permutation(40)[:20], rng.permutation(40)[:20]
    moved = have_moved(Layers.of(old), mine, new, other, bound)
    distances = np.linalg.norm((new[other] - old[mine]).astype(np.float64), axis=1)
    limits = bound * np.linalg.norm(old[mine].astype(np.float64), axis=1)
    clear = np.abs(distances - limits) > 1e-5
    np.testing.assert_array_equal(moved[clear], (distances > limits)[clear])


def test_what_is_no_number_has_moved() -> None:
    old = np.ones((1, 2), np.float32)
    assert have_moved(Layers.of(old), np.array([0]), np.full((1, 2), np.nan, np.float32), np.array([0]), 0.5).all()
    assert not have_moved(Layers.of(old), np.array([0]), old, np.array([0]), 0.0).any()


def test_lists_by_row_follow_changes_and_items_without_a_row_have_none() -> None:
    first = ByRow.of(Assigned(np.array([4, 7, 2]), np.array([0.5, 0.25, 1.0], np.float32)))
    later = first.replaced(np.array([2, 3]), Assigned(np.array([9, 1]), np.ones(2, np.float32)), np.array([0]))
    for by_row, lists, cosines in [(first, [7, -1, 2], [0.25, 0, 1]), (later, [7, -1, 9], [0.25, 0, 1])]:
        taken = by_row.take(np.array([1, -1, 2]))
        assert (taken.lists.tolist(), taken.cosines.tolist()) == (lists, cosines)
    assert later.take(np.array([3])).lists.tolist() == [1]


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
    found = open_newest(log).result()
    assert found is not None
    assert [one.manifest for one in found] == [newest, newest]


def test_without_a_bundle_there_is_nothing_to_open(store: Store) -> None:
    assert open_newest(BundleLog(store)).result() is None


ENDS = """
import sys, time
from weir.contracts import BundleLog, Store
from weir.trainer.export.snapshot import open_newest
from weir.trainer.export.servable import Servable
opened = Servable.open
def late(*given):
    try:
        time.sleep(1)
        return opened(*given)
    finally:
        print("ended")
Servable.open = late
open_newest(BundleLog(Store(sys.argv[1])))
sys.exit(3)
"""


def test_a_process_that_ends_meanwhile_does_so_afterwards(store: Store, state: TrainerState) -> None:
    export_bundle(store, state)
    command = [sys.executable, "-c", ENDS, store.url]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (3, "ended\n")


def test_a_bundle_that_is_damaged_is_left_to_whoever_needs_it(store: Store, state: TrainerState) -> None:
    Path(store.path(f"{export_bundle(store, state).folder}/{BundleFile.ITEMS}")).write_bytes(b"other")
    assert open_newest(BundleLog(store)).result() is None
