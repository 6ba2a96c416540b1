""""""

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tests.trainer.support import absorb, absorbed, batches_of, drawn, give_noise, same_tensors
from tests.trainer.windows import FEATURES, WindowWriter, synthetic
from weir.contracts import BundleFile, BundleLog, FeatureNames, Store, WindowLog
from weir.contracts.base import columns
from weir.contracts.bundles.checkpoint import checkpoint_names, read_checkpoint_mark
from weir.contracts.interactions.features import MAX_DENSE, FeatureWeights, Moments, UserFeatures
from weir.trainer.export import export_bundle
from weir.trainer.export.servable import Cases, Servable
from weir.trainer.items.table import PADDING
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import FeaturesConfig, TowerConfig, TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.batches import Batch
from weir.trainer.step.step import compute_gradients, train_step
from weir.trainer.stream.prequential import evaluate
from weir.trainer.towers import project
from weir.trainer.towers.features import FeatureInputs, FeatureVectors
from weir.trainer.towers.user_features import FeaturedUsers, Layout, UserLines


def inputs(n: int, width: int, draw: torch.Generator) -> FeatureInputs:
    buckets = torch.randint(7, (n, width), generator=draw, dtype=torch.int32)
    weights = torch.rand(n, width, generator=draw, dtype=torch.float64)
    return FeatureInputs(buckets, weights, torch.randn(n, MAX_DENSE, generator=draw, dtype=torch.float64))


@given(st.integers(0, 1000), st.integers(0, 9), st.integers(1, 4))
def test_vectors_of_values_and_numbers_are_added_to_the_embedding(seed: int, n: int, width: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    tower = FeatureVectors(5, 7).double()
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    vectors, said = torch.randn(n, 5, generator=draw, dtype=torch.float64), inputs(n, width, draw)
    expected = vectors + said.dense @ tower.dense.weight.T
    for row in range(n):
        for bucket, weight in zip(said.buckets[row], said.weights[row], strict=True):
            expected[row] += weight * tower.values.weight[bucket]
    torch.testing.assert_close(tower(vectors, said), expected)


def test_at_first_nothing_is_added_yet_every_part_has_a_gradient() -> None:
    draw = torch.Generator().manual_seed(0)
    tower, vectors, said = FeatureVectors(5, 7).double(), torch.randn(4, 5, dtype=torch.float64), inputs(4, 2, draw)
    added = tower(vectors, said)
    assert torch.equal(added, vectors)
    assert not any(parameter.any() for parameter in tower.parameters())
    values, dense = torch.autograd.grad(added.sum(), list(tower.parameters()))
    assert values[said.buckets.unique().long()].all()
    assert dense.all()


def test_a_place_of_weight_0_is_no_value() -> None:
    draw = torch.Generator().manual_seed(0)
    tower, said = FeatureVectors(5, 7).double(), inputs(4, 2, draw)
    silent = said._replace(weights=torch.zeros_like(said.weights), dense=torch.zeros_like(said.dense))
    added = tower(torch.ones(4, 5, dtype=torch.float64), silent)
    assert not any(gradient.any() for gradient in torch.autograd.grad(added.sum(), list(tower.parameters())))


@pytest.fixture
def config(config: TrainerConfig) -> TrainerConfig:
    tower = TowerConfig(dimension=8, history_length=6, heads=2, dropout=0.0)
    return config.model_copy(update={"tower": tower, "features": FeaturesConfig(buckets=40)})


def part(state: TrainerState) -> FeaturedUsers:
    assert state.featured_users is not None
    return state.featured_users


def taught(store: Store, config: TrainerConfig, dtype: torch.dtype = torch.float64) -> TrainerState:
    """Return a state whose user features have trained vectors, if only noise."""
    state = absorbed(store, config, dtype=dtype)
    give_noise(part(state).parameters())
    return state


def silent(batch: Batch) -> Batch:
    """Return the batch as that of a window without user features."""
    return batch._replace(user_buckets=batch.user_buckets[:, :0])


@pytest.mark.parametrize("normalised", [True, False])
def test_the_loss_sees_what_the_tower_makes_of_a_history_and_the_features_together(
    store: Store, writer: WindowWriter, config: TrainerConfig, *, normalised: bool
) -> None:
    tower = config.tower.model_copy(update={"normalised": normalised})
    synthetic(writer, windows=1, said=True)
    state = taught(store, config.model_copy(update={"tower": tower, "precision": "float32"}))
    batch = batches_of(store, state)[0]
    assert batch.features is not None
    seen = []
    forward = state.tower.forward
    with pytest.MonkeyPatch.context() as patch:
        # The oracle adds the features where the tower ends.
        compose = part(state).compose
        patch.setattr(part(state), "compose", lambda users, features: seen.append(users) or compose(users, features))
        found = compute_gradients(state, batch, Workers())
    vectors = functional.embedding(batch.histories, state.embeddings.weight)
    with torch.no_grad():
        wanted = forward(vectors, batch.histories != PADDING)
    torch.testing.assert_close(seen[0].detach(), wanted)
    *_, values, dense = found.tower
    assert values.any()
    assert dense.any()
    assert not torch.equal(found.totals, compute_gradients(state, silent(batch), Workers()).totals)


def test_gradients_are_those_of_finite_differences(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    synthetic(writer, windows=1, said=True)
    # The improved correction weighs rows by scores that it takes for given.
    negatives = config.negatives.model_copy(update={"correction": "standard"})
    state = taught(store, config.model_copy(update={"negatives": negatives}))
    batch = batches_of(store, state)[0]
    *_, values, dense = compute_gradients(state, batch, Workers()).tower
    for parameter, gradient in zip(part(state).parameters(), (values, dense), strict=True):
        place = tuple(divmod(int(gradient.abs().argmax()), gradient.shape[1]))
        loss = []
        for step in (1e-6, -1e-6):
            parameter.data[place] += step
            loss.append(float(compute_gradients(state, batch, Workers()).totals[0]))
            parameter.data[place] -= step
        assert (loss[0] - loss[1]) / 2e-6 == pytest.approx(float(gradient[place]), rel=1e-5)


def test_a_first_step_is_as_without_features_but_for_their_vectors(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    synthetic(writer, windows=1, said=True)
    # A limit would be that of all gradients together, those of features among them.
    unlimited = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"max_gradient_norm": None})})
    state = absorbed(store, unlimited)
    other = absorbed(store, unlimited.model_copy(update={"features": FeaturesConfig(buckets=0)}))
    assert other.featured_users is None
    for one in (state, other):
        train_step(one, batches_of(store, one)[0], Workers())
    with_features, without = state.tensors(), other.tensors()
    assert same_tensors({name: with_features[name] for name in without}, without) == []
    assert all(parameter.any() for parameter in part(state).parameters())


def test_testing_and_serving_add_the_features_to_the_history(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    _, manifest = synthetic(writer, windows=2, said=True)
    state = taught(store, config, torch.float32)
    positives = drawn(store, manifest, config, config.evaluation_examples)
    lines = UserLines(Layout.of(manifest.user_features, config.features.buckets), positives.features)
    bundle = export_bundle(store, state)
    log = BundleLog(store)
    weights = FeatureWeights.decode(log.read(bundle, BundleFile.USER_FEATURES))
    rows = torch.from_numpy(state.table.rows(positives.histories))
    with torch.no_grad():
        users = state.tower.eval()(functional.embedding(rows, state.embeddings.weight), rows != PADDING)
        plain = project(users, config.tower)
        users = project(users + torch.from_numpy(lines.said(weights)), config.tower)
    items = project(state.item_vectors(state.table.live), config.tower)
    scores, place = users @ items.T, np.searchsorted(state.table.live, state.table.rows(positives.items))
    known = state.table.rows(positives.items) >= 2
    own = scores[np.arange(len(scores)), place.clip(max=len(items) - 1)]
    ranks = np.where(known, 1 + (scores > own[:, None]).sum(1).numpy(), len(items) + 1)
    found = evaluate(state, manifest, positives)
    assert found.recall[20] == pytest.approx(float((ranks <= 20).mean()), abs=0.011)
    assert not torch.allclose(users, plain, atol=0.05)
    cases = Cases(positives.items, positives.histories, lines)
    served = Servable.open(log, bundle)._users(cases)
    np.testing.assert_allclose(served, users.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("items_first", [True, False])
def test_features_may_start_within_a_stream_and_a_checkpoint_goes_on_bit_for_bit(
    store: Store, writer: WindowWriter, config: TrainerConfig, *, items_first: bool
) -> None:
    synthetic(writer, windows=1)
    for number in (1, 2):
        writer.features = FEATURES if items_first or number == 2 else {}
        synthetic(writer, first=number, windows=1, seed=number, said=not items_first or number == 2)
    writer.said = {}
    synthetic(writer, first=3, windows=1, seed=3)
    state, log = absorbed(store, config), WindowLog(store)
    train_step(state, batches_of(store, state)[0], Workers())
    assert state.featured_users is None
    assert not any(name.startswith("user_features") for name in state.tensors())
    for number in (1, 2):
        absorb(state, log, log.committed()[number])
        train_step(state, batches_of(store, state, number)[0], Workers())
    CheckpointLog(store).save(state, Workers())
    other = CheckpointLog(store).load(config, Workers())
    assert other is not None
    assert same_tensors(state.tensors(), other.tensors()) == []
    for one in (state, other):
        train_step(one, batches_of(store, one, 2)[1], Workers())
        # The last window says nothing of users.
        absorb(one, log, log.committed()[3])
        train_step(one, batches_of(store, one, 3)[0], Workers())
    assert part(state).names.all == ("lives", "age")
    assert part(state).weights.encode() == part(other).weights.encode()
    assert same_tensors(state.tensors(), other.tensors()) == []


def test_a_number_is_measured_by_those_of_all_windows() -> None:
    featured, numbers = FeaturedUsers(FeatureVectors(2, 8), 0), np.array([1.0, 2.0, 4.0, 9.0])
    for some in (numbers[:1], numbers[1:]):
        squares = float(np.square(some - some.mean()).sum())
        featured.take_in(UserFeatures(dense={"age": (float(len(some)), float(some.mean()), squares)}))
    layout = Layout({}, ("age", "new"))
    lines = np.concatenate([numbers, [np.nan]])[:, None].repeat(2, 1).view(np.int32)
    found = featured.inputs(UserLines(layout, lines)).dense.numpy()
    np.testing.assert_allclose(found[:, 0], [*((numbers - numbers.mean()) / numbers.std()), 0], rtol=1e-6)
    assert not found[:, 1:].any()


def test_there_is_room_for_so_many_numbers_and_the_error_says_so() -> None:
    featured = FeaturedUsers(FeatureVectors(2, 8), 0)
    featured.take_in(UserFeatures(dense={f"n{number}": (1.0, 0.0, 0.0) for number in range(32)}))
    with pytest.raises(ValueError, match="33 dense user features by now, at most 32 have room"):
        featured.take_in(UserFeatures(dense={"one more": (1.0, 0.0, 0.0)}))


def test_no_delta_continues_a_checkpoint_without_the_part(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    many = [f"n{number}" for number in range(1500)]
    writer.commit(["u"] * 1500, many, np.arange(1500), span=(0, 3_600_000))
    synthetic(writer, first=1, windows=1, events=40, said=True)
    state, log = absorbed(store, config), CheckpointLog(store)
    log.save(state, Workers())
    absorb(state, WindowLog(store), WindowLog(store).committed()[1])
    train_step(state, batches_of(store, state, 1)[0], Workers())
    log.save(state, Workers())
    # Older software, which does not know the part, reads the first and refuses the second.
    assert [read_checkpoint_mark(store, name).format for name in checkpoint_names(store)] == [6, 7]
    train_step(state, batches_of(store, state, 1)[1], Workers())
    log.save(state, Workers())
    assert read_checkpoint_mark(store, checkpoint_names(store)[-1]).parent is not None
    other = CheckpointLog(store).load(config, Workers())
    assert other is not None
    assert same_tensors(state.tensors(), other.tensors()) == []


def test_a_feature_that_changes_its_kind_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    featured = FeaturedUsers(FeatureVectors(2, 8), 0)
    featured.take_in(UserFeatures(categorical={"lives": 1}, dense={"age": (2.0, 1.0, 1.0)}))
    featured.take_in(UserFeatures(categorical={"age": 1}, dense={"lives": (1.0, 0.0, 0.0)}))
    assert featured.names == FeatureNames(categorical=("lives",), dense=("age",))
    assert [one.count for one in featured.weights.moments] == [2.0]
    assert [record.getMessage() for record in caplog.records] == [
        f"user feature {name} was of another kind before: it is left out; give it another name"
        for name in ("age", "lives")
    ]
    inputs = featured.inputs(UserLines(Layout({"age": 1}, ("lives",)), np.array([[3, 0, 0]], np.int32)))
    assert not inputs.weights.any()
    assert not inputs.dense.any()


BUCKETS = 50
NAMES = FeatureNames(categorical=("lives", "langs"), dense=("age", "since"))

_texts = st.none() | st.lists(st.sampled_from(["a", "b", "street 7", ""]), max_size=4)
_numbers = st.none() | st.floats(-1e12, 1e12)
rows = st.lists(st.fixed_dictionaries({"lives": _texts, "langs": _texts, "age": _numbers, "since": _numbers}))


def lines_of(found: list[dict[str, object]], names: FeatureNames = NAMES) -> UserLines:
    struct = pa.array([{name: row[name] for name in names.all} for row in found], pa.struct(names.fields))
    table = pa.table({columns.USER_FEATURES: struct, columns.LABEL: np.ones(len(found), np.int8)})
    layout = Layout.of(UserFeatures.of(table, names), BUCKETS)
    return UserLines(layout, layout.encoded(struct, BUCKETS))


def weights() -> FeatureWeights:
    draw = np.random.default_rng(3)
    values, dense = draw.normal(size=(BUCKETS, 4)), draw.normal(size=(4, 32))
    moments = tuple(Moments(3.0, 1e9, 1e19) for _ in NAMES.dense)
    return FeatureWeights(NAMES, values.astype(np.float32), dense.astype(np.float32), moments)


def expected(found: list[dict[str, object]]) -> np.ndarray:
    """What a bundle's weights make of the same rows as a table."""
    struct = pa.array(found, pa.struct(NAMES.fields))
    return weights().embeddings(pa.table({name: struct.field(name) for name in NAMES.all}))


@given(rows)
def test_lines_mean_what_the_weights_of_a_bundle_make_of_the_features(found: list[dict[str, object]]) -> None:
    np.testing.assert_array_equal(lines_of(found).said(weights()), expected(found))


@given(first=rows, second=rows, fewer=st.booleans())
def test_parts_of_other_windows_are_joined_by_name(
    first: list[dict[str, object]], second: list[dict[str, object]], *, fewer: bool
) -> None:
    names = FeatureNames(categorical=("langs",), dense=("since",)) if fewer else NAMES
    together = UserLines.joined([lines_of(first), lines_of(second, names)])
    if fewer:
        second = [row | {"lives": None, "age": None} for row in second]
    np.testing.assert_array_equal(together.said(weights()), expected([*first, *second]))


@given(rows, st.integers(0, 5), st.integers(0, 5))
def test_some_lines_are_those_of_some_rows(found: list[dict[str, object]], start: int, stop: int) -> None:
    np.testing.assert_array_equal(lines_of(found).take(slice(start, stop)).said(weights()), expected(found)[start:stop])


def test_numbers_keep_all_of_their_bits() -> None:
    found = [{"lives": None, "langs": None, "age": 1_764_399_600.123, "since": None}]
    assert lines_of(found).numbers()["age"].tolist() == [1_764_399_600.123]
    assert np.isnan(lines_of(found).numbers()["since"]).all()


def test_of_users_of_whom_nothing_is_known_nothing_is_said() -> None:
    assert not UserLines.nothing(3).said(weights()).any()
    assert UserLines.nothing(3).said(weights()).shape == (3, 4)
