"""Counts as a checkpoint has them: in the order of rows, whatever ranks keep them."""

from functools import partial

from weir.trainer.items.rows import TableRows
from weir.trainer.items.stored import RowLines, SharedLines
from weir.trainer.log_q.row_counts import RowCounts

__all__ = ["counted"]


def counted(counts: RowCounts, some: TableRows | None = None) -> dict[str, SharedLines]:
    """Return the lines of `RowCounts.state_dict`, of all ranks, or of some rows, fetched as they are read."""
    kept = counts.kept
    rows = range(kept.places.capacity) if some is None else some
    return {line: RowLines(partial(kept.fetch, line=line), rows) for line in kept.stored}
