import errno
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from weir.contracts.scratch import in_scratch, naming_the_disk, zeros_in_scratch


def is_mapped(array: np.ndarray) -> bool:
    return isinstance(array.base, np.memmap)


@given(arrays(st.sampled_from([np.int32, np.float64]), array_shapes(min_dims=1, max_dims=2, min_side=0)))
def test_a_mapped_array_is_the_same_and_may_be_changed(array: np.ndarray) -> None:
    for given_ in (array, array[::2]):
        found = in_scratch(given_)
        assert found.dtype == given_.dtype
        assert np.array_equal(found, given_, equal_nan=found.dtype.kind == "f")
        assert is_mapped(found) == bool(given_.size)
        found[:] = 1
        assert (found == 1).all()


@pytest.mark.parametrize("count", [0, 1, 1 << 16, 200_000])
def test_zeros_may_be_changed_and_leave_no_file(tmp_path: Path, count: int) -> None:
    with patch.object(tempfile, "tempdir", str(tmp_path)):
        found = zeros_in_scratch(count, np.int64)
    assert (found.shape, found.dtype, found.any()) == ((count,), np.int64, False)
    assert is_mapped(found) == bool(count)
    found[-1:] = 7
    assert found.sum() == (7 if count else 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("made", [lambda: zeros_in_scratch(1 << 17, np.int64), lambda: in_scratch(np.ones(3))])
def test_a_full_disk_is_named_before_anything_is_mapped(made: Callable[[], object]) -> None:
    full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - closed by what writes
    named = pytest.raises(OSError, match=r"No space left on device: .*TMPDIR names another")
    with patch.object(tempfile, "TemporaryFile", return_value=full), named:
        made()


def test_an_error_of_the_disk_names_it() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match=rf"No space left on device: '{tempfile.gettempdir()}, where .*TMPDIR"):  # noqa: SIM117
        with naming_the_disk():
            raise full
