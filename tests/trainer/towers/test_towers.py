from typing import get_args

import pytest
import torch

from weir.trainer.settings.towers import TOWERS, TowerKind, kinds
from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.step.gathered import GatheredHistories, Lookup
from weir.trainer.towers import Tower, build_tower, project, read_out
from weir.trainer.towers.esasrec import ESasRec
from weir.trainer.towers.hstu import Hstu
from weir.trainer.towers.matrix_factorisation import MatrixFactorisation
from weir.trainer.towers.mean_pooling import MeanPooling
from weir.trainer.towers.recency import Recency
from weir.trainer.towers.sasrec import SasRec

READERS = kinds(knows_users=False)


def reader(kind: TowerKind) -> Tower:
    config = TowerConfig(kind=kind, dimension=8, history_length=5, layers=2, dropout=0.2)
    return build_tower(config, 1).eval()


def test_every_kind_of_the_settings_has_a_tower() -> None:
    assert list(TOWERS) == list(get_args(TowerKind))
    assert all(isinstance(build_tower(TowerConfig(kind=kind), 1), Tower) for kind in TOWERS)


def test_some_towers_know_users_and_the_others_read_histories() -> None:
    assert kinds(knows_users=True) == ["matrix_factorisation", "lightgcn"]
    assert READERS == ["recency", "sasrec", "esasrec", "hstu", "mean_pooling"]
    assert [kind for kind in TOWERS if TowerConfig(kind=kind).knows_users] == kinds(knows_users=True)


@pytest.mark.parametrize("kind", READERS)
def test_neither_what_padding_holds_nor_its_length_matters(kind: TowerKind) -> None:
    tower = reader(kind)
    history, mask = torch.randn(2, 5, 8), torch.arange(5) >= torch.tensor([[2], [4]])
    wanted = tower(history, mask)
    torch.testing.assert_close(tower(history.masked_fill(~mask[..., None], 1e6), mask), wanted)
    torch.testing.assert_close(tower(history[:, -3:], mask[:, -3:]), wanted)


@pytest.mark.parametrize("kind", READERS)
def test_users_without_an_item_share_a_vector_that_is_learned(kind: TowerKind) -> None:
    tower, history = reader(kind), torch.randn(2, 5, 8)
    users = tower(history, torch.zeros(2, 5, dtype=torch.bool))
    assert torch.equal(users[0], users[1])
    users.square().sum().backward()
    found = [parameter.grad for parameter in tower.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in found)
    assert any(gradient.any() for gradient in found)


@pytest.mark.parametrize(
    ("kind", "cls"),
    [("recency", Recency), ("sasrec", SasRec), ("esasrec", ESasRec), ("hstu", Hstu), ("mean_pooling", MeanPooling)],
)
def test_the_configuration_chooses_the_tower_and_the_seed_its_parameters(kind: str, cls: type) -> None:
    config = TowerConfig.model_validate({"kind": kind, "dimension": 8, "layers": 2})
    before = torch.get_rng_state()
    first, same, other = (build_tower(config, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert type(first) is cls
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), same.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("kind", kinds(knows_users=True))
def test_users_with_vectors_of_their_own_need_no_tower_but_the_one_that_hands_them_on(kind: str) -> None:
    assert isinstance(build_tower(TowerConfig.model_validate({"kind": kind}), 1), MatrixFactorisation)


@pytest.mark.parametrize("kind", ["recency", "sasrec", "mean_pooling"])
def test_the_configuration_sets_the_width_of_the_hidden_layers(kind: str) -> None:
    wide, narrow = (TowerConfig.model_validate({"kind": kind, "dimension": 8, "expansion": width}) for width in (4, 1))
    sizes = [sum(p.numel() for p in build_tower(config, 1).parameters()) for config in (wide, narrow)]
    assert sizes[0] - sizes[1] == 3 * 8 * (2 * 8 + 1)


def test_only_cosine_towers_normalise() -> None:
    vectors = torch.randn(4, 8) * 3
    torch.testing.assert_close(project(vectors, TowerConfig()).norm(dim=1), torch.ones(4))
    assert torch.equal(project(vectors, TowerConfig(normalised=False)), vectors)


@pytest.mark.parametrize("kind", READERS)
def test_all_positions_are_read_out_one_row_each_user_by_user(kind: str) -> None:
    config = TowerConfig.model_validate({"kind": kind, "dimension": 8, "history_length": 5})
    tower = build_tower(config, 1).eval()
    history, mask = torch.randn(3, 5, 8), torch.ones(3, 5, dtype=torch.bool)
    newest = read_out(tower, history, mask, every=False)
    torch.testing.assert_close(read_out(tower, history, mask, every=True).view(3, 5, 8)[:, -1], newest)


@pytest.mark.parametrize("kind", ["recency", "hstu", "mean_pooling", "sasrec", "esasrec"])
@pytest.mark.parametrize("layers", [1, 2])
def test_items_are_read_where_they_are_as_at_every_place(kind: str, layers: int) -> None:
    config = TowerConfig.model_validate({"kind": kind, "dimension": 8, "history_length": 5, "layers": layers})
    tower, items = build_tower(config, 1).double(), torch.randn(6, 8, dtype=torch.float64).requires_grad_()
    places, mask = torch.randint(6, (4, 5)), torch.arange(5) >= torch.tensor([0, 2, 4, 5])[:, None]
    found, wanted = tower.read(GatheredHistories(Lookup(items), places), mask), tower(items[places], mask)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    every = [items, *tower.parameters()]
    pairs = (torch.autograd.grad(one.square().sum(), every, materialize_grads=True) for one in (found, wanted))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("recency", {}, True),
        ("recency", {"layers": 2}, False),
        ("recency", {"dropout": 0.1}, False),
        ("hstu", {}, True),
        ("hstu", {"dropout": 0.1}, False),
        ("mean_pooling", {"layers": 2, "dropout": 0.1}, True),
        ("sasrec", {}, False),
    ],
)
def test_a_tower_that_changes_places_apart_needs_a_vector_of_each(
    kind: str, settings: dict[str, float], expected: bool
) -> None:
    assert build_tower(TowerConfig.model_validate({"kind": kind} | settings), 1).reads_items is expected


def test_a_tower_without_positions_says_so() -> None:
    tower, history = build_tower(TowerConfig(kind="matrix_factorisation"), 1), torch.randn(2, 1, 8)
    with pytest.raises(
        ValueError, match="MatrixFactorisation reads no sequences; allowed are recency, sasrec, esasrec, hstu"
    ):
        read_out(tower, history, torch.ones(2, 1, dtype=torch.bool), every=True)
