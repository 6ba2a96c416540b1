import pyarrow as pa

from weir.contracts import FeatureNames
from weir.readers.features import with_features


def test_without_features_nothing_is_added() -> None:
    rows = pa.table({"timestamp": [1]})
    assert with_features(rows, {}, FeatureNames()) is rows


def test_features_are_one_struct_in_the_order_of_the_settings() -> None:
    names = FeatureNames(categorical=["genre"], dense=["timestamp"])
    found = {"timestamp": pa.array([0.5, None]), "genre": pa.array([["jazz"], None], pa.list_(pa.string()))}
    rows = with_features(pa.table({"timestamp": [1, 2]}), found, names)
    assert rows["timestamp"].to_pylist() == [1, 2]
    assert rows["features"].to_pylist() == [{"genre": ["jazz"], "timestamp": 0.5}, {"genre": None, "timestamp": None}]
