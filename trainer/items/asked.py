"""Questions to whichever rank knows the answer."""

from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.trainer.ranks.workers import Workers

__all__ = ["Asked"]

Ints = npt.NDArray[np.int64]


class Asked:
    """Takes the questions of all ranks to those that know, and brings answers back; all ranks use it together.

    Parameters
    ----------
    workers
        The ranks.
    order
        Sorts the questions (n,) of this rank by who knows the answer.
    send, receive
        How many of them go to each rank, and how many come from it.
    values
        The questions of all ranks that this one is to answer, (m,).
    """

    def __init__(self, workers: Workers, order: Ints, send: list[int], receive: list[int], values: Ints) -> None:
        self._workers, self.order, self.send, self.receive, self.values = workers, order, send, receive, values

    @classmethod
    def of(cls, values: Ints, owners: Ints, workers: Workers) -> Self:
        """Ask questions (n,), whole numbers, of the ranks `owners` (n,)."""
        order = np.argsort(owners, kind="stable")
        send = np.bincount(owners, minlength=workers.world_size).tolist()
        receive = workers.counts(send)
        came = workers.exchange(torch.from_numpy(values[order]), send, receive)
        return cls(workers, order, send, receive, came.numpy())

    def answered(self, answers: Tensor) -> Tensor:
        """Give the answers (m, ...) to `values`, and return those to this rank's own questions, (n, ...)."""
        came = self._workers.exchange(answers, self.receive, self.send)
        found = torch.empty_like(came)
        found[torch.from_numpy(self.order)] = came
        return found
