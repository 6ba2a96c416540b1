import errno
import os
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from contracts.scratch import in_scratch, naming_the_disk, zeros_in_scratch


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


def test_zeros_have_their_room_and_leave_no_file(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with patch.object(tempfile, "tempdir", str(tmp_path)):
        found = zeros_in_scratch(1 << 20, np.int64)
        with patch.object(os, "posix_fallocate", side_effect=full), pytest.raises(OSError, match=str(tmp_path)):
            zeros_in_scratch(1 << 20, np.int64)
    found[1 << 19] = 7
    assert (found[0], found[1 << 19], found.shape, found.dtype) == (0, 7, (1 << 20,), np.int64)
    assert not list(tmp_path.iterdir())
    assert zeros_in_scratch(0, np.int64).tolist() == []


def test_an_error_of_the_disk_names_it() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match=rf"No space left on device: '{tempfile.gettempdir()}, where .*TMPDIR"):  # noqa: SIM117
        with naming_the_disk():
            raise full
