""""""

import itertools
import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from tests.trainer.offline.logs import circles, everything, log_of, small
from weir.trainer.items.table import FIRST_ITEM, PADDING, SHARED
from weir.trainer.offline.data import Interactions
from weir.trainer.offline.evaluator import Evaluator, Rules
from weir.trainer.offline.examples import training_batches
from weir.trainer.offline.fit import BestStep, Budget, Fit, Step, fit
from weir.trainer.offline.model import Estimator, OfflineModel
from weir.trainer.offline.results import CurvePoint
from weir.trainer.offline.splits import temporal
from weir.trainer.ranks.workers import Workers, deterministic
from weir.trainer.settings.towers import TOWERS
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.inputs import sample_inputs
from weir.trainer.step.step import compute_gradients, train_step

# What the estimates may be off on average; the third knows an item by some of its newest gaps.
ALLOWED = {"exact": 1e-6, "count_min": 1e-6, "gap": 0.4}


def zipf(items: int = 30, cold: int = 5, count: int = 4000) -> Interactions:
    draw = np.random.default_rng(0)
    chance = 1 / np.arange(1, items + 1)
    drawn = draw.choice(items, count, p=chance / chance.sum())
    return log_of(draw.integers(0, 20, count).tolist(), drawn.tolist(), sizes=(20, items + cold))


@pytest.mark.parametrize("estimator", get_args(Estimator))
def test_every_estimator_comes_near_the_shares_of_the_training_items(estimator: Estimator) -> None:
    log = zipf()
    train = np.arange(3000)
    model = OfflineModel.fresh(small(), log, train, estimator)
    counts = np.bincount(log.items[train], minlength=35)
    known = np.flatnonzero(counts)
    found = model.log_q[FIRST_ITEM + torch.from_numpy(known)]
    assert float(found.exp().sum()) == pytest.approx(1, abs=1e-5)
    exact = np.log(counts[known] / len(train))
    assert np.abs(found.numpy() - exact).mean() < ALLOWED[estimator]
    assert np.corrcoef(found, exact)[0, 1] > 0.8


@pytest.mark.parametrize("kind", TOWERS)
def test_rows_are_for_items_and_for_users_where_the_tower_knows_them(kind: str) -> None:
    log = log_of([0, 0, 1, 1, 2], [0, 3, 3, 1, 5], sizes=(4, 7))
    train = np.array([0, 1, 2, 3])
    model = OfflineModel.fresh(small(kind), log, train)
    knows_users = kind in {"matrix_factorisation", "lightgcn"}
    assert model.config.tower.knows_users == knows_users
    assert len(model.embeddings.weight) == FIRST_ITEM + 7 + 4 * knows_users
    assert model.live.tolist() == [FIRST_ITEM, FIRST_ITEM + 1, FIRST_ITEM + 3]
    assert (model.totals.positives, model.totals.users, model.totals.items) == (4, 2, 3)
    assert model.item_counts[FIRST_ITEM : FIRST_ITEM + 7].tolist() == [1, 1, 0, 2, 0, 0, 0]
    assert float(model.item_counts.sum()) == 4
    assert not model.embeddings.weight[PADDING].any()
    assert model.embeddings.weight[SHARED:].any(1).all()
    assert (model.graph is None) == (kind != "lightgcn")
    tower = sum(parameter.numel() for parameter in model.tower.parameters())
    assert model.parameters == tower + 8 * (3 + 2 * knows_users)
    _, items = model.vectors()
    assert items.shape == (7, 8)


@pytest.mark.parametrize("kind", TOWERS)
def test_a_seed_decides_the_beginning(kind: str) -> None:
    first, again, other = (
        OfflineModel.fresh(small(kind, seed=seed), circles(), everything(circles())) for seed in (1, 1, 2)
    )
    assert torch.equal(first.embeddings.weight, again.embeddings.weight)
    assert not torch.equal(first.embeddings.weight, other.embeddings.weight)
    for one, two in zip(first.tower.parameters(), again.tower.parameters(), strict=True):
        assert torch.equal(one, two)


def dense_loss(weight: Tensor, log: Interactions, layers: int, pairs: tuple[Tensor, Tensor]) -> Tensor:
    """Return the softmax loss over all items of vectors propagated by a dense matrix, He et al. (2020)."""
    edges = torch.zeros(len(weight), len(weight), dtype=weight.dtype)
    users = torch.from_numpy(log.users) + FIRST_ITEM + len(log.item_ids)
    items = torch.from_numpy(log.items) + FIRST_ITEM
    edges[users, items] = edges[items, users] = 1
    scale = edges.sum(1).clamp(min=1) ** -0.5
    edges = scale[:, None] * edges * scale
    read = torch.stack([torch.matrix_power(edges, layer) @ weight for layer in range(layers + 1)]).mean(0)
    live = torch.unique(items)
    return functional.cross_entropy(read[pairs[0]] @ read[live].T / 0.5, torch.searchsorted(live, pairs[1]))


@pytest.mark.parametrize("layers", [1, 3])
def test_a_step_of_lightgcn_descends_the_gradient_of_a_dense_propagation(layers: int) -> None:
    log = log_of([0, 0, 1, 1, 2, 2, 0, 3], [0, 1, 1, 2, 2, 4, 4, 0], sizes=(5, 6))
    config = small("lightgcn", tower={"layers": layers, "temperature": 0.5}, loss={"kind": "full_softmax"})
    model = OfflineModel.fresh(config, log, everything(log))
    batch = next(training_batches(config, log, everything(log)))
    weight = model.embeddings.weight.clone().requires_grad_()
    loss = dense_loss(weight, log, layers, (batch.histories[:, 0], batch.positives))
    loss.backward()
    gradients = compute_gradients(model, batch, Workers())
    assert gradients.rows.tolist() == list(range(len(weight)))
    torch.testing.assert_close(gradients.embeddings, weight.grad, rtol=1e-4, atol=1e-6)
    assert train_step(model, batch, Workers()).loss == pytest.approx(loss.item(), rel=1e-5)
    moved = (model.embeddings.weight != weight).any(1)
    # All users and items with an edge; not padding, the shared row, the items 3 and 5 and the user 4.
    still = {PADDING, SHARED, FIRST_ITEM + 3, FIRST_ITEM + 5, FIRST_ITEM + 6 + 4}
    assert set(torch.nonzero(~moved)[:, 0].tolist()) == still


def test_gradients_of_lightgcn_are_finite_for_all_rows() -> None:
    log = circles()
    config = small("lightgcn", tower={"layers": 2})
    model = OfflineModel.fresh(config, log, everything(log))
    for batch, _ in zip(training_batches(config, log, everything(log)), range(20), strict=False):
        gradients = compute_gradients(model, batch, Workers())
        assert len(gradients.rows) == len(model.embeddings.weight)
        assert gradients.embeddings.isfinite().all()
        train_step(model, batch, Workers())
    assert model.embeddings.weight.isfinite().all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    config = small().model_copy(update={"device": "cuda"})
    with pytest.raises(ValueError, match="offers no CUDA device: set device = cpu or auto"):
        OfflineModel.fresh(config, circles(), everything(circles()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gradients_of_lightgcn_on_a_gpu_are_those_of_the_cpu() -> None:
    """Only the gradients: some are 0 here but for rounding, and Adagrad makes a whole step of what is left then."""
    log, found = circles(), []
    for device in ("cpu", "cuda"):
        config = small("lightgcn").model_copy(update={"device": device})
        model = OfflineModel.fresh(config, log, everything(log))
        batch = next(iter(training_batches(config, log, everything(log))))
        found.append(compute_gradients(model, batch, Workers()).embeddings.cpu())
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["recency", "sasrec", "matrix_factorisation"])
def test_a_gpu_learns_what_the_cpu_learns(kind: str) -> None:
    log, found = circles(), []
    for device in ("cpu", "cuda"):
        config = small(kind).model_copy(update={"device": device})
        model = OfflineModel.fresh(config, log, everything(log))
        for batch, _ in zip(training_batches(config, log, everything(log)), range(10), strict=False):
            train_step(model, batch, Workers())
        assert model.embeddings.weight.device.type == device
        found.append(model.vectors()[1].cpu())
    assert torch.allclose(*found, rtol=1e-3, atol=1e-4)


LOG = circles()


def fitted(
    config: TrainerConfig, steps: int, *, looks: bool = False, losses: list[float] | None = None
) -> tuple[OfflineModel, Fit]:
    split = temporal(LOG)
    validation = Evaluator.of(LOG, split.train, split.validation, Rules("interaction", (3,))) if looks else None
    report = None if losses is None else lambda step: losses.append(step.loss)
    with deterministic():
        model = OfflineModel.fresh(config, LOG, split.train)
        return model, fit(model, LOG, split.train, Budget(steps, 3), validation=validation, report=report)


def bits(model: OfflineModel) -> list[bytes]:
    tensors = [model.embeddings.weight, model.embeddings.squares, *model.tower.state_dict().values()]
    return [tensor.numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("kind", TOWERS)
def test_a_seed_decides_every_bit_and_looking_changes_none(kind: str) -> None:
    config = small(kind, seed=4, tower={"dropout": 0.2})
    first, looked = fitted(config, 8, looks=True)
    again, repeated = fitted(config, 8, looks=True)
    unseen, plain = fitted(config, 8)
    assert bits(first) == bits(again) == bits(unseen)
    assert bits(first) != bits(fitted(config.model_copy(update={"seed": 5}), 8)[0])
    assert [point.model_copy(update={"seconds": 0}) for point in looked.curve] == [
        point.model_copy(update={"seconds": 0}) for point in repeated.curve
    ]
    assert plain.curve == ()


@pytest.mark.parametrize(("kind", "share"), [("sasrec", 0.5), ("esasrec", 0.5), ("hstu", 0.5), ("mean_pooling", 0.6)])
def test_the_loss_falls_where_there_is_something_to_learn(kind: str, share: float) -> None:
    losses: list[float] = []
    fitted(small(kind), 80, losses=losses)
    assert sum(losses[-10:]) < share * sum(losses[:10])


def test_the_curve_tells_means_since_the_point_before() -> None:
    losses: list[float] = []
    _, found = fitted(small(), 7, looks=True, losses=losses)
    assert [point.step for point in found.curve] == [3, 6, 7]
    assert [point.loss for point in found.curve] == pytest.approx(
        [sum(losses[:3]) / 3, sum(losses[3:6]) / 3, losses[6]]
    )
    assert all("recall@3" in point.metrics for point in found.curve)
    seconds = [point.seconds for point in found.curve]
    assert seconds == sorted(seconds)
    assert found.seconds >= seconds[-1] > 0


def test_examples_are_the_positives_learnt_from() -> None:
    split = temporal(LOG)
    batches = itertools.islice(training_batches(small(), LOG, split.train), 5)
    assert fitted(small(), 5)[1].examples == sum(int((batch.positives > 0).sum()) for batch in batches)


def run(budget: Budget, config: TrainerConfig | None = None) -> tuple[OfflineModel, Fit, list[Step], Evaluator]:
    split, steps = temporal(LOG), list[Step]()
    validation = Evaluator.of(LOG, split.train, split.validation, Rules("interaction", (3,)))
    with deterministic():
        model = OfflineModel.fresh(config or small(), LOG, split.train)
        found = fit(model, LOG, split.train, budget, validation=validation, report=steps.append)
    return model, found, steps, validation


@pytest.mark.parametrize("kind", TOWERS)
def test_a_run_that_gets_no_better_ends_with_its_best_step(kind: str) -> None:
    config = small(kind, optimizer={"embedding_learning_rate": 0.5})
    model, found, _, validation = run(Budget(60, 2, patience=3), config)
    recalls = [point.metrics["recall@3"] for point in found.curve]
    best = max(range(len(recalls)), key=lambda number: (recalls[number], -number))
    assert found.best_step == found.curve[best].step
    assert validation.validate(model)["recall@3"] == recalls[best]
    if found.ended == "patience":
        assert len(recalls) == best + 4
        assert found.steps == found.curve[-1].step < 60
    else:
        assert (found.ended, found.steps) == ("steps", 60)
    # Until it ends it is the run without patience.
    _, longer, _, _ = run(Budget(found.steps, 2), config)
    assert [point.metrics for point in longer.curve] == [point.metrics for point in found.curve]
    assert (longer.best_step, longer.ended) == (found.steps, "steps")


def test_a_run_without_time_ends_after_a_step() -> None:
    _, found, steps, _ = run(Budget(60, 7, patience=3, seconds=0))
    assert (found.ended, found.steps, found.best_step) == ("seconds", 1, 1)
    assert [step.number for step in steps] == [1]


@pytest.mark.parametrize("batch_size", [2, 16])
def test_by_epochs_it_validates_once_in_each_and_not_too_often(batch_size: int) -> None:
    config = small(batch_size=batch_size)
    _, found, steps, _ = run(Budget(90), config)
    train = temporal(LOG).train
    batches = itertools.islice(training_batches(config, LOG, train), 90)
    examples, since, wanted = 0, 0, list[int]()
    for number, batch in enumerate(batches, 1):
        examples, since = examples + int(batch.real.sum()), since + 1
        if (examples >= len(train) and since >= 20) or number == 90:
            wanted.append(number)
            examples = since = 0
    assert [point.step for point in found.curve] == wanted
    assert found.epochs == found.examples / len(train) == steps[-1].epochs


def test_a_report_knows_the_best_validation_so_far() -> None:
    _, found, steps, _ = run(Budget(12, 3, patience=9))
    assert [step.number for step in steps] == list(range(1, 13))
    assert steps[1].best is None
    for step in steps[2:]:
        seen = [point for point in found.curve if point.step <= step.number]
        assert step.best == max(seen, key=lambda point: point.metrics["recall@3"])


def test_a_loss_that_is_not_finite_ends_the_run() -> None:
    config = small("matrix_factorisation", optimizer={"embedding_learning_rate": 1e30})
    losses: list[float] = []
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) at step \d+: try a lower learning rate"):
        fitted(config, 50, losses=losses)
    assert all(map(math.isfinite, losses))


def test_everything_may_be_learnt_without_a_split() -> None:
    model = OfflineModel.fresh(small(), LOG, everything(LOG))
    found = fit(model, LOG, everything(LOG), Budget(2, 1))
    assert found.examples > 0
    assert torch.isfinite(model.embeddings.weight).all()


def test_a_pair_is_masked_by_what_its_user_knows_and_by_nothing_else() -> None:
    log = circles(users=40, items=300)
    config = small("matrix_factorisation", negatives={"uniform": 8, "mask_history": True})
    model = OfflineModel.fresh(config, log, everything(log))
    batch = next(training_batches(config, log, everything(log)))
    sampled = sample_inputs(model, batch, Workers())
    # Most of the known items of a pair are neither columns nor anything else in the step.
    assert (~torch.isin(batch.known, sampled.used)).float().mean() > 0.5
    rows = sampled.share.rows
    hits = sum(
        int(column) in {int(positive), *known.tolist()}
        for positive, known in zip(rows.positives, batch.known, strict=True)
        for column in sampled.columns
    )
    # A row's own column is no accident.
    assert train_step(model, batch, Workers()).accidental_hits == hits - len(rows.positives)


TINY_LOG = circles(users=3, items=4, each=3)


def fill(model: OfflineModel, value: float) -> None:
    model.embeddings.weight.fill_(value)
    with torch.no_grad():
        for tensor in model.tower.state_dict().values():
            tensor.fill_(value)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_what_comes_back_is_the_first_of_the_best(values: list[int]) -> None:
    model, best = OfflineModel.fresh(small(), TINY_LOG, everything(TINY_LOG)), BestStep("recall@1")
    for step, value in enumerate(values, 1):
        fill(model, step)
        best.see(CurvePoint(step=step, seconds=0, loss=0, metrics={"recall@1": value, "recall@2": -value}), model)
        assert best.worse_since == step - 1 - values[:step].index(max(values[:step]))
    fill(model, -1)
    step = best.restore(model)
    assert step == 1 + values.index(max(values))
    assert (model.embeddings.weight == step).all()
    assert all((tensor == step).all() for tensor in model.tower.state_dict().values())


def test_before_the_first_validation_there_is_nothing_to_bring_back() -> None:
    with pytest.raises(ValueError, match="no validation yet"):
        BestStep("recall@1").restore(OfflineModel.fresh(small(), TINY_LOG, everything(TINY_LOG)))
