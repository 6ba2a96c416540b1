""""""

from unittest.mock import patch

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import PADDING_KEY, ItemKeys
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.rows import Reader, TableRows
from weir.trainer.items.table import ItemTable
from weir.trainer.state import dirty_rows as fingerprint
from weir.trainer.state.dirty_rows import Fingerprint, TouchedOfAll, hashes_of

DIMENSION = 3


class Model:
    """A table and its embeddings, changed at random."""

    def __init__(self, seed: int) -> None:
        self.draw, self.seen = np.random.default_rng(seed), 0
        self.table, self.embeddings = ItemTable(4), Embeddings(torch.zeros(4, DIMENSION))

    def fresh(self) -> int:
        return Fingerprint(self.table, self.embeddings).look()

    def change(self) -> None:
        """Let items come and go, and some rows move."""
        self.seen += 1
        keys = ItemKeys(self.draw.choice(np.arange(1, 30), 5, replace=False))
        self.table.touch(keys, self.seen)
        self.table.expire(self.seen - 2)
        admitted = self.table.admit(keys, np.array([f"i{key}" for key in keys], object), self.seen)
        self.embeddings.grow(self.table.capacity)
        self.embeddings.initialise(admitted, torch.Generator().manual_seed(self.seen))
        moved = torch.from_numpy(self.draw.choice(self.table.live, 3, replace=False))
        self.embeddings.weight[moved] += 1
        self.embeddings.touch(moved)


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.booleans())
def test_touched_rows_make_of_it_what_a_look_at_all_rows_gives(seed: int, at_once: int, published: bool) -> None:
    """Whether what was touched is cleared after a look or not, and in whatever pieces rows are hashed."""
    model = Model(seed)
    kept, values = Fingerprint(model.table, model.embeddings), set()
    for _ in range(6):
        model.change()
        with patch.object(fingerprint, "_AT_ONCE", at_once):
            value = kept.look()
        assert value == model.fresh()
        assert 0 <= value < 2**64
        values.add(value)
        if published:
            for part in (model.table, model.embeddings):
                part.touched.clear(Reader.BUNDLE)
    assert len(values) == 6


def test_it_tells_apart_what_is_in_which_row() -> None:
    model = Model(0)
    model.change()
    before, (one, other) = model.fresh(), model.table.live[:2]
    model.embeddings.weight[[one, other]] = model.embeddings.weight[[other, one]]
    assert model.fresh() != before
    model.table.keys[[one, other]] = model.table.keys[[other, one]]
    assert model.fresh() != before
    model.embeddings.weight[[one, other]] = model.embeddings.weight[[other, one]]
    assert model.fresh() != before
    model.table.keys[[one, other]] = model.table.keys[[other, one]]
    assert model.fresh() == before


def test_a_free_row_has_no_key() -> None:
    model = Model(0)
    row = int(np.flatnonzero(model.table.keys == PADDING_KEY)[-1])
    before = model.fresh()
    model.table.keys[row] = 7
    assert model.fresh() != before
    model.table.keys[row] = PADDING_KEY
    assert model.fresh() == before


@given(st.integers(0, 2**32 - 1), st.integers(1, 70), st.integers(0, 31))
def test_a_bit_of_a_line_or_another_row_changes_half_of_the_bits(seed: int, dimension: int, bit: int) -> None:
    draw = np.random.default_rng(seed)
    lines, rows = (
        draw.normal(size=(200, dimension)).astype(np.float32),
        TableRows(draw.permutation(1 << 40 >> 20)[:200]),
    )
    before, changed = hashes_of(rows, lines), lines.view(np.uint32).copy()
    changed[:, draw.integers(dimension)] ^= np.uint32(1 << bit)
    for after in (hashes_of(rows, changed.view(np.float32)), hashes_of(TableRows(rows + 1), lines)):
        flipped = np.unpackbits((before ^ after).view(np.uint8)).mean()
        assert 0.45 < flipped < 0.55
    assert len(np.unique(before)) == 200


def test_rows_of_items_and_of_embeddings_are_joined_for_each_reader() -> None:
    table, embeddings = ItemTable(8), Embeddings(torch.zeros(8, 2))
    touched = TouchedOfAll(table, embeddings)
    table.touched.mark(np.array([3, 5]))
    embeddings.touch(torch.tensor([5, 2]))
    assert touched.rows(Reader.BUNDLE).tolist() == [2, 3, 5]
    touched.clear(Reader.BUNDLE)
    assert touched.rows(Reader.BUNDLE).tolist() == []
    assert touched.rows(Reader.CHECKPOINT).tolist() == [2, 3, 5]


def test_other_questions_are_for_others() -> None:
    touched = TouchedOfAll(ItemTable(8), Embeddings(torch.zeros(8, 2)))
    assert touched.answer("touched BUNDLE")
    assert touched.answer("clear CHECKPOINT")
    assert touched.answer("left")
    assert touched.answer("clear SNAPSHOT")
    assert touched.answer("snapshot")
    assert not touched.answer("weight")
