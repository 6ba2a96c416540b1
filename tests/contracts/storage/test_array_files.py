import gc
import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from weir.contracts import Store, checksum
from weir.contracts.storage.array_files import ArrayDraft, mapped, write_lines

ARRAYS = arrays(st.sampled_from([np.float32, np.int64]), array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=40))


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # where the drafts of a store elsewhere are
    return Store(str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path.name}")


def drafts_in(folder: Path) -> list[Path]:
    gc.collect()
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix == ".tmp"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(array=ARRAYS, data=st.data())
def test_what_several_write_is_the_file_that_one_writes(store: Store, array: np.ndarray, data: Any) -> None:
    draft = ArrayDraft(store, "folder/file.npy", array.shape, array.dtype)
    assert not mapped(draft.path).any()
    kept, writer = draft.mapped(), data.draw(st.lists(st.integers(0, 2), min_size=len(array), max_size=len(array)))
    for number in range(3):
        own = np.flatnonzero(np.array(writer) == number)
        mapped(draft.path, "r+")[own] = array[own]
    assert not store.exists("folder/file.npy") or draft.path.exists()
    entry, plain = draft.keep(), io.BytesIO()
    np.save(plain, array)
    written = plain.getvalue()
    assert store.read_verified("folder", entry) == written
    assert (entry.name, entry.size, entry.rows) == ("file.npy", len(written), len(array))
    assert entry.checksum == checksum(written)
    assert kept.tobytes() == array.tobytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(array=ARRAYS, data=st.data())
def test_lines_that_are_written_one_after_another_are_the_file_that_one_writes(
    store: Store, array: np.ndarray, data: Any
) -> None:
    draft = ArrayDraft(store, "folder/file.npy", array.shape, array.dtype)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(array)), max_size=3)))
    parts = list(pairwise([0, *cuts, len(array)]))
    for first, last in data.draw(st.permutations(parts)):
        write_lines(draft.path, first, np.asfortranarray(array[first:last]))
    assert draft.mapped().tobytes() == array.tobytes()
    plain = io.BytesIO()
    np.save(plain, array)
    assert draft.path.read_bytes() == plain.getvalue()


def test_what_is_kept_leaves_no_draft_and_what_is_not_leaves_nothing(store: Store, tmp_path: Path) -> None:
    kept, other = (ArrayDraft(store, f"folder/{name}.npy", (2, 3), np.float32) for name in ("kept", "other"))
    array = other.mapped()
    mapped(other.path, "r+")[:] = 1
    assert len(drafts_in(tmp_path)) == 2
    kept.keep()
    del kept, other
    assert drafts_in(tmp_path) == []
    assert store.glob("folder/*") == ["folder/kept.npy"]
    # A folder that was made for nothing goes, too.
    draft = ArrayDraft(store, "bundles/other/file.npy", (2, 3), np.float32)
    assert draft.path.exists()
    del draft
    assert not store.exists("bundles/other")
    assert array.sum() == 6
    with pytest.raises(ValueError, match="read-only"):
        array[:] = 2  # it may be a file of the store by now


def test_a_disk_without_room_is_named_with_what_is_needed(store: Store, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"File too large: 1,152,921,504,607 MB are needed: '.*\.tmp'"):
        ArrayDraft(store, "folder/file.npy", (1 << 60, 1), np.uint8)
    assert drafts_in(tmp_path) == []
