import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.step import shuffled
from trainer.step.shuffled import Shuffled


def gone_through(order: list[int], count: int, size: int, start: int = 0) -> list[tuple[list[int], list[list[int]]]]:
    """Append `count` lines in pieces, of which line i is [i, 10 i], and return the parts."""
    lines = Shuffled(np.array(order, np.int64), count, 2, size)
    every = np.arange(count)[:, None] * np.array([1, 10])
    for piece in np.array_split(every, 3):
        lines.append(piece)
    return [(numbers.tolist(), part.tolist()) for numbers, part in lines.parts(start)]


@given(st.data(), st.integers(0, 30), st.integers(1, 7), st.integers(1, 20))
def test_lines_go_in_their_order(data: st.DataObject, count: int, size: int, part: int) -> None:
    order = data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))]
    start = size * data.draw(st.integers(0, 5))
    with patch.object(shuffled, "_PART", part):
        found = gone_through(order, count, size, start)
    assert [number for numbers, _ in found for number in numbers] == order[start:]
    for place, (numbers, lines) in enumerate(found):
        assert lines == [[number, 10 * number] for number in numbers]
        assert place == len(found) - 1 or len(numbers) % size == 0
        assert len(numbers) <= max(part, size)


def test_lines_without_numbers_have_an_order() -> None:
    lines = Shuffled(np.array([2, 0]), 3, 0, 2)
    lines.append(np.empty((3, 0), np.int64))
    ((numbers, part),) = lines.parts()
    assert numbers.tolist() == [2, 0]
    assert part.shape == (2, 0)


def test_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert gone_through([1, 0], 2, 2) == [([1, 0], [[1, 10], [0, 0]])]
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - closed below
    with patch.object(shuffled, "scratch", return_value=full):
        lines = Shuffled(np.array([0]), 1, 2, 1)
    with full, pytest.raises(OSError, match=r"No space left on device: .*TMPDIR names another"):
        lines.append(np.ones((1, 2), np.int64))
