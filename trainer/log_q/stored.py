"""Counts in the layout of a checkpoint: by row, independent of the number of ranks."""

from functools import partial

from weir.trainer.items.rows import TableRows
from weir.trainer.items.stored import RowLines, SharedLines
from weir.trainer.log_q.row_counts import RowCounts

__all__ = ["counted"]


def counted(counts: RowCounts, some: TableRows | None = None) -> dict[str, SharedLines]:
    """Return the arrays of `RowCounts.state_dict` over all ranks, or at some rows, fetched while they are iterated."""
    kept = counts.kept
    rows = range(kept.places.capacity) if some is None else some
    return {line: RowLines(partial(kept.fetch, line=line), rows) for line in kept.stored}
