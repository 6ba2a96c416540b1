from pathlib import Path

import pytest

from tests.contracts.panes import a_pane
from weir.contracts import CorruptArtefactError, Layout, Store, StoreFormat, StoreFormatError, WindowLog, ensure_format
from weir.contracts.storage.documents import write_document
from weir.contracts.storage.format import read_format


def test_a_new_store_gets_a_format_once(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert read_format(store) is None
    layout = Layout(window_ms=1000, user_shards=2, sketch={"kind": "exact"})
    first = ensure_format(store, StoreFormat(layout=layout, key_secret="07" * 16))
    assert ensure_format(store, StoreFormat(key_secret="08" * 16)) == first == read_format(store)


def test_the_next_minor_format_is_read(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    write_document(store, "STORE.json", StoreFormat(format=(2, 9)))
    assert ensure_format(store).format == (2, 9)


@pytest.mark.parametrize(("version", "remedy"), [((3, 0), "upgrade weir"), ((1, 4), "write a new store from the log")])
def test_another_major_format_is_refused_with_the_way_out(
    tmp_path: Path, version: tuple[int, int], remedy: str
) -> None:
    store = Store(str(tmp_path))
    write_document(store, "STORE.json", StoreFormat(format=version))
    with pytest.raises(StoreFormatError, match=f"{version[0]}.{version[1]}, this version reads 2.x: {remedy}"):
        read_format(store)


def test_a_lost_or_damaged_format_is_named(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    WindowLog(store).commit(a_pane(0))
    store.write("STORE.json", b"{}")
    with pytest.raises(CorruptArtefactError, match=r"STORE\.json"):
        WindowLog(store).committed()
    store.remove("STORE.json")
    with pytest.raises(StoreFormatError, match=r"STORE\.json: is missing, but the store holds commits"):
        WindowLog(store).committed()
