"""Sharded arrays of the state in the layout of a checkpoint, by row, fetched while they are iterated."""

from collections.abc import Mapping
from typing import Final, get_args

from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.feature_column import Line
from weir.trainer.items.featured import FeaturedItems
from weir.trainer.items.rows import TableRows
from weir.trainer.items.stored import SharedLines, described, fetched, tabled
from weir.trainer.items.table import ItemTable
from weir.trainer.log_q.row_counts import RowCounts
from weir.trainer.log_q.stored import counted

__all__ = ["is_feature_line", "lines_of_all", "lines_of_some"]

_FEATURES: Final = "features.table"


def lines_of_all(table: ItemTable, counts: RowCounts, featured: FeaturedItems | None) -> dict[str, SharedLines]:
    """Return the arrays at all rows by flat name, without embeddings, which each rank writes itself."""
    return _named("table", tabled(table)) | _named("counts", counted(counts)) | _features(featured)


def lines_of_some(
    rows: TableRows, embeddings: Embeddings, table: ItemTable, counts: RowCounts, featured: FeaturedItems | None
) -> dict[str, SharedLines]:
    """Return the arrays at distinct rows (n,) by flat name."""
    items = _named("table", tabled(table, rows)) | _named("counts", counted(counts, rows))
    return _named("embeddings", fetched(embeddings, rows)) | items | _features(featured, rows)


def _features(featured: FeaturedItems | None, rows: TableRows | None = None) -> dict[str, SharedLines]:
    return {} if featured is None else _named(_FEATURES, described(featured.table, rows))


def is_feature_line(name: str) -> bool:
    """Return whether a flat name denotes an array of a feature column."""
    return name.startswith(f"{_FEATURES}.") and name.rpartition(".")[2] in get_args(Line)


def _named(part: str, lines: Mapping[str, SharedLines]) -> dict[str, SharedLines]:
    return {f"{part}.{name}": one for name, one in lines.items()}
