""""""

import errno
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.ranks.workers import Workers
from weir.trainer.step import shuffling as shuffled
from weir.trainer.step.shuffling import ShardedBatches, Shuffled, Spool, blocks


@given(st.data(), st.integers(0, 30), st.integers(4, 9), st.integers(1, 4))
def test_the_shares_of_all_ranks_are_the_batches(data: st.DataObject, count: int, size: int, ranks: int) -> None:
    order = np.array(data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))], np.int64)
    dealt = [ShardedBatches(order, size, Workers(rank, ranks)) for rank in range(ranks)]
    assert sum(one.lines for one in dealt) == len(order)
    for one in dealt:
        found = list(one.batches(0))
        assert [number for chosen in found for number in chosen.tolist()] == order.tolist()
        assert [part.tolist() for part in one.batches(1)] == [part.tolist() for part in found[1:]]
        assert one.lines == sum(len(chosen[one.here.start : one.here.stop]) for chosen in found)
        places = one.places(count)
        assert {int(number): place for place, number in enumerate(order)} == {
            number: place for number, place in enumerate(places.tolist()) if place >= 0
        }


@given(st.data(), st.integers(0, 30), st.integers(1, 9))
def test_a_rank_alone_keeps_the_lines_that_have_a_place(data: st.DataObject, count: int, size: int) -> None:
    order = np.array(data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))], np.int64)
    dealt, lines = ShardedBatches(order, size, Workers()), 10 * np.arange(count, dtype=np.int32)[:, None]
    came = dealt.exchanged(dealt.places(count), lines)
    assert sorted(came.tolist()) == [[place, 10 * number] for place, number in enumerate(order.tolist())]


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


def test_no_file_is_left_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = Spool(2, np.int64)
    spool.append(np.ones((3, 2), np.int64))
    found = spool.finish()
    assert list(tmp_path.iterdir()) == []
    assert found.sum() == 6


def test_a_full_disk_is_named_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
