""""""

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.base.arrays import Layers, Overlay, ascending


@given(st.lists(st.integers(-5, 5), max_size=12))
def test_each_number_is_there_once_in_ascending_order(values: list[int]) -> None:
    given_ones = np.array(values, np.int64)
    assert ascending(given_ones).tolist() == sorted(set(values))
    assert given_ones.tolist() == values


@given(st.integers(0, 2**32 - 1), st.integers(0, 6), st.integers(0, 4))
def test_rows_are_those_of_a_dictionary_and_no_version_changes(seed: int, count: int, changes: int) -> None:
    rng = np.random.default_rng(seed)
    layers = Layers.of(rng.normal(size=(count, 3)))
    wanted = dict(enumerate(layers.base))
    versions = [(layers, wanted, count)]
    for _ in range(changes):
        layers, wanted, size = versions[-1]
        live = rng.permutation(sorted(wanted))
        gone, moved = np.split(live, [len(live) // 3])
        rows = np.concatenate([moved[: len(moved) // 2], size + np.arange(rng.integers(0, 3))]).astype(np.int64)
        values = rng.normal(size=(len(rows), 3))
        kept = {row: value for row, value in wanted.items() if row not in gone}
        later = layers.replaced(rows, values, gone.astype(np.int64))
        size = max(size, int(rows.max(initial=-1)) + 1)
        versions.append((later, kept | dict(zip(rows.tolist(), values, strict=True)), size))
    for layers, wanted, size in versions:
        rows = np.array(sorted(wanted), np.int64)
        assert len(layers) == size
        np.testing.assert_array_equal(layers[rows], np.array([wanted[row] for row in rows]).reshape(-1, 3))
        np.testing.assert_array_equal(layers[np.stack([rows, rows[::-1]])][1], layers[rows[::-1]])
        np.testing.assert_array_equal(layers.merged(0.0)[rows], layers[rows])
        assert not layers.merged(0.0)[np.setdiff1d(np.arange(size), rows)].any()
        with patch("weir.contracts.base.arrays._BLOCK", 2):
            pieces = [np.empty((0, 3)), *layers.pieces(0.0)]
        np.testing.assert_array_equal(np.concatenate(pieces), layers.merged(0.0))
        for row in rows:
            np.testing.assert_array_equal(layers[row], wanted[row])


keys = st.lists(st.integers(-5, 20), unique=True, max_size=8)


@given(st.lists(st.tuples(keys, keys), max_size=5))
def test_it_holds_what_a_dictionary_holds_and_no_version_changes(changes: list[tuple[list[int], list[int]]]) -> None:
    overlay, wanted = Overlay.empty(np.empty((0, 2))), dict[int, tuple[float, float]]()
    versions = [(overlay, wanted)]
    for number, (came, gone) in enumerate(changes):
        values = np.array([[key, number] for key in came], np.float64).reshape(-1, 2)
        overlay = overlay.without(np.array(gone, np.int64)).replaced(np.array(came, np.int64), values)
        wanted = {key: value for key, value in wanted.items() if key not in gone}
        wanted |= {key: (float(key), float(number)) for key in came}
        versions.append((overlay, wanted))
    for overlay, wanted in versions:
        assert overlay.keys.tolist() == sorted(wanted)
        assert [tuple(value) for value in overlay.values.tolist()] == [wanted[key] for key in sorted(wanted)]
        asked = np.arange(-6, 22).reshape(4, 7)
        places, here = overlay.find(asked)
        assert here.tolist() == [[key in wanted for key in some] for some in asked.tolist()]
        assert overlay.keys[places[here]].tolist() == asked[here].tolist()
