"""The rules of a request: queries, features, filters, limits and costs."""

import math
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import MAX_ID_BYTES, hash_id
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.config import LimitsConfig
from weir.serving.errors import BundleVersionNotLoadedError, InvalidRequestError, NoCatalogueError
from weir.serving.index.diversity import TagCap
from weir.serving.index.eligibility import TagFilter
from weir.serving.index.index import ExactIndex
from weir.serving.rpc.requests import MAX_VIOLATIONS, embed_task, feature_values, features_of, retrieve_task
from weir.serving.rpc.status import details_of
from weir.serving.search.queries import ByEmbedding, ByHistory, ByItem, ByUser

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


INDEX = ExactIndex(np.zeros((51_200, 3), np.float32))
BUNDLE = cast(
    LoadedBundle,
    SimpleNamespace(
        version="v1",
        rescored=0,
        manifest=SimpleNamespace(dimension=3, metric="inner_product"),
        index=INDEX,
        exact=INDEX,
        key_secret="",
        has_catalogue=False,
    ),
)
DESCRIBED = cast(LoadedBundle, SimpleNamespace(**{**vars(BUNDLE), "has_catalogue": True, "items": 51_200}))
LIMITS = LimitsConfig(max_queries=4, max_k=50, max_history_item_ids=3, max_excluded_item_ids=2, max_allowed_item_ids=2)
ANN = pb.Query(user_id="ann")


def violations_of(**fields: Any) -> dict[str, str]:
    fields.setdefault("queries", [ANN])
    with pytest.raises(InvalidRequestError) as refusal:
        retrieve_task(pb.RetrieveRequest(**fields), BUNDLE, LIMITS)
    return {violation.field: violation.problem for violation in refusal.value.violations}


def test_users_may_have_features() -> None:
    said = {"country": pb.Feature(values=["de"]), "age": pb.Feature(number=31)}
    request = pb.RetrieveRequest(queries=[pb.Query(user_id="ann", features=said), ANN])
    assert [query.features for query in retrieve_task(request, BUNDLE, LIMITS).queries] == [
        {"country": ("de",), "age": 31.0},
        {},
    ]
    embedded = embed_task(pb.EmbedRequest(queries=request.queries), BUNDLE, LIMITS)
    assert embedded.queries[0].features == {"country": ("de",), "age": 31.0}
    assert violations_of(queries=[pb.Query(user_id="ann", features={"age": pb.Feature()})]) == {
        'queries[0].features["age"]': "has neither values nor a number, must have one of them"
    }


def test_a_request_has_so_many_values_of_features_at_most() -> None:
    limits = LIMITS.model_copy(update={"max_feature_values": 6})
    said = {"country": pb.Feature(values=["de", "at"]), "age": pb.Feature(number=31)}
    request = pb.RetrieveRequest(queries=[pb.Query(user_id="ann", features=said)] * 2)
    retrieve_task(request, BUNDLE, limits)
    request.queries[0].features["more"].number = 1
    with pytest.raises(InvalidRequestError, match="holds 7 feature values, at most 6 are allowed"):
        retrieve_task(request, BUNDLE, limits)


def test_a_request_becomes_a_task() -> None:
    request = pb.RetrieveRequest(
        queries=[
            pb.Query(user_id="ann"),
            pb.Query(history=pb.History(item_ids=["a", "b"]), k=50),
            pb.Query(embedding=pb.Embedding(values=[1, 2, 3])),
            pb.Query(item_id="a", k=1),
        ],
        params=pb.SearchParams(exact=True, nprobe=8, score_threshold=0.0),
        filter=pb.Filter(allowed_item_ids=["x"]),
        exclude_seen=True,
        excluded_item_ids=["y", "z"],
        bundle_version="v1",
    )
    task = retrieve_task(request, BUNDLE, LIMITS)
    user, history, embedding, item = (query.source for query in task.queries)
    assert user == ByUser(hash_id("ann"))
    assert isinstance(history, ByHistory)
    assert (history.ids, history.keys.tolist()) == (("a", "b"), [hash_id("a"), hash_id("b")])
    assert isinstance(embedding, ByEmbedding)
    assert embedding.values.tolist() == [1, 2, 3]
    assert item == ByItem("a", hash_id("a"))
    assert [query.k for query in task.queries] == [10, 50, 10, 1]
    assert (task.exact, task.nprobe, task.threshold, task.exclude_seen) == (True, 8, 0.0, True)
    assert task.excluded.tolist() == [hash_id("y"), hash_id("z")]
    assert task.allowed is not None
    assert task.allowed.tolist() == [hash_id("x")]
    assert task.pinned
    assert embed_task(pb.EmbedRequest(queries=[ANN], bundle_version="v1"), BUNDLE, LIMITS).pinned


def test_what_is_left_out_means_no_restriction() -> None:
    task = retrieve_task(pb.RetrieveRequest(queries=[ANN]), BUNDLE, LIMITS)
    assert (task.exact, task.nprobe, task.threshold, task.exclude_seen, task.allowed) == (False, 0, None, False, None)
    assert not len(task.excluded)
    assert not task.pinned
    assert not embed_task(pb.EmbedRequest(queries=[ANN]), BUNDLE, LIMITS).pinned


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (pb.Query(user_id="ann", k=0), "queries[0].k"),
        (pb.Query(user_id="ann", k=51), "queries[0].k"),
        (pb.Query(), "queries[0]"),
        (pb.Query(user_id=""), "queries[0].user_id"),
        (pb.Query(user_id="ü" * 257), "queries[0].user_id"),
        (pb.Query(item_id=""), "queries[0].item_id"),
        (pb.Query(history=pb.History(item_ids=["a"] * 4)), "queries[0].history.item_ids"),
        (pb.Query(history=pb.History(item_ids=["a", ""])), "queries[0].history.item_ids[1]"),
        (pb.Query(embedding=pb.Embedding(values=[1, 2])), "queries[0].embedding"),
        (pb.Query(embedding=pb.Embedding(values=[1, float("nan"), 2])), "queries[0].embedding"),
        (pb.Query(embedding=pb.Embedding(values=[1, float("-inf"), 2])), "queries[0].embedding"),
    ],
)
def test_a_bad_query_is_named_by_its_path(query: pb.Query, field: str) -> None:
    assert list(violations_of(queries=[query])) == [field]
    assert list(violations_of(queries=[ANN, ANN, query])) == [field.replace("[0]", "[2]", 1)]


@pytest.mark.parametrize("count", [0, 5])
def test_the_number_of_queries_is_bounded(count: int) -> None:
    assert violations_of(queries=[ANN] * count) == {"queries": f"holds {count}, must hold from 1 to 4"}


def test_ids_may_be_as_long_as_the_contract_says() -> None:
    retrieve_task(pb.RetrieveRequest(queries=[pb.Query(user_id="ü" * 256)]), BUNDLE, LIMITS)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_threshold_is_a_number(value: float) -> None:
    assert list(violations_of(params=pb.SearchParams(score_threshold=value))) == ["params.score_threshold"]


def test_all_problems_are_told_at_once() -> None:
    found = violations_of(
        queries=[pb.Query(user_id="", k=0), pb.Query(), pb.Query(embedding=pb.Embedding(values=[np.nan] * 2))],
        params=pb.SearchParams(score_threshold=np.nan),
        filter=pb.Filter(allowed_item_ids=["a", "b", "c"]),
        excluded_item_ids=["a", "b", "c"],
    )
    assert list(found) == [
        "queries[0].user_id",
        "queries[0].k",
        "queries[1]",
        "queries[2].embedding",
        "params.score_threshold",
        "excluded_item_ids",
        "filter.allowed_item_ids",
    ]


def test_a_pin_to_another_version_is_refused() -> None:
    for make, request in (
        (retrieve_task, pb.RetrieveRequest(queries=[ANN], bundle_version="v0")),
        (embed_task, pb.EmbedRequest(queries=[ANN], bundle_version="v0")),
    ):
        with pytest.raises(BundleVersionNotLoadedError, match="'v0' is not loaded; the loaded one is 'v1'"):
            make(request, BUNDLE, LIMITS)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["any_tags", "all_tags", "none_tags"])
def test_tags_need_a_catalogue(name: str) -> None:
    request = pb.RetrieveRequest(queries=[ANN], filter=pb.Filter(**{name: ["new"]}))
    with pytest.raises(NoCatalogueError, match=f"filter.{name}: the server has no catalogue") as refusal:
        retrieve_task(request, BUNDLE, LIMITS)
    assert refusal.value.metadata == {"fields": f"filter.{name}"}


def test_tags_are_checked_and_put_in_order() -> None:
    wanted = pb.Filter(any_tags=["new", "jazz", "new"], none_tags=["old"])
    task = retrieve_task(pb.RetrieveRequest(queries=[ANN], filter=wanted), DESCRIBED, LIMITS)
    assert task.tags == TagFilter(any=("jazz", "new"), none=("old",))
    assert task.allowed is None
    many = ["x"] * (LIMITS.max_filter_tags + 1)
    bad = pb.Filter(any_tags=["a", "b", "c", ""], all_tags=many, none_tags=["y" * 4096])
    with pytest.raises(InvalidRequestError) as refusal:
        retrieve_task(pb.RetrieveRequest(queries=[ANN], filter=bad), BUNDLE, LIMITS)
    fields = [violation.field for violation in refusal.value.violations]
    assert fields == ["filter.any_tags[3]", "filter.all_tags", "filter.none_tags[0]"]


def test_diversity_is_checked_and_needs_a_catalogue() -> None:
    wanted = pb.RetrieveRequest(queries=[ANN], diversity=pb.Diversity(max_per_tag=2, tag_prefix="artist:"))
    assert retrieve_task(wanted, DESCRIBED, LIMITS).cap == TagCap(2, "artist:")
    assert retrieve_task(pb.RetrieveRequest(queries=[ANN]), DESCRIBED, LIMITS).cap is None
    with pytest.raises(NoCatalogueError, match="diversity: the server has no catalogue"):
        retrieve_task(wanted, BUNDLE, LIMITS)
    for most in (0, LIMITS.max_k + 1):
        found = violations_of(diversity=pb.Diversity(max_per_tag=most, tag_prefix="y" * 513))
        assert found == {
            "diversity.max_per_tag": f"is {most}, must be from 1 to {LIMITS.max_k}",
            "diversity.tag_prefix": "has 513 bytes, at most 512 are allowed",
        }


def test_embed_ignores_k_and_searches_nothing() -> None:
    task = embed_task(pb.EmbedRequest(queries=[pb.Query(user_id="ann", k=0)]), BUNDLE, LIMITS)
    assert not task.find
    with pytest.raises(InvalidRequestError):
        embed_task(pb.EmbedRequest(queries=[pb.Query()]), BUNDLE, LIMITS)


def test_the_first_problems_are_told_and_the_others_counted() -> None:
    wide = LimitsConfig(max_history_item_ids=10**6, max_item_ids=10**6)
    query = pb.Query(history=pb.History(item_ids=[""] * 1000))
    with pytest.raises(InvalidRequestError) as refusal:
        retrieve_task(pb.RetrieveRequest(queries=[query] * 200), BUNDLE, wide)
    assert len(refusal.value.violations) == MAX_VIOLATIONS == 16
    assert refusal.value.more == 200_000 - 16
    assert str(refusal.value).endswith("; and 199984 more problems")
    # Errors travel in headers, which gRPC limits to 8 KiB.
    assert len(details_of(refusal.value)) + len(str(refusal.value)) < 6000


def test_the_ids_of_a_request_are_counted_together_and_before_they_are_read() -> None:
    limits = LimitsConfig(max_item_ids=8)
    query = pb.Query(history=pb.History(item_ids=["a", "b"]))
    request = pb.RetrieveRequest(
        queries=[query] * 2, excluded_item_ids=["c", "d"], filter=pb.Filter(allowed_item_ids=["e", "f"])
    )
    retrieve_task(request, BUNDLE, limits)
    request.excluded_item_ids.append("")
    with pytest.raises(InvalidRequestError) as refusal:
        retrieve_task(request, BUNDLE, limits)
    [only] = refusal.value.violations
    assert only.problem == "the request holds 9 item ids, at most 8 are allowed: send several requests"
    with pytest.raises(InvalidRequestError, match="holds 10 item ids, at most 8"):
        embed_task(pb.EmbedRequest(queries=[query] * 5), BUNDLE, limits)


def test_the_cost_of_a_request_is_bounded_and_the_error_says_how_to_split() -> None:
    limits = LimitsConfig(max_cost=1000)
    query = pb.Query(history=pb.History(item_ids=["a"] * 50), k=50)
    retrieve_task(pb.RetrieveRequest(queries=[query] * 3), BUNDLE, limits)
    with pytest.raises(InvalidRequestError) as refusal:
        retrieve_task(pb.RetrieveRequest(queries=[query] * 4), BUNDLE, limits)
    [only] = refusal.value.violations
    assert only.field == "queries"
    assert only.problem.startswith("cost 1,200, at most 1,000 is allowed (GetInfo, limits.max_cost)")
    assert "send at most 3 such queries in a request" in only.problem
    dear = pb.Query(user_id="ann", k=1000)
    with pytest.raises(InvalidRequestError, match="a single such query is too much"):
        retrieve_task(pb.RetrieveRequest(queries=[dear]), BUNDLE, limits)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([0, 0, 0], "is zero in all values, must point somewhere"),
        ([3e38, 3e38, 0], "has length 4.24e+38, at most 1e+18"),
    ],
)
def test_an_embedding_that_no_score_can_be_made_of_is_refused(values: list[float], problem: str) -> None:
    found = violations_of(queries=[pb.Query(embedding=pb.Embedding(values=values))])
    assert found["queries[0].embedding"].startswith(problem)


def test_an_embedding_is_measured_before_it_is_read() -> None:
    values = pb.Embedding(values=[float("nan")] * 100_000)
    assert violations_of(queries=[pb.Query(embedding=values)]) == {
        "queries[0].embedding": "has 100000 values, bundle v1 has 3 dimensions"
    }


def test_a_long_pin_is_not_repeated_whole() -> None:
    with pytest.raises(BundleVersionNotLoadedError) as refusal:
        retrieve_task(pb.RetrieveRequest(queries=[ANN], bundle_version="v" * 10**6), BUNDLE, LIMITS)
    assert len(details_of(refusal.value)) < 1000
