import pytest
import torch

from trainer.config import TowerConfig
from trainer.towers import MeanPooling, SasRec, build_tower, project


@pytest.mark.parametrize(("kind", "cls"), [("sasrec", SasRec), ("mean_pooling", MeanPooling)])
def test_the_configuration_chooses_the_tower_and_the_seed_its_parameters(kind: str, cls: type) -> None:
    config = TowerConfig.model_validate({"kind": kind, "dimension": 8, "layers": 2})
    before = torch.get_rng_state()
    first, same, other = (build_tower(config, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(first, cls)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), same.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_only_cosine_towers_normalise() -> None:
    vectors = torch.randn(4, 8) * 3
    torch.testing.assert_close(project(vectors, TowerConfig()).norm(dim=1), torch.ones(4))
    assert torch.equal(project(vectors, TowerConfig(normalised=False)), vectors)
