"""A chain as one complete bundle: it answers as the chain does, and exports go on from it."""

import io
import os
import threading
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.export.test_deltas import assert_published, replace_item, set_item, turn, with_settings
from tests.trainer.support import absorbed
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleFile, BundleLog, BundleManifest, CorruptArtefactError, ItemKeys, Store
from weir.contracts.base.string_arrays import Texts
from weir.contracts.verification import verify
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.trainer.export import compaction, export_bundle
from weir.trainer.export.compaction import compact, start_compaction
from weir.trainer.export.planner import ExportPlanner
from weir.trainer.export.servable import Servable
from weir.trainer.export.snapshot import PublishedSnapshot
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState

CHANGES = st.lists(st.sampled_from(["turn", "leave", "replace", "come"]), min_size=1, max_size=4)


@pytest.fixture(params=["Flat", "IVF8,SQfp16"])
def state(store: Store, writer: WindowWriter, config: TrainerConfig, request: pytest.FixtureRequest) -> TrainerState:
    synthetic(writer, windows=1)
    state = absorbed(store, config)
    with_settings(state, index=request.param)
    state.position.trained_sequence = 0
    return state


def change(state: TrainerState, what: str, draw: np.random.Generator) -> None:
    """Change some items, so that a version after it is another one."""
    turn(state, *draw.permutation(len(state.table))[:2].tolist())
    item, key = int(draw.integers(len(state.table))), 1 + int(state.table.keys.max() // 2)
    while key in state.table.keys:
        key += 1
    if what == "leave" and len(state.table) > 40:
        set_item(state, int(state.table.live[item]), 0, "")
    elif what == "replace":
        replace_item(state, item, key, f"new {key}")
    elif what == "come":
        owned = set(state.table.live.tolist())
        row = next(row for row in range(2, state.table.capacity) if row not in owned)
        state.embeddings.weight[row] = torch.from_numpy(draw.normal(size=8).astype(np.float32))
        set_item(state, row, key, f"new {key}")


def compacted(store: Store, version: str) -> BundleManifest:
    log = BundleLog(store)
    servable = Servable.open(log, log.manifest(version))
    return compact(log, PublishedSnapshot.of(servable), servable).servable.manifest


def assert_same(one: LoadedBundle, other: LoadedBundle, draw: np.random.Generator) -> None:
    """Check that two loaded bundles answer the same, up to ties."""
    live = one.rows.live
    assert (one.version, one.items) == (other.version, other.items)
    np.testing.assert_array_equal(live, other.rows.live)
    for name in ("ids", "keys", "popularity", "vectors"):
        np.testing.assert_array_equal(getattr(one.rows, name)[live], getattr(other.rows, name)[live])
    embedded = np.concatenate([[0, 1], live + 2])
    np.testing.assert_array_equal(one.embeddings[embedded], other.embeddings[embedded])
    asked = ItemKeys(np.concatenate([one.rows.keys[live], draw.integers(1, 2**40, 5)]))
    np.testing.assert_array_equal(one.rows_of(asked), other.rows_of(asked))
    queries = draw.normal(size=(5, 8)).astype(np.float32)
    for lists in (1, 8):
        mine, others = (bundle.index.search(queries, 10, nprobe=lists) for bundle in (one, other))
        np.testing.assert_allclose(mine.scores, others.scores, rtol=1e-5)
        assert (mine.rows == others.rows).mean() > 0.9
    np.testing.assert_array_equal(one.popular.first(len(live)), other.popular.first(len(live)))
    history = ItemKeys(one.rows.keys[live[:6]][None])
    np.testing.assert_array_equal(one.users(history), other.users(history))


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(before=CHANGES, after=CHANGES, seed=st.integers(0, 2**32 - 1))
def test_a_compacted_chain_answers_as_the_chain_and_so_does_what_builds_on_it(
    store: Store, state: TrainerState, before: list[str], after: list[str], seed: int
) -> None:
    draw, log = np.random.default_rng(seed), BundleLog(store)
    store.remove("bundles")
    planner = ExportPlanner()
    versions = [export_bundle(store, state, planner=planner).version]
    for what in [*before, *after]:
        change(state, what, draw)
        versions.append(export_bundle(store, state, planner=planner).version)
    middle, newest = versions[len(before)], versions[-1]
    first, *plain = (load_bundle(log, version) for version in (versions[0], middle, newest))
    whole = compacted(store, middle)
    assert [one.version for one in log.chain(log.manifest(newest))] == versions[len(before) :]
    for name in (BundleFile.VECTORS, BundleFile.EMBEDDINGS):
        again = io.BytesIO()
        np.save(again, np.load(io.BytesIO(log.read(whole, name))))
        assert log.read(whole, name) == again.getvalue()
    started = load_bundle(log, middle, places=True)
    assert started.manifest == whole
    assert_same(plain[0], started, draw)
    assert_same(plain[1], load_bundle(log, newest), draw)
    # Whoever serves one of them goes on by the deltas alone.
    for served in (first, plain[0], started):
        later = load_bundle(log, newest, served=served)
        assert later.rows.vectors.base is served.rows.vectors.base
        assert_same(plain[1], later, draw)
    change(state, "replace", draw)
    made = export_bundle(store, state)
    assert (made.base, made.depth) == (middle, len(after) + 1)
    assert_published(store, made, state)
    assert verify(store).findings == []


def test_ids_are_those_of_the_chain_and_none_is_a_string_of_python(store: Store, state: TrainerState) -> None:
    """Some rows hold no item."""
    log, planner = BundleLog(store), ExportPlanner()
    export_bundle(store, state, planner=planner)
    for what in ("leave", "replace"):
        change(state, what, np.random.default_rng(7))
    chain = Servable.open(log, export_bundle(store, state, planner=planner))
    whole = compact(log, PublishedSnapshot.of(chain), chain).servable
    live = chain.rows.live
    assert len(live) < len(chain.rows)
    for found in (whole, Servable.open(log, whole.manifest)):
        assert found.rows.ids[live].tolist() == chain.rows.ids[live].tolist()
        assert isinstance(found.rows.ids.base, Texts)


def last_ids(path: Path) -> int:
    """Return the bytes of the row numbers with which the file of an index ends, behind vectors."""
    index = faiss.read_index(str(path))
    if not hasattr(index, "nlist"):
        return 0
    return 8 * next(size for size in map(index.invlists.list_size, range(index.nlist - 1, -1, -1)) if size)


@pytest.mark.parametrize("name", [BundleFile.INDEX, BundleFile.EMBEDDINGS, BundleFile.VECTORS])
def test_what_is_damaged_after_it_was_opened_is_not_copied(store: Store, state: TrainerState, name: str) -> None:
    log, planner = BundleLog(store), ExportPlanner()
    base = export_bundle(store, state, planner=planner)
    change(state, "turn", np.random.default_rng(6))
    delta = export_bundle(store, state, planner=planner)
    servable = Servable.open(log, delta)
    path = Path(store.path(f"{base.folder}/{name}"))
    data = bytearray(path.read_bytes())
    data[-1 - (last_ids(path) if name == BundleFile.INDEX else 0)] ^= 1
    with path.open("r+b") as file:  # in place, where it is mapped
        file.write(data)
    with pytest.raises(CorruptArtefactError, match=f"{name}.*has checksum"):
        compact(log, PublishedSnapshot.of(servable), servable)
    assert log.compacted(delta) is None


def follower(store: Store, state: TrainerState) -> ExportPlanner:
    """Return a planner whose first bundle is there."""
    planner = ExportPlanner()
    export_bundle(store, state, planner=planner)
    planner.beside = True
    return planner


def test_a_follower_exports_no_further_complete_bundle(store: Store, state: TrainerState) -> None:
    draw, log = np.random.default_rng(5), BundleLog(store)
    with_settings(state, bundle_chain=4, bundles_kept=1)
    planner, made = follower(store, state), []
    for what in ["turn", "come", "leave", "replace", "turn", "come", "turn", "leave", "turn", "come", "turn", "turn"]:
        served = load_bundle(log, str(log.current()))
        change(state, what, draw)
        made.append(export_bundle(store, state, planner=planner))
        # A running server reads the newest delta only, a new one at most the chain.
        new = load_bundle(log, made[-1].version)
        assert_same(load_bundle(log, made[-1].version, served=served), new, draw)
        assert_published(store, made[-1], state)
        if planner._compaction is not None:
            planner._compaction.wait()
    assert all(one.parent is not None for one in made)
    assert [one.depth for one in made] == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3]
    assert [one.base for one in made[3::3]] == [one.version for one in made[2:-1:3]]
    # What the compacted chains were made of is gone.
    assert len(log.versions()) <= 4
    assert verify(store).findings == []


def test_what_is_kept_by_row_is_what_a_restarted_process_would_keep(store: Store, state: TrainerState) -> None:
    draw, log = np.random.default_rng(6), BundleLog(store)
    planner = follower(store, state)
    for what in ["come", "leave", "turn"]:
        change(state, what, draw)
        newest = export_bundle(store, state, planner=planner)
    assert planner._kept is not None
    servable = planner.open(log, newest)
    made = compact(log, planner._kept, servable)
    change(state, "leave", draw)
    newest = export_bundle(store, state, planner=planner)
    found = made.under(log, planner._kept)
    assert found is not None
    (kept, answers), fresh = found, PublishedSnapshot.of(Servable.open(log, newest))
    live = fresh.rows.live
    assert kept.manifest == answers.manifest == newest
    assert kept.free.tolist() == fresh.free.tolist()
    assert len(kept.rows.vectors.over) < len(planner._kept.rows.vectors.over)
    np.testing.assert_array_equal(kept.rows.vectors[live], fresh.rows.vectors[live])
    assert (kept.lists is None) == (fresh.lists is None)
    if kept.lists is not None and fresh.lists is not None:
        mine, others = kept.lists.assigned.take(live), fresh.lists.assigned.take(live)
        np.testing.assert_array_equal(mine.lists, others.lists)
        np.testing.assert_allclose(mine.cosines, others.cosines, atol=1e-6)


def test_no_export_waits_for_a_slow_compaction_and_a_failed_one_ends_in_a_complete_bundle(
    store: Store, state: TrainerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_settings(state, bundle_chain=2)
    draw, planner = np.random.default_rng(7), follower(store, state)
    end, depths = threading.Event(), []
    monkeypatch.setattr(compaction, "compact", lambda *_: end.wait())
    for _ in range(5):
        change(state, "turn", draw)
        depths.append(export_bundle(store, state, planner=planner).depth)
    assert depths == [1, 2, 3, 4, 0]
    end.set()

    def failing(*_: Any) -> None:
        raise OSError("no space left")

    planner, depths = ExportPlanner(beside=True), []
    monkeypatch.setattr(compaction, "compact", failing)
    for _ in range(4):
        change(state, "turn", draw)
        depths.append(export_bundle(store, state, planner=planner).depth)
        if planner._compaction is not None:
            planner._compaction.wait()
    assert depths == [1, 2, 0, 1]


def test_what_is_compacted_is_dropped_where_another_chain_has_started(store: Store, state: TrainerState) -> None:
    with_settings(state, bundle_chain=2)
    draw, planner = np.random.default_rng(8), follower(store, state)
    for _ in range(2):
        change(state, "turn", draw)
        export_bundle(store, state, planner=planner)
    assert planner._compaction is not None
    planner._compaction.wait()
    planner._kept = None
    turn(state, *range(20))
    other = export_bundle(store, state, planner=planner)
    assert other.depth == 0
    change(state, "turn", draw)
    made = export_bundle(store, state, planner=planner)
    assert (made.base, made.depth) == (other.version, 1)
    assert_published(store, made, state)


def test_a_compaction_gives_way_to_the_stream(
    store: Store, state: TrainerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner, seen = ExportPlanner(), []
    made = export_bundle(store, state, planner=planner)
    assert planner._kept is not None
    monkeypatch.setattr(compaction, "compact", lambda *_: seen.append(os.getpriority(os.PRIO_PROCESS, 0)))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    start_compaction(BundleLog(store), planner._kept, planner.open(BundleLog(store), made)).wait()
    # For a thread, 0 is the thread itself.
    assert seen == [min(own + 10, 19)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
