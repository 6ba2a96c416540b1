import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from contracts import BundleFile, BundleLog, CorruptArtefactError, Store
from contracts.bundle_files import BundleFiles
from tests.contracts.test_bundle import write


def files_with(folder: Path, data: bytes) -> BundleFiles:
    log = BundleLog(Store(str(folder)))
    entry = log.store.write(f"bundles/0001/{BundleFile.VECTORS}", data)
    return BundleFiles(log, write(log, "0001", files=(entry,)))


def saved(array: npt.ArrayLike, **settings: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **settings)
    return file.getvalue()


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.int32), np.empty(0, np.int32), np.eye(3, 4), np.eye(3, 4).T])
def test_an_array_is_what_numpy_reads(tmp_path: Path, array: npt.NDArray[np.generic]) -> None:
    """One that numpy itself keeps column by column, too."""
    data = saved(array)
    found = files_with(tmp_path, data).array(BundleFile.VECTORS, array.dtype, array.shape)
    np.testing.assert_array_equal(found, np.load(io.BytesIO(data)))
    assert found.dtype == array.dtype


@pytest.mark.parametrize(
    "data",
    [
        b"something else",
        saved(np.eye(3))[:-1],
        saved(np.eye(3)) + bytes(8),
        saved(np.array(["a", None], object), allow_pickle=True),
    ],
)
def test_bytes_that_are_no_array_are_named(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CorruptArtefactError, match=f"{BundleFile.VECTORS}: cannot be used"):
        files_with(tmp_path, data).array(BundleFile.VECTORS, np.float64, (3, 3))
