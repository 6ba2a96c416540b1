import asyncio
import enum
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.aio import AsyncRetrievalClient
from weir.serving.asking import by_history, by_item, by_user, id_texts
from weir.serving.client import RetrievalClient, Wishes, retrieve_request

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
