import numpy as np
import pyarrow as pa
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import FeatureNames
from weir.contracts.feature_weights import Moments
from weir.contracts.features import MAX_DENSE
from weir.trainer.items.feature_inputs import inputs_of
from weir.trainer.items.features import FeatureTable
from weir.trainer.items.rows import FIRST_ITEM, TableRows

numbers = st.lists(st.none() | st.floats(-1e6, 1e6) | st.sampled_from([0.0, 3e38]), min_size=1, max_size=9)


@given(numbers, numbers)
def test_numbers_are_standardised_as_the_server_does(first: list[float | None], second: list[float | None]) -> None:
    table, expected = FeatureTable(8, 16), []
    names = FeatureNames(dense=("a", "b"))
    count = min(len(first), len(second))
    columns = {"a": pa.array(first[:count], pa.float64()), "b": pa.array(second[:count], pa.float64())}
    table.update(TableRows(np.arange(count) + FIRST_ITEM), pa.table(columns), names, 0)
    for values in columns.values():
        moments, plain = Moments(), values.to_numpy(zero_copy_only=False)
        moments.add(plain[~np.isnan(plain)])
        expected.append(moments.standardised(plain))
    found = inputs_of(table, *table.read(torch.arange(count) + FIRST_ITEM), torch.float64).dense
    assert found[:, :2].T.tolist() == np.array(expected).tolist()
    assert found.shape == (count, MAX_DENSE)
    assert not found[:, 2:].any()


def test_values_of_a_list_have_equal_shares_and_without_any_there_is_none() -> None:
    table, names = FeatureTable(1 << 20, 8), FeatureNames(categorical=("tag", "kind"))
    items = pa.table({"tag": [["a", "b", "c"], [], None], "kind": [["x"], None, ["y", "z"]]})
    table.update(TableRows(np.array([2, 3, 4])), items, names, 0)
    weights = inputs_of(table, *table.read(torch.arange(8)), torch.float64).weights
    # In front, a place for those who have nothing else; then three of tags, and two of kinds.
    assert weights.shape == (8, 6)
    assert weights[2:5].tolist() == [[0, 1 / 3, 1 / 3, 1 / 3, 1, 0], [0.0] * 6, [0, 0, 0, 0, 0.5, 0.5]]
    assert not weights[[0, 1, 5, 6, 7]].any()
