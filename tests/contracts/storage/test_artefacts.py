import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weir.contracts import Store
from weir.contracts.storage.artefacts import GROUP, write_groups, write_table


def test_groups_are_written_as_the_whole_table_is(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(0, 1 << 40, GROUP + 1000)
    table = pa.table({"number": numbers, "id": [str(number) for number in numbers.tolist()]})
    buffer, store = io.BytesIO(), Store(str(tmp_path))
    pq.write_table(table, buffer, GROUP, compression="zstd", use_dictionary=False, write_statistics=False)
    groups = (pa.table(table.slice(first, GROUP).to_pydict()) for first in range(0, len(table), GROUP))
    entry = write_groups(store, "a/groups", table.schema, groups, len(table))
    assert (entry.name, entry.rows) == ("groups", len(table))
    assert store.read_verified("a", entry) == store.read_verified("a", write_table(store, "a/whole", table))
    assert store.read("a/groups") == buffer.getvalue()


def test_a_table_without_rows_is_one_all_the_same(tmp_path: Path) -> None:
    table, store = pa.table({"number": np.empty(0, np.int64)}), Store(str(tmp_path))
    for entry in (write_groups(store, "groups", table.schema, [], 0), write_table(store, "whole", table)):
        assert pq.read_table(io.BytesIO(store.read(entry.name))).equals(table)
