"""Work that ranks divide while rank 0 leads: a part that fails keeps nobody waiting."""

import logging
from collections.abc import Callable

import torch

from weir.trainer.ranks.workers import Workers

__all__ = ["done_by_all"]

logger = logging.getLogger(__name__)


def done_by_all(workers: Workers, work: Callable[[], int], wanted: int) -> None:
    """Do a part of some work, which says how much it has done; return once all ranks have, who call it together.

    Raises
    ------
    Exception
        On rank 0, what its part raises; others log that of theirs, and go on.
    RuntimeError
        On rank 0, if together they have not done as much as `wanted`.
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
