""""""

import asyncio
import enum
import socket
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import grpc
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, user_weights, write_bundle
from weir.contracts import Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.aio import AsyncRetrievalClient
from weir.serving.client import (
    RetrievalClient,
    RetrievalError,
    Wishes,
    by_embedding,
    by_history,
    by_item,
    by_user,
    id_texts,
    retrieve_request,
)


def test_answers_are_plain_values(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue, index="IVF4,Flat", parameters={"nprobe": 4}, trained_sequence=3)
    with ServerProcess(store) as server, RetrievalClient(server.target) as client:
        server.serving("v1")
        queries = [by_user("who", 2), by_history(["item-1", "what"], 3), by_item("item-2", 1)]
        answer = client.retrieve(
            [*queries, by_embedding(catalogue.vectors[9].tolist())],
            excluded_item_ids=["item-9"],
            score_threshold=-1.0,
            bundle_version="v1",
        )
        assert [len(hits.item_ids) for hits in answer.hits] == [2, 3, 1, 10]
        assert [hits.fallback for hits in answer.hits] == [True, False, False, False]
        assert answer.hits[1].missing_item_ids == ["what"]
        assert set(answer.seconds) == {"total", "queue", "tower", "search"}
        assert answer.attribution_token.startswith("v1/")
        narrow = client.retrieve([by_item("item-2")], allowed_item_ids=["item-3", "item-4"], exact=True)
        assert sorted(narrow.hits[0].item_ids) == ["item-3", "item-4"]
        stranger, item = client.embed([by_user("who"), by_item("item-2")])
        assert stranger is None
        assert item is not None
        np.testing.assert_allclose(item, catalogue.vectors[2], rtol=1e-6)
        assert (item.dtype, answer.hits[2].scores.dtype) == (np.float32, np.float32)
        info = client.info()
        assert (info.bundle_version, info.trained_sequence, info.metric) == ("v1", 3, "cosine")
        assert info.index_parameters == {"nprobe": 4.0}
        assert info.max_event_time == 1_700_000_000
        with pytest.raises(RetrievalError) as refusal:
            client.retrieve([by_user("", 0)])
        assert refusal.value.violations == {
            "queries[0].user_id": "is empty",
            "queries[0].k": "is 0, must be from 1 to 1000",
        }
        assert str(refusal.value).startswith("INVALID_ARGUMENT (INVALID_REQUEST): queries[0].user_id")


def test_a_query_says_what_is_known_of_its_user(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue, user_features=user_weights())
    said = {"country": "de", "langs": ["de", "en"], "age": np.int64(31), "shoes": 43}
    with ServerProcess(store) as server, RetrievalClient(server.target) as client:
        server.serving("v1")
        assert client.info().user_features == {"categorical": ("country", "langs"), "dense": ("age", "since")}
        queries = [by_user("who", features=said), by_history(["item-1"], features=said), by_history(["item-1"])]
        told, known, silent = client.retrieve(queries).hits
        assert [hits.missing_features for hits in (told, known, silent)] == [["shoes"], ["shoes"], []]
        assert [told.fallback, known.fallback] == [False, False]
        assert client.retrieve([by_user("who", features={"shoes": 43})]).hits[0].fallback
        # With and without features, in one batch or alone, the answers are the same.
        assert (
            client.retrieve(queries[2:]).hits[0].item_ids
            == silent.item_ids
            == catalogue.top(catalogue.user(["item-1"]), 10)
        )
        columns = {"country": [["de"]], "langs": [["de", "en"]], "age": [31.0]}
        added = user_weights().embeddings(pa.table(columns))[0]
        vector, _, plain = client.embed(queries)
        assert vector is not None
        assert plain is not None
        np.testing.assert_allclose(vector, added / np.linalg.norm(added), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(plain, catalogue.user(["item-1"]), rtol=1e-4, atol=1e-6)
        assert told.item_ids == catalogue.top(vector, 10)
        assert server.metric("weir_missing_features_total") == 3
        with pytest.raises(RetrievalError, match=r"features\[\"age\"\]: is inf, must be a finite number"):
            client.retrieve([by_user("who", features={"age": float("inf")})])


@pytest.mark.parametrize("said", [True, None, {"a": 1}, [1], b"de"])
def test_a_feature_that_is_none_is_named(said: object) -> None:
    with pytest.raises(TypeError, match=r"feature 'age' is .*; allowed are a text, several texts, or a number"):
        by_user("who", features={"age": said})  # type: ignore[dict-item]


def test_arrays_are_taken_as_lists_are(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    with ServerProcess(store) as server, RetrievalClient(server.target) as client:
        server.serving("v1")
        vector, history = catalogue.vectors[9], np.array(["item-1", "item-2"])
        plain = client.retrieve([by_embedding(vector.tolist(), 5), by_history(history.tolist(), 5)])
        arrays = client.retrieve([by_embedding(vector.astype(np.float64), 5), by_history(history, 5)])
    for one, other, wanted in zip(plain.hits, arrays.hits, (vector, catalogue.user(history.tolist())), strict=True):
        assert one.item_ids == other.item_ids == catalogue.top(wanted, 5)
        np.testing.assert_array_equal(one.scores, other.scores)


@pytest.mark.parametrize("values", [np.zeros((2, 8)), 0.5, [[0.1, 0.2]]])
def test_what_is_no_vector_is_refused_with_its_shape(values: object) -> None:
    with pytest.raises(ValueError, match=r"this is \(.*\); send a query per row"):
        by_embedding(values)  # type: ignore[arg-type]


def test_a_wish_that_there_is_not_is_named() -> None:
    with RetrievalClient("127.0.0.1:9") as client, pytest.raises(TypeError, match=r"retrieve knows no exclude_sen; .*"):
        client.retrieve([by_user("who")], exclude_sen=True)  # type: ignore[call-arg]


def test_a_deadline_holds_for_its_call_only() -> None:
    """A server that takes connections and says nothing, as one that hangs does."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        with RetrievalClient(target, timeout=60) as client, pytest.raises(RetrievalError) as refusal:
            client.info(timeout=0.2)
    assert refusal.value.code in {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with RetrievalClient("127.0.0.1:9", timeout=5) as client, pytest.raises(RetrievalError) as refusal:
        client.info()
    assert refusal.value.code == grpc.StatusCode.UNAVAILABLE
    assert refusal.value.reason == ""


def test_a_closed_client_refuses_even_its_first_call() -> None:
    client = RetrievalClient("127.0.0.1:9", timeout=5)
    client.close()
    with pytest.raises(ValueError, match="this client is closed"):
        client.info()


def test_large_answers_and_large_requests_pass(store: Store) -> None:
    catalogue = Catalogue.random(items=1000, prefix="item-with-a-long-name-" + "x" * 200)
    write_bundle(store, "v1", catalogue)
    with ServerProcess(store, limits={"max_answer_bytes": 1 << 25}) as server, RetrievalClient(server.target) as client:
        server.serving("v1")
        answer = client.retrieve([by_history(catalogue.ids[-250:], 1000)] * 100)
        assert [len(hits.item_ids) for hits in answer.hits] == [1000] * 100


LISTS = ("excluded_item_ids", "allowed_item_ids", "any_tags", "all_tags", "none_tags")
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


class Genre(str, enum.Enum):  # noqa: UP042 - many programs still have them
    JAZZ = "jazz"


class Number(enum.IntEnum):
    SEVEN = 7


def values_of(request: pb.RetrieveRequest, name: str) -> list[str]:
    return list(getattr(request if name == "excluded_item_ids" else request.filter, name))


def asked(name: str, given_value: Any) -> list[str]:
    """Return what a request holds that was made with a wish."""
    wishes: Any = {name: given_value}
    return values_of(retrieve_request([by_user("ann")], wishes), name)


@given(st.lists(TEXTS))
def test_texts_are_sent_as_they_are(ids: list[str]) -> None:
    assert list(by_history(ids).history.item_ids) == ids
    for name in LISTS:
        for spelled in (ids, tuple(ids), iter(ids), np.array(ids, object)):
            assert asked(name, spelled) == ids


@given(st.lists(st.one_of(st.integers(), TEXTS.map(str.encode), st.uuids())))
def test_values_of_one_spelling_become_that_text(ids: list[Any]) -> None:
    def text(one: Any) -> str:
        return one.decode() if isinstance(one, bytes) else f"{one:d}" if isinstance(one, int) else one.__format__("")

    assert id_texts("ids", ids) == [text(one) for one in ids]
    for one in ids:
        assert by_user(one).user_id == by_item(one).item_id == text(one)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_arrays_of_whole_numbers_are_lists_of_ids(ids: list[int]) -> None:
    assert id_texts("ids", np.array(ids, np.int64)) == [f"{one:d}" for one in ids]
    small = np.array(ids, np.int64).astype(np.uint8)
    assert id_texts("ids", small) == [f"{one:d}" for one in small.tolist()]


def test_members_of_enumerations_are_their_values() -> None:
    assert id_texts("ids", [Genre.JAZZ, Number.SEVEN, np.str_("x"), np.bytes_(b"y")]) == ["jazz", "7", "x", "y"]
    assert id_texts("ids", [UUID("{12345678-1234-5678-1234-56789ABCDEF0}")]) == ["12345678-1234-5678-1234-56789abcdef0"]


NO_IDS = [
    True,
    np.True_,
    None,
    7.0,
    np.float32(7),
    float("nan"),
    ["a"],
    ("a",),
    {"a": 1},
    bytearray(b"a"),
    1j,
]


@pytest.mark.parametrize("wrong", NO_IDS, ids=repr)
def test_any_other_value_is_refused_by_name_and_place(wrong: Any) -> None:
    kind = "None" if wrong is None else type(wrong).__name__
    for make, name in (
        (lambda: by_user(wrong), "user_id"),
        (lambda: by_item(wrong), "item_id"),
        (lambda: by_history(["a", wrong]), r"item_ids\[1\]"),
        *((lambda field=field: asked(field, ["a", wrong]), rf"{field}\[1\]") for field in LISTS),
    ):
        with pytest.raises(TypeError, match=rf"^{name} is .*\({kind}\), no id; allowed are"):
            make()


def test_bytes_that_are_no_text_are_named() -> None:
    with pytest.raises(ValueError, match=r"^item_ids\[1\] is b'\\xff', which is no UTF-8"):
        by_history([b"a", b"\xff"])


@pytest.mark.parametrize(
    "text", ["item-7", b"item-7", "", np.str_("item-7"), Genre.JAZZ, bytearray(b"item-7")], ids=repr
)
def test_a_text_is_no_list_of_ids(text: Any) -> None:
    for make in (lambda: by_history(text), *(lambda field=field: asked(field, text) for field in LISTS)):
        with pytest.raises(TypeError, match="a list of ids is wanted, a text came"):
            make()


@pytest.mark.parametrize("wrong", [7, 7.5, True, {"a": 1}, np.array(7), UUID(int=7)], ids=repr)
def test_anything_else_that_is_no_list_is_refused(wrong: Any) -> None:
    for make in (lambda: by_history(wrong), *(lambda field=field: asked(field, wrong) for field in LISTS)):
        with pytest.raises(TypeError, match=f"a list of ids is wanted, {type(wrong).__name__} came"):
            make()
    with pytest.raises(TypeError, match="a list of ids is wanted, NoneType came"):
        by_history(None)  # type: ignore[arg-type]


def test_every_field_of_a_request_that_takes_several_texts_is_checked() -> None:
    """A field that is added later must be checked, too."""
    found = {
        field.name
        for message in (pb.RetrieveRequest, pb.Filter, pb.History)
        for field in message.DESCRIPTOR.fields
        if field.is_repeated and field.type == field.TYPE_STRING
    }
    assert found == {*LISTS, "item_ids"}
    assert set(LISTS) <= Wishes.__annotations__.keys()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    store = Store(str(tmp_path_factory.mktemp("asking") / "store"))
    write_bundle(store, "v1", Catalogue.random())
    with ServerProcess(store) as process:
        process.serving("v1")
        yield process


def both(server: ServerProcess, call: Callable[[Any], Any]) -> Iterator[Callable[[], Any]]:
    """Yield a call by each of the two clients."""

    def blocking() -> Any:
        with RetrievalClient(server.target) as client:
            return call(client)

    async def awaited() -> Any:
        async with AsyncRetrievalClient(server.target) as client:
            return await call(client)

    yield blocking
    yield lambda: asyncio.run(awaited())


def test_what_is_excluded_is_excluded_however_it_is_spelled(server: ServerProcess) -> None:
    for ids in (["item-7"], [b"item-7"], np.array(["item-7"]), {"item-7"}, (one for one in ["item-7"])):
        given_ids = list(ids)
        for call in both(
            server, lambda client, ids=given_ids: client.retrieve([by_item("item-7", 5)], excluded_item_ids=ids)
        ):
            assert "item-7" not in call().hits[0].item_ids


def test_both_clients_refuse_a_text_and_a_lone_query(server: ServerProcess) -> None:
    for name in LISTS:
        for call in both(server, lambda client, name=name: client.retrieve([by_item("item-7")], **{name: "item-7"})):
            with pytest.raises(TypeError, match=f"{name}: a list of ids is wanted, a text came"):
                call()
    for lone in (by_item("item-7"), "item-7"):
        for ask in (lambda client, lone=lone: client.retrieve(lone), lambda client, lone=lone: client.embed(lone)):
            for call in both(server, ask):
                with pytest.raises(TypeError, match="a list of queries is wanted"):
                    call()
