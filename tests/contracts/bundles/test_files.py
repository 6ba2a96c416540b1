import io
import threading
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.contracts.bundles.test_bundle_log import write
from weir.contracts import BUNDLE_ITEMS_SCHEMA, BundleFile, BundleLog, CorruptArtefactError, Store
from weir.contracts.base.string_arrays import Texts
from weir.contracts.bundles import files as module
from weir.contracts.bundles.files import BundleFiles, MappedFiles

KINDS = [BundleFiles, MappedFiles]


def files_with(
    folder: Path, data: bytes, kind: type[BundleFiles] = BundleFiles, name: str = BundleFile.VECTORS
) -> BundleFiles:
    log = BundleLog(Store(str(folder)))
    entry = log.store.write(f"bundles/0001/{name}", data)
    return kind(log, write(log, "0001", files=(entry,)))


def saved(array: npt.ArrayLike, **settings: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **settings)
    return file.getvalue()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("array", [np.arange(6, dtype=np.int32), np.empty(0, np.int32), np.eye(3, 4), np.eye(3, 4).T])
def test_an_array_is_what_numpy_reads(tmp_path: Path, array: npt.NDArray[np.generic], kind: type[BundleFiles]) -> None:
    """One that numpy itself keeps column by column, too."""
    data = saved(array)
    found = files_with(tmp_path, data, kind).array(BundleFile.VECTORS, array.dtype, array.shape)
    np.testing.assert_array_equal(found, np.load(io.BytesIO(data)))
    assert found.dtype == array.dtype


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "data",
    [
        b"something else",
        saved(np.eye(3))[:-1],
        saved(np.eye(3)) + bytes(8),
        saved(np.array(["a", None], object), allow_pickle=True),
    ],
)
def test_bytes_that_are_no_array_are_named(tmp_path: Path, data: bytes, kind: type[BundleFiles]) -> None:
    with pytest.raises(CorruptArtefactError, match=f"{BundleFile.VECTORS}: cannot be used"):
        files_with(tmp_path, data, kind).array(BundleFile.VECTORS, np.float64, (3, 3))


def test_a_mapped_array_is_in_its_file_and_stays_when_that_is_removed(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(1000, 16)).astype(np.float32)
    found = files_with(tmp_path, saved(array), MappedFiles).matrix(BundleFile.VECTORS, array.shape)
    path = tmp_path / "bundles/0001" / BundleFile.VECTORS
    assert str(path) in Path("/proc/self/maps").read_text()
    path.unlink()
    np.testing.assert_array_equal(found, array)


def test_a_file_is_verified_before_it_is_mapped(tmp_path: Path) -> None:
    files = files_with(tmp_path, saved(np.eye(3, dtype=np.float32)), MappedFiles)
    path = tmp_path / "bundles/0001" / BundleFile.VECTORS
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(CorruptArtefactError, match="has checksum"):
        files.matrix(BundleFile.VECTORS, (3, 3))
    with pytest.raises(CorruptArtefactError, match="has checksum"):
        files.opened(BundleFile.VECTORS, Path.read_bytes)


def test_what_a_reader_cannot_open_is_named(tmp_path: Path) -> None:
    files = files_with(tmp_path, b"something else", MappedFiles)
    with pytest.raises(CorruptArtefactError, match=f"{BundleFile.VECTORS}: cannot be used"):
        files.opened(BundleFile.VECTORS, np.load)


def parquet(**columns: object) -> bytes:
    """Return ``items.parquet`` of five items, some columns changed."""
    whole = {
        "row": range(5),
        "item_id": ["", "b", "\u00e9\u00e9", "d", "e" * 99],
        "item_key": [5, -4, 3, 2, 1],
        "popularity": [0.5] * 5,
    }
    file = io.BytesIO()
    pq.write_table(pa.table(whole | columns, schema=BUNDLE_ITEMS_SCHEMA), file, row_group_size=3)
    return file.getvalue()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decoded", [2, 1 << 16])
def test_items_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BundleFiles], decoded: int
) -> None:
    monkeypatch.setattr(module, "_DECODED", decoded)
    data = parquet()
    found, wanted = files_with(tmp_path, data, kind, BundleFile.ITEMS).items(), pq.read_table(pa.BufferReader(data))
    for mine, name in zip(found, ("row", "item_id", "item_key", "popularity"), strict=True):
        assert np.asarray(mine).tolist() == wanted[name].to_pylist()
        assert mine.dtype == (object if name == "item_id" else wanted[name].to_numpy().dtype)
    assert isinstance(found.ids, Texts) == (kind is MappedFiles)
    held = [found.rows, found.keys, found.popularity]
    held += [found.ids.offsets, found.ids.data] if isinstance(found.ids, Texts) else []
    assert {isinstance(one.base, np.memmap) for one in held} == {kind is MappedFiles}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (parquet()[:-1], "cannot be used"),
        (parquet().replace(b"PAR1", b"PAR2"), "cannot be used"),
        (parquet(item_key=[5, 4, 3, 2, 5]), "same item more than once"),
        (parquet(popularity=[0.5, 0.5, float("nan"), 0.5, 0.5]), "popularity"),
    ],
)
def test_items_that_cannot_be_used_are_named(tmp_path: Path, data: bytes, problem: str) -> None:
    with pytest.raises(CorruptArtefactError, match=f"{BundleFile.ITEMS}: .*{problem}"):
        files_with(tmp_path, data, name=BundleFile.ITEMS).items()


def test_items_that_are_fewer_than_the_file_says_are_refused(tmp_path: Path) -> None:
    """The footer has them as a field of its own, which Parquet's reader does not compare."""
    data = parquet().replace(b"\x16\x0a\x19", b"\x16\x0c\x19")
    with pytest.raises(CorruptArtefactError, match=f"{BundleFile.ITEMS}: cannot be used: lacks 1 of its rows"):
        files_with(tmp_path, data, name=BundleFile.ITEMS).items()


def test_items_that_cannot_be_decoded_are_named(tmp_path: Path) -> None:
    """The file says where its columns are, and something else is there."""
    data = bytearray(parquet())
    data[4:60] = bytes(56)
    with pytest.raises(CorruptArtefactError, match=f"{BundleFile.ITEMS}: cannot be used"):
        files_with(tmp_path, bytes(data), name=BundleFile.ITEMS).items()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_together_comes_in_order_and_the_first_error_is_raised(
    tmp_path: Path, kind: type[BundleFiles]
) -> None:
    files = files_with(tmp_path, b"", kind)
    assert files.each(lambda: "one", lambda: 2) == ["one", 2]
    with pytest.raises(CorruptArtefactError, match=r"items\.parquet"):
        files.each(lambda: 1, files.items, lambda: 1 / 0)


def test_mapped_files_are_read_side_by_side_and_others_one_after_another(tmp_path: Path) -> None:
    met = threading.Barrier(2, timeout=10)
    assert sorted(files_with(tmp_path / "a", b"", MappedFiles).each(met.wait, met.wait)) == [0, 1]
    order: list[int] = []
    files_with(tmp_path / "b", b"").each(*(partial(order.append, number) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]
