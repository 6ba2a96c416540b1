import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from contracts import BundleFile, BundleLog, CorruptArtefactError, Store
from contracts.bundle_files import BundleFiles, MappedFiles
from tests.contracts.test_bundle import write

KINDS = [BundleFiles, MappedFiles]


def files_with(folder: Path, data: bytes, kind: type[BundleFiles] = BundleFiles) -> BundleFiles:
    log = BundleLog(Store(str(folder)))
    entry = log.store.write(f"bundles/0001/{BundleFile.VECTORS}", data)
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
