import errno
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.step.spool import Spool, blocks


@given(st.lists(st.integers(0, 5), max_size=5), st.integers(0, 3), st.sampled_from([np.int64, np.int32]))
def test_lines_come_back_in_their_order(parts: list[int], width: int, dtype: type[np.generic]) -> None:
    spool, draw = Spool(width, dtype), np.random.default_rng(3)
    lines = [draw.integers(0, 1 << 30, (count, width)) for count in parts]
    for part in lines:
        spool.append(part)
    found = spool.finish()
    assert found.dtype == dtype
    assert found.tolist() == np.concatenate([np.empty((0, width), np.int64), *lines]).tolist()


def test_a_column_of_a_larger_array_is_kept() -> None:
    spool, whole = Spool(2, np.int64), np.arange(12).reshape(3, 4)
    spool.append(whole[:, -2:])
    assert spool.finish().tolist() == [[2, 3], [6, 7], [10, 11]]


def test_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = Spool(2, np.int64)
    spool.append(np.ones((3, 2), np.int64))
    found = spool.finish()
    assert list(tmp_path.iterdir()) == []
    assert found.sum() == 6


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - closed below
    with patch.object(tempfile, "TemporaryFile", return_value=full):
        spool = Spool(2, np.int64)
    with full, pytest.raises(OSError, match=f"No space left on device: '{tmp_path}, .*TMPDIR names another") as caught:
        spool.append(np.ones((3, 2), np.int64))
    assert caught.value.errno == errno.ENOSPC


@given(st.integers(0, 200_000))
def test_blocks_cover_all_lines_once(count: int) -> None:
    parts: list[Any] = [(block.start, block.stop) for block in blocks(count)]
    assert [first for first, _ in parts] == [0, *(stop for _, stop in parts)][: len(parts)]
    assert all(0 < stop - first <= 1 << 15 for first, stop in parts)
    assert sum(stop - first for first, stop in parts) == count
