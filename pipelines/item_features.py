"""Item features of a window: of what its events say about each item, the newest known values."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts import FeatureNames, columns, items_schema
from weir.readers import Int64

__all__ = ["newest_known", "observed"]


def observed(rows: pa.Table) -> pa.Table | None:
    """Return the keyed rows that hold the newest known value of any feature; None without features."""
    if columns.FEATURES not in rows.column_names:
        return None
    kept = rows.select([columns.ITEM_KEY, columns.USER_KEY, columns.TIMESTAMP, columns.FEATURES])
    return kept.take(pa.array(np.unique(np.concatenate([*_newest(kept).values()]))))


def newest_known(items: pa.Table, found: Sequence[pa.Table], names: FeatureNames) -> pa.Table:
    """Return the items (in order of key) with the newest known value of each feature among those observed."""
    if not names.all:
        return items
    rows = pa.concat_tables(found).combine_chunks()
    keys = rows[columns.ITEM_KEY].to_numpy()
    struct = rows[columns.FEATURES].combine_chunks()
    for name, newest in _newest(rows).items():
        place = np.searchsorted(items[columns.ITEM_KEY].to_numpy(), keys[newest])
        index = np.full(len(items), -1)
        index[place] = newest
        values = struct.field(name).take(pa.array(index, mask=index < 0))
        items = items.append_column(name, values)
    return items.cast(items_schema(names))


def _newest(rows: pa.Table) -> dict[str, Int64]:
    """Return for each feature one row per item of which anything is known: the newest.

    Of one time, the largest user key decides, and of one user the last row: however the log was cut and the users
    were sharded, it is the same.
    """
    keys = rows[columns.ITEM_KEY].to_numpy()
    order = np.lexsort((rows[columns.USER_KEY].to_numpy(), rows[columns.TIMESTAMP].to_numpy()))[::-1]
    newest: dict[str, Int64] = {}
    for field in rows.schema.field(columns.FEATURES).type:
        values = pc.struct_field(rows[columns.FEATURES], field.name)
        known = order[values.is_valid().to_numpy()[order]]
        _, first = np.unique(keys[known], return_index=True)
        newest[field.name] = known[first]
    return newest
