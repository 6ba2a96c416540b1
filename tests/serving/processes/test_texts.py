import pickle
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from contracts.layers import Layers
from serving.processes.texts import Texts

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


def test_rows_lie_on_it_as_on_an_array() -> None:
    array = np.array([f"item-{number}" for number in range(6)], object)
    late = (np.array([1, 6]), np.array(["new-1", "new-6"], object), np.array([3]))
    its = Layers.of(array)
    mine = Layers(cast("Any", Texts.of(array)), its.over, its.gone, its.count).replaced(*late)
    its = its.replaced(*late)
    rows = np.array([0, 1, 2, 4, 6])
    assert mine[rows].tolist() == its[rows].tolist()
    assert mine.merged("").tolist() == its.merged("").tolist()
