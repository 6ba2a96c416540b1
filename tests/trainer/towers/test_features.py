import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.interactions.features import MAX_DENSE
from weir.trainer.towers.features import FeatureInputs, FeatureVectors


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
