import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.step import shuffled
from weir.trainer.step.shuffled import Shuffled


def gone_through(order: list[int], size: int, start: int = 0) -> list[list[list[int]]]:
    """Append lines in pieces, of which line i is [i, 10 i] and goes in the place order[i]; return the groups."""
    lines = Shuffled(len(order), 2, size)
    places = np.array(order, np.int32).reshape(-1, 1)
    every = np.concatenate([places, np.arange(len(order), dtype=np.int32)[:, None] * np.array([1, 10])], 1)
    for piece in np.array_split(every.astype(np.int32), 3):
        lines.append(piece)
    return [part.tolist() for part in lines.groups(start)]


@given(st.data(), st.integers(0, 30), st.integers(1, 7), st.integers(1, 20))
def test_lines_go_in_their_order(data: st.DataObject, count: int, size: int, part: int) -> None:
    order = data.draw(st.permutations(range(count)))
    start = data.draw(st.integers(0, 5))
    with patch.object(shuffled, "_PART", part):
        found = gone_through(order, size, start)
    goes = [[number, 10 * number] for number in np.argsort(order)]
    assert [line for group in found for line in group] == goes[start * size :]
    for place, group in enumerate(found):
        assert len(group) == size or place == len(found) - 1


def test_lines_without_numbers_have_an_order() -> None:
    lines = Shuffled(3, 0, 2)
    lines.append(np.array([[2], [0], [1]], np.int32))
    assert [group.shape for group in lines.groups()] == [(2, 0), (1, 0)]
    assert lines.none.shape == (0, 0)


def test_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert gone_through([1, 0], 2) == [[[1, 10], [0, 0]]]
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - closed below
    with patch.object(shuffled, "scratch", return_value=full):
        lines = Shuffled(1, 2, 1)
    with full, pytest.raises(OSError, match=r"No space left on device: .*TMPDIR names another"):
        lines.append(np.zeros((1, 3), np.int32))
