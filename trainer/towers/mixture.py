"""A mixture of logits: the similarity of a user and an item that no single inner product expresses.

Sources: Zhai et al., "Revisiting Neural Retrieval on Accelerators", KDD 2023 (arXiv 2306.04039), which defines the
mixture; Ding and Zhai, "Retrieval with Learned Similarities", WWW 2025 (arXiv 2407.15462), whose components have length
1 and share a temperature, and whose published code weighs them as this one does (SiLU of the product of what user and
item say, plus what their cosines say).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from weir.trainer.rescoring_config import RescoringConfig
from weir.trainer.tower_config import TowerConfig

__all__ = ["MixtureOfLogits", "Side", "build_scorer"]

Side = tuple[Tensor, Tensor]
"""Component embeddings (n, k, p), of length 1, and what one side alone says of the weight of each pair, (n, K)."""


class MixtureOfLogits(nn.Module):
    """The score of users and items as the search compares them, of length d.

    With f_a(u) for a = 1 ... k_u and g_b(i) for b = 1 ... k_i linear in u and i, and of length 1,

        phi(u, i) = <u, i> / t + s / T sum_ab pi_ab(u, i) <f_a(u), g_b(i)>
        pi(u, i) = softmax(SiLU(v(u) w(i) + x(<f_1(u), g_1(i)>, ..., <f_k_u(u), g_k_i(i)>)))

    where t is the temperature of the first phase, and v, w and x are networks with one hidden layer that return a
    number for each of the K = k_u k_i pairs. The share s starts at 0: before its first step the second phase is the
    first one, to which the published mixture is added here. It costs a stream what the first phase knows already to
    learn it again.
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
        """Return the scores (B, N) of `users` (B, d) and the items (M, d) at their `candidates` (B, N).

        Serving runs this, exported as ONNX: what an item alone says is computed once, whoever it is a candidate of.
        """
        components, weights = self.of_items(items)
        products = (items[candidates] @ users[:, :, None])[..., 0]
        return self._scores(products, self.of_users(users), (components[candidates], weights[candidates]))

    def every_pair(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the scores (B, M) of each of `users` (B, d) and each of `items` (M, d)."""
        return self._scores(users @ items.T, self.of_users(users), self.of_items(items))

    def of_users(self, users: Tensor) -> Side:
        """Return what the users (n, d) alone say."""
        users_, _, width = self.shape
        components = self.user_components(users).unflatten(-1, (users_, width))
        return functional.normalize(components, dim=-1), self.user_weights(users)

    def of_items(self, items: Tensor) -> Side:
        """Return what the items (n, d) alone say."""
        _, items_, width = self.shape
        components = self.item_components(items).unflatten(-1, (items_, width))
        return functional.normalize(components, dim=-1), self.item_weights(items)

    def _scores(self, products: Tensor, users: Side, items: Side) -> Tensor:
        """Return the scores (B, N) of users and of the same items for all of them, or of N items for each."""
        (mine, of_users), (its, of_items) = users, items
        cosines = (its.flatten(-3, -2) @ mine.mT).reshape(mine.shape[0], its.shape[-3], of_users.shape[1])
        weights = functional.silu(of_users[:, None] * of_items + self.pair_weights(cosines)).softmax(-1)
        mixture = (weights * cosines).sum(-1) / self.temperature
        return products / self.of_first + self.share * mixture


def build_scorer(config: RescoringConfig, tower: TowerConfig, seed: int) -> MixtureOfLogits:
    """Return the scorer of what a tower and its items give, with parameters drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MixtureOfLogits(config, tower)


def _network(wide: int, hidden: int, pairs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(wide, hidden), nn.SiLU(), nn.Linear(hidden, pairs))
