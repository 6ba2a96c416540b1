import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts import Events, Histories, Store
from pipelines.user_state import ArtefactUserState
from tests.pipelines import support
from tests.pipelines.support import Event


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the windows of two users, some with a late pane."""
    tmp_path = tmp_path_factory.mktemp("user_state")
    config, store = support.config(tmp_path, user_shards=1), Store(str(tmp_path / "store"))
    for start in (0, 20, 5):
        events = [Event(f"u{n % 2}", f"i{start + n}", start + n, ["click", "click", "skip"][n % 3]) for n in range(20)]
        support.write_lines(tmp_path / "log/a.jsonl", [event.line() for event in events])
        support.run(store, config)
    return tmp_path / "store"


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Store:
    shutil.copytree(made, tmp_path / "store")
    return Store(str(tmp_path / "store"))


def fields(histories: Histories) -> list[Any]:
    return [histories.users.tolist(), histories.items.tolist(), histories.times.tolist()]


def newest(store: Store) -> int:
    return support.committed(store)[-1].sequence


def replayed(store: Store) -> Histories:
    log, histories = support.WindowLog(store), Histories.empty(3)
    for manifest in log.committed():
        rows = log.examples(manifest, 0)
        columns = [rows[name].to_numpy() for name in ("user_key", "item_key", "timestamp")]
        histories.extend(Events(*columns, rows["label"].to_numpy() == 1))
    return histories


@pytest.mark.parametrize("damage", ["none", "missing", "cut", "altered", "foreign", "of the future"])
def test_state_is_that_of_the_committed_windows_whatever_became_of_the_snapshot(store: Store, damage: str) -> None:
    name = "state/histories/shard-00000.parquet"
    data = store.read(name)
    middle = data.index(b"PAR1", 4) // 2
    damaged = {
        "none": data,
        "cut": data[:-20],
        "altered": data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :],
        "foreign": b"no parquet",
    }
    if damage == "missing":
        store.remove(name)
    elif damage == "of the future":
        ArtefactUserState(store, 3)._save(0, Histories.empty(3), 999)
    else:
        store.write(name, damaged[damage])
    assert fields(ArtefactUserState(store, 3).load(0, newest(store))) == fields(replayed(store))
    # The snapshot left behind is taken as it is: no window is read.
    for path in store.glob("windows/*/*/examples-*"):
        store.remove(path)
    assert fields(ArtefactUserState(store, 3).load(0, newest(store))) == fields(Histories(*snapshot_of(store)))


def snapshot_of(store: Store) -> Any:
    histories, sequence = ArtefactUserState(store, 3)._snapshot(0, 10**6)
    assert sequence == support.committed(store)[-1].sequence
    return histories.users, histories.items, histories.times


def test_another_length_is_rebuilt(store: Store) -> None:
    longer = ArtefactUserState(store, 5).load(0, newest(store))
    assert longer.items.shape == (2, 5)
    assert np.array_equal(longer.items[:, 2:], replayed(store).items)
