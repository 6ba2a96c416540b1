from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.trainer.offline.logs import circles, everything, log_of, small
from weir.trainer.items.table import FIRST_ITEM, PADDING, SHARED
from weir.trainer.offline.data import Interactions
from weir.trainer.offline.examples import training_batches
from weir.trainer.offline.model import Estimator, OfflineModel
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.towers import TOWERS
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
