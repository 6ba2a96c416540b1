from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.trainer.windows import WindowWriter
from weir.contracts import CorruptArtefactError, Store, hash_ids
from weir.trainer.offline.data import InteractionsError
from weir.trainer.offline.stored import is_store, read_store


@pytest.fixture
def writer(tmp_path: Path) -> WindowWriter:
    return WindowWriter(Store(str(tmp_path)))


def test_windows_give_their_positive_events_in_order_of_time(tmp_path: Path, writer: WindowWriter) -> None:
    assert not is_store(str(tmp_path))
    writer.commit(["anna", "ben", "anna", "cleo"], ["a", "b", "c", "a"], np.array([5, 7, 9, 9]))
    # A late pane, with a negative event.
    judged = np.array([True, False, True])
    writer.commit(["ben", "ben", "dora"], ["c", "a", "d"], np.array([1, 2, 8]), positive=judged, pane=1)
    assert is_store(str(tmp_path))
    found = read_store(str(tmp_path))
    assert found.timestamps is not None
    key = {str(hash_ids(pa.array([name]))[0]): name for name in ("anna", "ben", "cleo", "dora")}
    events = {
        (int(time), key[found.user_ids[user]], found.item_ids[item])
        for time, user, item in zip(found.timestamps, found.users, found.items, strict=True)
    }
    early, late = {(1, "ben", "c"), (5, "anna", "a"), (7, "ben", "b")}, {(8, "dora", "d"), (9, "anna", "c")}
    assert events == early | late | {(9, "cleo", "a")}
    assert found.timestamps.tolist() == [1, 5, 7, 8, 9, 9]
    assert (found.users[0], found.items[0], found.newest_rows) == (0, 0, None)
    newest = read_store(str(tmp_path), newest=2)
    assert (newest.timestamps.tolist(), newest.newest_rows) == ([9, 9], 2)
    assert set(newest.item_ids) == {"a", "c"}


def test_a_store_without_positive_events_is_told(tmp_path: Path, writer: WindowWriter) -> None:
    writer.commit(["anna"], ["a"], np.array([5]), positive=np.array([False]))
    with pytest.raises(InteractionsError, match="the store has no window with a positive interaction"):
        read_store(str(tmp_path))


def test_a_damaged_file_is_refused(tmp_path: Path, writer: WindowWriter) -> None:
    writer.commit(["anna"], ["a"], np.array([5]))
    [items] = tmp_path.glob("windows/**/items.parquet")
    items.write_bytes(items.read_bytes()[:-1])
    with pytest.raises(CorruptArtefactError, match=r"items\.parquet"):
        read_store(str(tmp_path))
