"""Mixture of logits: a learned similarity of user and item, more expressive than one inner product.

Sources: Zhai et al., "Revisiting Neural Retrieval on Accelerators", KDD 2023 (arXiv 2306.04039), which defines the
mixture; Ding and Zhai, "Retrieval with Learned Similarities", WWW 2025 (arXiv 2407.15462), whose components have length
1 and share a temperature, and whose published code computes the weights as here (SiLU of the product of user and item
weights, plus weights from their cosines).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from weir.trainer.settings.towers import TowerConfig
from weir.trainer.settings.trainer import RescoringConfig

__all__ = ["MixtureOfLogits", "Side", "build_scorer"]

Side = tuple[Tensor, Tensor]
"""Component embeddings (n, k, p), of length 1, and the side's own factor of each pair's weight, (n, K)."""


class MixtureOfLogits(nn.Module):
    """Second-phase score of users and items, given as vectors of length d, normalised as in the search.

    With f_a(u) for a = 1 ... k_u and g_b(i) for b = 1 ... k_i linear in u and i, and of length 1,

        phi(u, i) = <u, i> / t + s / T sum_ab pi_ab(u, i) <f_a(u), g_b(i)>
        pi(u, i) = softmax(SiLU(v(u) w(i) + x(<f_1(u), g_1(i)>, ..., <f_k_u(u), g_k_i(i)>)))

    where t is the temperature of the first phase, and v, w and x are networks with one hidden layer that return a
    number for each of the K = k_u k_i pairs. The share s starts at 0, so the second phase starts as a copy of the
    first; the published mixture is added to the first-phase score. Without that, a stream would have to learn again
    what the first phase already knows.
    """

    def __init__(self, config: RescoringConfig, tower: TowerConfig) -> None:
        super().__init__()
        dimension, pairs = tower.dimension, config.user_components * config.item_components
        width, hidden, self.temperature = config.dimension, config.hidden, config.temperature
        self.shape, self.of_first = (config.user_components, config.item_components, width), tower.temperature
        self.user_components = nn.Linear(dimension, config.user_components * width)
        self.item_components = nn.Linear(dimension, config.item_components * width)
        self.user_weights = _network(dimension, hidden, pairs)
        self.item_weights = _network(dimension, hidden, pairs)
        self.pair_weights = _network(pairs, hidden, pairs)
        self.share = nn.Parameter(torch.zeros(1))

    def forward(self, users: Tensor, items: Tensor, candidates: Tensor) -> Tensor:
        """Return the scores (B, N) of `users` (B, d) with the items (M, d) at their `candidates` (B, N).

        Serving runs this, exported as ONNX; the item side is computed once per item, not per candidate.
        """
        components, weights = self.of_items(items)
        products = (items[candidates] @ users[:, :, None])[..., 0]
        return self._scores(products, self.of_users(users), (components[candidates], weights[candidates]))

    def every_pair(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the scores (B, M) of all pairs of `users` (B, d) and `items` (M, d)."""
        return self._scores(users @ items.T, self.of_users(users), self.of_items(items))

    def of_users(self, users: Tensor) -> Side:
        """Return components (n, k_u, width) and weights v(u) (n, K) of users (n, d)."""
        users_, _, width = self.shape
        components = self.user_components(users).unflatten(-1, (users_, width))
        return functional.normalize(components, dim=-1), self.user_weights(users)

    def of_items(self, items: Tensor) -> Side:
        """Return components (n, k_i, width) and weights w(i) (n, K) of items (n, d)."""
        _, items_, width = self.shape
        components = self.item_components(items).unflatten(-1, (items_, width))
        return functional.normalize(components, dim=-1), self.item_weights(items)

    def _scores(self, products: Tensor, users: Side, items: Side) -> Tensor:
        """Return the scores (B, N), with one set of N items for all users or a set of N items per user."""
        (mine, of_users), (its, of_items) = users, items
        cosines = (its.flatten(-3, -2) @ mine.mT).reshape(mine.shape[0], its.shape[-3], of_users.shape[1])
        weights = functional.silu(of_users[:, None] * of_items + self.pair_weights(cosines)).softmax(-1)
        mixture = (weights * cosines).sum(-1) / self.temperature
        return products / self.of_first + self.share * mixture


def build_scorer(config: RescoringConfig, tower: TowerConfig, seed: int) -> MixtureOfLogits:
    """Return the re-scorer for a tower's output and item vectors, with parameters drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MixtureOfLogits(config, tower)


def _network(wide: int, hidden: int, pairs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(wide, hidden), nn.SiLU(), nn.Linear(hidden, pairs))
