"""Item cache of importance resampling: informative items of earlier batches as candidates for later batches.

Source: Chen et al., "Cache-Augmented Inbatch Importance Resampling for Training Recommender Retriever", NeurIPS 2022.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from weir.trainer.losses import _checks as checks

__all__ = ["ItemCache"]

_BLOCK: Final = 64
"""Ids per block; counts are summed by block."""


class ItemCache:
    """Cache of items that resampling drew often, used as extra candidates in later batches (algorithm 2).

    An item id is an index into `counts`: `add` appends ids at the end, `remove` retires ids without moving the others,
    and `restore` assigns ids to new items, as a table does that reuses its rows.

    Parameters
    ----------
    size
        Slots of the cache; the paper uses the batch size.
    num_items
        Number of ids at the start.
    generator
        Source of randomness. The cache lives on its device; its state is part of `state_dict`.
    ids
        Ids in use at the start, of any shape, at least one; the others are retired. None: all.

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
        """Redraw all slots of the cache in proportion to the counts; uniformly while all counts are 0."""
        self.items = self._draw(len(self.items))

    def add(self, n: int, in_use: bool = True) -> None:
        """Append n ids with count 0: items or, with `in_use` False, free ids that `restore` assigns later."""
        if n < 0:
            raise ValueError(f"n must be at least 0, got {n}")
        if n:
            self.counts = torch.cat([self.counts, self.counts.new_zeros(n)])
            self._present = torch.cat([self._present, self._present.new_full((n,), in_use)])
            self._sum_up()

    def remove(self, ids: Tensor) -> None:
        """Retire ids: their counts become 0, they are never drawn, and their cache slots are redrawn.

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

        Cache slots that hold such an id are redrawn. If items leave and others take over some of their ids, call
        `restore` first, then `remove` the ids that stay free. Raises ValueError for ids outside [0, num_items), see
        `add`.
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
        """Return the state with the counts of the given ids (n,) only."""
        index = torch.from_numpy(ids).to(self.counts.device)
        return self._state(self.counts[index], self._present[index])

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state of `state_dict`; the number of items becomes that of the state.

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
        """Restore a state of `state_of` for the same ids (n,); all other counts stay."""
        index, device = torch.from_numpy(ids).to(self.counts.device), self.counts.device
        self._generator.set_state(state["generator"].cpu())
        self.items = state["items"].to(device, copy=True)
        self.counts[index], self._present[index] = state["counts"].to(device), state["present"].to(device)
        self._sum_up()

    def _state(self, counts: Tensor, present: Tensor) -> dict[str, Tensor]:
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

        A draw first finds its block by the block sums, then its id within the block: it reads one number per `_BLOCK`
        ids and `size` blocks. While all counts are 0, it reads all ids.
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
