"""What features of queries add: each query by itself, whatever else is in its batch."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.support import user_weights
from weir.contracts import FeatureNames
from weir.contracts.interactions.features import FeatureWeights
from weir.serving.search.queries import QueryFeatures, said_in

WEIGHTS = user_weights()

_texts = st.lists(st.sampled_from(["a", "b", "de", ""]), min_size=1, max_size=4).map(tuple)
queries = st.lists(
    st.dictionaries(
        st.sampled_from(["country", "langs", "age", "since", "new"]), _texts | st.floats(-1e6, 1e6), max_size=5
    ),
    max_size=6,
)


def alone(query: dict[str, Any], weights: FeatureWeights = WEIGHTS) -> np.ndarray:
    """What the weights make of the features of one query that they know."""
    names = weights.names
    known = {name: query[name] for name in names.categorical if isinstance(query.get(name), tuple)}
    known |= {name: query[name] for name in names.dense if isinstance(query.get(name), float)}
    columns = {field.name: pa.array([known.get(field.name)], field.type) for field in names.fields}
    return weights.embeddings(pa.table(columns))[0]


@given(queries)
def test_each_query_says_what_it_says_alone(found: list[dict[str, Any]]) -> None:
    said = QueryFeatures.of(WEIGHTS, found)
    for number, query in enumerate(found):
        vector = said.of_query(number)
        np.testing.assert_allclose(np.zeros(8) if vector is None else vector, alone(query), rtol=1e-6, atol=1e-7)
        kinds = {"country": tuple, "langs": tuple, "age": float, "since": float}
        assert said.missing[number] == [n for n, one in query.items() if n not in kinds or type(one) is not kinds[n]]


@given(queries)
def test_a_bundle_without_weights_knows_no_feature(found: list[dict[str, Any]]) -> None:
    said = QueryFeatures.of(None, found)
    assert said.vectors is None
    assert said.missing == [list(query) for query in found]
    assert all(said.of_query(number) is None for number in range(len(found)))


def test_examples_say_what_is_known() -> None:
    kind = pa.struct([pa.field("langs", pa.list_(pa.string())), pa.field("age", pa.float64())])
    rows = [{"langs": ["de", "en"], "age": None}, {"langs": [], "age": 0.0}, {"langs": None, "age": None}]
    examples = pa.table({"user_key": [1, 2, 3], "user_features": pa.array(rows, kind)})
    assert said_in(examples) == [{"langs": ("de", "en")}, {"age": 0.0}, {}]
    assert said_in(examples.select(["user_key"])) == [{}, {}, {}]


def test_what_weights_say_nothing_about_is_nothing() -> None:
    untrained = FeatureWeights(
        FeatureNames(categorical=("country",)), np.zeros((4, 8), np.float32), np.zeros((8, 32), np.float32), ()
    )
    said = QueryFeatures.of(untrained, [{"country": ("de",)}])
    assert (said.of_query(0), said.missing) == (None, [[]])
