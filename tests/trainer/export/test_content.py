"""The content of an export by touched rows against a comparison of every item; numbers that are not finite."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from tests.ranks import lines_of_ranks
from tests.trainer.export.test_deltas import assert_published
from tests.trainer.step.test_model import configured
from tests.trainer.support import absorb, absorbed, batches_of
from tests.trainer.windows import FEATURES, WindowWriter, synthetic
from weir.contracts import BundleLog, BundleManifest, ItemKeys, Store, WindowLog
from weir.contracts.verification import verify
from weir.trainer.export import content, export_bundle
from weir.trainer.export.content import Content, fault_of, fault_of_items
from weir.trainer.export.planner import ExportPlanner, recognise
from weir.trainer.export.servable import RecentCases
from weir.trainer.items.rows import Reader, TableRows
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import RescoringConfig, TrainerConfig
from weir.trainer.state import items as item_writer
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.dirty_rows import TouchedOfAll
from weir.trainer.state.published import PublishedItems, Vectors
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.batches import batches
from weir.trainer.step.positives import SharedWindow
from weir.trainer.step.seeds import Purpose, generator
from weir.trainer.step.step import train_step
from weir.trainer.towers import project

HOUR = 3_600_000
WINDOWS = 14


def a_stream(store: Store, seed: int, features: dict[str, dict[str, Any]] | None = None) -> None:
    """Commit five windows with 200 items each, then small ones, in which a few items come and most do not occur."""
    draw, writer = np.random.default_rng(seed), WindowWriter(store)
    writer.features = features or {}
    for number in range(WINDOWS):
        count, few = (400, (200 * number, 200 * number + 200)) if number < 5 else (int(draw.integers(5, 40)), (0, 1200))
        items = draw.integers(*few, count)
        users, times = draw.integers(0, 30, count), number * HOUR + np.sort(draw.integers(0, HOUR, count))
        span = (number * HOUR, (number + 1) * HOUR)
        writer.commit([f"u{user}" for user in users], [f"i{item}" for item in items], times, span=span)


def learn(state: TrainerState, log: WindowLog, sequence: int) -> None:
    manifest = log.committed()[sequence]
    absorb(state, log, manifest)
    found = SharedWindow.read(log, manifest, state.config, Workers())
    order = generator(state.config.seed, Purpose.SHUFFLE, sequence)
    for batch in batches(found, state.table, state.config.batch_size, order, users=state.users):
        train_step(state, batch, Workers())
    state.position.trained_window, state.position.trained_sequence = str(manifest.name), sequence
    state.position.max_event_ms = manifest.max_event_ms


def reopened(store: Store, state: TrainerState) -> TrainerState:
    """Return the state as a process has it that starts from a checkpoint."""
    checkpoints = CheckpointLog(store)
    checkpoints.save(state, Workers())
    found = checkpoints.load(state.config, Workers())
    assert found is not None
    return found


def facts(manifest: BundleManifest) -> dict[str, object]:
    """Return all of a manifest that does not say when it was made."""
    kept = manifest.model_dump(exclude={"created_at", "parent", "index"})
    fit = manifest.index.fit
    lists = None if fit is None else (fit.changed, fit.unfit, fit.repairs, fit.trained_items)
    return kept | {"index": manifest.index.type, "parent": manifest.parent and manifest.parent.version, "fit": lists}


def both(
    tmp_path: Path, config: TrainerConfig, seed: int
) -> Iterator[tuple[ExportPlanner, BundleManifest, BundleManifest]]:
    """Yield the exports of a process that goes on, now and then from a checkpoint, and of one that starts each time.

    Exports begin with the whole catalogue, so that no index is outgrown: lists that are trained beside a process do not
    outlive it. Not every window is exported, and checkpoints are saved at other moments than bundles.
    """
    windows, first, second = (Store(str(tmp_path / name)) for name in ("windows", "first", "second"))
    log, draw = WindowLog(windows), np.random.default_rng(seed)
    state, planner = TrainerState.fresh(config), ExportPlanner()
    # Without events no recall is measured: it would be at different moments, and may call for a repair.
    recent = RecentCases(Store(str(tmp_path / "none")), config)
    for sequence in range(WINDOWS):
        learn(state, log, sequence)
        if draw.random() < 0.3:
            CheckpointLog(first).save(state, Workers())
        if sequence < 4 or (sequence < WINDOWS - 1 and draw.random() < 0.3):
            continue
        touched = export_bundle(first, state, recent, planner=planner)
        all_new = reopened(second, state)
        all_new.since.ref = None
        every = export_bundle(second, all_new, recent, planner=ExportPlanner())
        assert_published(first, touched, state, bound=config.publish_bound)
        yield planner, touched, every
        if draw.random() < 0.2:
            state, planner = reopened(first, state), ExportPlanner()
    assert verify(first).findings == []
    assert BundleLog(first).versions() == BundleLog(second).versions()


def expiring(config: TrainerConfig, index: str, bound: float) -> dict[str, Any]:
    """Return settings under which items expire and chains of deltas end."""
    return config.model_dump() | {
        "index": index,
        "publish_bound": bound,
        "item_ttl_seconds": 8 * HOUR / 1000,
        "bundles_kept": 99,
        "bundle_chain": 5,
    }


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("index", "bound"), [("auto", 0.0), ("auto", 0.05), ("IVF8,SQfp16", 0.05)])
def test_what_is_published_is_what_a_comparison_of_every_item_publishes(
    tmp_path: Path, config: TrainerConfig, index: str, bound: float, seed: int
) -> None:
    """Rows move, come, go, and change hands: through expiry, negatives from all of the catalogue, and restarts."""
    a_stream(Store(str(tmp_path / "windows")), seed)
    changed = expiring(config, index, bound)
    changed["negatives"]["uniform"] = 4
    compared, made = [], []
    for planner, touched, every in both(tmp_path, TrainerConfig.model_validate(changed), seed):
        assert facts(touched) == facts(every)
        compared.append(planner.compared)
        made.append(touched)
    assert sum(share < 1 for share in compared) >= 2
    assert any(one.removed for one in made)


@pytest.mark.parametrize(("index", "bound"), [("auto", 0.01), ("IVF8,SQfp16", 0.05)])
def test_where_an_item_tower_moves_all_items_those_are_found_that_have_moved_by_more_than_the_bound(
    tmp_path: Path, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch, index: str, bound: float
) -> None:
    a_stream(Store(str(tmp_path / "windows")), 1, FEATURES)
    changed = expiring(config, index, bound)
    changed["optimizer"]["learning_rate"] = 0.05
    untouched, original = [], PublishedItems.moved

    def moved(self: PublishedItems, now: Vectors) -> TableRows:
        rows = original(self, now)
        untouched.append(len(np.setdiff1d(rows, TouchedOfAll(self.table, self.embeddings).rows(Reader.BUNDLE))))
        return rows

    monkeypatch.setattr(PublishedItems, "moved", moved)
    compared = []
    for planner, touched, every in both(tmp_path, TrainerConfig.model_validate(changed), 1):
        assert facts(touched) == facts(every)
        compared.append(planner.compared)
    assert sum(share < 1 for share in compared) >= 2
    assert any(untouched)


def test_with_a_bound_of_zero_an_item_tower_has_every_item_compared(tmp_path: Path, config: TrainerConfig) -> None:
    a_stream(Store(str(tmp_path / "windows")), 0, FEATURES)
    for planner, touched, every in both(
        tmp_path, TrainerConfig.model_validate(config.model_dump() | {"bundles_kept": 99}), 0
    ):
        assert facts(touched) == facts(every)
        assert planner.compared == 1


def test_ranks_that_share_a_state_publish_what_one_that_has_it_alone_does(tmp_path: Path) -> None:
    deltas = lines_of_ranks(3, Path(__file__).with_name("exports_of_ranks.py"), tmp_path)
    assert deltas[0] > 2


@pytest.mark.parametrize(("bound", "is_known"), [(0.05, True), (0.06, True), (0.04, False)])
def test_a_process_that_starts_compares_what_has_changed_since_the_newest_bundle(
    tmp_path: Path, config: TrainerConfig, bound: float, *, is_known: bool
) -> None:
    """Items expire between the bundle and the start; with a smaller bound, rows may be off by more than that."""
    a_stream(Store(str(tmp_path / "windows")), 0)
    first, second, log = (
        Store(str(tmp_path / "a")),
        Store(str(tmp_path / "b")),
        WindowLog(Store(str(tmp_path / "windows"))),
    )
    changed = {"publish_bound": 0.05, "item_ttl_seconds": 4 * HOUR / 1000, "bundle_chain": 16}
    state = TrainerState.fresh(TrainerConfig.model_validate(config.model_dump() | changed))
    recent = RecentCases(Store(str(tmp_path / "none")), config)
    for sequence in range(7):
        learn(state, log, sequence)
        if sequence == 5:
            for store in (first, second):
                state.since.ref = None
                export_bundle(store, state, recent)
    state.config = TrainerConfig.model_validate(state.config.model_dump() | {"publish_bound": bound})
    CheckpointLog(second).save(state, Workers())
    made = []
    for store in (first, second):
        planner, loaded = ExportPlanner(), CheckpointLog(second).load(state.config, Workers())
        assert loaded is not None
        if store is first:
            assert loaded.since.ref is not None
            loaded.since.ref = None
        made.append(export_bundle(store, loaded, recent, planner=planner))
        assert (planner.compared < 1) == (is_known and store is second)
        assert_published(store, made[-1], loaded, bound=bound)
    assert facts(made[0]) == facts(made[1])
    assert made[0].removed


@pytest.mark.parametrize("stopped", [True, False])
def test_a_bundle_that_the_checkpoint_does_not_know_is_recognised(
    store: Store, config: TrainerConfig, *, stopped: bool
) -> None:
    """A run that stops exports after its last checkpoint, and one that is killed may have before it."""
    a_stream(store, 0)
    log, state, checkpoints = WindowLog(store), TrainerState.fresh(config), CheckpointLog(store)
    for sequence in range(5):
        learn(state, log, sequence)
    export_bundle(store, state)
    if stopped:
        learn(state, log, 5)
    checkpoints.save(state, Workers())
    if not stopped:
        learn(state, log, 5)
    unknown = export_bundle(store, state)
    loaded, planner = checkpoints.load(config, Workers()), ExportPlanner()
    assert loaded is not None
    assert loaded.since.ref is not None
    assert loaded.since.ref.version < unknown.version
    recognise(BundleLog(store), loaded)
    assert (loaded.since.ref.version == unknown.version) == stopped
    if not stopped:
        learn(loaded, log, 5)
        assert export_bundle(store, loaded, planner=planner) == unknown
    learn(loaded, log, 6)
    made = export_bundle(store, loaded, planner=planner)
    assert made.parent is not None
    assert made.parent.version == unknown.version
    assert planner.compared < 1
    assert_published(store, made, loaded)


def test_a_bundle_of_another_state_in_the_same_place_is_not_recognised(store: Store, config: TrainerConfig) -> None:
    a_stream(store, 0)
    log, state = WindowLog(store), TrainerState.fresh(config)
    learn(state, log, 0)
    export_bundle(store, state)
    state.since.ref = None
    state.embeddings.weight[state.live[3]] += 1
    recognise(BundleLog(store), state)
    assert state.since.ref is None


def test_after_more_items_have_left_than_there_are_rows_every_item_is_compared(
    store: Store, config: TrainerConfig
) -> None:
    a_stream(store, 0)
    log, planner = WindowLog(store), ExportPlanner()
    state = TrainerState.fresh(config.model_copy(update={"item_ttl_seconds": 6 * HOUR / 1000}))
    compared = []
    for sequence in range(9):
        learn(state, log, sequence)
        if sequence < 5:
            continue
        if sequence == 7:
            state.table.left.add(ItemKeys(np.arange(1, 10_000)), state.table.capacity)
        made = export_bundle(store, state, planner=planner)
        compared.append(planner.compared == 1)
        assert_published(store, made, state)
    assert compared == [True, False, True, False]


def test_an_export_that_fails_is_followed_by_one_of_what_has_changed_since_the_last_good_one(
    store: Store, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of what it had looked at is taken as published."""
    a_stream(store, 0)
    log, state, planner = WindowLog(store), TrainerState.fresh(config), ExportPlanner()
    for sequence in range(5):
        learn(state, log, sequence)
    compared = []
    for sequence in range(5, 8):
        learn(state, log, sequence)
        if sequence == 7:
            with monkeypatch.context() as patch:
                patch.setattr(BundleLog, "commit", lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    export_bundle(store, state, planner=planner)
        made = export_bundle(store, state, planner=planner)
        compared.append(planner.compared == 1)
        assert_published(store, made, state)
    assert compared == [True, False, False]


@pytest.fixture
def state(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    synthetic(writer, windows=1)
    return absorbed(store, config)


def test_the_same_state_has_the_same_name_also_from_a_checkpoint(state: TrainerState) -> None:
    restored = TrainerState.restore(state.config, state.tensors(), torch.device("cpu"))
    assert Content.of(restored).version == Content.of(state).version == Content.of(state).version


def test_settings_at_the_values_that_a_name_leaves_out_change_no_name(state: TrainerState) -> None:
    optimizer = {"embedding_memory": 1.0, "embedding_decay": 0.0, "embedding_scale": 1.0}
    other_settings(precision="float32", optimizer=optimizer)(state)
    left_out = {"precision", *(f"optimizer.{name}" for name in optimizer)}
    left_out |= {f"rescoring.{name}" for name in RescoringConfig.model_fields}
    version = Content.of(state).version
    settings = {name: value for name, value in state.config.defining().items() if name not in left_out}
    with patch.object(TrainerConfig, "defining", return_value=settings):
        assert Content.of(state).version == version
    other_settings(optimizer={"embedding_decay": 0.5})(state)
    assert Content.of(state).version != version


def test_what_a_second_phase_would_be_changes_a_name_where_there_is_one(state: TrainerState) -> None:
    names = []
    for kind, dimension in product(("none", "mixture_of_logits"), (8, 16)):
        other_settings(rescoring={"kind": kind, "dimension": dimension})(state)
        names.append(Content.of(state).version)
    assert names[0] == names[1]
    assert len({*names}) == 3


def other_settings(**changes: object) -> Callable[[TrainerState], None]:
    def change(state: TrainerState) -> None:
        state.config = TrainerConfig.model_validate({**state.config.model_dump(), **changes})

    return change


def last_bit_of_an_embedding(state: TrainerState) -> None:
    row = state.live[3]
    state.embeddings.weight[row, 0] = torch.nextafter(state.embeddings.weight[row, 0], torch.tensor(9.0))


def a_parameter_of_the_tower(state: TrainerState) -> None:
    with torch.no_grad():
        next(state.tower.parameters()).view(-1)[0] += 1


def a_count(state: TrainerState) -> None:
    state.frequencies.add(state.frequencies.memories[0].sketch.to_bytes(), state.frequencies.time_ms)


def an_item(state: TrainerState) -> None:
    state.table.keys[state.table.live[0]] += 1


@pytest.mark.parametrize(
    "change",
    [
        last_bit_of_an_embedding,
        a_parameter_of_the_tower,
        a_count,
        an_item,
        other_settings(seed=1),
        other_settings(index="IVF4,Flat"),
        other_settings(nprobe=3),
    ],
)
def test_whatever_is_served_otherwise_has_another_name(
    state: TrainerState, change: Callable[[TrainerState], None]
) -> None:
    before = Content.of(state).version
    change(state)
    after = Content.of(state).version
    assert after != before
    assert after.rpartition("-")[0] == before.rpartition("-")[0] == "00000000-0000000000"


def test_another_second_phase_has_another_name(store: Store, state: TrainerState) -> None:
    before, config = Content.of(state).version, configured(state.config, {"rescoring": {"kind": "mixture_of_logits"}})
    state = absorbed(store, config)
    names = [before, Content.of(state).version]
    assert state.second is not None
    with torch.no_grad():
        state.second.scorer.user_components.bias[0] += 1
    assert len({*names, Content.of(state).version}) == 3


def test_names_sort_in_the_order_of_the_stream(state: TrainerState) -> None:
    names = []
    for sequence, step in [(0, 5), (0, 50), (1, 51), (9, 100), (10, 1000)]:
        state.position.trained_sequence, state.position.step = sequence, step
        state.embeddings.weight[state.live[0]] = float(np.random.default_rng(step).random())
        names.append(Content.of(state).version)
    assert names == sorted(names)


def test_settings_that_only_say_when_and_where_change_no_name(state: TrainerState) -> None:
    before = Content.of(state).version
    other_settings(bundles_kept=9, metrics_port=9999, gate_tolerance=0.1)(state)
    assert Content.of(state).version == before


def test_touched_rows_give_the_lines_and_the_name_of_a_whole_content(state: TrainerState) -> None:
    before = Content.of(state)
    state.touched.clear(Reader.BUNDLE)
    assert Content.since(state).version == before.version
    touched = state.live[[3, 9, 40]].numpy()
    state.embeddings.adagrad_step(torch.from_numpy(touched), torch.ones(3, state.embeddings.weight.shape[1]), 0.1)
    part, whole = Content.since(state), Content.of(state)
    assert (part.is_whole, whole.is_whole) == (False, True)
    assert part.version == whole.version != before.version
    chosen = np.searchsorted(whole.rows, touched)
    assert part.keys.tolist() == whole.keys[chosen].tolist()
    np.testing.assert_array_equal(part.vectors, whole.vectors[chosen])
    np.testing.assert_array_equal(part.embeddings, whole.embeddings[[0, 1, *(chosen + 2)]])
    np.testing.assert_array_equal(part.whole().vectors, whole.vectors)


@pytest.mark.parametrize("at_once", [3, 1 << 16])
def test_a_snapshot_says_of_items_what_the_state_said_then(state: TrainerState, at_once: int) -> None:
    whole, some = Content.of(state), np.array([0, 9, 3, 40])
    wanted = whole.items(some, np.arange(4))
    with patch.object(content, "_AT_ONCE", at_once):
        snapshot = whole.snapshot()
    assert snapshot.keys.tolist() == whole.keys.tolist()
    state.table.keys[:] = 0
    state.table.ids.kept[:] = None
    state.counts.kept.units[:] = 0
    found = snapshot.items(some, np.arange(4))
    assert found == wanted
    assert found.schema == wanted.schema


@pytest.mark.parametrize("at_once", [3, 7])
@pytest.mark.parametrize("features", [FEATURES, None])
def test_pieces_give_the_lines_and_the_name_that_all_rows_at_once_give(
    store: Store, writer: WindowWriter, config: TrainerConfig, at_once: int, features: Any
) -> None:
    writer.features = features or writer.features
    synthetic(writer, windows=1)
    state = absorbed(store, config)
    if state.featured is not None:
        for parameter in state.featured.parameters():
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    version, live = Content.of(state).version, state.table.live
    with patch.object(content, "_AT_ONCE", at_once), patch.object(item_writer, "_AT_ONCE", at_once):
        found = Content.of(state)
        # Of items with features those are read that have moved since a bundle, and there is none.
        touched = Content.since(state) if state.featured is None else found
    for part in (found, touched):
        assert part.rows.tolist() == live.tolist()
        _assert_lines(state, part)
    assert found.version == version


def _assert_lines(state: TrainerState, found: Content) -> None:
    with torch.no_grad():
        whole = state.item_vectors(TableRows(np.concatenate([[0, 1], found.rows])))
        np.testing.assert_array_equal(found.embeddings, whole)
        np.testing.assert_array_equal(found.vectors, project(whole[2:], state.config.tower))


BAD = [torch.nan, torch.inf, -torch.inf, 1e30]


def fault_in(content: Content) -> str | None:
    """Return what the bundle of a content would not be served for."""
    return fault_of(content.state, content.touched) or fault_of_items(content)


@pytest.fixture
def trained_state(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    writer.features = FEATURES
    synthetic(writer, windows=1)
    trained_state = absorbed(store, config)
    for batch in batches_of(store, trained_state)[:2]:
        train_step(trained_state, batch, Workers())
    return trained_state


def test_what_has_been_learnt_is_sound(trained_state: TrainerState) -> None:
    """Features that are unknown are NaN in the table; that is no fault."""
    assert fault_in(Content.of(trained_state)) is None


@pytest.mark.parametrize("bad", BAD)
def test_one_number_that_is_not_sound_is_found_wherever_it_is(trained_state: TrainerState, bad: float) -> None:
    moments = trained_state.optimizer.state_dict()
    places = {
        "embeddings.weight": trained_state.embeddings.weight.view(-1)[-3:],
        "embeddings.squares": trained_state.embeddings.squares[7:8],
        "optimizer.0.exp_avg": moments["0.exp_avg"].view(-1)[:1],
        "optimizer.0.exp_avg_sq": moments["0.exp_avg_sq"].view(-1)[:1],
    }
    places |= {
        f"tower.{name}": value.view(-1)[:1] for name, value in list(trained_state.tower.state_dict().items())[:2]
    }
    assert trained_state.featured is not None
    features = trained_state.featured.tower.state_dict()
    places |= {f"features.{name}": value.view(-1)[:1] for name, value in list(features.items())[:1]}
    for name, place in places.items():
        before = place.clone()
        place.fill_(bad)
        assert fault_in(Content.of(trained_state)) == f"{name} contains NaN or infinity, or its norm overflows"
        place.copy_(before)
    assert fault_in(Content.of(trained_state)) is None


@pytest.mark.parametrize("bad", BAD)
def test_a_number_of_the_second_phase_that_is_not_sound_is_found(
    store: Store, trained_state: TrainerState, bad: float
) -> None:
    trained_state = absorbed(store, configured(trained_state.config, {"rescoring": {"kind": "mixture_of_logits"}}))
    train_step(trained_state, batches_of(store, trained_state)[0], Workers())
    assert trained_state.second is not None
    assert fault_in(Content.of(trained_state)) is None
    moments = trained_state.second.optimizer.state_dict()["1.exp_avg"].view(-1)
    weights = trained_state.second.scorer.user_components.weight.detach().view(-1)
    for name, place in (("rescoring.user_components.weight", weights), ("rescoring_optimizer.1.exp_avg", moments)):
        before = place[:1].clone()
        place[:1] = bad
        assert fault_in(Content.of(trained_state)) == f"{name} contains NaN or infinity, or its norm overflows"
        place[:1] = before


@pytest.mark.parametrize("bad", BAD)
def test_of_touched_rows_one_number_that_is_not_sound_is_found(trained_state: TrainerState, bad: float) -> None:
    trained_state.featured = None
    trained_state.touched.clear(Reader.BUNDLE)
    trained_state.embeddings.touched.mark(trained_state.table.live[[3, 7]])
    assert fault_in(Content.since(trained_state)) is None
    trained_state.embeddings.weight[trained_state.live[7], 2] = bad
    found = fault_in(Content.since(trained_state))
    assert found == "embeddings.weight contains NaN or infinity, or its norm overflows"


@pytest.mark.parametrize("bad", BAD[:3])
def test_an_item_that_is_not_sound_is_found_where_the_state_is_sound(trained_state: TrainerState, bad: float) -> None:
    """As in a snapshot of it."""
    content = Content.of(trained_state)
    assert fault_of_items(content) is None
    for name, array in (("embeddings", content.embeddings), ("vectors", content.vectors)):
        broken = array.copy()
        broken[5, 1] = bad
        found = fault_of_items(replace(content, **{name: broken}))
        assert found == f"its {name} contain NaN or infinity"
