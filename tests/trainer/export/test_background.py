"""Threads beside the stream: what ends them, wherever they are."""

import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import faiss
import numpy as np
import pytest

from tests.trainer.export.held import HeldKeeper, export_or_none
from tests.trainer.export.test_deltas import assert_published
from tests.trainer.export.test_touched import WINDOWS, a_stream, expiring, facts, learn, reopened
from tests.trainer.windows import FEATURES
from weir.contracts import BundleLog, BundleManifest, Store, WindowLog
from weir.contracts.verification import verify
from weir.trainer.export import export_bundle, planner
from weir.trainer.export.background import beside, none_left
from weir.trainer.export.onnx_models import AwaitedError
from weir.trainer.export.planner import ExportPlanner
from weir.trainer.export.servable import RecentCases
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
