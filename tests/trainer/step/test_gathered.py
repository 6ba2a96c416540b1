"""Vectors that a step gathers once, and the item cache of XIR: in the checkpoint, and on all ranks alike."""

from collections.abc import Callable
from unittest.mock import patch
from weakref import ref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from tests.trainer.largest import Largest
from tests.trainer.support import absorbed, batches_of, same_tensors
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store
from weir.trainer.losses.inputs import LossInputs, LossResult
from weir.trainer.losses.step_loss import step_loss
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import LossConfig, NegativesConfig, TowerConfig, TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step import gathered as placed
from weir.trainer.step.gathered import GatheredHistories, Lookup
from weir.trainer.step.inputs import sample_inputs
from weir.trainer.step.step import compute_gradients, train_step
from weir.trainer.towers import in_training
from weir.trainer.towers.recency import Recency
from weir.trainer.towers.tower import Dense, History
from weir.trainer.train import train


@pytest.fixture
def xir(config: TrainerConfig) -> TrainerConfig:
    changes = {"loss": LossConfig(kind="resampled_softmax", cache=16), "negatives": NegativesConfig(uniform=0)}
    return config.model_copy(update=changes)


def test_a_restored_run_goes_on_bit_for_bit(store: Store, writer: WindowWriter, xir: TrainerConfig) -> None:
    synthetic(writer, windows=1)
    state = absorbed(store, xir)
    dealt = batches_of(store, state)
    for batch in dealt[:2]:
        train_step(state, batch, Workers())
    tensors = {name: value.clone() for name, value in state.tensors().items()}
    assert tensors["cache.counts"].sum() > 0
    other = TrainerState.restore(xir, tensors, torch.device("cpu"))
    for batch in dealt[2:4]:
        train_step(state, batch, Workers())
        train_step(other, batch, Workers())
    assert same_tensors(state.tensors(), other.tensors()) == []


def test_the_cache_counts_what_all_rows_drew(store: Store, writer: WindowWriter, xir: TrainerConfig) -> None:
    synthetic(writer, windows=1)
    state = absorbed(store, xir)
    batch = batches_of(store, state)[0]
    drawn = compute_gradients(state, batch, Workers()).drawn
    # Half as many draws as candidates from either part, for each row.
    rows = int(batch.real.sum())
    assert int(drawn.sum()) == rows * (rows // 2 + 16 // 2)
    train_step(state, batch, Workers())
    assert state.cache is not None
    assert int(state.cache.counts.sum()) == int(drawn.sum())
    assert torch.isin(state.cache.items, state.live).all()


def test_what_needs_a_closed_world_is_refused_in_the_stream(store: Store, config: TrainerConfig) -> None:
    offline = config.model_copy(update={"tower": TowerConfig(kind="matrix_factorisation", dimension=8)})
    with pytest.raises(ValueError, match="matrix_factorisation knows users by id and trains in `weir evaluate`"):
        train(store, offline)


def test_a_loss_of_whole_batches_is_refused_on_several_ranks(
    store: Store, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointwise = {"loss": LossConfig(kind="pointwise"), "negatives": NegativesConfig(uniform=0)}
    alone: Callable[..., Workers] = lambda device, patience: Workers(0, 2)  # noqa: E731
    monkeypatch.setattr(Workers, "from_environment", staticmethod(alone))
    monkeypatch.setattr(Workers, "__enter__", lambda workers: workers)
    monkeypatch.setattr(Workers, "__exit__", lambda workers, *failure: None)
    monkeypatch.setattr(Workers, "broadcast", lambda workers, payload: payload)
    with pytest.raises(ValueError, match="is a loss of the whole batch: train it with one rank"):
        train(store, config.model_copy(update=pointwise))


ROWS = 6
INDEX = arrays.arrays("int64", arrays.array_shapes(min_dims=1, max_dims=2, max_side=5), elements=st.integers(0, 5))


@given(st.lists(INDEX, min_size=1, max_size=4), st.integers(0, 9))
def test_gradients_are_those_of_indexing(parts: list, seed: int) -> None:  # type: ignore[type-arg]
    draw = torch.Generator().manual_seed(seed)
    vectors = torch.randn(ROWS, 3, dtype=torch.float64, generator=draw).requires_grad_()
    index = [torch.from_numpy(part) for part in parts]
    above = [torch.randn(*one.shape, 3, dtype=torch.float64, generator=draw) for one in index]
    look_up = Lookup(vectors * 2)
    found = [look_up(one) for one in index]
    plain = [(vectors * 2)[one] for one in index]
    assert all(map(torch.equal, found, plain))
    [mine] = torch.autograd.grad(found, [vectors], above)
    [wanted] = torch.autograd.grad(plain, [vectors], above)
    torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-12)


def test_what_reads_all_of_them_adds_its_gradient() -> None:
    vectors = torch.randn(ROWS, 3, dtype=torch.float64).requires_grad_()
    for reads in ([0, 2, 2], []):
        look_up = Lookup(vectors * 2)
        found = look_up.vectors.square().sum() + look_up(torch.tensor(reads, dtype=torch.int64)).sum()
        plain = (vectors * 2).square().sum() + (vectors * 2)[reads].sum()
        [mine], [wanted] = (torch.autograd.grad(one, [vectors]) for one in (found, plain))
        torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-12)


def test_what_is_not_looked_up_gets_nothing() -> None:
    vectors = torch.ones(ROWS, 3, requires_grad=True)
    look_up = Lookup(vectors)
    look_up(torch.tensor([1, 1])).sum().backward()
    assert vectors.grad is not None
    assert vectors.grad.tolist() == [[0.0] * 3, [2.0] * 3, *[[0.0] * 3] * 4]


def test_a_part_whose_gradient_nobody_asks_for_adds_nothing() -> None:
    vectors = torch.ones(ROWS, 3, requires_grad=True)
    look_up = Lookup(vectors)
    look_up(torch.tensor([0])).detach()
    [found] = torch.autograd.grad(look_up(torch.tensor([[2]])).sum(), [vectors])
    assert found.sum(1).tolist() == [0.0, 0.0, 3.0, 0.0, 0.0, 0.0]


def test_nothing_of_a_step_outlives_it() -> None:
    vectors = torch.ones(ROWS, 3, requires_grad=True)
    look_up, known = Lookup(vectors), ref(vectors)
    torch.autograd.grad(look_up(torch.tensor([0])).sum(), [vectors])
    del look_up, vectors
    # Garbage collection does not see what autograd keeps: a cycle through it would last for ever.
    assert known() is None


Read = Callable[[History, Tensor, Tensor], Tensor]

READS: dict[str, Read] = {
    "newest": lambda history, asked, weights: history.newest(),
    "every": lambda history, asked, weights: history.every(),
    "compare": lambda history, asked, weights: history.compare(asked),
    "mix": lambda history, asked, weights: history.mix(weights),
    "all": lambda history, asked, weights: history.mix(torch.softmax(history.compare(asked) + weights, -1)),
    "mapped": lambda history, asked, weights: history.mapped(torch.tanh).mix(history.compare(asked).sigmoid()),
}


@pytest.mark.parametrize("name", READS)
@given(st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(1, 3), st.integers(1, 12)), st.integers(0, 10**6))
def test_what_is_read_and_all_gradients_are_those_of_dense_histories(
    name: str, sizes: tuple[int, int, int, int], seed: int
) -> None:
    (users, length, asked, items), draw = sizes, torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=draw).requires_grad_()

    given_ = numbers(items, 4), numbers(users, asked, 4), numbers(users, asked, length)
    vectors, *others = given_
    places = torch.randint(items, (users, length), generator=draw)
    with patch.object(placed, "_AT_ONCE", 4 * 4 * 2):
        mine = READS[name](GatheredHistories(Lookup(vectors), places), *others)
        dense = READS[name](Dense(vectors[places]), *others)
        torch.testing.assert_close(mine, dense, rtol=0, atol=1e-12)
        above = torch.randn(mine.shape, dtype=torch.float64, generator=draw)
        found, wanted = (
            torch.autograd.grad(one, given_, above, allow_unused=True, materialize_grads=True) for one in (mine, dense)
        )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_equal_histories_in_float32_have_the_same_bits_each_time() -> None:
    vectors, places = torch.randn(40, 8).requires_grad_(), torch.randint(40, (30, 5))
    asked = torch.randn(30, 2, 8)

    def gradient() -> Tensor:
        history = GatheredHistories(Lookup(vectors), places)
        [found] = torch.autograd.grad(history.mix(history.compare(asked)).square().sum(), [vectors])
        return found

    assert torch.equal(gradient(), gradient())


def test_no_vector_of_each_place_is_made() -> None:
    vectors, places = torch.randn(100, 64).requires_grad_(), torch.randint(100, (2000, 50))
    history = GatheredHistories(Lookup(vectors), places)
    with patch("torch.get_num_threads", return_value=1), Largest() as found:
        mixed = history.mapped(torch.tanh).mix(history.compare(torch.ones(2000, 1, 64)))
        torch.autograd.grad(mixed.sum(), [vectors])
    assert 0 < found.numel <= max(placed._AT_ONCE, places.numel()) < vectors[places].numel() / 20


def test_parts_are_those_of_the_places() -> None:
    vectors, places = torch.randn(9, 4), torch.randint(9, (5, 3))
    history = GatheredHistories(Lookup(vectors), places)
    assert history.shape == (5, 3, 4)
    parts = history.split(2)
    assert [part.shape for part in parts] == [(2, 3, 4), (2, 3, 4), (1, 3, 4)]
    assert torch.equal(torch.cat([part.every() for part in parts]), vectors[places])


def test_gathered_histories_do_not_outlive_their_step() -> None:
    vectors = torch.ones(6, 3, requires_grad=True)
    history, known = GatheredHistories(Lookup(vectors), torch.tensor([[0, 1]])), ref(vectors)
    torch.autograd.grad(history.mapped(torch.tanh).mix(history.compare(torch.ones(1, 1, 3))).sum(), [vectors])
    del history, vectors
    assert known() is None


@pytest.mark.parametrize("kind", ["recency", "sasrec"])
def test_a_tower_that_reads_in_parts_has_the_same_gradients(
    kind: str, store: Store, writer: WindowWriter, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic(writer, windows=1, events=75)
    config = config.model_copy(update={"tower": config.tower.model_copy(update={"kind": kind, "dropout": 0.0})})
    state = absorbed(store, config, dtype=torch.float64)
    batch = batches_of(store, state)[0]
    whole = compute_gradients(state, batch, Workers())
    # Five histories of 32 at a time.
    monkeypatch.setitem(in_training._AT_ONCE, "cpu", 5 * batch.histories.shape[1] * config.tower.dimension)
    monkeypatch.setattr(Recency, "reads_items", False)
    parts = compute_gradients(state, batch, Workers())
    for one, other in zip([*whole.tower, whole.embeddings], [*parts.tower, parts.embeddings], strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-12)


def test_a_shared_negative_comes_once_with_its_number_and_its_hits_count_as_often(
    store: Store, writer: WindowWriter, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic(writer, windows=1)
    state, seen = absorbed(store, config), list[LossInputs]()
    batch = batches_of(store, state)[0]

    def spy(step: LossInputs, config: TrainerConfig) -> LossResult:
        seen.append(step)
        return step_loss(step, config)

    monkeypatch.setattr("weir.trainer.step.step.step_loss", spy)
    sampled = sample_inputs(state, batch, Workers())
    columns, forbidden = sampled.columns, sampled.share.rows.forbidden
    assert columns is not None
    assert forbidden is not None
    hits = int((columns[None, :, None] == forbidden[:, None, :]).any(2).sum())
    result = train_step(state, batch, Workers())
    [step] = seen
    assert step.times is not None
    assert len(step.times) == len(step.given("columns")) == len(columns.unique()) < len(columns)
    assert int(step.times.sum()) == len(columns)
    # A row's own column, of which it has one, is no accident.
    assert result.accidental_hits == hits - len(batch.positives)
