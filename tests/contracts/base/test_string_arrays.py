""""""

import errno
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from weir.contracts.base.arrays import Layers
from weir.contracts.base.string_arrays import Texts, in_scratch, naming_the_disk, zeros_in_scratch


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


some_texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=20)


@given(some_texts, st.data())
def test_it_is_read_as_an_array_of_strings_is(texts: list[str], data: st.DataObject) -> None:
    array = np.array(texts, object)
    column = pickle.loads(pickle.dumps(Texts.of(array)))  # noqa: S301 - it was written here
    rows = np.array(data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=12)), np.int64)
    assert len(column) == len(texts)
    assert column.shape == array.shape
    assert column.dtype == array.dtype
    assert column[rows].tolist() == array[rows].tolist()
    assert column[rows].dtype == object
    pairs = np.stack([rows, rows])
    assert column[pairs].tolist() == array[pairs].tolist()
    assert column[1 : len(texts)].tolist() == texts[1:]
    assert column[len(texts) - 1] == texts[-1]
    assert np.asarray(column).tolist() == texts


def test_an_empty_column_has_nothing() -> None:
    column = Texts.of(np.array([], object))
    assert len(column) == 0
    assert column[np.array([], np.int64)].tolist() == []


@given(st.lists(some_texts, max_size=4), st.integers(0, 3))
def test_pieces_are_joined_in_their_order(pieces: list[list[str]], passed: int) -> None:
    """Pieces of arrays of either kind, which need not begin where their array does."""
    kinds = (pa.string(), pa.large_string())
    arrays = [pa.array(["left out"] * passed + one, kinds[n % 2])[passed:] for n, one in enumerate(pieces)]
    every = [text for one in pieces for text in one]
    for join in (Texts.joined, Texts.spooled):
        assert np.asarray(join(iter(arrays), len(every))).tolist() == every


@given(some_texts, st.data())
def test_between_rows_that_strings_are_spread_to_others_are_empty(texts: list[str], data: st.DataObject) -> None:
    count = len(texts) + data.draw(st.integers(0, 5))
    rows = np.array(sorted(data.draw(st.permutations(range(count)))[: len(texts)]), np.int32)
    wanted = [""] * count
    for row, text in zip(rows.tolist(), texts, strict=True):
        wanted[row] = text
    found = Texts.of(np.array(texts, object)).spread(rows, count)
    assert np.asarray(found).tolist() == wanted
    assert found[rows].tolist() == texts


def test_rows_lie_on_it_as_on_an_array() -> None:
    array = np.array([f"item-{number}" for number in range(6)], object)
    late = (np.array([1, 6]), np.array(["new-1", "new-6"], object), np.array([3]))
    its = Layers.of(array)
    mine = Layers(cast("Any", Texts.of(array)), its.over, its.gone, its.count).replaced(*late)
    its = its.replaced(*late)
    rows = np.array([0, 1, 2, 4, 6])
    assert mine[rows].tolist() == its[rows].tolist()
    assert mine.merged("").tolist() == its.merged("").tolist()
