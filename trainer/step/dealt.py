"""Sharding of a window's examples: into batches, and each batch over the ranks."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from weir.trainer.ranks.workers import Workers
from weir.trainer.step.shuffled import Ints

__all__ = ["Dealt"]


class Dealt:
    """Batches of `size` examples, each split over the ranks; `here` is the share of this rank.

    Parameters
    ----------
    order
        Numbers of the examples (m,) in training order.
    size
        Examples per batch, over all ranks; the last batch may be smaller.
    workers
        The ranks.
    """

    def __init__(self, order: Ints, size: int, workers: Workers) -> None:
        self._order, self.size, self._workers = order, size, workers
        self._shares = [range(size)[share] for share in workers.shares(size)]
        self.here = self._shares[workers.rank]

    @property
    def lines(self) -> int:
        """Examples of this rank in all batches."""
        whole, rest = divmod(len(self._order), self.size)
        return whole * len(self.here) + len(range(rest)[self.here.start : self.here.stop])

    def batches(self, start: int) -> Iterator[Ints]:
        """Yield the example numbers of each batch, (size,) or fewer, from batch `start` on."""
        return (self._order[at : at + self.size] for at in range(start * self.size, len(self._order), self.size))

    def places(self, count: int) -> npt.NDArray[np.int32]:
        """Return the position in the order of each of `count` examples, (count,); -1 if it is left out."""
        places = np.full(count, -1, np.int32)
        places[self._order] = np.arange(len(self._order), dtype=np.int32)
        return places

    def exchanged(self, places: npt.NDArray[np.int32], lines: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Send lines (k, width), of examples with these `places` (k,), to the ranks that train on them.

        Returns the lines for this rank, each after its position among them, (m, 1 + width).
        """
        kept = np.flatnonzero(places >= 0)
        batch, within = np.divmod(places[kept].astype(np.int64), self.size)
        firsts = np.array([share.start for share in self._shares])
        owners = np.searchsorted(firsts, within, side="right") - 1
        lengths = np.array([len(share) for share in self._shares])
        local = batch * lengths[owners] + within - firsts[owners]
        placed = np.concatenate([local[:, None].astype(np.int32), lines[kept]], 1)
        return self._workers.deliver(torch.from_numpy(placed), owners).numpy()
