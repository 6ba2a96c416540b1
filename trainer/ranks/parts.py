"""Work split over ranks under rank 0's lead, where a rank that fails does not block the others."""

import logging
from collections.abc import Callable

import torch

from weir.trainer.ranks.workers import Workers

__all__ = ["done_by_all"]

logger = logging.getLogger(__name__)


def done_by_all(workers: Workers, work: Callable[[], int], wanted: int) -> None:
    """Run this rank's part of a task, `work`, which returns the amount done; wait for all ranks. Collective.

    Raises
    ------
    Exception
        On rank 0, the error of its own part; other ranks log theirs and continue.
    RuntimeError
        On rank 0, if all parts together did not do `wanted`.
    """
    done = 0
    try:
        done = work()
    except Exception:
        if workers.is_first:
            raise
        logger.exception("rank %d could not do its part of what rank 0 asked for", workers.rank)
    finally:
        total = int(workers.sum(torch.tensor(done)))
    if workers.is_first and total != wanted:
        raise RuntimeError(f"ranks have done {total} items of {wanted}: the log of a rank that failed says why")
