from pathlib import Path

import pytest

from contracts import Store
from contracts.locks import BusyStoreError, only_one


def test_only_one_at_a_time_and_each_name_by_itself(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with only_one(store, "train", "weir train"), only_one(store, "monitor", "weir monitor"):
        refusal = pytest.raises(
            BusyStoreError, match=r"another `weir train` runs on this store \(.*train\.lock is locked"
        )
        with refusal, only_one(store, "train", "weir train"):
            pass
    with only_one(store, "train", "weir train"):
        pass


def test_object_stores_have_no_lock() -> None:
    store = Store("memory://locks")
    with only_one(store, "train", "weir train"), only_one(store, "train", "weir train"):
        assert not store.glob("*")
