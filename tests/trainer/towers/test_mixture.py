import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.settings.towers import TowerConfig
from weir.trainer.settings.trainer import RescoringConfig
from weir.trainer.towers.mixture import MixtureOfLogits, build_scorer

Array = npt.NDArray[np.float64]
SIZES = st.integers(1, 4)


def tower(dimension: int) -> TowerConfig:
    return TowerConfig(dimension=dimension, heads=1, temperature=0.25)


def scorer(config: RescoringConfig, dimension: int, seed: int = 0) -> MixtureOfLogits:
    """A scorer as after training: a fresh one is the first phase."""
    model = build_scorer(config, tower(dimension), seed).double()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    return model


class Plain:
    """The published formula, pair by pair, from the parameters by name."""

    def __init__(self, model: MixtureOfLogits, config: RescoringConfig) -> None:
        self.values = {name: value.numpy() for name, value in model.state_dict().items()}
        self.config = config

    def linear(self, name: str, x: Array) -> Array:
        return np.asarray(self.values[f"{name}.weight"] @ x + self.values[f"{name}.bias"])

    def network(self, name: str, x: Array) -> Array:
        return self.linear(f"{name}.2", silu(self.linear(f"{name}.0", x)))

    def components(self, name: str, x: Array) -> list[Array]:
        parts = self.linear(name, x).reshape(-1, self.config.dimension)
        return [part / np.sqrt((part * part).sum()) for part in parts]

    def score(self, user: Array, item: Array) -> float:
        mine, its = self.components("user_components", user), self.components("item_components", item)
        cosines = np.array([one @ other for other in its for one in mine])
        both = self.network("user_weights", user) * self.network("item_weights", item)
        odds = np.exp(silu(both + self.network("pair_weights", cosines)))
        mixture = (odds / odds.sum()) @ cosines / self.config.temperature
        return float(user @ item / 0.25 + self.values["share"][0] * mixture)


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


CONFIGS = st.builds(
    RescoringConfig,
    user_components=SIZES,
    item_components=SIZES,
    dimension=SIZES,
    hidden=SIZES,
    temperature=st.sampled_from([0.05, 0.2, 1.0]),
)


@given(CONFIGS, st.integers(1, 3), st.integers(1, 5))
def test_scores_are_those_of_the_published_formula(config: RescoringConfig, users: int, items: int) -> None:
    model, draw = scorer(config, 6), torch.Generator().manual_seed(users + 10 * items)
    vectors = torch.randn(users + items, 6, generator=draw, dtype=torch.float64)
    mine, its = vectors[:users], vectors[users:]
    plain = Plain(model, config)
    wanted = [[plain.score(user, item) for item in its.numpy()] for user in mine.numpy()]
    with torch.no_grad():
        every, chosen = model.every_pair(mine, its), torch.randint(0, items, (users, 7), generator=draw)
        of_candidates = model(mine, its, chosen)
    np.testing.assert_allclose(every, wanted, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(of_candidates, every.gather(1, chosen), rtol=1e-9, atol=1e-9)


def test_before_its_first_step_it_is_the_first_phase() -> None:
    model, (users, items) = build_scorer(RescoringConfig(), tower(4), 0), torch.randn(2, 5, 4)
    with torch.no_grad():
        torch.testing.assert_close(model.every_pair(users, items), 4 * users @ items.T)
    # Yet it learns: the share has a gradient, and once it is not 0, all else has.
    model.every_pair(users, items)[0, 1].backward()
    assert model.share.grad is not None
    assert model.share.grad != 0


@pytest.mark.parametrize(("users", "items"), [(0, 5), (3, 0)])
def test_a_rank_without_rows_has_no_scores(users: int, items: int) -> None:
    """The last batch of a window may leave a rank only padding."""
    model = scorer(RescoringConfig(), 4)
    mine, its = (torch.randn(count, 4, dtype=torch.float64) for count in (users, items))
    assert model.every_pair(mine, its).shape == (users, items)
    assert model(mine, mine, torch.arange(users)[:, None]).shape == (users, 1)


def test_a_mixture_expresses_what_no_inner_product_does() -> None:
    """Scores of an inner product have at most the rank of the vectors; these have more."""
    model = scorer(RescoringConfig(), 2)
    with torch.no_grad():
        scores = model.every_pair(*torch.randn(2, 40, 2, dtype=torch.float64))
    assert torch.linalg.matrix_rank(scores, rtol=1e-3) > 2


@pytest.mark.parametrize("seed", [0, 5])
def test_parameters_follow_from_the_seed_alone(seed: int) -> None:
    first, again, other = (build_scorer(RescoringConfig(), tower(8), one) for one in (seed, seed, seed + 1))
    torch.rand(3)
    assert all(torch.equal(one, two) for one, two in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.user_components.weight, other.user_components.weight)
