"""An export is killed before every change to the store: whatever it wrote, the next one goes on from it."""

import copy
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.campaigns.hunter import counting
from tests.kills import KilledError, killed_at
from tests.trainer.export.test_deltas import assert_published, turn
from tests.trainer.support import absorbed, batches_of
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, BundleManifest, Store
from weir.contracts.verification import verify
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.trainer.export import export_bundle
from weir.trainer.export import index as clusters
from weir.trainer.export import plan as fit
from weir.trainer.export.compaction import compact
from weir.trainer.export.planner import ExportPlanner
from weir.trainer.export.servable import Servable
from weir.trainer.export.snapshot import PublishedSnapshot
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TowerConfig, TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import train_step

CONFIG = TrainerConfig(
    device="cpu",
    batch_size=32,
    tower=TowerConfig(kind="mean_pooling", dimension=8, history_length=6),
    index="IVF4,SQfp16",
    nprobe=64,
    bundles_kept=1,
    publish_bound=1e-3,
)


@pytest.fixture
def state(tmp_path: Path) -> TrainerState:
    store = Store(str(tmp_path / "windows"))
    synthetic(WindowWriter(store), windows=1)
    state = absorbed(store, CONFIG)
    for batch in batches_of(store, state):
        train_step(state, batch, Workers())
    state.position.trained_sequence = 0
    return state


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a repair need few items."""
    monkeypatch.setattr(fit, "_CHANGED", 8)
    monkeypatch.setattr(clusters, "_REPAIR_LISTS", (2, 4))
    monkeypatch.setattr(clusters, "_ITEMS_PER_LIST", 2)


def a_delta(store: Store, state: TrainerState) -> ExportPlanner:
    """Get ready for an export that is a delta of a delta."""
    planner = ExportPlanner()
    export_bundle(store, state, planner=planner)
    turn(state, 1)
    export_bundle(store, state, planner=planner)
    turn(state, 2, 3)
    return planner


def a_repair(store: Store, state: TrainerState) -> ExportPlanner:
    """Get ready for an export that appends lists."""
    planner = ExportPlanner()
    export_bundle(store, state, planner=planner)
    rows = state.live[:10]
    state.embeddings.weight[rows] = -3 * state.embeddings.weight[state.live].mean(0)
    turn(state, *range(10), by=0.1)
    return planner


def a_training(store: Store, state: TrainerState) -> ExportPlanner:
    """Get ready for an export that takes new lists, and retires a chain."""
    planner = ExportPlanner()
    export_bundle(store, state, planner=planner)
    turn(state, 1)
    # The lists are too old now, which the delta does not wait for.
    planner.clock = lambda: time.time() + 2 * 86_400
    assert export_bundle(store, state, planner=planner).depth == 1
    while planner._training is None or planner._training.running:
        time.sleep(0.01)
    planner.clock = time.time
    turn(state, 2)
    return planner


def a_compacted_chain(store: Store, state: TrainerState) -> ExportPlanner:
    """Get ready for an export after which what a compacted chain was made of goes."""
    planner = a_delta(store, state)
    compacted(store)
    export_bundle(store, state, planner=planner)
    turn(state, 4)
    return planner


def compacted(store: Store) -> None:
    """Compact the chain of the promoted bundle."""
    log = BundleLog(store)
    servable = Servable.open(log, log.manifest(str(log.current())))
    compact(log, PublishedSnapshot.of(servable), servable)


def is_delta(made: BundleManifest) -> bool:
    return made.depth == 2


def is_repair(made: BundleManifest) -> bool:
    return made.depth == 1 and made.index.fit is not None and made.index.fit.repairs == 1


def is_training(made: BundleManifest) -> bool:
    return made.depth == 0 and made.index.fit is not None and made.index.fit.changed == 1


def replica(state: TrainerState, planner: ExportPlanner) -> tuple[TrainerState, ExportPlanner]:
    """Return a process's state and planner as another process would have them at the same moment."""
    return copy.deepcopy(state), copy.copy(planner)


def killed_exports(before: Path, state: TrainerState, planner: ExportPlanner) -> Iterator[Store]:
    """Yield stores in which an export was killed: before its first change, before its second, and so on."""
    for change in count():
        folder = before.parent / f"killed-{change}"
        shutil.copytree(before, folder)
        store, (its, mine) = Store(str(folder)), replica(state, planner)
        try:
            with killed_at(change):
                export_bundle(store, its, planner=mine)
                export_bundle(store, its, planner=mine)
        except KilledError:
            yield store
            shutil.rmtree(folder)
        else:
            return


@pytest.mark.parametrize(
    ("prepare", "is_it"),
    [(a_delta, is_delta), (a_repair, is_repair), (a_training, is_training), (a_compacted_chain, is_delta)],
)
def test_killed_before_any_change_the_next_export_goes_on(
    tmp_path: Path,
    state: TrainerState,
    prepare: Callable[[Store, TrainerState], ExportPlanner],
    is_it: Callable[[BundleManifest], bool],
) -> None:
    before = Store(str(tmp_path / "before"))
    planner = prepare(before, state)
    served = served_of(before)
    shutil.copytree(tmp_path / "before", tmp_path / "whole")
    its, mine = replica(state, planner)
    whole = export_bundle(Store(str(tmp_path / "whole")), its, planner=mine)
    assert is_it(whole), whole
    # What is a delta without a repair was made of the rows that were touched.
    assert (mine.compared < 1) == (is_it is is_delta)
    with counting(f"kills: export, {prepare.__name__[2:]}") as row:
        for store in killed_exports(tmp_path / "before", state, planner):
            row.faults += 1
            assert_sound(store, served)
            # The process starts again, and makes the same once more.
            restarted, again_state = ExportPlanner(), copy.deepcopy(state)
            again = export_bundle(store, again_state, planner=restarted)
            assert (again.version, BundleLog(store).current()) == (whole.version, whole.version)
            assert_sound(store, served)
            assert_published(store, again, again_state, bound=CONFIG.publish_bound)
            turn(again_state, 4)
            later = export_bundle(store, again_state, planner=restarted)
            assert_published(store, later, again_state, bound=CONFIG.publish_bound)
            assert_sound(store, served)
        assert row.faults >= 8
        row.without_effect = row.faults


def test_a_compaction_killed_before_any_change_leaves_the_chain(tmp_path: Path, state: TrainerState) -> None:
    before = Store(str(tmp_path / "before"))
    a_delta(before, state)
    served = served_of(before)
    with counting("kills: compaction") as row:
        for change in count():
            folder = tmp_path / f"killed-{change}"
            shutil.copytree(tmp_path / "before", folder)
            store = Store(str(folder))
            try:
                with killed_at(change):
                    compacted(store)
            except KilledError:
                row.faults += 1
            else:
                break
            assert_sound(store, served)
            compacted(store)
            assert_sound(store, served)
            its = copy.deepcopy(state)
            made = export_bundle(store, its)
            assert (made.base, made.depth) == (served.version, 1)
            assert_published(store, made, its, bound=CONFIG.publish_bound)
            assert_sound(store, served)
        assert row.faults == 6  # five files and the manifest
        row.without_effect = row.faults


def served_of(store: Store) -> LoadedBundle:
    log = BundleLog(store)
    return load_bundle(log, str(log.current()))


def assert_sound(store: Store, served: LoadedBundle) -> None:
    """Check every file, every chain, and that a server, running or new, takes what is promoted."""
    assert verify(store).findings == []
    log = BundleLog(store)
    for manifest in log.manifests():
        log.chain(manifest)
    new, running = served_of(store), load_bundle(log, str(log.current()), served=served)
    assert new.version == running.version
    assert new.items == running.items
