"""The owners of item keys that were stored, beside a commit log that is not the one that they come from."""

from pathlib import Path

import numpy as np
import pytest

from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import CommitLog, LogState, Store
from weir.pipelines.runs import hash_collisions as key_owners
from weir.pipelines.runs.hash_collisions import KeyOwners


def owners_of(store: Store) -> tuple[int, set[int]]:
    found = KeyOwners.load(store)
    found.catch_up(LogState.open(store).cursor.sequence - 1)
    return found.sequence, set(found.keys.tolist())


@pytest.mark.parametrize("new", [0, 1, 4])
def test_owners_of_lost_windows_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: int) -> None:
    monkeypatch.setattr(key_owners, "_PANES_BETWEEN_SAVES", 1)
    store = Store(str(tmp_path))
    writer = WindowWriter(store)
    writer.commit(["u"], ["early"], np.array([1]))
    writer.commit(["u"], ["lost"], np.array([2]))
    sequence, keys = owners_of(store)
    assert (sequence, len(keys)) == (1, 2)
    assert KeyOwners.load(store).sequence == 1, "what is stored fits the log"
    store.remove("commits/HEAD")
    store.remove(CommitLog.name(1))
    writer.sequence = 1
    synthetic(writer, windows=new, events=20, items=5)
    sequence, after = owners_of(store)
    assert sequence == new
    assert len(after & keys) == 1
