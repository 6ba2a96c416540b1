"""Importance resampling of in-batch negatives, and the cache of items from earlier batches (XIR).

Without a cache, the loss is the paper's BIR. With one it is XIR: lam * resampled_softmax(cache) + (1 - lam) *
resampled_softmax(batch), each part with its own draws.

Source: Chen et al., "Cache-Augmented Inbatch Importance Resampling for Training Recommender Retriever", NeurIPS 2022.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from weir.trainer.losses import _numerics as checks
from weir.trainer.losses._numerics import softplus, widen
from weir.trainer.losses.inputs import LossInputs, LossResult
from weir.trainer.settings.trainer import TrainerConfig

__all__ = ["ItemCache"]


_BLOCK: Final = 64
"""Ids per block; the sum of the counts of each block is stored."""


class ItemCache:
    """Cache of items that resampling drew often, used as extra candidates in later batches (algorithm 2).

    An item id is an index into `counts`. `add` appends ids at the end, `remove` retires ids without moving other ids,
    and `restore` gives ids to new items, for a table that reuses its rows.

    Parameters
    ----------
    size
        Slots of the cache; the paper uses the batch size.
    num_items
        Number of ids at the start.
    generator
        Source of randomness. All tensors are on its device, and its state is part of `state_dict`.
    ids
        Ids in use at the start, of any shape, at least one; all other ids are retired. None: all ids are in use.

    Attributes
    ----------
    items
        Cached ids, (size,), int64, drawn with replacement.
    counts
        How often resampling has drawn each id, (num_items,), int64; 0 for retired ids.
    """

    def __init__(self, size: int, num_items: int, generator: torch.Generator, ids: Tensor | None = None) -> None:
        for name, value in (("size", size), ("num_items", num_items)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self._generator = generator
        self.counts = torch.zeros(num_items, dtype=torch.int64, device=generator.device)
        self._present = torch.full((num_items,), ids is None, device=generator.device)
        if ids is not None:
            self._present[self._checked(ids)] = True
        self._sum_up()
        if not self._in_use:
            raise ValueError("ids must name at least one item, got none")
        self.items = self._draw(size)

    def update(self, ids: Tensor) -> None:
        """Count ids that were just drawn, of any shape, repetitions included; retired ids are ignored.

        Raises ValueError for ids outside [0, num_items).
        """
        drawn = self._checked(ids)
        times = self._present[drawn].long()
        self.counts.index_add_(0, drawn, times)
        self._sums.index_add_(0, drawn // _BLOCK, times)

    def redraw(self) -> None:
        """Fill all slots of the cache again, in proportion to the counts; uniformly while all counts are 0."""
        self.items = self._draw(len(self.items))

    def add(self, n: int, in_use: bool = True) -> None:
        """Append n ids with count 0; with `in_use` False they are retired until `restore` assigns them."""
        if n < 0:
            raise ValueError(f"n must be at least 0, got {n}")
        if n:
            self.counts = torch.cat([self.counts, self.counts.new_zeros(n)])
            self._present = torch.cat([self._present, self._present.new_full((n,), in_use)])
            self._sum_up()

    def remove(self, ids: Tensor) -> None:
        """Retire ids: set their counts to 0, draw them no more, and redraw their slots in the cache.

        Raises ValueError for ids outside [0, num_items) and if no item would remain. `restore` can reuse retired ids.
        """
        gone = torch.unique(self._checked(ids))
        retired = int(self._present[gone].sum())
        if retired == self._in_use:
            raise ValueError(f"ids must leave at least one item, got all {self._in_use} of them")
        self._present[gone] = False
        self._in_use -= retired
        self._forget(gone)

    def restore(self, ids: Tensor) -> None:
        """Assign ids to new items with count 0: retired ids become active, the counts of active ids are reset.

        Cache slots with these ids are redrawn. If items leave and new items get some of their ids, call `restore`
        first, then `remove` the ids that stay free. Raises ValueError for ids outside [0, num_items).
        """
        new = torch.unique(self._checked(ids))
        self._in_use += len(new) - int(self._present[new].sum())
        self._present[new] = True
        self._forget(new)

    def log_density(self) -> Tensor:
        """Return the log-probability with which `redraw` fills a slot with each id, (num_items,), float64.

        Between `redraw` and the next `update` the cached items are a sample of this density, even if items are added or
        removed, as long as some count is above 0.
        """
        weights = self._weights().double()
        return (weights / weights.sum()).log()

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of everything that a restart needs, including the generator's state."""
        return self._state(self.counts.clone(), self._present.clone())

    def state_of(self, ids: npt.NDArray[np.int64]) -> dict[str, Tensor]:
        """Return the state as `state_dict` does, but with the counts of the given ids (n,) only."""
        index = torch.from_numpy(ids).to(self.counts.device)
        return self._state(self.counts[index], self._present[index])

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state_dict`; the number of items becomes that of the state.

        Raises ValueError for a state with other keys or another cache size, and then changes nothing.
        """
        expected = self.state_dict()
        if state.keys() != expected.keys():
            raise ValueError(f"state must have the keys {sorted(expected)}, got {sorted(state)}")
        checks.check_shape("state['items']", state["items"], size=len(self.items))
        checks.check_shape("state['present']", state["present"], num_items=len(state["counts"]))
        checks.check_index("state['items']", state["items"], len(state["counts"]))
        device = self.counts.device
        self._generator.set_state(state["generator"].cpu())
        self.items = state["items"].to(device, copy=True)
        self.counts = state["counts"].to(device, copy=True)
        self._present = state["present"].to(device, copy=True)
        self._sum_up()

    def load_rows(self, ids: npt.NDArray[np.int64], state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state_of` for the same ids (n,); all other counts stay."""
        index, device = torch.from_numpy(ids).to(self.counts.device), self.counts.device
        self._generator.set_state(state["generator"].cpu())
        self.items = state["items"].to(device, copy=True)
        self.counts[index], self._present[index] = state["counts"].to(device), state["present"].to(device)
        self._sum_up()

    def _state(self, counts: Tensor, present: Tensor) -> dict[str, Tensor]:
        """Return a state with these counts, a copy of the cached ids and the generator's state."""
        generator = self._generator.get_state()
        return {"items": self.items.clone(), "counts": counts, "present": present, "generator": generator}

    def _checked(self, ids: Tensor) -> Tensor:
        """Return valid ids flat, on the cache's device."""
        checks.check_index("ids", ids, len(self.counts))
        return ids.reshape(-1).to(self.counts.device, torch.int64)

    def _forget(self, gone: Tensor) -> None:
        """Reset the counts of distinct ids (n,) and redraw their cache slots."""
        self._sums.index_add_(0, gone // _BLOCK, -self.counts[gone])
        self.counts[gone] = 0
        slots = torch.isin(self.items, gone)
        self.items = self.items.masked_scatter(slots, self._draw(int(slots.sum())))

    def _weights(self) -> Tensor:
        """Return the integer weights by which ids are drawn."""
        return self.counts if bool(self._sums.any()) else self._present.long()

    def _sum_up(self) -> None:
        """Recompute the block sums of the counts and the number of ids in use."""
        self._in_use = int(self._present.sum())
        self._sums = functional.pad(self.counts, (0, -len(self.counts) % _BLOCK)).view(-1, _BLOCK).sum(1)

    def _draw(self, size: int) -> Tensor:
        """Draw ids exactly in proportion to the integer counts, for catalogues of any size.

        Each draw finds a block by the block sums, then an id within the block: only the block sums and the counts of
        the drawn blocks are read. While all counts are 0, all ids in use are equally likely.
        """
        if not bool(self._sums.any()):
            bounds = self._present.long().cumsum(0)
            ticket = torch.randint(int(bounds[-1]), (size,), generator=self._generator, device=bounds.device)
            return torch.searchsorted(bounds, ticket, right=True)
        bounds = self._sums.cumsum(0)
        ticket = torch.randint(int(bounds[-1]), (size,), generator=self._generator, device=bounds.device)
        block = torch.searchsorted(bounds, ticket, right=True)
        rest = ticket - (bounds[block] - self._sums[block])
        ids = block[:, None] * _BLOCK + torch.arange(_BLOCK, device=block.device)
        # The last block may be shorter: clamping repeats its last id, but the search stops before the repetitions.
        within = self.counts[ids.clamp(max=len(self.counts) - 1)].cumsum(1)
        return block * _BLOCK + (within <= rest[:, None]).sum(1)


def resampled_softmax_of(step: LossInputs, config: TrainerConfig) -> LossResult:
    """Return the losses (b,) of `loss.kind = resampled_softmax` (algorithms 1 and 2), and the columns drawn (b, D).

    Columns are numbered over the pool, then the cache. Without a cache, as many candidates are drawn as the pool has;
    with a cache, half the pool's number from the pool, and half the cache's number from the cache.
    """
    columns, cached = step.given("columns"), step.cached
    share = 1 if cached is None else 2
    batch, drawn = _part(step, columns, step.given("log_q_columns"), share)
    if cached is None:
        return LossResult(batch, drawn)
    cache, slots = _part(step, cached, step.given("log_q_cached"), share)
    weight = config.loss.cache_share
    return LossResult(weight * cache + (1 - weight) * batch, torch.cat([drawn, slots + len(columns)], 1))


def _part(step: LossInputs, candidates: Tensor, log_q: Tensor, share: int) -> tuple[Tensor, Tensor]:
    """Draw n / `share` of the candidates (n, d) for each row; return the losses (b,) and the drawn indices."""
    scores = step.users @ candidates.T / step.temperature
    drawn = resample(scores.detach(), log_q, max(len(candidates) // share, 1), step.given("generator"))
    return resampled_softmax(step.pos, scores, drawn), drawn


def resampling_log_weights(scores: Tensor, log_pop: Tensor) -> Tensor:
    """Log-probability log w(i|u) with which row u draws candidate i: a softmax over s(u, i) - log pop(i) (section 3.1).

    Parameters
    ----------
    scores
        Logits of the candidates, (B, C).
    log_pop
        Log-popularity of the candidates in the training data, (C,), finite; any constant offset cancels.

    Returns
    -------
    Tensor
        Log-weights, (B, C), in the dtype of `scores`; every row sums to 1 in probability.

    Raises
    ------
    ValueError
        For wrong shapes or dtypes, no candidates, or popularities that are NaN or infinite.
    """
    checks.check_logits("B C+", scores=scores)
    checks.check_log_density("log_pop", log_pop)
    checks.check_shape("log_pop", log_pop, C=scores.shape[1])
    checks.check_finite("log_pop", log_pop)
    (wide,) = widen(scores)
    return functional.log_softmax(wide - log_pop.to(wide.dtype), dim=1).to(scores.dtype)


@torch.no_grad()
def resample(scores: Tensor, log_pop: Tensor, num_samples: int, generator: torch.Generator) -> Tensor:
    """Draw candidates for every row with probability w(i|u), with replacement (algorithm 1).

    Parameters
    ----------
    scores, log_pop
        As for `resampling_log_weights`.
    num_samples
        Draws per row, at least 1. The paper draws as many as there are candidates (half as many from each part of
        XIR).
    generator
        Source of randomness, on the device of `scores`.

    Returns
    -------
    Tensor
        Columns of `scores`, (B, num_samples), int64.

    Raises
    ------
    ValueError
        As for `resampling_log_weights`, and for `num_samples` below 1.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    (wide,) = widen(scores)
    weights = resampling_log_weights(wide, log_pop).exp()
    return torch.multinomial(weights, num_samples, replacement=True, generator=generator)


def resampled_softmax(pos: Tensor, scores: Tensor, index: Tensor, include_positive: bool = True) -> Tensor:
    """Softmax of the positive over the candidates that `resample` drew for its row.

    -log(e^pos / sum over the drawn of e^score), equations 3 and 4, which are printed without logarithm and minus sign.
    Candidates drawn from w(i|u) follow the softmax distribution, so no log Q is needed.

    Parameters
    ----------
    pos
        Logits of the positives, (B,).
    scores
        Logits of the candidates, (B, C).
    index
        Columns drawn for each row, (B, S), S >= 1, repetitions counted.
    include_positive
        Whether the denominator includes the positive. Without it the loss is unbounded below for a row that did
        not draw its positive.

    Returns
    -------
    Tensor
        Losses, (B,), in the dtype of `pos`.

    Raises
    ------
    ValueError
        For wrong shapes or dtypes, no draws, or columns outside [0, C).
    """
    checks.check_logits("B, B C", pos=pos, scores=scores)
    checks.check_shape("index", index, B=pos.shape[0], S=None)
    checks.check_not_empty("index", index, 1)
    checks.check_index("index", index, scores.shape[1])
    wide_pos, wide_scores = widen(pos, scores)
    log_odds = torch.logsumexp(wide_scores.gather(1, index.long()) - wide_pos[:, None], 1)
    return (softplus(log_odds) if include_positive else log_odds).to(pos.dtype)
