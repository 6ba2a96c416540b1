"""What ranks share of a state, as its checkpoints have it, in the order of rows: fetched as it is read."""

from collections.abc import Mapping

from trainer.items.embeddings import Embeddings
from trainer.items.rows import TableRows
from trainer.items.stored import SharedLines, fetched, tabled
from trainer.items.table import ItemTable
from trainer.log_q.row_counts import RowCounts
from trainer.log_q.stored import counted

__all__ = ["lines_of_all", "lines_of_some"]


def lines_of_all(table: ItemTable, counts: RowCounts) -> dict[str, SharedLines]:
    """Return those of all rows by flat name, but embeddings, which each rank writes itself."""
    return _named("table", tabled(table)) | _named("counts", counted(counts))


def lines_of_some(
    rows: TableRows, embeddings: Embeddings, table: ItemTable, counts: RowCounts
) -> dict[str, SharedLines]:
    """Return those of some rows (n,), distinct, by flat name."""
    items = _named("table", tabled(table, rows)) | _named("counts", counted(counts, rows))
    return _named("embeddings", fetched(embeddings, rows)) | items


def _named(part: str, lines: Mapping[str, SharedLines]) -> dict[str, SharedLines]:
    return {f"{part}.{name}": one for name, one in lines.items()}
