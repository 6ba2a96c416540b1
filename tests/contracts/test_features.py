import json
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from contracts import INTERACTION_SCHEMA, ITEMS_SCHEMA, FeatureNames, interaction_schema, items_schema


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"categorical": ["a", "a"]}, "'a' is named twice"),
        ({"categorical": ["a"], "dense": ["a"]}, "'a' is named twice"),
        ({"dense": [""]}, "at least 1 character"),
        ({"dense": [str(number) for number in range(33)]}, "at most 32 items"),
        ({"numeric": ["a"]}, "numeric"),
    ],
)
def test_names_that_cannot_be_stored_are_refused(names: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        FeatureNames(**names)


def test_without_features_the_schemas_are_as_ever() -> None:
    assert interaction_schema(FeatureNames()) is INTERACTION_SCHEMA
    assert items_schema(FeatureNames()) == ITEMS_SCHEMA


def test_features_come_after_the_other_columns() -> None:
    names = FeatureNames(categorical=["genre"], dense=["price"])
    assert names.all == ("genre", "price")
    added = [pa.field("genre", pa.list_(pa.string())), pa.field("price", pa.float64())]
    assert list(items_schema(names)) == [*ITEMS_SCHEMA, *added]
    assert list(interaction_schema(names).field("features").type) == added
    assert FeatureNames.model_validate(json.loads(names.model_dump_json())) == names
