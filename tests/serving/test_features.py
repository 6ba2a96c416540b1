"""The rules for the features of a query."""

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import MAX_ID_BYTES
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.features import feature_values, features_of

Value = pb.Feature


def problems(query: pb.Query) -> dict[str, str]:
    found: dict[str, str] = {}
    features_of("queries[3]", query, found.__setitem__)
    return found


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=MAX_ID_BYTES // 4)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9),
        st.lists(texts, min_size=1, max_size=64) | st.floats(-3e38, 3e38),
    )
)
def test_what_is_allowed_is_taken_as_it_is(said: dict[str, Any]) -> None:
    features = {n: Value(values=one) if isinstance(one, list) else Value(number=one) for n, one in said.items()}
    query = pb.Query(user_id="ann", features=features)
    assert problems(query) == {}
    found = features_of("", query, lambda *_: None)
    assert found == {name: tuple(one) if isinstance(one, list) else one for name, one in said.items()}
    assert feature_values([query, query]) == 2 * sum(len(one) if isinstance(one, list) else 1 for one in said.values())


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("", Value(number=1), "has a name of 0 bytes, allowed are 1 to 512"),
        ("é" * 257, Value(number=1), "has a name of 514 bytes, allowed are 1 to 512"),
        ("age", Value(), "has neither values nor a number, must have one of them"),
        ("age", Value(values=["a"], number=1), "has both values and a number, must have one of them"),
        ("age", Value(number=math.inf), "is inf, must be a finite number (32 bits)"),
        ("age", Value(number=1e39), "is 1e+39, must be a finite number (32 bits)"),
        ("age", Value(number=math.nan), "is nan, must be a finite number (32 bits)"),
        ("lives", Value(values=["a"] * 65), "has 65 values, at most 64 are allowed"),
        ("lives", Value(values=["a", "é" * 257]), "has a value of 514 bytes, at most 512 are allowed"),
    ],
)
def test_what_is_not_is_named_with_what_came(name: str, value: pb.Feature, problem: str) -> None:
    assert problems(pb.Query(user_id="ann", features={name: value})) == {f'queries[3].features["{name}"]': problem}


@pytest.mark.parametrize("source", [{"embedding": pb.Embedding(values=[1])}, {"item_id": "a"}])
def test_only_users_have_features(source: dict[str, Any]) -> None:
    found = problems(pb.Query(features={"age": Value(number=1)}, **source))
    assert found == {
        "queries[3].features": "are given with an embedding or an item_id, allowed are user_id and history"
    }


def test_a_query_without_features_has_none() -> None:
    assert features_of("", pb.Query(user_id="ann"), lambda *_: None) == {}
    assert feature_values([pb.Query(user_id="ann")]) == 0
    assert feature_values([pb.Query(user_id="ann", features={"a": Value()})]) == 1


@given(st.sets(st.text("abcdefg", min_size=1, max_size=4), min_size=2, max_size=12), st.randoms(use_true_random=False))
def test_equal_requests_are_read_in_the_same_order(names: set[str], random: Random) -> None:
    order = random.sample(sorted(names), len(names))
    query = pb.Query.FromString(
        pb.Query(user_id="ann", features={n: Value(number=1) for n in order}).SerializeToString()
    )
    assert list(features_of("", query, lambda *_: None)) == sorted(names)
    nothing = pb.Query(user_id="ann", features=dict.fromkeys(order, Value()))
    assert list(problems(nothing)) == [f'queries[3].features["{name}"]' for name in sorted(names)]
