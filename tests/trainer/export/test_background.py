"""Work beside the stream: bundles that are built in a thread, and compaction of chains."""

import io
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import faiss
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.export.held import HeldKeeper, export_or_none
from tests.trainer.export.test_content import WINDOWS, a_stream, expiring, facts, learn, reopened
from tests.trainer.export.test_deltas import assert_published, replace_item, set_item, turn, with_settings
from tests.trainer.support import absorbed
from tests.trainer.windows import FEATURES, WindowWriter, synthetic
from weir.contracts import BundleFile, BundleLog, BundleManifest, CorruptArtefactError, ItemKeys, Store, WindowLog
from weir.contracts.base.string_arrays import Texts
from weir.contracts.verification import verify
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.trainer.export import compaction, export_bundle, planner
from weir.trainer.export.background import beside, none_left
from weir.trainer.export.compaction import compact, start_compaction
from weir.trainer.export.onnx_models import AwaitedError
from weir.trainer.export.planner import ExportPlanner
from weir.trainer.export.servable import RecentCases, Servable
from weir.trainer.export.snapshot import PublishedSnapshot
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState


def vectors() -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    return np.random.default_rng(0).standard_normal((100_000, 32), dtype=np.float32)


@pytest.mark.parametrize("name", ["faiss", "faiss again and again", "python"])
def test_none_is_left(name: str) -> None:
    has_started, is_done = Event(), Event()

    def work() -> None:
        given = vectors()
        has_started.set()
        if name == "faiss":
            with suppress(RuntimeError):
                faiss.index_factory(32, "IVF4096,Flat", faiss.METRIC_INNER_PRODUCT).train(given)
        while name == "python":
            time.sleep(0.001)
        while name == "faiss again and again":
            with suppress(RuntimeError):
                faiss.IndexFlatIP(32).search(given[:1], 1)
        is_done.set()

    with none_left():
        task = beside("work", work)
        assert has_started.wait(30)
        time.sleep(0.2)  # it is at it
    assert not task.running
    assert not is_done.is_set()


def test_faiss_computes_again_afterwards() -> None:
    has_started = Event()

    def work() -> None:
        has_started.set()
        with suppress(RuntimeError):
            faiss.index_factory(32, "IVF4096,Flat", faiss.METRIC_INNER_PRODUCT).train(vectors())

    with none_left():
        beside("work", work)
        assert has_started.wait(30)
        time.sleep(0.2)
    index = faiss.index_factory(32, "IVF16,Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors()[:1000])
    assert index.is_trained


def test_a_thread_that_is_awaited_ends_by_itself() -> None:
    let_go, is_done = Event(), Event()

    def work() -> None:
        assert let_go.wait(30)
        is_done.set()

    with none_left():
        task = beside("work", work, is_awaited=True)
    assert task.running
    let_go.set()
    assert task.wait(30)
    assert is_done.is_set()


def test_an_error_inside_stays_what_it_is() -> None:
    def failing() -> None:
        with none_left():
            beside("work", vectors)
            raise ValueError("what inside has raised")

    with pytest.raises(ValueError, match="what inside has raised"):
        failing()


@pytest.fixture
def log(tmp_path: Path) -> WindowLog:
    return WindowLog(Store(str(tmp_path / "windows")))


def nothing_recent(tmp_path: Path, config: TrainerConfig) -> RecentCases:
    return RecentCases(Store(str(tmp_path / "none")), config)


class Case(NamedTuple):
    index: str
    features: Any
    seed: int


CASES = [
    Case(index, features, seed)
    for index, features in (("auto", None), ("IVF8,SQfp16", None), ("IVF8,SQfp16", FEATURES))
    for seed in (1, 2)
]


@pytest.mark.parametrize("case", CASES)
def test_they_are_those_that_are_made_while_training_waits(
    tmp_path: Path, log: WindowLog, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    """While one is made, the state learns a window, and items come, go, and change hands; deltas follow."""
    a_stream(log.store, case.seed, case.features)
    monkeypatch.setattr(planner, "calls_for_compaction", lambda _: False)
    config = TrainerConfig.model_validate(expiring(config, case.index, 0.05) | {"bundle_chain": 2})
    # The second of each is elsewhere: files are made here, and uploaded.
    elsewhere = f"memory://{tmp_path.name}"
    waiting, beside = Store(str(tmp_path / "waiting")), Store(str(tmp_path / "beside") if case.seed == 1 else elsewhere)
    kept, held, recent = ExportPlanner(), HeldKeeper(), nothing_recent(tmp_path, config)
    one, other, draw = TrainerState.fresh(config), TrainerState.fresh(config), np.random.default_rng(case.seed)
    wanted, made = list[BundleManifest](), list[BundleManifest | None]()
    for sequence in range(WINDOWS):
        learn(one, log, sequence)
        learn(other, log, sequence)
        if held.making is not None:
            made[-1] = export_or_none(beside, other, recent, held)
        if held.making is None and draw.random() < 0.3:
            one, other = reopened(waiting, one), reopened(beside, other)
            kept, held = ExportPlanner(), HeldKeeper()
        if sequence >= 4:
            wanted.append(export_bundle(waiting, one, recent, planner=kept))
            made.append(export_or_none(beside, other, recent, held))
    if held.making is not None:
        made[-1] = export_or_none(beside, other, recent, held)
    assert [one and facts(one) for one in made] == [facts(one) for one in wanted]
    assert 0 in [one.depth for one in wanted[1:]]
    assert any(one.removed for one in wanted)
    assert verify(beside).findings == []
    assert BundleLog(beside).current() == BundleLog(waiting).current()


@pytest.mark.parametrize("features", [FEATURES, None])
def test_what_changes_while_one_is_made_comes_with_the_next(
    tmp_path: Path, log: WindowLog, config: TrainerConfig, features: Any
) -> None:
    a_stream(log.store, 3, features)
    config = TrainerConfig.model_validate(expiring(config, "auto", 0.0))
    store, state, held, recent = Store(str(tmp_path)), TrainerState.fresh(config), HeldKeeper(), None
    recent = nothing_recent(tmp_path, config)
    for sequence in range(5):
        learn(state, log, sequence)
    assert export_or_none(store, state, recent, held) is None
    for sequence in range(5, 9):
        learn(state, log, sequence)
    made = export_or_none(store, state, recent, held)
    assert made is not None
    assert (made.depth, made.trained_sequence) == (0, 4)
    assert state.since.ref is not None
    assert state.since.ref.version == made.version
    following = export_or_none(store, state, recent, held) or export_or_none(store, state, recent, held)
    assert following is not None
    assert following.trained_sequence == 8
    assert following.changed or following.depth == 0
    assert_published(store, following, state, bound=0.0)


def test_a_process_that_ends_meanwhile_leaves_nothing_but_the_bundle_before(
    tmp_path: Path, log: WindowLog, config: TrainerConfig
) -> None:
    """What its checkpoint says of the bundle before holds, and the next export begins there."""
    a_stream(log.store, 4)
    config = TrainerConfig.model_validate(expiring(config, "auto", 0.05))
    store, state, recent = Store(str(tmp_path)), TrainerState.fresh(config), nothing_recent(tmp_path, config)
    for sequence in range(6):
        learn(state, log, sequence)
    first = export_bundle(store, state, recent)
    state.embeddings.weight[state.live[:200]] *= -1
    state.embeddings.touched.mark(state.table.live[:200])
    state.position.step += 1
    held = HeldKeeper()
    assert export_or_none(store, state, recent, held) is not None
    held = HeldKeeper()
    state.embeddings.weight[state.live[:400]] *= -1
    state.embeddings.touched.mark(state.table.live[:400])
    state.position.step += 1
    assert export_or_none(store, state, recent, held) is None
    learn(state, log, 6)
    state = reopened(store, state)
    assert BundleLog(store).manifests()[0] == first
    assert len(BundleLog(store).versions()) == 2
    following = export_bundle(store, state, recent)
    assert_published(store, following, state, bound=0.05)
    assert verify(store).findings == []
    held.going.set()


def test_what_fails_beside_the_stream_is_raised_where_the_bundle_is_asked_for() -> None:
    def failing() -> Any:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        beside("work", failing).result()


def test_tables_that_are_not_large_are_exported_at_once(tmp_path: Path, log: WindowLog, config: TrainerConfig) -> None:
    a_stream(log.store, 5)
    store, state, recent = Store(str(tmp_path)), TrainerState.fresh(config), nothing_recent(tmp_path, config)
    learn(state, log, 0)
    export_bundle(store, state, recent, planner=ExportPlanner(beside=True, large=len(state.table) + 1))
    state.position.step += 1
    state.since.ref = None
    with pytest.raises(AwaitedError, match=r"bundle \S+ is made beside the stream"):
        export_bundle(store, state, recent, planner=ExportPlanner(beside=True, large=len(state.table)))


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
