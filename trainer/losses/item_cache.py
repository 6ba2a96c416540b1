"""The cache of resampling: items of earlier batches that were informative, as candidates for those to come.

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
"""Ids of the cache whose counts are summed in one number."""


class ItemCache:
    """Items that resampling chose often, kept as extra candidates for the batches to come (algorithm 2).

    An item id is a position in `counts`: `add` appends ids at the end, `remove` retires ids without moving the others,
    and `restore` gives ids to new items, as a table does that uses its rows again.

    Parameters
    ----------
    size
        Slots of the cache; the paper uses the batch size.
    num_items
        Number of ids at the start.
    generator
        Source of randomness. Its device is the device of the cache, its state is part of `state_dict`.
    ids
        The ids that are in use at the start, of any shape, at least one; the others are retired. None: all.

    Attributes
    ----------
    items
        Cached ids, (size,), int64, drawn with replacement.
    counts
        How often each id was drawn by resampling so far, (num_items,), int64; 0 for retired ids.
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
        """Count ids that were just drawn, of any shape, repetitions included; retired ids are passed over.

        Raises ValueError for ids outside [0, num_items).
        """
        drawn = self._checked(ids)
        times = self._present[drawn].long()
        self.counts.index_add_(0, drawn, times)
        self._sums.index_add_(0, drawn // _BLOCK, times)

    def redraw(self) -> None:
        """Draw all slots of the cache again, in proportion to the counts; uniformly while all of them are 0."""
        self.items = self._draw(len(self.items))

    def add(self, n: int, in_use: bool = True) -> None:
        """Append n ids with count 0: items or, with `in_use` False, free ids that `restore` hands out later."""
        if n < 0:
            raise ValueError(f"n must be at least 0, got {n}")
        if n:
            self.counts = torch.cat([self.counts, self.counts.new_zeros(n)])
            self._present = torch.cat([self._present, self._present.new_full((n,), in_use)])
            self._sum_up()

    def remove(self, ids: Tensor) -> None:
        """Retire ids: they lose their counts, are never drawn, and their cache slots are drawn again.

        Raises ValueError for ids outside [0, num_items) and when no item would be left. Retired ids may come again.
        """
        gone = torch.unique(self._checked(ids))
        retired = int(self._present[gone].sum())
        if retired == self._in_use:
            raise ValueError(f"ids must leave at least one item, got all {self._in_use} of them")
        self._present[gone] = False
        self._in_use -= retired
        self._forget(gone)

    def restore(self, ids: Tensor) -> None:
        """Give ids to new items, with count 0: retired ids come back, ids in use lose their counts.

        Cache slots that hold such an id are drawn again. Where some items leave and others take over their ids, restore
        first and remove the ids that stay free. Raises ValueError for ids outside [0, num_items), see `add`.
        """
        new = torch.unique(self._checked(ids))
        self._in_use += len(new) - int(self._present[new].sum())
        self._present[new] = True
        self._forget(new)

    def log_density(self) -> Tensor:
        """Return the log-probability with which `redraw` fills a slot with each id, (num_items,), float64.

        Between `redraw` and the next `update` the cached items are a sample of it, whatever items enter or leave, as
        long as a count is above 0.
        """
        weights = self._weights().double()
        return (weights / weights.sum()).log()

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of all that a restart needs, the generator's state included."""
        return self._state(self.counts.clone(), self._present.clone())

    def state_of(self, ids: npt.NDArray[np.int64]) -> dict[str, Tensor]:
        """Return the state with the counts of some ids (n,) instead of all."""
        index = torch.from_numpy(ids).to(self.counts.device)
        return self._state(self.counts[index], self._present[index])

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state of `state_dict`; the number of items is that of the state.

        Raises ValueError for a state with other keys or another cache size; nothing is changed then.
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
        """Take over a state of `state_of` for the same ids (n,); the counts of all others stay."""
        index, device = torch.from_numpy(ids).to(self.counts.device), self.counts.device
        self._generator.set_state(state["generator"].cpu())
        self.items = state["items"].to(device, copy=True)
        self.counts[index], self._present[index] = state["counts"].to(device), state["present"].to(device)
        self._sum_up()

    def _state(self, counts: Tensor, present: Tensor) -> dict[str, Tensor]:
        generator = self._generator.get_state()
        return {"items": self.items.clone(), "counts": counts, "present": present, "generator": generator}

    def _checked(self, ids: Tensor) -> Tensor:
        """Return ids flat, on the cache's device."""
        checks.check_index("ids", ids, len(self.counts))
        return ids.reshape(-1).to(self.counts.device, torch.int64)

    def _forget(self, gone: Tensor) -> None:
        """Set the counts of distinct ids (n,) to 0 and draw their cache slots again."""
        self._sums.index_add_(0, gone // _BLOCK, -self.counts[gone])
        self.counts[gone] = 0
        slots = torch.isin(self.items, gone)
        self.items = self.items.masked_scatter(slots, self._draw(int(slots.sum())))

    def _weights(self) -> Tensor:
        """Return the integers in proportion to which ids are drawn."""
        return self.counts if bool(self._sums.any()) else self._present.long()

    def _sum_up(self) -> None:
        """Sum counts by blocks of ids, and count the ids in use."""
        self._in_use = int(self._present.sum())
        self._sums = functional.pad(self.counts, (0, -len(self.counts) % _BLOCK)).view(-1, _BLOCK).sum(1)

    def _draw(self, size: int) -> Tensor:
        """Draw ids exactly in proportion to the integer counts, for catalogues of any size.

        A ticket's block is found by the sums of the blocks, and its id within the block: a draw looks at one number
        in `_BLOCK` ids, and at `size` blocks. While all counts are 0, it looks at all ids.
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
        # The last block may be shorter: a ticket's id comes before what is repeated at its end.
        within = self.counts[ids.clamp(max=len(self.counts) - 1)].cumsum(1)
        return block * _BLOCK + (within <= rest[:, None]).sum(1)
