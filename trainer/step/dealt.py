"""How the examples of a window are dealt: which go into which batch, and of a batch to which rank."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from weir.trainer.ranks.workers import Workers
from weir.trainer.step.shuffled import Ints

__all__ = ["Dealt"]


class Dealt:
    """Batches of `size` examples, of which each rank trains on a share; `here` is that of this rank.

    Parameters
    ----------
    order
        The numbers of examples (m,) in the order in which they go.
    size
        Of a batch, over all ranks; the last one may have fewer.
    workers
        The ranks.
    """

    def __init__(self, order: Ints, size: int, workers: Workers) -> None:
        self._order, self.size, self._workers = order, size, workers
        self._shares = [range(size)[share] for share in workers.shares(size)]
        self.here = self._shares[workers.rank]

    @property
    def lines(self) -> int:
        """Examples of all batches that are this rank's."""
        whole, rest = divmod(len(self._order), self.size)
        return whole * len(self.here) + len(range(rest)[self.here.start : self.here.stop])

    def batches(self, start: int) -> Iterator[Ints]:
        """Yield the numbers of the examples of each batch, (size,) or fewer, from batch `start` on."""
        return (self._order[at : at + self.size] for at in range(start * self.size, len(self._order), self.size))

    def places(self, count: int) -> npt.NDArray[np.int32]:
        """Return the place of each of so many examples in the order, (count,); -1 for those that it leaves out."""
        places = np.full(count, -1, np.int32)
        places[self._order] = np.arange(len(self._order), dtype=np.int32)
        return places

    def exchanged(self, places: npt.NDArray[np.int32], lines: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Give lines (k, width), of examples with these `places` (k,), to the ranks whose share they are in.

        Returns the lines that are for this rank, each behind its place among them, (m, 1 + width).
        """
        kept = np.flatnonzero(places >= 0)
        batch, within = np.divmod(places[kept].astype(np.int64), self.size)
        firsts = np.array([share.start for share in self._shares])
        owners = np.searchsorted(firsts, within, side="right") - 1
        lengths = np.array([len(share) for share in self._shares])
        local = batch * lengths[owners] + within - firsts[owners]
        placed = np.concatenate([local[:, None].astype(np.int32), lines[kept]], 1)
        return self._workers.deliver(torch.from_numpy(placed), owners).numpy()
