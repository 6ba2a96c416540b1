import numpy as np
import pytest
from hypothesis import given

from tests.sketches.support import F64, I64, true_counts, weighted_batches, zipf
from weir.sketches.hashing import RowHash, fmix64, splitmix64, sum_by_key

MASK = (1 << 64) - 1


def reference_fmix64(word: int) -> int:
    """MurmurHash3's finaliser on Python integers."""
    word ^= word >> 33
    word = word * 0xFF51AFD7ED558CCD & MASK
    word ^= word >> 33
    word = word * 0xC4CEB9FE1A85EC53 & MASK
    return word ^ (word >> 33)


def test_fmix64_equals_the_reference() -> None:
    words = [0, 1, 2**63, MASK, 0x0123456789ABCDEF]
    assert fmix64(np.array(words, dtype=np.uint64)).tolist() == [reference_fmix64(word) for word in words]


def test_splitmix64_gives_the_published_sequence() -> None:
    """First outputs for seed 1234567, as published with the reference implementation."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert splitmix64(1234567, 3).tolist() == expected


@pytest.mark.parametrize("stride", [1, 3, 1 << 12, 1 << 32, 1 << 52])
def test_structured_keys_fill_every_row_evenly(stride: int) -> None:
    """Chi-square over 256 cells of a row: mean 255, standard deviation 22.6."""
    slots = RowHash(256, 4, 0).slots(np.arange(4096, dtype=np.int64) * stride)
    for row, row_slots in enumerate(slots):
        hits = np.bincount(row_slots - 256 * row, minlength=256)
        assert hits.size == 256
        assert ((hits - 16) ** 2 / 16).sum() < 255 + 6 * 22.6


def test_rows_disagree_about_collisions() -> None:
    slots = RowHash(256, 2, 0).slots(np.arange(4096, dtype=np.int64))
    same_first = slots[0] == slots[0, 0]
    assert (slots[1][same_first] == slots[1, 0]).mean() < 0.25


@pytest.mark.parametrize(
    ("width", "depth", "seed", "named"),
    [(6, 4, 0, "width.*6"), (8, 0, 0, "depth.*0"), (8, 17, 0, "depth.*17"), (8, 4, -1, "seed.*-1")],
)
def test_impossible_tables_are_refused(width: int, depth: int, seed: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        RowHash(width, depth, seed)


@given(batch=weighted_batches(100))
def test_sums_equal_a_dictionary(batch: tuple[I64, F64 | None]) -> None:
    distinct, sums = sum_by_key(*batch)
    truth = true_counts([batch])
    assert sorted(distinct.tolist()) == sorted(truth)
    np.testing.assert_allclose(sums, [truth[key] for key in distinct.tolist()], rtol=1e-12)


def test_large_batches_equal_sorting() -> None:
    """Large enough that thousands of keys share a slot of the table with another key."""
    keys = zipf(100_000, 300_000, 0.8)
    distinct, sums = sum_by_key(keys, None)
    order = np.argsort(distinct)
    expected, counts = np.unique(keys, return_counts=True)
    np.testing.assert_array_equal(distinct[order], expected)
    np.testing.assert_array_equal(sums[order], counts)
