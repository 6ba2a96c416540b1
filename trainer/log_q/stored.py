"""Counts as a checkpoint has them: in the order of rows, whatever ranks keep them."""

from functools import partial

from trainer.items.stored import RowLines, SharedLines
from trainer.log_q.row_counts import RowCounts

__all__ = ["counted"]


def counted(counts: RowCounts) -> dict[str, SharedLines]:
    """Return the lines of `RowCounts.state_dict`, of all ranks, fetched as they are read."""
    kept = counts.kept
    return {line: RowLines(partial(kept.fetch, line=line), kept.places.capacity) for line in kept.stored}
