"""Features as part of the state: in the gradients, the test, the bundle and the checkpoint."""

import io

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.support import absorb, absorbed, batches_of, drawn, give_noise, same_tensors
from tests.trainer.windows import FEATURES, WindowWriter, synthetic
from weir.contracts import BundleFile, BundleLog, FeatureNames, ItemKeys, Store, WindowLog, hash_id
from weir.contracts.interactions.features import MAX_DENSE, FeatureWeights, Moments
from weir.trainer.export import export_bundle
from weir.trainer.items.featured import FeaturedItems, inputs_of
from weir.trainer.items.features import FeatureTable
from weir.trainer.items.rows import FIRST_ITEM, TableRows
from weir.trainer.items.table import PADDING, SHARED
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import FeaturesConfig, TowerConfig, TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import compute_gradients, train_step
from weir.trainer.stream.prequential import evaluate

HOUR = 3_600_000


@pytest.fixture
def config(config: TrainerConfig) -> TrainerConfig:
    tower = TowerConfig(dimension=8, history_length=6, heads=2)
    return config.model_copy(update={"tower": tower, "features": FeaturesConfig(buckets=40)})


@pytest.fixture
def writer(writer: WindowWriter) -> WindowWriter:
    writer.features = FEATURES
    return writer


def part(state: TrainerState) -> FeaturedItems:
    assert state.featured is not None
    return state.featured


def taught(store: Store, config: TrainerConfig, dtype: torch.dtype = torch.float64) -> TrainerState:
    """Return a state whose features have trained vectors, if only noise."""
    state = absorbed(store, config, dtype=dtype)
    give_noise(part(state).parameters())
    return state


def composed(store: Store, state: TrainerState) -> TrainerState:
    """Return a state without features, whose embeddings are what the other one composes."""
    plain = state.config.model_copy(update={"features": FeaturesConfig(buckets=0)})
    other = absorbed(store, plain, dtype=state.embeddings.weight.dtype)
    assert other.featured is None
    other.embeddings.weight = state.item_vectors(np.arange(state.table.capacity)).detach()
    return other


def test_every_row_knows_the_features_of_its_own_item(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    synthetic(writer, windows=1)
    state = absorbed(store, config)
    said = part(state).kept(state.live)
    prices = {}
    for name, buckets, weights, dense in zip(state.table.ids.of(state.table.live), *said, strict=True):
        genres = [hash_id(f"genre\0{value}") % 2**64 % 40 for value in FEATURES["genre"].get(name, [])]
        assert sorted(buckets[weights > 0].tolist()) == sorted(genres)
        if name in FEATURES["price"]:
            prices[FEATURES["price"][name]] = dense[0].item()
        else:
            assert not dense.any()
    assert len(prices) > 40
    assert [prices[price] for price in sorted(prices)] == sorted(prices.values())


def test_the_chain_rule_gives_the_gradients_of_the_features(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    synthetic(writer, windows=1)
    state = taught(store, config)
    other, batch = composed(store, state), batches_of(store, state)[0]
    assert not torch.equal(other.embeddings.weight, state.embeddings.weight)
    found, plain = (compute_gradients(one, batch, Workers()) for one in (state, other))
    *tower, values, dense = found.tower
    for mine, oracle in zip(
        [found.embeddings, found.totals, *tower], [plain.embeddings, plain.totals, *plain.tower], strict=True
    ):
        torch.testing.assert_close(mine, oracle, rtol=1e-9, atol=1e-12)
    said = part(state).kept(found.rows)
    wanted = torch.zeros_like(values)
    for gradient, buckets, weights in zip(plain.embeddings, said.buckets, said.weights, strict=True):
        for bucket, weight in zip(buckets.tolist(), weights.tolist(), strict=True):
            wanted[bucket] += weight * gradient
    assert values.any()
    torch.testing.assert_close(values, wanted, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(dense, plain.embeddings.T @ said.dense, rtol=1e-9, atol=1e-12)


def test_a_first_step_is_as_without_features_but_for_the_vectors_of_features(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    synthetic(writer, windows=1)
    # A limit would be that of all gradients together, those of features among them.
    unlimited = config.optimizer.model_copy(update={"max_gradient_norm": None})
    state = absorbed(store, config.model_copy(update={"optimizer": unlimited}))
    other, batch = composed(store, state), batches_of(store, state)[0]
    train_step(state, batch, Workers())
    train_step(other, batch, Workers())
    with_features, without = state.tensors(), other.tensors()
    assert same_tensors({name: with_features[name] for name in without}, without) == []
    assert all(parameter.any() for parameter in part(state).parameters())


def test_testing_and_serving_read_the_composed_vectors(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    _, manifest = synthetic(writer, windows=2)
    state = taught(store, config, torch.float32)
    other = composed(store, state)
    positives = drawn(store, manifest, config, config.evaluation_examples)
    mine, oracle = (evaluate(one, manifest, positives) for one in (state, other))
    assert mine == oracle
    bundles = []
    for one, place in ((state, "with"), (other, "without")):
        log = BundleLog(Store(store.path(place)))
        bundle = export_bundle(log.store, one)
        bundles.append([log.read(bundle, name) for name in (BundleFile.EMBEDDINGS, BundleFile.VECTORS)])
    assert bundles[0] == bundles[1]
    embeddings = np.load(io.BytesIO(bundles[0][0]))
    kept = state.embeddings.weight[torch.from_numpy(np.array([PADDING, SHARED, *state.table.live]))].numpy()
    np.testing.assert_array_equal(embeddings[:2], kept[:2])
    assert (embeddings[2:] != kept[2:]).any(1).mean() > 0.8


@pytest.mark.parametrize("names", [["genre"], ["price"], ["genre", "price"]])
def test_features_may_begin_within_a_stream_and_a_checkpoint_goes_on_bit_for_bit(
    store: Store, writer: WindowWriter, config: TrainerConfig, names: list[str]
) -> None:
    writer.features = {}
    synthetic(writer, windows=1)
    writer.features = {name: FEATURES[name] for name in names}
    synthetic(writer, first=1, windows=2, seed=1)
    state, log = absorbed(store, config), WindowLog(store)
    first, second, third = (batches_of(store, state, number) for number in range(3))
    train_step(state, first[0], Workers())
    assert state.featured is None
    assert not any(name.startswith("features") for name in state.tensors())
    absorb(state, log, log.committed()[1])
    for batch in second[:3]:
        train_step(state, batch, Workers())
    CheckpointLog(store).save(state, Workers())
    other = CheckpointLog(store).load(config, Workers())
    assert other is not None
    assert same_tensors(state.tensors(), other.tensors()) == []
    for one in (state, other):
        train_step(one, second[3], Workers())
        absorb(one, log, log.committed()[2])
        train_step(one, third[0], Workers())
    assert part(state).table.names.all == tuple(names)
    assert same_tensors(state.tensors(), other.tensors()) == []


def test_a_row_is_rid_of_the_features_of_its_last_owner(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    config = config.model_copy(update={"item_ttl_seconds": 3600.0})
    writer.commit(["u", "u"], ["i1", "i2"], np.array([0, 1]), span=(0, HOUR))
    state, log = taught(store, config), WindowLog(store)
    row = state.table.rows(np.array([hash_id("i1")]))
    assert not torch.equal(state.item_vectors(row), state.embeddings.weight[row])
    writer.features = {}
    unknown = writer.commit(["u", "u"], ["i2", "new"], np.full(2, 2 * HOUR), span=(2 * HOUR, 3 * HOUR))
    absorb(state, log, unknown)
    assert state.table.rows(np.array([hash_id("new")])) == row
    assert torch.equal(state.item_vectors(row), state.embeddings.weight[row])


def test_features_grow_with_the_table(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    many = [f"n{number}" for number in range(1500)]
    writer.features = {"genre": {name: [name] for name in many}}
    writer.commit(["u"] * 1500, many, np.arange(1500), span=(0, HOUR))
    state = taught(store, config)
    assert len(state.item_vectors(np.arange(state.table.capacity))) == state.table.capacity == 2048
    state = TrainerState.restore(config, state.tensors(), torch.device("cpu"))
    absorb(state, WindowLog(store), writer.commit(["u"], ["one more"], np.array([HOUR]), span=(HOUR, 2 * HOUR)))
    assert (state.item_vectors(state.table.live) != state.embeddings.weight[state.live]).any(1).sum() == 1500


def test_the_weights_of_a_bundle_make_an_item_of_its_features_as_the_trainer_does(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    """What a server adds up for an item without a row is what the model adds to the embedding of a row."""
    synthetic(writer, windows=2)
    state = taught(store, config)
    manifest = export_bundle(store, state)
    weights = FeatureWeights.decode(BundleLog(store).read(manifest, BundleFile.FEATURES))
    log = WindowLog(store)
    window = list(log.committed())[-1]
    rows = torch.from_numpy(state.table.rows(ItemKeys(log.items(window)["item_key"].to_numpy())))
    nothing = torch.zeros(len(rows), config.tower.dimension, dtype=torch.float64)
    expected = part(state).compose(nothing, part(state).kept(rows)).detach().numpy()
    np.testing.assert_allclose(weights.embeddings(log.item_features(window)), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(expected).max() > 0.1


numbers = st.lists(st.none() | st.floats(-1e6, 1e6) | st.sampled_from([0.0, 3e38]), min_size=1, max_size=9)


@given(numbers, numbers)
def test_numbers_are_standardised_as_the_server_does(first: list[float | None], second: list[float | None]) -> None:
    table, expected = FeatureTable(8, 16), []
    names = FeatureNames(dense=("a", "b"))
    count = min(len(first), len(second))
    columns = {"a": pa.array(first[:count], pa.float64()), "b": pa.array(second[:count], pa.float64())}
    table.update(TableRows(np.arange(count) + FIRST_ITEM), pa.table(columns), names, 0)
    for values in columns.values():
        moments, plain = Moments(), values.to_numpy(zero_copy_only=False)
        moments.add(plain[~np.isnan(plain)])
        expected.append(moments.standardised(plain))
    found = inputs_of(table, *table.read(torch.arange(count) + FIRST_ITEM), torch.float64).dense
    assert found[:, :2].T.tolist() == np.array(expected).tolist()
    assert found.shape == (count, MAX_DENSE)
    assert not found[:, 2:].any()


def test_values_of_a_list_have_equal_shares_and_without_any_there_is_none() -> None:
    table, names = FeatureTable(1 << 20, 8), FeatureNames(categorical=("tag", "kind"))
    items = pa.table({"tag": [["a", "b", "c"], [], None], "kind": [["x"], None, ["y", "z"]]})
    table.update(TableRows(np.array([2, 3, 4])), items, names, 0)
    weights = inputs_of(table, *table.read(torch.arange(8)), torch.float64).weights
    # In front, a place for those who have nothing else; then three of tags, and two of kinds.
    assert weights.shape == (8, 6)
    assert weights[2:5].tolist() == [[0, 1 / 3, 1 / 3, 1 / 3, 1, 0], [0.0] * 6, [0, 0, 0, 0, 0.5, 0.5]]
    assert not weights[[0, 1, 5, 6, 7]].any()
