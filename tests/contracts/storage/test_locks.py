import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from weir.contracts import Store
from weir.contracts.storage.locks import BusyStoreError, locked, only_one


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


def test_a_lock_leaves_nothing_in_a_store_to_which_nothing_was_written(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "new" / "store"))
    refused = pytest.raises(ValueError, match="no")
    with refused, only_one(store, "up", "weir up"), only_one(store, "train", "weir train"):
        raise ValueError("no")
    assert not list(tmp_path.iterdir())
    with only_one(store, "up", "weir up"):
        store.write("log/a", b"1")
    assert [path.name for path in (tmp_path / "new/store").iterdir()] == ["log"]
    with only_one(store, "up", "weir up"):
        store.write("state/settings.json", b"{}")
    with only_one(store, "up", "weir up"):
        pass
    assert (tmp_path / "new/store/state/settings.json").exists()


def test_a_lock_that_was_removed_while_another_waited_for_it_is_taken_anew(tmp_path: Path) -> None:
    """Many threads, each with descriptors of its own, take the lock of a store that never holds anything else."""
    store, alone = Store(str(tmp_path / "store")), threading.Lock()

    def take() -> int:
        taken = 0
        for _ in range(300):
            with locked(store, "state/up.lock") as path:
                if path is None:
                    assert alone.acquire(blocking=False)
                    os.sched_yield()
                    alone.release()
                    taken += 1
        return taken

    with ThreadPoolExecutor(6) as pool:
        assert sum(future.result() for future in [pool.submit(take) for _ in range(6)])


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    with pytest.raises(OSError, match="store"), locked(Store(str(tmp_path / "store")), "state/up.lock"):
        pass


def test_a_folder_that_goes_while_it_is_made_is_made_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Path.mkdir` fails where the folder is there when it is to be made, and gone when that is looked at."""
    made, mkdir = [], Path.mkdir

    def late(path: Path, *args: Any, **options: Any) -> None:
        made.append(path)
        if len(made) == 1:
            raise FileExistsError(path)
        mkdir(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", late)
    with locked(Store(str(tmp_path / "store")), "state/up.lock") as path:
        assert path is None
        assert len(made) > 1
