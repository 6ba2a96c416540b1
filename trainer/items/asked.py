"""Remote lookup: each rank sends queries to the ranks that own the answers."""

from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.trainer.ranks.workers import Workers

__all__ = ["Asked"]

Ints = npt.NDArray[np.int64]


class Asked:
    """A batch of queries routed to their owning ranks, and the way back for the answers; collective.

    Parameters
    ----------
    workers
        The ranks.
    order
        Permutation that sorts this rank's queries (n,) by owning rank.
    send, receive
        Number of queries to each rank, and from each rank.
    values
        Queries of all ranks for this one to answer, (m,).
    """

    def __init__(self, workers: Workers, order: Ints, send: list[int], receive: list[int], values: Ints) -> None:
        self._workers, self.order, self.send, self.receive, self.values = workers, order, send, receive, values

    @classmethod
    def of(cls, values: Ints, owners: Ints, workers: Workers) -> Self:
        """Send integer queries (n,) to the ranks `owners` (n,)."""
        order = np.argsort(owners, kind="stable")
        send = np.bincount(owners, minlength=workers.world_size).tolist()
        receive = workers.counts(send)
        came = workers.exchange(torch.from_numpy(values[order]), send, receive)
        return cls(workers, order, send, receive, came.numpy())

    def answered(self, answers: Tensor) -> Tensor:
        """Send the answers (m, ...) to `values` back, and return those to this rank's queries, (n, ...)."""
        came = self._workers.exchange(answers, self.receive, self.send)
        found = torch.empty_like(came)
        found[torch.from_numpy(self.order)] = came
        return found
