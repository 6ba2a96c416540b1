import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from contracts import PADDING_KEY, ItemKeys
from trainer.export.fingerprint import Fingerprint, hashes_of
from trainer.items.rows import TableRows


class Table:
    """Keys by row and their embeddings, changed at random."""

    def __init__(self, seed: int, capacity: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.keys, self.embeddings = np.full(capacity, PADDING_KEY), np.zeros((capacity, 3), np.float32)

    def live(self, among: np.ndarray) -> tuple[TableRows, ItemKeys, np.ndarray]:
        rows = among[self.keys[among] != PADDING_KEY]
        keys = ItemKeys(self.keys[rows])
        return TableRows(rows), keys, hashes_of(keys, self.embeddings[rows])

    def whole(self) -> Fingerprint:
        return Fingerprint.of(len(self.keys), *self.live(np.arange(len(self.keys))))

    def change(self) -> TableRows:
        """Change the items or the embeddings of some rows, and touch some others."""
        rows = np.flatnonzero(self.draw.random(len(self.keys)) < 0.3)
        self.keys[rows] = np.where(self.draw.random(len(rows)) < 0.5, self.keys[rows], 100 + rows)
        self.keys[rows[self.draw.random(len(rows)) < 0.3]] = PADDING_KEY
        moved = rows[self.draw.random(len(rows)) < 0.5]
        self.embeddings[moved] = self.draw.normal(size=(len(moved), 3))
        return TableRows(rows)

    def grow(self, capacity: int) -> None:
        missing = capacity - len(self.keys)
        self.keys = np.concatenate([self.keys, np.full(missing, PADDING_KEY)])
        self.embeddings = np.concatenate([self.embeddings, np.zeros((missing, 3), np.float32)])


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 6))
def test_touched_rows_make_of_it_what_a_whole_table_gives(seed: int, capacity: int, changes: int) -> None:
    table = Table(seed, capacity)
    kept = table.whole()
    assert kept.value == 0
    for number in range(changes):
        if number == 2:
            table.grow(2 * capacity)
            kept.grow(2 * capacity)
        before, touched = table.keys.copy(), table.change()
        left = kept.update(touched, *table.live(touched))
        assert kept.value == table.whole().value
        assert left.tolist() == [key for key in before[before != table.keys].tolist() if key != PADDING_KEY]
        np.testing.assert_array_equal(kept.keys, table.keys)


def test_it_follows_from_the_items_whatever_their_rows() -> None:
    def value(capacity: int, rows: TableRows, keys: ItemKeys, embeddings: np.ndarray) -> int:
        return Fingerprint.of(capacity, rows, keys, hashes_of(keys, embeddings)).value

    embeddings = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    keys, rows = ItemKeys(np.array([7, -3, 2**62])), TableRows(np.array([2, 3, 5]))
    found = value(8, rows, keys, embeddings)
    order = np.array([2, 0, 1])
    assert found == value(16, TableRows(rows + 4), ItemKeys(keys[order]), embeddings[order])
    # The same keys and the same embeddings, paired otherwise.
    assert found != value(8, rows, ItemKeys(keys[order]), embeddings)
    embeddings[1, 2] = np.nextafter(embeddings[1, 2], np.float32(9))
    assert found != value(8, rows, keys, embeddings)
